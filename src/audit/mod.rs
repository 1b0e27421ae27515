//! What was run, refused, asked and granted, and by whom, read back from the session logs.
//!
//! Rule: pure; every call is one entry, with everything that the log says of it, and what the log
//! doesn't say reads as unknown, never as fine.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use crate::approval::visible_line;
use crate::mode::{Mode, ModeSource};
use crate::session::{Answered, Call, Ended, Event, Process, Settled, What};

/// One line of an audit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When it began, RFC 3339 in UTC with milliseconds.
    pub time: String,
    /// The same in milliseconds since 1970.
    pub at: u64,
    /// The session's id.
    pub session: String,
    /// What it was.
    #[serde(flatten)]
    pub what: Subject,
}

/// What an entry is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Subject {
    /// A call of `bash`.
    Call(Box<Run>),
    /// Someone switched the session's mode.
    Switch {
        /// The mode.
        mode: Mode,
        /// Who switched.
        by: String,
    },
}

/// A call of `bash` with everything that is on record about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The command.
    pub command: String,
    /// What the model said that it does.
    pub description: String,
    /// Where it started; broken bytes are replaced.
    pub workdir: Option<String>,
    /// The mode that it ran under, or would have.
    pub mode: Option<Mode>,
    /// Where that mode came from.
    pub source: Option<ModeSource>,
    /// How it ended.
    pub end: End,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// The ending signal.
    pub signal: Option<String>,
    /// Whether the timer fired.
    pub timed_out: bool,
    /// How long it ran in the foreground.
    pub duration_ms: Option<u64>,
    /// `full` or `partial`.
    pub enforcement: Option<String>,
    /// What wasn't governed or was lost.
    pub missing: Vec<String>,
    /// The error's code, when nothing ran or it was aborted.
    pub error: Option<String>,
    /// The error's text.
    pub message: Option<String>,
    /// The background task that it became.
    pub task: Option<String>,
    /// What the policy refused, as the machine's copy of a result spells it.
    pub denials: Vec<Value>,
    /// The question whether it may run wider, if there was one.
    pub approval: Option<Approval>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It exited or a signal ended it.
    Finished,
    /// It became a background task that was killed.
    Killed,
    /// It became a background task that hasn't settled on record.
    Background,
    /// Nothing ran, or it was aborted: see the error.
    Failed,
    /// The log says nothing: it still runs, or whoever ran it died.
    Unknown,
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// The mode that held without a grant.
    pub from: Mode,
    /// The mode asked for.
    pub to: Mode,
    /// `escalate sandbox to <mode>: <justification>`.
    pub reason: String,
    /// The answer; `None`: none is on record.
    pub answer: Option<Answered>,
    /// Who or what answered.
    pub by: Option<String>,
}

/// Which entries are wanted; `None` wants all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Not before this, in milliseconds since 1970.
    pub since: Option<u64>,
    /// Not after this, in milliseconds since 1970.
    pub until: Option<u64>,
    /// The session's id.
    pub session: Option<String>,
    /// The mode that it ran under, or that was switched to.
    pub mode: Option<Mode>,
    /// A class that something was denied of, as in `file_write`.
    pub class: Option<String>,
}

impl Filter {
    /// Whether the entry is wanted.
    pub fn wants(&self, entry: &Entry) -> bool {
        let mode = match &entry.what {
            Subject::Call(run) => run.mode,
            Subject::Switch { mode, .. } => Some(*mode),
        };
        let classes = |class: &String| match &entry.what {
            Subject::Call(run) => run.denials.iter().any(|fact| text(fact, "class") == class),
            Subject::Switch { .. } => false,
        };
        self.since.is_none_or(|since| entry.at >= since)
            && self.until.is_none_or(|until| entry.at <= until)
            && self.session.as_ref().is_none_or(|id| entry.session == *id)
            && self.mode.is_none_or(|wanted| mode == Some(wanted))
            && self.class.as_ref().is_none_or(classes)
    }
}

/// The entries of one session's log, in the order in which they began.
pub fn entries(session: &str, events: &[Event]) -> Vec<Entry> {
    let mut reading = Reading::default();
    for event in events {
        reading.take(session, event);
    }
    for (task, status) in std::mem::take(&mut reading.settled) {
        if let Some(run) = reading.run_of_task(&task) {
            settle(run, status);
        }
    }
    for (task, report) in std::mem::take(&mut reading.reports) {
        if let Some(run) = reading.run_of_task(&task) {
            run.enforcement = report.enforcement;
            run.missing = report.missing;
            run.denials = report.denials;
        }
    }
    reading.entries
}

/// The entries as a table for people, with a heading; empty when there are none.
pub fn table(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let heading = [
        "TIME (UTC)",
        "SESSION",
        "MODE",
        "END",
        "DENIED",
        "APPROVAL",
        "COMMAND",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    rows.extend(entries.iter().map(row));
    columns(&rows)
}

/// Rows as text: every column but the last as wide as its widest cell.
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}  "));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Milliseconds since 1970 as RFC 3339 in UTC.
pub fn rfc3339(at: u64) -> String {
    // Years behind 9999 have no such form; no clock that works is there.
    let at = at.min(253_402_300_799_999);
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(at);
    humantime::format_rfc3339_millis(time).to_string()
}

/// Text on one line, cut to `width` characters.
pub fn cut(text: &str, width: usize) -> String {
    let line = visible_line(text);
    match line.char_indices().nth(width) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// What has been read of a log.
#[derive(Default)]
struct Reading {
    entries: Vec<Entry>,
    /// Where in `entries` the call stands.
    calls: HashMap<String, usize>,
    /// Which call became the task.
    tasks: HashMap<(String, Process), String>,
    settled: Vec<((String, Process), Settled)>,
    reports: Vec<((String, Process), Report)>,
}

struct Report {
    enforcement: Option<String>,
    missing: Vec<String>,
    denials: Vec<Value>,
}

impl Reading {
    fn take(&mut self, session: &str, event: &Event) {
        match &event.what {
            What::Call(call) => {
                self.calls.insert(call.call.clone(), self.entries.len());
                self.push(session, event.at, Subject::Call(Box::new(begun(call))));
            }
            What::Result { call, ended } => {
                if let Some(run) = self.run(call) {
                    end(run, ended);
                }
            }
            What::Asked {
                call,
                reason,
                from,
                to,
                ..
            } => {
                if let Some(run) = self.run(call) {
                    run.approval = Some(Approval {
                        from: *from,
                        to: *to,
                        reason: reason.clone(),
                        answer: None,
                        by: None,
                    });
                }
            }
            What::Resolved {
                call, outcome, by, ..
            } => {
                if let Some(approval) = self.run(call).and_then(|run| run.approval.as_mut()) {
                    approval.answer = Some(*outcome);
                    approval.by = by.clone();
                }
            }
            What::SandboxMode { mode, by } => {
                let by = by.clone();
                self.push(session, event.at, Subject::Switch { mode: *mode, by });
            }
            What::TaskStarted {
                call,
                task,
                process,
                ..
            } => {
                self.tasks.insert((task.clone(), *process), call.clone());
            }
            What::TaskSettled {
                task,
                status,
                process,
            } => self
                .settled
                .push(((task.clone(), *process), status.clone())),
            What::TaskReport(report) => self.reports.push((
                (report.task.clone(), report.process),
                Report {
                    enforcement: report.enforcement.clone(),
                    missing: report.missing.clone(),
                    denials: report.denials.clone(),
                },
            )),
            What::Start { .. }
            | What::Resume { .. }
            | What::ModeTold { .. }
            | What::Other { .. } => {}
        }
    }

    fn push(&mut self, session: &str, at: u64, what: Subject) {
        self.entries.push(Entry {
            time: rfc3339(at),
            at,
            session: session.to_owned(),
            what,
        });
    }

    fn run(&mut self, call: &str) -> Option<&mut Run> {
        let index = *self.calls.get(call)?;
        match &mut self.entries.get_mut(index)?.what {
            Subject::Call(run) => Some(run),
            Subject::Switch { .. } => None,
        }
    }

    fn run_of_task(&mut self, task: &(String, Process)) -> Option<&mut Run> {
        let call = self.tasks.get(task)?.clone();
        self.run(&call)
    }
}

fn begun(call: &Call) -> Run {
    Run {
        command: call.command.clone(),
        description: call.description.clone(),
        workdir: call
            .workdir
            .as_ref()
            .map(|dir| dir.to_string_lossy().into_owned()),
        mode: call.mode,
        source: call.source,
        end: End::Unknown,
        exit_code: None,
        signal: None,
        timed_out: false,
        duration_ms: None,
        enforcement: None,
        missing: Vec::new(),
        error: None,
        message: None,
        task: None,
        denials: Vec::new(),
        approval: None,
    }
}

fn end(run: &mut Run, ended: &Ended) {
    run.end = match (&ended.error, &ended.task) {
        (Some(_), _) => End::Failed,
        (None, Some(_)) => End::Background,
        (None, None) => End::Finished,
    };
    run.mode = ended.mode.or(run.mode);
    run.source = ended.source.or(run.source);
    run.exit_code = ended.exit_code;
    run.signal.clone_from(&ended.signal);
    run.timed_out = ended.timed_out;
    run.duration_ms = ended.duration_ms;
    run.enforcement.clone_from(&ended.enforcement);
    run.missing.clone_from(&ended.missing);
    run.error.clone_from(&ended.error);
    run.message.clone_from(&ended.message);
    run.task.clone_from(&ended.task);
    run.denials.clone_from(&ended.denials);
}

fn settle(run: &mut Run, status: Settled) {
    run.end = End::Finished;
    match status {
        Settled::Exited(code) => run.exit_code = Some(code),
        Settled::Signalled(name) => run.signal = Some(name),
        Settled::Killed => run.end = End::Killed,
    }
}

fn row(entry: &Entry) -> [String; 7] {
    let time = entry
        .time
        .get(..19)
        .unwrap_or(&entry.time)
        .replace('T', " ");
    let session = entry.session.get(..8).unwrap_or(&entry.session).to_owned();
    match &entry.what {
        Subject::Switch { mode, by } => [
            time,
            session,
            mode.to_string(),
            "switched".to_owned(),
            String::new(),
            cut(by, 40),
            String::new(),
        ],
        Subject::Call(run) => [
            time,
            session,
            run.mode
                .map_or("unconfined".to_owned(), |mode| mode.to_string()),
            end_text(run),
            denied_text(&run.denials),
            run.approval.as_ref().map(approval_text).unwrap_or_default(),
            cut(&run.command, 80),
        ],
    }
}

fn end_text(run: &Run) -> String {
    let end = match (run.end, &run.signal, run.exit_code) {
        (End::Unknown, _, _) => "unknown".to_owned(),
        (End::Failed, _, _) => run.error.clone().unwrap_or_default(),
        (End::Background, _, _) => "running".to_owned(),
        (End::Killed, _, _) => "killed".to_owned(),
        (End::Finished, Some(name), _) => name.clone(),
        (End::Finished, None, Some(code)) => format!("exit {code}"),
        (End::Finished, None, None) => "unknown".to_owned(),
    };
    let end = if run.timed_out {
        format!("timed out, {end}")
    } else {
        end
    };
    match &run.task {
        Some(task) => format!("{task}: {end}"),
        None => end,
    }
}

fn denied_text(denials: &[Value]) -> String {
    let Some(first) = denials.first() else {
        return String::new();
    };
    let target = [text(first, "path"), text(first, "address")].concat();
    let told = cut(&format!("{} {target}", text(first, "operation")), 40);
    match denials.len() - 1 {
        0 => told,
        more => format!("{told} (+{more})"),
    }
}

fn approval_text(approval: &Approval) -> String {
    let answer = approval.answer.map_or("no answer", Answered::as_str);
    let by = match &approval.by {
        Some(by) => format!(" by {}", cut(by, 40)),
        None => String::new(),
    };
    format!("{}: {answer}{by}", approval.to)
}

fn text<'a>(fact: &'a Value, key: &str) -> &'a str {
    fact.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::*;
    use crate::mode::Mode::{DangerFullAccess, ReadOnly, WorkspaceWrite};

    const ID: &str = "0123456789abcdef0123456789abcdef";
    const SERVER: Process = Process { pid: 7, started: 9 };

    fn called(id: &str, command: &str) -> What {
        What::Call(Call {
            call: id.to_owned(),
            command: command.to_owned(),
            description: "does a thing".to_owned(),
            workdir: Some(PathBuf::from("/w")),
            timeout_ms: None,
            background: false,
            mode: Some(ReadOnly),
            source: Some(ModeSource::Default),
        })
    }

    fn result(id: &str, ended: Ended) -> What {
        What::Result {
            call: id.to_owned(),
            ended,
        }
    }

    fn ran(mode: Mode, source: ModeSource, code: i32) -> Ended {
        Ended {
            mode: Some(mode),
            source: Some(source),
            exit_code: Some(code),
            duration_ms: Some(5),
            enforcement: Some("full".to_owned()),
            ..Ended::default()
        }
    }

    fn asked(id: &str, to: Mode) -> What {
        What::Asked {
            call: id.to_owned(),
            question: "q".to_owned(),
            reason: format!("escalate sandbox to {to}: it must"),
            command: "make".to_owned(),
            workdir: PathBuf::from("/w"),
            from: ReadOnly,
            to,
        }
    }

    fn resolved(id: &str, outcome: Answered, by: Option<&str>) -> What {
        What::Resolved {
            call: id.to_owned(),
            question: "q".to_owned(),
            outcome,
            by: by.map(str::to_owned),
        }
    }

    fn fact(class: &str, path: &str) -> Value {
        json!({"class": class, "operation": "write", "path": path, "address": null})
    }

    /// One event a second from 2025-12-01 on.
    fn log(whats: Vec<What>) -> Vec<Event> {
        (0..)
            .zip(whats)
            .map(|(second, what)| Event {
                at: 1_764_547_200_000 + second * 1000,
                what,
            })
            .collect()
    }

    fn full_log() -> Vec<Event> {
        let mut denied = ran(ReadOnly, ModeSource::Default, 1);
        denied.denials = vec![fact("file_write", "/w/a"), fact("network", "")];
        let task = Some("bash-1".to_owned());
        log(vec![
            called("a", "touch a"),
            result("a", denied),
            called("b", "make"),
            asked("b", WorkspaceWrite),
            resolved("b", Answered::AllowedOnce, Some("ada")),
            result("b", ran(WorkspaceWrite, ModeSource::Grant, 0)),
            called("c", "rm -rf /"),
            asked("c", DangerFullAccess),
            resolved("c", Answered::Rejected, Some("ada")),
            result(
                "c",
                Ended {
                    mode: Some(ReadOnly),
                    source: Some(ModeSource::Default),
                    error: Some("ESCALATION_REFUSED".to_owned()),
                    message: Some("no".to_owned()),
                    ..Ended::default()
                },
            ),
            What::SandboxMode {
                mode: WorkspaceWrite,
                by: "ada at the command line".to_owned(),
            },
            called("d", "sleep\n9"),
            What::TaskStarted {
                call: "d".to_owned(),
                task: "bash-1".to_owned(),
                mode: ReadOnly,
                command: "sleep 9".to_owned(),
                process: SERVER,
            },
            result(
                "d",
                Ended {
                    task,
                    ..Ended::default()
                },
            ),
            What::TaskSettled {
                task: "bash-1".to_owned(),
                status: Settled::Signalled("SIGSEGV".to_owned()),
                process: SERVER,
            },
            What::TaskReport(crate::session::TaskReport {
                task: "bash-1".to_owned(),
                process: SERVER,
                mode: ReadOnly,
                enforcement: Some("partial".to_owned()),
                missing: vec!["chmod".to_owned()],
                denials: vec![fact("exec", "/x")],
            }),
            called("e", "never ended"),
        ])
    }

    #[test]
    fn an_audit_tells_what_was_run_refused_asked_and_granted_and_by_whom() {
        assert_eq!(
            table(&entries(ID, &full_log())),
            "\
TIME (UTC)           SESSION   MODE             END                 DENIED           APPROVAL                              COMMAND
2025-12-01 00:00:00  01234567  read-only        exit 1              write /w/a (+1)                                        touch a
2025-12-01 00:00:02  01234567  workspace-write  exit 0                               workspace-write: allowed-once by ada  make
2025-12-01 00:00:06  01234567  read-only        ESCALATION_REFUSED                   danger-full-access: rejected by ada   rm -rf /
2025-12-01 00:00:10  01234567  workspace-write  switched                             ada at the command line
2025-12-01 00:00:11  01234567  read-only        bash-1: SIGSEGV     write /x                                               sleep\\n9
2025-12-01 00:00:16  01234567  read-only        unknown                                                                    never ended
"
        );
        assert_eq!(table(&[]), "");
    }

    #[test]
    fn programs_get_the_whole_entry() {
        let entries = entries(ID, &full_log());
        assert_eq!(
            serde_json::to_value(&entries[1]).unwrap(),
            json!({
                "time": "2025-12-01T00:00:02.000Z", "at": 1_764_547_202_000_u64, "session": ID, "kind": "call",
                "command": "make", "description": "does a thing", "workdir": "/w", "mode": "workspace-write",
                "source": "grant", "end": "finished", "exitCode": 0, "signal": null, "timedOut": false,
                "durationMs": 5, "enforcement": "full", "missing": [], "error": null, "message": null,
                "task": null, "denials": [],
                "approval": {
                    "from": "read-only", "to": "workspace-write",
                    "reason": "escalate sandbox to workspace-write: it must", "answer": "allowed-once",
                    "by": "ada",
                },
            })
        );
        assert_eq!(
            serde_json::to_value(&entries[3]).unwrap(),
            json!({
                "time": "2025-12-01T00:00:10.000Z", "at": 1_764_547_210_000_u64, "session": ID,
                "kind": "switch", "mode": "workspace-write", "by": "ada at the command line",
            })
        );
    }

    #[test]
    fn an_audit_is_filtered_by_time_session_mode_and_class() {
        let entries = entries(ID, &full_log());
        let wanted = |filter: Filter| -> Vec<usize> {
            let all = entries.iter().enumerate();
            all.filter(|(_, entry)| filter.wants(entry))
                .map(|(index, _)| index)
                .collect()
        };
        let any = Filter::default();
        assert_eq!(wanted(any.clone()), [0, 1, 2, 3, 4, 5]);
        let time = Filter {
            since: Some(1_764_547_202_000),
            until: Some(1_764_547_210_000),
            ..any.clone()
        };
        assert_eq!(wanted(time), [1, 2, 3]);
        let mode = Filter {
            mode: Some(WorkspaceWrite),
            ..any.clone()
        };
        assert_eq!(wanted(mode), [1, 3]);
        for (class, indices) in [
            ("file_write", vec![0]),
            ("exec", vec![4]),
            ("limit", vec![]),
        ] {
            let class = Filter {
                class: Some(class.to_owned()),
                ..any.clone()
            };
            assert_eq!(wanted(class), indices);
        }
        for (id, count) in [(ID, 6), ("ffff", 0)] {
            let session = Filter {
                session: Some(id.to_owned()),
                ..any.clone()
            };
            assert_eq!(wanted(session).len(), count);
        }
    }

    #[test]
    fn halves_without_their_call_are_passed_over() {
        let stray = log(vec![
            result("x", Ended::default()),
            resolved("x", Answered::AllowedOnce, None),
            asked("x", WorkspaceWrite),
            What::TaskSettled {
                task: "bash-9".to_owned(),
                status: Settled::Killed,
                process: SERVER,
            },
        ]);
        assert_eq!(entries(ID, &stray), []);
    }

    #[test]
    fn a_background_task_runs_until_its_end_is_on_record() {
        let mut log = full_log();
        log.truncate(14);
        assert!(table(&entries(ID, &log)).contains("bash-1: running"));
        let what = What::TaskSettled {
            task: "bash-1".to_owned(),
            status: Settled::Killed,
            process: SERVER,
        };
        log.push(Event { at: 0, what });
        assert!(table(&entries(ID, &log)).contains("bash-1: killed"));
    }

    #[test]
    fn a_question_without_an_answer_on_record_is_no_grant() {
        let open = log(vec![called("a", "make"), asked("a", WorkspaceWrite)]);
        let text = table(&entries(ID, &open));
        assert!(text.contains("workspace-write: no answer"), "{text}");
    }
}
