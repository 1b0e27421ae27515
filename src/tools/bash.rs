//! `bash`: one command, in the foreground or as a background task.
//!
//! Rule: the order of [`Tools::bash`] is the order of the contract: values, mode, record, approval,
//! run, record.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Call, Code, Done, Failure, Tools, invalid, machine, standing_mode, text};
use crate::approval::Gate;
use crate::environment::managed::Context;
use crate::executor::{Cut, Finished, Ran, TaskId, TaskRead, TaskStatus, Watch};
use crate::mode::{Mode, ModeSource};
use crate::request::{ExecRequest, ExecSpec, Owner};
use crate::session::{self, Ended, Process, Session, What};

/// What a model asked for, with every value checked.
struct Asked {
    command: String,
    description: String,
    timeout: Option<Duration>,
    workdir: Option<PathBuf>,
    background: bool,
    escalation: Option<(Mode, String)>,
}

impl Tools {
    pub(super) async fn bash(&self, arguments: &Value, call: Call) -> Result<Done, Failure> {
        let asked = Asked::read(arguments)?;
        let request = self.request(&asked, &call)?;
        let id = session::random_id()
            .map_err(|error| Failure::new(Code::SessionUnreadable, error.to_string()))?;
        note(&call.session, || record_of_call(&id, &asked, &request));

        let mut ended = Ended {
            mode: request.mode.map(|(mode, _source)| mode),
            source: request.mode.map(|(_mode, source)| source),
            ..Ended::default()
        };
        let session = call.session.clone();
        let done = self.carry_out(&id, asked, request, call, &mut ended).await;
        if let Err(failure) = &done {
            ended.error = Some(failure.code.as_str().to_owned());
            ended.message = Some(session::clip(&failure.text, session::MAX_TEXT));
        }
        note(&session, || What::Result { call: id, ended });
        done
    }

    /// The request under the mode that holds without a grant.
    fn request(&self, asked: &Asked, call: &Call) -> Result<ExecRequest, Failure> {
        let session = call.session.as_deref();
        let mut request = ExecRequest::shell(&asked.command);
        request.mode = standing_mode(&self.composition, session, call.ceiling)
            .map_err(|error| Failure::new(Code::SessionUnreadable, error.to_string()))?;
        request.managed_env = self
            .composition
            .managed
            .collect(Context { session })
            .map_err(|error| Failure::new(Code::Environment, error.to_string()))?;
        request.session = session.map(|session| session.id().to_owned());
        request.owner = session.map(|session| Owner(session.id().to_owned()));
        request.workspace = session.map(|session| session.cwd().to_owned());
        request.workdir = match &asked.workdir {
            None => request.workspace.clone(),
            Some(dir) if dir.is_absolute() => Some(dir.clone()),
            Some(dir) => Some(self.base_folder(&request)?.join(dir)),
        };
        request.timeout = asked.timeout;
        Ok(request)
    }

    /// What a relative `workdir` is taken from: the session's, else the executor's folder.
    fn base_folder(&self, request: &ExecRequest) -> Result<PathBuf, Failure> {
        match &request.workspace {
            Some(workspace) => Ok(workspace.clone()),
            None => Ok(self
                .composition
                .executor
                .resolve(request.clone())?
                .workdir()
                .to_owned()),
        }
    }

    async fn carry_out(
        &self,
        id: &str,
        asked: Asked,
        request: ExecRequest,
        call: Call,
        ended: &mut Ended,
    ) -> Result<Done, Failure> {
        let executor = &self.composition.executor;
        let request = match &asked.escalation {
            None => request,
            Some((to, justification)) => {
                let gate = Gate {
                    confines: executor.confines(),
                    ceiling: call.ceiling,
                    service: call
                        .approvals
                        .or_else(|| self.composition.approvals.clone()),
                    session: call.session.clone(),
                };
                let escalation = gate.check(id, request, *to, justification)?;
                // A folder that isn't there is said before anyone is asked.
                executor.resolve(escalation.preview())?;
                escalation.ask(&call.watch.abort).await?.into_request()
            }
        };
        let spec = executor.resolve(request)?;
        let (mode, source) = spec.mode();
        ended.mode = Some(mode);
        ended.source = Some(source);
        if asked.background {
            let task = executor.start(spec).await?;
            note(&call.session, || started(id, &task, mode, &asked.command));
            ended.task = Some(task.0.clone());
            return Ok(Done {
                text: text::started(&task),
                structured: json!({"task": task, "status": "running", "sandbox": {"mode": mode}}),
            });
        }
        let started_under = (mode, asked.command.as_str());
        self.foreground(id, spec, started_under, call.watch, &call.session, ended)
            .await
    }

    async fn foreground(
        &self,
        id: &str,
        spec: ExecSpec,
        (mode, command): (Mode, &str),
        watch: Watch,
        session: &Option<Arc<Session>>,
        ended: &mut Ended,
    ) -> Result<Done, Failure> {
        let executor = &self.composition.executor;
        let after = watch.yield_after;
        match executor.run(spec, watch).await? {
            Ran::Finished(finished) => {
                describe(&finished, ended);
                let structured = machine::finished(&finished);
                if finished.cut == Some(Cut::Aborted) {
                    return Err(Failure {
                        code: Code::Aborted,
                        text: "command aborted".to_owned(),
                        structured,
                    });
                }
                Ok(Done {
                    text: text::finished(&finished, self.escalates()),
                    structured,
                })
            }
            Ran::Yielded(task) => {
                note(session, || started(id, &task, mode, command));
                ended.task = Some(task.0.clone());
                let read = executor
                    .read_output(&task, Duration::ZERO)
                    .await
                    .unwrap_or_else(|_gone| nothing_read());
                self.note_report(session, &task, &read);
                Ok(Done {
                    text: text::yielded(&task, after, &read, self.escalates()),
                    structured: machine::task_read(&task, &read),
                })
            }
        }
    }
}

impl Asked {
    /// The values that a schema can't express, one at a time, in the contract's order.
    fn read(arguments: &Value) -> Result<Asked, Failure> {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let command = text("command").unwrap_or_default();
        let description = text("description").unwrap_or_default();
        if command.trim().is_empty() {
            return Err(invalid(
                "invalid command: expected a non-empty string".to_owned(),
            ));
        }
        if description.trim().is_empty() {
            return Err(invalid(
                "invalid description: expected a non-empty string".to_owned(),
            ));
        }
        Ok(Asked {
            command: command.to_owned(),
            description: description.to_owned(),
            timeout: arguments.get("timeoutMs").map(timeout).transpose()?,
            workdir: text("workdir")
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from),
            background: arguments.get("run_in_background") == Some(&Value::Bool(true)),
            escalation: escalation(arguments)?,
        })
    }
}

fn timeout(value: &Value) -> Result<Duration, Failure> {
    match value.as_f64() {
        Some(millis) if millis > 0.0 && millis.is_finite() => {
            // Whole milliseconds, and at least one; the executor caps it.
            Ok(Duration::try_from_secs_f64(millis.ceil() / 1000.0).unwrap_or(Duration::MAX))
        }
        Some(_) | None => Err(invalid(format!(
            "invalid timeoutMs: expected a positive number, got {value}"
        ))),
    }
}

fn escalation(arguments: &Value) -> Result<Option<(Mode, String)>, Failure> {
    match (
        arguments.get("sandbox_permissions"),
        arguments.get("justification"),
    ) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(invalid(
            "invalid escalation: sandbox_permissions requires a justification".to_owned(),
        )),
        (None, Some(_)) => Err(invalid(
            "invalid escalation: justification is only valid together with sandbox_permissions"
                .to_owned(),
        )),
        (Some(to), Some(justification)) => {
            let justification = justification.as_str().unwrap_or_default();
            if justification.trim().is_empty() {
                return Err(invalid(
                    "invalid justification: expected a non-empty sentence".to_owned(),
                ));
            }
            // Where the schema hasn't checked the word, nothing confines, and the gate says so.
            let to = to.as_str().and_then(|word| word.parse().ok());
            Ok(Some((
                to.unwrap_or(Mode::DangerFullAccess),
                justification.to_owned(),
            )))
        }
    }
}

/// Puts an event on record. A full disk doesn't keep commands from running; the gate, which must not
/// go on without its record, writes its own.
pub(crate) fn note(session: &Option<Arc<Session>>, what: impl FnOnce() -> What) {
    if let Some(session) = session
        && let Err(error) = session.record(what())
    {
        tracing::warn!(%error, "an event isn't on record");
    }
}

fn record_of_call(id: &str, asked: &Asked, request: &ExecRequest) -> What {
    What::Call(session::Call {
        call: id.to_owned(),
        command: session::clip(&asked.command, session::MAX_COMMAND),
        description: session::clip(&asked.description, session::MAX_TEXT),
        workdir: request.workdir.as_deref().map(session::clip_path),
        timeout_ms: asked.timeout.map(machine::whole_millis),
        background: asked.background,
        mode: request.mode.map(|(mode, _source)| mode),
        source: request
            .mode
            .map(|(_mode, source): (Mode, ModeSource)| source),
    })
}

fn started(call: &str, task: &TaskId, mode: Mode, command: &str) -> What {
    What::TaskStarted {
        call: call.to_owned(),
        task: task.0.clone(),
        mode,
        command: session::clip(command, session::MAX_COMMAND),
        process: Process::current(),
    }
}

/// Puts how a command ended on its record.
pub(crate) fn describe(finished: &Finished, ended: &mut Ended) {
    ended.exit_code = finished.ended.exit_code();
    ended.signal = finished.ended.signal_name();
    ended.timed_out = finished.cut == Some(Cut::TimedOut);
    ended.duration_ms = Some(machine::whole_millis(finished.duration));
    ended.enforcement = finished
        .sandbox
        .level
        .as_ref()
        .map(|level| machine::level(level).to_owned());
    ended.missing = finished.sandbox.missing.clone();
    ended.denials = super::tasks::denials(&finished.sandbox);
}

fn nothing_read() -> TaskRead {
    TaskRead {
        stdout: String::new(),
        stderr: String::new(),
        dropped: None,
        status: TaskStatus::Running,
        sandbox: None,
    }
}
