//! The text of a result, as a model reads it.
//!
//! Rule: pure; one marker a line, the exit marker last and without a newline behind it. Output isn't
//! altered, and none of it can stand where a marker is read back from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::approval::visible_line;
use crate::denial::{Class, Fact};
use crate::executor::{Captured, Cut, Finished, SandboxReport, TaskId, TaskRead, TaskStatus};
use crate::mode::Mode;

/// What a model is told when a wider mode would cure a denial and it may ask for one.
pub const ESCALATION_AVAILABLE: &str = "[sandbox: escalation available — retry this exact command once with sandbox_permissions (the narrowest wider mode that suffices) + justification; the approval prompt asks the user]";

/// Facts that are named one by one.
const MAX_FACTS: usize = 3;
/// Characters of a path or an address in a marker: as long as a path can be.
const MAX_TARGET: usize = 4096;

/// The result of a foreground command. An aborted one has the error text `command aborted` instead.
pub fn finished(finished: &Finished, escalation_advertised: bool) -> String {
    let mut text = Text::default();
    text.streams(&finished.stdout, &finished.stderr, "(no output)");
    for marker in markers(&finished.sandbox, escalation_advertised) {
        text.line(&marker);
    }
    if finished.cut == Some(Cut::TimedOut) {
        text.line(&format!("[timed out after {}ms]", millis(finished.timeout)));
    }
    match (finished.ended.exit_code(), finished.ended.signal_name()) {
        (_, Some(name)) => text.line(&format!("[killed by signal: {name}]")),
        (Some(code), None) if code != 0 => text.line(&format!("[exit code: {code}]")),
        (Some(_) | None, None) => text.end_apart(),
    }
    text.0
}

/// What a read of a background task delivers.
pub fn task_read(read: &TaskRead, escalation_advertised: bool) -> String {
    task_lines(read, None, escalation_advertised)
}

/// A foreground command that goes on as a background task, with what it printed so far.
pub fn yielded(
    id: &TaskId,
    after: Option<Duration>,
    read: &TaskRead,
    escalation_advertised: bool,
) -> String {
    let line = format!(
        "[moved to the background after {}ms: task {}; read on with bash_output, stop it with bash_kill]",
        millis(after),
        id.0
    );
    task_lines(read, Some(&line), escalation_advertised)
}

/// The acknowledgement of a background start.
pub fn started(id: &TaskId) -> String {
    format!(
        "started background task {}; read its output with bash_output, stop it with bash_kill",
        id.0
    )
}

/// The notice that a session gets when one of its tasks has finished.
pub fn notice(id: &TaskId, status: &TaskStatus) -> String {
    format!(
        "background bash task {} finished {}. Read its output with bash_output.",
        id.0,
        status_line(status)
    )
}

/// Where a task stands, as one line.
pub fn status_line(status: &TaskStatus) -> String {
    match status {
        TaskStatus::Running => "[status: running]".to_owned(),
        TaskStatus::Completed { exit_code } => {
            format!("[status: completed, exit code: {exit_code}]")
        }
        TaskStatus::Killed => "[status: killed]".to_owned(),
        TaskStatus::KilledBySignal(name) => format!("[status: killed by {name}]"),
    }
}

/// What the sandbox has to say, a line each, without newlines: what kinds of access were denied, the
/// first three distinct facts, and the way to a wider mode where one is advertised and would help.
pub fn markers(report: &SandboxReport, escalation_advertised: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let kinds: BTreeSet<Kind> = report
        .denials
        .iter()
        .map(|fact| Kind::of(fact.class))
        .collect();
    for kind in kinds {
        lines.push(format!(
            "[sandbox: {} denied under {} mode]",
            kind.as_str(),
            report.mode
        ));
    }
    let mut facts: Vec<String> = Vec::new();
    for line in report.denials.iter().map(blocked) {
        if facts.len() < MAX_FACTS && !facts.contains(&line) {
            facts.push(line);
        }
    }
    lines.append(&mut facts);
    for path in report.changed.iter().take(MAX_FACTS) {
        lines.push(format!(
            "[sandbox: changed protected path {}; look at it before anything outside the sandbox uses it]",
            visible_line(&path.to_string_lossy())
        ));
    }
    let curable = report
        .denials
        .iter()
        .any(|fact| fact.allowed_under.is_some_and(|mode| mode > report.mode));
    if escalation_advertised && curable {
        lines.push(ESCALATION_AVAILABLE.to_owned());
    }
    lines
}

/// How a command ended, read back from its result text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(String),
}

/// Reads the exit status back. Only a marker that is the very last line counts; without one it is 0.
pub fn exit_status(text: &str) -> Exit {
    exit_marker(text).unwrap_or(Exit::Code(0))
}

/// Whether the text says that its command goes on in the background.
pub(super) fn goes_on(text: &str) -> bool {
    text.lines()
        .rev()
        .take_while(|line| line.starts_with('['))
        .any(|line| line.starts_with("[moved to the background after "))
}

fn exit_marker(text: &str) -> Option<Exit> {
    let last = text.rsplit('\n').next()?;
    if let Some(digits) = between(last, "[exit code: ", "]") {
        let code: i32 = digits.parse().ok()?;
        return (code != 0 && code.to_string() == digits).then_some(Exit::Code(code));
    }
    let name = between(last, "[killed by signal: ", "]")?;
    let plain = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'+';
    (!name.is_empty() && name.bytes().all(plain)).then(|| Exit::Signal(name.to_owned()))
}

fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    line.strip_prefix(before)?.strip_suffix(after)
}

fn task_lines(read: &TaskRead, first: Option<&str>, escalation_advertised: bool) -> String {
    let whole = |text: &str| Captured {
        text: text.to_owned(),
        ..Captured::default()
    };
    let mut text = Text::default();
    text.streams(
        &whole(&read.stdout),
        &whole(&read.stderr),
        "(no new output)",
    );
    if let Some(copies) = &read.dropped {
        text.line(&format!(
            "[some output was dropped from memory; full output: {}]",
            paths(copies)
        ));
    }
    if let Some(first) = first {
        text.line(first);
    }
    text.line(&status_line(&read.status));
    for marker in read
        .sandbox
        .iter()
        .flat_map(|report| markers(report, escalation_advertised))
    {
        text.line(&marker);
    }
    text.0
}

/// The three kinds of denial that a model is told apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    File,
    Network,
    Other,
}

impl Kind {
    fn of(class: Class) -> Kind {
        match class {
            Class::FileWrite | Class::FileRead | Class::Exec => Kind::File,
            Class::Network => Kind::Network,
            Class::Process | Class::Privilege | Class::Syscall | Class::Limit => Kind::Other,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Kind::File => "file access",
            Kind::Network => "network access",
            Kind::Other => "operation",
        }
    }
}

fn blocked(fact: &Fact) -> String {
    let mut what = visible_line(&fact.operation);
    if let Some(target) = target(fact) {
        what.push(' ');
        what.push_str(&target);
    }
    let cure = match fact.allowed_under {
        Some(mode) => format!("allowed under {mode}"),
        None => "not allowed under any mode".to_owned(),
    };
    format!("[sandbox: blocked {what}; {cure}]")
}

/// The path or the address on one line.
pub(crate) fn target(fact: &Fact) -> Option<String> {
    let named = match (&fact.path, &fact.address) {
        (Some(path), _) => path.to_string_lossy().into_owned(),
        (None, Some(address)) => address.clone(),
        (None, None) => return None,
    };
    let named = visible_line(&named);
    Some(match named.char_indices().nth(MAX_TARGET) {
        Some((end, _)) => format!("{}…", &named[..end]),
        None => named,
    })
}

fn paths(copies: &[PathBuf]) -> String {
    if copies.is_empty() {
        return "(unavailable)".to_owned();
    }
    let words: Vec<String> = copies.iter().map(|path| path_text(path)).collect();
    words.join(", ")
}

fn path_text(path: &Path) -> String {
    visible_line(&path.to_string_lossy())
}

fn millis(time: Option<Duration>) -> u128 {
    time.unwrap_or_default().as_millis()
}

/// The mode in neutral words, for messages.
pub(super) fn confinement(mode: Mode) -> &'static str {
    match mode {
        Mode::ReadOnly => {
            "Files can be read, and none outside of the private scratch can be changed"
        }
        Mode::WorkspaceWrite => "Files can be read, and changed below the writable folders",
        Mode::DangerFullAccess => "Commands run unconfined",
    }
}

/// Text that is put together of streams and lines, each part on a line of its own.
#[derive(Default)]
struct Text(String);

impl Text {
    fn streams(&mut self, stdout: &Captured, stderr: &Captured, nothing: &str) {
        let silent = |stream: &Captured| stream.text.is_empty() && !stream.truncated;
        if silent(stdout) && silent(stderr) {
            self.line(nothing);
        }
        self.stream(stdout);
        if !silent(stderr) {
            self.line("[stderr]");
            self.stream(stderr);
        }
    }

    fn stream(&mut self, stream: &Captured) {
        if !stream.text.is_empty() {
            self.line(&stream.text);
        }
        if stream.truncated {
            let copy: Vec<PathBuf> = stream.spill.iter().cloned().collect();
            self.line(&format!(
                "[output truncated; full output: {}]",
                paths(&copy)
            ));
        }
    }

    fn line(&mut self, line: &str) {
        if !self.0.is_empty() && !self.0.ends_with('\n') {
            self.0.push('\n');
        }
        self.0.push_str(line);
    }

    /// Keeps output that ends like an exit marker from being read as one.
    fn end_apart(&mut self) {
        if exit_marker(&self.0).is_some() {
            self.0.push('\n');
        }
    }
}
