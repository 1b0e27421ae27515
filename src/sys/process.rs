//! Making processes and replacing them.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::unistd::Pid;

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Child {
    /// The new process.
    Here,
    /// The old process; the child has this id.
    There(Pid),
}

/// `fork(2)` of a process that has one thread.
///
/// # Errors
/// What `clone(2)` says.
pub fn fork() -> Result<Child, Errno> {
    fork_into(0)
}

/// Whether this process has one thread, so that a fork of it may do anything.
pub fn is_single_threaded() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// `clone(2)` as a fork of a process that has one thread, with namespace flags (`CLONE_NEW*`).
///
/// # Errors
/// What `clone(2)` says.
pub fn fork_into(namespaces: libc::c_int) -> Result<Child, Errno> {
    let flags = libc::c_long::from(namespaces | libc::SIGCHLD);
    // SAFETY: no stack and no CLONE_VM: the child gets a copy of this process and returns here. The cell
    // and its inits, the only callers, are single-threaded, so no lock is held by a thread that the
    // child lacks.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match libc::pid_t::try_from(Errno::result(pid)?) {
        Ok(0) => Ok(Child::Here),
        Ok(pid) => Ok(Child::There(Pid::from_raw(pid))),
        Err(_) => Err(Errno::EOVERFLOW),
    }
}

/// `execve(2)`. Returns only when it failed.
pub fn execve(path: &CStr, argv: &[CString], env: &[CString]) -> Errno {
    match nix::unistd::execve(path, argv, env) {
        Ok(never) => {
            let never: Infallible = never;
            match never {}
        }
        Err(errno) => errno,
    }
}

/// `_exit(2)`: no destructors, no buffers.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(status) }
}

/// Marks every descriptor from `first` on as close-on-exec (`close_range(2)`).
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `EINVAL` before 5.11.
pub fn close_from(first: u32) -> Result<(), Errno> {
    // SAFETY: only flags of descriptors change; none is closed under an owner.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    Errno::result(done).map(drop)
}

/// Closes every descriptor from `first` on. For the start of a process that owns none of them yet.
///
/// # Errors
/// `ENOSYS` before Linux 5.9.
pub fn close_all_from(first: u32) -> Result<(), Errno> {
    // SAFETY: the caller, the cell at its very start, has opened nothing, so no owner loses a descriptor.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    Errno::result(done).map(drop)
}

/// Closes every descriptor above 2 but those in `keep`. For a fork that never returns to its owners.
///
/// # Errors
/// `ENOSYS` before Linux 5.9.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut kept: Vec<u32> = keep
        .iter()
        .map(|fd| fd.as_raw_fd().cast_unsigned())
        .collect();
    kept.sort_unstable();
    let mut first: u32 = 3;
    for fd in kept.into_iter().chain([u32::MAX]) {
        if first < fd {
            // SAFETY: the caller ends by `_exit`, so no owner of a closed descriptor runs any more.
            let done = unsafe { libc::syscall(libc::SYS_close_range, first, fd - 1, 0) };
            Errno::result(done)?;
        }
        first = fd.saturating_add(1);
    }
    Ok(())
}

/// Puts a copy of a descriptor at a number, without close-on-exec (`dup2(2)`).
///
/// # Errors
/// What `dup2(2)` says.
pub fn place_descriptor(from: impl AsFd, at: i32) -> Result<(), Errno> {
    // SAFETY: used by a process that is about to execve, whose own descriptors were moved above `at`.
    let done = unsafe { libc::dup2(from.as_fd().as_raw_fd(), at) };
    Errno::result(done)?;
    // dup2 leaves the flags of a descriptor that is in its place already.
    // SAFETY: as above; the number is open now, and F_SETFD follows no pointer.
    let done = unsafe { libc::fcntl(at, libc::F_SETFD, 0) };
    Errno::result(done).map(drop)
}

/// Brings the loopback interface of this network namespace up (`netdevice(7)`).
///
/// # Errors
/// What `socket(2)` or the ioctl says.
pub fn loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the request names an interface with a terminated name and carries flags, as
    // SIOCSIFFLAGS reads it.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    Errno::result(done).map(drop)
}

/// Gives every signal its default action and unblocks all, as a program expects at its start.
pub fn reset_signals() {
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL installs no handler; the two signals that can't be changed only fail.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    // SAFETY: the set is initialised by `sigemptyset` before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// The Landlock ABI of the running kernel; 0 where it is missing or disabled (`landlock(7)`).
pub fn landlock_abi() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: a null attribute of size 0 with this flag only asks for the version.
    let abi = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            VERSION,
        )
    };
    u32::try_from(abi).unwrap_or(0)
}
