//! Canonical paths and small files.
//!
//! Rule: a path says which links it went through, because a link inside a writable root is something
//! that a command could have made.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The path without links, `.` and `..`.
    pub path: PathBuf,
    /// The canonical names of the links on the way, in the order in which they were followed.
    pub links: Vec<PathBuf>,
    /// Whether the path exists; when it doesn't, the missing rest is appended as it was written.
    pub exists: bool,
}

/// Follows every link of an absolute path.
///
/// # Errors
/// `ELOOP` after 40 links, `EINVAL` for a relative path, and whatever the kernel says about a component
/// that can't be looked up; a missing component is no error.
pub fn resolve(path: &Path) -> io::Result<Resolved> {
    if !path.is_absolute() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut todo = Vec::new();
    push_components(&mut todo, path);
    let mut found = Resolved {
        path: PathBuf::from("/"),
        links: Vec::new(),
        exists: true,
    };
    while let Some(name) = todo.pop() {
        if name == ".." {
            found.path.pop();
            continue;
        }
        let next = found.path.join(&name);
        if !found.exists {
            found.path = next;
            continue;
        }
        match fs::symlink_metadata(&next) {
            Ok(meta) if meta.is_symlink() => {
                if found.links.len() == LINKS_AT_MOST {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let target = fs::read_link(&next)?;
                if target.is_absolute() {
                    found.path = PathBuf::from("/");
                }
                push_components(&mut todo, &target);
                found.links.push(next);
            }
            Ok(_) => found.path = next,
            Err(error) if is_missing(&error) => {
                found.exists = false;
                found.path = next;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The canonical path of something that exists and can be looked up.
pub fn existing(path: &Path) -> Option<PathBuf> {
    resolve(path)
        .ok()
        .filter(|found| found.exists)
        .map(|found| found.path)
}

/// Whether an error means that there is nothing of that name.
pub fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG)
    )
}

/// Opens a regular file without ever waiting for it.
///
/// # Errors
/// Whatever `open(2)` says, and `InvalidInput` when it isn't a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ))
    }
}

/// The content of a regular file of at most `cap` bytes, without ever waiting for it.
///
/// # Errors
/// As [`open_regular`], and `FileTooLarge` beyond the cap.
pub fn read_small(path: &Path, cap: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?
        .take(cap.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > cap {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(bytes)
}

/// As in the kernel: `MAXSYMLINKS`.
const LINKS_AT_MOST: usize = 40;

/// Pushes the components so that the first is popped first.
fn push_components(todo: &mut Vec<OsString>, path: &Path) {
    todo.extend(path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_resolved_path_names_every_link_that_it_went_through() {
        let scratch = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(scratch.path()).unwrap();
        fs::create_dir_all(top.join("real/deep")).unwrap();
        symlink("real", top.join("one")).unwrap();
        symlink(top.join("one/deep"), top.join("two")).unwrap();
        assert_eq!(
            resolve(&top.join("two/../new/./file")).unwrap(),
            Resolved {
                path: top.join("real/new/file"),
                links: vec![top.join("two"), top.join("one")],
                exists: false,
            }
        );
        assert_eq!(existing(&top.join("two")), Some(top.join("real/deep")));
        assert_eq!(existing(&top.join("three")), None);
    }

    #[test]
    fn a_loop_of_links_and_a_relative_path_are_errors() {
        let scratch = tempfile::tempdir().unwrap();
        symlink("loop", scratch.path().join("loop")).unwrap();
        let errno = |path: &Path| resolve(path).unwrap_err().raw_os_error();
        assert_eq!(errno(&scratch.path().join("loop")), Some(libc::ELOOP));
        assert_eq!(errno(Path::new("relative")), Some(libc::EINVAL));
    }

    #[test]
    fn names_of_any_bytes_resolve() {
        let scratch = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(scratch.path()).unwrap();
        let odd = top.join(std::ffi::OsStr::from_bytes(b"a b\n\xff"));
        fs::create_dir(&odd).unwrap();
        assert_eq!(existing(&odd), Some(odd));
    }

    #[test]
    fn a_small_file_is_read_and_a_fifo_a_folder_and_a_large_file_are_refused_at_once() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("small"), "12345").unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_small(&at("small"), 5).unwrap(), b"12345");
        let kind = |name: &str, cap| read_small(&at(name), cap).unwrap_err().kind();
        assert_eq!(kind("small", 4), io::ErrorKind::FileTooLarge);
        assert_eq!(kind("fifo", 5), io::ErrorKind::InvalidInput);
        assert_eq!(kind("", 5), io::ErrorKind::InvalidInput);
    }
}
