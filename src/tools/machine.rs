//! The machine's copy of a result: the same facts as the text, as JSON.
//!
//! Rule: pure; shapes only grow. Paths are text, with broken bytes replaced.

use std::path::Path;

use serde_json::{Value, json};

use crate::denial::Fact;
use crate::executor::{
    Captured, Cut, Finished, Level, SandboxReport, TaskId, TaskRead, TaskStatus,
};
use crate::outcome::NeverRan;

/// A command that ran: `{exitCode, signal, timedOut, aborted, timeoutMs, durationMs, stdout, stderr,
/// sandbox}`.
pub fn finished(finished: &Finished) -> Value {
    json!({
        "exitCode": finished.ended.exit_code(),
        "signal": finished.ended.signal_name(),
        "timedOut": finished.cut == Some(Cut::TimedOut),
        "aborted": finished.cut == Some(Cut::Aborted),
        "timeoutMs": finished.timeout.map(whole_millis),
        "durationMs": (finished.duration.as_secs_f64() * 1e6).round() / 1e3,
        "stdout": captured(&finished.stdout),
        "stderr": captured(&finished.stderr),
        "sandbox": report(&finished.sandbox),
    })
}

/// What the confinement has to say: `{mode, enforcement, missing, denied, denials}`, and `changed`, a list
/// of paths, when there is any.
pub fn report(report: &SandboxReport) -> Value {
    let mut value = json!({
        "mode": report.mode,
        "enforcement": report.level.as_ref().map(level),
        "missing": report.missing,
        "denied": report.denied(),
        "denials": report.denials.iter().map(fact).collect::<Vec<_>>(),
    });
    if !report.changed.is_empty() {
        let changed = report.changed.iter().map(|changed| path(changed));
        value["changed"] = changed.collect();
    }
    value
}

/// One denial fact: `{class, operation, path, address, errno, allowedUnder, evidence, confidence,
/// line}`.
pub fn fact(fact: &Fact) -> Value {
    json!({
        "class": fact.class,
        "operation": fact.operation,
        "path": fact.path.as_deref().map(path),
        "address": fact.address,
        "errno": fact.errno,
        "allowedUnder": fact.allowed_under,
        "evidence": fact.evidence,
        "confidence": fact.confidence,
        "line": fact.line,
    })
}

/// A command that never ran: `{error: {code, message, step, errno, remedy}}`.
pub fn never_ran(error: &NeverRan) -> Value {
    json!({"error": error})
}

/// A read of a task: `{task, status, exitCode, signal, stdout, stderr, dropped, sandbox}`; `dropped`
/// is null, or the complete copies when unread bytes were lost.
pub fn task_read(id: &TaskId, read: &TaskRead) -> Value {
    let (status, exit_code, signal) = match &read.status {
        TaskStatus::Running => ("running", None, None),
        TaskStatus::Completed { exit_code } => ("completed", Some(*exit_code), None),
        TaskStatus::Killed => ("killed", None, None),
        TaskStatus::KilledBySignal(name) => ("killed", None, Some(name)),
    };
    json!({
        "task": id,
        "status": status,
        "exitCode": exit_code,
        "signal": signal,
        "stdout": read.stdout,
        "stderr": read.stderr,
        "dropped": read.dropped.as_ref().map(|copies| copies.iter().map(|copy| path(copy)).collect::<Vec<_>>()),
        "sandbox": read.sandbox.as_ref().map(report),
    })
}

/// The word for how much was enforced.
pub fn level(level: &Level) -> &'static str {
    match level {
        Level::Full => "full",
        Level::Partial => "partial",
    }
}

pub(crate) fn whole_millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn captured(stream: &Captured) -> Value {
    json!({
        "text": stream.text,
        "truncated": stream.truncated,
        "bytes": stream.bytes,
        "spillPath": stream.spill.as_deref().map(path),
    })
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
