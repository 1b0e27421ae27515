//! `cofferdam run`: one command, confined, as a session of its own.
//!
//! Rule: the command's output is passed on byte for byte as it comes; what Cofferdam itself has to say
//! stands after it, on standard error, or in the one object of `--json`.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::escalate::{Channel, Recorded};
use super::exit;
use super::select::{Select, absolute};
use crate::cell::Ahead;
use crate::environment::managed::{Context as Calling, Managed};
use crate::executor::{
    Confined, Confinement, Cut, Executor, Finished, Level, Live, Ran, Settings, Stream, Watch,
};
use crate::mode::ModeSource;
use crate::outcome::{Ended, NeverRan, NeverRanCode};
use crate::output::{SpillCaps, spill_base};
use crate::request::{Command, ExecRequest};
use crate::session::Home;
use crate::tools::{machine, text};

/// How much of each stream `--json` holds; what is longer is on disk.
const JSON_TAIL: usize = 8 * 1024 * 1024;

/// Arguments of `cofferdam run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: the command's own; 128+N when signal N ended it; 124 when the timeout \
                  fired; 125 when it was refused or could not be run."
)]
pub struct Args {
    #[command(flatten)]
    select: Select,
    /// Where the command starts; by default the current folder.
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// How long it may run, in milliseconds, at most 600000.
    #[arg(long, value_name = "N", default_value_t = 120_000, value_parser = clap::value_parser!(u64).range(1..))]
    timeout_ms: u64,
    /// A variable for the command; without a value, this process's own, past the scrub.
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Give the command this process's standard input, which is read to its end first.
    #[arg(long)]
    stdin: bool,
    /// Who is asked, in this order, whether a command that was denied something may run once more under
    /// the mode that allows it.
    #[arg(
        long,
        value_name = "CHANNEL,…",
        value_delimiter = ',',
        value_enum,
        default_value = "never"
    )]
    approval: Vec<Channel>,
    /// Don't say at the end what was denied.
    #[arg(long)]
    quiet: bool,
    /// Shell text, run as `bash -c`; `-` reads it from standard input.
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "program")]
    text: Option<OsString>,
    /// A program and its arguments, run without a shell.
    #[arg(
        last = true,
        value_name = "PROGRAM ARG",
        required_unless_present = "text"
    )]
    program: Vec<OsString>,
}

/// Runs the command and says how it ended.
///
/// # Errors
/// Standard output or input is broken.
pub async fn run(args: &Args, ahead: Option<Ahead>) -> anyhow::Result<ExitCode> {
    let ran = match prepare(args, ahead) {
        Ok(prepared) => {
            let ran = follow(args, &prepared).await;
            if let Ok(finished) = &ran
                && finished.stdout.spill.is_some() | finished.stderr.spill.is_some()
            {
                // Nobody could read them later: the caller was told the paths, and removes them.
                prepared.executor.spill_dir(None).keep();
            }
            // The command is gone; its cell ends by itself when its socket closes.
            ran
        }
        Err(error) => Err(error),
    };
    match ran {
        Ok(finished) => {
            if args.select.json {
                print_json(&machine::finished(&finished))?;
            } else if !args.quiet {
                say(&finished)?;
            }
            Ok(status(&finished))
        }
        Err(error) => {
            if args.select.json {
                print_json(&machine::never_ran(&error))?;
            } else {
                writeln!(std::io::stderr(), "cofferdam: {error}")?;
            }
            Ok(ExitCode::from(exit::REFUSED))
        }
    }
}

/// What is run, and by what.
struct Prepared {
    executor: Confined,
    request: ExecRequest,
    /// Where a run that may ask keeps its record.
    record: Option<Recorded>,
}

fn prepare(args: &Args, ahead: Option<Ahead>) -> Result<Prepared, NeverRan> {
    let invalid = |error: anyhow::Error| {
        NeverRan::refused(NeverRanCode::InvalidArgs, format!("{error:#}"), "")
    };
    let select = &args.select;
    let workspace = select
        .workspace
        .as_deref()
        .map(absolute)
        .transpose()
        .map_err(invalid)?;
    let here = std::env::current_dir()
        .context("the current folder can't be read")
        .map_err(invalid)?;
    let writable = select
        .writable
        .iter()
        .map(|root| absolute(root))
        .collect::<anyhow::Result<Vec<_>>>()
        .map_err(invalid)?;
    let workspace = workspace.unwrap_or_else(|| here.clone());
    let record = Recorded::begin(&args.approval, &workspace, select.mode)?;
    let executor = Confined::new(
        Settings {
            spill_base: spill_base(&workspace, &writable),
            workspace: Some(workspace.clone()),
            tail_bytes: if args.select.json { JSON_TAIL } else { 0 },
            // What is passed on as it comes needs no copy.
            spill_caps: if args.select.json {
                SpillCaps::default()
            } else {
                SpillCaps {
                    file: 0,
                    session: 0,
                }
            },
            ..Settings::default()
        },
        Confinement {
            mode: select.mode,
            writable,
            network: select.network,
            profile: select.profile.clone(),
            prepare: false,
            ..Confinement::default()
        },
    );
    if let Some(ahead) = ahead {
        executor.adopt(ahead);
    }
    let mut request = ExecRequest::new(command(args).map_err(invalid)?);
    request.workspace = Some(workspace);
    request.workdir = Some(match &args.workdir {
        Some(workdir) => absolute(workdir).map_err(invalid)?,
        None => here,
    });
    request.timeout = Some(Duration::from_millis(args.timeout_ms));
    request.mode = Some((select.mode, ModeSource::Default));
    request.env = args.env.iter().filter_map(variable).collect();
    if let Ok(home) = Home::find(None) {
        let session = record.as_ref().and_then(Recorded::session);
        request.managed_env = Managed::new(home)
            .collect(Calling { session })
            .map_err(|error| invalid(error.into()))?;
    }
    if args.stdin {
        request.stdin = Some(read_stdin().map_err(invalid)?);
    }
    Ok(Prepared {
        executor,
        request,
        record,
    })
}

fn command(args: &Args) -> anyhow::Result<Command> {
    match (&args.text, args.program.as_slice()) {
        (Some(text), _) if text == "-" => {
            anyhow::ensure!(
                !args.stdin,
                "standard input can't be both the command's text and its input; give the text with -c TEXT"
            );
            Ok(Command::Shell(OsString::from_vec(read_stdin()?)))
        }
        (Some(text), _) => Ok(Command::Shell(text.clone())),
        (None, [program, words @ ..]) => Ok(Command::Program {
            program: program.clone(),
            args: words.to_vec(),
        }),
        (None, []) => anyhow::bail!("no command; give -c TEXT or -- PROGRAM ARG…"),
    }
}

fn read_stdin() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .context("standard input can't be read")?;
    Ok(bytes)
}

/// `NAME=VALUE`, or the value of this process's own `NAME` when it has one.
fn variable(word: &OsString) -> Option<(OsString, OsString)> {
    let mut bytes = word.clone().into_vec();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let value = bytes.split_off(at + 1);
            bytes.truncate(at);
            Some((OsString::from_vec(bytes), OsString::from_vec(value)))
        }
        None => Some((word.clone(), std::env::var_os(word)?)),
    }
}

/// Runs it, and once more if someone allows that.
async fn follow(args: &Args, prepared: &Prepared) -> Result<Finished, NeverRan> {
    let Prepared {
        executor,
        request,
        record,
    } = prepared;
    let abort = CancellationToken::new();
    let _listening = AbortOnDropHandle::new(tokio::spawn(abort_on_signal(abort.clone())));
    let Some(record) = record else {
        return once(args, executor, request, &abort).await;
    };
    let run = record.run(request)?;
    let ran = once(args, executor, request, &abort).await;
    record.ended(run, request, &ran);
    let first = ran?;
    if first.cut.is_some() {
        return Ok(first);
    }
    let asked = record.ask(&first.sandbox, request, args.quiet, &abort);
    match asked.await? {
        Some((run, wider)) => {
            let ran = once(args, executor, &wider, &abort).await;
            record.ended(run, &wider, &ran);
            ran
        }
        None => Ok(first),
    }
}

async fn once(
    args: &Args,
    executor: &Confined,
    request: &ExecRequest,
    abort: &CancellationToken,
) -> Result<Finished, NeverRan> {
    let spec = executor.resolve(request.clone())?;
    let mut watch = Watch {
        abort: abort.clone(),
        ..Watch::default()
    };
    if !args.select.json {
        watch.live = Some(Arc::new(PassOn(abort.clone())));
    }
    match executor.run(spec, watch).await? {
        Ran::Finished(finished) => Ok(*finished),
        Ran::Yielded(id) => Err(NeverRan::refused(
            NeverRanCode::ShutDown,
            format!("the command went on as {}", id.0),
            "",
        )),
    }
}

async fn abort_on_signal(abort: CancellationToken) {
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hang_up)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        return;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    abort.cancel();
}

/// Passes output on. When nobody reads it any more, the command ends.
struct PassOn(CancellationToken);

impl Live for PassOn {
    fn chunk(&self, stream: Stream, bytes: &[u8]) {
        let written = match stream {
            Stream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Stream::Stderr => std::io::stderr().write_all(bytes),
        };
        if written.is_err() {
            self.0.cancel();
        }
    }
}

fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

fn say(finished: &Finished) -> anyhow::Result<()> {
    let mut err = std::io::stderr().lock();
    if finished.sandbox.level == Some(Level::Partial) {
        let missing = finished.sandbox.missing.join("; ");
        writeln!(
            err,
            "[sandbox: enforced in part, see `cofferdam doctor`; not governed: {missing}]"
        )?;
    }
    for marker in text::markers(&finished.sandbox, false) {
        writeln!(err, "{marker}")?;
    }
    match finished.cut {
        Some(Cut::TimedOut) => {
            let timeout = finished.timeout.unwrap_or_default().as_millis();
            writeln!(err, "[timed out after {timeout}ms]")?;
        }
        Some(Cut::Aborted | Cut::Killed) | None => {}
    }
    Ok(())
}

fn status(finished: &Finished) -> ExitCode {
    if finished.cut == Some(Cut::TimedOut) {
        return ExitCode::from(exit::TIMED_OUT);
    }
    let number = |number: i32| u8::try_from(number).unwrap_or(u8::MAX);
    ExitCode::from(match finished.ended {
        Ended::Exited(code) => number(code),
        Ended::Signalled(signal) => exit::SIGNAL_BASE.saturating_add(number(signal)),
    })
}
