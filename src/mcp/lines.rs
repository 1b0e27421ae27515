//! The wire: one JSON-RPC message a line, read and written with a cap, whatever the peer sends.
//!
//! Rule: a line that can't be understood is answered with an error and costs nothing else; only the end
//! of input (or a peer that no longer reads) ends the connection. Nothing but messages is written.

use std::io;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

/// The longest line that is read; what is longer is dropped and answered with an error.
pub const MAX_LINE_BYTES: usize = 16 * 1024 * 1024;

/// Messages of one batch (revision 2025-03-26 allows them) that are read; more is an error.
const MAX_BATCH: usize = 1024;

/// Messages that wait for the server; the peer's writes stall behind them.
const QUEUE: usize = 32;

/// A connection over two byte streams. Clones share it, so that a server that gave up on a handshake
/// can be followed by another one on the same streams.
pub struct Lines<W> {
    incoming: Arc<Mutex<mpsc::Receiver<ClientJsonRpcMessage>>>,
    outgoing: Outgoing<W>,
}

impl<W> Clone for Lines<W> {
    fn clone(&self) -> Self {
        Lines {
            incoming: self.incoming.clone(),
            outgoing: self.outgoing.clone(),
        }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> Lines<W> {
    /// Starts to read `reader`. `ended` is cancelled at the end of input and when nobody reads
    /// `writer` any more; cancelling it ends the reading.
    pub fn open(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: W,
        ended: CancellationToken,
    ) -> Lines<W> {
        let outgoing = Outgoing {
            writer: Arc::new(Mutex::new(writer)),
            ended: ended.clone(),
        };
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn({
            let outgoing = outgoing.clone();
            async move {
                tokio::select! {
                    () = read_all(BufReader::new(reader), outgoing, sender) => {}
                    () = ended.cancelled() => {}
                }
                ended.cancel();
            }
        });
        Lines {
            incoming: Arc::new(Mutex::new(receiver)),
            outgoing,
        }
    }
}

impl<W: AsyncWrite + Send + Unpin + 'static> Transport<RoleServer> for Lines<W> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let outgoing = self.outgoing.clone();
        async move { outgoing.send(&message).await }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.incoming.lock().await.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.outgoing.writer.lock().await.flush().await
    }
}

struct Outgoing<W> {
    writer: Arc<Mutex<W>>,
    ended: CancellationToken,
}

impl<W> Clone for Outgoing<W> {
    fn clone(&self) -> Self {
        Outgoing {
            writer: self.writer.clone(),
            ended: self.ended.clone(),
        }
    }
}

impl<W: AsyncWrite + Unpin> Outgoing<W> {
    async fn send(&self, message: &ServerJsonRpcMessage) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let mut writer = self.writer.lock().await;
        let written = async {
            writer.write_all(&line).await?;
            writer.flush().await
        };
        let result = written.await;
        if result.is_err() {
            self.ended.cancel();
        }
        result
    }

    async fn refuse(&self, refusal: Refusal) {
        tracing::debug!(id = ?refusal.id, message = %refusal.error.message, "refused a line");
        let answer = ServerJsonRpcMessage::error(refusal.error, refusal.id);
        if let Err(error) = self.send(&answer).await {
            tracing::debug!(%error, "the peer doesn't read any more");
        }
    }
}

async fn read_all<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut reader: BufReader<R>,
    outgoing: Outgoing<W>,
    sender: mpsc::Sender<ClientJsonRpcMessage>,
) {
    let mut line = Vec::new();
    loop {
        let messages = match read_line(&mut reader, &mut line).await {
            Ok(Read::Line) => understand(&line),
            Ok(Read::TooLong) => vec![Err(Refusal::invalid(
                None,
                format!("a message is longer than {MAX_LINE_BYTES} bytes; send less"),
            ))],
            Ok(Read::End) => return,
            Err(error) => {
                tracing::warn!(%error, "input can't be read");
                return;
            }
        };
        for message in messages {
            match message {
                Ok(message) => {
                    if sender.send(message).await.is_err() {
                        return;
                    }
                }
                Err(refusal) => outgoing.refuse(refusal).await,
            }
        }
    }
}

enum Read {
    Line,
    TooLong,
    End,
}

/// Reads up to the next newline. A last line without a newline counts as one.
async fn read_line<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    line: &mut Vec<u8>,
) -> io::Result<Read> {
    line.clear();
    let mut too_long = false;
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            return Ok(match (too_long, line.is_empty()) {
                (true, _) => Read::TooLong,
                (false, true) => Read::End,
                (false, false) => Read::Line,
            });
        }
        let newline = available.iter().position(|&byte| byte == b'\n');
        let part = &available[..newline.unwrap_or(available.len())];
        too_long |= line.len() + part.len() > MAX_LINE_BYTES;
        if too_long {
            *line = Vec::new();
        } else {
            line.extend_from_slice(part);
        }
        let used = newline.map_or(available.len(), |at| at + 1);
        reader.consume(used);
        if newline.is_some() {
            return Ok(if too_long { Read::TooLong } else { Read::Line });
        }
    }
}

/// An error to send back, with the request's id where one could be read.
#[derive(Debug, PartialEq)]
struct Refusal {
    id: Option<RequestId>,
    error: ErrorData,
}

impl Refusal {
    fn invalid(id: Option<RequestId>, message: impl Into<String>) -> Refusal {
        Refusal {
            id,
            error: ErrorData::invalid_request(message.into(), None),
        }
    }
}

/// What a line says: the messages of it in order, or why there is none. Blank lines and malformed
/// notifications, which nobody may answer, yield nothing.
fn understand(line: &[u8]) -> Vec<Result<ClientJsonRpcMessage, Refusal>> {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    if line.trim_ascii().is_empty() {
        return Vec::new();
    }
    match serde_json::from_slice::<Value>(line) {
        Err(error) => vec![Err(Refusal {
            id: None,
            error: ErrorData::new(
                ErrorCode::PARSE_ERROR,
                format!("a line isn't JSON: {error}"),
                None,
            ),
        })],
        Ok(Value::Array(batch)) if batch.is_empty() => {
            vec![Err(Refusal::invalid(None, "a batch is empty"))]
        }
        Ok(Value::Array(batch)) if batch.len() > MAX_BATCH => vec![Err(Refusal::invalid(
            None,
            format!("a batch holds more than {MAX_BATCH} messages; send fewer"),
        ))],
        Ok(Value::Array(batch)) => batch.into_iter().filter_map(message).collect(),
        Ok(value) => message(value).into_iter().collect(),
    }
}

fn message(value: Value) -> Option<Result<ClientJsonRpcMessage, Refusal>> {
    let Value::Object(fields) = &value else {
        return Some(Err(Refusal::invalid(None, "a message isn't an object")));
    };
    let id = fields
        .get("id")
        .and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
    let is_notification = fields.contains_key("method") && !fields.contains_key("id");
    match serde_json::from_value(value) {
        Ok(message) => Some(Ok(message)),
        Err(error) if is_notification => {
            tracing::debug!(%error, "ignored a malformed notification");
            None
        }
        Err(error) => Some(Err(Refusal::invalid(
            id,
            format!("a message isn't JSON-RPC 2.0: {error}"),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the other side reads after sending `input` and closing.
    async fn answers(input: &[u8]) -> (Vec<ClientJsonRpcMessage>, Vec<Value>) {
        let ended = CancellationToken::new();
        let (ours, theirs) = tokio::io::duplex(64 * 1024 * 1024);
        let mut lines = Lines::open(io::Cursor::new(input.to_vec()), ours, ended.clone());
        let mut messages = Vec::new();
        while let Some(message) = lines.receive().await {
            messages.push(message);
        }
        ended.cancelled().await;
        drop(lines);
        let mut reader = BufReader::new(theirs).lines();
        let mut errors = Vec::new();
        while let Some(line) = reader.next_line().await.unwrap() {
            errors.push(serde_json::from_str(&line).unwrap());
        }
        (messages, errors)
    }

    const PING: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n";

    #[tokio::test]
    async fn a_line_that_is_no_json_is_answered_and_the_next_one_is_read() {
        let (messages, errors) = answers(&[b"{oops\n", PING].concat()).await;
        assert_eq!(messages.len(), 1);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0]["error"]["code"], -32700);
        assert_eq!(errors[0].get("id"), None);
    }

    #[tokio::test]
    async fn a_message_of_the_wrong_shape_is_refused_under_its_own_id() {
        let (messages, errors) =
            answers(b"{\"jsonrpc\":\"1.0\",\"id\":3,\"method\":\"ping\"}\n").await;
        assert_eq!(messages.len(), 0);
        assert_eq!(errors[0]["id"], 3);
        assert_eq!(errors[0]["error"]["code"], -32600);
    }

    #[tokio::test]
    async fn the_messages_of_a_batch_are_read_one_by_one() {
        let batch = b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"},5,{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}]\n";
        let (messages, errors) = answers(batch).await;
        assert_eq!(messages.len(), 2);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0]["error"]["message"], "a message isn't an object");
    }

    #[tokio::test]
    async fn a_line_beyond_the_cap_is_refused_and_the_next_one_is_read() {
        let long = vec![b' '; MAX_LINE_BYTES + 1];
        let (messages, errors) = answers(&[&long, &b"\n"[..], PING].concat()).await;
        assert_eq!(messages.len(), 1);
        assert_eq!(
            errors[0]["error"]["message"],
            "a message is longer than 16777216 bytes; send less"
        );
    }

    #[tokio::test]
    async fn a_last_line_without_a_newline_counts() {
        let (messages, errors) = answers(PING.trim_ascii()).await;
        assert_eq!((messages.len(), errors.len()), (1, 0));
    }

    proptest! {
        #[test]
        fn any_line_yields_a_message_or_an_error_or_is_blank_or_a_notification(
            line in proptest::collection::vec(any::<u8>().prop_filter("newline", |b| *b != b'\n'), 0..200)
        ) {
            let understood = understand(&line);
            let blank = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line).trim_ascii().is_empty();
            // Random bytes that happen to be a notification object don't occur in practice.
            prop_assert_eq!(understood.is_empty(), blank);
        }

        #[test]
        fn any_object_with_an_id_yields_a_message_or_an_error_under_that_id(
            id in 0u32..1000,
            method in proptest::option::of("[a-z/]{0,12}"),
            params in json(),
            extra in json(),
        ) {
            let mut value = serde_json::json!({"jsonrpc": "2.0", "id": id, "params": params, "extra": extra});
            if let Some(method) = method {
                value["method"] = method.into();
            }
            match message(value).expect("an answer") {
                Ok(ClientJsonRpcMessage::Request(request)) => {
                    prop_assert_eq!(request.id, RequestId::Number(i64::from(id)));
                }
                Ok(_) => {}
                Err(refusal) => prop_assert_eq!(refusal.id, Some(RequestId::Number(i64::from(id)))),
            }
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map("[a-z_]{0,8}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }
}
