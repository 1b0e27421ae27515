//! Background tasks: ids, owners, incremental reads, completion listeners.
//!
//! Rule: a task settles exactly once and its listeners hear of it exactly once; what a settled task
//! keeps in memory is bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::executor::supervise::{Job, Stop};
use crate::executor::{
    Cut, DoneListener, Finished, Kill, Registration, SandboxReport, TaskId, TaskInfo, TaskRead,
    TaskStatus, UnknownTask,
};
use crate::mode::Mode;
use crate::outcome::Ended;
use crate::output::{Capture, Progress, lock};
use crate::request::{ExecSpec, Owner};

/// Bytes of a command's text that a task remembers for [`TaskInfo`].
const COMMAND_BYTES: usize = 4_000;
/// Bytes of unread output that settled tasks keep in memory together, the newest first; that of older
/// ones is left to their spill files.
const UNREAD_BYTES: usize = 16_000_000;

/// All tasks of one executor.
#[derive(Default)]
pub(crate) struct Tasks(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Table {
    tasks: Vec<Arc<Task>>,
    closed: bool,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    registered: Vec<(u64, Arc<DoneListener>)>,
    closed: bool,
}

struct Task {
    id: TaskId,
    owner: Option<Owner>,
    session: Option<String>,
    mode: Mode,
    command: String,
    capture: Arc<Capture>,
    stop: Stop,
    state: watch::Sender<State>,
    report: Mutex<Option<SandboxReport>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Its end is known, its listeners are being told.
    Settled(TaskStatus),
    /// And everyone has been told.
    Told(TaskStatus),
}

impl Tasks {
    /// A task for what `job` does. `None` when the executor is shut down.
    pub(crate) fn add(&self, job: &Job) -> Option<NewTask> {
        self.insert(&job.spec, &job.capture, &job.stop)
    }

    pub(crate) fn insert(
        &self,
        spec: &ExecSpec,
        capture: &Arc<Capture>,
        stop: &Stop,
    ) -> Option<NewTask> {
        let mut table = lock(&self.0.table);
        if table.closed {
            return None;
        }
        let task = Arc::new(Task {
            id: TaskId(format!("bash-{}", table.tasks.len() + 1)),
            owner: spec.owner.clone(),
            session: spec.session.clone(),
            mode: spec.mode,
            command: shortened(spec.command.text()),
            capture: Arc::clone(capture),
            stop: stop.clone(),
            state: watch::Sender::new(State::Running),
            report: Mutex::new(None),
        });
        table.tasks.push(Arc::clone(&task));
        Some(NewTask {
            task,
            shared: Arc::clone(&self.0),
        })
    }

    pub(crate) async fn read_output(
        &self,
        id: &TaskId,
        wait: Duration,
    ) -> Result<TaskRead, UnknownTask> {
        let task = self.find(id)?;
        let mut output = task.capture.changes();
        let mut state = task.state.subscribe();
        let deadline = Instant::now().checked_add(wait);
        loop {
            output.mark_unchanged();
            let status = state.borrow_and_update().status();
            // Asked before the output is taken: a settled task has no output that could still come.
            let progress = match status {
                TaskStatus::Running => Progress::Open,
                TaskStatus::Completed { .. }
                | TaskStatus::Killed
                | TaskStatus::KilledBySignal(_) => Progress::Ended,
            };
            let unread = task.capture.read(progress);
            let waited = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if waited || progress == Progress::Ended || !unread.is_empty() {
                let sandbox = match progress {
                    Progress::Open => None,
                    Progress::Ended => lock(&task.report).take(),
                };
                return Ok(TaskRead {
                    stdout: unread.stdout,
                    stderr: unread.stderr,
                    dropped: unread.dropped,
                    status,
                    sandbox,
                });
            }
            let news = async {
                tokio::select! {
                    _ = output.changed() => {}
                    _ = state.changed() => {}
                }
            };
            match deadline {
                // Whether it was news or the time: the loop looks again.
                Some(deadline) => drop(timeout_at(deadline, news).await),
                None => news.await,
            }
        }
    }

    pub(crate) async fn kill(&self, id: &TaskId) -> Result<Kill, UnknownTask> {
        let task = self.find(id)?;
        if task.status() != TaskStatus::Running {
            return Ok(Kill::AlreadyFinished);
        }
        task.stop.request(Cut::Killed);
        Ok(match task.settled().await {
            TaskStatus::Killed => Kill::Killed,
            TaskStatus::Running | TaskStatus::Completed { .. } | TaskStatus::KilledBySignal(_) => {
                Kill::AlreadyFinished
            }
        })
    }

    pub(crate) fn owner_of(&self, id: &TaskId) -> Result<Option<Owner>, UnknownTask> {
        Ok(self.find(id)?.owner.clone())
    }

    pub(crate) fn list(&self) -> Vec<TaskInfo> {
        let tasks = lock(&self.0.table).tasks.clone();
        tasks.iter().map(|task| task.info(task.status())).collect()
    }

    pub(crate) fn on_done(&self, listener: DoneListener) -> Registration {
        let mut listeners = lock(&self.0.listeners);
        let number = listeners.next;
        listeners.next += 1;
        listeners.registered.push((number, Arc::new(listener)));
        let shared = Arc::downgrade(&self.0);
        Registration::new(move || {
            if let Some(shared) = shared.upgrade() {
                lock(&shared.listeners)
                    .registered
                    .retain(|(other, _)| *other != number);
            }
        })
    }

    /// Kills the tasks of one session and waits until each is gone.
    pub(crate) async fn end_session(&self, session: &str) {
        let tasks = lock(&self.0.table).tasks.clone();
        end(tasks
            .iter()
            .filter(|task| task.session.as_deref() == Some(session)))
        .await;
    }

    /// Refuses new tasks, silences the listeners, kills every task and waits until each is gone.
    pub(crate) async fn shutdown(&self) {
        let tasks = {
            let mut table = lock(&self.0.table);
            table.closed = true;
            table.tasks.clone()
        };
        {
            let mut listeners = lock(&self.0.listeners);
            listeners.closed = true;
            listeners.registered.clear();
        }
        end(tasks.iter()).await;
    }

    fn find(&self, id: &TaskId) -> Result<Arc<Task>, UnknownTask> {
        let table = lock(&self.0.table);
        let task = table.tasks.iter().find(|task| task.id == *id);
        task.cloned().ok_or_else(|| UnknownTask(id.0.clone()))
    }
}

async fn end<'a>(tasks: impl Iterator<Item = &'a Arc<Task>> + Clone) {
    for task in tasks.clone() {
        task.stop.request(Cut::Killed);
    }
    for task in tasks {
        task.told().await;
    }
}

/// A task that has yet to settle. Dropping it, as the end of the runtime or a panic does, settles it as
/// killed, for its tree goes with it.
pub(crate) struct NewTask {
    task: Arc<Task>,
    shared: Arc<Shared>,
}

impl NewTask {
    pub(crate) fn id(&self) -> TaskId {
        self.task.id.clone()
    }

    /// The task has ended like this.
    pub(crate) fn settle(self, finished: Finished) {
        let status = match (finished.cut, finished.ended) {
            (Some(Cut::Killed | Cut::Aborted), _) => TaskStatus::Killed,
            (None | Some(Cut::TimedOut), Ended::Exited(exit_code)) => {
                TaskStatus::Completed { exit_code }
            }
            (None | Some(Cut::TimedOut), Ended::Signalled(_)) => {
                TaskStatus::KilledBySignal(finished.ended.signal_name().unwrap_or_default())
            }
        };
        *lock(&self.task.report) = Some(finished.sandbox);
        self.settle_as(status);
    }

    fn settle_as(&self, status: TaskStatus) {
        self.task.state.send_replace(State::Settled(status.clone()));
        self.shared.tell(&self.task.info(status.clone()));
        self.task.state.send_replace(State::Told(status));
        self.shared.shed_old_output();
    }
}

impl Drop for NewTask {
    fn drop(&mut self) {
        if self.task.status() == TaskStatus::Running {
            self.settle_as(TaskStatus::Killed);
        }
    }
}

impl Shared {
    fn tell(&self, info: &TaskInfo) {
        let registered = lock(&self.listeners).registered.clone();
        for (number, listener) in registered {
            // It may have gone, or a shutdown may have begun, while another one was told.
            let still_there = {
                let listeners = lock(&self.listeners);
                !listeners.closed
                    && listeners
                        .registered
                        .iter()
                        .any(|(other, _)| *other == number)
            };
            if still_there && catch_unwind(AssertUnwindSafe(|| listener(info))).is_err() {
                tracing::warn!(task = info.id.0, "a completion listener panicked");
            }
        }
    }

    fn shed_old_output(&self) {
        let tasks = lock(&self.table).tasks.clone();
        let mut held = 0;
        for task in tasks.iter().rev() {
            if task.status() != TaskStatus::Running {
                held += task.capture.held();
                if held > UNREAD_BYTES {
                    task.capture.shed();
                }
            }
        }
    }
}

impl Task {
    fn status(&self) -> TaskStatus {
        self.state.borrow().status()
    }

    fn info(&self, status: TaskStatus) -> TaskInfo {
        TaskInfo {
            id: self.id.clone(),
            owner: self.owner.clone(),
            mode: self.mode,
            command: self.command.clone(),
            status,
        }
    }

    async fn settled(&self) -> TaskStatus {
        self.reached(|state| *state != State::Running).await
    }

    async fn told(&self) -> TaskStatus {
        self.reached(|state| matches!(state, State::Told(_))).await
    }

    async fn reached(&self, goal: impl FnMut(&State) -> bool) -> TaskStatus {
        let mut state = self.state.subscribe();
        // It fails only without a sender, and `self` holds it.
        match state.wait_for(goal).await {
            Ok(state) => state.status(),
            Err(_) => TaskStatus::Killed,
        }
    }
}

impl State {
    fn status(&self) -> TaskStatus {
        match self {
            State::Running => TaskStatus::Running,
            State::Settled(status) | State::Told(status) => status.clone(),
        }
    }
}

/// At most [`COMMAND_BYTES`], cut between characters.
fn shortened(mut text: String) -> String {
    if text.len() > COMMAND_BYTES {
        let cut = (0..=COMMAND_BYTES)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_remembered_shortened_and_a_short_one_whole() {
        assert_eq!(shortened("true".to_owned()), "true");
        let exact = "x".repeat(COMMAND_BYTES);
        assert_eq!(shortened(exact.clone()), exact);
        // The cut would fall inside the character of three bytes.
        let long = format!("{}\u{8a9e}", "x".repeat(COMMAND_BYTES - 1));
        assert_eq!(
            shortened(long),
            format!("{}…", "x".repeat(COMMAND_BYTES - 1))
        );
    }
}
