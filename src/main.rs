//! The program.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use cofferdam::approval::queue::Verdict;
use cofferdam::cli;

/// Runs shell commands that nobody has reviewed
#[derive(Debug, Parser)]
#[command(name = "cofferdam", version)]
enum Command {
    /// Serve the tools over MCP on standard input and output
    Mcp(cli::mcp::Args),
    /// List the escalations that wait for an answer
    Approvals(cli::approvals::ListArgs),
    /// Allow one waiting escalation, once
    Approve(cli::approvals::AnswerArgs),
    /// Reject one waiting escalation
    Reject(cli::approvals::AnswerArgs),
}

fn main() -> ExitCode {
    cofferdam::cell_main();
    let command = Command::parse();
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("COFFERDAM_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,rmcp=error")),
        )
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let result = runtime.block_on(async {
        match command {
            Command::Mcp(args) => cli::mcp::run(args).await,
            Command::Approvals(args) => cli::approvals::list(args).await,
            Command::Approve(args) => cli::approvals::answer(args, Verdict::Approve).await,
            Command::Reject(args) => cli::approvals::answer(args, Verdict::Reject).await,
        }
    });
    // A read of standard input may still be under way, and nothing can end it.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| failed(&error))
}

fn failed(error: &anyhow::Error) -> ExitCode {
    // When standard error is gone, nobody is left to tell.
    let _nobody_left = writeln!(io::stderr(), "cofferdam: {error:#}");
    ExitCode::from(125)
}
