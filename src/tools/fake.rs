//! An executor that runs nothing: it keeps what it was asked and gives back what the test wrote.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use crate::denial::{Class, Confidence, Evidence, Fact};
use crate::executor::{
    Captured, DoneListener, Executor, Finished, Kill, Level, Ran, Registration, SandboxReport,
    TaskId, TaskInfo, TaskRead, TaskStatus, UnknownTask, Watch,
};
use crate::mode::{Mode, ModeSource};
use crate::outcome::{Ended, NeverRan, NeverRanCode};
use crate::request::{ExecRequest, ExecSpec, Owner};

#[derive(Default)]
pub struct Fake {
    pub confines: Option<Mode>,
    state: Mutex<State>,
    listeners: Arc<Mutex<Vec<Option<DoneListener>>>>,
}

#[derive(Default)]
struct State {
    ran: Vec<ExecSpec>,
    next: Option<Result<Ran, NeverRan>>,
    tasks: Vec<Task>,
}

struct Task {
    info: TaskInfo,
    next: Option<TaskRead>,
}

impl Fake {
    pub fn confining(mode: Mode) -> Arc<Fake> {
        Arc::new(Fake {
            confines: Some(mode),
            ..Fake::default()
        })
    }

    pub fn unconfined() -> Arc<Fake> {
        Arc::new(Fake::default())
    }

    /// What the next run gives back, in place of a silent success.
    pub fn next(&self, ran: Result<Ran, NeverRan>) {
        self.state.lock().unwrap().next = Some(ran);
    }

    /// Every spec that was run or started.
    pub fn ran(&self) -> Vec<ExecSpec> {
        self.state.lock().unwrap().ran.clone()
    }

    /// A running task of this owner.
    pub fn task(&self, owner: Option<Owner>) -> TaskId {
        let mut state = self.state.lock().unwrap();
        let id = TaskId(format!("bash-{}", state.tasks.len() + 1));
        state.tasks.push(Task {
            info: TaskInfo {
                id: id.clone(),
                owner,
                mode: self.confines.unwrap_or(Mode::DangerFullAccess),
                command: "sleep 9".to_owned(),
                status: TaskStatus::Running,
            },
            next: None,
        });
        id
    }

    /// What the next read of the task delivers.
    pub fn next_read(&self, id: &TaskId, read: TaskRead) {
        let mut state = self.state.lock().unwrap();
        let task = state.tasks.iter_mut().find(|t| t.info.id == *id).unwrap();
        task.next = Some(read);
    }

    /// The task settles, and the listeners hear of it.
    pub fn settle(&self, id: &TaskId, status: TaskStatus) {
        let info = {
            let mut state = self.state.lock().unwrap();
            let task = state.tasks.iter_mut().find(|t| t.info.id == *id).unwrap();
            task.info.status = status;
            task.info.clone()
        };
        for listener in self.listeners.lock().unwrap().iter().flatten() {
            listener(&info);
        }
    }
}

#[async_trait]
impl Executor for Fake {
    fn confines(&self) -> Option<Mode> {
        self.confines
    }

    fn resolve(&self, request: ExecRequest) -> Result<ExecSpec, NeverRan> {
        let workspace = request
            .workspace
            .unwrap_or_else(|| PathBuf::from("/executor"));
        let workdir = request.workdir.unwrap_or_else(|| workspace.clone());
        if workdir.ends_with("missing") {
            return Err(missing_folder());
        }
        let default = self.confines.unwrap_or(Mode::DangerFullAccess);
        let (mode, mode_source) = request.mode.unwrap_or((default, ModeSource::Default));
        Ok(ExecSpec {
            command: request.command,
            session: request.session,
            workspace,
            workdir,
            timeout: request.timeout.unwrap_or(Duration::from_secs(120)),
            mode,
            mode_source,
            env: request
                .managed_env
                .into_iter()
                .map(|(key, value)| (key.into(), value.into()))
                .chain(request.env)
                .collect(),
            stdin: request.stdin,
            owner: request.owner,
            policy: None,
        })
    }

    async fn run(&self, spec: ExecSpec, _watch: Watch) -> Result<Ran, NeverRan> {
        let mut state = self.state.lock().unwrap();
        let mut silent = exited(0);
        silent.sandbox.mode = spec.mode;
        silent.sandbox.level = spec.mode.is_confined().then_some(Level::Full);
        state.ran.push(spec);
        state
            .next
            .take()
            .unwrap_or_else(|| Ok(Ran::Finished(Box::new(silent))))
    }

    async fn start(&self, spec: ExecSpec) -> Result<TaskId, NeverRan> {
        let id = self.task(spec.owner.clone());
        self.state.lock().unwrap().ran.push(spec);
        Ok(id)
    }

    async fn read_output(&self, id: &TaskId, _wait: Duration) -> Result<TaskRead, UnknownTask> {
        let mut state = self.state.lock().unwrap();
        let task = state
            .tasks
            .iter_mut()
            .find(|task| task.info.id == *id)
            .ok_or_else(|| UnknownTask(id.0.clone()))?;
        let status = task.info.status.clone();
        Ok(task.next.take().unwrap_or_else(|| read(status)))
    }

    async fn kill(&self, id: &TaskId) -> Result<Kill, UnknownTask> {
        if self.status(id)? != TaskStatus::Running {
            return Ok(Kill::AlreadyFinished);
        }
        self.settle(id, TaskStatus::Killed);
        Ok(Kill::Killed)
    }

    fn owner_of(&self, id: &TaskId) -> Result<Option<Owner>, UnknownTask> {
        let state = self.state.lock().unwrap();
        let task = state.tasks.iter().find(|task| task.info.id == *id);
        Ok(task
            .ok_or_else(|| UnknownTask(id.0.clone()))?
            .info
            .owner
            .clone())
    }

    fn list(&self) -> Vec<TaskInfo> {
        let state = self.state.lock().unwrap();
        state.tasks.iter().map(|task| task.info.clone()).collect()
    }

    fn on_done(&self, listener: DoneListener) -> Registration {
        let mut listeners = self.listeners.lock().unwrap();
        let index = listeners.len();
        listeners.push(Some(listener));
        let all = Arc::clone(&self.listeners);
        Registration::new(move || all.lock().unwrap()[index] = None)
    }

    async fn shutdown(&self) {}
}

impl Fake {
    fn status(&self, id: &TaskId) -> Result<TaskStatus, UnknownTask> {
        let state = self.state.lock().unwrap();
        let task = state.tasks.iter().find(|task| task.info.id == *id);
        Ok(task
            .ok_or_else(|| UnknownTask(id.0.clone()))?
            .info
            .status
            .clone())
    }
}

pub fn missing_folder() -> NeverRan {
    NeverRan::refused(
        NeverRanCode::InvalidArgs,
        "workdir /w/missing isn't there",
        "name an existing folder",
    )
}

/// A silent command that exited with this code after 5 ms under read-only.
pub fn exited(code: i32) -> Finished {
    Finished {
        ended: Ended::Exited(code),
        cut: None,
        timeout: Some(Duration::from_secs(120)),
        duration: Duration::from_millis(5),
        stdout: Captured::default(),
        stderr: Captured::default(),
        sandbox: report(Mode::ReadOnly, Vec::new()),
    }
}

pub fn report(mode: Mode, denials: Vec<Fact>) -> SandboxReport {
    SandboxReport {
        changed: Vec::new(),
        mode,
        level: mode.is_confined().then_some(Level::Full),
        missing: Vec::new(),
        denials,
    }
}

pub fn captured(text: &str) -> Captured {
    Captured {
        text: text.to_owned(),
        truncated: false,
        bytes: text.len() as u64,
        spill: None,
    }
}

/// A silent read of a task.
pub fn read(status: TaskStatus) -> TaskRead {
    TaskRead {
        stdout: String::new(),
        stderr: String::new(),
        dropped: None,
        status,
        sandbox: None,
    }
}

pub fn denied_write(path: &str, allowed_under: Option<Mode>) -> Fact {
    Fact {
        class: Class::FileWrite,
        operation: "write".to_owned(),
        path: Some(PathBuf::from(path)),
        address: None,
        errno: "EROFS".to_owned(),
        allowed_under,
        evidence: Evidence::Kernel,
        confidence: Confidence::Proven,
        line: None,
    }
}

pub fn denied_connect(address: &str) -> Fact {
    Fact {
        class: Class::Network,
        operation: "connect".to_owned(),
        path: None,
        address: Some(address.to_owned()),
        errno: "ENETUNREACH".to_owned(),
        allowed_under: Some(Mode::DangerFullAccess),
        evidence: Evidence::Kernel,
        confidence: Confidence::Proven,
        line: None,
    }
}
