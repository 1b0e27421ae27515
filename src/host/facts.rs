//! What this host gives: read once, or learned when a set-up failed.

use std::fs::File;
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Gid, Uid};

use crate::sys;

/// Facts of the host that a plan depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// The caller's effective user.
    pub uid: u32,
    /// The caller's effective group.
    pub gid: u32,
    /// The Landlock ABI; 0: none.
    pub landlock_abi: u32,
    /// Whether user, mount, PID and network namespaces can be had.
    pub namespaces: Availability,
    /// Whether a fresh `/proc` can be mounted in a new PID namespace.
    pub own_proc: Availability,
    /// Whether a seccomp listener can be had.
    pub listener: Availability,
    /// Changes of the mount table that were seen.
    pub mount_table: u64,
}

/// Whether the host gives something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It does, or nothing has said otherwise yet: the first command tries.
    Assumed,
    /// It was refused at this step.
    Refused {
        /// The step that failed.
        step: String,
        /// The errno's name.
        errno: String,
    },
}

impl Availability {
    /// Whether it may be used.
    pub fn is_assumed(&self) -> bool {
        *self == Availability::Assumed
    }
}

/// Watches the mount table of this thread (`proc_pid_mountinfo(5)`).
#[derive(Debug)]
pub struct MountTable(Option<File>);

impl MountTable {
    /// Starts to watch. Without `/proc` no change is ever seen.
    pub fn watch() -> MountTable {
        MountTable(File::open("/proc/thread-self/mountinfo").ok())
    }

    /// Whether it has changed since the last look.
    pub fn has_changed(&self) -> bool {
        self.0.as_ref().is_some_and(|file| {
            let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
            poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        })
    }
}

impl HostFacts {
    /// Reads what can be read, and assumes what only doing can tell.
    pub fn read() -> HostFacts {
        HostFacts {
            uid: Uid::effective().as_raw(),
            gid: Gid::effective().as_raw(),
            landlock_abi: sys::landlock_abi(),
            namespaces: Availability::Assumed,
            own_proc: Availability::Assumed,
            listener: Availability::Assumed,
            mount_table: 0,
        }
    }
}
