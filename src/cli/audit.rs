//! `cofferdam audit`: what was run, refused, asked and granted, over all sessions.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use clap::builder::PossibleValuesParser;

use crate::audit::{Entry, Filter, entries, table};
use crate::mode::Mode;
use crate::session::{self, Home};

/// The classes of denials, as the log spells them.
const CLASSES: [&str; 8] = [
    "file_write",
    "file_read",
    "exec",
    "network",
    "process",
    "privilege",
    "syscall",
    "limit",
];

/// What was run, refused, asked and granted, and by whom.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Not before: a date, a time (UTC, as in 2026-11-30T12:00:00Z), or how long ago (2h, 7d)
    #[arg(long, value_name = "T", value_parser = parse_time)]
    since: Option<u64>,
    /// Not after; as --since
    #[arg(long, value_name = "T", value_parser = parse_time)]
    until: Option<u64>,
    /// One session: its id or the beginning of it
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// What ran under this mode
    #[arg(long, value_name = "M")]
    mode: Option<Mode>,
    /// What something of this class was denied to
    #[arg(long, value_name = "C", value_parser = PossibleValuesParser::new(CLASSES))]
    class: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Where sessions are kept, in place of $DSH_HOME or ~/.dsh
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

/// Prints the audit.
///
/// # Errors
/// The folder of the sessions can't be read, or the session isn't there.
pub fn run(args: &Args) -> Result<ExitCode> {
    super::print(&report(args)?)?;
    Ok(ExitCode::SUCCESS)
}

fn report(args: &Args) -> Result<String> {
    let home = Home::find(args.home.as_deref())?;
    let session = match &args.session {
        Some(word) => Some(super::session::find(&home, word)?),
        None => None,
    };
    let ids = match &session {
        Some(id) => vec![id.clone()],
        None => session::list(&home)?,
    };
    let filter = Filter {
        since: args.since,
        until: args.until,
        session,
        mode: args.mode,
        class: args.class.clone(),
    };
    let mut found: Vec<Entry> = Vec::new();
    for id in ids {
        match home
            .existing_log(&id)
            .and_then(|path| session::read_events(&path))
        {
            Ok(events) => {
                let all = entries(&id, &events);
                found.extend(all.into_iter().filter(|entry| filter.wants(entry)));
            }
            Err(error) => tracing::warn!(%error, "a session is left out of the audit"),
        }
    }
    found.sort_by_key(|entry| entry.at);
    if !args.json {
        return Ok(table(&found));
    }
    let mut lines = String::new();
    for entry in found {
        lines.push_str(&serde_json::to_string(&entry)?);
        lines.push('\n');
    }
    Ok(lines)
}

fn parse_time(word: &str) -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    time_before(word, now)
}

/// A date, a time, or how long before `now`, in milliseconds since 1970.
fn time_before(word: &str, now: Duration) -> Result<u64> {
    let time = if let Ok(ago) = humantime::parse_duration(word) {
        now.saturating_sub(ago)
    } else {
        let midnight = format!("{word}T00:00:00Z");
        humantime::parse_rfc3339_weak(word)
            .or_else(|_no_time| humantime::parse_rfc3339_weak(&midnight))
            .map_err(|_neither| {
                anyhow!("\"{word}\" is no time: use 2026-11-30, 2026-11-30T12:00:00Z or 2h")
            })?
            .duration_since(UNIX_EPOCH)?
    };
    u64::try_from(time.as_millis()).context("a time that far off")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::mode::Mode::{ReadOnly, WorkspaceWrite};
    use crate::session::Session;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_time_is_a_date_a_moment_or_how_long_ago() {
        let now = Duration::from_secs(1_764_547_200 + 7200);
        let at = |word: &str| time_before(word, now).unwrap();
        let midnight = 1_764_547_200_000;
        assert_eq!(at("2025-12-01"), midnight);
        assert_eq!(at("2025-12-01T00:00:01Z"), midnight + 1000);
        assert_eq!(at("2025-12-01 00:00:01"), midnight + 1000);
        assert_eq!(at("2h"), midnight);
        assert_eq!(at("90000000000000s"), 0);
        for word in ["", "yesterday", "2025-13-01", "1960-01-01"] {
            assert!(time_before(word, now).is_err(), "{word}");
        }
        assert_eq!(
            time_before("soon", now).unwrap_err().to_string(),
            "\"soon\" is no time: use 2026-11-30, 2026-11-30T12:00:00Z or 2h"
        );
    }

    #[test]
    fn the_audit_spans_all_sessions_in_the_order_of_time_and_filters() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        let create = || Session::create(&home, Path::new("/w"), WorkspaceWrite).unwrap();
        let (one, other) = (create(), create());
        let pause = || std::thread::sleep(Duration::from_millis(3));
        one.switch(ReadOnly, "ada").unwrap();
        pause();
        other.switch(ReadOnly, "bob").unwrap();
        pause();
        one.switch(WorkspaceWrite, "eve").unwrap();
        let who = |words: &[&str]| -> Vec<String> {
            let first = ["audit", "--json", "--home", dir.path().to_str().unwrap()];
            let program = Program::try_parse_from(first.iter().chain(words)).unwrap();
            let lines = report(&program.args).unwrap();
            lines
                .lines()
                .map(|line| {
                    let entry: serde_json::Value = serde_json::from_str(line).unwrap();
                    entry["by"].as_str().unwrap().to_owned()
                })
                .collect()
        };
        assert_eq!(who(&[]), ["ada", "bob", "eve"]);
        assert_eq!(who(&["--session", &one.id()[..10]]), ["ada", "eve"]);
        assert_eq!(who(&["--mode", "read-only"]), ["ada", "bob"]);
        assert_eq!(who(&["--class", "network"]), [""; 0]);
        assert_eq!(who(&["--since", "1h"]), ["ada", "bob", "eve"]);
        assert_eq!(who(&["--until", "2025-01-01"]), [""; 0]);
        assert!(Program::try_parse_from(["audit", "--class", "files"]).is_err());
    }
}
