//! The MCP server: the three tools for any client, in both eras of the protocol.
//!
//! Rule: everything that a model sees comes from [`tools`](crate::tools); here is only the protocol: the
//! lines, the two eras, who is asked, progress, cancellation and the end.
//!
//! One process serves one client over two streams, and one session. It answers `server/discover` and
//! stateless requests (2026-07-28) as well as `initialize` and its revisions, whichever comes first.
//!
//! | what | where it goes |
//! |---|---|
//! | the result text | the first content block, alone in it |
//! | the machine's copy and the card | the result's `_meta`, as `cofferdam/result` and `cofferdam/card` |
//! | notices: a background task finished, the mode changed | further content blocks of the next result |
//! | the prompt sections | the server's `instructions` |
//! | an escalation's question | `elicitation/create`, or an `input_required` result |
//!
//! A notice has a block of its own behind the result's, so that the exit marker stays the last line of
//! the text that it belongs to. A task whose end a result shows anyway gets none.

pub mod codex;
pub mod elicit;
pub mod lines;
pub mod progress;
mod server;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::session::Session;
use crate::tools::Tools;
use lines::Lines;
use server::Server;

/// How long running calls may go on after the end of input before they are aborted.
const LAST_CALLS: Duration = Duration::from_millis(500);

/// Somebody who can be asked about an escalation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// The person behind the client.
    Elicit,
    /// Whoever answers with `cofferdam approve` at another terminal.
    Queue,
    /// The controlling terminal of this process.
    Terminal,
    /// Nobody; what comes after it isn't asked either.
    Never,
}

/// A word that names no channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown approval channel \"{0}\": use elicit, queue, terminal or never")]
pub struct UnknownChannel(pub String);

impl FromStr for Channel {
    type Err = UnknownChannel;

    fn from_str(word: &str) -> Result<Channel, UnknownChannel> {
        match word {
            "elicit" => Ok(Channel::Elicit),
            "queue" => Ok(Channel::Queue),
            "terminal" => Ok(Channel::Terminal),
            "never" => Ok(Channel::Never),
            _ => Err(UnknownChannel(word.to_owned())),
        }
    }
}

/// What a server stands on beside its tools.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who is asked about an escalation, in this order.
    pub channels: Vec<Channel>,
    /// The folder of the queue's socket; without one the queue reaches nobody.
    pub run_dir: Option<PathBuf>,
    /// After this long a command goes on in the background.
    pub yield_after: Option<Duration>,
    /// Whether the machine's copy is structured content too.
    pub structured: bool,
    /// What the confined modes give, to be compared with a client's own policy.
    pub ours: codex::Ours,
}

/// Why nothing can be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// No key for the sealed states.
    #[error("no random bytes for the approval key: {0}")]
    Random(#[from] getrandom::Error),
}

/// Serves `tools` to the client at the other end of `input` and `output` until the end of input or
/// until `stop` is cancelled. Running calls are aborted then; background tasks are the executor's, which
/// the caller shuts down after this.
///
/// # Errors
/// Nothing could be served.
pub async fn serve(
    config: Config,
    tools: Tools,
    session: Arc<Session>,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    let calls = CancellationToken::new();
    let server = Server::new(config, tools, session, calls.clone())?;
    let ended = CancellationToken::new();
    let lines = Lines::open(input, output, ended.clone());
    let aborting = tokio::spawn({
        let stop = stop.clone();
        async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = async {
                    ended.cancelled().await;
                    tokio::time::sleep(LAST_CALLS).await;
                } => {}
            }
            calls.cancel();
        }
    });
    loop {
        let attempt = rmcp::service::serve_server_with_ct(server.clone(), lines.clone(), stop.child_token());
        match attempt.await {
            Ok(running) => {
                if let Err(error) = running.waiting().await {
                    tracing::warn!(%error, "the service ended badly");
                }
                break;
            }
            // What came before the first request of either era is passed over.
            Err(
                error @ (ServerInitializeError::ExpectedInitializeRequest(_)
                | ServerInitializeError::InitializeFailed(_)
                | ServerInitializeError::UnexpectedInitializeResponse(_)),
            ) => tracing::debug!(%error, "no handshake yet"),
            Err(error) => {
                tracing::debug!(%error, "ended before a handshake");
                break;
            }
        }
    }
    aborting.abort();
    Ok(())
}
