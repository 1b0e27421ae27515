//! The policy: profile, mode and workspace, in words: what may be touched.
//!
//! Rule: a policy is only made by [`Policy::build`]-like functions of this module, from canonical
//! paths; everything after it takes it as given.

pub mod build;
pub mod calls;
pub mod profile;
pub mod repositories;

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::mode::Mode;

pub use repositories::new_repositories;

/// Why a path is in the policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    /// It is the session's workspace.
    Workspace,
    /// `--writable` or its like on the command line, or the library's caller.
    Argument,
    /// A git directory of the workspace, linked from its `.git` file and pointing back.
    GitWorktree,
    /// A line of a profile.
    Profile {
        /// The profile's file, or `built-in workspace-write`.
        file: String,
        /// The line, counted from 1.
        line: usize,
    },
    /// Every confined command has it so.
    Builtin,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Workspace => f.write_str("the workspace"),
            Origin::Argument => f.write_str("an argument"),
            Origin::GitWorktree => f.write_str("the workspace's git directory"),
            Origin::Profile { file, line } => write!(f, "{file}:{line}"),
            Origin::Builtin => f.write_str("built in"),
        }
    }
}

/// A folder or file with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Canonical and absolute.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Why it is here.
    pub origin: Origin,
}

/// What a command may reach on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The session's own loopback.
    None,
    /// Whatever the host reaches.
    Host,
}

/// What to do when the host can't give everything that the mode promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Require {
    /// Run under what there is, and say what is missing.
    Partial,
    /// Refuse to run.
    Full,
}

/// Resource limits of one command; `None` leaves the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Processes and threads of the caller's user (`RLIMIT_NPROC`).
    pub processes: Option<u64>,
    /// Open files of one process (`RLIMIT_NOFILE`).
    pub open_files: Option<u64>,
    /// Bytes of one file (`RLIMIT_FSIZE`).
    pub file_size: Option<u64>,
    /// Bytes of each private scratch folder: `/tmp`, `/dev/shm` and `/run` may hold as much each.
    pub scratch_bytes: Option<u64>,
}

/// One group of refused system calls and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusedCalls {
    /// Names from the system call table.
    pub calls: Vec<String>,
    /// `EPERM`, or `ENOSYS` where programs have a fallback.
    pub errno: String,
    /// Why, in a few words.
    pub reason: String,
}

/// Which names of the environment pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Environment {
    /// Names that are removed, beside those that the scrub removes.
    pub remove: Vec<String>,
    /// Names that pass although the scrub would remove them.
    pub keep: Vec<String>,
    /// Variables that every command gets.
    pub set: Vec<(String, String)>,
}

/// The resolved policy of one mode in one workspace. All paths are canonical.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// The mode it is for.
    pub mode: Mode,
    /// The session's workspace.
    #[serde(serialize_with = "lossy")]
    pub workspace: PathBuf,
    /// Roots below which the command may write; empty in read-only mode.
    pub writable: Vec<Place>,
    /// Existing paths below writable roots that stay read-only.
    pub protected: Vec<Place>,
    /// Paths that don't exist yet but would be protected: watched for after each command.
    pub protected_absent: Vec<Place>,
    /// Existing folders between a writable root and a protected path, and git directories: writable, but
    /// they can't be renamed or removed, or another would take their place with what they protect.
    pub pinned: Vec<Place>,
    /// Symbolic links on the way to protected paths. A mount can't hold a link, so they are watched.
    pub protected_links: Vec<Place>,
    /// Existing paths that can't be read: secrets.
    pub hidden: Vec<Place>,
    /// Existing paths below private folders that stay visible: below `/run`, and in read-only mode the
    /// workspace. Such a path may itself be a link that leaves `/run`.
    pub visible: Vec<Place>,
    /// The caller's home, which `~` means in profiles; not canonical.
    #[serde(serialize_with = "lossy_option")]
    pub home: Option<PathBuf>,
    /// Private scratch folders, `/tmp`, `/dev/shm` and `/run`: writable in every confined mode.
    pub scratch: Vec<PathBuf>,
    /// What may be reached on the network.
    pub network: Network,
    /// System calls that are refused, by group.
    pub refused_calls: Vec<RefusedCalls>,
    /// Resource limits.
    pub limits: Limits,
    /// Rules for the environment.
    pub environment: Environment,
    /// What to do on a weaker host.
    pub require: Require,
    /// What isn't guarded although this policy means to, a phrase each: there is more of it than is looked
    /// at. The enforcement is partial then.
    pub gaps: Vec<String>,
}

/// What a policy says about one path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// The rule that decides.
    pub rule: Rule,
}

/// The rule that decides about a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Rule {
    /// No confinement in this mode.
    Unconfined,
    /// Hidden: unreadable and unwritable.
    Hidden(Place),
    /// Private scratch of the session.
    Scratch {
        /// The scratch folder.
        #[serde(serialize_with = "lossy")]
        path: PathBuf,
    },
    /// Below a writable root.
    Writable(Place),
    /// Protected below a writable root.
    Protected(Place),
    /// Visible below `/run`, read-only.
    Visible(Place),
    /// Nothing more specific: the host's files are readable and not writable.
    HostReadOnly,
}

impl Policy {
    /// What this policy says about `path`, which must be absolute and canonical: the deepest rule wins,
    /// and at equal depth the one that allows less.
    pub fn access(&self, path: &Path) -> Access {
        if !self.mode.is_confined() {
            return Access {
                read: true,
                write: true,
                rule: Rule::Unconfined,
            };
        }
        let depth = |place: &Path| place.components().count();
        // In this order a later rule wins at equal depth.
        let mut best: (usize, Access) = (
            0,
            Access {
                read: true,
                write: false,
                rule: Rule::HostReadOnly,
            },
        );
        let mut offer = |place: &Path, read: bool, write: bool, rule: Rule| {
            if path.starts_with(place) && depth(place) >= best.0 {
                best = (depth(place), Access { read, write, rule });
            }
        };
        for path in &self.scratch {
            offer(path, true, true, Rule::Scratch { path: path.clone() });
        }
        for place in &self.writable {
            offer(&place.path, true, true, Rule::Writable(place.clone()));
        }
        for place in &self.visible {
            offer(&place.path, true, false, Rule::Visible(place.clone()));
        }
        // What is absent can't be refused: its appearance is noticed afterwards.
        for place in &self.protected {
            offer(&place.path, true, false, Rule::Protected(place.clone()));
        }
        for place in &self.hidden {
            offer(&place.path, false, false, Rule::Hidden(place.clone()));
        }
        best.1
    }
}

/// A name that isn't UTF-8 has no true form in JSON; broken bytes are replaced.
fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

fn lossy_option<S: serde::Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    path.as_ref()
        .map(|path| path.to_string_lossy())
        .serialize(serializer)
}

#[cfg(test)]
mod tests;
