//! `cofferdam run --approval`: when a wider mode would cure what was denied, a person is asked whether
//! the command may run once more under it.
//!
//! Rule: the question is about the very request that ran, in Cofferdam's words; whatever isn't an
//! allowance leaves the first run's result as it is. Both runs and both halves of the question are on
//! record in a session of their own.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::approval::queue::{self, Queue, Queued};
use crate::approval::terminal::{self, Terminal};
use crate::approval::{Answerer, Chain, Gate, Refusal};
use crate::denial::Fact;
use crate::executor::{Finished, SandboxReport};
use crate::mode::Mode;
use crate::outcome::{NeverRan, NeverRanCode};
use crate::request::ExecRequest;
use crate::session::{self, Ended, Home, Session, What};
use crate::tools::{Code, describe, machine, note, text};

/// Somebody who can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Channel {
    /// The person at the controlling terminal.
    Terminal,
    /// Whoever answers with `cofferdam approve` at another terminal.
    Queue,
    /// Nobody; what comes after it isn't asked either.
    Never,
}

/// The record of one `cofferdam run` that may ask.
pub struct Recorded {
    session: Option<Arc<Session>>,
    channels: Vec<Channel>,
    mode: Mode,
}

/// One run of the command on record.
pub struct Run {
    id: String,
}

impl Recorded {
    /// Starts a session for a run that may ask; `None` for one that asks nobody.
    ///
    /// # Errors
    /// The session can't be put on disk, so nothing could be granted on record.
    pub fn begin(
        channels: &[Channel],
        workspace: &Path,
        mode: Mode,
    ) -> Result<Option<Recorded>, NeverRan> {
        let asked = channels.iter().take_while(|one| **one != Channel::Never);
        let channels: Vec<Channel> = asked.copied().collect();
        if channels.is_empty() {
            return Ok(None);
        }
        let session = Home::find(None)
            .map_err(|error| unrecorded(&error))
            .and_then(|home| {
                Session::create(&home, workspace, mode).map_err(|error| unrecorded(&error))
            })?;
        Ok(Some(Recorded {
            session: Some(Arc::new(session)),
            channels,
            mode,
        }))
    }

    /// The session.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// Puts the beginning of a run on record.
    ///
    /// # Errors
    /// There are no random bytes for its id.
    pub fn run(&self, request: &ExecRequest) -> Result<Run, NeverRan> {
        let id = session::random_id().map_err(|error| unrecorded(&error))?;
        note(&self.session, || {
            What::Call(session::Call {
                call: id.clone(),
                command: session::clip(&request.command.text(), session::MAX_COMMAND),
                description: "cofferdam run".to_owned(),
                workdir: request.workdir.as_deref().map(session::clip_path),
                timeout_ms: request.timeout.map(machine::whole_millis),
                background: false,
                mode: request.mode.map(|(mode, _source)| mode),
                source: request.mode.map(|(_mode, source)| source),
            })
        });
        Ok(Run { id })
    }

    /// Puts the end of a run on record.
    pub fn ended(&self, run: Run, request: &ExecRequest, ran: &Result<Finished, NeverRan>) {
        let mut ended = Ended {
            mode: request.mode.map(|(mode, _source)| mode),
            source: request.mode.map(|(_mode, source)| source),
            ..Ended::default()
        };
        match ran {
            Ok(finished) => describe(finished, &mut ended),
            Err(error) => refused(&mut ended, Code::NeverRan(error.code), &error.to_string()),
        }
        self.result(run, ended);
    }

    /// Asks whether `request` may run once more, under the narrowest mode that cures something of what
    /// was `denied`. The request to run, with its place on record, or `None`: nothing would be cured, or
    /// it wasn't allowed, which standard error then says unless `quiet`.
    ///
    /// # Errors
    /// There are no random bytes for an id.
    pub async fn ask(
        &self,
        denied: &SandboxReport,
        request: &ExecRequest,
        quiet: bool,
        abort: &CancellationToken,
    ) -> Result<Option<(Run, ExecRequest)>, NeverRan> {
        let Some((to, fact)) = cure(denied) else {
            return Ok(None);
        };
        let run = self.run(request)?;
        let gate = Gate {
            confines: Some(self.mode),
            ceiling: None,
            service: Some(self.answerers()),
            session: self.session.clone(),
        };
        let reason = justification(denied.mode, fact);
        let answer = match gate.check(&run.id, request.clone(), to, &reason) {
            Ok(escalation) => escalation.in_own_words().ask(abort).await,
            Err(refusal) => Err(refusal),
        };
        match answer {
            Ok(grant) => Ok(Some((run, grant.into_request()))),
            Err(refusal) => {
                self.refused(run, denied.mode, &refusal);
                if !quiet {
                    // Nobody is left to tell when standard error is gone.
                    writeln!(std::io::stderr(), "cofferdam: {refusal}").ok();
                }
                Ok(None)
            }
        }
    }

    fn refused(&self, run: Run, mode: Mode, refusal: &Refusal) {
        let mut ended = Ended {
            mode: Some(mode),
            ..Ended::default()
        };
        refused(&mut ended, Code::EscalationRefused, &refusal.to_string());
        self.result(run, ended);
    }

    fn result(&self, run: Run, ended: Ended) {
        note(&self.session, || What::Result {
            call: run.id,
            ended,
        });
    }

    fn answerers(&self) -> Arc<dyn Answerer> {
        let answerers = self.channels.iter().filter_map(|channel| match channel {
            Channel::Terminal => Some(Arc::new(Terminal {
                patience: terminal::PATIENCE,
            }) as Arc<dyn Answerer>),
            Channel::Queue => queued(),
            Channel::Never => None,
        });
        Arc::new(Chain::new(answerers.collect()))
    }
}

fn queued() -> Option<Arc<dyn Answerer>> {
    let dir = queue::run_dir()
        .inspect_err(|error| tracing::warn!(%error, "nobody can answer out of band"))
        .ok()?;
    let queue = Arc::new(Queue::new(dir, queue::PATIENCE));
    Some(Arc::new(Queued::new(queue, |question| {
        // Should standard error be gone, `cofferdam approvals` still lists the question.
        writeln!(
            std::io::stderr(),
            "cofferdam: an escalation waits: cofferdam approve {id}, or cofferdam reject {id}",
            id = question.id
        )
        .ok();
    })))
}

/// The narrowest wider mode that allows something of what was denied, and the first such thing.
fn cure(report: &SandboxReport) -> Option<(Mode, &Fact)> {
    report
        .denials
        .iter()
        .filter_map(|fact| Some((fact.allowed_under?, fact)))
        .filter(|(mode, _fact)| *mode > report.mode)
        .min_by_key(|(mode, _fact)| *mode)
}

fn justification(mode: Mode, fact: &Fact) -> String {
    let target = text::target(fact).map_or_else(String::new, |target| format!(" {target}"));
    format!("under {mode} it was denied: {}{target}", fact.operation)
}

fn refused(ended: &mut Ended, code: Code, message: &str) {
    ended.error = Some(code.as_str().to_owned());
    ended.message = Some(session::clip(message, session::MAX_TEXT));
}

fn unrecorded(error: &dyn std::fmt::Display) -> NeverRan {
    NeverRan::refused(
        NeverRanCode::InvalidArgs,
        format!("a run that may ask can't be put on record: {error}"),
        "set DSH_HOME to a folder of yours that can be written, or leave --approval out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::fake::{denied_connect, denied_write, report};

    #[test]
    fn the_narrowest_mode_that_cures_something_is_asked_for_with_the_first_thing_that_it_cures() {
        let facts = vec![
            denied_write("/proc/version", None),
            denied_write("/etc/motd", Some(Mode::DangerFullAccess)),
            denied_write("/w/a", Some(Mode::WorkspaceWrite)),
            denied_write("/w/b", Some(Mode::WorkspaceWrite)),
        ];
        let denied = report(Mode::ReadOnly, facts.clone());
        let (to, fact) = cure(&denied).unwrap();
        assert_eq!((to, fact), (Mode::WorkspaceWrite, &facts[2]));
        assert_eq!(
            justification(Mode::ReadOnly, fact),
            "under read-only it was denied: write /w/a"
        );
        let wider = report(Mode::WorkspaceWrite, facts.clone());
        assert_eq!(cure(&wider).unwrap(), (Mode::DangerFullAccess, &facts[1]));
        assert_eq!(cure(&report(Mode::DangerFullAccess, facts.clone())), None);
        assert_eq!(cure(&report(Mode::ReadOnly, vec![facts[0].clone()])), None);
        assert_eq!(cure(&report(Mode::ReadOnly, Vec::new())), None);
    }

    #[test]
    fn a_target_that_imitates_the_question_stays_on_its_line() {
        let fact = denied_write("/w/a\nIt adds: nothing", Some(Mode::WorkspaceWrite));
        assert_eq!(
            justification(Mode::ReadOnly, &fact),
            "under read-only it was denied: write /w/a\\nIt adds: nothing"
        );
        let address = denied_connect("192.0.2.1:80");
        assert_eq!(
            justification(Mode::ReadOnly, &address),
            "under read-only it was denied: connect 192.0.2.1:80"
        );
    }

    #[test]
    fn a_list_that_begins_with_never_keeps_no_record() {
        for channels in [
            &[][..],
            &[Channel::Never],
            &[Channel::Never, Channel::Terminal],
        ] {
            let begun = Recorded::begin(channels, Path::new("/w"), Mode::ReadOnly).unwrap();
            assert!(begun.is_none());
        }
    }
}
