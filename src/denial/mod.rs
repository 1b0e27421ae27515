//! Denial facts: what the policy refused and that mattered.
//!
//! Rule: a fact needs evidence (a refused system call, or an errno that a program printed for a path,
//! an address or an operation), a policy that forbids exactly that, and permissions that would have
//! allowed it. A word in the output or an exit code alone is never a fact. Everything here is a pure
//! function of values; what is on disk is asked through [`Disk`].
//!
//! A caller feeds each stream to a [`Collector`] as it passes, and when the command has ended gives
//! what [`Collector::finish`] returns, with the command, the policy and the watched calls, to
//! [`facts`]. [`corpus::score`] does the same with recorded runs.

mod collect;
pub mod command;
pub mod corpus;
mod judge;
pub mod read;
mod words;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::mode::Mode;

pub use collect::{Collector, KEPT_CAP, LINE_CAP, TAIL_CAP};
pub use judge::{Dialect, Inputs, MAX_FACTS, facts};

/// What kind of thing was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Creating, changing, removing, linking or renaming a file, or changing its metadata.
    FileWrite,
    /// Reading a file or listing a folder.
    FileRead,
    /// Executing a file.
    Exec,
    /// Reaching an address, or a socket by path or name.
    Network,
    /// Signalling or tracing a process.
    Process,
    /// Something that needs a privilege: `sudo`, `su`, a set-user-id program.
    Privilege,
    /// A system call that the filter refuses.
    Syscall,
    /// A limit of the policy that was hit.
    Limit,
}

/// What the fact rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The refused system call itself was seen.
    Kernel,
    /// A program printed an errno for a path, an address or an operation.
    Errno,
}

/// How sure the fact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Two independent things say so.
    Proven,
    /// One thing says so and nothing speaks against it.
    Likely,
}

/// One thing that the policy refused and that mattered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    /// What kind of thing was refused.
    pub class: Class,
    /// The operation in a word or two: `write`, `create`, `remove`, `rename`, `link`, `chmod`,
    /// `connect`, `read`, `execute`, …
    pub operation: String,
    /// The path that the command would see, resolved.
    pub path: Option<PathBuf>,
    /// The network address, socket name or host name.
    pub address: Option<String>,
    /// The errno's name, such as `EROFS`.
    pub errno: String,
    /// The narrowest mode that would allow it, if any does.
    pub allowed_under: Option<Mode>,
    /// What the fact rests on.
    pub evidence: Evidence,
    /// How sure it is.
    pub confidence: Confidence,
    /// The line of output that told it, for `errno` evidence.
    pub line: Option<String>,
}

/// One refused or doubtful system call, as the supervisor of a command saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The process that called, in the command's PID namespace.
    pub pid: i32,
    /// The call, by its name in the system call table.
    pub call: String,
    /// What it was about.
    pub target: Target,
    /// The errno that the call returned; 0 when it went on and only its effect is in doubt.
    pub errno: i32,
}

/// What a watched call was about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Target {
    /// An internet address, as in `127.0.0.1:80`.
    Inet {
        /// Address and port.
        address: std::net::SocketAddr,
        /// Whether it is a datagram socket.
        datagram: bool,
    },
    /// A UNIX socket by path, resolved in the command's view.
    SocketPath(Vec<u8>),
    /// A UNIX socket by abstract name, without its leading NUL.
    SocketName(Vec<u8>),
}

/// What a verdict needs to know of the host: asked when the command has ended, as the caller's user.
pub trait Disk {
    /// The path with every symbolic link resolved, as far as it exists; the missing rest is appended.
    /// `None` when a component can't be searched.
    fn resolve(&self, path: &Path) -> Option<PathBuf>;
    /// Whether the file's own permissions let this user do that, were there no policy.
    fn permits(&self, path: &Path, wish: Wish) -> Permission;
    /// Whether something outside of the confinement listens at this address.
    fn listens(&self, target: &Target) -> bool;
    /// What is at this path, symbolic links followed.
    fn kind(&self, _path: &Path) -> Kind {
        Kind::Unknown
    }
    /// The file system (`st_dev`) of the path, or of the folder where it would be.
    fn device(&self, _path: &Path) -> Option<u64> {
        None
    }
    /// Whether this user may signal the process with this id outside of the confinement.
    fn process(&self, _pid: i32) -> Permission {
        Permission::Unknown
    }
}

/// What someone wished to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wish {
    /// Read the file or list the folder.
    Read,
    /// Change the file's content, creating it if it isn't there.
    Write,
    /// Create, remove or rename this name in its folder.
    Name,
    /// Change mode, owner, times or attributes.
    Metadata,
    /// Execute the file.
    Execute,
}

/// What the file's own permissions say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// They allow it.
    Allowed,
    /// They refuse it, or something of another kind stands in the way (a folder, a missing parent).
    Refused,
    /// They can't be known.
    Unknown,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nothing.
    Missing,
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A FIFO, a device or a socket: mounts don't govern writing to it.
    Special,
    /// It can't be known.
    Unknown,
}
