//! The executor: the seam that tools, the program and the MCP server stand on.
//!
//! Rule: what a model sees depends on this trait alone, so that a confined, an unconfined, a remote or
//! a test's own executor can take each other's place.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::denial::Fact;
use crate::mode::Mode;
use crate::outcome::{Ended, NeverRan};
pub use crate::output::{Captured, Live, Stream};
pub use crate::plan::Level;
use crate::request::{ExecRequest, ExecSpec, Owner};

pub(crate) mod command;
mod confined;
pub(crate) mod direct;
pub(crate) mod supervise;
pub(crate) mod supervised;
pub(crate) mod tasks;
mod unconfined;

pub use confined::{Confined, Confinement};
pub use supervised::Settings;
pub use unconfined::Unconfined;

/// What the confinement has to say about one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxReport {
    /// The mode that it ran under.
    pub mode: Mode,
    /// How much was enforced; `None` for an unconfined run.
    pub level: Option<Level>,
    /// What isn't governed or was lost, a phrase each.
    pub missing: Vec<String>,
    /// What was refused and mattered.
    pub denials: Vec<Fact>,
    /// Paths that the policy protects once they exist and that this command made, and links on the way to
    /// protected paths that it changed: look at them before anything outside uses them.
    pub changed: Vec<PathBuf>,
}

impl SandboxReport {
    /// Whether anything was refused that mattered.
    pub fn denied(&self) -> bool {
        !self.denials.is_empty()
    }
}

/// Why a run was cut short. The first cause is the one that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The executor's timer fired.
    TimedOut,
    /// The caller gave up.
    Aborted,
    /// `kill` was called on the task.
    Killed,
}

/// One command that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How its own process ended.
    pub ended: Ended,
    /// Why it was cut short, if it was.
    pub cut: Option<Cut>,
    /// The timeout that applied; `None` for a background task.
    pub timeout: Option<Duration>,
    /// How long it ran.
    pub duration: Duration,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// What the confinement has to say.
    pub sandbox: SandboxReport,
}

/// How a caller follows and ends a foreground run.
#[derive(Clone, Default)]
pub struct Watch {
    /// Sees output while it is made.
    pub live: Option<Arc<dyn Live>>,
    /// Cancelling it aborts the run: the whole process tree ends.
    pub abort: CancellationToken,
    /// After this long the run goes on as a background task (it keeps its timeout).
    pub yield_after: Option<Duration>,
}

/// What became of a foreground run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ran {
    /// It ended.
    Finished(Box<Finished>),
    /// It goes on as this background task; what it printed so far is still to be read from the task.
    Yielded(TaskId),
}

/// The id of a background task, `bash-1`, `bash-2`, …
#[derive(
    Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct TaskId(pub String);

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    /// It runs.
    Running,
    /// It exited by itself, or was ended by its timeout with an exit code.
    Completed {
        /// The exit code.
        exit_code: i32,
    },
    /// `kill` or a shutdown ended it.
    Killed,
    /// A signal ended it, as in `SIGSEGV`.
    KilledBySignal(String),
}

/// What a read of a task delivers: everything since the read before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRead {
    /// New text of standard output.
    pub stdout: String,
    /// New text of standard error.
    pub stderr: String,
    /// `Some` when unread bytes were lost from memory: the complete copies, as far as they can be
    /// vouched for (empty: unavailable).
    pub dropped: Option<Vec<PathBuf>>,
    /// Where the task stands.
    pub status: TaskStatus,
    /// The sandbox's report, once, by the first read that sees the settled task; its facts too.
    pub sandbox: Option<SandboxReport>,
}

/// A line of [`Executor::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// Its id.
    pub id: TaskId,
    /// Who started it.
    pub owner: Option<Owner>,
    /// The mode that it runs under.
    pub mode: Mode,
    /// The command, as one line of text.
    pub command: String,
    /// Where it stands.
    pub status: TaskStatus,
}

/// No task has this id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown bash task \"{0}\"")]
pub struct UnknownTask(pub String);

/// What a kill met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// It ran, and is gone now.
    Killed,
    /// It had finished before.
    AlreadyFinished,
}

/// Called once for each task that settles, with its id, owner and status.
pub type DoneListener = Box<dyn Fn(&TaskInfo) + Send + Sync>;

/// Keeps a listener registered; dropping it ends the registration.
pub struct Registration(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Registration {
    /// Runs `end` when the registration is dropped.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> Registration {
        Registration(Some(Box::new(end)))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// Runs commands.
#[async_trait]
pub trait Executor: Send + Sync {
    /// The default mode of an executor that confines; `None` when it can't confine, so that there is
    /// nothing to escalate.
    fn confines(&self) -> Option<Mode>;

    /// Applies defaults and caps. Nothing runs.
    ///
    /// # Errors
    /// A request that can't be carried out: a missing folder, a bad workspace, a bad profile.
    fn resolve(&self, request: ExecRequest) -> Result<ExecSpec, NeverRan>;

    /// Runs to the end, or until `watch` cuts or yields it. Dropping the future kills the whole tree.
    ///
    /// # Errors
    /// The command never ran.
    async fn run(&self, spec: ExecSpec, watch: Watch) -> Result<Ran, NeverRan>;

    /// Starts a background task; no timeout applies.
    ///
    /// # Errors
    /// The command never ran.
    async fn start(&self, spec: ExecSpec) -> Result<TaskId, NeverRan>;

    /// What the task printed since the last read. Waits up to `wait` for output or an end.
    ///
    /// # Errors
    /// No task has this id.
    async fn read_output(&self, id: &TaskId, wait: Duration) -> Result<TaskRead, UnknownTask>;

    /// Ends the task's whole tree and waits until it is gone.
    ///
    /// # Errors
    /// No task has this id.
    async fn kill(&self, id: &TaskId) -> Result<Kill, UnknownTask>;

    /// Who started the task; the inner `None` is a task that is open to anyone.
    ///
    /// # Errors
    /// No task has this id.
    fn owner_of(&self, id: &TaskId) -> Result<Option<Owner>, UnknownTask>;

    /// All tasks, settled ones included, in the order of their start.
    fn list(&self) -> Vec<TaskInfo>;

    /// Calls `listener` exactly once for each task that settles from now on, never after shutdown.
    fn on_done(&self, listener: DoneListener) -> Registration;

    /// Ends one session: kills its tasks and waits until each is gone, removes its spill files and ends
    /// its cell. A later request of the same session starts afresh.
    async fn end_session(&self, _session: &str) {}

    /// Kills every task, waits until each is gone, and ends every cell.
    async fn shutdown(&self);
}
