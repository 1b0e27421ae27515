//! The pump: reads a pipe until its end and feeds the taps, the spill file and the tail.
//!
//! Rule: nothing is read that isn't kept; while a spill file is written nothing is read, so that the
//! command waits instead of memory growing; a pipe that someone holds open never delays the end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
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
    rustix::io::ioctl_fionbio(&pipe, true)?;
    let capacity = rustix::pipe::fcntl_getpipe_size(&pipe)?;
    let pipe = AsyncFd::with_interest(pipe, Interest::READABLE)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let mut ready = tokio::select! {
            ready = pipe.readable() => ready?,
            _ = phase.wait_for(|phase| *phase == Phase::Drain) => break,
        };
        match ready.try_io(|pipe| Ok(rustix::io::read(pipe, &mut buffer[..])?)) {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(count)) => copier.accept(&buffer[..count]).await,
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    // Everything that was written before now fits into the pipe, so a writer that goes on for ever is
    // left behind after one pipe's worth. The read is direct: readiness may not have been told yet.
    let mut drained = 0;
    while drained < capacity {
        match rustix::io::read(pipe.get_ref(), &mut buffer[..]) {
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
