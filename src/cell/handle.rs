//! The harness's end: starting cells, sending commands to them, hearing how they end.
//!
//! Rule: a cell ends when its socket is closed, and a command when its control socket is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::message::{Launch, Report, SetUp, ToCell};
use super::{CELL_NAME, init, process, wire};
use crate::sys::{self, Child};

/// A cell that runs.
pub(crate) struct Cell {
    socket: OwnedFd,
    process: Process,
}

enum Process {
    Spawned(tokio::process::Child),
    Forked(Pid),
}

/// A cell that was forked from this process before it had a second thread, and enters what it was told
/// while this process gets on.
#[derive(Debug)]
pub struct Ahead {
    pub(super) setup: SetUp,
    socket: OwnedFd,
    process: Pid,
}

/// Forks a cell for the first session of a program that runs one command. Only for a `main` that has
/// started no thread; `None` when it can't be forked, or when there is one already. `own_network`: a
/// network namespace of its own, as every mode has unless it is told otherwise.
pub fn fork_ahead(own_network: bool) -> Option<Ahead> {
    let setup = SetUp {
        namespaces: true,
        own_network,
        prepare: false,
        only_one: true,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        remove_at_end: Vec::new(),
    };
    if !sys::is_single_threaded() {
        return None;
    }
    let (ours, theirs) = wire::pair().ok()?;
    match sys::fork().ok()? {
        Child::Here => {
            drop(ours);
            if sys::place_descriptor(&theirs, 0).is_err() {
                sys::exit_now(1);
            }
            process::run()
        }
        Child::There(process) => {
            wire::send(&ours, &setup, &[]).ok()?;
            Some(Ahead {
                setup,
                socket: ours,
                process,
            })
        }
    }
}

impl Ahead {
    /// The cell, if it was set up like this.
    pub(crate) fn into_cell(self, setup: &SetUp) -> Option<Cell> {
        (self.setup == *setup).then_some(Cell {
            socket: self.socket,
            process: Process::Forked(self.process),
        })
    }
}

/// The descriptors of a command: what it reads and writes, and the script that it was given.
pub(crate) struct Incoming<'a> {
    pub stdin: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
    pub script: Option<BorrowedFd<'a>>,
}

impl Cell {
    /// Starts a cell from the cofferdam binary. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The binary can't be started.
    pub fn start(binary: &Path, setup: &SetUp) -> std::io::Result<Cell> {
        let (ours, theirs) = wire::pair()?;
        let mut command = std::process::Command::new(binary);
        command
            .arg0(CELL_NAME)
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = tokio::process::Command::from(command).spawn()?;
        wire::send(&ours, setup, &[])?;
        Ok(Cell {
            socket: ours,
            process: Process::Spawned(process),
        })
    }

    /// Asks for a command. Its fate comes over the returned control socket.
    ///
    /// # Errors
    /// `EPIPE` when the cell has gone.
    pub fn launch(&self, launch: Launch, incoming: &Incoming<'_>) -> Result<Control, Errno> {
        let plain = |errno: rustix::io::Errno| Errno::from_raw(errno.raw_os_error());
        let (ours, theirs) = wire::pair().map_err(plain)?;
        let mut descriptors = vec![
            theirs.as_fd(),
            incoming.stdin,
            incoming.stdout,
            incoming.stderr,
        ];
        descriptors.extend(incoming.script);
        wire::send(
            &self.socket,
            &ToCell::Launch(Box::new(launch)),
            &descriptors,
        )
        .map_err(plain)?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(plain)?;
        // tokio's type for a UNIX socket; it is only waited on, and read by `wire`.
        let ours = UnixStream::from_std(ours.into())
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        Ok(Control { socket: ours })
    }

    /// Ends the cell and everything in it, and waits until it is gone.
    pub async fn end(self) {
        let Cell { socket, process } = self;
        // One that has gone already needs no word.
        wire::send(&socket, &ToCell::Leave, &[]).ok();
        drop(socket);
        match process {
            // An error means that it has been reaped already.
            Process::Spawned(mut process) => drop(process.wait().await),
            Process::Forked(process) => {
                let reaped = tokio::task::spawn_blocking(move || waitpid(process, None).is_ok());
                reaped.await.ok();
            }
        }
    }
}

/// The control socket of a command. Dropping it ends everything that the command started.
pub(crate) struct Control {
    socket: UnixStream,
}

impl Control {
    /// The next report; `None` when the command's init and its cell are gone. Cancel-safe.
    pub async fn next(&self) -> Option<Report> {
        loop {
            self.socket.readable().await.ok()?;
            let received = self.socket.try_io(Interest::READABLE, || {
                wire::receive::<Report>(&self.socket).map_err(std::io::Error::from)
            });
            match received {
                Ok(report) => return report.map(|(report, _)| report),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    /// SIGTERM to everything of the command.
    pub fn terminate(&self) {
        self.ask(init::TERMINATE);
    }

    /// SIGKILL to everything of the command.
    pub fn kill(&self) {
        self.ask(init::KILL);
    }

    fn ask(&self, word: &[u8]) {
        // A command that has ended needs no signal.
        rustix::net::send(&self.socket, word, rustix::net::SendFlags::NOSIGNAL).ok();
    }
}
