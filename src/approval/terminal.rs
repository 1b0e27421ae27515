//! Asking the person at the controlling terminal, for `cofferdam run`.
//!
//! Rule: only the whole word `allow`, typed after the question was shown, allows. What was typed ahead is
//! dropped; an empty line, anything else, the end of input and no answer in time reject or cancel.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{FlushArg, tcflush};

use super::{Answer, Answerer, Question};

/// How long the terminal waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// The longest line that is read.
const MAX_LINE: usize = 1024;

/// How often a question that nobody needs any more is looked for.
const GLANCE_MS: u16 = 200;

/// The answerer at `/dev/tty`.
pub struct Terminal {
    /// How long a question waits, as in [`PATIENCE`].
    pub patience: Duration,
}

#[async_trait]
impl Answerer for Terminal {
    async fn ask(&self, question: &Question) -> Answer {
        let by = "the person at the terminal".to_owned();
        match ask(question.text(), self.patience).await {
            Some(Typed::Allow) => Answer::AllowedOnce { by },
            Some(Typed::Reject) => Answer::Rejected { by },
            Some(Typed::Nothing) => Answer::Cancelled { by },
            None => Answer::Unavailable,
        }
    }
}

/// What came from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// `allow`.
    Allow,
    /// Anything else, an empty line included.
    Reject,
    /// The end of input, or no line in time.
    Nothing,
}

/// Shows `question` at the controlling terminal and reads one line. Dropping the future takes the
/// question back. `None` when there is no terminal, or this process isn't in its foreground.
pub async fn ask(question: String, patience: Duration) -> Option<Typed> {
    let terminal = foreground_terminal()?;
    let needed = Arc::new(AtomicBool::new(true));
    let _taken_back = TakeBack(needed.clone());
    let asking = tokio::task::spawn_blocking(move || {
        tcflush(&terminal, FlushArg::TCIFLUSH)?;
        converse(&terminal, &question, patience, &needed)
    });
    match asking.await {
        Ok(Ok(typed)) => Some(typed),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the terminal can't be used");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the question was lost");
            None
        }
    }
}

struct TakeBack(Arc<AtomicBool>);

impl Drop for TakeBack {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn foreground_terminal() -> Option<File> {
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/tty")
        .ok()?;
    // Reading in the background would stop this process (SIGTTIN).
    let foreground = nix::unistd::tcgetpgrp(&terminal).ok()?;
    (foreground == nix::unistd::getpgrp()).then_some(terminal)
}

fn converse(
    mut terminal: &File,
    question: &str,
    patience: Duration,
    needed: &AtomicBool,
) -> io::Result<Typed> {
    terminal.write_all(
        format!("{question}\nType \"allow\" to allow it once; anything else rejects it: ")
            .as_bytes(),
    )?;
    let deadline = Instant::now() + patience;
    let mut line = Vec::new();
    while needed.load(Ordering::Relaxed) && Instant::now() < deadline {
        let mut ready = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(GLANCE_MS)) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut bytes = [0; 256];
        let read = terminal.read(&mut bytes)?;
        line.extend_from_slice(&bytes[..read]);
        if read == 0 {
            break;
        }
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            return Ok(if line[..end].trim_ascii() == b"allow" {
                Typed::Allow
            } else {
                Typed::Reject
            });
        }
        if line.len() > MAX_LINE {
            return Ok(Typed::Reject);
        }
    }
    terminal.write_all(b"\n")?;
    Ok(Typed::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is understood when `typed` comes from a pseudo-terminal, and what was shown there.
    fn typed(input: &[u8], patience: Duration) -> (Typed, String) {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut person = File::from(pty.master);
        let terminal = File::from(pty.slave);
        person.write_all(input).unwrap();
        let typed = converse(&terminal, "Run it?", patience, &AtomicBool::new(true)).unwrap();
        // All that was shown is there; its end is the error of a terminal that nobody has open.
        drop(terminal);
        let mut shown = Vec::new();
        let end = person.read_to_end(&mut shown).unwrap_err();
        assert_eq!(end.raw_os_error(), Some(libc::EIO));
        (typed, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn only_the_whole_word_allows() {
        let patience = Duration::from_secs(5);
        assert_eq!(typed(b"allow\n", patience).0, Typed::Allow);
        for other in [
            &b"\n"[..],
            b"y\n",
            b"yes\n",
            b"allow once\n",
            b"ALLOW\n",
            b"reject\n",
        ] {
            assert_eq!(typed(other, patience).0, Typed::Reject, "{other:?}");
        }
    }

    #[test]
    fn the_end_of_input_and_silence_are_no_answer() {
        assert_eq!(typed(b"\x04", Duration::from_secs(5)).0, Typed::Nothing);
        assert_eq!(typed(b"", Duration::from_millis(300)).0, Typed::Nothing);
    }

    #[test]
    fn the_question_is_shown_before_the_prompt() {
        let (_, shown) = typed(b"\n", Duration::from_secs(5));
        assert!(
            shown
                .contains("Run it?\r\nType \"allow\" to allow it once; anything else rejects it: "),
            "{shown:?}"
        );
    }
}
