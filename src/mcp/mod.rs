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
        let attempt =
            rmcp::service::serve_server_with_ct(server.clone(), lines.clone(), stop.child_token());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::managed::Managed;
    use crate::executor::{Executor, Settings, Unconfined};
    use crate::mode::Mode;
    use crate::policy::Network;
    use crate::session::Home;
    use crate::tools::Composition;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    #[test]
    fn a_channel_reads_back_from_its_name_alone() {
        assert_eq!("elicit".parse(), Ok(Channel::Elicit));
        assert_eq!("queue".parse(), Ok(Channel::Queue));
        assert_eq!("terminal".parse(), Ok(Channel::Terminal));
        assert_eq!("never".parse(), Ok(Channel::Never));
        assert_eq!(
            "Elicit".parse::<Channel>().unwrap_err().to_string(),
            "unknown approval channel \"Elicit\": use elicit, queue, terminal or never"
        );
    }

    /// Everything that a server writes for `lines`, until it has answered a last request.
    async fn answers(lines: &[Vec<u8>]) -> Vec<Value> {
        let dir = tempfile::tempdir().unwrap();
        let executor: Arc<dyn Executor> = Arc::new(Unconfined::new(Settings::default()));
        let home = Home::find(Some(dir.path())).unwrap();
        let config = Config {
            channels: vec![Channel::Elicit],
            run_dir: None,
            yield_after: None,
            structured: false,
            ours: codex::Ours {
                workspace: dir.path().to_owned(),
                writable: Vec::new(),
                network: Network::None,
            },
        };
        let tools = Tools::new(Composition::new(executor, Managed::new(home)));
        let session = Arc::new(Session::in_memory(dir.path(), Mode::ReadOnly).unwrap());
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(ours);
        let serving = tokio::spawn(serve(
            config,
            tools,
            session,
            reader,
            writer,
            CancellationToken::new(),
        ));
        let (reader, mut writer) = tokio::io::split(theirs);
        let initialize = json!({"jsonrpc": "2.0", "id": "last", "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        }});
        let writing = async {
            for line in lines {
                writer.write_all(line).await.unwrap();
                writer.write_all(b"\n").await.unwrap();
            }
            writer
                .write_all(format!("{initialize}\n").as_bytes())
                .await
                .unwrap();
        };
        let mut answers = Vec::new();
        let reading = async {
            let mut reader = BufReader::new(reader).lines();
            while let Some(line) = reader.next_line().await.unwrap() {
                let answer: Value = serde_json::from_str(&line).unwrap();
                let is_last = answer["id"] == "last";
                answers.push(answer);
                if is_last {
                    break;
                }
            }
            // Dropping the streams is the end of input.
        };
        let both = async { tokio::join!(writing, reading) };
        tokio::time::timeout(Duration::from_secs(20), both)
            .await
            .expect("an answer in time");
        drop(writer);
        tokio::time::timeout(Duration::from_secs(20), serving)
            .await
            .expect("an end in time")
            .expect("no panic")
            .unwrap();
        answers
    }

    /// Well-formed requests that run nothing.
    fn requests() -> Vec<Value> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
            "codex/sandbox-state-meta": {"permissionProfile": {"type": "managed"}},
            "progressToken": 5,
        });
        let request = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        vec![
            request("ping", json!({})),
            request("server/discover", json!({"_meta": meta})),
            request("tools/list", json!({"_meta": meta})),
            request(
                "tools/call",
                json!({"_meta": meta, "name": "bash_output", "arguments": {"task_id": "bash-1"}}),
            ),
            request(
                "tools/call",
                json!({
                    "_meta": meta, "name": "bash", "arguments": {"command": "", "description": "d"},
                    "inputResponses": {"approval": {"action": "accept"}}, "requestState": "rs1.x.y",
                }),
            ),
            request(
                "initialize",
                json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}),
            ),
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}),
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m"}}),
        ]
    }

    #[derive(Clone, Debug)]
    enum Harm {
        None,
        Cut(prop::sample::Index),
        Flip(prop::sample::Index, u8),
        Double(prop::sample::Index),
    }

    fn harmed(mut line: Vec<u8>, harm: &Harm) -> Vec<u8> {
        match harm {
            Harm::None => {}
            Harm::Cut(at) => line.truncate(at.index(line.len())),
            Harm::Flip(at, byte) => {
                let at = at.index(line.len());
                line[at] = if *byte == b'\n' { b' ' } else { *byte };
            }
            Harm::Double(at) => {
                let at = at.index(line.len());
                line.extend_from_within(at..);
            }
        }
        line
    }

    fn harm() -> impl Strategy<Value = Harm> {
        prop_oneof![
            Just(Harm::None),
            any::<prop::sample::Index>().prop_map(Harm::Cut),
            (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Harm::Flip(at, byte)),
            any::<prop::sample::Index>().prop_map(Harm::Double),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_server_outlives_any_lines(
            picks in proptest::collection::vec((any::<prop::sample::Index>(), harm()), 0..12)
        ) {
            let requests = requests();
            let lines: Vec<Vec<u8>> = picks
                .iter()
                .map(|(pick, harm)| harmed(pick.get(&requests).to_string().into_bytes(), harm))
                .collect();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let answers = runtime.block_on(answers(&lines));
            let last = answers.last().expect("an answer");
            prop_assert_eq!(&last["id"], &json!("last"));
            for answer in &answers {
                prop_assert_eq!(&answer["jsonrpc"], &json!("2.0"));
                prop_assert!(answer.get("method").is_some() || answer.get("result").is_some() || answer.get("error").is_some());
            }
        }
    }
}
