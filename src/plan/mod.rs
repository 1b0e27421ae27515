//! The plan: policy and host facts become every mount, Landlock rule, filter word and limit.
//!
//! Rule: planning is a pure function of values; what is on disk has been put into the policy and the
//! identities before. A plan is compared as a whole, so equal plans share one view.

pub mod filters;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::facts::HostFacts;
use crate::policy::{Network, Policy};

/// How much of the policy the host enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Every file effect that the mode promises is governed.
    Full,
    /// A weaker host governs a subset; the report says what is missing.
    Partial,
}

/// What the plan enforces, and what it can't on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforcement {
    /// How much.
    pub level: Level,
    /// What isn't governed, a phrase each; empty when the level is full.
    pub missing: Vec<String>,
}

/// What the file system said of a path when the policy was made: its device, inode and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Whether it is a folder.
    pub folder: bool,
    /// Its owner.
    pub owner: u32,
}

/// The identities of the paths of a policy: gathered before planning.
pub type Identities = BTreeMap<PathBuf, Identity>;

/// One mount of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mount {
    /// Where it goes.
    pub target: CString,
    /// What goes there.
    pub what: What,
}

/// What a mount shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum What {
    /// The host's own file or folder at the same path.
    Own {
        /// Whether it may be written.
        writable: bool,
        /// It must still be this one, or the set-up fails.
        identity: Identity,
    },
    /// Something that can't be read, of the same kind as what it covers.
    Mask {
        /// Whether it covers a folder.
        folder: bool,
    },
    /// The session's private scratch.
    Scratch {
        /// Bytes that it may hold; `None`: the kernel's default, half of the memory.
        bytes: Option<u64>,
    },
    /// A minimal `/dev`.
    Devices,
}

/// The mounts that all commands of one policy share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// Counts the changes of the host's mount table: a view shows the mounts of its time.
    pub mount_table: u64,
    /// In the order in which they are made: a folder before what lies in it.
    pub mounts: Vec<Mount>,
}

/// Rights of one path for Landlock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Right {
    /// The path in the view.
    pub path: CString,
    /// What may be done at and below it.
    pub grant: Grant,
}

/// What Landlock grants at and below a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Grant {
    /// Every right that changes files.
    Write,
    /// Writing existing files alone.
    WriteExisting,
    /// Writing existing devices and their ioctls.
    Devices,
}

/// The Landlock ruleset of a command. Only rights that change something are handled; reading is free.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Landlock {
    /// The ABI to use.
    pub abi: u32,
    /// Where something may be changed.
    pub rights: Vec<Right>,
    /// Refuse abstract sockets of other domains.
    pub scope_abstract_sockets: bool,
    /// Refuse signals to other domains.
    pub scope_signals: bool,
    /// Refuse TCP.
    pub refuse_tcp: bool,
}

/// How the processes of a command are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tree {
    /// A PID namespace of its own.
    PidNamespace {
        /// What its `/proc` is.
        proc: Proc,
    },
    /// A child subreaper: what it started is found through `/proc`.
    Subreaper,
}

/// The `/proc` of a command with a PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Proc {
    /// Fresh.
    Fresh,
    /// Fresh and read-only: user 0 owns the host's settings there.
    FreshReadOnly,
    /// None can be mounted: an empty folder hides the host's.
    Empty,
}

/// Everything that the cell needs to know to run commands of one policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plan {
    /// The mounts; `None` where namespaces can't be had.
    pub view: Option<View>,
    /// How the processes are kept together.
    pub tree: Tree,
    /// The Landlock ruleset; `None` where the kernel has none.
    pub landlock: Option<Landlock>,
    /// Filters without a listener, each a program of eight-byte instructions.
    pub filters: Vec<Vec<u64>>,
    /// The filter whose calls the command's init answers; `None` where no listener can be had.
    pub supervised: Option<Vec<u64>>,
    /// Folders whose UNIX sockets are the session's own.
    pub socket_places: Vec<CString>,
    /// Whether the session has a network namespace of its own.
    pub own_network: bool,
    /// Capabilities that are kept, a bit each as in `capabilities(7)`; 0 but for user 0 with writable
    /// roots that belong to others.
    pub capabilities: u64,
    /// `RLIMIT_NPROC`.
    pub max_processes: Option<u64>,
    /// `RLIMIT_NOFILE`.
    pub max_open_files: Option<u64>,
    /// `RLIMIT_FSIZE`.
    pub max_file_size: Option<u64>,
    /// A folder to make for `XDG_RUNTIME_DIR`.
    pub runtime_folder: Option<CString>,
}

/// A plan and what it amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// For the cell.
    pub plan: Plan,
    /// For the report.
    pub enforcement: Enforcement,
}

/// Why no plan can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Neither namespaces nor Landlock.
    #[error("this host gives neither namespaces ({step}: {errno}) nor Landlock")]
    NoBackend {
        /// The step that failed.
        step: String,
        /// The errno's name.
        errno: String,
    },
    /// A call of the policy has no number on this machine, or a filter can't be built.
    #[error("{0}")]
    Filter(String),
    /// A path with a NUL byte.
    #[error("a path holds a NUL byte: {0:?}")]
    Path(PathBuf),
}

const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;

/// Makes the plan of a policy on a host. `session_scratch` is the host folder that stands in for the
/// private `/tmp` where namespaces can't be had.
///
/// # Errors
/// No backend, or a filter that can't be built.
pub fn plan(
    policy: &Policy,
    identities: &Identities,
    facts: &HostFacts,
    session_scratch: &Path,
) -> Result<Planned, PlanError> {
    let namespaces = facts.namespaces.is_assumed();
    if !namespaces && facts.landlock_abi == 0 {
        let crate::host::facts::Availability::Refused { step, errno } = facts.namespaces.clone()
        else {
            unreachable!("not assumed")
        };
        return Err(PlanError::NoBackend { step, errno });
    }
    let own_network = namespaces && policy.network == Network::None;
    let foreign_root = policy
        .writable
        .iter()
        .filter_map(|place| identities.get(&place.path))
        .any(|identity| identity.owner != 0);
    let capabilities = if facts.uid == 0 && namespaces && foreign_root {
        (1 << CAP_CHOWN) | (1 << CAP_DAC_OVERRIDE) | (1 << CAP_FOWNER)
    } else {
        0
    };
    let supervised = supervised(facts, namespaces);
    let filters = filters::refusals(
        policy,
        filters::Arguments {
            special_bits: capabilities == 0,
            only_ids: (namespaces && facts.uid != 0).then_some((facts.uid, facts.gid)),
            unix: supervised,
            inet: own_network || policy.network == Network::Host,
        },
    )?;
    let plan = Plan {
        view: if namespaces {
            Some(view(policy, identities, facts)?)
        } else {
            None
        },
        tree: if !namespaces {
            Tree::Subreaper
        } else {
            Tree::PidNamespace {
                proc: match (facts.own_proc.is_assumed(), facts.uid) {
                    (false, _) => Proc::Empty,
                    (true, 0) => Proc::FreshReadOnly,
                    (true, _) => Proc::Fresh,
                },
            }
        },
        landlock: uses_landlock(facts, namespaces)
            .then(|| landlock(policy, facts, namespaces, session_scratch))
            .transpose()?,
        filters,
        supervised: supervised.then(filters::supervision),
        socket_places: if namespaces {
            policy
                .scratch
                .iter()
                .map(|path| c_path(path))
                .collect::<Result<_, _>>()?
        } else {
            vec![c_path(session_scratch)?]
        },
        own_network,
        capabilities,
        max_processes: policy.limits.processes,
        max_open_files: policy.limits.open_files,
        max_file_size: policy.limits.file_size,
        runtime_folder: namespaces
            .then(|| c_path(&runtime_folder(facts.uid)))
            .transpose()?,
    };
    let missing = missing(policy, facts, namespaces);
    Ok(Planned {
        plan,
        enforcement: Enforcement {
            level: if missing.is_empty() {
                Level::Full
            } else {
                Level::Partial
            },
            missing,
        },
    })
}

/// The private folder that confined commands find in `XDG_RUNTIME_DIR`.
pub fn runtime_folder(uid: u32) -> PathBuf {
    PathBuf::from(format!("/run/user/{uid}"))
}

fn c_path(path: &Path) -> Result<CString, PlanError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| PlanError::Path(path.to_owned()))
}

fn view(policy: &Policy, identities: &Identities, facts: &HostFacts) -> Result<View, PlanError> {
    // At one path the later kind wins, as in `Policy::access`.
    let mut by_path: BTreeMap<(usize, &Path), What> = BTreeMap::new();
    let depth = |path: &Path| path.components().count();
    let dev = Path::new("/dev");
    by_path.insert((depth(dev), dev), What::Devices);
    for path in &policy.scratch {
        by_path.insert(
            (depth(path), path),
            What::Scratch {
                bytes: policy.limits.scratch_bytes,
            },
        );
    }
    let own = |writable| {
        move |identity: &Identity| What::Own {
            writable,
            identity: *identity,
        }
    };
    let groups = [
        (&policy.writable, true),
        (&policy.pinned, true),
        (&policy.visible, false),
        (&policy.protected, false),
    ];
    for (places, writable) in groups {
        for place in places {
            if let Some(what) = identities.get(&place.path).map(own(writable)) {
                by_path.insert((depth(&place.path), &place.path), what);
            }
        }
    }
    for place in &policy.hidden {
        if let Some(identity) = identities.get(&place.path) {
            let what = What::Mask {
                folder: identity.folder,
            };
            by_path.insert((depth(&place.path), &place.path), what);
        }
    }
    let mounts = by_path
        .into_iter()
        .map(|((_, path), what)| {
            Ok(Mount {
                target: c_path(path)?,
                what,
            })
        })
        .collect::<Result<_, PlanError>>()?;
    Ok(View {
        mount_table: facts.mount_table,
        mounts,
    })
}

fn landlock(
    policy: &Policy,
    facts: &HostFacts,
    namespaces: bool,
    session_scratch: &Path,
) -> Result<Landlock, PlanError> {
    let mut rights = Vec::new();
    let mut allow = |path: &Path, grant: Grant| -> Result<(), PlanError> {
        rights.push(Right {
            path: c_path(path)?,
            grant,
        });
        Ok(())
    };
    for place in &policy.writable {
        allow(&place.path, Grant::Write)?;
    }
    if namespaces {
        for path in &policy.scratch {
            allow(path, Grant::Write)?;
        }
        allow(Path::new("/dev"), Grant::Devices)?;
        allow(Path::new("/proc"), Grant::WriteExisting)?;
    } else {
        allow(session_scratch, Grant::Write)?;
        for node in [
            "null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts",
        ] {
            allow(&Path::new("/dev").join(node), Grant::Devices)?;
        }
    }
    let own_network = namespaces && policy.network == Network::None;
    Ok(Landlock {
        abi: facts.landlock_abi,
        rights,
        // In a network namespace of its own a session has only its own abstract names, and commands of
        // one session may use each other's.
        scope_abstract_sockets: !own_network && facts.landlock_abi >= 6,
        scope_signals: facts.landlock_abi >= 6,
        refuse_tcp: !namespaces && policy.network == Network::None && facts.landlock_abi >= 4,
    })
}

/// ABI 1 refuses every move and link between two folders, which builds can't do without; beside the
/// mounts it would add named pipes alone.
fn uses_landlock(facts: &HostFacts, namespaces: bool) -> bool {
    facts.landlock_abi >= if namespaces { 2 } else { 1 }
}

/// Whether an init can judge `connect`: it needs a listener, and a `/proc` to tell sockets by path.
fn supervised(facts: &HostFacts, namespaces: bool) -> bool {
    facts.listener.is_assumed() && (facts.own_proc.is_assumed() || !namespaces)
}

fn missing(policy: &Policy, facts: &HostFacts, namespaces: bool) -> Vec<String> {
    let mut missing = Vec::new();
    let mut say = |words: &str| missing.push(words.to_owned());
    if !namespaces {
        say("changes of mode, owner, times and attributes of files outside");
        say("the host's processes, /tmp, /dev/shm and /run can be seen");
        say("the caller's System V and POSIX message queues, semaphores and shared memory");
        if !policy.hidden.is_empty() {
            say("hidden paths can be read");
        }
        if !policy.protected.is_empty() {
            say("protected paths in writable roots can be written");
        }
        if facts.landlock_abi < 3 {
            say("truncating files outside");
        }
        if facts.landlock_abi < 6 {
            say("signals to the caller's other processes");
        }
        if facts.landlock_abi < 2 {
            say("moving and linking files between folders is refused everywhere");
        }
    } else if facts.landlock_abi == 0 {
        say("writing to named pipes outside, for the kernel has no Landlock");
    } else if !uses_landlock(facts, namespaces) {
        say("writing to named pipes outside, for Landlock 1 would refuse moves between folders");
    }
    if !facts.own_proc.is_assumed() && namespaces {
        say("/proc is empty, for the host refuses a new one");
    }
    if !facts.listener.is_assumed() {
        say("UNIX sockets can't be used at all, for no seccomp listener can be had");
    } else if !supervised(facts, namespaces) {
        say("UNIX sockets can't be used at all, for a path can't be judged without /proc");
    }
    missing.extend(policy.gaps.iter().cloned());
    missing
}

#[cfg(test)]
mod tests;
