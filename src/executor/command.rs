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
    crate::cell::memory_file(name, bytes).map_err(|error| Errno::from_raw(error.raw_os_error()))
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
            // Not when it is a folder of the PATH that can't be searched.
            Err(Errno::EACCES) if candidate.is_file() => worst = Errno::EACCES,
            Ok(()) | Err(_) => {}
        }
    }
    Err(failed(program, worst))
}

/// Where the shell is looked for before PATH, which may lead through folders that a command can write.
const SHELLS: [&str; 2] = ["/bin/bash", "/usr/bin/bash"];

/// The shell or program of a command, as this process finds it.
///
/// # Errors
/// As [`find_program`].
pub(crate) fn find(
    command: &Command,
    env: &[(OsString, OsString)],
    workdir: &Path,
) -> Result<PathBuf, NeverRan> {
    match command {
        Command::Shell(_) => SHELLS
            .iter()
            .map(PathBuf::from)
            .find(|shell| executable(shell).is_ok())
            .map_or_else(|| find_program(OsStr::new("bash"), env, workdir), Ok),
        Command::Program { program, .. } => find_program(program, env, workdir),
    }
}

/// Where the shell or program of a command may lie, in the order of the search: for a command that sees
/// other files than this process.
pub(crate) fn candidates(
    command: &Command,
    env: &[(OsString, OsString)],
    workdir: &Path,
) -> Vec<PathBuf> {
    let (program, mut found) = match command {
        Command::Shell(_) => (OsStr::new("bash"), SHELLS.map(PathBuf::from).to_vec()),
        Command::Program { program, .. } => (program.as_os_str(), Vec::new()),
    };
    if program.is_empty() || program.as_bytes().contains(&b'/') {
        return vec![workdir.join(program)];
    }
    let path = env.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or(OsStr::new(FALLBACK_PATH), |(_, value)| value);
    found.extend(std::env::split_paths(path).map(|folder| workdir.join(folder).join(program)));
    found
}

/// What is reported when `execve` failed for a program that is there and executable.
pub(crate) fn failed_to_run(program: &OsStr, errno: Errno) -> NeverRan {
    if errno != Errno::ENOENT {
        return failed(program, errno);
    }
    NeverRan {
        message: format!(
            "the interpreter of {} was not found ({})",
            program.to_string_lossy(),
            errno.desc()
        ),
        ..NeverRan::step(
            NeverRanCode::SpawnFailed,
            "execve",
            errno,
            "correct its first line, or install the interpreter or loader that it names",
        )
    }
}

/// Whether a command can start in this folder.
///
/// # Errors
/// [`NeverRanCode::InvalidArgs`]: it is relative, missing, not a folder, or out of reach.
pub(crate) fn check_workdir(workdir: &Path) -> Result<(), NeverRan> {
    let (fact, remedy) = if workdir.is_relative() {
        ("is not absolute", "give its full path")
    } else {
        match std::fs::metadata(workdir) {
            Ok(facts) if !facts.is_dir() => ("is not a folder", ""),
            Ok(_) if nix::unistd::eaccess(workdir, AccessFlags::X_OK).is_ok() => return Ok(()),
            Ok(_) => ("can't be reached", ""),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                ("can't be reached", "")
            }
            Err(_) => ("does not exist", ""),
        }
    };
    Err(NeverRan::refused(
        NeverRanCode::InvalidArgs,
        format!("working directory {fact}: {}", workdir.display()),
        remedy,
    ))
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
    let facts = std::fs::metadata(path).map_err(|error| os_error(&error))?;
    if !facts.is_file() {
        return Err(Errno::EACCES);
    }
    nix::unistd::eaccess(path, AccessFlags::X_OK)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn shell(length: usize) -> Command {
        Command::Shell("x".repeat(length).into())
    }

    #[test]
    fn text_up_to_the_longest_argument_is_an_argument_and_longer_text_a_script() {
        let fits = shell(ARGUMENT_BYTES);
        assert_eq!(script(&fits), None);
        assert_eq!(argv(&fits, 9)[..3], ["bash", "--norc", "-c"]);
        assert_eq!(argv(&fits, 9)[3].len(), 131_071);
        let long = shell(ARGUMENT_BYTES + 1);
        assert_eq!(script(&long).map(<[u8]>::len), Some(131_072));
        assert_eq!(
            argv(&long, 9),
            ["bash", "--norc", "-c", "eval \"$(</dev/fd/9)\" 9<&-"]
        );
    }

    #[test]
    fn a_sealed_file_reads_from_its_start_and_can_not_be_changed() {
        let mut file = std::fs::File::from(sealed("test", b"abc").unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
        let error = std::io::Write::write(&mut file, b"d").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert_eq!(
            rustix::io::fcntl_getfd(&file).unwrap(),
            rustix::io::FdFlags::CLOEXEC
        );
    }

    #[test]
    fn the_first_executable_of_the_path_is_taken_and_a_plain_file_is_told_apart() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for (folder, mode) in [("a", 0o644), ("b", 0o755), ("c", 0o755)] {
            let folder = dir.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("tool"), "").unwrap();
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.join("tool"), mode).unwrap();
        }
        let find = |path: &str| {
            let env = [("PATH".into(), path.into())];
            find_program("tool".as_ref(), &env, dir.path())
                .map_err(|error| error.errno.unwrap_or_default())
        };
        // Entries are relative to the working directory here; `.` has no such file.
        assert_eq!(find("a:b:c"), Ok(dir.path().join("b/tool")));
        assert_eq!(find(".:c"), Ok(dir.path().join("c/tool")));
        assert_eq!(find(".:a"), Err("EACCES".to_owned()));
        assert_eq!(find("."), Err("ENOENT".to_owned()));
        assert_eq!(
            find_program("a/tool".as_ref(), &[], dir.path()).map_err(|error| error.message),
            Err("program is not executable: a/tool (Permission denied)".to_owned())
        );
    }
}
