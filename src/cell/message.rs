//! What harness, cell and init say to each other.
//!
//! Rule: paths, arguments and variables are bytes.

use std::ffi::CString;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::denial::Event;
use crate::outcome::Ended;
use crate::plan::Plan;

/// The first message to a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetUp {
    /// Enter namespaces; otherwise commands run under Landlock alone.
    pub namespaces: bool,
    /// A network namespace of its own, with loopback up.
    pub own_network: bool,
    /// Keep an init ready for the next command: a session of many.
    pub prepare: bool,
    /// The session is one of a single command.
    pub only_one: bool,
    /// The caller's user, kept inside.
    pub uid: u32,
    /// The caller's group, kept inside.
    pub gid: u32,
    /// Folders of the session's to remove when the harness is gone: it can't when it was killed.
    pub remove_at_end: Vec<CString>,
}

/// Every later message to a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToCell {
    /// Run this command.
    Launch(Box<Launch>),
    /// The session ends in good order: there is nothing to clean up.
    Leave,
}

/// A command to run. Descriptors beside it: control socket, standard input, output, error, and the script
/// when there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Launch {
    /// What confines it.
    pub plan: Plan,
    /// The session's spill folder, once it exists.
    pub spill: Option<Spill>,
    /// What it is.
    pub go: Go,
}

/// What a confined process becomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Go {
    /// Where the program may lie, in the order of PATH.
    pub candidates: Vec<CString>,
    /// Its arguments, with its name.
    pub argv: Vec<CString>,
    /// Its whole environment, `NAME=value` each.
    pub env: Vec<CString>,
    /// Where it starts.
    pub workdir: CString,
    /// Standard input is `/dev/null`, the view's own: the host's could be changed through its descriptor.
    pub null_stdin: bool,
    /// The script is wanted at this descriptor.
    pub script_at: Option<i32>,
}

/// What an init waits for: its command's control socket is beside this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attend;

/// A folder of the host that the session's commands see read-only at the same path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Spill {
    /// Its path.
    pub path: CString,
}

/// What becomes of a command, sent over its control socket by its init, or by the cell before there is
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It runs. Notes say what the set-up had to leave out.
    Started {
        /// A phrase each.
        notes: Vec<String>,
    },
    /// It never ran.
    Failed(Failure),
    /// It ended, and so has everything that it started.
    Exited {
        /// How its own process ended.
        ended: Ended,
        /// Refused or doubtful calls that its init saw.
        events: Vec<Event>,
        /// Whether events were lost.
        events_lost: bool,
    },
}

/// A step of a set-up that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// What it means for the next try.
    pub kind: FailureKind,
    /// The step, such as `unshare user namespace`.
    pub step: String,
    /// The path or program that it was about.
    pub object: Option<Vec<u8>>,
    /// The errno's number.
    pub errno: i32,
}

/// What a failed step means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FailureKind {
    /// The host doesn't give namespaces, or no mounts in them: what a cell asks for before anything that a
    /// command could have had a hand in.
    Namespaces,
    /// No process can be started: too many, or no PID namespace.
    Clone,
    /// The host doesn't give a new `/proc`.
    Proc,
    /// The host doesn't give a seccomp listener.
    Listener,
    /// A path of the policy isn't what it was when the policy was made.
    Changed,
    /// The program can't be executed.
    Exec,
    /// The working directory can't be entered.
    Workdir,
    /// Anything else: the confinement can't be set up.
    SetUp,
}

impl Failure {
    pub fn new(kind: FailureKind, step: impl Into<String>, errno: Errno) -> Failure {
        Failure {
            kind,
            step: step.into(),
            object: None,
            errno: errno as i32,
        }
    }

    pub fn about(mut self, object: &[u8]) -> Failure {
        self.object = Some(object.to_vec());
        self
    }
}

/// Names the step in the error of a system call.
pub(crate) trait Step<T> {
    fn step(self, kind: FailureKind, step: &str) -> Result<T, Failure>;
}

impl<T> Step<T> for Result<T, Errno> {
    fn step(self, kind: FailureKind, step: &str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(kind, step, errno))
    }
}

impl<T> Step<T> for Result<T, rustix::io::Errno> {
    fn step(self, kind: FailureKind, step: &str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::new(kind, step, Errno::from_raw(errno.raw_os_error())))
    }
}

impl<T> Step<T> for std::io::Result<T> {
    fn step(self, kind: FailureKind, step: &str) -> Result<T, Failure> {
        self.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Failure::new(kind, step, errno)
        })
    }
}
