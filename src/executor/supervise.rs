//! Following one command from its start to its end: timer, abort, kill, grace, output.
//!
//! Rule: the first cause of a cut is the one that is reported, and the only one; what was written before
//! the end is kept; whatever the command left behind never delays the end by more than [`LINGER`].

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::executor::{Captured, Cut, Finished, Live, SandboxReport, Stream};
use crate::outcome::{Ended, NeverRan};
use crate::output::{Capture, Phase, pump};
use crate::request::ExecSpec;

/// How long processes that outlive the command may still write, at most.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// How long they must have written nothing to be given up earlier.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// Starts commands: as a child of this process, or inside a cell.
#[async_trait]
pub(crate) trait Launcher: Send + Sync + 'static {
    /// Starts the command. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// The command never ran.
    async fn launch(&self, spec: &ExecSpec) -> Result<Launched, NeverRan>;

    /// The session is over; none of its commands runs any more.
    async fn end_session(&self, _session: &str) {}

    /// Nothing will be launched any more; no command runs any more.
    async fn shutdown(&self) {}
}

/// A command that was started.
pub(crate) struct Launched {
    pub(crate) running: Box<dyn Running>,
    /// The reading end of its standard output.
    pub(crate) stdout: OwnedFd,
    /// The reading end of its standard error.
    pub(crate) stderr: OwnedFd,
    /// A witness of the launcher's own on both streams, such as a collector of denial evidence.
    pub(crate) witness: Option<Arc<dyn Live>>,
}

/// A command that runs. Dropping it kills the whole tree.
#[async_trait]
pub(crate) trait Running: Send {
    /// SIGTERM to the whole tree.
    fn terminate(&self);

    /// SIGKILL to the whole tree. May be called often, and after the end.
    fn kill(&self);

    /// The command's own process has ended; what it started may live on. Cancel-safe. A launcher that
    /// takes the tree down at that moment may wait for the whole tree here.
    async fn exited(&mut self);

    /// The whole tree is gone; how the command's own process ended. Cancel-safe; comes true soon after
    /// [`Running::kill`], whatever happens.
    async fn gone(&mut self) -> Ended;

    /// What the confinement has to say about the command, once, after [`Running::gone`].
    async fn report(
        &mut self,
        spec: &ExecSpec,
        ended: Ended,
        stdout: &Captured,
        stderr: &Captured,
    ) -> SandboxReport;
}

/// Asks a command to stop. The first cause stays.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Sender<Option<Cut>>);

impl Stop {
    pub(crate) fn new() -> Stop {
        Stop(watch::Sender::new(None))
    }

    /// Asks. Returns at once.
    pub(crate) fn request(&self, cause: Cut) {
        self.0.send_if_modified(|first| {
            let new = first.is_none();
            first.get_or_insert(cause);
            new
        });
    }

    /// Whether someone asked.
    pub(crate) fn is_requested(&self) -> bool {
        self.0.borrow().is_some()
    }

    async fn requested(&self) -> Cut {
        let mut cause = self.0.subscribe();
        loop {
            if let Some(cause) = *cause.borrow_and_update() {
                return cause;
            }
            // `self` holds the sender, so this can't fail; were it to, nobody could ask any more.
            if cause.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// One command under supervision. [`Job::follow`] must be polled for anything to happen; dropping it
/// kills the tree.
pub(crate) struct Job {
    pub(crate) launched: Launched,
    pub(crate) spec: Arc<ExecSpec>,
    pub(crate) capture: Arc<Capture>,
    pub(crate) stop: Stop,
    /// `None` for a background task.
    pub(crate) timeout: Option<Duration>,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Job {
    /// Follows the command until it has ended and its output is complete.
    pub(crate) async fn follow(self) -> Finished {
        let started = Instant::now();
        let Job {
            launched,
            spec,
            capture,
            stop,
            timeout,
            grace,
        } = self;
        let mut running = launched.running;
        capture.tap_all(launched.witness);
        let deadline = timeout.and_then(|limit| started.checked_add(limit));
        let (phase, drain) = watch::channel(Phase::Open);
        let end = async {
            let end = end(&mut *running, &stop, &capture, deadline, grace).await;
            phase.send_replace(Phase::Drain);
            end
        };
        let ((ended, cut), (), ()) = tokio::join!(
            end,
            pump(launched.stdout, Stream::Stdout, &capture, drain.clone()),
            pump(launched.stderr, Stream::Stderr, &capture, drain),
        );
        let duration = started.elapsed();
        let stdout = capture.captured(Stream::Stdout);
        let stderr = capture.captured(Stream::Stderr);
        let sandbox = running.report(&spec, ended, &stdout, &stderr).await;
        Finished {
            ended,
            cut,
            timeout,
            duration,
            stdout,
            stderr,
            sandbox,
        }
    }
}

/// Waits for the end, brings it about when someone asks or the time is up, and takes down the rest.
async fn end(
    running: &mut dyn Running,
    stop: &Stop,
    capture: &Capture,
    deadline: Option<Instant>,
    grace: Duration,
) -> (Ended, Option<Cut>) {
    let cut = tokio::select! {
        biased;
        () = running.exited() => None,
        cause = stop.requested() => Some(cause),
        () = reached(deadline) => Some(Cut::TimedOut),
    };
    match cut {
        None => linger(capture, stop).await,
        Some(_) => {
            running.terminate();
            if let Ok(ended) = timeout(grace, running.gone()).await {
                return (ended, cut);
            }
        }
    }
    running.kill();
    (running.gone().await, cut)
}

/// Lets what the command left behind finish its output, as `tee` in `exec > >(tee log)` must: until both
/// pipes are closed, or are quiet, or someone asks to stop.
async fn linger(capture: &Capture, stop: &Stop) {
    let mut changes = capture.changes();
    let quiet = async {
        while !capture.closed() {
            if timeout(QUIET, changes.changed()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = timeout(LINGER, quiet) => {}
        _ = stop.requested() => {}
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
