//! The program: becomes a cell when it was started as one, else reads the command line.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use cofferdam::approval::queue::Verdict;
use cofferdam::cli::{self, exit};

/// Runs shell commands that nobody has reviewed: confined by the kernel, truthful about what was refused.
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version)]
enum Command {
    /// Run one command, confined.
    Run(cli::run::Args),
    /// Say what this host gives, what each mode amounts to on it, and what to type for more.
    Doctor(cli::doctor::Args),
    /// Say what a mode allows at a path, and which rule decides.
    Explain(cli::explain::Args),
    /// Look at profiles.
    Profile(cli::profile::Args),
    /// Look at sessions and switch their mode.
    Session(cli::session::Args),
    /// List what was run, refused, asked and granted, and by whom.
    Audit(cli::audit::Args),
    /// Score the text classifier on a corpus.
    Classify(cli::classify::Args),
    /// Serve the tools over MCP on standard input and output.
    #[cfg(feature = "mcp")]
    Mcp(cli::mcp::Args),
    /// List the escalations that wait for an answer.
    Approvals(cli::approvals::ListArgs),
    /// Allow one waiting escalation, once.
    Approve(cli::approvals::AnswerArgs),
    /// Reject one waiting escalation.
    Reject(cli::approvals::AnswerArgs),
}

fn main() -> ExitCode {
    cofferdam::cell_main();
    let ahead = fork_ahead();
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // Help and version are no errors; for the rest nothing ran.
            let status = if error.use_stderr() { exit::REFUSED } else { 0 };
            return match error.print() {
                Ok(()) => ExitCode::from(status),
                Err(_) => ExitCode::from(exit::REFUSED),
            };
        }
    };
    log_to_stderr();
    run(command, ahead).unwrap_or_else(|error| {
        // When standard error is gone, nobody is left to tell.
        writeln!(std::io::stderr(), "cofferdam: {error:#}").ok();
        ExitCode::from(exit::REFUSED)
    })
}

/// The cell of `cofferdam run` gets ready while the command line and the profiles are read. Should they
/// ask for another kind of cell, this one is dropped unused.
fn fork_ahead() -> Option<cofferdam::Ahead> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let typed = |word: &str| {
        words
            .iter()
            .any(|typed| typed.as_encoded_bytes().ends_with(word.as_bytes()))
    };
    let runs = words.first().is_some_and(|word| word == "run");
    (runs && !typed("danger-full-access") && !typed("--help"))
        .then(|| cofferdam::fork_ahead(!typed("host")))
        .flatten()
}

/// `COFFERDAM_LOG` says what is logged, as in `info` or `cofferdam=debug`.
fn log_to_stderr() {
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    let filter = std::env::var("COFFERDAM_LOG")
        .ok()
        .and_then(|text| text.parse::<Targets>().ok())
        .unwrap_or_else(|| {
            Targets::new()
                .with_default(tracing::Level::WARN)
                .with_target("rmcp", tracing::Level::ERROR)
        });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time();
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
}

fn run(command: Command, ahead: Option<cofferdam::Ahead>) -> anyhow::Result<ExitCode> {
    match command {
        Command::Doctor(args) => cli::doctor::run(&args),
        Command::Explain(args) => cli::explain::run(&args),
        Command::Profile(args) => cli::profile::run(&args),
        Command::Session(args) => cli::session::run(&args),
        Command::Audit(args) => cli::audit::run(&args),
        Command::Classify(args) => cli::classify::run(&args),
        Command::Run(args) => single_threaded()?.block_on(cli::run::run(&args, ahead)),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()?;
            let status = runtime.block_on(cli::mcp::run(args));
            // A read of standard input may still be under way, and nothing can end it.
            runtime.shutdown_background();
            status
        }
        Command::Approvals(args) => single_threaded()?.block_on(cli::approvals::list(args)),
        Command::Approve(args) => {
            single_threaded()?.block_on(cli::approvals::answer(args, Verdict::Approve))
        }
        Command::Reject(args) => {
            single_threaded()?.block_on(cli::approvals::answer(args, Verdict::Reject))
        }
    }
}

fn single_threaded() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
