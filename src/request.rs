//! What was asked ([`ExecRequest`]) and what will be done ([`ExecSpec`]).
//!
//! Rule: defaults and caps are applied once, by the executor that owns them, and stay visible in the
//! spec.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::mode::{Mode, ModeSource};
use crate::policy::Policy;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Shell text of any length, run as `bash -c`.
    Shell(OsString),
    /// A program and its arguments, without a shell. The program is looked up on PATH.
    Program {
        /// Name or path of the program.
        program: OsString,
        /// Its arguments, without the name.
        args: Vec<OsString>,
    },
}

impl Command {
    /// The command as one line of text for people and for the classifier; broken bytes are replaced.
    pub fn text(&self) -> String {
        match self {
            Command::Shell(text) => text.to_string_lossy().into_owned(),
            Command::Program { program, args } => std::iter::once(program)
                .chain(args)
                .map(|word| word.to_string_lossy())
                .collect::<Vec<_>>()
                .join(" "),
        }
    }
}

/// The opaque token of the session that started a task. The empty string is a real owner.
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Owner(pub String);

/// What a caller asks for. Only `command` is needed; the executor fills in the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// What to run.
    pub command: Command,
    /// The session whose cell, scratch and spill files the command shares. `None`: the executor's own.
    pub session: Option<String>,
    /// The session's workspace. `None`: the executor's. Never a folder that a model names.
    pub workspace: Option<PathBuf>,
    /// Where the command starts; absolute. `None`: the workspace.
    pub workdir: Option<PathBuf>,
    /// How long it may run. `None`: the executor's default; longer than its cap: the cap.
    pub timeout: Option<Duration>,
    /// The effective mode and where it came from. `None`: the executor's default.
    pub mode: Option<(Mode, ModeSource)>,
    /// Variables that an in-process caller passes on purpose; they pass the scrub.
    pub env: Vec<(OsString, OsString)>,
    /// The managed `DSH_*` snapshot, collected for this call.
    pub managed_env: Vec<(String, String)>,
    /// Bytes for standard input. `None`: `/dev/null`.
    pub stdin: Option<Vec<u8>>,
    /// Who owns the task, when the request is started in the background.
    pub owner: Option<Owner>,
}

impl ExecRequest {
    /// A request for `command` with everything else left to the executor.
    pub fn new(command: Command) -> ExecRequest {
        ExecRequest {
            command,
            session: None,
            workspace: None,
            workdir: None,
            timeout: None,
            mode: None,
            env: Vec::new(),
            managed_env: Vec::new(),
            stdin: None,
            owner: None,
        }
    }

    /// A request for `bash -c text`.
    pub fn shell(text: impl Into<OsString>) -> ExecRequest {
        ExecRequest::new(Command::Shell(text.into()))
    }
}

/// What will be done: every default and cap applied. Made by [`Executor::resolve`].
///
/// [`Executor::resolve`]: crate::executor::Executor::resolve
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecSpec {
    pub(crate) command: Command,
    pub(crate) session: Option<String>,
    pub(crate) workspace: PathBuf,
    pub(crate) workdir: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) mode: Mode,
    pub(crate) mode_source: ModeSource,
    /// The whole environment of the command.
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) owner: Option<Owner>,
    /// What may be touched; `None` of an executor that doesn't confine.
    pub(crate) policy: Option<Arc<Policy>>,
}

impl ExecSpec {
    /// What will run.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// The mode that it runs under, and where that came from.
    pub fn mode(&self) -> (Mode, ModeSource) {
        (self.mode, self.mode_source)
    }

    /// The session's workspace, canonical.
    pub fn workspace(&self) -> &std::path::Path {
        &self.workspace
    }

    /// Where the command starts.
    pub fn workdir(&self) -> &std::path::Path {
        &self.workdir
    }

    /// How long it may run in the foreground.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The whole environment of the command, in no particular order.
    pub fn env(&self) -> &[(OsString, OsString)] {
        &self.env
    }
}
