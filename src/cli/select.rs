//! Which policy a command of the program is about.
//!
//! Rule: the same words as `cofferdam run` has, so that what is explained is what would run.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::mode::Mode;
use crate::policy::build::{Built, PolicyRequest, build};
use crate::policy::{Network, Origin};

/// The arguments that choose a policy.
#[derive(Clone, Debug, clap::Args)]
pub struct Select {
    /// The mode: read-only, workspace-write or danger-full-access.
    #[arg(long, default_value_t = Mode::ReadOnly)]
    pub mode: Mode,
    /// The workspace; by default the current folder.
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// A profile that is laid over the built-in one.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// A further writable root.
    #[arg(long, value_name = "DIR")]
    pub writable: Vec<PathBuf>,
    /// The network: none or host.
    #[arg(long, value_parser = network)]
    pub network: Option<Network>,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Select {
    /// Builds the policy that these arguments choose, in another mode if need be.
    pub fn build(&self, mode: Mode) -> anyhow::Result<Built> {
        let workspace = absolute(self.workspace.as_deref().unwrap_or(Path::new(".")))?;
        let writable = self
            .writable
            .iter()
            .map(|root| absolute(root))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let request = PolicyRequest {
            extra_writable: &writable,
            network: self.network,
            profile: self.profile.as_deref(),
            ..PolicyRequest::new(mode, &workspace)
        };
        Ok(build(&request)?)
    }
}

/// A path as it was typed, from the root.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{path:?} can't be resolved"))
}

/// A path for people, on one line: quoted where it holds anything that a terminal wouldn't show.
pub fn shown(path: &Path) -> String {
    match path.to_str() {
        Some(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => format!("{path:?}"),
    }
}

/// An origin for people, on one line.
pub fn origin(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.chars().any(char::is_control) {
        format!("{text:?}")
    } else {
        text
    }
}

fn network(word: &str) -> Result<Network, String> {
    match word {
        "none" => Ok(Network::None),
        "host" => Ok(Network::Host),
        _ => Err("use none or host".to_owned()),
    }
}
