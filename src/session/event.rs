//! What a session's log says: one event a line, and the fold that gives the mode.
//!
//! Rule: what isn't known is kept and passed over; only a mode switch that can't be read counts, as
//! one to the narrowest mode.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::mode::{Mode, ModeSource};

/// Bytes of a command that an event keeps. In JSON a byte may take six, and a line holds 4 MiB.
pub const MAX_COMMAND: usize = 256 * 1024;
/// Bytes of any other text that an event keeps: a description, a justification, a message.
pub const MAX_TEXT: usize = 16 * 1024;

/// The kind of a mode switch, as it stands in the log.
const SANDBOX_MODE: &str = "bash/sandbox-mode";

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds since 1970, UTC.
    pub at: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened. Long texts are cut, with a note of how much is missing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum What {
    /// The session began.
    #[serde(rename = "session/start")]
    Start {
        /// Its id.
        id: String,
        /// Its working directory and workspace.
        #[serde(with = "path")]
        cwd: PathBuf,
        /// The version of this program.
        version: String,
        /// The mode that holds until a switch.
        default_mode: Mode,
        /// Who serves it.
        process: Process,
    },
    /// Another process took it up.
    #[serde(rename = "session/resume")]
    Resume {
        /// The version of this program.
        version: String,
        /// The mode that holds from now on, until a switch.
        default_mode: Mode,
        /// Who serves it now.
        process: Process,
    },
    /// A call of `bash` passed the check of its arguments.
    #[serde(rename = "bash/call")]
    Call(Call),
    /// A call of `bash` ended, in whatever way.
    #[serde(rename = "bash/result")]
    Result {
        /// The call's id.
        call: String,
        /// How it ended.
        #[serde(flatten)]
        ended: Ended,
    },
    /// Someone is asked whether one call may run under a wider mode.
    #[serde(rename = "approval/asked")]
    Asked {
        /// The call's id.
        call: String,
        /// The question's id.
        question: String,
        /// `escalate sandbox to <mode>: <justification>`.
        reason: String,
        /// The exact command.
        command: String,
        /// Where it would start.
        #[serde(with = "path")]
        workdir: PathBuf,
        /// The mode that holds without a grant.
        from: Mode,
        /// The mode asked for.
        to: Mode,
    },
    /// The question was answered, or couldn't be.
    #[serde(rename = "approval/resolved")]
    Resolved {
        /// The call's id.
        call: String,
        /// The question's id.
        question: String,
        /// The answer.
        outcome: Answered,
        /// Who or what answered.
        by: Option<String>,
    },
    /// The session was switched to a mode.
    #[serde(rename = "bash/sandbox-mode")]
    SandboxMode {
        /// The mode.
        mode: Mode,
        /// Who switched.
        by: String,
    },
    /// The model was told which mode holds.
    #[serde(rename = "prompt/mode-told")]
    ModeTold {
        /// The mode.
        mode: Mode,
    },
    /// A call goes on as a background task.
    #[serde(rename = "bash/task-started")]
    TaskStarted {
        /// The call's id.
        call: String,
        /// The task's id.
        task: String,
        /// The mode that it runs under.
        mode: Mode,
        /// The command.
        command: String,
        /// The process whose task it is.
        process: Process,
    },
    /// A background task settled.
    #[serde(rename = "bash/task-settled")]
    TaskSettled {
        /// The task's id.
        task: String,
        /// How it ended.
        status: Settled,
        /// The process whose task it was.
        process: Process,
    },
    /// What the sandbox had to say about a settled task, when it was first read.
    #[serde(rename = "bash/task-report")]
    TaskReport(TaskReport),
    /// A kind that this version doesn't know, or a body that it can't read.
    #[serde(skip)]
    Other {
        /// The event's `type`.
        kind: String,
        /// The whole line.
        body: Value,
    },
}

/// A call of `bash` whose arguments were right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The call's id, unique in the log.
    pub call: String,
    /// The command.
    pub command: String,
    /// What the model says that it does.
    pub description: String,
    /// Where it starts; `None`: where the executor starts commands.
    #[serde(with = "path::optional", default)]
    pub workdir: Option<PathBuf>,
    /// The timeout that was asked for.
    pub timeout_ms: Option<u64>,
    /// Whether it was asked to run in the background.
    pub background: bool,
    /// The mode that holds without a grant; `None` where nothing confines.
    pub mode: Option<Mode>,
    /// Where that mode came from.
    pub source: Option<ModeSource>,
}

/// How a call of `bash` ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ended {
    /// The mode that it ran under, or would have.
    pub mode: Option<Mode>,
    /// Where that mode came from.
    pub source: Option<ModeSource>,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// The ending signal, as in `SIGTERM`.
    pub signal: Option<String>,
    /// Whether the timer fired.
    pub timed_out: bool,
    /// How long it ran.
    pub duration_ms: Option<u64>,
    /// `full` or `partial`; `None` for an unconfined run and for one that never was.
    pub enforcement: Option<String>,
    /// What wasn't governed or was lost.
    pub missing: Vec<String>,
    /// The denial facts, as the machine's copy of the result spells them.
    pub denials: Vec<Value>,
    /// The background task that it became.
    pub task: Option<String>,
    /// The code of the error, when nothing ran or it was aborted.
    pub error: Option<String>,
    /// The error's text.
    pub message: Option<String>,
}

/// What the sandbox had to say about a settled background task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskReport {
    /// The task's id.
    pub task: String,
    /// The process whose task it was.
    pub process: Process,
    /// The mode that it ran under.
    pub mode: Mode,
    /// `full` or `partial`; `None` for an unconfined run.
    pub enforcement: Option<String>,
    /// What wasn't governed or was lost.
    pub missing: Vec<String>,
    /// The denial facts, as the machine's copy of the result spells them.
    pub denials: Vec<Value>,
}

/// How a question was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answered {
    /// This one call may run.
    AllowedOnce,
    /// It may not.
    Rejected,
    /// The question was withdrawn.
    Cancelled,
    /// Nobody could answer.
    Unavailable,
    /// The question was handed to the client, which makes the call again with the answer.
    Deferred,
}

impl Answered {
    /// The word that stands in the log.
    pub fn as_str(self) -> &'static str {
        match self {
            Answered::AllowedOnce => "allowed-once",
            Answered::Rejected => "rejected",
            Answered::Cancelled => "cancelled",
            Answered::Unavailable => "unavailable",
            Answered::Deferred => "deferred",
        }
    }
}

/// How a background task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Settled {
    /// It exited with this code.
    Exited(i32),
    /// It was killed.
    Killed,
    /// A signal ended it.
    Signalled(String),
}

/// A process, told apart from later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks since boot (`proc(5)`, field 22 of `stat`); 0 when unknown.
    pub started: u64,
}

impl Process {
    /// This process.
    pub fn current() -> Process {
        let pid = std::process::id();
        Process {
            pid,
            started: started(pid).unwrap_or(0),
        }
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }
}

fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

impl What {
    pub(super) fn start(id: &str, cwd: &Path, default_mode: Mode) -> What {
        What::Start {
            id: id.to_owned(),
            cwd: cwd.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            default_mode,
            process: Process::current(),
        }
    }

    pub(super) fn resume(default_mode: Mode) -> What {
        What::Resume {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            default_mode,
            process: Process::current(),
        }
    }
}

/// A line that is no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an event: {0}")]
pub struct Malformed(pub String);

impl Event {
    /// An event of this moment.
    pub fn now(what: What) -> Event {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Event {
            at: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            what,
        }
    }

    /// Reads one line, without its newline.
    ///
    /// # Errors
    /// The line is no JSON object with a `type`.
    pub fn parse(line: &[u8]) -> Result<Event, Malformed> {
        let body: Value =
            serde_json::from_slice(line).map_err(|error| Malformed(error.to_string()))?;
        let Some(kind) = body.get("type").and_then(Value::as_str) else {
            return Err(Malformed("no type".to_owned()));
        };
        if let Ok(event) = Event::deserialize(&body) {
            return Ok(event);
        }
        Ok(Event {
            at: body.get("at").and_then(Value::as_u64).unwrap_or(0),
            what: What::Other {
                kind: kind.to_owned(),
                body,
            },
        })
    }

    /// The event as JSON, as it stands in the log.
    pub fn to_value(&self) -> Value {
        if let What::Other { body, .. } = &self.what {
            return body.clone();
        }
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// The event's `type`.
    pub fn kind(&self) -> String {
        let value = self.to_value();
        let kind = value.get("type").and_then(Value::as_str);
        kind.unwrap_or_default().to_owned()
    }
}

/// What a log folds to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// The mode of the last `bash/sandbox-mode` event.
    pub mode: Option<Mode>,
    /// The mode of the last `prompt/mode-told` event.
    pub told: Option<Mode>,
}

impl Folded {
    /// Takes in the next event.
    pub fn apply(&mut self, event: &Event) {
        match &event.what {
            What::SandboxMode { mode, .. } => self.mode = Some(*mode),
            What::ModeTold { mode } => self.told = Some(*mode),
            // Someone switched, and to what can't be read: closed on doubt.
            What::Other { kind, .. } if kind == SANDBOX_MODE => self.mode = Some(Mode::ReadOnly),
            What::Start { .. }
            | What::Resume { .. }
            | What::Call(_)
            | What::Result { .. }
            | What::Asked { .. }
            | What::Resolved { .. }
            | What::TaskStarted { .. }
            | What::TaskSettled { .. }
            | What::TaskReport(_)
            | What::Other { .. } => {}
        }
    }
}

/// The override: the mode of the last switch, if there was one.
pub fn fold<'a>(events: impl IntoIterator<Item = &'a Event>) -> Option<Mode> {
    let mut folded = Folded::default();
    for event in events {
        folded.apply(event);
    }
    folded.mode
}

/// A background task that has started and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The task's id.
    pub task: String,
    /// The mode that it runs under.
    pub mode: Mode,
    /// The command.
    pub command: String,
    /// The process whose task it is; when that is gone, the task is too.
    pub process: Process,
}

/// The background tasks that have started and not settled, oldest first. The two events of a task may
/// stand in either order: a short one settles before its start is written.
pub fn running<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<Running> {
    let mut started = Vec::new();
    let mut settled = HashSet::new();
    for event in events {
        if let What::TaskStarted {
            task,
            mode,
            command,
            process,
            ..
        } = &event.what
        {
            started.push(Running {
                task: task.clone(),
                mode: *mode,
                command: command.clone(),
                process: *process,
            });
        }
        if let What::TaskSettled { task, process, .. } = &event.what {
            settled.insert((task.clone(), *process));
        }
    }
    started.retain(|task| !settled.contains(&(task.task.clone(), task.process)));
    started
}

/// The text, cut at a character when it is longer than `most` bytes, with a note of how much is
/// missing.
pub fn clip(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let boundary = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=most).rev().find(boundary).unwrap_or(0);
    format!("{}… ({} bytes more)", &text[..end], text.len() - end)
}

/// The path, unless it is longer than any that the kernel takes (`PATH_MAX`): then its beginning.
pub fn clip_path(path: &Path) -> PathBuf {
    let most = 4096;
    if path.as_os_str().len() <= most {
        return path.to_owned();
    }
    PathBuf::from(clip(&path.to_string_lossy(), most))
}

/// A path as a string when it is UTF-8, else as its bytes: nothing is lost.
mod path {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Spelled {
        Text(String),
        Bytes(Vec<u8>),
    }

    impl Spelled {
        fn of(path: &Path) -> Spelled {
            match path.to_str() {
                Some(text) => Spelled::Text(text.to_owned()),
                None => Spelled::Bytes(OsStr::as_bytes(path.as_os_str()).to_owned()),
            }
        }

        fn path(self) -> PathBuf {
            match self {
                Spelled::Text(text) => PathBuf::from(text),
                Spelled::Bytes(bytes) => PathBuf::from(std::ffi::OsString::from_vec(bytes)),
            }
        }
    }

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        Spelled::of(path).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        Spelled::deserialize(from).map(Spelled::path)
    }

    pub mod optional {
        use super::*;

        pub fn serialize<S: Serializer>(
            path: &Option<PathBuf>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            path.as_deref().map(Spelled::of).serialize(serializer)
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<PathBuf>, D::Error> {
            Ok(Option::<Spelled>::deserialize(from)?.map(Spelled::path))
        }
    }
}
