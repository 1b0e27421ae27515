//! The pump: reads a pipe until its end and feeds the taps, the spill file and the tail.
//!
//! Rule: nothing is read that isn't kept; while a spill file is written nothing is read, so that the
//! command waits instead of memory growing; a pipe that someone holds open never delays the end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::spill::Writer;
use super::{Capture, Copy, Stream};

/// Bytes that are read at a time.
const CHUNK: usize = 64 * 1024;

/// How long the pump goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Until the end of the stream.
    Open,
    /// Whoever still holds the pipe isn't waited for: what was written until now is read, and no more.
    Drain,
}

/// Reads `pipe`, the reading end of a pipe, into `capture`, until its end or until `phase` says to drain.
/// Needs a tokio runtime with its I/O driver. The future must not be dropped while the output matters.
pub(crate) async fn pump(
    pipe: OwnedFd,
    stream: Stream,
    capture: &Capture,
    mut phase: watch::Receiver<Phase>,
) {
    let mut copier = Copier {
        writer: None,
        stream,
        capture,
    };
    if let Err(error) = read_all(pipe, &mut copier, &mut phase).await {
        tracing::warn!(?stream, %error, "the rest of an output stream could not be read");
    }
    copier.finish().await;
    capture.side(stream).closed = true;
    capture.tell();
}

async fn read_all(
    pipe: OwnedFd,
    copier: &mut Copier<'_>,
    phase: &mut watch::Receiver<Phase>,
) -> io::Result<()> {
    let capacity = rustix::pipe::fcntl_getpipe_size(&pipe)?;
    let pipe = pipe::Receiver::from_owned_fd(pipe)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        tokio::select! {
            ready = pipe.readable() => ready?,
            _ = phase.wait_for(|phase| *phase == Phase::Drain) => break,
        }
        match pipe.try_read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => copier.accept(&buffer[..count]).await,
            Err(error) if is_no_news(&error) => {}
            Err(error) => return Err(error),
        }
    }
    // Everything that was written before now fits into the pipe, so a writer that goes on for ever is
    // left behind after one pipe's worth. The read is direct: readiness may not have been told yet.
    let mut drained = 0;
    while drained < capacity {
        match rustix::io::read(&pipe, &mut buffer[..]) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(count) => {
                drained += count;
                copier.accept(&buffer[..count]).await;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_no_news(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Takes chunks to where they belong.
struct Copier<'a> {
    writer: Option<Writer>,
    stream: Stream,
    capture: &'a Capture,
}

impl Copier<'_> {
    /// Accepts a chunk. The copy is written before the tail forgets, so that a path that is named holds
    /// what it stands for.
    async fn accept(&mut self, chunk: &[u8]) {
        self.capture.show(self.stream, chunk);
        self.copy(chunk).await;
        self.capture.side(self.stream).tail.push(chunk);
        self.capture.tell();
    }

    async fn copy(&mut self, chunk: &[u8]) {
        let mut bytes = {
            let mut side = self.capture.side(self.stream);
            match side.copy {
                Copy::Lost => return,
                Copy::NotNeeded if !side.tail.overflows_with(chunk.len()) => return,
                Copy::NotNeeded => side.tail.bytes().to_vec(),
                Copy::Whole(_) => Vec::new(),
            }
        };
        bytes.extend_from_slice(chunk);
        let (writer, stream, caps) = (self.writer.take(), self.stream, self.capture.caps);
        let dir = Arc::clone(&self.capture.dir);
        let written = spawn_blocking(move || {
            let mut writer = match writer {
                Some(writer) => writer,
                // A cap of nothing means no copies at all.
                None if caps.file == 0 => return Err(std::io::ErrorKind::FileTooLarge.into()),
                None => Writer::open(dir, stream, caps)?,
            };
            match writer.write(&bytes) {
                Ok(()) => Ok(writer),
                Err(error) => {
                    writer.discard();
                    Err(error)
                }
            }
        });
        let written = written.await.unwrap_or_else(|lost| Err(lost.into()));
        let copy = match &written {
            Ok(writer) => Copy::Whole(writer.path().to_path_buf()),
            Err(error) => {
                tracing::debug!(?stream, %error, "no complete copy of an output stream");
                Copy::Lost
            }
        };
        self.capture.side(stream).copy = copy;
        self.writer = written.ok();
    }

    async fn finish(&mut self) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let closed = spawn_blocking(move || writer.finish()).await;
        let closed = closed.unwrap_or_else(|lost| Err(lost.into()));
        if let Err(error) = closed {
            tracing::debug!(stream = ?self.stream, %error, "a spill file could not be closed");
            self.capture.side(self.stream).copy = Copy::Lost;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::super::{Captured, SpillCaps, SpillDir};
    use super::*;

    fn capture(tail: usize) -> (tempfile::TempDir, Arc<Capture>) {
        let base = tempfile::tempdir().unwrap();
        let dir = Arc::new(SpillDir::new(base.path()));
        (base, Capture::new(tail, dir, SpillCaps::default()))
    }

    fn pipe() -> (OwnedFd, std::fs::File) {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        (reader, writer.into())
    }

    #[tokio::test]
    async fn what_was_written_before_the_drain_is_read_although_the_pipe_stays_open() {
        let (_base, capture) = capture(100_000);
        let (reader, mut writer) = pipe();
        writer.write_all(&[b'x'; 60_000]).unwrap();
        let (_phase, drain) = watch::channel(Phase::Drain);
        pump(reader, Stream::Stdout, &capture, drain).await;
        assert_eq!(capture.captured(Stream::Stdout).bytes, 60_000);
        drop(writer);
    }

    #[tokio::test]
    async fn a_writer_that_goes_on_for_ever_is_left_behind_by_the_drain() {
        let (_base, capture) = capture(1_000);
        let (reader, mut writer) = pipe();
        let endless = std::thread::spawn(move || while writer.write_all(b"noise\n").is_ok() {});
        let (phase, drain) = watch::channel(Phase::Open);
        let stop = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            phase.send_replace(Phase::Drain);
        };
        tokio::join!(pump(reader, Stream::Stdout, &capture, drain), stop);
        let captured = capture.captured(Stream::Stdout);
        let spilled = std::fs::metadata(captured.spill.unwrap()).unwrap().len();
        assert_eq!(spilled, captured.bytes);
        // The reading end is closed, so the writer met EPIPE.
        endless.join().unwrap();
    }

    #[tokio::test]
    async fn a_full_disk_costs_the_copy_and_nothing_else() {
        let (base, capture) = capture(4);
        let copy = base.path().join("copy");
        std::fs::write(&copy, "").unwrap();
        capture.side(Stream::Stderr).copy = Copy::Whole(copy.clone());
        let mut copier = Copier {
            writer: Some(Writer::full(copy.clone(), Arc::clone(&capture.dir))),
            stream: Stream::Stderr,
            capture: &capture,
        };
        copier.accept(b"abcdef").await;
        copier.accept(b"gh").await;
        copier.finish().await;
        assert_eq!(
            capture.captured(Stream::Stderr),
            Captured {
                text: "efgh".to_owned(),
                truncated: true,
                bytes: 8,
                spill: None,
            }
        );
        assert!(!copy.exists());
    }
}
