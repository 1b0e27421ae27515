//! The confined executor: every command of a confined mode runs in its session's cell.
//!
//! Rule: policy, plan, cell, in this order, for each call anew; what the host refuses narrows the plan or
//! ends the call, and nothing ever runs with less than the plan.

use std::collections::HashMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use nix::errno::Errno;
use tempfile::TempDir;

use crate::cell::{
    Ahead, Cell, Control, Failure, FailureKind, Go, Incoming, Launch, Report, SetUp, Spill,
    can_be_a_cell,
};
use crate::denial::{self, Collector, Dialect, Event};
use crate::environment::Rules;
use crate::executor::command;
use crate::executor::direct::Direct;
use crate::executor::supervise::{Launched, Launcher, Running};
use crate::executor::supervised::{Settings, Spills, Supervised, Supervising};
use crate::executor::{Captured, Live, SandboxReport, Stream};
use crate::host::binary;
use crate::host::disk::HostDisk;
use crate::host::facts::{Availability, HostFacts, MountTable};
use crate::mode::{Mode, ModeSource};
use crate::outcome::{Ended, NeverRan, NeverRanCode, errno_name};
use crate::output::{SpillDir, lock};
use crate::plan::{Enforcement, Identities, Identity, Level, PlanError, Planned, plan};
use crate::policy::build::PolicyRequest;
use crate::policy::{Network, Policy, Require, new_repositories};
use crate::request::{ExecRequest, ExecSpec};

/// What a confined executor is made from.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The mode of requests that name none: [`Mode::ReadOnly`].
    pub mode: Mode,
    /// Writable roots beside the workspace, in workspace-write mode.
    pub writable: Vec<PathBuf>,
    /// What the caller says about the network; `None` leaves it to the profile.
    pub network: Option<Network>,
    /// What the caller says about weaker hosts; `None` leaves it to the profile.
    pub require: Option<Require>,
    /// A profile of the caller's choice, laid over the built-in one.
    pub profile: Option<PathBuf>,
    /// The cofferdam binary. `None`: this executable when its `main` calls
    /// [`cell_main`](crate::cell_main) first, else `cofferdam` beside it or on PATH.
    pub binary: Option<PathBuf>,
    /// Whether sessions have many commands: each keeps one init ready for the next, and its cell removes
    /// the spill folder of a harness that was killed.
    pub prepare: bool,
}

impl Default for Confinement {
    fn default() -> Confinement {
        Confinement {
            mode: Mode::ReadOnly,
            writable: Vec::new(),
            network: None,
            require: None,
            profile: None,
            binary: None,
            prepare: true,
        }
    }
}

/// Runs commands confined to their mode. It needs a tokio runtime with all drivers enabled.
///
/// A session holds two descriptors, and each of its commands that runs three or four more.
///
/// Commands of one session share a cell: loopback, `/tmp`, `/dev/shm` and `/run`. When a command ends,
/// nothing that it started is left. A request for [`Mode::DangerFullAccess`] runs as by
/// [`Unconfined`](super::Unconfined).
pub struct Confined {
    supervised: Supervised,
    launcher: Arc<InCells>,
}

impl Confined {
    /// An executor with these settings. Nothing is started before the first command.
    pub fn new(settings: Settings, confinement: Confinement) -> Confined {
        let spills = Spills::new(settings.spill_base.clone());
        let launcher = Arc::new(InCells {
            confinement,
            spills: Arc::clone(&spills),
            facts: Mutex::new(HostFacts::read()),
            mount_table: MountTable::watch(),
            policies: Mutex::default(),
            sessions: Mutex::default(),
            proven: AtomicBool::new(false),
            ahead: Mutex::default(),
        });
        Confined {
            supervised: Supervised::new(
                Arc::clone(&launcher) as Arc<dyn Launcher>,
                settings,
                spills,
            ),
            launcher,
        }
    }

    /// The folder that holds a session's spill files; that of requests without a session for `None`.
    pub fn spill_dir(&self, session: Option<&str>) -> Arc<SpillDir> {
        self.supervised.spills().of(session)
    }

    /// Takes a cell that was forked ahead, for the first session that it fits.
    pub fn adopt(&self, ahead: Ahead) {
        *lock(&self.launcher.ahead) = Some(ahead);
    }

    /// What is known of the host so far.
    pub fn host_facts(&self) -> HostFacts {
        lock(&self.launcher.facts).clone()
    }
}

impl Supervising for Confined {
    fn supervised(&self) -> &Supervised {
        &self.supervised
    }

    fn default_mode(&self) -> Option<Mode> {
        Some(self.launcher.confinement.mode)
    }

    fn spec(&self, request: ExecRequest) -> Result<ExecSpec, NeverRan> {
        let settings = self.supervised.settings();
        let mode = request
            .mode
            .unwrap_or((self.launcher.confinement.mode, ModeSource::Default));
        let workspace = settings.workspace(&request)?;
        let session = request.session.clone();
        let policy = self
            .launcher
            .policy(session.as_deref(), mode.0, &workspace)?;
        let rules = Rules {
            remove: &policy.environment.remove,
            keep: &policy.environment.keep,
            set: &policy.environment.set,
        };
        let mut spec = settings.spec(request, workspace, mode, rules)?;
        spec.policy = Some(policy);
        Ok(spec)
    }
}

/// Starts commands in cells, one cell per session and network.
struct InCells {
    confinement: Confinement,
    spills: Arc<Spills>,
    facts: Mutex<HostFacts>,
    mount_table: MountTable,
    /// The policies of the last commands, by session, mode and workspace.
    policies: Mutex<HashMap<PolicyKey, Arc<Policy>>>,
    sessions: Mutex<HashMap<Key, Arc<Session>>>,
    /// A command has run in all that was planned: from now on nothing is given up.
    proven: AtomicBool,
    /// A cell that was forked ahead.
    ahead: Mutex<Option<Ahead>>,
}

/// Session, mode and workspace.
type PolicyKey = (Option<String>, Mode, PathBuf);

/// The session, and whether it has a network namespace of its own.
type Key = (Option<String>, bool);

#[derive(Default)]
struct Session {
    cell: Mutex<Option<Cell>>,
    /// The last plan, and what it was made from.
    planned: Mutex<Option<(PlanInputs, Arc<Planned>)>>,
    /// Stands in for the private `/tmp` where namespaces can't be had.
    scratch: Mutex<Option<TempDir>>,
}

#[async_trait]
impl Launcher for InCells {
    async fn launch(&self, spec: &ExecSpec) -> Result<Launched, NeverRan> {
        if !spec.mode.is_confined() {
            return Direct.launch(spec).await;
        }
        // Each round but the last learns one thing that the host refuses.
        for _ in 0..4 {
            let facts = self.facts_now();
            let prepared = self.prepare(spec, &facts)?;
            match self.launch_once(spec, prepared).await? {
                Ok(launched) => return Ok(launched),
                Err(failure) => self.learn(&facts, &failure)?,
            }
        }
        Err(NeverRan::refused(
            NeverRanCode::SandboxUnavailable,
            "the host refuses one thing after the other",
            "run `cofferdam doctor`",
        ))
    }

    async fn end_session(&self, session: &str) {
        lock(&self.policies).retain(|(of, _, _), _| of.as_deref() != Some(session));
        let ended: Vec<_> = {
            let mut sessions = lock(&self.sessions);
            [true, false]
                .into_iter()
                .filter_map(|own| sessions.remove(&(Some(session.to_owned()), own)))
                .collect()
        };
        end(ended).await;
    }

    async fn shutdown(&self) {
        let ended: Vec<_> = lock(&self.sessions)
            .drain()
            .map(|(_, session)| session)
            .collect();
        end(ended).await;
    }
}

async fn end(sessions: Vec<Arc<Session>>) {
    for session in sessions {
        let cell = lock(&session.cell).take();
        if let Some(cell) = cell {
            cell.end().await;
        }
    }
}

/// What a plan is made from.
#[derive(PartialEq)]
struct PlanInputs {
    policy: Arc<Policy>,
    identities: Identities,
    facts: HostFacts,
    scratch: PathBuf,
}

/// Everything that is decided before the cell is asked.
struct Prepared {
    policy: Arc<Policy>,
    planned: Arc<Planned>,
    session: Arc<Session>,
    scratch: PathBuf,
    /// Where the session's spill folder is or would be.
    spill: PathBuf,
}

impl InCells {
    fn facts_now(&self) -> HostFacts {
        let mut facts = lock(&self.facts);
        if self.mount_table.has_changed() {
            facts.mount_table += 1;
        }
        facts.clone()
    }

    /// The policy of now, which keeps what that of the session's last command protected: a command can't
    /// push it out of what is looked at.
    fn policy(
        &self,
        session: Option<&str>,
        mode: Mode,
        workspace: &Path,
    ) -> Result<Arc<Policy>, NeverRan> {
        let key = (session.map(str::to_owned), mode, workspace.to_owned());
        let earlier = lock(&self.policies).get(&key).cloned();
        let request = PolicyRequest {
            extra_writable: &self.confinement.writable,
            network: self.confinement.network,
            require: self.confinement.require,
            profile: self.confinement.profile.as_deref(),
            earlier: earlier.as_deref(),
            ..PolicyRequest::new(mode, workspace)
        };
        let (policy, warnings) = Policy::build(&request)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        let policy = match earlier {
            Some(earlier) if *earlier == policy => earlier,
            Some(_) | None => Arc::new(policy),
        };
        lock(&self.policies).insert(key, Arc::clone(&policy));
        Ok(policy)
    }

    fn prepare(&self, spec: &ExecSpec, facts: &HostFacts) -> Result<Prepared, NeverRan> {
        let policy = match &spec.policy {
            Some(policy) => Arc::clone(policy),
            None => self.policy(spec.session.as_deref(), spec.mode, &spec.workspace)?,
        };
        let own_network = policy.network == Network::None;
        let session = Arc::clone(
            lock(&self.sessions)
                .entry((spec.session.clone(), own_network))
                .or_default(),
        );
        let scratch = if facts.namespaces.is_assumed() {
            PathBuf::new()
        } else {
            session.scratch()?
        };
        let spill = self.spills.of(spec.session.as_deref()).planned().to_owned();
        if let Some(root) = policy
            .writable
            .iter()
            .find(|root| spill.starts_with(&root.path))
        {
            return Err(NeverRan::refused(
                NeverRanCode::InvalidArgs,
                format!(
                    "copies of long output would lie in the writable root {}, where a command could \
                     replace them",
                    root.path.display()
                ),
                "set TMPDIR to a folder outside it",
            ));
        }
        let planned = session.plan(PlanInputs {
            policy: Arc::clone(&policy),
            identities: identities(&policy),
            facts: facts.clone(),
            scratch: scratch.clone(),
        })?;
        if policy.require == Require::Full && planned.enforcement.level == Level::Partial {
            return Err(NeverRan::refused(
                NeverRanCode::SandboxUnavailable,
                format!(
                    "the policy requires full enforcement, and this host doesn't govern: {}",
                    planned.enforcement.missing.join("; ")
                ),
                "run `cofferdam doctor` for remedies, or set require = \"partial\"",
            ));
        }
        Ok(Prepared {
            policy,
            planned,
            session,
            scratch,
            spill,
        })
    }

    /// Asks the session's cell, which is started when there is none.
    async fn launch_once(
        &self,
        spec: &ExecSpec,
        prepared: Prepared,
    ) -> Result<Result<Launched, Failure>, NeverRan> {
        let (stdout, stdout_in) = pipe()?;
        let (stderr, stderr_in) = pipe()?;
        let stdin: OwnedFd = match &spec.stdin {
            Some(bytes) => command::sealed("stdin", bytes).map_err(|errno| step("stdin", errno))?,
            None => std::fs::File::open("/dev/null")
                .map_err(|error| step("open /dev/null", command::os_error(&error)))?
                .into(),
        };
        let script = command::script(&spec.command)
            .map(|text| command::sealed("script", text))
            .transpose()
            .map_err(|errno| step("script", errno))?;
        let launch = self.message(spec, &prepared, script.is_some())?;
        let incoming = Incoming {
            stdin: stdin.as_fd(),
            stdout: stdout_in.as_fd(),
            stderr: stderr_in.as_fd(),
            script: script.as_ref().map(AsFd::as_fd),
        };
        let control = self.ask(&prepared, launch, &incoming)?;
        drop((stdout_in, stderr_in));
        let mut missing = prepared.planned.enforcement.missing.clone();
        match control.next().await {
            Some(Report::Started { notes }) => {
                self.proven.store(true, Ordering::Relaxed);
                missing.extend(notes);
            }
            Some(Report::Failed(failure)) => return Ok(Err(failure)),
            Some(Report::Exited { .. }) | None => {
                *lock(&prepared.session.cell) = None;
                return Err(NeverRan::refused(
                    NeverRanCode::SandboxUnavailable,
                    "the session's cell ended before the command ran",
                    "try again; if it stays so, run `cofferdam doctor`",
                ));
            }
        }
        let witness = Arc::new(Witness::default());
        Ok(Ok(Launched {
            running: Box::new(InCell {
                control,
                killed: AtomicBool::new(false),
                end: None,
                guarded: guarded(&prepared.policy),
                links: links(&prepared.policy),
                policy: prepared.policy,
                view: prepared.planned.plan.view.is_some(),
                enforcement: Enforcement {
                    level: prepared.planned.enforcement.level,
                    missing,
                },
                witness: Arc::clone(&witness),
            }),
            stdout,
            stderr,
            witness: Some(witness),
        }))
    }

    fn message(
        &self,
        spec: &ExecSpec,
        prepared: &Prepared,
        has_script: bool,
    ) -> Result<Launch, NeverRan> {
        let script_at = has_script.then_some(SCRIPT_AT);
        let argv = command::argv(&spec.command, SCRIPT_AT);
        let env = self.environment(spec, prepared);
        let go = Go {
            candidates: command::candidates(&spec.command, &env, &spec.workdir)
                .iter()
                .map(|path| c_string(path.as_os_str()))
                .collect::<Result<_, _>>()?,
            argv: argv
                .iter()
                .map(|word| c_string(word))
                .collect::<Result<_, _>>()?,
            env: env
                .iter()
                .map(|(name, value)| {
                    let mut word = name.clone();
                    word.push("=");
                    word.push(value);
                    c_string(&word)
                })
                .collect::<Result<_, _>>()?,
            workdir: c_string(spec.workdir.as_os_str())?,
            null_stdin: spec.stdin.is_none(),
            script_at,
        };
        let spill = self.spills.of(spec.session.as_deref()).path();
        Ok(Launch {
            plan: prepared.planned.plan.clone(),
            spill: spill
                .map(|path| c_string(path.as_os_str()).map(|path| Spill { path }))
                .transpose()?,
            go,
        })
    }

    /// The command's variables, with those that must lead to private places.
    fn environment(&self, spec: &ExecSpec, prepared: &Prepared) -> Vec<(OsString, OsString)> {
        let mut env = spec.env.clone();
        let mut set = |name: &str, value: OsString| {
            env.retain(|(known, _)| known != name);
            env.push((name.into(), value));
        };
        let temporary = if prepared.planned.plan.view.is_some() {
            Path::new("/tmp")
        } else {
            &prepared.scratch
        };
        set("TMPDIR", temporary.into());
        set("TMPPREFIX", temporary.join("zsh").into());
        if let Some(folder) = &prepared.planned.plan.runtime_folder {
            set(
                "XDG_RUNTIME_DIR",
                OsStr::from_bytes(folder.to_bytes()).to_owned(),
            );
        }
        env
    }

    fn ask(
        &self,
        prepared: &Prepared,
        launch: Launch,
        incoming: &Incoming<'_>,
    ) -> Result<Control, NeverRan> {
        let mut cell = lock(&prepared.session.cell);
        if let Some(running) = &*cell {
            match running.launch(launch.clone(), incoming) {
                Ok(control) => return Ok(control),
                // It was killed from outside; its scratch is lost with it.
                Err(errno) => tracing::warn!(%errno, "a session's cell has gone; starting another"),
            }
        }
        let started = self.start_cell(prepared)?;
        let control = started
            .launch(launch, incoming)
            .map_err(|errno| step("ask the cell", errno))?;
        *cell = Some(started);
        Ok(control)
    }

    fn start_cell(&self, prepared: &Prepared) -> Result<Cell, NeverRan> {
        let writable: Vec<&Path> = prepared
            .policy
            .writable
            .iter()
            .map(|place| place.path.as_path())
            .collect();
        let binary = self.binary(&writable)?;
        let facts = lock(&self.facts).clone();
        let setup = SetUp {
            namespaces: prepared.planned.plan.view.is_some(),
            own_network: prepared.planned.plan.own_network,
            prepare: self.confinement.prepare,
            only_one: !self.confinement.prepare,
            uid: facts.uid,
            gid: facts.gid,
            remove_at_end: self.left_behind(prepared)?,
        };
        let failed = |error: std::io::Error| {
            let errno = command::os_error(&error);
            let remedy = if matches!(errno, Errno::EMFILE | Errno::ENFILE) {
                "raise the limit of open files: ulimit -n"
            } else if matches!(errno, Errno::EAGAIN | Errno::ENOMEM) {
                "end other processes first"
            } else {
                "name a working cofferdam binary"
            };
            NeverRan::step(
                NeverRanCode::SandboxUnavailable,
                format!("start {}", binary.display()),
                errno,
                remedy,
            )
        };
        let ahead = lock(&self.ahead).take();
        match ahead.and_then(|ahead| ahead.into_cell(&setup)) {
            Some(cell) => Ok(cell),
            None => Cell::start(&binary, &setup).map_err(failed),
        }
    }

    /// The session's folders on the host, which a killed harness leaves.
    fn left_behind(&self, prepared: &Prepared) -> Result<Vec<CString>, NeverRan> {
        // A program that runs one command keeps its copies, or has none.
        let spill = Some(&prepared.spill).filter(|_| self.confinement.prepare);
        let scratch = Some(&prepared.scratch).filter(|path| !path.as_os_str().is_empty());
        spill
            .into_iter()
            .chain(scratch)
            .map(|path| c_string(path.as_os_str()))
            .collect()
    }

    fn binary(&self, writable: &[&Path]) -> Result<PathBuf, NeverRan> {
        binary::find(
            self.confinement.binary.as_deref(),
            can_be_a_cell(),
            writable,
        )
    }

    /// What a failed step teaches about the host, or why the call ends here.
    fn learn(&self, facts: &HostFacts, failure: &Failure) -> Result<(), NeverRan> {
        let refused = || Availability::Refused {
            step: failure.step.clone(),
            errno: errno_name(Errno::from_raw(failure.errno)),
        };
        {
            let mut known = lock(&self.facts);
            let (before, now) = match failure.kind {
                FailureKind::Namespaces => (&facts.namespaces, &mut known.namespaces),
                FailureKind::Proc => (&facts.own_proc, &mut known.own_proc),
                FailureKind::Listener => (&facts.listener, &mut known.listener),
                FailureKind::Changed
                | FailureKind::Exec
                | FailureKind::Workdir
                | FailureKind::Clone
                | FailureKind::SetUp => return Err(never_ran(failure)),
            };
            // What a command ran in before, or what is short for the moment, isn't missing on this host; and
            // what was not asked for any more can't be done without.
            let proven = self.proven.load(Ordering::Relaxed);
            if proven || !is_refusal(failure) || !before.is_assumed() {
                return Err(never_ran(failure));
            }
            *now = refused();
        }
        tracing::info!(
            step = failure.step,
            errno = failure.errno,
            "the host refuses a step"
        );
        if failure.kind == FailureKind::Namespaces {
            // Cells that were started with them are of no use.
            lock(&self.sessions).clear();
        }
        Ok(())
    }
}

/// Whether an errno says that the host doesn't give something, and not that it is short of it.
fn is_refusal(failure: &Failure) -> bool {
    // ENOSPC is what a limit of user namespaces says, also one of 0.
    matches!(
        Errno::from_raw(failure.errno),
        Errno::EPERM
            | Errno::EACCES
            | Errno::ENOSYS
            | Errno::EINVAL
            | Errno::ENOSPC
            | Errno::EUSERS
            | Errno::EBUSY
    )
}

/// Where bash finds a script that is too long for an argument.
const SCRIPT_AT: i32 = 9;

impl Session {
    /// The plan for these inputs; that of the call before when nothing has changed.
    fn plan(&self, inputs: PlanInputs) -> Result<Arc<Planned>, NeverRan> {
        let mut last = lock(&self.planned);
        if let Some((known, planned)) = &*last
            && *known == inputs
        {
            return Ok(Arc::clone(planned));
        }
        let planned = plan(
            &inputs.policy,
            &inputs.identities,
            &inputs.facts,
            &inputs.scratch,
        );
        let planned = Arc::new(planned.map_err(no_plan)?);
        *last = Some((inputs, Arc::clone(&planned)));
        Ok(planned)
    }

    fn scratch(&self) -> Result<PathBuf, NeverRan> {
        let mut scratch = lock(&self.scratch);
        if let Some(folder) = &*scratch {
            return Ok(folder.path().to_owned());
        }
        let folder = tempfile::Builder::new()
            .prefix("cofferdam-scratch-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|error| {
                NeverRan::step(
                    NeverRanCode::SandboxUnavailable,
                    "make a scratch folder",
                    command::os_error(&error),
                    "name a folder that can be written: export TMPDIR=DIR",
                )
            })?;
        let path = folder.path().to_owned();
        *scratch = Some(folder);
        Ok(path)
    }
}

fn guarded(policy: &Policy) -> Vec<(PathBuf, Option<Stamp>)> {
    let places = policy.protected.iter();
    places
        .map(|place| (place.path.clone(), stamp_of(&place.path)))
        .collect()
}

/// Which file is at a path: device, inode and, since inodes are used again, when it was made.
type Stamp = (u64, u64, Option<SystemTime>);

fn stamp_of(path: &Path) -> Option<Stamp> {
    let facts = std::fs::symlink_metadata(path).ok()?;
    Some((facts.dev(), facts.ino(), facts.created().ok()))
}

fn links(policy: &Policy) -> Vec<(PathBuf, Option<PathBuf>)> {
    let links = policy.protected_links.iter();
    links
        .map(|place| (place.path.clone(), std::fs::read_link(&place.path).ok()))
        .collect()
}

fn identities(policy: &Policy) -> Identities {
    let places = [
        &policy.writable,
        &policy.protected,
        &policy.pinned,
        &policy.hidden,
        &policy.visible,
    ];
    places
        .into_iter()
        .flatten()
        .filter_map(|place| {
            let facts = std::fs::symlink_metadata(&place.path).ok()?;
            Some((
                place.path.clone(),
                Identity {
                    device: facts.dev(),
                    inode: facts.ino(),
                    folder: facts.is_dir(),
                    owner: facts.uid(),
                },
            ))
        })
        .collect()
}

fn pipe() -> Result<(OwnedFd, OwnedFd), NeverRan> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| step("pipe", Errno::from_raw(errno.raw_os_error())))
}

fn c_string(word: &OsStr) -> Result<CString, NeverRan> {
    CString::new(word.as_bytes()).map_err(|_| {
        NeverRan::refused(
            NeverRanCode::InvalidArgs,
            "a word of the command holds a NUL byte",
            "remove it",
        )
    })
}

fn step(step: &str, errno: Errno) -> NeverRan {
    NeverRan::step(NeverRanCode::SandboxUnavailable, step, errno, "")
}

fn no_plan(error: PlanError) -> NeverRan {
    let message = error.to_string();
    match error {
        PlanError::NoBackend { step, errno } => NeverRan {
            code: NeverRanCode::SandboxUnavailable,
            message,
            step: Some(step),
            errno: Some(errno),
            remedy: "run `cofferdam doctor` for remedies".to_owned(),
        },
        PlanError::Filter(_) | PlanError::Path(_) => {
            NeverRan::refused(NeverRanCode::SandboxUnavailable, message, "")
        }
    }
}

fn never_ran(failure: &Failure) -> NeverRan {
    let errno = Errno::from_raw(failure.errno);
    let object = failure
        .object
        .as_deref()
        .map(|object| String::from_utf8_lossy(object).into_owned())
        .unwrap_or_default();
    match failure.kind {
        FailureKind::Exec => command::failed(OsStr::new(&object), errno),
        FailureKind::Workdir => NeverRan {
            message: format!("{}: {object}: {}", failure.step, errno.desc()),
            ..NeverRan::step(
                NeverRanCode::InvalidArgs,
                failure.step.clone(),
                errno,
                "name a folder that this mode shows",
            )
        },
        FailureKind::Changed
        | FailureKind::Namespaces
        | FailureKind::Proc
        | FailureKind::Listener
        | FailureKind::Clone
        | FailureKind::SetUp => {
            let about = if object.is_empty() {
                String::new()
            } else {
                format!(" ({object})")
            };
            let remedy = if failure.kind == FailureKind::Changed {
                "a path of the policy was replaced, perhaps by a link: look at it, then try again"
            } else {
                "run `cofferdam doctor` for remedies"
            };
            NeverRan {
                message: format!("{}{about}: {}", failure.step, errno.desc()),
                ..NeverRan::step(
                    NeverRanCode::SandboxUnavailable,
                    failure.step.clone(),
                    errno,
                    remedy,
                )
            }
        }
    }
}

/// Keeps those lines of both streams that may tell of a refusal.
#[derive(Default)]
struct Witness {
    stdout: Mutex<Collector>,
    stderr: Mutex<Collector>,
}

impl Live for Witness {
    fn chunk(&self, stream: Stream, bytes: &[u8]) {
        let collector = match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        };
        lock(collector).feed(bytes);
    }
}

/// How long a killed command may take to be gone before its caller is answered all the same.
const GIVE_UP: Duration = Duration::from_secs(10);

/// A command that runs in a cell.
struct InCell {
    control: Control,
    killed: AtomicBool,
    end: Option<End>,
    policy: Arc<Policy>,
    /// Whether it has a view of its own, or Landlock alone.
    view: bool,
    enforcement: Enforcement,
    /// Protected paths and which file each was.
    guarded: Vec<(PathBuf, Option<Stamp>)>,
    /// Links on the way to protected paths, and where they led.
    links: Vec<(PathBuf, Option<PathBuf>)>,
    witness: Arc<Witness>,
}

#[derive(Clone)]
struct End {
    ended: Ended,
    events: Vec<Event>,
}

impl InCell {
    /// What a mount can't protect: paths that weren't there, and links.
    fn changed(&self) -> Vec<PathBuf> {
        let absent = self.policy.protected_absent.iter().map(|place| &place.path);
        let made = absent.filter(|path| std::fs::symlink_metadata(path).is_ok());
        let links = self.links.iter();
        let moved = links.filter(|(path, target)| std::fs::read_link(path).ok() != *target);
        // Whoever replaces a protected file outside takes the mount on it away, also from a command that
        // runs: from then on the command could write it.
        let guarded = self.guarded.iter();
        let replaced = guarded.filter(|(path, stamp)| stamp_of(path) != *stamp);
        let mut changed: Vec<PathBuf> = made
            .chain(moved.map(|(path, _)| path))
            .chain(replaced.map(|(path, _)| path))
            .cloned()
            .chain(new_repositories(&self.policy))
            .collect();
        changed.sort();
        changed.dedup();
        changed
    }

    async fn end(&mut self) -> Ended {
        loop {
            if let Some(end) = &self.end {
                return end.ended;
            }
            match self.control.next().await {
                Some(Report::Exited {
                    ended,
                    events,
                    events_lost,
                }) => {
                    if events_lost {
                        self.enforcement
                            .missing
                            .push("some refused calls, for there were too many".to_owned());
                    }
                    self.end = Some(End { ended, events });
                }
                Some(Report::Started { .. } | Report::Failed(_)) => {}
                None => {
                    // Its init or its cell was killed, and every process of the command with it.
                    self.enforcement
                        .missing
                        .push("the end of the command, whose init was killed".to_owned());
                    self.end = Some(End {
                        ended: Ended::Signalled(libc::SIGKILL),
                        events: Vec::new(),
                    });
                }
            }
        }
    }
}

#[async_trait]
impl Running for InCell {
    fn terminate(&self) {
        self.control.terminate();
    }

    fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.control.kill();
    }

    async fn exited(&mut self) {
        self.end().await;
    }

    async fn gone(&mut self) -> Ended {
        if !self.killed.load(Ordering::Relaxed) {
            return self.end().await;
        }
        if let Ok(ended) = tokio::time::timeout(GIVE_UP, self.end()).await {
            return ended;
        }
        // A process that is stuck in the kernel; its init ends everything when the control socket closes.
        let ended = Ended::Signalled(libc::SIGKILL);
        self.enforcement.missing.push(format!(
            "the end of the command, which was killed and not gone after {} s",
            GIVE_UP.as_secs()
        ));
        self.end = Some(End {
            ended,
            events: Vec::new(),
        });
        ended
    }

    async fn report(
        &mut self,
        spec: &ExecSpec,
        ended: Ended,
        _stdout: &Captured,
        _stderr: &Captured,
    ) -> SandboxReport {
        let collected =
            |collector: &Mutex<Collector>| std::mem::take(&mut *lock(collector)).finish();
        let (stdout, stderr) = (
            collected(&self.witness.stdout),
            collected(&self.witness.stderr),
        );
        let variables: Vec<(String, String)> = spec
            .env
            .iter()
            .filter_map(|(name, value)| {
                Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()))
            })
            .collect();
        let denials = denial::facts(&denial::Inputs {
            ended,
            command: &spec.command.text(),
            cwd: &spec.workdir,
            variables: &variables,
            stdout: &stdout,
            stderr: &stderr,
            events: self.end.as_ref().map_or(&[], |end| &end.events),
            policy: &self.policy,
            wider: None,
            dialect: if self.view {
                Dialect::Mounts
            } else {
                Dialect::Landlock
            },
            disk: &HostDisk,
        });
        SandboxReport {
            changed: self.changed(),
            mode: spec.mode,
            level: Some(self.enforcement.level),
            missing: self.enforcement.missing.clone(),
            denials,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_narrows_the_plan_before_a_command_has_run_and_ends_the_call_after() {
        let executor = Confined::new(Settings::default(), Confinement::default());
        let launcher = &executor.launcher;
        let failure = Failure::new(
            FailureKind::Namespaces,
            "unshare user namespace",
            Errno::EPERM,
        );
        let before = executor.host_facts();

        launcher.proven.store(true, Ordering::Relaxed);
        let ended = launcher.learn(&before, &failure).unwrap_err();
        assert_eq!(ended.step.as_deref(), Some("unshare user namespace"));
        assert_eq!(executor.host_facts(), before);

        launcher.proven.store(false, Ordering::Relaxed);
        assert_eq!(launcher.learn(&before, &failure), Ok(()));
        assert_eq!(
            executor.host_facts().namespaces,
            Availability::Refused {
                step: "unshare user namespace".to_owned(),
                errno: "EPERM".to_owned(),
            }
        );
    }
}
