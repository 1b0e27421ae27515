//! `cofferdam session`: look at sessions, and switch one's mode while a server runs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::audit::{columns, cut, rfc3339};
use crate::mode::Mode;
use crate::session::{self, Event, Home, Process, Running, What, fold, running};

/// Characters of an id that are enough to name a session.
const SHORTEST_PREFIX: usize = 4;

/// Look at sessions and switch their modes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Where sessions are kept, in place of $DSH_HOME or ~/.dsh
    #[arg(long, value_name = "DIR", global = true)]
    home: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// All sessions, the latest first
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// The events of one session
    Show {
        /// The session's id or the beginning of it
        id: String,
        /// The events as they stand in the log, one a line
        #[arg(long)]
        json: bool,
    },
    /// The mode of one session; with MODE, switch it, effective with the next call
    Mode {
        /// The session's id or the beginning of it
        id: String,
        /// read-only, workspace-write or danger-full-access
        mode: Option<Mode>,
    },
}

/// Prints what was asked, or switches.
///
/// # Errors
/// The session isn't there, or its log can't be read or written.
pub fn run(args: &Args) -> Result<ExitCode> {
    super::print(&answer(args)?)?;
    Ok(ExitCode::SUCCESS)
}

/// The id that the word names: all of it, or a beginning that no other session has.
pub(super) fn find(home: &Home, word: &str) -> Result<String> {
    if session::is_id(word) {
        home.existing_log(word)?;
        return Ok(word.to_owned());
    }
    let mut fitting = session::list(home)?;
    fitting.retain(|id| word.len() >= SHORTEST_PREFIX && id.starts_with(word));
    match fitting.as_slice() {
        [id] => Ok(id.clone()),
        [] => bail!("no session \"{word}\"; `cofferdam session list` prints those that are there"),
        [_, _, ..] => bail!(
            "{} sessions begin with \"{word}\"; type more of the id",
            fitting.len()
        ),
    }
}

fn answer(args: &Args) -> Result<String> {
    let home = Home::find(args.home.as_deref())?;
    match &args.command {
        Command::List { json } => list(&home, *json),
        Command::Show { id, json } => show(&home, &find(&home, id)?, *json),
        Command::Mode { id, mode: None } => Ok(format!(
            "{}\n",
            Summary::of(&events(&home, &find(&home, id)?)?).mode_text()
        )),
        Command::Mode {
            id,
            mode: Some(mode),
        } => switch(&home, &find(&home, id)?, *mode),
    }
}

fn list(home: &Home, json: bool) -> Result<String> {
    let mut sessions = Vec::new();
    for id in session::list(home)? {
        match events(home, &id) {
            Ok(events) => sessions.push((id, Summary::of(&events))),
            Err(error) => tracing::warn!(%error, "a session is left out of the list"),
        }
    }
    sessions.sort_by(|(one, a), (other, b)| (b.began, other).cmp(&(a.began, one)));
    if json {
        return Ok(sessions
            .iter()
            .map(|(id, summary)| format!("{}\n", summary.json(id)))
            .collect());
    }
    if sessions.is_empty() {
        return Ok(String::new());
    }
    let heading = [
        "ID",
        "BEGAN (UTC)",
        "LAST EVENT (UTC)",
        "CALLS",
        "MODE",
        "DIRECTORY",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    for (id, summary) in sessions {
        rows.push([
            id,
            seconds(summary.began),
            seconds(summary.last),
            summary.calls.to_string(),
            summary.mode_text(),
            cut(&summary.cwd, 80),
        ]);
    }
    Ok(columns(&rows))
}

fn show(home: &Home, id: &str, json: bool) -> Result<String> {
    let events = events(home, id)?;
    if json {
        return Ok(events
            .iter()
            .map(|event| format!("{}\n", event.to_value()))
            .collect());
    }
    let summary = Summary::of(&events);
    let mut rows = vec![["TIME (UTC)", "EVENT", "WHAT"].map(str::to_owned)];
    for event in &events {
        rows.push([seconds(event.at), cut(&event.kind(), 40), detail(event)]);
    }
    Ok(format!(
        "session    {id}\ndirectory  {}\nmode       {}\nlog        {}\n\n{}",
        cut(&summary.cwd, 4096),
        summary.mode_text(),
        home.existing_log(id)?.display(),
        columns(&rows)
    ))
}

fn switch(home: &Home, id: &str, mode: Mode) -> Result<String> {
    let before = Summary::of(&events(home, id)?).mode();
    session::switch(home, id, mode, &who())?;
    // Read again: a task that has started meanwhile runs under the wider mode too.
    let events = events(home, id)?;
    Ok(switched(
        before,
        mode,
        &still_wider(&events, mode, Process::is_alive),
    ))
}

fn switched(before: Option<Mode>, mode: Mode, wider: &[Running]) -> String {
    let before = before.map_or("an unknown mode", Mode::as_str);
    let mut text = format!("switched from {before} to {mode}, effective with the next call\n");
    for task in wider {
        text.push_str(&format!(
            "{} still runs under {}: {}\n",
            task.task,
            task.mode,
            cut(&task.command, 80)
        ));
    }
    text
}

/// The tasks that still run under a wider mode; those of a process that is gone went with it.
fn still_wider(events: &[Event], mode: Mode, alive: impl Fn(Process) -> bool) -> Vec<Running> {
    let mut tasks = running(events);
    tasks.retain(|task| task.mode > mode && alive(task.process));
    tasks
}

fn who() -> String {
    let uid = nix::unistd::geteuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => format!("{} at the command line", user.name),
        Ok(None) | Err(_) => format!("user {uid} at the command line"),
    }
}

fn events(home: &Home, id: &str) -> Result<Vec<Event>> {
    Ok(session::read_events(&home.existing_log(id)?)?)
}

/// One session in a few words.
struct Summary {
    began: u64,
    last: u64,
    calls: usize,
    cwd: String,
    default: Option<Mode>,
    switched: Option<Mode>,
}

impl Summary {
    fn of(events: &[Event]) -> Summary {
        let mut start = None;
        let mut default = None;
        for event in events {
            if let (None, What::Start { cwd, .. }) = (&start, &event.what) {
                start = Some((event.at, cwd.to_string_lossy().into_owned()));
            }
            if let What::Start { default_mode, .. } | What::Resume { default_mode, .. } = event.what
            {
                default = Some(default_mode);
            }
        }
        let called = |event: &&Event| matches!(event.what, What::Call(_));
        Summary {
            began: start.as_ref().map_or(0, |(at, _cwd)| *at),
            last: events.last().map_or(0, |event| event.at),
            calls: events.iter().filter(called).count(),
            cwd: start.map(|(_at, cwd)| cwd).unwrap_or_default(),
            default,
            switched: fold(events),
        }
    }

    fn mode(&self) -> Option<Mode> {
        self.switched.or(self.default)
    }

    fn mode_text(&self) -> String {
        match (self.switched, self.default) {
            (Some(mode), _) => format!("{mode} (switched)"),
            (None, Some(mode)) => format!("{mode} (default)"),
            (None, None) => "unknown".to_owned(),
        }
    }

    fn json(&self, id: &str) -> serde_json::Value {
        serde_json::json!({
            "id": id,
            "began": rfc3339(self.began),
            "lastEvent": rfc3339(self.last),
            "calls": self.calls,
            "mode": self.mode(),
            "switched": self.switched.is_some(),
            "cwd": self.cwd,
        })
    }
}

fn seconds(at: u64) -> String {
    let time = rfc3339(at);
    time.get(..19).unwrap_or(&time).replace('T', " ")
}

/// What an event says, on one line.
fn detail(event: &Event) -> String {
    let text = match &event.what {
        What::Start {
            version,
            default_mode,
            process,
            ..
        }
        | What::Resume {
            version,
            default_mode,
            process,
        } => {
            format!(
                "{default_mode} by default, version {version}, process {}",
                process.pid
            )
        }
        What::Call(call) => call.command.clone(),
        What::Result { ended, .. } => result(ended),
        What::Asked { reason, .. } => reason.clone(),
        What::Resolved { outcome, by, .. } => match by {
            Some(by) => format!("{} by {by}", outcome.as_str()),
            None => outcome.as_str().to_owned(),
        },
        What::SandboxMode { mode, by } => format!("{mode} by {by}"),
        What::ModeTold { mode } => mode.to_string(),
        What::TaskStarted {
            task,
            mode,
            command,
            ..
        } => format!("{task} under {mode}: {command}"),
        What::TaskSettled { task, status, .. } => format!("{task} {}", settled(status)),
        What::TaskReport(report) => format!("{}{}", report.task, denied(report.denials.len())),
        What::Other { .. } => String::new(),
    };
    cut(&text, 100)
}

fn result(ended: &session::Ended) -> String {
    let end = match (&ended.error, &ended.task, &ended.signal, ended.exit_code) {
        (Some(code), _, _, _) => {
            format!("{code}: {}", ended.message.as_deref().unwrap_or_default())
        }
        (None, Some(task), _, _) => format!("goes on as {task}"),
        (None, None, Some(name), _) => format!("killed by {name}"),
        (None, None, None, Some(code)) => format!("exit {code}"),
        (None, None, None, None) => "unknown".to_owned(),
    };
    let timed_out = if ended.timed_out { ", timed out" } else { "" };
    format!("{end}{timed_out}{}", denied(ended.denials.len()))
}

fn settled(status: &session::Settled) -> String {
    match status {
        session::Settled::Exited(code) => format!("exit {code}"),
        session::Settled::Killed => "killed".to_owned(),
        session::Settled::Signalled(name) => format!("killed by {name}"),
    }
}

fn denied(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => ", 1 denial".to_owned(),
        more => format!(", {more} denials"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::mode::Mode::{DangerFullAccess, ReadOnly, WorkspaceWrite};
    use crate::session::{Session, Settled};

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    struct World {
        dir: tempfile::TempDir,
        home: Home,
    }

    impl World {
        fn new() -> World {
            let dir = tempfile::tempdir().unwrap();
            let home = Home::find(Some(dir.path())).unwrap();
            World { dir, home }
        }

        fn session(&self) -> Session {
            Session::create(&self.home, Path::new("/w"), WorkspaceWrite).unwrap()
        }

        fn says(&self, words: &[&str]) -> Result<String> {
            let home = ["session", "--home", self.dir.path().to_str().unwrap()];
            answer(&Program::try_parse_from(home.iter().chain(words))?.args)
        }
    }

    fn starts(task: &str, mode: Mode, process: Process) -> What {
        What::TaskStarted {
            call: "c".to_owned(),
            task: task.to_owned(),
            mode,
            command: "make\n-j".to_owned(),
            process,
        }
    }

    #[test]
    fn the_mode_is_read_and_switched_while_the_session_is_served() {
        let world = World::new();
        let session = world.session();
        let says = |words: &[&str]| world.says(words).unwrap();
        assert_eq!(says(&["mode", session.id()]), "workspace-write (default)\n");
        assert_eq!(
            says(&["mode", session.id(), "read-only"]),
            "switched from workspace-write to read-only, effective with the next call\n"
        );
        assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
        assert_eq!(
            says(&["mode", &session.id()[..12]]),
            "read-only (switched)\n",
            "the beginning of an id is enough"
        );
        let error = world.says(&["mode", session.id(), "open"]).unwrap_err();
        assert!(
            error.to_string().contains("unknown mode \"open\""),
            "{error}"
        );
        assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    }

    #[test]
    fn a_session_that_is_not_there_or_not_clear_is_an_error() {
        let world = World::new();
        let session = world.session();
        for word in ["zzzz", "", &session.id()[..3], "../x"] {
            assert_eq!(
                world.says(&["show", word]).unwrap_err().to_string(),
                format!(
                    "no session \"{word}\"; `cofferdam session list` prints those that are there"
                )
            );
        }
        let log = std::fs::read(session.log_path().unwrap()).unwrap();
        for last in ["0", "1"] {
            let name = format!("{}{last}.jsonl", "ab".repeat(15) + "c");
            std::fs::write(world.home.sessions().join(name), &log).unwrap();
        }
        assert_eq!(
            world.says(&["show", "abab"]).unwrap_err().to_string(),
            "2 sessions begin with \"abab\"; type more of the id"
        );
    }

    #[test]
    fn a_narrower_switch_names_the_tasks_that_still_run_wider() {
        let world = World::new();
        let session = world.session();
        let (here, gone) = (Process::current(), Process { pid: 1, started: 3 });
        let log = [
            starts("bash-1", WorkspaceWrite, here),
            starts("bash-2", ReadOnly, here),
            starts("bash-3", DangerFullAccess, here),
            starts("bash-4", DangerFullAccess, gone),
            What::TaskSettled {
                task: "bash-3".to_owned(),
                status: Settled::Exited(0),
                process: here,
            },
        ];
        for what in log {
            session.record(what).unwrap();
        }
        assert_eq!(
            world.says(&["mode", session.id(), "read-only"]).unwrap(),
            "switched from workspace-write to read-only, effective with the next call\n\
             bash-1 still runs under workspace-write: make\\n-j\n"
        );
        assert_eq!(
            world
                .says(&["mode", session.id(), "workspace-write"])
                .unwrap(),
            "switched from read-only to workspace-write, effective with the next call\n"
        );
    }

    #[test]
    fn sessions_are_listed_the_latest_first() {
        let world = World::new();
        assert_eq!(world.says(&["list"]).unwrap(), "");
        let (first, second) = (world.session(), world.session());
        std::fs::write(
            first.log_path().unwrap(),
            "{\"at\":1764547200000,\"type\":\"session/start\",\"id\":\"x\",\"cwd\":\"/w\\u001b\",\"version\":\"1\",\
             \"defaultMode\":\"read-only\",\"process\":{\"pid\":1,\"started\":2}}\n\
             {\"at\":1764547261000,\"type\":\"bash/sandbox-mode\",\"mode\":\"workspace-write\",\"by\":\"ada\"}\n",
        )
        .unwrap();
        let listed = world.says(&["list"]).unwrap();
        let rows: Vec<&str> = listed.lines().collect();
        assert_eq!(rows.len(), 3);
        assert!(rows[1].starts_with(second.id()));
        assert_eq!(
            rows[2],
            format!(
                "{}  2025-12-01 00:00:00  2025-12-01 00:01:01  0      workspace-write (switched)  /w\\u{{1b}}",
                first.id()
            )
        );
        let json = world.says(&["list", "--json"]).unwrap();
        let last: serde_json::Value = serde_json::from_str(json.lines().last().unwrap()).unwrap();
        assert_eq!(
            last,
            serde_json::json!({
                "id": first.id(), "began": "2025-12-01T00:00:00.000Z",
                "lastEvent": "2025-12-01T00:01:01.000Z", "calls": 0, "mode": "workspace-write",
                "switched": true, "cwd": "/w\u{1b}",
            })
        );
    }

    #[test]
    fn a_session_is_shown_event_by_event() {
        let world = World::new();
        let session = world.session();
        session.switch(ReadOnly, "ada").unwrap();
        let shown = world.says(&["show", session.id()]).unwrap();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], format!("session    {}", session.id()));
        assert_eq!(lines[1], "directory  /w");
        assert_eq!(lines[2], "mode       read-only (switched)");
        assert!(lines[5].starts_with("TIME (UTC)"));
        assert!(
            lines[6].contains("session/start") && lines[6].contains("workspace-write by default")
        );
        assert!(lines[7].ends_with("bash/sandbox-mode  read-only by ada"));
        let json = world.says(&["show", session.id(), "--json"]).unwrap();
        let values = |text: &str| -> Vec<serde_json::Value> {
            let lines = text.lines();
            lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        };
        let log = std::fs::read_to_string(session.log_path().unwrap()).unwrap();
        assert_eq!(values(&json), values(&log));
    }
}
