//! Canonical paths and small files.
//!
//! Rule: a path says which links it went through, because a link inside a writable root is something
//! that a command could have made.

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

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

/// Looks up many paths at one moment: what several have in common is looked up once, and what was missing
/// from a folder before isn't looked up again while the folder is unchanged.
#[derive(Debug, Default)]
pub struct Lookup {
    seen: HashMap<OsString, Rc<Entry>>,
    listed: HashMap<OsString, Listing>,
}

/// Something that was looked up.
#[derive(Debug)]
pub struct Entry {
    /// Where the path leads.
    pub found: Resolved,
    /// The state of the folder, where it is one and was reached without a link of its own.
    stamp: Option<Stamp>,
}

/// What is at a path.
#[derive(Debug)]
pub enum Probe {
    /// Something, or a link that leads nowhere.
    Found(Rc<Entry>),
    /// Nothing of that name in this folder, which may itself be missing.
    Missing(Rc<Entry>),
}

impl Lookup {
    /// As [`resolve`].
    ///
    /// # Errors
    /// As [`resolve`].
    pub fn resolve(&mut self, path: &Path) -> io::Result<Resolved> {
        Ok(match self.probe(path)? {
            Probe::Found(entry) => entry.found.clone(),
            Probe::Missing(folder) => below(&folder.found, path),
        })
    }

    /// As [`existing`].
    pub fn existing(&mut self, path: &Path) -> Option<PathBuf> {
        match self.probe(path) {
            Ok(Probe::Found(entry)) if entry.found.exists => Some(entry.found.path.clone()),
            Ok(Probe::Found(_) | Probe::Missing(_)) | Err(_) => None,
        }
    }

    /// What is at an absolute path: cheaper than [`Lookup::resolve`] where there is nothing.
    ///
    /// # Errors
    /// As [`resolve`].
    pub fn probe(&mut self, path: &Path) -> io::Result<Probe> {
        if let Some(entry) = self.seen.get(path.as_os_str()) {
            return Ok(Probe::Found(entry.clone()));
        }
        let entry = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let folder = match self.probe(parent)? {
                    Probe::Found(folder) => folder,
                    Probe::Missing(above) => {
                        let found = below(&above.found, parent);
                        return Ok(Probe::Missing(self.keep(parent, found, None)));
                    }
                };
                let known = |stamp| absences().knows(stamp, name);
                if !folder.found.exists
                    || folder.stamp.is_some_and(known)
                    || self.is_not_listed(&folder, name)
                {
                    return Ok(Probe::Missing(folder));
                }
                let next = folder.found.path.join(name);
                match fs::symlink_metadata(&next) {
                    Ok(meta) if meta.is_symlink() => self.keep(path, resolve(path)?, None),
                    Ok(meta) => {
                        let found = Resolved {
                            path: next,
                            links: folder.found.links.clone(),
                            exists: true,
                        };
                        let stamp = meta.is_dir().then(|| Stamp::of(&meta));
                        self.keep(path, found, stamp)
                    }
                    Err(error) if is_missing(&error) => {
                        if let Some(stamp) = folder.stamp {
                            absences().learn(stamp, name);
                        }
                        return Ok(Probe::Missing(folder));
                    }
                    Err(error) => return Err(error),
                }
            }
            _ => self.keep(path, resolve(path)?, None),
        };
        Ok(Probe::Found(entry))
    }

    /// Whether a folder's list of names shows that a name isn't there. A folder is listed when it is asked for
    /// the third time: many names are looked for in few folders.
    fn is_not_listed(&mut self, folder: &Entry, name: &OsStr) -> bool {
        if folder.stamp.is_none() {
            return false;
        }
        let path = folder.found.path.as_os_str();
        let Some(listing) = self.listed.get_mut(path) else {
            self.listed.insert(path.to_owned(), Listing::Asked(1));
            return false;
        };
        if let Listing::Asked(times) = listing {
            *times += 1;
            if *times < 3 {
                return false;
            }
            *listing = Listing::of(&folder.found.path);
        }
        match listing {
            Listing::Names(names) => !names.contains(&name.to_ascii_lowercase()),
            Listing::Asked(_) | Listing::Unknown => false,
        }
    }

    fn keep(&mut self, path: &Path, found: Resolved, stamp: Option<Stamp>) -> Rc<Entry> {
        let entry = Rc::new(Entry { found, stamp });
        self.seen.insert(path.into(), entry.clone());
        entry
    }
}

/// What is known of the names in a folder.
#[derive(Debug)]
enum Listing {
    /// Nothing yet; it was asked for this many names.
    Asked(u8),
    /// All of them, in lower case: some file systems take names in any.
    Names(HashSet<OsString>),
    /// They can't be listed, are too many, or not all ASCII, which file systems fold in ways of their own.
    Unknown,
}

impl Listing {
    fn of(folder: &Path) -> Listing {
        const AT_MOST: usize = 256;
        let Ok(entries) = fs::read_dir(folder) else {
            return Listing::Unknown;
        };
        let mut names = HashSet::default();
        for entry in entries {
            match entry.map(|entry| entry.file_name()) {
                Ok(name) if name.is_ascii() && names.len() < AT_MOST => {
                    names.insert(name.to_ascii_lowercase());
                }
                Ok(_) | Err(_) => return Listing::Unknown,
            }
        }
        Listing::Names(names)
    }
}

/// The missing last name of `path` in the folder that the rest of it leads to.
fn below(folder: &Resolved, path: &Path) -> Resolved {
    Resolved {
        path: folder.path.join(path.file_name().unwrap_or_default()),
        links: folder.links.clone(),
        exists: false,
    }
}

/// A file or folder at one state of its content: a name that comes or goes changes a folder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// The state that `meta` tells.
    pub fn of(meta: &Metadata) -> Stamp {
        Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether the last change is long enough ago that a further one can't have the same time, however
    /// coarse the file system's clock is.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.is_ok_and(|now| now.as_secs() > self.changed.0.unsigned_abs().saturating_add(2))
    }
}

/// Names that weren't in a folder while it had this stamp.
#[derive(Debug, Default)]
struct Absences {
    folders: HashMap<Stamp, HashSet<OsString>>,
}

impl Absences {
    fn knows(&self, folder: Stamp, name: &OsStr) -> bool {
        let names = self.folders.get(&folder);
        names.is_some_and(|names| names.contains(name))
    }

    fn learn(&mut self, folder: Stamp, name: &OsStr) {
        if !folder.is_settled() {
            return;
        }
        if self.folders.len() >= FOLDERS_AT_MOST && !self.folders.contains_key(&folder) {
            self.folders.clear();
        }
        let names = self.folders.entry(folder).or_default();
        if names.len() < NAMES_AT_MOST {
            names.insert(name.to_owned());
        }
    }
}

fn absences() -> MutexGuard<'static, Absences> {
    static KNOWN: LazyLock<Mutex<Absences>> = LazyLock::new(Mutex::default);
    // Each entry is whole by itself, so a panic elsewhere leaves nothing broken.
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names in a folder, read again when they change; `None` where they can't be read or are too many.
pub fn names_in(folder: &Path) -> Option<Arc<HashSet<OsString>>> {
    type Known = HashMap<Stamp, Arc<HashSet<OsString>>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    // Each entry is whole by itself, so a panic elsewhere leaves nothing broken.
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let stamp = Stamp::of(&fs::metadata(folder).ok()?);
    if let Some(names) = known().get(&stamp) {
        return Some(Arc::clone(names));
    }
    let entries = fs::read_dir(folder).ok()?.take(ENTRIES_AT_MOST + 1);
    let names: HashSet<OsString> = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<Result<_, _>>()
        .ok()?;
    if names.len() > ENTRIES_AT_MOST {
        return None;
    }
    let names = Arc::new(names);
    if stamp.is_settled() {
        let mut known = known();
        if known.len() >= LISTS_AT_MOST {
            known.clear();
        }
        known.insert(stamp, Arc::clone(&names));
    }
    Some(names)
}

/// How many names of a folder are listed.
const ENTRIES_AT_MOST: usize = 1024;

/// How many folders' lists of names are remembered.
const LISTS_AT_MOST: usize = 256;

/// How many folders are remembered.
const FOLDERS_AT_MOST: usize = 1024;

/// How many missing names of one folder are remembered.
const NAMES_AT_MOST: usize = 512;

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
    fn looking_up_many_paths_answers_as_looking_up_each() {
        let scratch = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(scratch.path()).unwrap();
        fs::create_dir_all(top.join("real/deep")).unwrap();
        fs::write(top.join("file"), "").unwrap();
        symlink("real", top.join("one")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        let mut lookup = Lookup::default();
        for name in [
            "real",
            "one/deep",
            "one/none/x",
            "one",
            "one/..",
            "one/../file",
            "file/below",
            "none/a",
            "none/b",
            "./real/",
            "loop/x",
            "real/deep",
        ] {
            let path = top.join(name);
            let both = [lookup.resolve(&path), resolve(&path)];
            let [many, each] = both.map(|found| found.map_err(|error| error.raw_os_error()));
            assert_eq!(many, each, "{name}");
        }
    }

    #[test]
    fn a_name_that_was_missing_is_found_once_it_is_there_even_in_an_old_folder() {
        let scratch = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(scratch.path()).unwrap();
        let exists = |name: &str| Lookup::default().existing(&top.join(name)).is_some();
        let stamp = || Stamp::of(&fs::symlink_metadata(&top).unwrap());
        while !stamp().is_settled() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        assert!(!exists("name"));
        assert!(absences().knows(stamp(), OsStr::new("name")));
        assert!(!exists("name"));
        fs::write(top.join("name"), "").unwrap();
        assert!(exists("name"));
    }

    #[test]
    fn the_names_in_a_folder_follow_its_changes_and_too_many_are_none() {
        let scratch = tempfile::tempdir().unwrap();
        let names = |folder: &Path| names_in(folder).map(|names| names.len());
        assert_eq!(names(scratch.path()), Some(0));
        assert_eq!(names(&scratch.path().join("none")), None);
        for number in 0..ENTRIES_AT_MOST {
            fs::write(scratch.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(names(scratch.path()), Some(ENTRIES_AT_MOST));
        fs::write(scratch.path().join("x"), "").unwrap();
        assert_eq!(names(scratch.path()), None);
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
