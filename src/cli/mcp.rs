//! `cofferdam mcp`: the tools over MCP on standard input and output.
//!
//! Rule: nothing but protocol goes to standard output. The end of input, SIGTERM, SIGINT and SIGHUP end
//! the server; before it exits, every command that it started is gone.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::approval::queue;
use crate::cli::select::absolute;
use crate::environment::managed::Managed;
use crate::executor::{Confined, Confinement, Executor, Settings};
use crate::mcp::codex::Ours;
use crate::mcp::{Channel, Config, serve};
use crate::mode::Mode;
use crate::output::spill_base;
use crate::policy::build::PolicyRequest;
use crate::policy::{Network, Policy};
use crate::session::{Home, Session};
use crate::tools::{AnnounceMode, Composition, Tools};

/// How long the server waits for its commands to be gone. Their own grace is shorter.
const LAST_WAIT: Duration = Duration::from_secs(15);

/// Arguments of `cofferdam mcp`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What commands may touch, until the session is switched
    #[arg(long, value_name = "MODE", default_value_t = Mode::ReadOnly)]
    mode: Mode,
    /// The folder that workspace-write makes writable [default: the current one]
    #[arg(long, value_name = "DIR", conflicts_with = "session")]
    workspace: Option<PathBuf>,
    /// Take up this session again instead of starting one
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Who is asked about an escalation, in this order
    #[arg(
        long,
        value_name = "CHANNEL,…",
        value_delimiter = ',',
        default_value = "elicit"
    )]
    approval: Vec<Channel>,
    /// A command that runs longer goes on in the background; 0 turns that off
    #[arg(long, value_name = "N", default_value_t = 45_000)]
    yield_ms: u64,
    /// Give the machine's copy of a result as structured content too, which many clients show instead of
    /// the text
    #[arg(long)]
    structured: bool,
    /// When the model is told the mode
    #[arg(long, value_name = "WHEN", default_value = "on-denial", value_parser = announce_mode)]
    announce_mode: AnnounceMode,
    /// A profile file
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// What confined commands reach on the network [default: what the profile says]
    #[arg(long, value_name = "none|host", value_parser = network)]
    network: Option<Network>,
    /// A further folder that workspace-write makes writable
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
}

fn network(word: &str) -> Result<Network, String> {
    match word {
        "none" => Ok(Network::None),
        "host" => Ok(Network::Host),
        _ => Err("use none or host".to_owned()),
    }
}

fn announce_mode(word: &str) -> Result<AnnounceMode, String> {
    match word {
        "on-denial" => Ok(AnnounceMode::OnDenial),
        "always" => Ok(AnnounceMode::Always),
        _ => Err("use on-denial or always".to_owned()),
    }
}

/// Serves until the end of input or a signal.
///
/// # Errors
/// The workspace, the session or the executor can't be had; nothing was served.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let home = Home::find(None)?;
    let session = Arc::new(open_session(&args, &home)?);
    let grounds = grounds(&args, session.cwd())?;
    let executor = grounds.executor.clone();
    let mut composition = Composition::new(grounds.executor, Managed::new(home));
    composition.announce_mode = args.announce_mode;
    composition.writable.clone_from(&grounds.writable);
    composition.network = grounds.network;
    let config = Config {
        channels: args.approval,
        run_dir: queue::run_dir()
            .inspect_err(|error| tracing::warn!(%error, "nobody can answer out of band"))
            .ok(),
        yield_after: (args.yield_ms > 0).then(|| Duration::from_millis(args.yield_ms)),
        structured: args.structured,
        ours: Ours {
            workspace: session.cwd().to_owned(),
            writable: grounds.writable,
            network: grounds.network,
        },
    };
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let (input, output) = rmcp::transport::io::stdio_pipes();
    let served = serve(
        config,
        Tools::new(composition),
        session,
        input,
        output,
        stop,
    )
    .await;
    if tokio::time::timeout(LAST_WAIT, executor.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("a command doesn't end; it is left to end with this process");
    }
    served?;
    Ok(ExitCode::SUCCESS)
}

/// What runs the commands, and the most that its confined modes give.
struct Grounds {
    executor: Arc<dyn Executor>,
    /// Writable roots beside the workspace, canonical; those of the profiles too.
    writable: Vec<PathBuf>,
    network: Network,
}

/// The executor for these arguments, with `workspace` as its own.
fn grounds(args: &Args, workspace: &Path) -> anyhow::Result<Grounds> {
    let roots = args
        .writable
        .iter()
        .map(|root| absolute(root))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let profile = args.profile.as_deref().map(absolute).transpose()?;
    // A bad profile or workspace is told now, not with the first command. Both modes count, for a
    // session may be switched.
    let mut network = Network::None;
    let mut writable = Vec::new();
    for mode in [Mode::ReadOnly, Mode::WorkspaceWrite] {
        let (policy, warnings) = Policy::build(&PolicyRequest {
            extra_writable: &roots,
            network: args.network,
            profile: profile.as_deref(),
            ..PolicyRequest::new(mode, workspace)
        })?;
        if mode == args.mode {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
        }
        if policy.network == Network::Host {
            network = Network::Host;
        }
        let places = policy.writable.into_iter().map(|place| place.path);
        writable.extend(places.filter(|path| *path != policy.workspace));
    }
    let settings = Settings {
        spill_base: spill_base(workspace, &writable),
        workspace: Some(workspace.to_owned()),
        ..Settings::default()
    };
    let confinement = Confinement {
        mode: args.mode,
        writable: roots,
        network: args.network,
        profile,
        ..Confinement::default()
    };
    Ok(Grounds {
        executor: Arc::new(Confined::new(settings, confinement)),
        writable,
        network,
    })
}

fn open_session(args: &Args, home: &Home) -> anyhow::Result<Session> {
    if let Some(id) = &args.session {
        return Ok(Session::resume(home, id, args.mode)?);
    }
    let workspace = match &args.workspace {
        Some(dir) => dir.clone(),
        None => std::env::current_dir().context("the current folder")?,
    };
    let workspace = workspace
        .canonicalize()
        .with_context(|| format!("the workspace {}", workspace.display()))?;
    Session::create(home, &workspace, args.mode).or_else(|error| {
        tracing::warn!(%error, "the session has no log and can't be resumed");
        Ok(Session::in_memory(&workspace, args.mode)?)
    })
}

/// The first signal ends the server in order, the second at once.
async fn stop_on_signal(stop: CancellationToken) {
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ];
    let [terminate, interrupt, hangup] = kinds.map(signal);
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut hangup)) = (terminate, interrupt, hangup)
    else {
        tracing::warn!("signals can't be caught");
        return;
    };
    loop {
        let number = tokio::select! {
            _ = terminate.recv() => libc::SIGTERM,
            _ = interrupt.recv() => libc::SIGINT,
            _ = hangup.recv() => libc::SIGHUP,
        };
        if stop.is_cancelled() {
            std::process::exit(128 + number);
        }
        stop.cancel();
    }
}
