//! The three tools that a model sees: `bash`, `bash_output` and `bash_kill`.
//!
//! Rule: arguments are checked before anything runs, a wider mode is approved before anything runs,
//! and requests are built of named arguments alone, so that a model can set neither the environment
//! nor standard input. Everything about processes lies behind the executor: another one changes nothing that
//! the model sees but whether escalation is advertised. Nothing here knows MCP.
//!
//! # Example
//!
//! A harness that gives its model the tools, and itself answers when the model asks for a wider mode:
//!
//! ```standalone_crate
//! use std::sync::Arc;
//!
//! use cofferdam::approval::{Answer, Answerer, Question};
//! use cofferdam::environment::managed::Managed;
//! use cofferdam::executor::{Confined, Confinement, Executor, Settings};
//! use cofferdam::mode::Mode;
//! use cofferdam::session::{Home, Session};
//! use cofferdam::tools::{Call, Composition, Tools};
//! use serde_json::json;
//!
//! struct Person;
//!
//! #[async_trait::async_trait]
//! impl Answerer for Person {
//!     async fn ask(&self, question: &Question) -> Answer {
//!         println!("{}", question.text());
//!         Answer::Rejected { by: "a person who never says yes".to_owned() }
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // First of all, before any thread: this program is started again to be a session's cell.
//!     cofferdam::cell_main();
//!
//!     let base = tempfile::tempdir_in("/var/tmp")?;
//!     let workspace = base.path().join("work");
//!     std::fs::create_dir(&workspace)?;
//!     let home = Home::find(Some(&base.path().join("home")))?;
//!     tokio::runtime::Runtime::new()?.block_on(async {
//!         let executor = Arc::new(Confined::new(Settings::default(), Confinement::default()));
//!         let mut composition = Composition::new(executor.clone(), Managed::new(home.clone()));
//!         composition.approvals = Some(Arc::new(Person));
//!         let tools = Tools::new(composition);
//!         let session = Arc::new(Session::create(&home, &workspace, Mode::ReadOnly)?);
//!
//!         // What the model is told: the tools, and the standing parts of its prompt.
//!         for tool in tools.definitions() {
//!             println!("{}: {}\n{}", tool.name, tool.description, tool.input_schema());
//!         }
//!         for section in tools.prompt_sections(Some(&session))? {
//!             println!("{}", section.text);
//!         }
//!
//!         // What the model calls, and reads.
//!         let call = || Call { session: Some(session.clone()), ..Call::default() };
//!         let arguments = json!({"command": "touch made", "description": "Makes a file in the workspace"});
//!         let denied = tools.call("bash", &arguments, call()).await;
//!         assert!(denied.text.ends_with("[exit code: 1]"), "{}", denied.text);
//!         assert!(denied.text.contains("[sandbox: file access denied under read-only mode]"));
//!
//!         let mut wider = arguments.clone();
//!         wider["sandbox_permissions"] = json!("workspace-write");
//!         wider["justification"] = json!("The file is what was asked for.");
//!         let refused = tools.call("bash", &wider, call()).await;
//!         assert_eq!(refused.text, "the user rejected escalating this command to \"workspace-write\"");
//!
//!         // A person switches the session; the next call runs under the new mode.
//!         session.switch(Mode::WorkspaceWrite, "a person")?;
//!         assert_eq!(tools.call("bash", &arguments, call()).await.text, "(no output)");
//!         executor.shutdown().await;
//!         Ok(())
//!     })
//! }
//! ```

mod arguments;
mod bash;
pub mod cards;
pub mod machine;
mod prompt;
mod tasks;
pub mod text;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Value, json};

pub use arguments::{Kind, Param, schema, violations};
#[cfg(feature = "cli")]
pub(crate) use bash::{describe, note};
pub use prompt::{AnnounceMode, Section};

use crate::approval::{Answerer, Refusal};
use crate::environment::managed::Managed;
use crate::executor::{Executor, Registration, Watch};
use crate::mode::{Mode, ModeSource, effective};
use crate::outcome::{NeverRan, NeverRanCode};
use crate::policy::Network;
use crate::session::{Session, SessionError};

/// The parts that the tools stand on.
#[derive(Clone)]
pub struct Composition {
    /// Runs the commands.
    pub executor: Arc<dyn Executor>,
    /// Gives each command its `DSH_*` variables.
    pub managed: Managed,
    /// Answers escalations; a call may bring its own.
    pub approvals: Option<Arc<dyn Answerer>>,
    /// What the model is told about its session's mode.
    pub announce_mode: AnnounceMode,
    /// Writable roots beside the session's workspace, for the prompt.
    pub writable: Vec<PathBuf>,
    /// What confined commands may reach, for the prompt and the annotations.
    pub network: Network,
    /// The longest that `bash_output` waits.
    pub max_wait: Duration,
}

impl Composition {
    /// No approvals, nothing announced but on denial, no network, waits of up to 45 s (many clients
    /// give up on a call soon after).
    pub fn new(executor: Arc<dyn Executor>, managed: Managed) -> Composition {
        Composition {
            executor,
            managed,
            approvals: None,
            announce_mode: AnnounceMode::OnDenial,
            writable: Vec::new(),
            network: Network::None,
            max_wait: Duration::from_secs(45),
        }
    }
}

/// What a tool is, for whoever lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// What it does, for the model. Byte-stable for one composition.
    pub description: String,
    /// Its parameters, in order.
    pub params: Vec<Param>,
    /// What a client may expect of it.
    pub annotations: Annotations,
}

impl Definition {
    /// Its parameters as JSON Schema.
    pub fn input_schema(&self) -> Value {
        schema(&self.params)
    }
}

/// What a client may expect of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotations {
    /// Its name for people.
    pub title: &'static str,
    /// It changes nothing.
    pub read_only: bool,
    /// It may destroy something.
    pub destructive: bool,
    /// A second call with the same arguments changes nothing more.
    pub idempotent: bool,
    /// It reaches beyond this machine.
    pub open_world: bool,
}

/// The circumstances of one call.
#[derive(Clone, Default)]
pub struct Call {
    /// The session whose call it is.
    pub session: Option<Arc<Session>>,
    /// Follows and ends the call.
    pub watch: Watch,
    /// Answers this call's escalation, in place of the composition's.
    pub approvals: Option<Arc<dyn Answerer>>,
    /// The widest mode that the client allows; the narrower one holds.
    pub ceiling: Option<Mode>,
}

/// What a call gives back.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    /// What the model reads.
    pub text: String,
    /// Whether it is an error. A non-zero exit is none.
    pub is_error: bool,
    /// The error's code.
    pub code: Option<Code>,
    /// The machine's copy.
    pub structured: Value,
    /// The result's card.
    pub card: Value,
}

/// What kind of error a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The arguments are wrong.
    InvalidArgs,
    /// No tool has this name.
    UnknownTool,
    /// No task has this id.
    UnknownTask,
    /// The task belongs to another session.
    ForeignTask,
    /// The wider mode wasn't granted.
    EscalationRefused,
    /// The question went out; the same call is to be made again with the answer.
    ApprovalDeferred,
    /// The caller gave up.
    Aborted,
    /// The session's log can't be read, so its mode isn't known.
    SessionUnreadable,
    /// A managed variable can't be had.
    Environment,
    /// The command never ran.
    NeverRan(NeverRanCode),
}

impl Code {
    /// The code as programs read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::InvalidArgs | Code::NeverRan(NeverRanCode::InvalidArgs) => "INVALID_ARGS",
            Code::UnknownTool => "UNKNOWN_TOOL",
            Code::UnknownTask => "UNKNOWN_TASK",
            Code::ForeignTask => "FOREIGN_TASK",
            Code::EscalationRefused => "ESCALATION_REFUSED",
            Code::ApprovalDeferred => "APPROVAL_DEFERRED",
            Code::Aborted | Code::NeverRan(NeverRanCode::Aborted) => "ABORTED",
            Code::SessionUnreadable => "SESSION_UNREADABLE",
            Code::Environment => "ENVIRONMENT",
            Code::NeverRan(NeverRanCode::SandboxUnavailable) => "SANDBOX_UNAVAILABLE",
            Code::NeverRan(NeverRanCode::InvalidProfile) => "INVALID_PROFILE",
            Code::NeverRan(NeverRanCode::SpawnFailed) => "SPAWN_FAILED",
            Code::NeverRan(NeverRanCode::ShutDown) => "SHUT_DOWN",
        }
    }
}

/// The tools over one executor, for any number of sessions.
pub struct Tools {
    composition: Composition,
    definitions: Vec<Definition>,
    sessions: Arc<Sessions>,
    _completions: Registration,
}

impl Tools {
    /// The tools of this composition. Until they are dropped, each task that finishes puts a notice
    /// into its session's inbox.
    pub fn new(composition: Composition) -> Tools {
        let sessions = Arc::<Sessions>::default();
        let known = Arc::clone(&sessions);
        let completions = composition
            .executor
            .on_done(Box::new(move |task| tasks::settled(&known, task)));
        Tools {
            definitions: prompt::definitions(&composition),
            composition,
            sessions,
            _completions: completions,
        }
    }

    /// The tools, in a fixed order.
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    /// What these tools run on.
    pub fn executor(&self) -> &Arc<dyn Executor> {
        &self.composition.executor
    }

    /// The standing parts of the system prompt, by order.
    ///
    /// # Errors
    /// The session's log can't be read, where its mode is announced.
    pub fn prompt_sections(&self, session: Option<&Session>) -> Result<Vec<Section>, SessionError> {
        prompt::sections(&self.composition, session)
    }

    /// With [`AnnounceMode::Always`]: one notice when the effective mode has changed since the model
    /// was last told, also across a restart. Call it before each step.
    ///
    /// # Errors
    /// The session's log can't be read or written.
    pub fn narrate(&self, session: &Session) -> Result<Option<String>, SessionError> {
        prompt::narrate(&self.composition, session)
    }

    /// Calls a tool. Whatever is wrong comes back as an error result. Dropping the future aborts a
    /// foreground command.
    pub async fn call(&self, name: &str, arguments: &Value, call: Call) -> CallResult {
        if let Some(session) = &call.session {
            self.sessions.remember(session);
        }
        let done = match self.definitions.iter().find(|tool| tool.name == name) {
            None => Err(Failure::new(
                Code::UnknownTool,
                format!("unknown tool \"{name}\""),
            )),
            Some(tool) => match violations(&tool.params, arguments).as_slice() {
                [] => self.dispatch(tool, arguments, call).await,
                found => Err(invalid(format!("invalid arguments: {}", found.join("; ")))),
            },
        };
        let (text, code, structured) = match done {
            Ok(done) => (done.text, None, done.structured),
            Err(failure) => (failure.text, Some(failure.code), failure.structured),
        };
        CallResult {
            card: cards::result(name, arguments, &text, code.is_some()),
            is_error: code.is_some(),
            text,
            code,
            structured,
        }
    }

    async fn dispatch(
        &self,
        tool: &Definition,
        arguments: &Value,
        call: Call,
    ) -> Result<Done, Failure> {
        match tool.name {
            "bash" => self.bash(arguments, call).await,
            "bash_output" => self.bash_output(arguments, call).await,
            _bash_kill => self.bash_kill(arguments, call).await,
        }
    }

    /// Whether `sandbox_permissions` and `justification` are advertised.
    fn escalates(&self) -> bool {
        self.composition.executor.confines().is_some()
    }
}

/// The mode that a call runs under without a grant; `None` where nothing confines.
fn standing_mode(
    composition: &Composition,
    session: Option<&Session>,
    ceiling: Option<Mode>,
) -> Result<Option<(Mode, ModeSource)>, SessionError> {
    let Some(default) = composition.executor.confines() else {
        return Ok(None);
    };
    let (mode, source) = match session {
        Some(session) => session.effective(default)?,
        None => effective(None, None, default),
    };
    Ok(Some((
        ceiling.map_or(mode, |ceiling| mode.min(ceiling)),
        source,
    )))
}

/// A call that did what was asked.
struct Done {
    text: String,
    structured: Value,
}

/// A call that didn't.
#[derive(Debug)]
struct Failure {
    code: Code,
    text: String,
    structured: Value,
}

impl Failure {
    fn new(code: Code, text: String) -> Failure {
        let structured = json!({
            "error": {"code": code.as_str(), "message": text, "step": null, "errno": null, "remedy": ""},
        });
        Failure {
            code,
            text,
            structured,
        }
    }
}

fn invalid(text: String) -> Failure {
    Failure::new(Code::InvalidArgs, text)
}

impl From<NeverRan> for Failure {
    fn from(error: NeverRan) -> Failure {
        Failure {
            code: Code::NeverRan(error.code),
            text: error.to_string(),
            structured: machine::never_ran(&error),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let code = match refusal {
            Refusal::Deferred { .. } => Code::ApprovalDeferred,
            Refusal::NotConfining
            | Refusal::NotWider { .. }
            | Refusal::AboveCeiling { .. }
            | Refusal::NoService { .. }
            | Refusal::NoSession { .. }
            | Refusal::Rejected { .. }
            | Refusal::Cancelled { .. }
            | Refusal::Unavailable { .. }
            | Refusal::Unrecorded { .. } => Code::EscalationRefused,
        };
        Failure::new(code, refusal.to_string())
    }
}

/// The sessions that have called and are still there, for their notices.
#[derive(Default)]
struct Sessions(Mutex<HashMap<String, Weak<Session>>>);

impl Sessions {
    fn remember(&self, session: &Arc<Session>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = known.get(session.id());
        if entry.is_some_and(|entry| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(session))) {
            return;
        }
        known.retain(|_id, session| session.strong_count() > 0);
        known.insert(session.id().to_owned(), Arc::downgrade(session));
    }

    fn find(&self, id: &str) -> Option<Arc<Session>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id)?.upgrade()
    }
}
