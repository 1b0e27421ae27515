//! Seccomp filters and their user notifications (`seccomp(2)`, `seccomp_unotify(2)`).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::unistd::Pid;

/// A stopped call that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Names the notification; stale when the caller is gone.
    pub id: u64,
    /// The calling thread, in the listener's PID namespace.
    pub thread: Pid,
    /// The number of the call.
    pub call: i64,
    /// Its arguments as they stood in the registers.
    pub arguments: [u64; 6],
}

/// What becomes of the stopped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It goes on unchanged.
    Continue,
    /// It returns this value without running.
    Value(i64),
    /// It fails with this errno without running.
    Fail(Errno),
}

/// Adds a filter to this thread. Needs no_new_privs or `CAP_SYS_ADMIN`.
///
/// # Errors
/// What `seccomp(2)` says.
pub fn install_filter(program: &[u64]) -> Result<(), Errno> {
    seccomp(program, 0).map(drop)
}

/// Adds a filter whose `SECCOMP_RET_USER_NOTIF` calls wait for an answer through the returned
/// descriptor. After it was received, only a deadly signal interrupts a waiting call.
///
/// # Errors
/// `EBUSY` when a filter of this thread has a listener already, `EINVAL` before Linux 5.19.
pub fn install_listener(program: &[u64]) -> Result<OwnedFd, Errno> {
    const WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
    let fd = seccomp(
        program,
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE_RECV,
    )?;
    let fd = libc::c_int::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel made this descriptor in this very call, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn seccomp(program: &[u64], flags: libc::c_ulong) -> Result<libc::c_long, Errno> {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    // SAFETY: a `sock_filter` is eight bytes, each u64 holds one in its memory layout, and the kernel
    // copies them during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        )
    };
    Errno::result(done)
}

/// Takes the next notification; blocks when there is none.
///
/// # Errors
/// `ENOENT` when the caller was killed in the meantime.
pub fn receive(listener: impl AsFd) -> Result<Notification, Errno> {
    // SAFETY: all zeroes is a valid value of this plain structure, and what the kernel demands.
    let mut raw: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the request's size is that of the structure, which outlives the call.
    let done = unsafe {
        libc::ioctl(
            listener.as_fd().as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut raw,
        )
    };
    Errno::result(done)?;
    Ok(Notification {
        id: raw.id,
        thread: Pid::from_raw(libc::pid_t::try_from(raw.pid).unwrap_or(0)),
        call: i64::from(raw.data.nr),
        arguments: raw.data.args,
    })
}

/// Answers a notification.
///
/// # Errors
/// `ENOENT` when the caller is gone.
pub fn answer(listener: impl AsFd, id: u64, reply: Reply) -> Result<(), Errno> {
    const CONTINUE: u32 = 1;
    let mut raw = libc::seccomp_notif_resp {
        id,
        val: 0,
        error: 0,
        flags: 0,
    };
    match reply {
        Reply::Continue => raw.flags = CONTINUE,
        Reply::Value(value) => raw.val = value,
        Reply::Fail(errno) => raw.error = -(errno as i32),
    }
    // SAFETY: the request's size is that of the structure, which outlives the call.
    let done = unsafe {
        libc::ioctl(
            listener.as_fd().as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw mut raw,
        )
    };
    Errno::result(done).map(drop)
}

/// Whether the caller of a notification still waits: what was read of it before this is its own.
pub fn is_pending(listener: impl AsFd, id: u64) -> bool {
    // SAFETY: the kernel reads eight bytes from the pointer, which outlives the call.
    let done = unsafe {
        libc::ioctl(
            listener.as_fd().as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        )
    };
    done == 0
}
