//! `bash_output` and `bash_kill`, and the notice when a task has finished.
//!
//! Rule: a task that has an owner is reached by that owner's token alone; one without is open to
//! anyone. The empty string is a token like any other.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::bash::note;
use super::{Call, Code, Done, Failure, Sessions, Tools, invalid, machine, text};
use crate::executor::{Kill, SandboxReport, TaskId, TaskInfo, TaskRead, TaskStatus, UnknownTask};
use crate::session::{Process, Session, Settled, TaskReport, What};

/// Denial facts of one command that the session's log keeps.
const MAX_DENIALS: usize = 64;
/// Bytes of JSON of one fact that the log keeps; what the command wrote is most of it.
const MAX_FACT: usize = 16 * 1024;

impl Tools {
    pub(super) async fn bash_output(&self, arguments: &Value, call: Call) -> Result<Done, Failure> {
        let id = task_id(arguments)?;
        let wait = match arguments.get("wait_ms") {
            None => Duration::ZERO,
            Some(value) => wait(value)?.min(self.composition.max_wait),
        };
        self.authorise(&id, &call)?;
        let read = tokio::select! {
            biased;
            () = call.watch.abort.cancelled() => {
                return Err(Failure::new(Code::Aborted, "read aborted".to_owned()));
            }
            read = self.composition.executor.read_output(&id, wait) => read?,
        };
        self.note_report(&call.session, &id, &read);
        Ok(Done {
            text: text::task_read(&read, self.escalates()),
            structured: machine::task_read(&id, &read),
        })
    }

    pub(super) async fn bash_kill(&self, arguments: &Value, call: Call) -> Result<Done, Failure> {
        let id = task_id(arguments)?;
        self.authorise(&id, &call)?;
        let (text, killed) = match self.composition.executor.kill(&id).await? {
            Kill::Killed => (format!("killed background task {}", id.0), true),
            Kill::AlreadyFinished => (format!("task {} had already finished", id.0), false),
        };
        Ok(Done {
            text,
            structured: json!({"task": id, "killed": killed}),
        })
    }

    fn authorise(&self, id: &TaskId, call: &Call) -> Result<(), Failure> {
        let Some(owner) = self.composition.executor.owner_of(id)? else {
            return Ok(());
        };
        match &call.session {
            Some(session) if session.id() == owner.0 => Ok(()),
            Some(_) | None => Err(Failure::new(
                Code::ForeignTask,
                format!("task {} belongs to another session", id.0),
            )),
        }
    }

    /// Records what the sandbox said about a settled task, which only its first read delivers.
    pub(super) fn note_report(&self, session: &Option<Arc<Session>>, id: &TaskId, read: &TaskRead) {
        let Some(report) = &read.sandbox else {
            return;
        };
        note(session, || {
            What::TaskReport(TaskReport {
                task: id.0.clone(),
                process: Process::current(),
                mode: report.mode,
                enforcement: report
                    .level
                    .as_ref()
                    .map(|level| machine::level(level).to_owned()),
                missing: report.missing.clone(),
                denials: denials(report),
            })
        });
    }
}

/// The facts as the log keeps them.
pub(super) fn denials(report: &SandboxReport) -> Vec<Value> {
    report
        .denials
        .iter()
        .take(MAX_DENIALS)
        .map(|fact| {
            let mut value = machine::fact(fact);
            if value.to_string().len() > MAX_FACT {
                value["line"] = Value::Null;
                let named = if fact.path.is_some() {
                    "path"
                } else {
                    "address"
                };
                value[named] = json!(text::target(fact));
            }
            value
        })
        .collect()
}

/// A task settled: its session's log and inbox learn of it, if the session is still there.
pub(super) fn settled(sessions: &Sessions, task: &TaskInfo) {
    let status = match &task.status {
        TaskStatus::Running => return,
        TaskStatus::Completed { exit_code } => Settled::Exited(*exit_code),
        TaskStatus::Killed => Settled::Killed,
        TaskStatus::KilledBySignal(name) => Settled::Signalled(name.clone()),
    };
    let session = task
        .owner
        .as_ref()
        .and_then(|owner| sessions.find(&owner.0));
    note(&session, || What::TaskSettled {
        task: task.id.0.clone(),
        status,
        process: Process::current(),
    });
    if let Some(session) = session {
        session.notify(text::notice(&task.id, &task.status));
    }
}

impl From<UnknownTask> for Failure {
    fn from(error: UnknownTask) -> Failure {
        Failure::new(Code::UnknownTask, error.to_string())
    }
}

fn task_id(arguments: &Value) -> Result<TaskId, Failure> {
    let id = arguments
        .get("task_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if id.trim().is_empty() {
        return Err(invalid(
            "invalid task_id: expected a non-empty string".to_owned(),
        ));
    }
    Ok(TaskId(id.to_owned()))
}

fn wait(value: &Value) -> Result<Duration, Failure> {
    match value.as_f64() {
        Some(millis) if millis >= 0.0 && millis.is_finite() => {
            Ok(Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(Duration::MAX))
        }
        Some(_) | None => Err(invalid(format!(
            "invalid wait_ms: expected a number of at least 0, got {value}"
        ))),
    }
}
