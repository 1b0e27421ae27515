//! The unconfined executor: every command runs as this process's own child.
//!
//! Rule: it never pretends: a request for a confined mode is refused, not run without confinement.

use std::sync::Arc;

use crate::environment::Rules;
use crate::executor::direct::Direct;
use crate::executor::supervised::{Settings, Spills, Supervised, Supervising};
use crate::mode::{Mode, ModeSource};
use crate::outcome::{NeverRan, NeverRanCode};
use crate::output::SpillDir;
use crate::request::{ExecRequest, ExecSpec};

/// Runs commands without any confinement. It needs a tokio runtime with all drivers enabled.
///
/// When a command ends, what is left of its process group ends too. A timeout, an abort and a kill reach
/// the whole tree as far as `/proc` shows it; a process that made itself a daemon (`setsid` and an exited
/// parent) before that can't be found and stays, and so do commands whose harness was killed with
/// SIGKILL.
pub struct Unconfined(Supervised);

impl Unconfined {
    /// An executor with these settings.
    pub fn new(settings: Settings) -> Unconfined {
        let spills = Spills::new(settings.spill_base.clone());
        Unconfined(Supervised::new(Arc::new(Direct), settings, spills))
    }

    /// The folder that holds a session's spill files; that of requests without a session for `None`.
    pub fn spill_dir(&self, session: Option<&str>) -> Arc<SpillDir> {
        self.0.spills().of(session)
    }
}

impl Supervising for Unconfined {
    fn supervised(&self) -> &Supervised {
        &self.0
    }

    fn default_mode(&self) -> Option<Mode> {
        None
    }

    fn spec(&self, request: ExecRequest) -> Result<ExecSpec, NeverRan> {
        let mode = request
            .mode
            .unwrap_or((Mode::DangerFullAccess, ModeSource::Default));
        if mode.0.is_confined() {
            return Err(NeverRan::refused(
                NeverRanCode::SandboxUnavailable,
                format!("this executor can't confine a command to {}", mode.0),
                "use the confined executor",
            ));
        }
        let settings = self.0.settings();
        let workspace = settings.workspace(&request)?;
        settings.spec(request, workspace, mode, Rules::default())
    }
}
