//! The init of one command: starts it, answers its supervised calls, reaps, ends what it left behind,
//! and reports how it ended.
//!
//! Rule: the report is sent when nothing of the command is left; the control socket's end means the
//! harness has gone, and then everything ends at once.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use rustix::process::{WaitOptions, WaitStatus};

use super::last_steps::{self, FromChild};
use super::message::{Attend, Failure, FailureKind as Kind, Report, Step};
use super::process::mount_proc;
use super::supervisor::Supervisor;
use super::wire;
use crate::outcome::Ended;
use crate::plan::{Plan, Tree};
use crate::sys::{self, Child};

/// What the harness may ask of an init, one byte each.
pub(crate) const TERMINATE: &[u8] = b"T";
/// End everything now.
pub(crate) const KILL: &[u8] = b"K";

/// How long processes that outlive the command's own may take to end by themselves: the readers of its
/// pipes (`exec > >(tee log)`) need a moment to write what they were sent.
const LINGER: Duration = Duration::from_millis(150);

/// Prepares everything that doesn't depend on the command, the confined process that will become it
/// included, waits for the command's control socket, attends to it and ends the process.
pub(super) fn run(from_cell: &OwnedFd, to_command: OwnedFd, plan: &Plan, place: &Place<'_>) -> ! {
    let prepared = prepare(to_command, plan, place);
    let control = match wire::receive::<Attend>(from_cell) {
        Ok(Some((Attend, descriptors))) => descriptors.into_iter().next(),
        // The cell has gone, or needs another one.
        Ok(None) | Err(_) => None,
    };
    let Some(control) = control else {
        sys::exit_now(0)
    };
    let report = match prepared {
        Ok(prepared) => Command::new(prepared, plan, &control, place).attend(),
        Err(failure) => Some(Report::Failed(failure)),
    };
    if let Some(report) = report {
        // A harness that has gone needs no report.
        wire::send(&control, &report, &[]).ok();
    }
    sys::exit_now(0)
}

/// Where an init runs.
pub(super) struct Place<'a> {
    /// The cell's process id.
    pub cell: u32,
    /// Whether the session has a network namespace of its own.
    pub own_network: bool,
    /// What the set-up of the cell had to leave out.
    pub notes: &'a [String],
}

struct Prepared {
    main: Pid,
    /// Tells the listener or a failure, and its end that the command has begun.
    child: OwnedFd,
    children: SignalFd,
    supervisor: Supervisor,
}

struct Command<'a> {
    main: Pid,
    tree: Tree,
    control: &'a OwnedFd,
    child: Option<OwnedFd>,
    children: SignalFd,
    supervisor: Supervisor,
    notes: &'a [String],
    ended: Option<Ended>,
    cell_gone: bool,
}

fn prepare(to_command: OwnedFd, plan: &Plan, place: &Place<'_>) -> Result<Prepared, Failure> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    let when_the_cell_dies = match plan.tree {
        Tree::PidNamespace { .. } => Signal::SIGKILL,
        // Its own death would leave the command behind: it hears of the cell's and ends everything.
        Tree::Subreaper => {
            signals.add(Signal::SIGTERM);
            Signal::SIGTERM
        }
    };
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None).step(Kind::SetUp, "block signals")?;
    prctl::set_pdeathsig(when_the_cell_dies).step(Kind::SetUp, "set the parent-death signal")?;
    prctl::set_dumpable(false).step(Kind::SetUp, "set not dumpable")?;
    match plan.tree {
        Tree::PidNamespace { .. } if std::process::id() != 1 => {
            return Err(Failure::new(Kind::Clone, "become pid 1", Errno::ESRCH));
        }
        Tree::PidNamespace { proc } => mount_proc(proc)?,
        Tree::Subreaper => {
            prctl::set_child_subreaper(true).step(Kind::SetUp, "become a subreaper")?;
            if nix::unistd::getppid().as_raw().cast_unsigned() != place.cell {
                return Err(Failure::new(Kind::SetUp, "the cell is gone", Errno::ESRCH));
            }
            // Else the numbers there would be those of other processes.
            let own = std::fs::read_link("/proc/self").unwrap_or_default();
            if own.to_str() != Some(&std::process::id().to_string()) {
                return Err(Failure::new(
                    Kind::SetUp,
                    "find the command's processes: /proc isn't that of this PID namespace",
                    Errno::ESRCH,
                ));
            }
        }
    }
    let children = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .step(Kind::SetUp, "signalfd")?;
    let supervisor = Supervisor::new(plan, place.own_network)?;
    let (child, to_init) = wire::pair().step(Kind::SetUp, "socketpair")?;
    match sys::fork().step(Kind::Clone, "fork")? {
        Child::Here => last_steps::become_command(plan, to_command, &to_init),
        Child::There(main) => Ok(Prepared {
            main,
            child,
            children,
            supervisor,
        }),
    }
}

impl<'a> Command<'a> {
    fn new(
        prepared: Prepared,
        plan: &Plan,
        control: &'a OwnedFd,
        place: &Place<'a>,
    ) -> Command<'a> {
        Command {
            main: prepared.main,
            tree: plan.tree,
            control,
            child: Some(prepared.child),
            children: prepared.children,
            supervisor: prepared.supervisor,
            notes: place.notes,
            ended: None,
            cell_gone: false,
        }
    }

    /// Until the command and everything that it started have ended. `None`: nobody is there to tell.
    fn attend(&mut self) -> Option<Report> {
        let mut linger: Option<Instant> = None;
        loop {
            let timeout = match linger {
                None => PollTimeout::NONE,
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
                }
            };
            let woken = self.wait(timeout);
            if woken.child
                && let Some(failure) = self.hear_child()
            {
                return Some(self.never_ran(failure));
            }
            if woken.control && self.hear_harness() == Harness::Gone {
                self.end_everything();
                return None;
            }
            if woken.listener {
                self.supervisor.attend();
            } else if woken.hung_up {
                self.supervisor.hang_up();
            }
            let left = if woken.children {
                self.reap()
            } else {
                Left::Something
            };
            if self.cell_gone {
                self.end_everything();
                return None;
            }
            if self.ended.is_some() {
                // What it said before it became the command, or why it didn't, is all there by now.
                while self.child.is_some() {
                    if let Some(failure) = self.hear_child() {
                        return Some(self.never_ran(failure));
                    }
                }
                if left == Left::Nothing {
                    break;
                }
                linger.get_or_insert_with(|| Instant::now() + LINGER);
            }
        }
        self.end_everything();
        let (events, events_lost) = self.supervisor.finish();
        Some(Report::Exited {
            ended: self.ended?,
            events,
            events_lost,
        })
    }

    fn never_ran(&mut self, failure: Failure) -> Report {
        self.end_everything();
        Report::Failed(failure)
    }

    fn wait(&self, timeout: PollTimeout) -> Woken {
        // poll(2) has no word for "not this one"; the children's descriptor stands in for what isn't there.
        let (child, listener) = (self.child.as_ref(), self.supervisor.listener());
        let mut polled = [
            self.control.as_fd(),
            self.children.as_fd(),
            self.or_children(child),
            self.or_children(listener),
        ]
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        // Interrupted or out of memory: look at everything again.
        if poll(&mut polled, timeout).is_err() {
            return Woken::default();
        }
        let [control, children, from_child, from_listener] =
            polled.map(|fd| fd.revents().unwrap_or(PollFlags::empty()));
        Woken {
            control: !control.is_empty(),
            children: !children.is_empty(),
            child: child.is_some() && !from_child.is_empty(),
            listener: listener.is_some() && from_listener.contains(PollFlags::POLLIN),
            hung_up: listener.is_some() && from_listener.contains(PollFlags::POLLHUP),
        }
    }

    fn or_children<'b>(&'b self, fd: Option<&'b OwnedFd>) -> BorrowedFd<'b> {
        fd.map_or(self.children.as_fd(), |fd| fd.as_fd())
    }

    /// The child sends its listener, or why it never ran; it closes its end by becoming the command.
    fn hear_child(&mut self) -> Option<Failure> {
        let socket = self.child.as_ref()?;
        match wire::receive::<FromChild>(socket) {
            Ok(Some((FromChild::Listener, descriptors))) => {
                self.supervisor.listen(descriptors.into_iter().next());
                None
            }
            Ok(Some((FromChild::Failed(failure), _))) => Some(failure),
            Ok(None) | Err(_) => {
                self.child = None;
                let started = Report::Started {
                    notes: self.notes.to_vec(),
                };
                wire::send(self.control, &started, &[]).ok();
                None
            }
        }
    }

    fn hear_harness(&self) -> Harness {
        let mut word = [0u8; 8];
        match rustix::io::read(self.control, &mut word) {
            Ok(0) | Err(_) => Harness::Gone,
            Ok(_) => {
                if word.starts_with(KILL) {
                    self.signal_all(Signal::SIGKILL);
                } else if word.starts_with(TERMINATE) {
                    self.signal_all(Signal::SIGTERM);
                    // A stopped process only ends when it goes on.
                    self.signal_all(Signal::SIGCONT);
                }
                Harness::There
            }
        }
    }

    fn reap(&mut self) -> Left {
        while let Ok(Some(signal)) = self.children.read_signal() {
            self.cell_gone |= signal.ssi_signo == Signal::SIGTERM as u32;
        }
        loop {
            // Not nix's, which has no value for an end by a real-time signal.
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.note(pid, status),
                Ok(None) => return Left::Something,
                Err(_) => return Left::Nothing,
            }
        }
    }

    fn note(&mut self, pid: rustix::process::Pid, status: WaitStatus) {
        if pid.as_raw_nonzero().get() == self.main.as_raw() {
            let exited = status.exit_status().map(Ended::Exited);
            let ended = exited.or_else(|| status.terminating_signal().map(Ended::Signalled));
            self.ended = ended.or(self.ended);
        }
    }

    fn signal_all(&self, signal: Signal) {
        match self.tree {
            // From pid 1 this reaches every process of the namespace but itself; from any other it would
            // reach every process of the caller's user.
            Tree::PidNamespace { .. } if std::process::id() != 1 => {}
            Tree::PidNamespace { .. } => {
                kill(Pid::from_raw(-1), signal).ok();
            }
            Tree::Subreaper => {
                for pid in descendants() {
                    kill(pid, signal).ok();
                }
            }
        }
    }

    fn end_everything(&mut self) {
        loop {
            self.signal_all(Signal::SIGKILL);
            match self.tree {
                Tree::PidNamespace { .. } => {
                    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::empty())
                    {
                        self.note(pid, status);
                    }
                    return;
                }
                Tree::Subreaper => {
                    if self.reap() == Left::Nothing {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    control: bool,
    children: bool,
    child: bool,
    listener: bool,
    hung_up: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harness {
    There,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    Something,
}

/// Every process below this one, found through the parents that `/proc` names.
fn descendants() -> Vec<Pid> {
    let mut parents: Vec<(i32, i32)> = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = std::fs::read(entry.path().join("stat")).unwrap_or_default();
        // The name in brackets may hold anything; the parent is the second word after the last bracket.
        let parent = stat
            .iter()
            .rposition(|byte| *byte == b')')
            .and_then(|at| std::str::from_utf8(&stat[at + 1..]).ok())
            .and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            parents.push((pid, parent));
        }
    }
    let mut found: Vec<i32> = vec![std::process::id().cast_signed()];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(
            parents
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    found.into_iter().skip(1).map(Pid::from_raw).collect()
}
