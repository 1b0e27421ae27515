//! What a command prints: a bounded tail in memory, the whole of it on disk once it is longer, and
//! what a reader has not seen yet.
//!
//! Rule: memory is bounded by the tail, disk by the caps of the spill; nothing that was read from a
//! pipe is lost when a timer fires; a copy that can't be vouched for isn't named.

mod pump;
mod spill;
mod tail;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

pub(crate) use pump::{Phase, pump};
pub use spill::{SpillCaps, SpillDir};
use tail::Tail;

/// A folder for spill files outside these roots: the system's folder for temporary files, or another where
/// that one lies in a root that commands may write.
pub fn spill_base(workspace: &Path, writable: &[PathBuf]) -> PathBuf {
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut roots = vec![canonical(workspace)];
    roots.extend(writable.iter().map(|root| canonical(root)));
    let outside = |base: &PathBuf| {
        let base = canonical(base);
        base.is_dir() && !roots.iter().any(|root| base.starts_with(root))
    };
    let usual = std::env::temp_dir();
    // Where confined commands have scratch of their own, they don't see each other's.
    let private = ["/tmp", "/dev/shm", "/run"];
    let apart = canonical(&usual);
    let apart = private.iter().any(|scratch| apart.starts_with(scratch));
    let first = if apart { usual.clone() } else { "/tmp".into() };
    [first, usual.clone(), "/var/tmp".into()]
        .into_iter()
        .find(outside)
        .unwrap_or(usual)
}

/// Bytes of each stream that stay in memory unless the executor's configuration says otherwise.
pub const TAIL_BYTES: usize = 64_000;

/// What is left of one output stream: a bounded tail, and the whole of it on disk when it was longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// The last part of the stream as text; broken bytes are replaced, no character is cut.
    pub text: String,
    /// Whether `text` lacks the beginning.
    pub truncated: bool,
    /// Bytes that the stream had in all.
    pub bytes: u64,
    /// A complete copy, when `truncated` and one can be vouched for.
    pub spill: Option<PathBuf>,
}

/// Which stream a chunk came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Sees output while it is made, byte for byte, in the order in which it was read.
pub trait Live: Send + Sync {
    /// Called with each chunk, on the task that reads the pipe: whoever blocks here blocks the command.
    fn chunk(&self, stream: Stream, bytes: &[u8]);
}

/// What an incremental read delivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// New text of standard output.
    pub(crate) stdout: String,
    /// New text of standard error.
    pub(crate) stderr: String,
    /// `Some` when unread bytes had fallen out of memory: the complete copies that can be vouched for.
    pub(crate) dropped: Option<Vec<PathBuf>>,
}

impl Unread {
    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.stdout.is_empty() && self.stderr.is_empty() && self.dropped.is_none()
    }
}

/// Whether more can come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The stream goes on: a character that isn't complete yet is held back.
    Open,
    /// Nothing follows: what is held back is delivered as it is.
    Ended,
}

/// The output of one command. It belongs to whoever started it, so it outlives the futures that fill it.
pub(crate) struct Capture {
    stdout: Mutex<Side>,
    stderr: Mutex<Side>,
    taps: Mutex<Vec<Arc<dyn Live>>>,
    changed: watch::Sender<()>,
    pub(crate) dir: Arc<SpillDir>,
    pub(crate) caps: SpillCaps,
}

/// One stream.
struct Side {
    tail: Tail,
    copy: Copy,
    closed: bool,
}

/// Where the complete copy of a stream stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Copy {
    /// The tail is still the whole stream.
    NotNeeded,
    /// The file holds every byte so far.
    Whole(PathBuf),
    /// There is none, and there will be none.
    Lost,
}

impl Capture {
    /// Keeps `tail_bytes` of each stream in memory and spills into `dir`.
    pub(crate) fn new(tail_bytes: usize, dir: Arc<SpillDir>, caps: SpillCaps) -> Arc<Capture> {
        let side = || {
            Mutex::new(Side {
                tail: Tail::new(tail_bytes),
                copy: Copy::NotNeeded,
                closed: false,
            })
        };
        Arc::new(Capture {
            stdout: side(),
            stderr: side(),
            taps: Mutex::new(Vec::new()),
            changed: watch::Sender::new(()),
            dir,
            caps,
        })
    }

    /// From now on these see each chunk.
    pub(crate) fn tap_all(&self, taps: impl IntoIterator<Item = Arc<dyn Live>>) {
        lock(&self.taps).extend(taps);
    }

    /// `tap` sees nothing more.
    pub(crate) fn untap(&self, tap: &Arc<dyn Live>) {
        lock(&self.taps).retain(|other| !Arc::ptr_eq(other, tap));
    }

    /// Told of each chunk and of each end of a stream.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Whether nobody holds the writing end of either pipe any more.
    pub(crate) fn closed(&self) -> bool {
        [Stream::Stdout, Stream::Stderr]
            .into_iter()
            .all(|stream| self.side(stream).closed)
    }

    /// What is left of a stream.
    pub(crate) fn captured(&self, stream: Stream) -> Captured {
        let mut side = self.side(stream);
        let (text, truncated) = side.tail.text();
        Captured {
            text,
            truncated,
            bytes: side.tail.total(),
            spill: side.whole_copy().filter(|_| truncated),
        }
    }

    /// What no read has delivered yet. With [`Progress::Ended`] the memory of both tails is given back.
    pub(crate) fn read(&self, progress: Progress) -> Unread {
        let mut unread = Unread::default();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let mut side = self.side(stream);
            let (text, lost) = side.tail.read(progress);
            match stream {
                Stream::Stdout => unread.stdout = text,
                Stream::Stderr => unread.stderr = text,
            }
            if lost {
                unread
                    .dropped
                    .get_or_insert_default()
                    .extend(side.whole_copy());
            }
        }
        unread
    }

    /// Bytes in memory.
    pub(crate) fn held(&self) -> usize {
        self.side(Stream::Stdout).tail.held() + self.side(Stream::Stderr).tail.held()
    }

    /// Forgets what is in memory; a later read reports it as dropped.
    pub(crate) fn shed(&self) {
        self.side(Stream::Stdout).tail.shed();
        self.side(Stream::Stderr).tail.shed();
    }

    fn side(&self, stream: Stream) -> MutexGuard<'_, Side> {
        lock(match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        })
    }

    fn show(&self, stream: Stream, bytes: &[u8]) {
        let taps = lock(&self.taps).clone();
        for tap in taps {
            tap.chunk(stream, bytes);
        }
    }

    fn tell(&self) {
        self.changed.send_replace(());
    }
}

impl Side {
    fn whole_copy(&self) -> Option<PathBuf> {
        match &self.copy {
            Copy::Whole(path) => Some(path.clone()),
            Copy::NotNeeded | Copy::Lost => None,
        }
    }
}

/// A panic of another holder leaves nothing half done here, so a poisoned lock is as good as any.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
