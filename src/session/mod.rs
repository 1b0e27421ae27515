//! Sessions: an id, a working directory, and an append-only log of events from which the mode follows.
//!
//! Rule: the log is the only store. The override is a pure fold of it, read anew before each call, so
//! a switch made by another process holds from the next call on, and a restart forgets nothing.

mod event;
mod home;
mod log;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

pub use event::{
    Answered, Call, Ended, Event, Folded, MAX_COMMAND, MAX_TEXT, Process, Running, Settled,
    TaskReport, What, clip, clip_path, fold, running,
};
pub use home::{Home, HomeError};

use crate::mode::{Mode, ModeSource, effective};
use log::{Log, Read};

/// Notices that a session keeps until they are taken; the oldest go first.
const MAX_NOTICES: usize = 256;
/// Events that a session without a file keeps; the oldest go first, the fold stays.
const MAX_MEMORY_EVENTS: usize = 1024;

/// Why a session can't be made, resumed, read or written.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The word can't be a session's id.
    #[error(
        "\"{0}\" is no session id: use 32 hexadecimal digits as `cofferdam session list` prints them"
    )]
    BadId(String),
    /// No log has this id.
    #[error(
        "no session \"{id}\" below {dir}; `cofferdam session list` prints those that are there"
    )]
    Unknown {
        /// The id.
        id: String,
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// The log has no first event that says where the session works.
    #[error(
        "the log {path} doesn't begin with a readable session/start event; start a new session"
    )]
    NoStart {
        /// The log's file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("can't {operation} {path}: {error}")]
    File {
        /// What was tried, as in `append to`.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What came back.
        error: io::Error,
    },
    /// The operating system gave no random bytes.
    #[error("no random bytes for a session id: {0}")]
    Random(String),
}

/// What the log says about a session's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The mode that the session was switched to.
    pub switched: Option<Mode>,
    /// The mode that the model was last told.
    pub told: Option<Mode>,
}

/// One session. Cheap to share behind an [`Arc`](std::sync::Arc); all methods take `&self`.
#[derive(Debug)]
pub struct Session {
    id: String,
    cwd: PathBuf,
    default: Mode,
    store: Mutex<Store>,
    notices: Mutex<VecDeque<String>>,
    bell: Notify,
}

#[derive(Debug)]
enum Store {
    Memory {
        events: VecDeque<Event>,
        folded: Folded,
    },
    File {
        log: Log,
        folded: Folded,
    },
}

impl Session {
    /// Starts a session whose log is a new file below `home`. `cwd` is its workspace, absolute;
    /// `default` is recorded as the mode that holds until a switch.
    ///
    /// # Errors
    /// The folder or the file can't be made or written.
    pub fn create(home: &Home, cwd: &Path, default: Mode) -> Result<Session, SessionError> {
        let id = random_id()?;
        let dir = home.prepare_sessions()?;
        let log = Log::create(&home.log_path(&id)).map_err(file_error("create a log in", &dir))?;
        let session = Session::with(
            id.clone(),
            cwd.to_owned(),
            default,
            Store::File {
                log,
                folded: Folded::default(),
            },
        );
        session.record(What::start(&id, cwd, default))?;
        Ok(session)
    }

    /// Takes up the session `id` again, with the mode that its log folds to; without a switch there,
    /// `default` holds from now on, and is recorded.
    ///
    /// # Errors
    /// The id is none, names no session, or its log can't be read or appended to.
    pub fn resume(home: &Home, id: &str, default: Mode) -> Result<Session, SessionError> {
        let path = home.existing_log(id)?;
        let mut log = Log::open(&path).map_err(file_error("open", &path))?;
        let mut folded = Folded::default();
        let mut start = None;
        log.read_new(&mut |read| {
            if let Read::Event(event) = read {
                folded.apply(&event);
                if let (None, What::Start { cwd, .. }) = (&start, &event.what) {
                    start = Some(cwd.clone());
                }
            }
        })
        .map_err(file_error("read", &path))?;
        let Some(cwd) = start else {
            return Err(SessionError::NoStart { path });
        };
        let session = Session::with(id.to_owned(), cwd, default, Store::File { log, folded });
        session.record(What::resume(default))?;
        Ok(session)
    }

    /// A session without a file, for embedders and tests. It ends with its last handle.
    ///
    /// # Errors
    /// The operating system gave no random bytes.
    pub fn in_memory(cwd: &Path, default: Mode) -> Result<Session, SessionError> {
        let id = random_id()?;
        let session = Session::with(
            id.clone(),
            cwd.to_owned(),
            default,
            Store::Memory {
                events: VecDeque::new(),
                folded: Folded::default(),
            },
        );
        session.record(What::start(&id, cwd, default))?;
        Ok(session)
    }

    fn with(id: String, cwd: PathBuf, default: Mode, store: Store) -> Session {
        Session {
            id,
            cwd,
            default,
            store: Mutex::new(store),
            notices: Mutex::new(VecDeque::new()),
            bell: Notify::new(),
        }
    }

    /// Its id: 128 random bits in 32 hexadecimal digits. It is also the owner's token of its tasks.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its working directory and workspace.
    pub fn cwd(&self) -> &Path {
        &self.cwd
    }

    /// The mode that holds without a switch, as whoever serves it now said.
    pub fn default_mode(&self) -> Mode {
        self.default
    }

    /// The log's file, when it has one.
    pub fn log_path(&self) -> Option<PathBuf> {
        match &*self.store() {
            Store::Memory { .. } => None,
            Store::File { log, .. } => Some(log.path().to_owned()),
        }
    }

    /// Appends one event, with one write. When this returns `Ok`, the event is in the log, whole and
    /// on a line of its own.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn record(&self, what: What) -> Result<(), SessionError> {
        let event = Event::now(what);
        match &mut *self.store() {
            Store::Memory { events, folded } => {
                folded.apply(&event);
                if events.len() == MAX_MEMORY_EVENTS {
                    events.pop_front();
                }
                events.push_back(event);
            }
            Store::File { log, .. } => {
                let path = log.path().to_owned();
                log.append(&event).map_err(file_error("append to", &path))?;
            }
        }
        Ok(())
    }

    /// What the log says now, with everything that any process has appended.
    ///
    /// # Errors
    /// The file can't be read, or it has become shorter.
    pub fn standing(&self) -> Result<Standing, SessionError> {
        let mut store = self.store();
        let folded = match &mut *store {
            Store::Memory { folded, .. } => folded,
            Store::File { log, folded } => {
                let path = log.path().to_owned();
                log.read_new(&mut |read| {
                    if let Read::Event(event) = read {
                        folded.apply(&event);
                    }
                })
                .map_err(file_error("read", &path))?;
                folded
            }
        };
        Ok(Standing {
            switched: folded.mode,
            told: folded.told,
        })
    }

    /// The mode that the next call runs under, where the executor's default is `default`.
    ///
    /// # Errors
    /// The log can't be read.
    pub fn effective(&self, default: Mode) -> Result<(Mode, ModeSource), SessionError> {
        Ok(effective(None, self.standing()?.switched, default))
    }

    /// Switches the session to `mode`: exactly one event, effective with the next call. For a person
    /// or the harness; no tool reaches it. `by` says who.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn switch(&self, mode: Mode, by: &str) -> Result<(), SessionError> {
        self.record(What::SandboxMode {
            mode,
            by: by.to_owned(),
        })?;
        match &*self.store() {
            Store::Memory { .. } => Ok(()),
            Store::File { log, .. } => sync(log),
        }
    }

    /// All events, oldest first; a session without a file keeps the last 1 024.
    ///
    /// # Errors
    /// The file can't be read.
    pub fn events(&self) -> Result<Vec<Event>, SessionError> {
        match &*self.store() {
            Store::Memory { events, .. } => Ok(events.iter().cloned().collect()),
            Store::File { log, .. } => read_events(log.path()),
        }
    }

    /// Puts a notice into the session's inbox. The harness shows it to the model before the next step;
    /// it wakes nobody.
    pub fn notify(&self, notice: String) {
        let mut notices = lock(&self.notices);
        if notices.len() == MAX_NOTICES {
            notices.pop_front();
        }
        notices.push_back(notice);
        drop(notices);
        self.bell.notify_waiters();
    }

    /// Takes the notices that came since the last time, oldest first.
    pub fn take_notices(&self) -> Vec<String> {
        lock(&self.notices).drain(..).collect()
    }

    /// Waits until the inbox holds a notice.
    pub async fn notice_arrived(&self) {
        loop {
            let rings = self.bell.notified();
            tokio::pin!(rings);
            rings.as_mut().enable();
            if !lock(&self.notices).is_empty() {
                return;
            }
            rings.await;
        }
    }

    /// From now on nothing can be appended, as on a full disk.
    #[cfg(test)]
    pub(crate) fn make_unwritable(&self) {
        if let Store::File { log, .. } = &mut *self.store() {
            *log = Log::open_to_read(log.path()).unwrap();
        }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }
}

/// The ids of all sessions below `home`, in no particular order.
///
/// # Errors
/// The folder can't be read. A folder that isn't there holds no sessions.
pub fn list(home: &Home) -> Result<Vec<String>, SessionError> {
    let dir = home.sessions();
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error("list", &dir)(error)),
    };
    Ok(entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            let id = name.to_str()?.strip_suffix(".jsonl")?;
            is_id(id).then(|| id.to_owned())
        })
        .collect())
}

/// Switches the session `id` to `mode` from outside: exactly one event, on disk when this returns, and
/// effective with the next call of whoever serves the session. `by` says who.
///
/// # Errors
/// The id is none, names no session, or its log can't be written.
pub fn switch(home: &Home, id: &str, mode: Mode, by: &str) -> Result<(), SessionError> {
    let path = home.existing_log(id)?;
    let mut log = Log::open(&path).map_err(file_error("open", &path))?;
    let event = Event::now(What::SandboxMode {
        mode,
        by: by.to_owned(),
    });
    log.append(&event).map_err(file_error("append to", &path))?;
    sync(&log)
}

/// All readable events of a log's file, oldest first. Torn and foreign lines are skipped with a
/// warning.
///
/// # Errors
/// The file can't be opened or read.
pub fn read_events(path: &Path) -> Result<Vec<Event>, SessionError> {
    let mut events = Vec::new();
    Log::open_to_read(path)
        .and_then(|mut log| {
            log.read_new(&mut |read| {
                if let Read::Event(event) = read {
                    events.push(*event);
                }
            })
        })
        .map_err(file_error("read", path))?;
    Ok(events)
}

/// Whether the word can be a session's id, and so the name of its file: 32 lower-case hexadecimal
/// digits.
pub fn is_id(word: &str) -> bool {
    word.len() == 32 && word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// 128 random bits in 32 hexadecimal digits.
///
/// # Errors
/// The operating system gave no random bytes.
pub fn random_id() -> Result<String, SessionError> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| SessionError::Random(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn sync(log: &Log) -> Result<(), SessionError> {
    log.sync().map_err(file_error("sync", log.path()))
}

fn file_error<'a>(
    operation: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> SessionError + use<'a> {
    move |error| SessionError::File {
        operation,
        path: path.to_owned(),
        error,
    }
}

/// What a panicking holder leaves behind is still consistent: every change here is one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
