//! The cell's own process: enters the namespaces, keeps the views, starts an init per command.
//!
//! Rule: one thread, no work while idle, and it ends with its harness: every init dies with it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};
use rustix::process::WaitOptions;

use super::init;
use super::message::{
    Attend, Failure, FailureKind as Kind, Go, Launch, Report, SetUp, Step, ToCell,
};
use super::view::{ViewId, Views};
use super::wire;
use crate::plan::{Plan, Proc, Tree};
use crate::sys::{self, Child};

/// Runs the cell and ends the process. The socket to the harness is standard input.
pub(crate) fn run() -> ! {
    let status = match serve() {
        Ok(()) => 0,
        Err(failure) => {
            tracing::debug!(?failure, "cell ends");
            1
        }
    };
    sys::exit_now(status)
}

/// A command that runs: the control socket is kept open until its init has been reaped, so that the
/// harness sees its end only when everything is gone.
struct Running {
    init: Pid,
    _control: OwnedFd,
}

struct Cell {
    setup: SetUp,
    views: Option<Views>,
    /// The view that the cell is in.
    at: Option<ViewId>,
    ready: Option<Ready>,
    /// What the next command will want, as long as nothing is ready for it.
    wanted: Option<Plan>,
    /// A command was started before.
    launched: bool,
    pid: u32,
    notes: Vec<String>,
}

/// An init that waits, and a confined process that waits to become a command. Closing the sockets ends
/// both.
struct Ready {
    init: Pid,
    to_init: OwnedFd,
    to_command: OwnedFd,
    at: Option<ViewId>,
    plan: Plan,
}

impl Ready {
    fn go(
        &self,
        go: &Go,
        control: &OwnedFd,
        of_command: &[BorrowedFd<'_>],
    ) -> Result<(), rustix::io::Errno> {
        wire::send(&self.to_init, &Attend, &[control.as_fd()])?;
        // A process that could not be confined has gone, and its init tells why.
        wire::send(&self.to_command, go, of_command).or_else(|errno| match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => Ok(()),
            other => Err(other),
        })
    }
}

/// How long a command may run before the next one is prepared for, in milliseconds.
const SOON: u8 = 20;

fn serve() -> Result<(), Failure> {
    let (socket, ready) = match hygiene() {
        Ok(socket) => (socket, Ok(())),
        // The harness waits on standard input for the reason.
        Err(failure) => {
            let socket = rustix::io::dup(std::io::stdin()).step(Kind::SetUp, "dup")?;
            (socket, Err(failure))
        }
    };
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), None).step(Kind::SetUp, "block SIGCHLD")?;
    let children = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .step(Kind::SetUp, "signalfd")?;

    let Some((setup, _)) = wire::receive::<SetUp>(&socket).step(Kind::SetUp, "receive")? else {
        return Ok(());
    };
    let mut cell = ready.and_then(|()| Cell::enter(setup));
    let mut running: Vec<Running> = Vec::new();
    let mut in_good_order = false;
    loop {
        let mut polled = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        let wait = match &cell {
            Ok(cell) if cell.wanted.is_some() => PollTimeout::from(SOON),
            Ok(_) | Err(_) => PollTimeout::NONE,
        };
        let idle = match poll(&mut polled, wait) {
            Ok(ready) => ready == 0,
            Err(Errno::EINTR) => false,
            Err(errno) => return Err(errno).step(Kind::SetUp, "poll"),
        };
        let ready = |at: usize| polled[at].any().unwrap_or(false);
        let (from_harness, from_children) = (ready(0), ready(1));
        if from_children {
            while children.read_signal().is_ok_and(|signal| signal.is_some()) {}
            reap(&mut running);
        }
        if (from_children || idle)
            && !from_harness
            && let Ok(cell) = &mut cell
        {
            cell.make_ready();
        }
        if from_harness {
            match wire::receive::<ToCell>(&socket) {
                Ok(Some((ToCell::Leave, _))) => {
                    in_good_order = true;
                    break;
                }
                Ok(Some((ToCell::Launch(launch), descriptors))) => {
                    running.extend(match &mut cell {
                        Ok(cell) => cell.launch(&launch, descriptors),
                        Err(failure) => refuse(failure.clone(), &descriptors),
                    });
                }
                Ok(None) => break,
                Err(errno) => return Err(errno).step(Kind::SetUp, "receive"),
            }
        }
    }
    if let Ok(cell) = &mut cell {
        cell.ready = None;
    }
    // Without a PID namespace an init has to end what it started.
    let end = match &cell {
        Ok(cell) if !cell.setup.namespaces => Signal::SIGTERM,
        Ok(_) | Err(_) => Signal::SIGKILL,
    };
    for command in &running {
        // It may have ended by itself.
        kill(command.init, end).or_else(ignore_gone).ok();
    }
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
    match &cell {
        Ok(cell) if !in_good_order => cell.clean_up(),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn ignore_gone(errno: Errno) -> Result<(), Errno> {
    if errno == Errno::ESRCH {
        Ok(())
    } else {
        Err(errno)
    }
}

/// Closes what the harness left open, and takes the socket away from standard input.
fn hygiene() -> Result<OwnedFd, Failure> {
    sys::close_all_from(3).step(Kind::SetUp, "close_range")?;
    let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 20)
        .step(Kind::SetUp, "duplicate the socket")?;
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")
        .step(Kind::SetUp, "open /dev/null")?;
    rustix::stdio::dup2_stdin(&null).step(Kind::SetUp, "dup2")?;
    rustix::stdio::dup2_stdout(&null).step(Kind::SetUp, "dup2")?;
    rustix::stdio::dup2_stderr(&null).step(Kind::SetUp, "dup2")?;
    // Already a leader when started by hand from a terminal: then there is nothing to leave.
    setsid().ok();
    std::env::set_current_dir("/").step(Kind::SetUp, "chdir /")?;
    Ok(socket)
}

fn reap(running: &mut Vec<Running>) {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, _))) => {
                running.retain(|command| command.init.as_raw() != pid.as_raw_nonzero().get());
            }
            Ok(None) | Err(_) => return,
        }
    }
}

/// Tells the harness that a command never ran.
fn refuse(failure: Failure, descriptors: &[OwnedFd]) -> Option<Running> {
    if let Some(control) = descriptors.first() {
        // A harness that has gone needs no answer.
        wire::send(control, &Report::Failed(failure), &[]).ok();
    }
    None
}

impl Cell {
    fn enter(setup: SetUp) -> Result<Cell, Failure> {
        let mut notes = Vec::new();
        let views = if setup.namespaces {
            enter_namespaces(&setup)?;
            if setup.own_network
                && let Err(errno) = sys::loopback_up()
            {
                notes.push(format!(
                    "loopback, which could not be brought up ({})",
                    crate::outcome::errno_name(errno)
                ));
            }
            Some(Views::new()?)
        } else {
            None
        };
        Ok(Cell {
            setup,
            views,
            at: None,
            ready: None,
            wanted: None,
            launched: false,
            pid: std::process::id(),
            notes,
        })
    }

    /// Removes what a killed harness has left of the session.
    fn clean_up(&self) -> Result<(), Failure> {
        if let Some(views) = &self.views {
            views.enter_base()?;
        }
        let mut done = Ok(());
        for folder in &self.setup.remove_at_end {
            let folder = std::ffi::OsStr::from_bytes(folder.to_bytes());
            match std::fs::remove_dir_all(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    done = Err(error).step(Kind::SetUp, "remove a folder of the session");
                }
                Ok(()) | Err(_) => {}
            }
        }
        done
    }

    fn launch(&mut self, launch: &Launch, descriptors: Vec<OwnedFd>) -> Option<Running> {
        match self.start(launch, &descriptors) {
            Ok(init) => {
                let running = descriptors.into_iter().next().map(|control| Running {
                    init,
                    _control: control,
                });
                if self.setup.prepare {
                    self.wanted = Some(launch.plan.clone());
                }
                running
            }
            Err(failure) => refuse(failure, &descriptors),
        }
    }

    fn start(&mut self, launch: &Launch, descriptors: &[OwnedFd]) -> Result<Pid, Failure> {
        let plan = &launch.plan;
        if let (Some(views), Some(view)) = (&mut self.views, &plan.view) {
            self.at =
                Some(views.enter(view, plan.runtime_folder.as_ref(), launch.spill.as_ref())?);
        }
        let [control, of_command @ ..] = descriptors else {
            return Err(Failure::new(
                Kind::SetUp,
                "receive descriptors",
                Errno::EBADF,
            ));
        };
        let of_command: Vec<_> = of_command.iter().map(AsFd::as_fd).collect();
        if let Some(ready) = self.ready.take()
            && ready.at == self.at
            && ready.plan == *plan
            // One that has died is no loss: there is the other way.
            && ready.go(&launch.go, control, &of_command).is_ok()
        {
            return Ok(ready.init);
        }
        let ready = self.prepare(plan)?;
        self.launched = true;
        ready
            .go(&launch.go, control, &of_command)
            .step(Kind::SetUp, "ask an init")?;
        Ok(ready.init)
    }

    /// Prepares for the next command, when the one before it has ended or has run for a moment: while it
    /// begins, it should have the machine to itself.
    fn make_ready(&mut self) {
        if let Some(plan) = self.wanted.take() {
            // What is wrong is told to the command that needs it.
            self.ready = self.prepare(&plan).ok();
        }
    }

    /// An init with a confined process that waits to become a command.
    fn prepare(&self, plan: &Plan) -> Result<Ready, Failure> {
        let (to_init, init_end) = wire::pair().step(Kind::SetUp, "socketpair")?;
        let (to_command, command_end) = wire::pair().step(Kind::SetUp, "socketpair")?;
        let keep = [init_end.as_fd(), command_end.as_fd()];
        let init = match self.fork_init(plan.tree, &keep)? {
            Child::Here => {
                let place = init::Place {
                    cell: self.pid,
                    own_network: self.setup.own_network,
                    notes: &self.notes,
                };
                init::run(&init_end, command_end, plan, &place)
            }
            Child::There(init) => init,
        };
        Ok(Ready {
            init,
            to_init,
            to_command,
            at: self.at,
            plan: plan.clone(),
        })
    }

    /// A fork in which only these descriptors are open: other commands' sockets would otherwise stay open
    /// as long as this one runs.
    fn fork_init(&self, tree: Tree, keep: &[BorrowedFd<'_>]) -> Result<Child, Failure> {
        let namespaces = match tree {
            // The one command of a session may have the view itself.
            Tree::PidNamespace { .. } if self.setup.only_one && !self.launched => {
                libc::CLONE_NEWPID
            }
            Tree::PidNamespace { .. } => libc::CLONE_NEWPID | libc::CLONE_NEWNS,
            Tree::Subreaper => 0,
        };
        let side = sys::fork_into(namespaces).step(Kind::Clone, "clone PID and mount namespace")?;
        if side == Child::Here && sys::close_all_but(keep).is_err() {
            sys::exit_now(1);
        }
        Ok(side)
    }
}

/// Unshares everything that a session keeps, with the caller's user and group inside.
fn enter_namespaces(setup: &SetUp) -> Result<(), Failure> {
    let mut flags = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS;
    if setup.own_network {
        flags |= CloneFlags::CLONE_NEWNET;
    }
    if setup.uid == 0 && full_map(flags)? {
        return Ok(());
    }
    if setup.uid != 0 {
        unshare(flags).step(Kind::Namespaces, "unshare user namespace")?;
    }
    let write = |file: &str, text: String| {
        std::fs::write(file, text).step(Kind::Namespaces, &format!("write {file}"))
    };
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{0} {0} 1", setup.uid))?;
    write("/proc/self/gid_map", format!("{0} {0} 1", setup.gid))
}

/// Root keeps every user that it has, so that it can work on files of others that it may write. A
/// process that stays outside writes the maps. False: only the caller's own user can be mapped.
fn full_map(flags: CloneFlags) -> Result<bool, Failure> {
    let identity = |file: &str| -> Result<String, Failure> {
        let map = std::fs::read_to_string(file).step(Kind::Namespaces, "read the user map")?;
        Ok(map
            .lines()
            .filter_map(|line| {
                let mut words = line.split_whitespace();
                let (inside, _, count) = (words.next()?, words.next()?, words.next()?);
                Some(format!("{inside} {inside} {count}\n"))
            })
            .collect())
    };
    let (users, groups) = (
        identity("/proc/self/uid_map")?,
        identity("/proc/self/gid_map")?,
    );
    let cell = std::process::id();
    let (ready, wait) = wire::pair().step(Kind::SetUp, "socketpair")?;
    match sys::fork().step(Kind::SetUp, "fork")? {
        Child::Here => {
            drop(ready);
            let go = rustix::io::read(&wait, &mut [0u8; 1]) == Ok(1);
            let done = go
                && std::fs::write(format!("/proc/{cell}/uid_map"), users).is_ok()
                && std::fs::write(format!("/proc/{cell}/gid_map"), groups).is_ok();
            sys::exit_now(i32::from(!done));
        }
        Child::There(writer) => {
            drop(wait);
            unshare(flags).step(Kind::Namespaces, "unshare user namespace")?;
            rustix::io::write(&ready, b"g").step(Kind::SetUp, "write")?;
            let status = waitpid(writer, None).step(Kind::SetUp, "waitpid")?;
            Ok(status == WaitStatus::Exited(writer, 0))
        }
    }
}

/// Mounts the command's own `/proc`.
pub(super) fn mount_proc(proc: Proc) -> Result<(), Failure> {
    use rustix::mount::{MountFlags, mount};
    let hardened = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match proc {
        Proc::Fresh => mount(c"proc", c"/proc", c"proc", hardened, None),
        Proc::FreshReadOnly => mount(
            c"proc",
            c"/proc",
            c"proc",
            hardened | MountFlags::RDONLY,
            None,
        ),
        Proc::Empty => mount(
            c"tmpfs",
            c"/proc",
            c"tmpfs",
            hardened | MountFlags::RDONLY,
            Some(c"mode=0555,size=4k"),
        ),
    }
    .step(Kind::Proc, "mount /proc")
}
