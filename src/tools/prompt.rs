//! What a model is told before it calls: descriptions, prompt sections, and the mode's narrator.
//!
//! Rule: byte-stable for one composition. Nothing here claims that a task can't be done.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Annotations, Composition, Definition, Kind, Param, standing_mode, text};
use crate::approval::visible_line;
use crate::mode::Mode;
use crate::policy::Network;
use crate::session::{Session, SessionError, What};

/// What the model is told about its session's mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AnnounceMode {
    /// Nothing standing: a denial marker names the mode when the boundary is met.
    #[default]
    OnDenial,
    /// A prompt section states the mode, and a notice each change.
    Always,
}

/// A part of the system prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name, as in `tool:bash`.
    pub name: &'static str,
    /// Where it stands: smaller comes first.
    pub order: u32,
    /// What it says.
    pub text: String,
}

/// The habit that no single tool's description can carry.
const HABIT: &str = "After every `bash` result, look for an `[exit code: N]` marker on its last line. \
If there is one, the command failed: find out why before you take the next step.";

const BASH: &str = "\
Runs a command with `bash -c` and returns what it printed.

- Every call gets a fresh shell. Variables, functions and the current directory don't carry over; say \
where to run with `workdir` and leave `cd` out.
- The result holds stdout, then stderr below a `[stderr]` line, then markers, each on its own line. \
`[exit code: N]` on the last line means that the command failed with N; without it the command \
succeeded. `[timed out after Nms]` and `[killed by signal: NAME]` tell of an end from outside.
- `[sandbox: … denied under <mode> mode]` tells of a policy that this command met. It is a decision, \
not a bug in the command: don't look for another way to the same end.
- Of long output the end is kept. `[output truncated; full output: <path>]` names a file with all of \
it; search that file, or read parts of it, with further calls.
- The environment has variables named `$DSH_*` that tell a command about the harness and the session \
that it runs for.
- `run_in_background: true` starts a task and returns its id at once. Poll it with `bash_output` and end \
it with `bash_kill`. Nothing else outlives its call: whatever a command leaves behind ends with it.";

const ESCALATION: &str = "
- A wider mode can be had for one command. First run the command as it is. When its result says that \
escalation is available, call again in the same turn with exactly the same command, with \
`sandbox_permissions` set to the narrowest mode that suffices and a `justification`. The prompt that this \
opens is where the user decides, so don't ask in the conversation first. Never ask on speculation: only \
a denial is a reason, or one of the same access earlier in this session. Never ask when you were told \
that approval prompts are disabled. A rejection is final for that command.";

const BASH_OUTPUT: &str = "\
Returns what a background task printed since the previous read, then a `[status: …]` line: running, \
completed with its exit code, or killed. `(no new output)` means that nothing came. With `wait_ms` the \
read waits until there is output or the task ends. A task isn't announced by itself while you work: \
poll it.";

const BASH_KILL: &str = "\
Ends a background task and everything that it started. A task that has finished already stays as it is.";

/// The three tools, in their fixed order.
pub(super) fn definitions(composition: &Composition) -> Vec<Definition> {
    let escalates = composition.executor.confines().is_some();
    vec![
        Definition {
            name: "bash",
            description: if escalates {
                format!("{BASH}{ESCALATION}")
            } else {
                BASH.to_owned()
            },
            params: bash_params(escalates),
            annotations: Annotations {
                title: "Run a shell command",
                read_only: false,
                destructive: true,
                idempotent: false,
                open_world: !escalates || composition.network == Network::Host,
            },
        },
        Definition {
            name: "bash_output",
            description: BASH_OUTPUT.to_owned(),
            params: vec![task_param(), wait_param()],
            annotations: Annotations {
                title: "Read a background task",
                read_only: true,
                destructive: false,
                idempotent: false,
                open_world: false,
            },
        },
        Definition {
            name: "bash_kill",
            description: BASH_KILL.to_owned(),
            params: vec![task_param()],
            annotations: Annotations {
                title: "End a background task",
                read_only: false,
                destructive: true,
                idempotent: true,
                open_world: false,
            },
        },
    ]
}

fn bash_params(escalates: bool) -> Vec<Param> {
    let mut params = vec![
        Param::required("command", Kind::String, "The command, run as `bash -c`."),
        Param::required(
            "description",
            Kind::String,
            "What the command does, in 5 to 10 words, for the user. It changes nothing about the run.",
        ),
        Param::optional(
            "timeoutMs",
            Kind::Number,
            "How many milliseconds it may run. Default 120000; longer than 600000 counts as that.",
        ),
        Param::optional(
            "workdir",
            Kind::String,
            "Where it runs. Default: the session's directory, which a relative path starts from too.",
        ),
        Param::optional(
            "run_in_background",
            Kind::Boolean,
            "Start it as a background task and return the task's id at once; no timeout applies.",
        ),
    ];
    if escalates {
        let mut permissions = Param::optional(
            "sandbox_permissions",
            Kind::String,
            "The wider mode that this one command needs after a denial. Only with `justification`.",
        );
        permissions.one_of = vec![json!(Mode::WorkspaceWrite), json!(Mode::DangerFullAccess)];
        params.push(permissions);
        params.push(Param::optional(
            "justification",
            Kind::String,
            "One sentence for the user: why exactly this command needs the wider mode. Only with \
             `sandbox_permissions`.",
        ));
    }
    params
}

fn task_param() -> Param {
    Param::required("task_id", Kind::String, "The task's id, as in `bash-1`.")
}

fn wait_param() -> Param {
    let mut wait = Param::optional(
        "wait_ms",
        Kind::Number,
        "How many milliseconds to wait for output or an end, when there is none yet.",
    );
    wait.default = Some(json!(0));
    wait
}

pub(super) fn sections(
    composition: &Composition,
    session: Option<&Session>,
) -> Result<Vec<Section>, SessionError> {
    let mut sections = vec![Section {
        name: "tool:bash",
        order: 105,
        text: HABIT.to_owned(),
    }];
    if composition.announce_mode == AnnounceMode::Always
        && let Some((mode, _source)) = standing_mode(composition, session, None)?
    {
        let boundary = boundary(composition, mode, session.map(Session::cwd));
        sections.push(Section {
            name: "env:bash-sandbox",
            order: 110,
            text: format!("Shell commands of this session run under {mode} mode. {boundary}"),
        });
    }
    Ok(sections)
}

pub(super) fn narrate(
    composition: &Composition,
    session: &Session,
) -> Result<Option<String>, SessionError> {
    if composition.announce_mode != AnnounceMode::Always {
        return Ok(None);
    }
    let Some((mode, _source)) = standing_mode(composition, Some(session), None)? else {
        return Ok(None);
    };
    let told = session.standing()?.told;
    if told == Some(mode) {
        return Ok(None);
    }
    session.record(What::ModeTold { mode })?;
    // The first time, the section has told it.
    Ok(told.map(|before| {
        let boundary = boundary(composition, mode, Some(session.cwd()));
        format!("Shell commands of this session now run under {mode} mode (before: {before}). {boundary}")
    }))
}

/// What holds under a mode, in neutral words.
fn boundary(composition: &Composition, mode: Mode, workspace: Option<&Path>) -> String {
    let said = text::confinement(mode);
    if !mode.is_confined() {
        return format!("{said}.");
    }
    let roots: Vec<PathBuf> = match mode {
        Mode::WorkspaceWrite => workspace
            .map(Path::to_owned)
            .into_iter()
            .chain(composition.writable.iter().cloned())
            .collect(),
        Mode::ReadOnly | Mode::DangerFullAccess => Vec::new(),
    };
    let mut places: Vec<String> = roots
        .iter()
        .map(|root| visible_line(&root.to_string_lossy()))
        .collect();
    places.push("a private /tmp".to_owned());
    let network = match composition.network {
        Network::None => "the session's own loopback",
        Network::Host => "the host's",
    };
    format!(
        "{said}. Writable: {}. Network: {network}. Trying is safe: what goes beyond is refused without \
         harm, and the result says so; so try what the task needs.",
        places.join(", ")
    )
}
