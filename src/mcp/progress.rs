//! Progress notifications while a call runs, so that a client knows that it is worth waiting.
//!
//! Rule: only for a call that brought a token; the number rises strictly, the rate is bounded, the message
//! is short and never the output; nothing is sent after the call's end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;
use tokio::time::Instant;

use crate::executor::{Live, Stream};

/// The pauses before the first notifications; then the last one again and again.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// What a running call is doing, for its progress messages.
#[derive(Default)]
pub struct Pulse {
    bytes: AtomicU64,
    waits_for: Mutex<Option<String>>,
}

impl Pulse {
    /// Says what the call waits for, as in `approval ab12 (cofferdam approve ab12)`; `None`: it runs.
    pub fn waits_for(&self, what: Option<String>) {
        let mut current = self
            .waits_for
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *current = what;
    }

    fn message(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs();
        let waits_for = self
            .waits_for
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match waits_for.as_deref() {
            Some(what) => format!("waiting for {what}, {seconds} s"),
            None => format!(
                "running, {seconds} s, {} bytes of output",
                self.bytes.load(Ordering::Relaxed)
            ),
        }
    }
}

impl Live for Pulse {
    fn chunk(&self, _stream: Stream, bytes: &[u8]) {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

/// Awaits `call`, telling `peer` about it from time to time when there is a token.
pub async fn tell_while<T>(
    peer: &Peer<RoleServer>,
    token: Option<ProgressToken>,
    pulse: &Arc<Pulse>,
    call: impl Future<Output = T>,
) -> T {
    let Some(token) = token else {
        return call.await;
    };
    let mut call = pin!(call);
    let started = Instant::now();
    let mut pauses = PAUSES.into_iter();
    let mut pause = Duration::ZERO;
    loop {
        pause = pauses.next().unwrap_or(pause);
        tokio::select! {
            result = &mut call => return result,
            () = tokio::time::sleep(pause) => {}
        }
        let elapsed = started.elapsed();
        let progress = ProgressNotificationParam::new(token.clone(), elapsed.as_secs_f64())
            .with_message(pulse.message(elapsed));
        let mut told = pin!(peer.notify_progress(progress));
        let result = tokio::select! {
            sent = &mut told => {
                if let Err(error) = sent {
                    tracing::debug!(%error, "progress can't be told");
                }
                continue;
            }
            result = &mut call => result,
        };
        // The call ended meanwhile; its result must not overtake the notification.
        if let Err(error) = told.await {
            tracing::debug!(%error, "progress can't be told");
        }
        return result;
    }
}
