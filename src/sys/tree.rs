//! Attributes of mounts.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// What `mount_setattr(2)` adds to a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountAttributes {
    /// `MOUNT_ATTR_RDONLY`.
    pub read_only: bool,
    /// `MOUNT_ATTR_NODEV`.
    pub no_devices: bool,
    /// `MOUNT_ATTR_NOSUID`.
    pub no_setuid: bool,
    /// `MOUNT_ATTR_NOEXEC`.
    pub no_exec: bool,
    /// `MS_PRIVATE`: nothing propagates in or out.
    pub private: bool,
    /// Every mount below as well.
    pub recursive: bool,
}

/// `mount_setattr(2)` on the mount that `mount` is a descriptor of (Linux 5.12).
///
/// # Errors
/// What the call says; `ENOSYS` before Linux 5.12.
pub fn set_mount_attributes(mount: impl AsFd, add: MountAttributes) -> Result<(), Errno> {
    let mut set = 0;
    for (wanted, bit) in [
        (add.read_only, libc::MOUNT_ATTR_RDONLY),
        (add.no_devices, libc::MOUNT_ATTR_NODEV),
        (add.no_setuid, libc::MOUNT_ATTR_NOSUID),
        (add.no_exec, libc::MOUNT_ATTR_NOEXEC),
    ] {
        if wanted {
            set |= bit;
        }
    }
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: if add.private { libc::MS_PRIVATE } else { 0 },
        userns_fd: 0,
    };
    let mut flags = libc::AT_EMPTY_PATH;
    if add.recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the attributes live over the call and their true size is passed; the path is an empty C
    // string, which AT_EMPTY_PATH allows.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    Errno::result(done).map(drop)
}
