//! Spill files: the whole of a stream on disk, from its first byte.
//!
//! Rule: a private folder of the session, exclusive creation, caps by file and by session; a copy that
//! isn't whole is removed and never named.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Stream, lock};

/// How much may be spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillCaps {
    /// Bytes of one file, that is of one stream of one command.
    pub file: u64,
    /// Bytes of all files of one session.
    pub session: u64,
}

impl Default for SpillCaps {
    /// 100 MB a file, 1 GB a session.
    fn default() -> SpillCaps {
        SpillCaps {
            file: 100_000_000,
            session: 1_000_000_000,
        }
    }
}

/// The private folder (0700, unguessable name) that holds a session's spill files. It is created when it
/// is first needed and removed with everything in it when the last holder drops it.
#[derive(Debug)]
pub struct SpillDir {
    planned: PathBuf,
    state: Mutex<State>,
    /// Bytes in all files.
    used: AtomicU64,
}

#[derive(Debug)]
enum State {
    NotCreated,
    Created,
    Kept,
    Removed,
}

impl SpillDir {
    /// A folder below `base`, which must exist by the time it is needed. Nothing is created yet.
    pub fn new(base: impl AsRef<Path>) -> SpillDir {
        SpillDir {
            planned: base.as_ref().join(format!("cofferdam-{}", unguessable())),
            state: Mutex::new(State::NotCreated),
            used: AtomicU64::new(0),
        }
    }

    /// Where the folder is, or would be.
    pub fn planned(&self) -> &Path {
        &self.planned
    }

    /// The folder, once it exists.
    pub fn path(&self) -> Option<PathBuf> {
        match *lock(&self.state) {
            State::Created | State::Kept => Some(self.planned.clone()),
            State::NotCreated | State::Removed => None,
        }
    }

    /// The folder; creates it when it doesn't exist yet.
    ///
    /// # Errors
    /// It can't be created, or the session is over.
    pub fn create(&self) -> io::Result<PathBuf> {
        let mut state = lock(&self.state);
        match *state {
            State::NotCreated => {
                DirBuilder::new().mode(0o700).create(&self.planned)?;
                *state = State::Created;
            }
            State::Created | State::Kept => {}
            State::Removed => {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "the session is over",
                ));
            }
        }
        Ok(self.planned.clone())
    }

    /// From now on nothing removes the folder. Does nothing when it was never created.
    pub fn keep(&self) -> Option<PathBuf> {
        let mut state = lock(&self.state);
        if let State::Created = *state {
            *state = State::Kept;
        }
        matches!(*state, State::Kept).then(|| self.planned.clone())
    }

    /// Ends the session: removes the folder unless it is kept, and creates none from now on.
    ///
    /// # Errors
    /// Something in it can't be removed.
    pub fn remove(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        match *state {
            State::Created => {
                *state = State::Removed;
                std::fs::remove_dir_all(&self.planned)
            }
            State::NotCreated => {
                *state = State::Removed;
                Ok(())
            }
            State::Kept | State::Removed => Ok(()),
        }
    }
}

impl Drop for SpillDir {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(%error, "a spill folder was not removed");
        }
    }
}

/// The file that receives one stream. All of its calls block.
pub(super) struct Writer {
    file: File,
    path: PathBuf,
    written: u64,
    caps: SpillCaps,
    dir: Arc<SpillDir>,
}

impl Writer {
    /// Creates the file (0600, exclusively, unguessable name) in `dir`.
    pub(super) fn open(dir: Arc<SpillDir>, stream: Stream, caps: SpillCaps) -> io::Result<Writer> {
        let word = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let path = dir.create()?.join(format!("{}.{word}", unguessable()));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        Ok(Writer {
            file,
            path,
            written: 0,
            caps,
            dir,
        })
    }

    /// A writer on a device that has no space left.
    #[cfg(test)]
    pub(super) fn full(path: PathBuf, dir: Arc<SpillDir>) -> Writer {
        Writer {
            file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
            path,
            written: 0,
            caps: SpillCaps::default(),
            dir,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `bytes`. After an error the copy isn't whole any more: call [`Writer::discard`].
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let more = bytes.len() as u64;
        if self.written.saturating_add(more) > self.caps.file {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Counted before it is written: a session over its cap stays over it by what failed at most.
        self.written += more;
        if self
            .dir
            .used
            .fetch_add(more, Ordering::Relaxed)
            .saturating_add(more)
            > self.caps.session
        {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.file.write_all(bytes)
    }

    /// Closes the file; some file systems report a failed write only here.
    pub(super) fn finish(self) -> io::Result<PathBuf> {
        match nix::unistd::close(self.file) {
            Ok(()) => Ok(self.path),
            Err(errno) => {
                remove(&self.path);
                self.dir.used.fetch_sub(self.written, Ordering::Relaxed);
                Err(errno.into())
            }
        }
    }

    /// Removes a copy that isn't whole, so that it takes no space and misleads nobody.
    pub(super) fn discard(self) {
        remove(&self.path);
        self.dir.used.fetch_sub(self.written, Ordering::Relaxed);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!(path = %path.display(), %error, "an incomplete spill file stays");
    }
}

/// 128 bits from the kernel, in hexadecimal.
/// 128 random bits. Names are created exclusively besides, so a kernel without randomness (which Linux
/// has had since 3.17) costs a refusal and no more.
fn unguessable() -> String {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => format!("{:032x}", u128::from_ne_bytes(bytes)),
        Err(error) => {
            tracing::error!(%error, "no random name for a spill folder");
            String::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_folder_appears_with_the_first_need_and_goes_with_its_last_holder() {
        let base = tempfile::tempdir().unwrap();
        let dir = SpillDir::new(base.path());
        assert_eq!(dir.path(), None);
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
        let path = dir.create().unwrap();
        assert_eq!(dir.path(), Some(path.clone()));
        assert_eq!(dir.create().unwrap(), path);
        assert_eq!(mode(&path), 0o700);
        std::fs::write(path.join("x"), "x").unwrap();
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_kept_folder_stays_and_a_folder_that_never_was_is_not_created_by_keeping_it() {
        let base = tempfile::tempdir().unwrap();
        let dir = SpillDir::new(base.path());
        assert_eq!(dir.keep(), None);
        let path = dir.create().unwrap();
        assert_eq!(dir.keep(), Some(path.clone()));
        dir.remove().unwrap();
        drop(dir);
        assert!(path.exists());
    }

    #[test]
    fn a_removed_folder_is_not_created_again() {
        let base = tempfile::tempdir().unwrap();
        let dir = SpillDir::new(base.path());
        let path = dir.create().unwrap();
        dir.remove().unwrap();
        assert!(!path.exists());
        assert_eq!(dir.create().unwrap_err().to_string(), "the session is over");
    }

    #[test]
    fn a_file_is_private_and_two_files_of_a_folder_have_names_of_their_own() {
        let base = tempfile::tempdir().unwrap();
        let dir = Arc::new(SpillDir::new(base.path()));
        let caps = SpillCaps::default();
        let mut one = Writer::open(Arc::clone(&dir), Stream::Stdout, caps).unwrap();
        let two = Writer::open(Arc::clone(&dir), Stream::Stdout, caps).unwrap();
        assert_ne!(one.path(), two.path());
        one.write(b"abc").unwrap();
        let path = one.finish().unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        two.discard();
        assert_eq!(std::fs::read_dir(dir.path().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_stops_at_its_cap_and_a_session_at_its_own() {
        let base = tempfile::tempdir().unwrap();
        let dir = Arc::new(SpillDir::new(base.path()));
        let caps = SpillCaps {
            file: 4,
            session: 6,
        };
        let mut one = Writer::open(Arc::clone(&dir), Stream::Stdout, caps).unwrap();
        one.write(b"1234").unwrap();
        assert_eq!(
            one.write(b"5").unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        let mut two = Writer::open(Arc::clone(&dir), Stream::Stderr, caps).unwrap();
        two.write(b"12").unwrap();
        assert_eq!(
            two.write(b"3").unwrap_err().kind(),
            io::ErrorKind::QuotaExceeded
        );
        one.discard();
        two.discard();
        let mut three = Writer::open(dir, Stream::Stdout, caps).unwrap();
        three.write(b"1234").unwrap();
    }
}
