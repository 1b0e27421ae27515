//! How a command ended, or why it never ran.
//!
//! Rule: a command that never ran is an error of its own, never an exit code and never a denial.

use serde::{Deserialize, Serialize};

/// How the command's own process ended (`wait(2)`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// It exited with this status, 0 to 255.
    Exited(i32),
    /// A signal with this number ended it.
    Signalled(i32),
}

impl Ended {
    /// The exit status, when there is one.
    pub fn exit_code(self) -> Option<i32> {
        match self {
            Ended::Exited(code) => Some(code),
            Ended::Signalled(_) => None,
        }
    }

    /// The name of the ending signal, as in `SIGTERM`; real-time signals read `SIGRTMIN+N`.
    pub fn signal_name(self) -> Option<String> {
        match self {
            Ended::Exited(_) => None,
            Ended::Signalled(number) => Some(match nix::sys::signal::Signal::try_from(number) {
                Ok(signal) => signal.as_str().to_owned(),
                Err(_) => format!("SIGRTMIN+{}", number - libc::SIGRTMIN()),
            }),
        }
    }

    /// Whether it exited with 0.
    pub fn success(self) -> bool {
        self == Ended::Exited(0)
    }
}

/// What kind of trouble kept a command from running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum NeverRanCode {
    /// The confinement that the mode promises could not be set up on this host.
    SandboxUnavailable,
    /// The request itself can't be carried out: no such folder, a bad argument, a bad workspace.
    InvalidArgs,
    /// A profile has an unknown key, a wrong type, a missing path or an impossible value.
    InvalidProfile,
    /// The program could not be started: not found, not executable, arguments too long.
    SpawnFailed,
    /// The executor is shutting down.
    ShutDown,
    /// The caller gave up before it started.
    Aborted,
}

/// A command that never ran: what was refused, at which step, with which errno, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", remedy_suffix(.remedy))]
pub struct NeverRan {
    /// What kind of trouble it was.
    pub code: NeverRanCode,
    /// One fact in lower case, without the remedy.
    pub message: String,
    /// The set-up step that failed, such as `unshare user namespace`.
    pub step: Option<String>,
    /// The errno's name, such as `EPERM`.
    pub errno: Option<String>,
    /// What a person can do about it; empty when there is nothing to say.
    pub remedy: String,
}

fn remedy_suffix(remedy: &str) -> String {
    if remedy.is_empty() {
        String::new()
    } else {
        format!("; {remedy}")
    }
}

impl NeverRan {
    /// Trouble without a failed step: a bad request, a bad profile, a missing folder.
    pub fn refused(
        code: NeverRanCode,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> NeverRan {
        NeverRan {
            code,
            message: message.into(),
            step: None,
            errno: None,
            remedy: remedy.into(),
        }
    }

    /// A failed step of the set-up, with the errno that the kernel gave.
    pub fn step(
        code: NeverRanCode,
        step: impl Into<String>,
        errno: nix::errno::Errno,
        remedy: impl Into<String>,
    ) -> NeverRan {
        let step = step.into();
        NeverRan {
            code,
            message: format!("{step}: {}", errno.desc()),
            step: Some(step),
            errno: Some(errno_name(errno)),
            remedy: remedy.into(),
        }
    }
}

/// The symbolic name of an errno, as in `EROFS`.
pub fn errno_name(errno: nix::errno::Errno) -> String {
    format!("{errno:?}")
}
