//! `cofferdam explain PATH`: what a mode allows there, and which rule decides.
//!
//! Rule: policy and permissions are told apart, because a wider mode cures only the first.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use nix::unistd::{AccessFlags, eaccess};
use serde::Serialize;
use serde_json::json;

use super::select::{Select, absolute, origin, shown};
use crate::host::paths;
use crate::mode::Mode;
use crate::policy::{Access, Place, Policy, Rule};

/// `cofferdam explain PATH`
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The file or folder, existing or not.
    path: PathBuf,
    #[command(flatten)]
    select: Select,
}

/// Prints what is allowed.
///
/// # Errors
/// The path can't be looked up, the policy can't be built, or standard output is gone.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let explained = explain(args)?;
    let text = if args.select.json {
        format!("{:#}\n", explained.as_json()?)
    } else {
        explained.as_text()?
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What there is to say about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Explained {
    typed: PathBuf,
    path: PathBuf,
    mode: Mode,
    workspace: PathBuf,
    access: Access,
    own: Permissions,
    writable_under: Option<Mode>,
    notes: Vec<&'static str>,
}

/// What the file's own permissions allow the caller, were there no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Permissions {
    read: bool,
    /// Writing the file, or creating it where it is missing.
    write: bool,
    execute: bool,
}

fn explain(args: &Args) -> anyhow::Result<Explained> {
    let typed = absolute(&args.path)?;
    let found = paths::resolve(&typed).with_context(|| format!("{typed:?} can't be looked up"))?;
    let path = found.path;
    let mode = args.select.mode;
    let policy = args.select.build(mode)?.policy;
    let access = policy.access(&path);
    let own = permissions(&path, &access.rule);
    let mut writable_under = None;
    for wider in Mode::ALL {
        if writable_under.is_none() {
            let access = args.select.build(wider)?.policy.access(&path);
            let own = permissions(&path, &access.rule);
            writable_under = (access.write && own.write).then_some(wider);
        }
    }
    Ok(Explained {
        notes: notes(&policy, &path, &access, &found.links),
        typed,
        path,
        mode,
        workspace: policy.workspace,
        access,
        own,
        writable_under,
    })
}

/// What the verdict alone doesn't say.
fn notes(policy: &Policy, path: &Path, access: &Access, links: &[PathBuf]) -> Vec<&'static str> {
    let at_or_above = |places: &[Place]| places.iter().any(|place| path.starts_with(&place.path));
    let at = |places: &[Place], path: &Path| places.iter().any(|place| place.path == path);
    let mut notes = Vec::new();
    if matches!(access.rule, Rule::Scratch { .. }) {
        notes.push("this is the session's own folder, not the host's");
    }
    if at_or_above(&policy.protected_absent) && access.write {
        notes.push("nothing is there to be protected: a command that makes it is reported");
    }
    if at(&policy.pinned, path) {
        notes.push("it can't be renamed or removed");
    }
    if links.iter().any(|link| at(&policy.protected_links, link)) {
        notes.push("the link itself can be changed: a command that does is reported");
    }
    notes
}

/// Asks the kernel with the caller's effective ids. Private scratch belongs to the session.
fn permissions(path: &Path, rule: &Rule) -> Permissions {
    let may = |path: &Path, wish| eaccess(path, wish).is_ok();
    if matches!(rule, Rule::Scratch { .. }) {
        return Permissions {
            read: true,
            write: true,
            execute: true,
        };
    }
    if path.symlink_metadata().is_ok() {
        return Permissions {
            read: may(path, AccessFlags::R_OK),
            write: may(path, AccessFlags::W_OK),
            execute: may(path, AccessFlags::X_OK),
        };
    }
    let parent = path.parent().unwrap_or(path);
    Permissions {
        read: false,
        write: may(parent, AccessFlags::W_OK | AccessFlags::X_OK),
        execute: false,
    }
}

impl Explained {
    fn as_json(&self) -> serde_json::Result<serde_json::Value> {
        Ok(json!({
            "path": self.typed.to_string_lossy(),
            "resolved": self.path.to_string_lossy(),
            "mode": self.mode,
            "workspace": self.workspace.to_string_lossy(),
            "read": self.access.read && self.own.read,
            "write": self.access.write && self.own.write,
            "execute": self.access.read && self.own.execute,
            "policy": {"read": self.access.read, "write": self.access.write},
            "permissions": serde_json::to_value(self.own)?,
            "rule": serde_json::to_value(&self.access.rule)?,
            "writableUnder": self.writable_under,
            "notes": self.notes,
        }))
    }

    fn as_text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        let out = &mut text;
        writeln!(out, "{}", shown(&self.typed))?;
        if self.path != self.typed {
            writeln!(out, "  leads to   {}", shown(&self.path))?;
        }
        writeln!(
            out,
            "  mode       {}, workspace {}",
            self.mode,
            shown(&self.workspace)
        )?;
        let verdict = |policy: bool, own: bool| match (policy, own) {
            (true, true) => "yes",
            (true, false) => "no: the file's own permissions",
            (false, true) => "no: the policy",
            (false, false) => "no: the policy, and the file's own permissions too",
        };
        let (access, own) = (&self.access, self.own);
        writeln!(out, "  read       {}", verdict(access.read, own.read))?;
        writeln!(out, "  write      {}", verdict(access.write, own.write))?;
        writeln!(out, "  execute    {}", verdict(access.read, own.execute))?;
        writeln!(out, "  rule       {}", rule(&access.rule))?;
        let wider = match self.writable_under {
            Some(mode) => mode.as_str(),
            None => "no mode: the file's own permissions refuse it",
        };
        writeln!(out, "  writable   under {wider}")?;
        for note in &self.notes {
            writeln!(out, "  note       {note}")?;
        }
        Ok(text)
    }
}

fn rule(rule: &Rule) -> String {
    let because = |what: &str, place: &Place| {
        let (path, from) = (shown(&place.path), origin(&place.origin));
        format!("{what} {path} ({from})")
    };
    match rule {
        Rule::Unconfined => "this mode confines nothing".to_owned(),
        Rule::Hidden(place) => because("hidden:", place),
        Rule::Scratch { path } => format!("private to the session: {}", shown(path)),
        Rule::Writable(place) => because("writable:", place),
        Rule::Protected(place) => because("protected below a writable root:", place),
        Rule::Visible(place) => because("visible, read-only:", place),
        Rule::HostReadOnly => "the host's files are read-only".to_owned(),
    }
}

#[cfg(test)]
mod tests;
