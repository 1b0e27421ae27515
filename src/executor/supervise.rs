//! Following one command from its start to its end: timer, abort, kill, grace, output.
//!
//! Rule: the first cause of a cut is the one that is reported, and the only one; what was written before
//! the end is kept; whatever the command left behind never delays the end by more than [`LINGER`].

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::executor::{Captured, Cut, Finished, Live, SandboxReport, Stream};
use crate::outcome::{Ended, NeverRan};
use crate::output::{Capture, Phase, pump};
use crate::request::ExecSpec;

/// How long processes that outlive the command may still write, at most.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
/// How long they must have written nothing to be given up earlier.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

/// Starts commands: as a child of this process, or inside a cell.
#[async_trait]
pub(crate) trait Launcher: Send + Sync + 'static {
    /// Starts the command. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// The command never ran.
    async fn launch(&self, spec: &ExecSpec) -> Result<Launched, NeverRan>;

    /// The session is over; none of its commands runs any more.
    async fn end_session(&self, _session: &str) {}

    /// Nothing will be launched any more; no command runs any more.
    async fn shutdown(&self) {}
}

/// A command that was started.
pub(crate) struct Launched {
    pub(crate) running: Box<dyn Running>,
    /// The reading end of its standard output.
    pub(crate) stdout: OwnedFd,
    /// The reading end of its standard error.
    pub(crate) stderr: OwnedFd,
    /// A witness of the launcher's own on both streams, such as a collector of denial evidence.
    pub(crate) witness: Option<Arc<dyn Live>>,
}

/// A command that runs. Dropping it kills the whole tree.
///
/// Its calls come in one of two orders: `exited`, [`linger`], `kill`, `gone`, `report` when it ends by
/// itself; `terminate`, `gone` for the grace period, and if that isn't enough `kill` and `gone`, `report`
/// when it is cut short.
#[async_trait]
pub(crate) trait Running: Send {
    /// SIGTERM to the whole tree.
    fn terminate(&self);

    /// SIGKILL to the whole tree. May be called often, and after the end.
    fn kill(&self);

    /// The command's own process has ended; what it started may live on. Cancel-safe. A launcher that
    /// takes the tree down at that moment may wait for the whole tree here.
    async fn exited(&mut self);

    /// The whole tree is gone; how the command's own process ended. Cancel-safe; comes true soon after
    /// [`Running::kill`], whatever happens.
    async fn gone(&mut self) -> Ended;

    /// What the confinement has to say about the command, once, after [`Running::gone`].
    async fn report(
        &mut self,
        spec: &ExecSpec,
        ended: Ended,
        stdout: &Captured,
        stderr: &Captured,
    ) -> SandboxReport;
}

/// Asks a command to stop. The first cause stays.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Sender<Option<Cut>>);

impl Stop {
    pub(crate) fn new() -> Stop {
        Stop(watch::Sender::new(None))
    }

    /// Asks. Returns at once.
    pub(crate) fn request(&self, cause: Cut) {
        self.0.send_if_modified(|first| {
            let new = first.is_none();
            first.get_or_insert(cause);
            new
        });
    }

    /// Whether someone asked.
    pub(crate) fn is_requested(&self) -> bool {
        self.0.borrow().is_some()
    }

    async fn requested(&self) -> Cut {
        let mut cause = self.0.subscribe();
        loop {
            if let Some(cause) = *cause.borrow_and_update() {
                return cause;
            }
            // `self` holds the sender, so this can't fail; were it to, nobody could ask any more.
            if cause.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// One command under supervision. [`Job::follow`] must be polled for anything to happen; dropping it
/// kills the tree.
pub(crate) struct Job {
    pub(crate) launched: Launched,
    pub(crate) spec: Arc<ExecSpec>,
    pub(crate) capture: Arc<Capture>,
    pub(crate) stop: Stop,
    /// `None` for a background task.
    pub(crate) timeout: Option<Duration>,
    /// Between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

impl Job {
    /// Follows the command until it has ended and its output is complete.
    pub(crate) async fn follow(self) -> Finished {
        let started = Instant::now();
        let Job {
            launched,
            spec,
            capture,
            stop,
            timeout,
            grace,
        } = self;
        let mut running = launched.running;
        capture.tap_all(launched.witness);
        let deadline = timeout.and_then(|limit| started.checked_add(limit));
        let (phase, drain) = watch::channel(Phase::Open);
        let end = async {
            let end = end(&mut *running, &stop, &capture, deadline, grace).await;
            phase.send_replace(Phase::Drain);
            end
        };
        let ((ended, cut), (), ()) = tokio::join!(
            end,
            pump(launched.stdout, Stream::Stdout, &capture, drain.clone()),
            pump(launched.stderr, Stream::Stderr, &capture, drain),
        );
        let duration = started.elapsed();
        let stdout = capture.captured(Stream::Stdout);
        let stderr = capture.captured(Stream::Stderr);
        let sandbox = running.report(&spec, ended, &stdout, &stderr).await;
        Finished {
            ended,
            cut,
            timeout,
            duration,
            stdout,
            stderr,
            sandbox,
        }
    }
}

/// Waits for the end, brings it about when someone asks or the time is up, and takes down the rest.
async fn end(
    running: &mut dyn Running,
    stop: &Stop,
    capture: &Capture,
    deadline: Option<Instant>,
    grace: Duration,
) -> (Ended, Option<Cut>) {
    let cut = tokio::select! {
        biased;
        () = running.exited() => None,
        cause = stop.requested() => Some(cause),
        () = reached(deadline) => Some(Cut::TimedOut),
    };
    match cut {
        None => linger(capture, stop).await,
        Some(_) => {
            running.terminate();
            if let Ok(ended) = timeout(grace, running.gone()).await {
                return (ended, cut);
            }
        }
    }
    running.kill();
    (running.gone().await, cut)
}

/// Lets what the command left behind finish its output, as `tee` in `exec > >(tee log)` must: until both
/// pipes are closed, or are quiet, or someone asks to stop.
async fn linger(capture: &Capture, stop: &Stop) {
    let mut changes = capture.changes();
    let quiet = async {
        while !capture.closed() {
            if timeout(QUIET, changes.changed()).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = timeout(LINGER, quiet) => {}
        _ = stop.requested() => {}
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::Write;
    use std::sync::Mutex;

    use super::*;
    use crate::denial::{Class, Confidence, Evidence, Fact};
    use crate::executor::Level;
    use crate::mode::{Mode, ModeSource};
    use crate::output::{SpillCaps, SpillDir, lock};
    use crate::request::Command;

    /// A command that is only played: it notes what it is told, and its tree is gone once it was killed.
    struct Played {
        calls: Arc<Mutex<Vec<String>>>,
        exits: bool,
        killed: watch::Sender<bool>,
        witness: Arc<Witness>,
    }

    #[derive(Default)]
    struct Witness(Mutex<Vec<u8>>);

    impl Live for Witness {
        fn chunk(&self, _stream: Stream, bytes: &[u8]) {
            lock(&self.0).extend(bytes);
        }
    }

    impl Played {
        fn note(&self, call: &str) {
            lock(&self.calls).push(call.to_owned());
        }
    }

    #[async_trait]
    impl Running for Played {
        fn terminate(&self) {
            self.note("terminate");
        }

        fn kill(&self) {
            self.note("kill");
            self.killed.send_replace(true);
        }

        async fn exited(&mut self) {
            if !self.exits {
                std::future::pending().await
            }
        }

        async fn gone(&mut self) -> Ended {
            self.note("gone");
            let killed = self
                .killed
                .subscribe()
                .wait_for(|killed| *killed)
                .await
                .is_ok();
            assert!(killed);
            Ended::Signalled(libc::SIGKILL)
        }

        async fn report(
            &mut self,
            spec: &ExecSpec,
            ended: Ended,
            stdout: &Captured,
            stderr: &Captured,
        ) -> SandboxReport {
            self.note("report");
            assert_eq!(ended, Ended::Signalled(libc::SIGKILL));
            assert_eq!((stdout.text.as_str(), stderr.text.as_str()), ("out", "err"));
            SandboxReport {
                changed: Vec::new(),
                mode: spec.mode,
                level: Some(Level::Partial),
                missing: vec!["chmod".to_owned()],
                denials: vec![Fact {
                    class: Class::FileWrite,
                    operation: "write".to_owned(),
                    path: Some("/etc/x".into()),
                    address: None,
                    errno: "EROFS".to_owned(),
                    allowed_under: Some(Mode::DangerFullAccess),
                    evidence: Evidence::Errno,
                    confidence: Confidence::Likely,
                    line: Some(String::from_utf8_lossy(&lock(&self.witness.0)).into_owned()),
                }],
            }
        }
    }

    /// Follows a played command whose pipes stay open for ever. What it was told, and the result.
    async fn follow(exits: bool, stop: Stop, timeout: Option<Duration>) -> (Vec<String>, Finished) {
        let pipe = |text: &str| {
            let (reader, writer) =
                rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
            let mut writer = std::fs::File::from(writer);
            writer.write_all(text.as_bytes()).unwrap();
            (reader, writer)
        };
        let ((stdout, _out), (stderr, _err)) = (pipe("out"), pipe("err"));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let witness = Arc::new(Witness::default());
        let running = Played {
            calls: Arc::clone(&calls),
            exits,
            killed: watch::Sender::new(false),
            witness: Arc::clone(&witness),
        };
        let job = Job {
            launched: Launched {
                running: Box::new(running),
                stdout,
                stderr,
                witness: Some(witness),
            },
            spec: Arc::new(ExecSpec {
                command: Command::Shell(OsString::new()),
                session: None,
                workspace: "/".into(),
                workdir: "/".into(),
                timeout: Duration::ZERO,
                mode: Mode::ReadOnly,
                mode_source: ModeSource::Default,
                env: vec![],
                stdin: None,
                owner: None,
                policy: None,
            }),
            capture: Capture::new(
                100,
                Arc::new(SpillDir::new("/nowhere")),
                SpillCaps::default(),
            ),
            stop,
            timeout,
            grace: Duration::from_millis(20),
        };
        let finished = job.follow().await;
        (lock(&calls).clone(), finished)
    }

    #[tokio::test]
    async fn after_an_end_the_rest_is_killed_and_the_report_sees_output_and_witness() {
        let (calls, finished) = follow(true, Stop::new(), None).await;
        assert_eq!(calls, ["kill", "gone", "report"]);
        assert_eq!(finished.cut, None);
        assert_eq!(finished.stdout.text, "out");
        assert_eq!(finished.sandbox.level, Some(Level::Partial));
        let line = finished.sandbox.denials[0].line.clone().unwrap();
        assert!(line == "outerr" || line == "errout", "{line}");
    }

    #[tokio::test]
    async fn a_cut_asks_first_and_kills_after_the_grace_period() {
        let limit = Some(Duration::from_millis(10));
        let (calls, finished) = follow(false, Stop::new(), limit).await;
        assert_eq!(calls, ["terminate", "gone", "kill", "gone", "report"]);
        assert_eq!(finished.cut, Some(Cut::TimedOut));
        assert!(finished.duration >= Duration::from_millis(30));
    }

    #[tokio::test]
    async fn the_first_cause_of_a_cut_is_the_only_one() {
        let stop = Stop::new();
        stop.request(Cut::Aborted);
        stop.request(Cut::Killed);
        let (_, finished) = follow(false, stop.clone(), Some(Duration::ZERO)).await;
        assert_eq!(finished.cut, Some(Cut::Aborted));
        // An end that has come before anyone asked isn't a cut.
        let (_, finished) = follow(true, stop, None).await;
        assert_eq!(finished.cut, None);
    }
}
