//! The question whether one call may run under a wider mode, who can answer it, and the gate.
//!
//! Rule: it is resolved before anything runs, and closed on every doubt. A [`Grant`] can't be made
//! outside of this module; it holds the very request that was asked about, and running that uses it up.

mod question;
pub mod queue;
pub mod terminal;

use std::sync::Arc;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

pub use question::{JustifiedBy, Question, visible, visible_line};

use crate::mode::{Mode, ModeSource};
use crate::request::ExecRequest;
use crate::session::{self, Answered, Session, SessionError, What};

/// An answer to a [`Question`]. `by` says who or what gave it, as the audit prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This one call may run.
    AllowedOnce {
        /// Who answered.
        by: String,
    },
    /// It may not.
    Rejected {
        /// Who answered.
        by: String,
    },
    /// The question was withdrawn or closed without a choice.
    Cancelled {
        /// Who withdrew it.
        by: String,
    },
    /// This answerer reaches nobody; the next one is asked.
    Unavailable,
    /// The question was handed to a client that makes the call again with the answer. This call ends
    /// without having run.
    Deferred {
        /// Who got the question.
        by: String,
    },
}

/// Answers questions: a person through some channel, or something that stands in for one.
#[async_trait]
pub trait Answerer: Send + Sync {
    /// Asks and waits for the answer. Dropping the future withdraws the question.
    async fn ask(&self, question: &Question) -> Answer;
}

/// Answerers, asked in order until one is available.
#[derive(Clone, Default)]
pub struct Chain(Vec<Arc<dyn Answerer>>);

impl Chain {
    /// A chain in this order. An empty one answers [`Answer::Unavailable`].
    pub fn new(answerers: Vec<Arc<dyn Answerer>>) -> Chain {
        Chain(answerers)
    }
}

#[async_trait]
impl Answerer for Chain {
    async fn ask(&self, question: &Question) -> Answer {
        for answerer in &self.0 {
            let answer = answerer.ask(question).await;
            if answer != Answer::Unavailable {
                return answer;
            }
        }
        Answer::Unavailable
    }
}

/// Why a call may not run under the mode that it asked for. Nothing ran.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The executor doesn't confine.
    #[error(
        "sandbox_permissions is not available in this composition (no sandboxing executor to escalate)"
    )]
    NotConfining,
    /// The mode asked for is no wider. Nobody was asked.
    #[error(
        "sandbox escalation to \"{to}\" is not strictly wider than this call's current \"{from}\" mode"
    )]
    NotWider {
        /// The effective mode.
        from: Mode,
        /// The mode asked for.
        to: Mode,
    },
    /// The client limits its calls to a narrower mode. Nobody was asked.
    #[error(
        "sandbox escalation to \"{to}\" is wider than \"{ceiling}\", the widest mode that the client allows"
    )]
    AboveCeiling {
        /// The mode asked for.
        to: Mode,
        /// The widest mode that the client allows.
        ceiling: Mode,
    },
    /// There is no approval service.
    #[error(
        "sandbox escalation to \"{to}\" requires approval, but no approval service is composed"
    )]
    NoService {
        /// The mode asked for.
        to: Mode,
    },
    /// The call belongs to no session.
    #[error(
        "sandbox escalation to \"{to}\" requires approval, but the call has no agent to route it through"
    )]
    NoSession {
        /// The mode asked for.
        to: Mode,
    },
    /// Someone said no.
    #[error("the user rejected escalating this command to \"{to}\"")]
    Rejected {
        /// The mode asked for.
        to: Mode,
    },
    /// The question was withdrawn.
    #[error("approval for escalating to \"{to}\" was cancelled")]
    Cancelled {
        /// The mode asked for.
        to: Mode,
    },
    /// Nobody can answer.
    #[error(
        "sandbox escalation to \"{to}\" requires approval, but no approval channel is available"
    )]
    Unavailable {
        /// The mode asked for.
        to: Mode,
    },
    /// The question went out with this call; the answer comes with the same call made again.
    #[error("sandbox escalation to \"{to}\" waits for an answer; make the same call again with it")]
    Deferred {
        /// The mode asked for.
        to: Mode,
    },
    /// The question or its answer can't be put on record.
    #[error("sandbox escalation to \"{to}\" requires approval, but it can't be recorded: {error}")]
    Unrecorded {
        /// The mode asked for.
        to: Mode,
        /// What the session's log said.
        error: String,
    },
}

/// What the gate stands on.
#[derive(Clone)]
pub struct Gate {
    /// The default mode of an executor that confines.
    pub confines: Option<Mode>,
    /// The widest mode that the client allows, where it says so.
    pub ceiling: Option<Mode>,
    /// Who answers.
    pub service: Option<Arc<dyn Answerer>>,
    /// The session that the question is routed through.
    pub session: Option<Arc<Session>>,
}

/// A wish for a wider mode that nothing but an answer stands in the way of.
pub struct Escalation {
    call: String,
    request: ExecRequest,
    question: Question,
    service: Arc<dyn Answerer>,
    session: Arc<Session>,
}

/// One approved wider run: the request that was asked about, with its mode set. It can't be cloned.
#[derive(Debug)]
pub struct Grant {
    request: ExecRequest,
}

impl Gate {
    /// Everything that can be refused without asking, in the contract's order. `request` carries the
    /// effective mode; `call` is its id in the session's log.
    ///
    /// # Errors
    /// What stands in the way.
    pub fn check(
        self,
        call: &str,
        request: ExecRequest,
        to: Mode,
        justification: &str,
    ) -> Result<Escalation, Refusal> {
        let default = self.confines.ok_or(Refusal::NotConfining)?;
        let from = request.mode.map_or(default, |(mode, _source)| mode);
        if to <= from {
            return Err(Refusal::NotWider { from, to });
        }
        if let Some(ceiling) = self.ceiling.filter(|ceiling| to > *ceiling) {
            return Err(Refusal::AboveCeiling { to, ceiling });
        }
        let service = self.service.ok_or(Refusal::NoService { to })?;
        let session = self.session.ok_or(Refusal::NoSession { to })?;
        let id = session::random_id().map_err(|error| unrecorded(to, &error))?;
        let question = Question::new(id, session.id(), &request, from, to, justification);
        Ok(Escalation {
            call: call.to_owned(),
            request,
            question,
            service,
            session,
        })
    }
}

impl Escalation {
    /// The question that will be asked.
    pub fn question(&self) -> &Question {
        &self.question
    }

    /// The justification is Cofferdam's own, and the question says so.
    pub fn in_own_words(mut self) -> Escalation {
        self.question.justified_by = JustifiedBy::Cofferdam;
        self
    }

    /// The request as it would run, for a check that nothing else stands in its way.
    pub fn preview(&self) -> ExecRequest {
        granted(self.request.clone(), self.question.to)
    }

    /// Asks, and records both the question and its end, also when the wait is cut short by `abort` or
    /// by dropping the future.
    ///
    /// # Errors
    /// Anything but an allowance.
    pub async fn ask(self, abort: &CancellationToken) -> Result<Grant, Refusal> {
        let to = self.question.to;
        let mut record = Record::begin(&self).map_err(|error| unrecorded(to, &error))?;
        let answer = tokio::select! {
            biased;
            () = abort.cancelled() => Answer::Cancelled { by: "the caller".to_owned() },
            answer = self.service.ask(&self.question) => answer,
        };
        let (outcome, by) = match &answer {
            Answer::AllowedOnce { by } => (Answered::AllowedOnce, Some(by)),
            Answer::Rejected { by } => (Answered::Rejected, Some(by)),
            Answer::Cancelled { by } => (Answered::Cancelled, Some(by)),
            Answer::Unavailable => (Answered::Unavailable, None),
            Answer::Deferred { by } => (Answered::Deferred, Some(by)),
        };
        record
            .resolve(outcome, by.cloned())
            .map_err(|error| unrecorded(to, &error))?;
        drop(record);
        match answer {
            Answer::AllowedOnce { .. } => Ok(Grant {
                request: granted(self.request, to),
            }),
            Answer::Rejected { .. } => Err(Refusal::Rejected { to }),
            Answer::Cancelled { .. } => Err(Refusal::Cancelled { to }),
            Answer::Unavailable => Err(Refusal::Unavailable { to }),
            Answer::Deferred { .. } => Err(Refusal::Deferred { to }),
        }
    }
}

impl Grant {
    /// The approved request. This uses the grant up.
    pub fn into_request(self) -> ExecRequest {
        self.request
    }
}

fn granted(mut request: ExecRequest, to: Mode) -> ExecRequest {
    request.mode = Some((to, ModeSource::Grant));
    request
}

fn unrecorded(to: Mode, error: &SessionError) -> Refusal {
    Refusal::Unrecorded {
        to,
        error: error.to_string(),
    }
}

/// The two halves of a question in the log. One that is dropped open is recorded as cancelled.
struct Record {
    session: Arc<Session>,
    call: String,
    question: String,
    open: bool,
}

impl Record {
    fn begin(escalation: &Escalation) -> Result<Record, SessionError> {
        let question = &escalation.question;
        escalation.session.record(What::Asked {
            call: escalation.call.clone(),
            question: question.id.clone(),
            reason: session::clip(&question.reason(), session::MAX_TEXT),
            command: session::clip(&question.command, session::MAX_COMMAND),
            workdir: session::clip_path(&question.workdir),
            from: question.from,
            to: question.to,
        })?;
        Ok(Record {
            session: Arc::clone(&escalation.session),
            call: escalation.call.clone(),
            question: question.id.clone(),
            open: true,
        })
    }

    fn resolve(&mut self, outcome: Answered, by: Option<String>) -> Result<(), SessionError> {
        self.open = false;
        self.session.record(What::Resolved {
            call: self.call.clone(),
            question: self.question.clone(),
            outcome,
            by,
        })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.resolve(Answered::Cancelled, Some("the caller".to_owned()))
        {
            tracing::warn!(%error, "the end of a question isn't on record");
        }
    }
}
