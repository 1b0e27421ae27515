//! The direct launcher: a command as this process's own child, with nothing set on it.
//!
//! Rule: host namespaces, working set-user-id programs, a session of its own without a terminal; a cut
//! reaches the whole tree as far as `/proc` shows it. At a regular end the process group goes with the
//! command; a process that left the group with `setsid` is a daemon on purpose and stays.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rustix::process::{PidfdFlags, WaitId, WaitIdOptions};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, timeout_at};

use crate::executor::command;
use crate::executor::supervise::{Launched, Launcher, Running};
use crate::executor::{Captured, SandboxReport};
use crate::outcome::{Ended, NeverRan, NeverRanCode};
use crate::output::lock;
use crate::request::ExecSpec;

/// How long a killed tree may take to disappear before it is given up. Only processes of another user
/// (under `sudo`) and processes stuck in the kernel take so long.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Starts commands without any confinement.
pub(crate) struct Direct;

#[async_trait]
impl Launcher for Direct {
    async fn launch(&self, spec: &ExecSpec) -> Result<Launched, NeverRan> {
        spawn(spec)
    }
}

fn spawn(spec: &ExecSpec) -> Result<Launched, NeverRan> {
    command::check_workdir(&spec.workdir)?;
    let script = command::script(&spec.command)
        .map(|text| command::sealed("script", text))
        .transpose()
        .map_err(|errno| step("memfd_create", errno))?;
    let script_fd = command::script_number(script.as_ref());
    let argv = command::argv(&spec.command, script_fd);
    let [name, args @ ..] = argv.as_slice() else {
        return Err(command::failed("".as_ref(), Errno::ENOENT));
    };
    let program = command::find(&spec.command, &spec.env, &spec.workdir)?;
    let stdin = match &spec.stdin {
        None => Stdio::null(),
        Some(bytes) => command::sealed("stdin", bytes)
            .map_err(|errno| step("memfd_create", errno))?
            .into(),
    };
    let mut child = std::process::Command::new(program);
    child
        .arg0(name)
        .args(args)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(&spec.workdir)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    crate::sys::child::detach(&mut child, script.as_ref().map(|_| script_fd));
    let mut child = child
        .spawn()
        .map_err(|error| command::failed_to_run(name, command::os_error(&error)))?;
    let output = child.stdout.take().zip(child.stderr.take());
    let child = Child::adopt(child)?;
    // Both were asked for above, so both are there.
    let (stdout, stderr) = output.ok_or_else(|| step("pipe", Errno::EBADF))?;
    Ok(Launched {
        running: Box::new(child),
        stdout: stdout.into(),
        stderr: stderr.into(),
        witness: None,
    })
}

fn step(step: &str, errno: Errno) -> NeverRan {
    NeverRan::step(NeverRanCode::SpawnFailed, step, errno, "")
}

/// The child, its process group and whatever else descends from it.
struct Child {
    /// Stays a zombie until [`Running::gone`] is done, so that its number means nothing else.
    leader: Pid,
    pidfd: AsyncFd<OwnedFd>,
    ended: Option<Ended>,
    reaped: AtomicBool,
    killed: AtomicBool,
    /// Once there was a cut: every process that was seen in the tree, by number and start time.
    hunted: Mutex<Option<BTreeMap<i32, u64>>>,
    /// What could not be ended or learnt.
    missing: Vec<String>,
}

impl Child {
    fn adopt(mut child: std::process::Child) -> Result<Child, NeverRan> {
        let leader = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(leader, PidfdFlags::empty())
            .map_err(io::Error::from)
            .and_then(crate::sys::child::watch);
        match pidfd {
            Ok(pidfd) => Ok(Child {
                leader: Pid::from_raw(leader.as_raw_nonzero().get()),
                pidfd,
                ended: None,
                reaped: AtomicBool::new(false),
                killed: AtomicBool::new(false),
                hunted: Mutex::new(None),
                missing: Vec::new(),
            }),
            Err(error) => {
                let reaped = child.kill().and_then(|()| child.wait());
                tracing::warn!(?reaped, %error, "a child can't be watched and was killed");
                Err(step("pidfd_open", command::os_error(&error)))
            }
        }
    }

    /// Sends `signal` to the process group and to whatever else belongs to the tree.
    fn hunt(&self, signal: Signal) {
        if self.reaped.load(Ordering::Relaxed) {
            return;
        }
        // Looked for first: once the parents die, nothing tells whose children the others were.
        let tree = self.alive();
        signal_group(self.leader, signal);
        for process in tree {
            if process.group != self.leader.as_raw() {
                process.signal(signal);
            }
        }
    }

    /// The processes of the tree that still run. From now on none that was seen is forgotten.
    fn alive(&self) -> Vec<Process> {
        let mut hunted = lock(&self.hunted);
        let members = members(
            self.leader.as_raw(),
            hunted.get_or_insert_default(),
            processes(),
        );
        members.into_iter().filter(Process::is_alive).collect()
    }

    /// How many of the process group still run, the leader being reaped. The number may name another group
    /// by now, so this only asks and nothing is sent.
    fn alive_in_group(&self) -> usize {
        if killpg(self.leader, None) == Err(Errno::ESRCH) {
            return 0;
        }
        processes()
            .iter()
            .filter(|process| process.group == self.leader.as_raw() && process.is_alive())
            .count()
    }

    /// How the leader ended, without reaping it, once it has.
    fn peek(&mut self) -> Option<Ended> {
        if self.ended.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            self.ended =
                match rustix::process::waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), options)
                {
                    Ok(None) | Err(rustix::io::Errno::INTR) => None,
                    Ok(Some(status)) => {
                        Some(match (status.exit_status(), status.terminating_signal()) {
                            (Some(code), _) => Ended::Exited(code),
                            (None, Some(signal)) => Ended::Signalled(signal),
                            (None, None) => Ended::Signalled(libc::SIGKILL),
                        })
                    }
                    Err(_) => {
                        self.missing.push(
                        "how the command ended: the harness ignores SIGCHLD or waited for it itself"
                            .to_owned(),
                    );
                        Some(Ended::Signalled(libc::SIGKILL))
                    }
                };
        }
        self.ended
    }

    /// Waits for the rest of the tree after the leader's end.
    async fn rest_gone(&mut self, give_up: Option<Instant>) {
        let mut pause = Duration::from_millis(2);
        loop {
            let left = if lock(&self.hunted).is_some() {
                self.alive().len()
            } else {
                self.reap();
                self.alive_in_group()
            };
            if left == 0 {
                return;
            }
            if give_up.is_some_and(|instant| Instant::now() >= instant) {
                self.missing
                    .push("some processes of the command could not be ended".to_owned());
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
            if give_up.is_some() {
                self.kill();
            }
        }
    }

    fn reap(&self) {
        if !self.reaped.swap(true, Ordering::Relaxed) {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let done =
                rustix::process::waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), options);
            if let Err(error) = done {
                tracing::debug!(%error, "a child could not be reaped");
            }
        }
    }
}

#[async_trait]
impl Running for Child {
    fn terminate(&self) {
        self.hunt(Signal::SIGTERM);
        // A stopped process takes its SIGTERM only when it goes on.
        self.hunt(Signal::SIGCONT);
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        if self.ended.is_none() || lock(&self.hunted).is_some() {
            self.hunt(Signal::SIGKILL);
        } else if !self.reaped.load(Ordering::Relaxed) {
            signal_group(self.leader, Signal::SIGKILL);
        }
    }

    async fn exited(&mut self) {
        while self.peek().is_none() {
            match self.pidfd.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(error) => {
                    tracing::warn!(%error, "a process can't be watched");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn gone(&mut self) -> Ended {
        let give_up = self
            .killed
            .load(Ordering::Relaxed)
            .then(|| Instant::now() + GIVE_UP);
        let exited = match give_up {
            Some(instant) => timeout_at(instant, self.exited()).await.is_ok(),
            None => {
                self.exited().await;
                true
            }
        };
        if exited {
            self.rest_gone(give_up).await;
            self.reap();
        } else {
            self.missing
                .push("the command runs as another user and could not be ended".to_owned());
        }
        self.ended.unwrap_or(Ended::Signalled(libc::SIGKILL))
    }

    async fn report(
        &mut self,
        spec: &ExecSpec,
        _ended: Ended,
        _stdout: &Captured,
        _stderr: &Captured,
    ) -> SandboxReport {
        SandboxReport {
            changed: Vec::new(),
            mode: spec.mode,
            level: None,
            missing: std::mem::take(&mut self.missing),
            denials: Vec::new(),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.reaped.load(Ordering::Relaxed) {
            return;
        }
        self.hunt(Signal::SIGKILL);
        match self.pidfd.get_ref().try_clone() {
            Ok(pidfd) => reap_later(pidfd),
            Err(error) => tracing::debug!(%error, "a killed child stays a zombie"),
        }
    }
}

/// Waits for a killed child on a thread of its own, for a destructor can't wait.
fn reap_later(pidfd: OwnedFd) {
    let waits = std::thread::Builder::new().spawn(move || {
        let waited = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        if let Err(error) = waited {
            tracing::debug!(%error, "a killed child could not be reaped");
        }
    });
    if let Err(error) = waits {
        tracing::debug!(%error, "a killed child stays a zombie");
    }
}

/// Sends to a process group. That it is empty, or that some of it belong to another user, is no news.
fn signal_group(leader: Pid, signal: Signal) {
    match killpg(leader, signal) {
        Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
        Err(errno) => tracing::debug!(%errno, %signal, "a process group was not signalled"),
    }
}

/// A line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    state: u8,
    parent: i32,
    group: i32,
    session: i32,
    /// In clock ticks since boot; with the number it names a process for good.
    start: u64,
}

impl Process {
    fn parse(stat: &str) -> Option<Process> {
        let (pid, rest) = stat.split_once(' ')?;
        // The name stands in parentheses and may hold anything, parentheses and blanks too.
        let mut fields = rest.rsplit_once(')')?.1.split_ascii_whitespace();
        Some(Process {
            pid: pid.parse().ok()?,
            state: *fields.next()?.as_bytes().first()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            session: fields.next()?.parse().ok()?,
            start: fields.nth(15)?.parse().ok()?,
        })
    }

    fn read(pid: i32) -> Option<Process> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        Process::parse(&String::from_utf8_lossy(&stat))
    }

    fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// Sends to this process and to no later one of the same number.
    fn signal(&self, signal: Signal) {
        let Some(pid) = rustix::process::Pid::from_raw(self.pid) else {
            return;
        };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        if Process::read(self.pid).is_some_and(|now| now.start == self.start) {
            let signal = rustix::process::Signal::from_named_raw(signal as i32);
            let sent = signal.map(|signal| rustix::process::pidfd_send_signal(&pidfd, signal));
            if let Some(Err(error)) = sent {
                tracing::debug!(pid = self.pid, %error, "a process was not signalled");
            }
        }
    }
}

/// All processes that `/proc` shows.
fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect()
}

/// Those of `all` that belong to the tree: the leader, its group and session, what was `known` before,
/// and every descendant of these. They are all known afterwards.
fn members(leader: i32, known: &mut BTreeMap<i32, u64>, all: Vec<Process>) -> Vec<Process> {
    let mut rest = all;
    let mut members: Vec<Process> = Vec::new();
    loop {
        let (new, others): (Vec<Process>, Vec<Process>) = rest.into_iter().partition(|process| {
            process.group == leader
                || process.session == leader
                || known.get(&process.pid) == Some(&process.start)
                || members.iter().any(|member| member.pid == process.parent)
        });
        if new.is_empty() {
            break;
        }
        members.extend(new);
        rest = others;
    }
    known.clear();
    known.extend(members.iter().map(|member| (member.pid, member.start)));
    members
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, group: i32, session: i32) -> Process {
        Process {
            pid,
            state: b'S',
            parent,
            group,
            session,
            start: 100 + u64::try_from(pid).unwrap(),
        }
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c)) R 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99";
        assert_eq!(
            Process::parse(stat),
            Some(Process {
                pid: 42,
                state: b'R',
                parent: 7,
                group: 40,
                session: 39,
                start: 12345
            })
        );
        assert_eq!(Process::parse("42 (a) R 7"), None);
    }

    #[test]
    fn the_tree_is_group_session_descendants_and_what_was_seen_before() {
        let all = vec![
            process(1, 0, 1, 1),
            // A grandchild in a session of its own stands before its parent.
            process(4, 3, 4, 4),
            process(10, 1, 10, 10),
            process(2, 10, 10, 10),
            process(3, 2, 3, 10),
            // Reparented to 1, in a group and session of its own, but seen before.
            process(5, 1, 5, 5),
            // The number was seen before, the process wasn't.
            process(6, 1, 6, 6),
            process(7, 1, 7, 7),
        ];
        let mut known = BTreeMap::from([(5, 105), (6, 1)]);
        let mut pids: Vec<i32> = members(10, &mut known, all).iter().map(|p| p.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [2, 3, 4, 5, 10]);
        assert_eq!(
            known,
            BTreeMap::from([(2, 102), (3, 103), (4, 104), (5, 105), (10, 110)])
        );
    }

    #[test]
    fn this_process_is_among_those_that_proc_shows() {
        let own = i32::try_from(std::process::id()).unwrap();
        let found = processes().into_iter().find(|process| process.pid == own);
        assert!(found.is_some_and(|process| process.is_alive()));
    }
}
