//! The three modes, their order, and where an effective mode came from.
//!
//! Rule: "wider" means strictly greater in the order of the variants, and nothing else.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What a command may touch. `ReadOnly < WorkspaceWrite < DangerFullAccess`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Host files are readable and none is writable; private scratch, no network but loopback.
    ReadOnly,
    /// As `ReadOnly`, and the session's workspace and the configured roots are writable.
    WorkspaceWrite,
    /// No confinement at all.
    DangerFullAccess,
}

impl Mode {
    /// Every mode, narrowest first.
    pub const ALL: [Mode; 3] = [Mode::ReadOnly, Mode::WorkspaceWrite, Mode::DangerFullAccess];

    /// The name that users type and read.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::ReadOnly => "read-only",
            Mode::WorkspaceWrite => "workspace-write",
            Mode::DangerFullAccess => "danger-full-access",
        }
    }

    /// Whether the kernel restricts commands in this mode.
    pub fn is_confined(self) -> bool {
        self < Mode::DangerFullAccess
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode \"{0}\": use read-only, workspace-write or danger-full-access")]
pub struct UnknownMode(pub String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Mode, UnknownMode> {
        Mode::ALL
            .into_iter()
            .find(|mode| mode.as_str() == word)
            .ok_or_else(|| UnknownMode(word.to_owned()))
    }
}

/// Where an effective mode came from, strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModeSource {
    /// One approved wider run.
    Grant,
    /// The last switch in the session's log.
    Session,
    /// The executor's configuration.
    Default,
}

/// The mode that a call runs under: grant, else session override, else default.
pub fn effective(grant: Option<Mode>, session: Option<Mode>, default: Mode) -> (Mode, ModeSource) {
    match (grant, session) {
        (Some(mode), _) => (mode, ModeSource::Grant),
        (None, Some(mode)) => (mode, ModeSource::Session),
        (None, None) => (default, ModeSource::Default),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_a_total_order_by_width() {
        assert!(Mode::ReadOnly < Mode::WorkspaceWrite);
        assert!(Mode::WorkspaceWrite < Mode::DangerFullAccess);
        assert!(Mode::WorkspaceWrite.is_confined());
        assert!(!Mode::DangerFullAccess.is_confined());
    }

    #[test]
    fn every_mode_reads_back_from_its_own_name() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert_eq!(
            "full".parse::<Mode>().unwrap_err().to_string(),
            "unknown mode \"full\": use read-only, workspace-write or danger-full-access"
        );
    }

    #[test]
    fn a_grant_beats_the_session_and_the_session_beats_the_default() {
        use Mode::{DangerFullAccess as D, ReadOnly as R, WorkspaceWrite as W};
        assert_eq!(effective(Some(D), Some(R), W), (D, ModeSource::Grant));
        assert_eq!(effective(None, Some(R), W), (R, ModeSource::Session));
        assert_eq!(effective(None, None, W), (W, ModeSource::Default));
    }
}
