//! From a [`Command`] to what `execve` takes.
//!
//! Rule: shell text of any length works. The kernel takes at most [`ARGUMENT_BYTES`] in one argument, so
//! longer text travels in a descriptor that the shell reads and closes before it runs the first line.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::AccessFlags;
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};

use crate::outcome::{NeverRan, NeverRanCode};
use crate::request::Command;

/// The longest argument that `execve` takes (`MAX_ARG_STRLEN` without its final NUL).
pub(crate) const ARGUMENT_BYTES: usize = 32 * 4096 - 1;

/// Where programs are looked up when the command's environment has no PATH.
const FALLBACK_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The shell text that is too long for an argument, if it is.
pub(crate) fn script(command: &Command) -> Option<&[u8]> {
    match command {
        Command::Shell(text) if text.len() > ARGUMENT_BYTES => Some(text.as_bytes()),
        Command::Shell(_) | Command::Program { .. } => None,
    }
}

/// The argument vector; its first word is the program, still to be looked up. When [`script`] gives
/// something, the shell finds it at the descriptor `script_fd`, which it must inherit, and which none of
/// its children does.
pub(crate) fn argv(command: &Command, script_fd: RawFd) -> Vec<OsString> {
    match command {
        Command::Shell(text) => {
            let text = match script(command) {
                Some(_) => format!("eval \"$(</dev/fd/{script_fd})\" {script_fd}<&-").into(),
                None => text.clone(),
            };
            // Without --norc, bash reads ~/.bashrc where it takes itself for the child of a remote shell.
            vec!["bash".into(), "--norc".into(), "-c".into(), text]
        }
        Command::Program { program, args } => {
            std::iter::once(program).chain(args).cloned().collect()
        }
    }
}

/// A read-only file in memory with these bytes, positioned at its start, closed on exec.
///
/// # Errors
/// The kernel refuses it, or memory is short.
pub(crate) fn sealed(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(errno)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::io::write(&file, rest) {
            Ok(written) => rest = &rest[written..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    rustix::fs::seek(&file, SeekFrom::Start(0)).map_err(errno)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(errno)?;
    Ok(file)
}

/// The number of a script's descriptor, as [`argv`] wants it; any number when there is none.
pub(crate) fn script_number(script: Option<&OwnedFd>) -> RawFd {
    script.map_or(-1, AsRawFd::as_raw_fd)
}

/// Where `program` lies: itself when it names a path, else the first executable file of that name on the
/// PATH of the command's environment. Relative entries start at `workdir`, as they would for the command.
///
/// # Errors
/// [`NeverRanCode::SpawnFailed`] at the step `execve`: not found, or found and not executable.
pub(crate) fn find_program(
    program: &OsStr,
    env: &[(OsString, OsString)],
    workdir: &Path,
) -> Result<PathBuf, NeverRan> {
    if program.as_bytes().contains(&b'/') {
        let path = workdir.join(program);
        return executable(&path)
            .map(|()| path)
            .map_err(|errno| failed(program, errno));
    }
    let path = env.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or(OsStr::new(FALLBACK_PATH), |(_, value)| value);
    let mut worst = Errno::ENOENT;
    for folder in std::env::split_paths(path) {
        let candidate = workdir.join(folder).join(program);
        match executable(&candidate) {
            Ok(()) if !program.is_empty() => return Ok(candidate),
            Err(Errno::EACCES) => worst = Errno::EACCES,
            Ok(()) | Err(_) => {}
        }
    }
    Err(failed(program, worst))
}

/// What is reported when `execve` of `program` failed.
pub(crate) fn failed(program: &OsStr, errno: Errno) -> NeverRan {
    let program = program.to_string_lossy();
    let (fact, remedy) = if errno == Errno::ENOENT {
        (
            "program not found",
            "install it, correct its name or give its full path",
        )
    } else if errno == Errno::EACCES {
        (
            "program is not executable",
            "make it executable (chmod +x), or run it through its interpreter",
        )
    } else if errno == Errno::E2BIG {
        (
            "arguments and environment are too long",
            "pass long values in a file, or run the command as shell text",
        )
    } else {
        ("program could not be started", "")
    };
    NeverRan {
        message: format!("{fact}: {program} ({})", errno.desc()),
        ..NeverRan::step(NeverRanCode::SpawnFailed, "execve", errno, remedy)
    }
}

/// The errno of an error of the standard library; EINVAL for what never reached the kernel.
pub(crate) fn os_error(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EINVAL))
}

fn executable(path: &Path) -> Result<(), Errno> {
    let facts = std::fs::metadata(path)
        .map_err(|error| os_error(&error))?;
    if !facts.is_file() {
        return Err(Errno::EACCES);
    }
    nix::unistd::eaccess(path, AccessFlags::X_OK)
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
