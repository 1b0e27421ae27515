//! `cofferdam profile show`: the resolved truth of a mode in a workspace, each line with its origin.
//!
//! Rule: what is shown is the policy that a command would run under, made by the same function.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::select::{Select, origin, shown};
use crate::policy::build::Built;
use crate::policy::profile::Setting;
use crate::policy::{Network, Place, Require};

/// `cofferdam profile …`
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// Show what a mode means in a workspace, and which line says so.
    Show(Select),
}

/// Prints what was asked for.
///
/// # Errors
/// The policy can't be built, or standard output is gone.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Command::Show(select) = &args.command;
    let built = select.build(select.mode)?;
    let text = if select.json {
        format!("{:#}\n", as_json(&built)?)
    } else {
        as_text(&built)?
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// `{"policy": …, "origins": …, "warnings": […]}`
fn as_json(built: &Built) -> serde_json::Result<Value> {
    let settings = &built.settings;
    let by_name = |names: &[Setting<String>]| -> Map<String, Value> {
        let pairs = names.iter();
        let pairs = pairs.map(|name| (name.value.clone(), name.origin.to_string().into()));
        pairs.collect()
    };
    let limits = settings.limits.iter();
    let limits = limits.map(|(name, set)| ((*name).to_owned(), set.origin.to_string().into()));
    let variables = settings.set.iter();
    let variables = variables.map(|(name, set)| (name.clone(), set.origin.to_string().into()));
    let groups = settings.refuse.iter().map(|group| group.origin.to_string());
    Ok(json!({
        "policy": serde_json::to_value(&built.policy)?,
        "origins": {
            "network": settings.network.origin.to_string(),
            "require": settings.require.origin.to_string(),
            "refusedCalls": groups.collect::<Vec<_>>(),
            "limits": limits.collect::<Map<_, _>>(),
            "environment": {
                "remove": by_name(&settings.remove),
                "keep": by_name(&settings.keep),
                "set": variables.collect::<Map<_, _>>(),
            },
        },
        "warnings": built.warnings,
    }))
}

fn as_text(built: &Built) -> Result<String, fmt::Error> {
    let Built {
        policy,
        settings,
        warnings,
    } = built;
    let mut text = String::new();
    let out = &mut text;
    for warning in warnings {
        writeln!(out, "warning: {warning}")?;
    }
    line(out, "mode", policy.mode.as_str(), "")?;
    line(out, "workspace", &shown(&policy.workspace), "")?;
    if !policy.mode.is_confined() {
        writeln!(
            out,
            "nothing is confined: only the rules for the environment count"
        )?;
    } else {
        let network = match policy.network {
            Network::None => "none",
            Network::Host => "host",
        };
        line(out, "network", network, &origin(&settings.network.origin))?;
        let require = match policy.require {
            Require::Partial => "partial",
            Require::Full => "full",
        };
        line(out, "require", require, &origin(&settings.require.origin))?;
        places(out, "writable", &policy.writable)?;
        places(out, "protected below them: read-only", &policy.protected)?;
        places(
            out,
            "not there yet, reported when a command makes them",
            &policy.protected_absent,
        )?;
        places(out, "pinned: can't be renamed or removed", &policy.pinned)?;
        places(
            out,
            "links that are reported when a command changes them",
            &policy.protected_links,
        )?;
        places(out, "hidden: can't be read", &policy.hidden)?;
        if !policy.gaps.is_empty() {
            writeln!(out, "\nnot guarded, for there is too much of it")?;
        }
        for gap in &policy.gaps {
            writeln!(out, "  {gap}")?;
        }
        writeln!(out, "\nprivate to the session, writable")?;
        for path in &policy.scratch {
            writeln!(out, "  {}", shown(path))?;
        }
        places(out, "visible below /run", &policy.visible)?;
        writeln!(out, "\nrefused system calls")?;
        for group in &settings.refuse {
            let (calls, from) = (group.value.calls.join(" "), origin(&group.origin));
            writeln!(out, "  {calls}: {} ({from})", group.value.errno)?;
            writeln!(out, "      {}", group.value.reason)?;
        }
        writeln!(out, "\nlimits")?;
        for (name, limit) in &settings.limits {
            let value = limit.value.map(|value| value.to_string());
            let each = if *name == "scratch_bytes" {
                " in each private folder"
            } else {
                ""
            };
            let value = value.as_deref().unwrap_or("unlimited").to_owned() + each;
            line(out, &format!("  {name}"), &value, &origin(&limit.origin))?;
        }
    }
    writeln!(
        out,
        "\nenvironment, beside the scrub of names with KEY, SECRET or TOKEN in them"
    )?;
    for (what, names) in [("removed", &settings.remove), ("kept", &settings.keep)] {
        for name in names {
            line(
                out,
                &format!("  {what}"),
                &name.value,
                &origin(&name.origin),
            )?;
        }
    }
    for (name, value) in &settings.set {
        let assignment = format!("{name}={}", value.value);
        line(out, "  set", &assignment, &origin(&value.origin))?;
    }
    Ok(text)
}

fn places(out: &mut String, title: &str, places: &[Place]) -> fmt::Result {
    if places.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for place in places {
        writeln!(
            out,
            "  {:<48} {}",
            shown(&place.path),
            origin(&place.origin)
        )?;
    }
    Ok(())
}

fn line(out: &mut String, name: &str, value: &str, from: &str) -> fmt::Result {
    let line = format!("{name:<15} {value:<34} {from}");
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests;
