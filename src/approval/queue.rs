//! The out-of-band queue: a question waits here until a person answers it from another terminal, with
//! `cofferdam approve ID` or `cofferdam reject ID`.
//!
//! Rule: only the owner can reach it, and nothing that runs confined can. The socket lies in a private
//! folder ([`run_dir`], which no confined command sees), and each peer is checked besides: the same user,
//! not started by the server that asks, and no more confined than the server is.
//!
//! One request and one reply a connection, each a line of JSON, both bounded.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, Answerer, Question};
use crate::mode::Mode;
use crate::session::Home;

/// How long a question waits before it counts as cancelled.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// How long a peer may take for its request, and a server for its reply.
const TALK: Duration = Duration::from_secs(5);

/// Questions of one server that wait at once.
const MAX_WAITING: usize = 256;

/// The longest request.
const MAX_REQUEST: u64 = 64 * 1024;

/// The longest reply that is read.
const MAX_REPLY: u64 = 64 * 1024 * 1024;

/// The longest chain of parents that is followed; a longer one is refused.
const MAX_ANCESTORS: usize = 4096;

/// The longest path of a UNIX socket (`sockaddr_un`), without the ending NUL.
const MAX_SOCKET_PATH: usize = 107;

/// A question as it waits: all that a person needs to decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// What `approve` and `reject` take.
    pub id: String,
    /// The process that asks.
    pub server: u32,
    /// The session of the call.
    pub session: String,
    /// The exact command.
    pub command: String,
    /// Where it would start; broken bytes are replaced.
    pub workdir: String,
    /// The mode that holds without a grant.
    pub from: Mode,
    /// The mode that is asked for.
    pub to: Mode,
    /// Why, in the model's words.
    pub justification: String,
    /// What the wider mode adds.
    pub adds: String,
    /// The whole question as text for a terminal.
    pub text: String,
    /// When it was asked, in seconds since 1970.
    pub asked_at: u64,
}

/// What a person said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Allow this one run.
    Approve,
    /// Don't run it.
    Reject,
}

/// Who said it: the process that carried the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What was said.
    pub verdict: Verdict,
    /// The answering user's id.
    pub uid: u32,
    /// The answering process' id, where the kernel tells it.
    pub pid: Option<i32>,
    /// Its controlling terminal, as in `/dev/pts/3`. A person usually has one.
    pub terminal: Option<String>,
}

/// A queue that can't be opened or reached.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// No place for the socket.
    #[error("no folder for the approval socket: {0}")]
    NoFolder(#[from] crate::session::HomeError),
    /// The folder is somebody else's, or others may enter it.
    #[error("{0} isn't a private folder of this user; remove it or set its mode to 0700")]
    NotPrivate(PathBuf),
    /// The socket's path is longer than the kernel takes.
    #[error("{0} is too long for a socket; set XDG_RUNTIME_DIR to a short path")]
    TooLong(PathBuf),
    /// A system call failed.
    #[error("{doing} {path}: {source}")]
    Io {
        /// What was tried, as in `bind`.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The errno.
        source: io::Error,
    },
    /// Too many questions wait already.
    #[error(
        "{MAX_WAITING} questions wait already; answer some with `cofferdam approve` or `cofferdam reject`"
    )]
    Full,
    /// Nobody asks under this id.
    #[error("nothing waits under \"{0}\"; `cofferdam approvals` lists what does")]
    Unknown(String),
    /// The server that asks refused to hear this process.
    #[error("the asking server refused: {0}")]
    Refused(String),
}

impl QueueError {
    fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> QueueError {
        let path = path.to_owned();
        move |source| QueueError::Io {
            doing,
            path,
            source,
        }
    }
}

/// The folder of the sockets: `cofferdam` below `$XDG_RUNTIME_DIR`, else `run` below the home of the
/// sessions. It must be hidden from every confined command.
///
/// # Errors
/// There is no `$XDG_RUNTIME_DIR` and no home either.
pub fn run_dir() -> Result<PathBuf, QueueError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute() && path.is_dir());
    match runtime {
        Some(path) => Ok(path.join("cofferdam")),
        None => Ok(Home::find(None)?.path().join("run")),
    }
}

/// The answerer over a [`Queue`].
pub struct Queued {
    queue: Arc<Queue>,
    announce: Box<dyn Fn(&Waiting) + Send + Sync>,
}

impl Queued {
    /// `announce` is called with each question as it waits, so that somebody may come to know of it.
    pub fn new(queue: Arc<Queue>, announce: impl Fn(&Waiting) + Send + Sync + 'static) -> Queued {
        Queued {
            queue,
            announce: Box::new(announce),
        }
    }
}

#[async_trait]
impl Answerer for Queued {
    async fn ask(&self, question: &Question) -> Answer {
        let waiting = Waiting::from(question);
        match self.queue.ask(waiting, &self.announce).await {
            Ok(Some(answered)) => {
                let by = answered.by();
                match answered.verdict {
                    Verdict::Approve => Answer::AllowedOnce { by },
                    Verdict::Reject => Answer::Rejected { by },
                }
            }
            Ok(None) => Answer::Cancelled {
                by: "nobody, in time".to_owned(),
            },
            Err(error) => {
                tracing::warn!(%error, "the approval queue can't be used");
                Answer::Unavailable
            }
        }
    }
}

impl From<&Question> for Waiting {
    /// The id and the time are the queue's to set.
    fn from(question: &Question) -> Waiting {
        Waiting {
            id: String::new(),
            server: 0,
            session: question.session.clone(),
            command: question.command.clone(),
            workdir: question.workdir.to_string_lossy().into_owned(),
            from: question.from,
            to: question.to,
            justification: question.justification.clone(),
            adds: question.adds.clone(),
            text: question.text(),
            asked_at: 0,
        }
    }
}

impl Answered {
    /// Who answered, for the audit: `root (uid 0) by cofferdam approve, pid 4242, at /dev/pts/3`, or
    /// `without a terminal`.
    pub fn by(&self) -> String {
        let verb = match self.verdict {
            Verdict::Approve => "approve",
            Verdict::Reject => "reject",
        };
        let pid = self
            .pid
            .map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let user = nix::unistd::User::from_uid(self.uid.into())
            .ok()
            .flatten()
            .map_or_else(|| "?".to_owned(), |user| user.name);
        let at = match &self.terminal {
            Some(terminal) => format!("at {terminal}"),
            None => "without a terminal".to_owned(),
        };
        format!(
            "{user} (uid {}) by cofferdam {verb}, pid {pid}, {at}",
            self.uid
        )
    }
}

/// A server's side: the questions that wait, and the socket that answers come in by. The socket exists
/// from the first question on until the queue is dropped.
pub struct Queue {
    dir: PathBuf,
    patience: Duration,
    waiting: Arc<Mutex<Questions>>,
    listener: tokio::sync::Mutex<Option<Listening>>,
}

type Questions = BTreeMap<String, (Waiting, oneshot::Sender<Answered>)>;

struct Listening {
    path: PathBuf,
    _task: AbortOnDropHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "socket can't be removed");
        }
    }
}

impl Queue {
    /// A queue with its socket in `dir`, such as [`run_dir`]; a question waits `patience`.
    pub fn new(dir: PathBuf, patience: Duration) -> Queue {
        Queue {
            dir,
            patience,
            waiting: Arc::default(),
            listener: tokio::sync::Mutex::default(),
        }
    }

    /// Puts a question and waits for its answer; `None` when nobody answered in time. Dropping the
    /// future takes the question back. The id and the time of `question` are set here; `announced` is
    /// called with the question as it waits.
    ///
    /// # Errors
    /// The socket can't be opened, so that nobody could answer.
    pub async fn ask(
        &self,
        mut question: Waiting,
        announced: impl FnOnce(&Waiting),
    ) -> Result<Option<Answered>, QueueError> {
        self.listen().await?;
        question.id = random_id().map_err(QueueError::io("read", Path::new("/dev/urandom")))?;
        question.server = std::process::id();
        question.asked_at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let (sender, receiver) = oneshot::channel();
        let _taken_back = TakeBack {
            waiting: self.waiting.clone(),
            id: question.id.clone(),
        };
        {
            let mut waiting = lock(&self.waiting);
            if waiting.len() >= MAX_WAITING {
                return Err(QueueError::Full);
            }
            waiting.insert(question.id.clone(), (question.clone(), sender));
        }
        announced(&question);
        match tokio::time::timeout(self.patience, receiver).await {
            Ok(Ok(answered)) => Ok(Some(answered)),
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }

    async fn listen(&self) -> Result<(), QueueError> {
        let mut listener = self.listener.lock().await;
        if listener.is_none() {
            let path = private_dir(&self.dir)?.join(format!(
                "{}-{}.sock",
                std::process::id(),
                random_id().map_err(QueueError::io("read", Path::new("/dev/urandom")))?
            ));
            if path.as_os_str().as_bytes().len() > MAX_SOCKET_PATH {
                return Err(QueueError::TooLong(path));
            }
            let socket = UnixListener::bind(&path).map_err(QueueError::io("bind", &path))?;
            let waiting = self.waiting.clone();
            *listener = Some(Listening {
                path,
                _task: AbortOnDropHandle::new(tokio::spawn(accept_all(socket, waiting))),
            });
        }
        Ok(())
    }
}

struct TakeBack {
    waiting: Arc<Mutex<Questions>>,
    id: String,
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        lock(&self.waiting).remove(&self.id);
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Request {
    List,
    Answer { id: String, verdict: Verdict },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Waiting(Vec<Waiting>),
    Taken,
    Unknown,
    Refused(String),
}

async fn accept_all(socket: UnixListener, waiting: Arc<Mutex<Questions>>) {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                let waiting = waiting.clone();
                tokio::spawn(async move {
                    match tokio::time::timeout(TALK, talk(stream, &waiting)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%error, "a peer left early"),
                        Err(_) => tracing::debug!("a peer was too slow"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn talk(stream: UnixStream, waiting: &Mutex<Questions>) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    let (reader, mut writer) = stream.into_split();
    // Also from a peer that is refused: what it had sent and nobody read would cost it the reply.
    let mut request = Vec::new();
    BufReader::new(reader.take(MAX_REQUEST))
        .read_until(b'\n', &mut request)
        .await?;
    let reply = match may_answer(peer.uid(), peer.pid()) {
        Ok(()) => reply(&request, &peer, waiting),
        Err(reason) => {
            tracing::warn!(
                uid = peer.uid(),
                pid = peer.pid(),
                reason,
                "refused an answer"
            );
            Reply::Refused(reason.to_owned())
        }
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    writer.shutdown().await
}

fn reply(request: &[u8], peer: &UCred, waiting: &Mutex<Questions>) -> Reply {
    match serde_json::from_slice(request) {
        Ok(Request::List) => {
            let waiting = lock(waiting);
            Reply::Waiting(
                waiting
                    .values()
                    .map(|(question, _)| question.clone())
                    .collect(),
            )
        }
        Ok(Request::Answer { id, verdict }) => {
            let asked = lock(waiting).remove(&id);
            let answered = Answered {
                verdict,
                uid: peer.uid(),
                pid: peer.pid(),
                terminal: peer.pid().and_then(terminal_of),
            };
            match asked.map(|(_, sender)| sender.send(answered)) {
                Some(Ok(())) => Reply::Taken,
                Some(Err(_)) | None => Reply::Unknown,
            }
        }
        Err(error) => Reply::Refused(format!("a request can't be read: {error}")),
    }
}

/// Whether a peer is a person's process, as far as the kernel can tell.
fn may_answer(uid: u32, pid: Option<i32>) -> Result<(), &'static str> {
    if uid != nix::unistd::geteuid().as_raw() {
        return Err("another user can't answer");
    }
    let pid = pid.ok_or("the kernel doesn't tell who answers")?;
    let ours = Standing::of("self").ok_or("/proc can't be read, so that nobody can answer")?;
    let theirs = Standing::of(&pid.to_string()).ok_or("the answering process is gone")?;
    theirs.is_no_more_confined_than(&ours)?;
    if descends_from_us(pid) {
        return Err("a command of the asking server can't answer");
    }
    Ok(())
}

/// The controlling terminal of a process: field 7 of `/proc/PID/stat` (`proc(5)`).
fn terminal_of(pid: i32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let device: u64 = rest.split_whitespace().nth(4)?.parse().ok()?;
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    match major {
        0 => None,
        // UNIX 98 pseudo-terminals (devices.txt of the kernel).
        136..=143 => Some(format!("/dev/pts/{}", (major - 136) * 256 + minor)),
        _ => Some(format!("terminal {major}:{minor}")),
    }
}

/// How confined a process is; only what it can't shed again.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    namespaces: [Option<PathBuf>; 2],
    no_new_privs: u32,
    filters: u32,
}

impl Standing {
    fn of(pid: &str) -> Option<Standing> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let number = |name| status_number(&status, name).unwrap_or(0);
        let namespace = |name| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
        Some(Standing {
            // Not the mount namespace: packaged editors have their own, and start servers in it.
            namespaces: ["user", "pid"].map(namespace),
            no_new_privs: number("NoNewPrivs"),
            // Older kernels tell the mode alone.
            filters: status_number(&status, "Seccomp_filters").unwrap_or_else(|| number("Seccomp")),
        })
    }

    fn is_no_more_confined_than(&self, ours: &Standing) -> Result<(), &'static str> {
        if self.namespaces != ours.namespaces {
            return Err("a process in other namespaces can't answer");
        }
        if self.no_new_privs > ours.no_new_privs || self.filters > ours.filters {
            return Err("a confined process can't answer");
        }
        Ok(())
    }
}

fn status_number(status: &str, name: &str) -> Option<u32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
        .trim()
        .parse()
        .ok()
}

/// Whether one of its parents is this process. This process itself may answer.
fn descends_from_us(pid: i32) -> bool {
    let us = i32::try_from(std::process::id()).unwrap_or(0);
    if pid == us {
        return false;
    }
    let mut pid = pid;
    for _ in 0..MAX_ANCESTORS {
        let parent = std::fs::read_to_string(format!("/proc/{pid}/status"))
            .ok()
            .and_then(|status| status_number(&status, "PPid"))
            .and_then(|parent| i32::try_from(parent).ok());
        match parent {
            Some(parent) if parent == us => return true,
            Some(parent) if parent > 1 => pid = parent,
            // The top, or a parent that is gone or another user's.
            _ => return false,
        }
    }
    true
}

/// What waits at every server of this user, oldest first.
///
/// # Errors
/// The folder can't be read, or isn't private.
pub async fn list(dir: &Path) -> Result<Vec<Waiting>, QueueError> {
    let mut all = Vec::new();
    for socket in sockets(dir)? {
        if let Some(Reply::Waiting(waiting)) = exchange(&socket, &Request::List).await? {
            all.extend(waiting);
        }
    }
    all.sort_by(|one, other| (one.asked_at, &one.id).cmp(&(other.asked_at, &other.id)));
    Ok(all)
}

/// Answers the question with this id, at whichever server it waits.
///
/// # Errors
/// Nothing waits under `id`, or its server refuses to hear this process.
pub async fn answer(dir: &Path, id: &str, verdict: Verdict) -> Result<(), QueueError> {
    for socket in sockets(dir)? {
        let request = Request::Answer {
            id: id.to_owned(),
            verdict,
        };
        match exchange(&socket, &request).await? {
            Some(Reply::Taken) => return Ok(()),
            Some(Reply::Refused(reason)) => return Err(QueueError::Refused(reason)),
            Some(Reply::Unknown | Reply::Waiting(_)) | None => {}
        }
    }
    Err(QueueError::Unknown(id.to_owned()))
}

/// One request and its reply; `None` when nobody listens there (any more).
async fn exchange(socket: &Path, request: &Request) -> Result<Option<Reply>, QueueError> {
    let mut stream = match UnixStream::connect(socket).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Its server is dead; nobody else removes the socket.
            if let Err(error) = std::fs::remove_file(socket) {
                tracing::debug!(%error, "a dead socket can't be removed");
            }
            return Ok(None);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(QueueError::io("connect", socket)(error)),
    };
    let talk = async {
        let peer = stream.peer_cred()?;
        if peer.uid() != nix::unistd::geteuid().as_raw() {
            return Ok(None);
        }
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        let mut reply = Vec::new();
        BufReader::new(stream.take(MAX_REPLY))
            .read_until(b'\n', &mut reply)
            .await?;
        if reply.is_empty() {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&reply).map(Some)?)
    };
    match tokio::time::timeout(TALK, talk).await {
        Ok(result) => result.map_err(QueueError::io("talk to", socket)),
        Err(_) => Ok(None),
    }
}

fn sockets(dir: &Path) -> Result<Vec<PathBuf>, QueueError> {
    match std::fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(QueueError::io("stat", dir)(error)),
        Ok(_) => check_private(dir)?,
    }
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(QueueError::io("list", dir))? {
        let path = entry.map_err(QueueError::io("list", dir))?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "sock")
        {
            sockets.push(path);
        }
    }
    sockets.sort();
    Ok(sockets)
}

/// Makes `dir` with mode 0700 if it isn't there, and checks that it is private.
fn private_dir(dir: &Path) -> Result<&Path, QueueError> {
    if let Some(parent) = dir.parent()
        && !parent.exists()
    {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(QueueError::io("create", parent))?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(QueueError::io("create", dir)(error));
        }
        _ => check_private(dir)?,
    }
    Ok(dir)
}

fn check_private(dir: &Path) -> Result<(), QueueError> {
    let metadata = std::fs::symlink_metadata(dir).map_err(QueueError::io("stat", dir))?;
    let private = metadata.is_dir()
        && metadata.uid() == nix::unistd::geteuid().as_raw()
        && metadata.permissions().mode() & 0o077 == 0;
    if private {
        Ok(())
    } else {
        Err(QueueError::NotPrivate(dir.to_owned()))
    }
}

fn random_id() -> io::Result<String> {
    use std::fmt::Write as _;
    use std::io::Read as _;
    let mut bytes = [0; 6];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut id = String::new();
    for byte in bytes {
        write!(id, "{byte:02x}").map_err(io::Error::other)?;
    }
    Ok(id)
}

fn lock(questions: &Mutex<Questions>) -> std::sync::MutexGuard<'_, Questions> {
    questions.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(command: &str) -> Waiting {
        Waiting {
            id: String::new(),
            server: 0,
            session: "s".into(),
            command: command.into(),
            workdir: "/w".into(),
            from: Mode::ReadOnly,
            to: Mode::WorkspaceWrite,
            justification: "because".into(),
            adds: "writing".into(),
            text: "Run it?".into(),
            asked_at: 0,
        }
    }

    /// Asks and gives `act` the id of the waiting question; returns what both got.
    async fn ask_and<T>(
        queue: &Queue,
        act: impl AsyncFnOnce(String) -> T,
    ) -> (Option<Answered>, T) {
        let (sender, receiver) = oneshot::channel();
        let asking = queue.ask(question("rm -rf build"), |waiting| {
            sender.send(waiting.id.clone()).unwrap();
        });
        let acting = async { act(receiver.await.unwrap()).await };
        let (answered, acted) = tokio::join!(asking, acting);
        (answered.unwrap(), acted)
    }

    #[tokio::test]
    async fn a_question_waits_in_the_list_until_it_is_answered_once() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let queue = Queue::new(run.clone(), PATIENCE);
        for verdict in [Verdict::Approve, Verdict::Reject] {
            let (answered, ()) = ask_and(&queue, async |id| {
                let listed = list(&run).await.unwrap();
                assert_eq!(listed.len(), 1);
                assert_eq!(
                    (&listed[0].id, listed[0].command.as_str()),
                    (&id, "rm -rf build")
                );
                assert_eq!(listed[0].server, std::process::id());
                answer(&run, &id, verdict).await.unwrap();
                let again = answer(&run, &id, verdict).await.unwrap_err();
                assert_eq!(
                    again.to_string(),
                    format!("nothing waits under \"{id}\"; `cofferdam approvals` lists what does")
                );
            })
            .await;
            let answered = answered.unwrap();
            assert_eq!(answered.verdict, verdict);
            assert_eq!(answered.uid, nix::unistd::getuid().as_raw());
            assert_eq!(list(&run).await.unwrap(), []);
        }
    }

    #[tokio::test]
    async fn a_question_that_nobody_answers_in_time_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path().join("run"), Duration::from_millis(50));
        let answered = queue.ask(question("true"), |_| {}).await.unwrap();
        assert_eq!(answered, None);
        assert_eq!(list(&dir.path().join("run")).await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_child_of_the_asking_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let queue = Queue::new(run.clone(), PATIENCE);
        let (answered, reply) = ask_and(&queue, async |id| {
            let socket = sockets(&run).unwrap().remove(0);
            let script = format!(
                "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => '{}'); \
                 print $s '{{\"answer\":{{\"id\":\"{id}\",\"verdict\":\"approve\"}}}}', \"\\n\"; print <$s>;",
                socket.display()
            );
            let child = tokio::process::Command::new("perl").args(["-e", &script]).output().await.unwrap();
            answer(&run, &id, Verdict::Reject).await.unwrap();
            String::from_utf8(child.stdout).unwrap()
        })
        .await;
        assert_eq!(
            reply,
            "{\"refused\":\"a command of the asking server can't answer\"}\n"
        );
        assert_eq!(answered.unwrap().verdict, Verdict::Reject);
    }

    #[test]
    fn only_a_process_that_is_no_more_confined_may_answer() {
        let ours = Standing::of("self").unwrap();
        assert!(ours.namespaces.iter().all(Option::is_some));
        assert_eq!(ours.is_no_more_confined_than(&ours), Ok(()));
        let less = Standing {
            no_new_privs: 0,
            filters: 0,
            ..ours.clone()
        };
        assert_eq!(less.is_no_more_confined_than(&ours), Ok(()));
        let mut elsewhere = ours.clone();
        elsewhere.namespaces[0] = Some("user:[1]".into());
        assert_eq!(
            elsewhere.is_no_more_confined_than(&ours),
            Err("a process in other namespaces can't answer")
        );
        for confined in [
            Standing {
                no_new_privs: 1,
                ..less.clone()
            },
            Standing {
                filters: ours.filters + 1,
                ..less.clone()
            },
        ] {
            assert_eq!(
                confined.is_no_more_confined_than(&less),
                Err("a confined process can't answer")
            );
        }
    }

    #[tokio::test]
    async fn a_folder_that_others_may_enter_is_refused_and_a_private_one_taken() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = Queue::new(run.clone(), PATIENCE)
            .listen()
            .await
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "{} isn't a private folder of this user; remove it or set its mode to 0700",
                run.display()
            )
        );
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o700)).unwrap();
        let queue = Queue::new(run.clone(), PATIENCE);
        queue.listen().await.unwrap();
        assert_eq!(sockets(&run).unwrap().len(), 1);
        drop(queue);
        assert_eq!(sockets(&run).unwrap(), Vec::<PathBuf>::new());
    }

    #[tokio::test]
    async fn bytes_that_are_no_request_are_refused_and_the_queue_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let queue = Queue::new(run.clone(), PATIENCE);
        queue.listen().await.unwrap();
        let socket = sockets(&run).unwrap().remove(0);
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream
            .write_all(b"approve \xff everything\n")
            .await
            .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        assert_eq!(
            reply,
            "{\"refused\":\"a request can't be read: expected value at line 1 column 1\"}\n"
        );
        assert_eq!(list(&run).await.unwrap(), []);
    }
}
