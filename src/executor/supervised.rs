//! Everything of an executor that doesn't depend on how commands are started.
//!
//! Rule: an executor gives a launcher, its defaults and its way to resolve; this does the rest, the same
//! for all of them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::environment::{Rules, command_env};
use crate::executor::command;
use crate::executor::supervise::{Job, Launched, Launcher, Stop};
use crate::executor::tasks::Tasks;
use crate::executor::{
    Cut, DoneListener, Executor, Kill, Ran, Registration, TaskId, TaskInfo, TaskRead, UnknownTask,
    Watch,
};
use crate::mode::{Mode, ModeSource};
use crate::outcome::{NeverRan, NeverRanCode};
use crate::output::{Capture, Live, SpillCaps, SpillDir, TAIL_BYTES, lock};
use crate::request::{Command, ExecRequest, ExecSpec, Owner};

/// What an executor applies to each request.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The workspace of requests that name none. `None`: this process's current directory.
    pub workspace: Option<PathBuf>,
    /// The timeout of requests that name none: 120 s.
    pub default_timeout: Duration,
    /// The longest timeout that a request gets: 600 s.
    pub max_timeout: Duration,
    /// Between SIGTERM and SIGKILL: 3 s.
    pub grace: Duration,
    /// Bytes of each stream that stay in memory: [`TAIL_BYTES`].
    pub tail_bytes: usize,
    /// Where the spill folders of sessions are created: the system's folder for temporary files. Below
    /// `/tmp`, `/dev/shm` or `/run` a confined command sees only its own session's; elsewhere it can read
    /// those of the same user's other sessions.
    pub spill_base: PathBuf,
    /// How much is spilled at most.
    pub spill_caps: SpillCaps,
    /// What commands inherit before the scrub. `None`: this process's environment when they start.
    pub inherited: Option<Vec<(OsString, OsString)>>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            workspace: None,
            default_timeout: Duration::from_secs(120),
            max_timeout: Duration::from_secs(600),
            grace: Duration::from_millis(3_000),
            tail_bytes: TAIL_BYTES,
            spill_base: std::env::temp_dir(),
            spill_caps: SpillCaps::default(),
            inherited: None,
        }
    }
}

impl Settings {
    /// The workspace of a request: its own, else the configured one, else the current directory; canonical.
    ///
    /// # Errors
    /// [`NeverRanCode::InvalidArgs`]: it isn't there or isn't a folder.
    pub(crate) fn workspace(&self, request: &ExecRequest) -> Result<PathBuf, NeverRan> {
        let named = request.workspace.as_ref().or(self.workspace.as_ref());
        let path = named.map_or(Path::new("."), PathBuf::as_path);
        match path.canonicalize() {
            Ok(canonical) if canonical.is_dir() => Ok(canonical),
            Ok(_) => Err(invalid(
                format!("workspace is not a folder: {}", path.display()),
                "name an existing folder",
            )),
            Err(_) => Err(invalid(
                format!("workspace does not exist: {}", path.display()),
                "create it or name an existing folder",
            )),
        }
    }

    /// The spec of `request` in this workspace and mode, with every default and cap applied.
    ///
    /// # Errors
    /// [`NeverRanCode::InvalidArgs`]: a missing or relative working directory, or a value that no process
    /// can be given.
    pub(crate) fn spec(
        &self,
        request: ExecRequest,
        workspace: PathBuf,
        mode: (Mode, ModeSource),
        rules: Rules<'_>,
    ) -> Result<ExecSpec, NeverRan> {
        check(&request)?;
        let workdir = request.workdir.unwrap_or_else(|| workspace.clone());
        command::check_workdir(&workdir)?;
        let env = match &self.inherited {
            Some(inherited) => command_env(
                inherited.iter().cloned(),
                rules,
                &request.env,
                &request.managed_env,
            ),
            None => command_env(
                std::env::vars_os(),
                rules,
                &request.env,
                &request.managed_env,
            ),
        };
        Ok(ExecSpec {
            command: request.command,
            session: request.session,
            workspace,
            workdir,
            timeout: request
                .timeout
                .unwrap_or(self.default_timeout)
                .min(self.max_timeout),
            mode: mode.0,
            mode_source: mode.1,
            env,
            stdin: request.stdin,
            owner: request.owner,
            policy: None,
        })
    }
}

/// The spill folders of all sessions of one executor; shared with the launcher, which shows a session's
/// folder to the session's commands.
pub(crate) struct Spills {
    base: PathBuf,
    dirs: Mutex<BTreeMap<Option<String>, Arc<SpillDir>>>,
}

impl Spills {
    pub(crate) fn new(base: PathBuf) -> Arc<Spills> {
        Arc::new(Spills {
            base,
            dirs: Mutex::default(),
        })
    }

    /// The folder of a session; that of the executor itself for `None`.
    pub(crate) fn of(&self, session: Option<&str>) -> Arc<SpillDir> {
        let mut dirs = lock(&self.dirs);
        let dir = dirs
            .entry(session.map(str::to_owned))
            .or_insert_with(|| Arc::new(SpillDir::new(&self.base)));
        Arc::clone(dir)
    }

    fn remove(&self, session: Option<&str>) {
        let dir = lock(&self.dirs).remove(&session.map(str::to_owned));
        remove_all(dir);
    }

    fn remove_every(&self) {
        remove_all(std::mem::take(&mut *lock(&self.dirs)).into_values());
    }
}

fn remove_all(dirs: impl IntoIterator<Item = Arc<SpillDir>>) {
    for dir in dirs {
        if let Err(error) = dir.remove() {
            tracing::warn!(%error, "a spill folder was not removed");
        }
    }
}

/// An executor that is a launcher with this module's supervision.
pub(crate) trait Supervising: Send + Sync {
    /// The supervision that it has built.
    fn supervised(&self) -> &Supervised;
    /// See [`Executor::confines`].
    fn default_mode(&self) -> Option<Mode>;
    /// See [`Executor::resolve`].
    fn spec(&self, request: ExecRequest) -> Result<ExecSpec, NeverRan>;
}

/// Launches, follows and remembers commands.
pub(crate) struct Supervised {
    launcher: Arc<dyn Launcher>,
    settings: Settings,
    spills: Arc<Spills>,
    tasks: Tasks,
    /// `true` once the executor shuts down. Each foreground run holds a receiver while it lasts.
    closing: watch::Sender<bool>,
}

impl Supervised {
    /// `spills` is shared with the launcher and has `settings.spill_base` as its base.
    pub(crate) fn new(
        launcher: Arc<dyn Launcher>,
        settings: Settings,
        spills: Arc<Spills>,
    ) -> Supervised {
        Supervised {
            launcher,
            settings,
            spills,
            tasks: Tasks::default(),
            closing: watch::Sender::new(false),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn spills(&self) -> &Arc<Spills> {
        &self.spills
    }

    async fn run(&self, spec: ExecSpec, watch: Watch) -> Result<Ran, NeverRan> {
        let mut closing = self.closing.subscribe();
        let launched = tokio::select! {
            biased;
            () = watch.abort.cancelled() => return Err(aborted()),
            _ = closing.wait_for(|closing| *closing) => return Err(shut_down()),
            launched = self.launcher.launch(&spec) => launched?,
        };
        let timeout = spec.timeout;
        let job = self.job(launched, spec, Some(timeout), watch.live.as_ref());
        let (spec, capture, stop) = (
            Arc::clone(&job.spec),
            Arc::clone(&job.capture),
            job.stop.clone(),
        );
        let yield_at = watch
            .yield_after
            .and_then(|delay| Instant::now().checked_add(delay));
        let mut follow = Box::pin(job.follow());
        loop {
            tokio::select! {
                biased;
                finished = &mut follow => return Ok(Ran::Finished(Box::new(finished))),
                () = watch.abort.cancelled(), if !stop.is_requested() => stop.request(Cut::Aborted),
                _ = closing.wait_for(|closing| *closing), if !stop.is_requested() => stop.request(Cut::Aborted),
                () = reached(yield_at), if !stop.is_requested() => break,
            }
        }
        if let Some(live) = &watch.live {
            capture.untap(live);
        }
        let Some(task) = self.tasks.insert(&spec, &capture, &stop) else {
            stop.request(Cut::Aborted);
            return Ok(Ran::Finished(Box::new(follow.await)));
        };
        let id = task.id();
        tokio::spawn(async move { task.settle(follow.await) });
        Ok(Ran::Yielded(id))
    }

    async fn start(&self, spec: ExecSpec) -> Result<TaskId, NeverRan> {
        let mut closing = self.closing.subscribe();
        let launched = tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => return Err(shut_down()),
            launched = self.launcher.launch(&spec) => launched?,
        };
        let job = self.job(launched, spec, None, None);
        let task = self.tasks.add(&job).ok_or_else(shut_down)?;
        let id = task.id();
        tokio::spawn(async move { task.settle(job.follow().await) });
        Ok(id)
    }

    fn job(
        &self,
        launched: Launched,
        spec: ExecSpec,
        timeout: Option<Duration>,
        live: Option<&Arc<dyn Live>>,
    ) -> Job {
        let dir = self.spills.of(spec.session.as_deref());
        let capture = Capture::new(self.settings.tail_bytes, dir, self.settings.spill_caps);
        capture.tap_all(live.cloned());
        Job {
            launched,
            spec: Arc::new(spec),
            capture,
            stop: Stop::new(),
            timeout,
            grace: self.settings.grace,
        }
    }

    async fn end_session(&self, session: &str) {
        self.tasks.end_session(session).await;
        self.launcher.end_session(session).await;
        self.spills.remove(Some(session));
    }

    async fn shutdown(&self) {
        self.closing.send_replace(true);
        self.tasks.shutdown().await;
        // A foreground run whose future is never polled again can't be waited for.
        let enough = self.settings.grace + Duration::from_secs(5);
        if tokio::time::timeout(enough, self.closing.closed())
            .await
            .is_err()
        {
            tracing::warn!("a foreground run is still held at shutdown");
        }
        self.launcher.shutdown().await;
        self.spills.remove_every();
    }
}

#[async_trait]
impl<E: Supervising> Executor for E {
    fn confines(&self) -> Option<Mode> {
        self.default_mode()
    }

    fn resolve(&self, request: ExecRequest) -> Result<ExecSpec, NeverRan> {
        self.spec(request)
    }

    async fn run(&self, spec: ExecSpec, watch: Watch) -> Result<Ran, NeverRan> {
        self.supervised().run(spec, watch).await
    }

    async fn start(&self, spec: ExecSpec) -> Result<TaskId, NeverRan> {
        self.supervised().start(spec).await
    }

    async fn read_output(&self, id: &TaskId, wait: Duration) -> Result<TaskRead, UnknownTask> {
        self.supervised().tasks.read_output(id, wait).await
    }

    async fn kill(&self, id: &TaskId) -> Result<Kill, UnknownTask> {
        self.supervised().tasks.kill(id).await
    }

    fn owner_of(&self, id: &TaskId) -> Result<Option<Owner>, UnknownTask> {
        self.supervised().tasks.owner_of(id)
    }

    fn list(&self) -> Vec<TaskInfo> {
        self.supervised().tasks.list()
    }

    fn on_done(&self, listener: DoneListener) -> Registration {
        self.supervised().tasks.on_done(listener)
    }

    async fn end_session(&self, session: &str) {
        self.supervised().end_session(session).await;
    }

    async fn shutdown(&self) {
        self.supervised().shutdown().await;
    }
}

async fn reached(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

fn aborted() -> NeverRan {
    NeverRan::refused(NeverRanCode::Aborted, "command aborted", "")
}

fn shut_down() -> NeverRan {
    NeverRan::refused(
        NeverRanCode::ShutDown,
        "the executor is shut down",
        "make a new one",
    )
}

fn invalid(message: impl Into<String>, remedy: &str) -> NeverRan {
    NeverRan::refused(NeverRanCode::InvalidArgs, message, remedy)
}

/// What no process can be given: the kernel's strings end at NUL, and names of variables at `=`.
fn check(request: &ExecRequest) -> Result<(), NeverRan> {
    let has_nul = |word: &std::ffi::OsStr| word.as_encoded_bytes().contains(&0);
    let command_has_nul = match &request.command {
        Command::Shell(text) => has_nul(text),
        Command::Program { program, args } => {
            has_nul(program) || args.iter().any(|word| has_nul(word))
        }
    };
    if command_has_nul {
        return Err(invalid("the command holds a NUL byte", "remove it"));
    }
    let managed = request
        .managed_env
        .iter()
        .map(|(name, value)| (name.as_ref(), value.as_ref()));
    let caller = request
        .env
        .iter()
        .map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    for (name, value) in caller.chain(managed) {
        if name.is_empty() || has_nul(name) || name.as_encoded_bytes().contains(&b'=') {
            return Err(invalid(
                format!("invalid variable name: {name:?}"),
                "use a name without = and NUL",
            ));
        }
        if has_nul(value) {
            return Err(invalid(
                format!("the value of {} holds a NUL byte", name.display()),
                "remove it",
            ));
        }
    }
    Ok(())
}
