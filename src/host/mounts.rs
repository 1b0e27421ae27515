//! Which other names mounts give to a path.
//!
//! Rule: what `/proc/self/mountinfo` says is only used to hide more; it is read again when the kernel says
//! that it has changed.

use rustc_hash::FxHashMap as HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The mounts of a mount namespace, as far as they show files of one file system at several places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// What is mounted at a path, by its last mount.
    points: HashMap<PathBuf, Mount>,
    /// The mounts of each file system that has several.
    shared: HashMap<Vec<u8>, Vec<(PathBuf, PathBuf)>>,
    cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// `major:minor` of the file system.
    device: Vec<u8>,
    /// Which folder or file of the file system it shows.
    root: PathBuf,
}

impl Mounts {
    /// Reads the text of `/proc/self/mountinfo`, see `proc_pid_mountinfo(5)`. Lines that aren't understood are
    /// left out.
    pub fn parse(text: &[u8]) -> Mounts {
        let mut mounts = Mounts::default();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            let (Some(device), Some(root), Some(point)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if number >= MOUNTS_AT_MOST {
                mounts.cut = true;
                break;
            }
            let (root, point) = (unescaped(root), unescaped(point));
            let shared = mounts.shared.entry(device.to_owned()).or_default();
            shared.push((root.clone(), point.clone()));
            let device = device.to_owned();
            mounts.points.insert(point, Mount { device, root });
        }
        mounts.shared.retain(|_, mounts| mounts.len() > 1);
        mounts
    }

    /// Whether there are more mounts than are looked at.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Where else a canonical path, or a part of what lies below it, would show. Another mount may cover such
    /// a place.
    pub fn other_names(&self, path: &Path) -> Vec<PathBuf> {
        let Some((point, mount)) = path
            .ancestors()
            .find_map(|point| Some((point, self.points.get(point)?)))
        else {
            return Vec::new();
        };
        let Some(shared) = self.shared.get(&mount.device) else {
            return Vec::new();
        };
        let inside = joined(&mount.root, path.strip_prefix(point).unwrap_or(path));
        let names = shared.iter().filter_map(|(root, point)| {
            match inside.strip_prefix(root) {
                Ok(rest) => Some(joined(point, rest)),
                // A part of it is mounted there.
                Err(_) => root.starts_with(&inside).then(|| point.clone()),
            }
        });
        let mut names: Vec<PathBuf> = names.filter(|name| !name.starts_with(path)).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The mounts that this process sees; none where they can't be read.
pub fn current() -> Arc<Mounts> {
    static KNOWN: Mutex<Option<(File, Arc<Mounts>)>> = Mutex::new(None);
    // It is replaced as a whole, so a panic elsewhere leaves nothing broken.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((file, mounts)) = &*known
        && !has_changed(file)
    {
        return Arc::clone(mounts);
    }
    let file = known.take().map(|(file, _)| file);
    match read(file) {
        Ok((file, mounts)) => {
            let mounts = Arc::new(mounts);
            *known = Some((file, Arc::clone(&mounts)));
            mounts
        }
        Err(error) => {
            tracing::debug!(%error, "the mounts can't be read");
            Arc::default()
        }
    }
}

/// The kernel marks the file when a mount has come or gone since it was asked last.
fn has_changed(file: &File) -> bool {
    let mut asked = [PollFd::new(file.as_fd(), PollFlags::POLLPRI)];
    match poll(&mut asked, PollTimeout::ZERO) {
        Ok(0) => false,
        Ok(_) | Err(_) => true,
    }
}

fn read(file: Option<File>) -> io::Result<(File, Mounts)> {
    let mut file = match file {
        Some(file) => file,
        None => File::open("/proc/self/mountinfo")?,
    };
    file.rewind()?;
    let mut text = Vec::new();
    (&mut file).take(BYTES_AT_MOST).read_to_end(&mut text)?;
    let mut mounts = Mounts::parse(&text);
    mounts.cut |= text.len() as u64 == BYTES_AT_MOST;
    Ok((file, mounts))
}

/// How many mounts are looked at.
const MOUNTS_AT_MOST: usize = 4096;

/// How much of the file is read.
const BYTES_AT_MOST: u64 = 1 << 20;

/// A path of which the kernel has written blanks, line ends and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// `join` leaves a slash at the end of a file's name when there is nothing to join.
fn joined(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() {
        path.to_owned()
    } else {
        path.join(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, path: &str) -> Vec<PathBuf> {
        Mounts::parse(text.as_bytes()).other_names(Path::new(path))
    }

    #[test]
    fn a_folder_that_two_mounts_show_has_two_names_and_one_of_another_file_system_has_one() {
        let text = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /home rw - ext4 /dev/b rw\n\
                    3 1 8:2 / /opt/my\\040x rw - ext4 /dev/b rw\n4 1 8:3 / /srv rw - ext4 /dev/c rw\n";
        assert_eq!(
            names(text, "/home/u/.ssh"),
            [PathBuf::from("/opt/my x/u/.ssh")]
        );
        assert_eq!(
            names(text, "/opt/my x/u/.ssh"),
            [PathBuf::from("/home/u/.ssh")]
        );
        assert_eq!(names(text, "/srv/.ssh"), [] as [PathBuf; 0]);
        assert_eq!(names(text, "/root/.ssh"), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_home_inside_a_deployment_shows_at_the_root_of_its_file_system() {
        let text = "1 0 8:1 /ostree/deploy/os/deploy/x / rw - ext4 /dev/a rw\n\
                    2 1 8:1 / /sysroot ro - ext4 /dev/a rw\n\
                    3 1 8:1 /ostree/deploy/os/var /var rw - ext4 /dev/a rw\n";
        assert_eq!(
            names(text, "/var/home/u/.ssh"),
            [PathBuf::from("/sysroot/ostree/deploy/os/var/home/u/.ssh")]
        );
    }

    #[test]
    fn a_part_of_a_folder_that_is_mounted_elsewhere_is_a_name_and_its_sibling_is_none() {
        let text = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
                    2 1 8:1 /root/.ssh/keys /opt/keys rw - ext4 /dev/a rw\n\
                    3 1 8:1 /root/.sshx /opt/other rw - ext4 /dev/a rw\n\
                    4 1 8:1 /root/.netrc /opt/netrc rw - ext4 /dev/a rw\n";
        assert_eq!(names(text, "/root/.ssh"), [PathBuf::from("/opt/keys")]);
        assert_eq!(names(text, "/root/.netrc"), [PathBuf::from("/opt/netrc")]);
    }

    #[test]
    fn broken_lines_and_a_crowd_of_mounts_are_survived_and_the_crowd_is_told() {
        let few = Mounts::parse(b"\n1\n1 2 3 4\n1 0 8:1 / / \\9 \\");
        assert!(!few.is_cut());
        let line = "1 0 8:1 / /x rw - ext4 /dev/a rw\n";
        assert!(!Mounts::parse(line.repeat(MOUNTS_AT_MOST).as_bytes()).is_cut());
        assert!(Mounts::parse(line.repeat(MOUNTS_AT_MOST + 1).as_bytes()).is_cut());
    }

    #[test]
    fn the_mounts_of_this_process_are_read_once_while_nothing_changes() {
        let first = current();
        assert!(first.points.contains_key(Path::new("/")));
        assert!(Arc::ptr_eq(&first, &current()));
    }
}
