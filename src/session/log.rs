//! The append-only file of a session: JSON lines, written by any number of processes at once.
//!
//! Rule: an event is acknowledged when it stands whole on a line of its own. Nothing is locked, since
//! a command that may read the log could hold a lock for ever: each event is one `write` to a file
//! opened with `O_APPEND`, after which the writer looks whether it landed behind the torn line of
//! someone who was killed in mid-write, and if so writes it again on a fresh line.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::event::Event;

/// Bytes of the longest line that is read; longer ones are passed over.
pub const MAX_LINE: usize = 4 * 1024 * 1024;

const CHUNK: usize = 64 * 1024;

/// One line that was read.
#[derive(Debug)]
pub enum Read {
    /// An event.
    Event(Box<Event>),
    /// A torn, foreign or overlong line.
    Skipped,
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    file: File,
    path: PathBuf,
    /// Where the first line begins that hasn't been read yet.
    next: u64,
}

impl Log {
    /// Makes a new log, readable and writable by its owner alone.
    pub fn create(path: &Path) -> io::Result<Log> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        Ok(Log::of(file, path))
    }

    /// Opens an existing log; a symbolic link or anything but a regular file is refused.
    pub fn open(path: &Path) -> io::Result<Log> {
        Log::open_with(path, OpenOptions::new().read(true).append(true))
    }

    /// Opens an existing log for reading alone.
    pub fn open_to_read(path: &Path) -> io::Result<Log> {
        Log::open_with(path, OpenOptions::new().read(true))
    }

    fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<Log> {
        let file = options
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        Ok(Log::of(file, path))
    }

    fn of(file: File, path: &Path) -> Log {
        Log {
            file,
            path: path.to_owned(),
            next: 0,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends one event.
    pub fn append(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event)?;
        line.push(b'\n');
        if line.len() > MAX_LINE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the event is longer than 4 MiB",
            ));
        }
        let end = self.file.metadata()?.len();
        if !self.line_begins_at(end)? {
            line.insert(0, b'\n');
        }
        let start = self.write_once(&line)?;
        if line[0] != b'\n' && !self.line_begins_at(start)? {
            // A writer died between the look and the write.
            line.insert(0, b'\n');
            self.write_once(&line)?;
        }
        Ok(())
    }

    /// Waits until what was appended is on disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// One `write`; returns where it landed.
    fn write_once(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let written = loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if written < bytes.len() {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the event was cut short; free some space",
            ));
        }
        // With O_APPEND the kernel leaves the file's position behind the bytes that it wrote.
        Ok(self.file.stream_position()? - bytes.len() as u64)
    }

    fn line_begins_at(&self, offset: u64) -> io::Result<bool> {
        let Some(before) = offset.checked_sub(1) else {
            return Ok(true);
        };
        let mut byte = [0u8];
        self.file.read_exact_at(&mut byte, before)?;
        Ok(byte[0] == b'\n')
    }

    /// Hands each complete line that hasn't been read yet to `each`. An unfinished last line stays
    /// unread: its writer may still be at it.
    pub fn read_new(&mut self, each: &mut dyn FnMut(Read)) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.next {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the log has become shorter; start a new session",
            ));
        }
        if length == self.next {
            return Ok(());
        }
        let mut chunk = vec![0u8; CHUNK];
        let mut line = Line::default();
        let mut at = self.next;
        loop {
            let count = match self.file.read_at(&mut chunk, at) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for piece in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
                at += piece.len() as u64;
                line.push(piece);
                if piece.ends_with(b"\n") {
                    self.next = at;
                    if let Some(read) = std::mem::take(&mut line).read(&self.path) {
                        each(read);
                    }
                }
            }
        }
        if at > self.next {
            tracing::warn!(log = %self.path.display(), "the last line of the session's log is torn; it is passed over");
        }
        Ok(())
    }
}

/// A line that is being put together, up to [`MAX_LINE`].
#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    overlong: bool,
}

impl Line {
    fn push(&mut self, piece: &[u8]) {
        if self.bytes.len() + piece.len() > MAX_LINE {
            self.overlong = true;
            self.bytes = Vec::new();
        }
        if !self.overlong {
            self.bytes.extend_from_slice(piece);
        }
    }

    /// `None` for an empty line, which a writer leaves that began afresh without need.
    fn read(self, path: &Path) -> Option<Read> {
        if !self.overlong && self.bytes.trim_ascii().is_empty() {
            return None;
        }
        let parsed = if self.overlong {
            Err("longer than 4 MiB".to_owned())
        } else {
            Event::parse(self.bytes.trim_ascii()).map_err(|error| error.to_string())
        };
        Some(match parsed {
            Ok(event) => Read::Event(Box::new(event)),
            Err(reason) => {
                tracing::warn!(log = %path.display(), reason, "a line of the session's log is passed over");
                Read::Skipped
            }
        })
    }
}
