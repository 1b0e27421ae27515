//! What a child of this process does between fork and exec.
//!
//! Rule: only async-signal-safe calls, no allocation, no lock: other threads of the harness may have
//! held any lock when it forked.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes the child of `command` the leader of a session of its own, without a controlling terminal, and
/// lets it keep standard input, output and error, and `script` where given, and no other descriptor.
///
/// Linux before 5.11 has no `close_range` that marks descriptors; there only those close that were
/// opened with `O_CLOEXEC`, as every descriptor of Rust's standard library is.
pub(crate) fn detach(command: &mut Command, script: Option<RawFd>) {
    let steps = move || {
        nix::unistd::setsid()?;
        mark_close_on_exec(3)?;
        if let Some(script) = script {
            keep_on_exec(script)?;
        }
        Ok(())
    };
    // SAFETY: the closure makes three system calls and touches no memory but its own copy of `script`.
    unsafe { command.pre_exec(steps) };
}

/// Watches a descriptor for being readable, as a pidfd is when its process has ended.
///
/// # Errors
/// The kernel can't poll it.
pub(crate) fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, is always the same number, and is closed only when the AsyncFd that
    // owns it from here on drops it.
    let watched = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
    Ok(watched?)
}

fn mark_close_on_exec(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range takes three integers; with CLOSE_RANGE_CLOEXEC it closes nothing now.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    match nix::errno::Errno::result(done) {
        Ok(_) | Err(nix::errno::Errno::ENOSYS | nix::errno::Errno::EINVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn keep_on_exec(descriptor: RawFd) -> io::Result<()> {
    // SAFETY: F_SETFD with 0 clears a flag of a descriptor number and follows no pointer.
    let done = unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
    nix::errno::Errno::result(done)?;
    Ok(())
}
