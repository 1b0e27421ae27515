//! `cofferdam doctor`: what this host gives, what each mode amounts to on it, and what to type for more.
//!
//! Rule: found out by doing: probes try each step, and every mode runs a real `true` through the same
//! executor as any command. Nothing takes longer than [`probe::LIMIT`]; what hangs is reported as such.

mod remedy;

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::exit;
use super::select::{absolute, shown};
use crate::cell::can_be_a_cell;
use crate::environment::{MANAGED_PREFIX, SECRET_WORDS};
use crate::executor::{self, Confined, Confinement, Executor, Level, Settings, Watch};
use crate::host::binary;
use crate::host::facts::Availability;
use crate::host::probe::{self, Answer, Host};
use crate::mode::{Mode, ModeSource};
use crate::outcome::{NeverRan, NeverRanCode};
use crate::plan::filters;
use crate::policy::build::{Built, PolicyRequest, build};
use crate::policy::{Policy, Require};
use crate::request::{Command, ExecRequest};

/// Arguments of `cofferdam doctor`.
///
/// `--json` prints one object; its shape only grows:
///
/// ```text
/// {"version", "enforcement": the weakest of the confined modes,
///  "host": {"kernel", "uid", "landlock": {"abi", "lacks": [{"abi", "kernel", "what", "carriedBy"}]},
///           "namespaces": {"user", "mount", "pid", "network", "loopback", "ipc", "uts": ANSWER each},
///           "proc": ANSWER, "seccomp": {"filter", "listener": ANSWER each},
///           "cgroup": {"path", "delegated": ANSWER, "controllers": [string]},
///           "settings": {"maxUserNamespaces", "unprivilegedUsernsClone",
///                        "apparmorRestrictUnprivilegedUserns": int|null each, "apparmorProfile",
///                        "securityModules": string|null each, "alreadyFiltered": bool,
///                        "container": string|null}},
///  "binary": {"path": string|null, "error": ERROR|null},
///  "modes": {MODE: {"enforcement": "full"|"partial"|"refused", null for danger-full-access,
///                   "missing": [string], "refusedSteps": [string], "error": ERROR|null,
///                   "millis": number}},
///  "gaps": [{"what", "why", "remedy"}],
///  "policy": {MODE: what it removes, refuses and hides; null when it couldn't be built:
///             {"network", "refusedCalls": [{"call", "errno", "when": string|null, "reason": string|null}],
///              "variables": {"removedWords", "removedPrefixes", "removed", "kept": [string] each,
///                            "set": {NAME: value}},
///              "hidden", "protected", "writable", "private": [path] each}}}
///
/// ANSWER = {"given": bool, "step": string|null, "errno": string|null, "millis": number}
/// ERROR  = {"code", "message", "step": string|null, "errno": string|null, "remedy"}
/// ```
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 when every confined mode is fully enforced, 1 when one is partial or \
                  refused, 125 when the host couldn't be looked at."
)]
pub struct Args {
    /// The workspace to try; by default an empty folder of its own.
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// A profile that is laid over the built-in one.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Looks at the host and prints what was found. Must be called while this process has one thread.
///
/// # Errors
/// There is no folder to try in, or standard output is broken.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = probe::probe();
    let own = tempfile::Builder::new()
        .prefix("cofferdam-doctor-")
        .tempdir();
    let workspace = match (&args.workspace, &own) {
        (Some(workspace), _) => absolute(workspace)?,
        (None, Ok(own)) => own.path().to_owned(),
        // Nothing can be written here: then any folder does.
        (None, Err(_)) => absolute(Path::new("."))?,
    };
    let profile = args.profile.as_deref().map(absolute).transpose()?;
    let trials = Mode::ALL.map(|mode| attempt(mode, &workspace, profile.as_deref()));
    let binary = find_binary(args.workspace.as_deref());
    let found = Found {
        gaps: remedy::gaps(&host, &binary, &trials),
        binary,
        host,
        trials,
    };
    let text = if args.json {
        format!("{:#}\n", found.as_json()?)
    } else {
        found.as_text()?
    };
    super::print(&text)?;
    Ok(match found.weakest() {
        Amount::Full => ExitCode::SUCCESS,
        Amount::Partial | Amount::Refused => ExitCode::from(exit::GAPS),
    })
}

/// What a mode amounts to, the weakest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Amount {
    Full,
    Partial,
    Refused,
}

/// What became of a mode's `true`.
#[derive(Clone, Debug)]
struct Trial {
    mode: Mode,
    /// `None` in danger-full-access.
    amount: Option<Amount>,
    missing: Vec<String>,
    /// Steps of the set-up that the host refused, with the errno.
    refused: Vec<String>,
    error: Option<NeverRan>,
    millis: f64,
    built: Option<Built>,
}

/// Something that the host doesn't give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Gap {
    /// What is lost.
    what: String,
    /// What was refused, and by whom.
    why: String,
    /// What to type, a command a line; a line that starts with `#` says when.
    remedy: String,
}

struct Found {
    host: Host,
    binary: Result<PathBuf, NeverRan>,
    trials: [Trial; 3],
    gaps: Vec<Gap>,
}

fn find_binary(workspace: Option<&Path>) -> Result<PathBuf, NeverRan> {
    let writable: Vec<PathBuf> = workspace
        .and_then(|path| path.canonicalize().ok())
        .into_iter()
        .collect();
    let writable: Vec<&Path> = writable.iter().map(PathBuf::as_path).collect();
    binary::find(None, can_be_a_cell(), &writable)
}

/// Runs `true` in a mode, on a thread that is left behind when it hangs.
fn attempt(mode: Mode, workspace: &Path, profile: Option<&Path>) -> Trial {
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel();
    let (workspace, profile) = (workspace.to_owned(), profile.map(Path::to_owned));
    std::thread::spawn(move || {
        // Nobody receives it when it comes too late.
        sender
            .send(run_true(mode, &workspace, profile.as_deref()))
            .ok();
    });
    let ran = receiver.recv_timeout(probe::LIMIT).unwrap_or_else(|_| {
        let message = format!("no answer within {} ms", probe::LIMIT.as_millis());
        Ran {
            built: None,
            refused: Vec::new(),
            tried: Err(unavailable(message)),
        }
    });
    let Ran {
        built,
        refused,
        tried,
    } = ran;
    let (amount, missing, error) = match tried {
        Ok((level, missing)) => {
            let require = built.as_ref().map(|built| built.policy.require);
            let amount = level.map(|level| match (level, require) {
                (Level::Full, _) => Amount::Full,
                (Level::Partial, Some(Require::Full)) => Amount::Refused,
                (Level::Partial, _) => Amount::Partial,
            });
            (amount, missing, None)
        }
        Err(error) => (Some(Amount::Refused), Vec::new(), Some(error)),
    };
    Trial {
        mode,
        amount,
        missing,
        refused,
        error,
        millis: (start.elapsed().as_secs_f64() * 1e6).round() / 1e3,
        built,
    }
}

/// What the thread of a trial says.
struct Ran {
    built: Option<Built>,
    refused: Vec<String>,
    tried: Result<(Option<Level>, Vec<String>), NeverRan>,
}

fn run_true(mode: Mode, workspace: &Path, profile: Option<&Path>) -> Ran {
    let said = |built, refused, tried| Ran {
        built,
        refused,
        tried,
    };
    let built = build(&PolicyRequest {
        profile,
        ..PolicyRequest::new(mode, workspace)
    });
    let built = match built {
        Ok(built) => built,
        Err(error) => return said(None, Vec::new(), Err(error)),
    };
    let executor = Confined::new(
        Settings {
            workspace: Some(workspace.to_owned()),
            ..Settings::default()
        },
        Confinement {
            mode,
            // What is missing is wanted in full, also where the profile then refuses.
            require: Some(Require::Partial),
            profile: profile.map(Path::to_owned),
            prepare: false,
            ..Confinement::default()
        },
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return said(Some(built), Vec::new(), Err(unavailable(error.to_string()))),
    };
    let tried = runtime.block_on(async {
        let mut request = ExecRequest::new(Command::Program {
            program: "true".into(),
            args: Vec::new(),
        });
        request.mode = Some((mode, ModeSource::Default));
        let spec = executor.resolve(request)?;
        let ran = executor.run(spec, Watch::default()).await;
        executor.shutdown().await;
        match ran? {
            executor::Ran::Finished(finished) if finished.ended.success() => {
                Ok((finished.sandbox.level, finished.sandbox.missing))
            }
            executor::Ran::Finished(finished) => Err(unavailable(format!(
                "`true` ended otherwise: {:?}",
                finished.ended
            ))),
            executor::Ran::Yielded(_) => Err(unavailable("`true` went on".to_owned())),
        }
    });
    let facts = executor.host_facts();
    let refused = [facts.namespaces, facts.own_proc, facts.listener]
        .into_iter()
        .filter_map(|availability| match availability {
            Availability::Assumed => None,
            Availability::Refused { step, errno } => Some(format!("{step}: {errno}")),
        })
        .collect();
    said(Some(built), refused, tried)
}

fn unavailable(message: String) -> NeverRan {
    NeverRan::refused(NeverRanCode::SandboxUnavailable, message, "")
}

impl Found {
    fn weakest(&self) -> Amount {
        let amounts = self.trials.iter().filter_map(|trial| trial.amount);
        amounts.max().unwrap_or(Amount::Refused)
    }

    fn as_json(&self) -> serde_json::Result<Value> {
        let by_mode = |value: fn(&Trial) -> Value| -> Map<String, Value> {
            let trials = self.trials.iter();
            trials
                .map(|trial| (trial.mode.as_str().to_owned(), value(trial)))
                .collect()
        };
        Ok(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "enforcement": self.weakest(),
            "host": serde_json::to_value(&self.host)?,
            "binary": {
                "path": self.binary.as_ref().ok().map(|path| path.to_string_lossy()),
                "error": self.binary.as_ref().err(),
            },
            "modes": by_mode(|trial| json!({
                "enforcement": trial.amount,
                "missing": trial.missing,
                "refusedSteps": trial.refused,
                "error": trial.error,
                "millis": trial.millis,
            })),
            "gaps": self.gaps,
            "policy": by_mode(|trial| trial.built.as_ref().map_or(Value::Null, |built| dump(&built.policy))),
        }))
    }

    fn as_text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        let host = &self.host;
        writeln!(out, "cofferdam {}", env!("CARGO_PKG_VERSION"))?;
        match &self.binary {
            Ok(path) => writeln!(out, "  binary              {}", shown(path))?,
            Err(error) => writeln!(out, "  binary              refused: {error}")?,
        }
        writeln!(out, "\nhost")?;
        writeln!(out, "  kernel              {}", host.kernel)?;
        match host.landlock.abi {
            0 => writeln!(out, "  Landlock            no")?,
            abi => writeln!(out, "  Landlock            yes, ABI {abi}")?,
        }
        let lacks = host.landlock.lacks.iter();
        for lack in lacks.filter(|_| host.landlock.abi > 0) {
            write!(
                out,
                "      lacks {} (ABI {}, Linux {})",
                lack.what, lack.abi, lack.kernel
            )?;
            if host.namespaces.mount.given {
                write!(out, "; carried by {}", lack.carried_by)?;
            }
            writeln!(out)?;
        }
        for (name, answer) in answers(host) {
            writeln!(out, "  {name:<19} {}", said(answer))?;
        }
        writeln!(out, "\nmodes")?;
        for trial in &self.trials {
            let amount = match trial.amount {
                Some(Amount::Full) => "full",
                Some(Amount::Partial) => "partial",
                Some(Amount::Refused) => "refused",
                None => "nothing is confined",
            };
            writeln!(out, "  {:<19} {amount}", trial.mode.as_str())?;
            for words in &trial.missing {
                writeln!(out, "      not governed: {words}")?;
            }
            if let Some(error) = &trial.error {
                writeln!(out, "      {error}")?;
            }
        }
        for gap in &self.gaps {
            writeln!(out, "\ngap: {}", gap.what)?;
            writeln!(out, "  why: {}", gap.why)?;
            for line in gap.remedy.lines() {
                writeln!(out, "    {line}")?;
            }
        }
        Ok(text)
    }
}

/// The probes' answers with their names, in the order in which a set-up needs them.
fn answers(host: &Host) -> [(&'static str, &Answer); 11] {
    let names = &host.namespaces;
    [
        ("user namespace", &names.user),
        ("mount namespace", &names.mount),
        ("PID namespace", &names.pid),
        ("fresh /proc", &host.proc),
        ("network namespace", &names.network),
        ("loopback", &names.loopback),
        ("IPC namespace", &names.ipc),
        ("UTS namespace", &names.uts),
        ("seccomp filter", &host.seccomp.filter),
        ("seccomp listener", &host.seccomp.listener),
        ("cgroup v2, own", &host.cgroup.delegated),
    ]
}

fn said(answer: &Answer) -> String {
    match (answer.given, &answer.step, &answer.errno) {
        (true, _, _) => "yes".to_owned(),
        (false, Some(step), Some(errno)) => format!("no: {step}: {errno}"),
        (false, Some(step), None) => format!("no: {step}"),
        (false, None, _) => "no".to_owned(),
    }
}

/// What a mode removes, refuses and hides.
fn dump(policy: &Policy) -> Value {
    let paths = |places: &[crate::policy::Place]| -> Vec<String> {
        let places = places.iter();
        places
            .map(|place| place.path.to_string_lossy().into_owned())
            .collect()
    };
    let by_name = policy.refused_calls.iter().flat_map(|group| {
        group.calls.iter().map(|call| {
            json!({"call": call, "errno": group.errno, "when": null, "reason": group.reason})
        })
    });
    let by_argument = filters::BY_ARGUMENT
        .iter()
        .filter(|_| policy.mode.is_confined())
        .map(|(call, when, errno)| {
            json!({"call": call, "errno": errno, "when": when, "reason": null})
        });
    let environment = &policy.environment;
    json!({
        "network": policy.network,
        "refusedCalls": by_name.chain(by_argument).collect::<Vec<_>>(),
        "variables": {
            "removedWords": SECRET_WORDS,
            "removedPrefixes": [MANAGED_PREFIX],
            "removed": environment.remove,
            "kept": environment.keep,
            "set": environment.set.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
        },
        "hidden": paths(&policy.hidden),
        "protected": paths(&policy.protected),
        "writable": paths(&policy.writable),
        "private": policy.scratch.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    })
}
