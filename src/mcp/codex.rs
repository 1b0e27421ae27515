//! What a client's own policy, sent with a call, leaves of ours: the ceiling of that call's mode.
//!
//! Rule: the answer is never wider than what the client said. What can't be read counts as the narrowest
//! mode; what even the narrowest mode would exceed (something the client hides) is refused.
//!
//! The wire form is Codex's: `_meta["codex/sandbox-state-meta"]` with `permissionProfile` (or the older
//! `sandboxPolicy`) and `sandboxCwd`, sent to a server that advertises that name among its experimental
//! capabilities.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::mode::Mode;
use crate::policy::Network;

/// The capability and the key of `_meta`.
pub const SANDBOX_STATE: &str = "codex/sandbox-state-meta";

/// Names below a writable root that this client keeps read-only and that our own profiles protect as
/// far as they can run code for the person outside.
const PROTECTED_BY_PROFILE: [&str; 3] = [".git", ".agents", ".codex"];

/// Entries of one profile that are read.
const MAX_ENTRIES: usize = 4096;

/// What our own policy would give in a confined mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The session's workspace, canonical.
    pub workspace: PathBuf,
    /// Further writable roots, canonical.
    pub writable: Vec<PathBuf>,
    /// The network of the confined modes.
    pub network: Network,
}

/// Something that the client forbids and that no mode of ours forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeds {
    /// The client hides a path or a pattern.
    #[error(
        "the client's policy hides {0}, which no mode of this server does; run this command with the client's own shell"
    )]
    Hidden(String),
    /// The client gives no reading of the host's files as a whole.
    #[error(
        "the client's policy doesn't let the whole file system be read, and every mode of this server does; run this command with the client's own shell"
    )]
    Unreadable,
    /// The client gives no network, and this server's confined modes have it.
    #[error(
        "the client's policy forbids the network, and this server was started with --network host; start it without"
    )]
    Network,
}

/// The widest mode that stays within what the client said. `resolve` follows symbolic links, as far as
/// there are any.
///
/// # Errors
/// Even the narrowest mode would exceed it.
pub fn ceiling(
    state: &Value,
    ours: &Ours,
    resolve: &dyn Fn(&Path) -> PathBuf,
) -> Result<Mode, Exceeds> {
    let cwd = state
        .get("sandboxCwd")
        .and_then(Value::as_str)
        .and_then(local_path);
    let said = [
        state.get("permissionProfile").map(profile),
        state.get("sandboxPolicy").map(legacy_policy),
    ];
    said.into_iter()
        .flatten()
        .map(|theirs| theirs.ceiling(cwd.as_deref(), ours, resolve))
        .reduce(|one, other| Ok(one?.min(other?)))
        .unwrap_or_else(|| Theirs::unknown().ceiling(cwd.as_deref(), ours, resolve))
}

/// What the client allows.
#[derive(Debug)]
struct Theirs {
    network: bool,
    files: Files,
}

#[derive(Debug)]
enum Files {
    /// No restriction.
    All,
    /// Everything may be read and nothing be written, as far as we can tell.
    ReadOnly,
    /// By entry.
    Entries(Vec<Entry>),
}

#[derive(Debug)]
struct Entry {
    place: Place,
    access: Access,
}

#[derive(Debug)]
enum Place {
    Path(PathBuf),
    /// Relative to `sandboxCwd`.
    BelowCwd(PathBuf),
    /// A pattern or a name that can't be tied to a path.
    Unclear(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    Read,
    Write,
    Deny,
}

impl Theirs {
    fn unknown() -> Theirs {
        Theirs {
            network: false,
            files: Files::ReadOnly,
        }
    }

    fn ceiling(
        &self,
        cwd: Option<&Path>,
        ours: &Ours,
        resolve: &dyn Fn(&Path) -> PathBuf,
    ) -> Result<Mode, Exceeds> {
        if !self.network && ours.network == Network::Host {
            return Err(Exceeds::Network);
        }
        match &self.files {
            Files::All if self.network => Ok(Mode::DangerFullAccess),
            Files::All => Ok(Mode::WorkspaceWrite),
            Files::ReadOnly => Ok(Mode::ReadOnly),
            Files::Entries(entries) => by_entries(entries, cwd, ours, resolve),
        }
    }
}

fn by_entries(
    entries: &[Entry],
    cwd: Option<&Path>,
    ours: &Ours,
    resolve: &dyn Fn(&Path) -> PathBuf,
) -> Result<Mode, Exceeds> {
    let mut placed = Vec::new();
    for entry in entries {
        let path = match (&entry.place, cwd) {
            (Place::Path(path), _) => Some(path.clone()),
            (Place::BelowCwd(below), Some(cwd)) => Some(cwd.join(below)),
            (Place::BelowCwd(_) | Place::Unclear(_), _) => None,
        };
        match (path, entry.access) {
            (Some(path), Access::Deny) => return Err(Exceeds::Hidden(path.display().to_string())),
            (None, Access::Deny) => return Err(Exceeds::Hidden(entry.place.name())),
            // Our own roots are canonical, so a grant holds where it leads; a restriction by both names.
            (Some(path), Access::Write) => placed.push((resolve(&path), Access::Write)),
            (Some(path), Access::Read) => {
                placed.push((resolve(&path), Access::Read));
                placed.push((path, Access::Read));
            }
            // A grant that can't be tied to a path grants nothing.
            (None, Access::Read | Access::Write) => {}
        }
    }
    if access_at(&placed, Path::new("/")).is_none() {
        return Err(Exceeds::Unreadable);
    }
    let covers = |root: &PathBuf| {
        access_at(&placed, root) == Some(Access::Write)
            && !placed.iter().any(|(path, access)| {
                *access == Access::Read
                    && path != root
                    && path
                        .strip_prefix(root)
                        .is_ok_and(|below| !is_protected_by_profile(below))
            })
    };
    if std::iter::once(&ours.workspace)
        .chain(&ours.writable)
        .all(covers)
    {
        Ok(Mode::WorkspaceWrite)
    } else {
        Ok(Mode::ReadOnly)
    }
}

/// The deepest entry decides; at equal depth the one that allows more does, as the client has it.
fn access_at(placed: &[(PathBuf, Access)], path: &Path) -> Option<Access> {
    placed
        .iter()
        .filter(|(place, _)| path.starts_with(place))
        .max_by_key(|(place, access)| (place.components().count(), *access))
        .map(|(_, access)| *access)
}

fn is_protected_by_profile(below: &Path) -> bool {
    let first = below.components().next();
    PROTECTED_BY_PROFILE
        .iter()
        .any(|name| first == Some(Component::Normal(name.as_ref())))
}

impl Place {
    fn name(&self) -> String {
        match self {
            Place::Path(path) | Place::BelowCwd(path) => path.display().to_string(),
            Place::Unclear(text) => text.clone(),
        }
    }
}

fn profile(value: &Value) -> Theirs {
    let network = word(value, "network") == Some("enabled");
    let files = match word(value, "type") {
        Some("disabled") => {
            return Theirs {
                network: true,
                files: Files::All,
            };
        }
        Some("external") => Files::All,
        Some("managed") => match value
            .get("file_system")
            .or_else(|| value.get("fileSystem"))
            .map(|files| (word(files, "type"), files))
        {
            Some((Some("unrestricted"), _)) => Files::All,
            Some((Some("restricted"), files)) => match files.get("entries") {
                Some(Value::Array(entries)) if entries.len() <= MAX_ENTRIES => {
                    Files::Entries(entries.iter().map(entry).collect())
                }
                _ => Files::ReadOnly,
            },
            _ => Files::ReadOnly,
        },
        _ => Files::ReadOnly,
    };
    Theirs { network, files }
}

fn entry(value: &Value) -> Entry {
    let access = match word(value, "access") {
        Some("read") => Access::Read,
        Some("write") => Access::Write,
        _ => Access::Deny,
    };
    let unclear = || Place::Unclear(value.get("path").unwrap_or(value).to_string());
    let path = value.get("path").unwrap_or(&Value::Null);
    let place = match word(path, "type") {
        Some("path") => match word(path, "path").and_then(local_path) {
            Some(path) => Place::Path(path),
            None => unclear(),
        },
        Some("special") => {
            special(path.get("value").unwrap_or(&Value::Null)).unwrap_or_else(unclear)
        }
        _ => unclear(),
    };
    Entry { place, access }
}

fn special(value: &Value) -> Option<Place> {
    match word(value, "kind")? {
        "root" => Some(Place::Path(PathBuf::from("/"))),
        "slash_tmp" => Some(Place::Path(PathBuf::from("/tmp"))),
        "project_roots" | "current_working_directory" => match value.get("subpath") {
            None | Some(Value::Null) => Some(Place::BelowCwd(PathBuf::new())),
            Some(subpath) => {
                let below = PathBuf::from(subpath.as_str()?);
                is_plain_below(&below).then_some(Place::BelowCwd(below))
            }
        },
        _ => None,
    }
}

/// The form that came before `permissionProfile`.
fn legacy_policy(value: &Value) -> Theirs {
    let network = matches!(
        value
            .get("network_access")
            .or_else(|| value.get("networkAccess")),
        Some(Value::Bool(true))
    ) || word(value, "network_access") == Some("enabled");
    match word(value, "type") {
        Some("danger-full-access") => Theirs {
            network: true,
            files: Files::All,
        },
        Some("external-sandbox") => Theirs {
            network,
            files: Files::All,
        },
        Some("workspace-write") => {
            let roots = value
                .get("writable_roots")
                .or_else(|| value.get("writableRoots"))
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .take(MAX_ENTRIES)
                .filter_map(|root| root.as_str().and_then(local_path))
                .map(Place::Path);
            let entries = std::iter::once((Place::Path(PathBuf::from("/")), Access::Read))
                .chain([(Place::BelowCwd(PathBuf::new()), Access::Write)])
                .chain(roots.map(|root| (root, Access::Write)))
                .map(|(place, access)| Entry { place, access })
                .collect();
            Theirs {
                network,
                files: Files::Entries(entries),
            }
        }
        _ => Theirs::unknown(),
    }
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// An absolute path without `..`, given plainly or as a `file:` URI of this host.
fn local_path(text: &str) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let path = match text.strip_prefix("file://") {
        Some(rest) => {
            let rest = rest.strip_prefix("localhost").unwrap_or(rest);
            PathBuf::from(std::ffi::OsString::from_vec(percent_decoded(rest)?))
        }
        None => PathBuf::from(text),
    };
    let path: PathBuf = path.components().collect();
    (path.is_absolute() && is_plain_below(path.strip_prefix("/").ok()?)).then_some(path)
}

fn is_plain_below(path: &Path) -> bool {
    path.components()
        .all(|component| matches!(component, Component::Normal(_)))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ours() -> Ours {
        Ours {
            workspace: "/home/me/my work".into(),
            writable: vec![],
            network: Network::None,
        }
    }

    fn managed(entries: Value) -> Value {
        json!({
            "permissionProfile": {
                "type": "managed",
                "file_system": {"type": "restricted", "entries": entries},
                "network": "restricted",
            },
            "sandboxCwd": "file:///home/me/my%20work",
        })
    }

    fn root(access: &str) -> Value {
        json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": access})
    }

    fn project(access: &str) -> Value {
        json!({"path": {"type": "special", "value": {"kind": "project_roots"}}, "access": access})
    }

    fn below(subpath: &str, access: &str) -> Value {
        json!({"path": {"type": "special", "value": {"kind": "project_roots", "subpath": subpath}}, "access": access})
    }

    fn path(path: &str, access: &str) -> Value {
        json!({"path": {"type": "path", "path": path}, "access": access})
    }

    /// Where `/link` leads to `/home/me`.
    fn ceiled(state: &Value, ours: &Ours) -> Result<Mode, Exceeds> {
        ceiling(state, ours, &|path| match path.strip_prefix("/link") {
            Ok(below) => Path::new("/home/me").join(below),
            Err(_) => path.to_owned(),
        })
    }

    #[test]
    fn symbolic_links_lead_a_grant_to_its_place_and_hide_no_restriction() {
        let grant = managed(json!([root("read"), path("/link", "write")]));
        assert_eq!(ceiled(&grant, &ours()), Ok(Mode::WorkspaceWrite));
        let restriction = path("/link/my work/vendor", "read");
        let restricted = managed(json!([root("read"), project("write"), restriction]));
        assert_eq!(ceiled(&restricted, &ours()), Ok(Mode::ReadOnly));
    }

    #[test]
    fn each_profile_leaves_the_mode_that_it_covers() {
        use Mode::{DangerFullAccess as D, ReadOnly as R, WorkspaceWrite as W};
        for (state, mode) in [
            (json!({"permissionProfile": {"type": "disabled"}}), D),
            (
                json!({"permissionProfile": {"type": "external", "network": "enabled"}}),
                D,
            ),
            (
                json!({"permissionProfile": {"type": "external", "network": "restricted"}}),
                W,
            ),
            (
                json!({"permissionProfile": {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}}),
                D,
            ),
            (
                json!({"permissionProfile": {"type": "managed", "file_system": {"type": "unrestricted"}, "network": "restricted"}}),
                W,
            ),
            (managed(json!([root("read")])), R),
            (managed(json!([root("read"), project("write")])), W),
            (managed(json!([root("write")])), W),
            (managed(json!([root("read"), path("/home/me", "write")])), W),
            (
                managed(json!([root("read"), path("/home/me/other", "write")])),
                R,
            ),
            (
                managed(json!([root("write"), path("/home/me/my work", "read")])),
                R,
            ),
            (
                managed(json!([
                    root("read"),
                    project("write"),
                    below(".git", "read"),
                    below(".codex", "read")
                ])),
                W,
            ),
            (
                managed(json!([
                    root("read"),
                    project("write"),
                    below("vendor", "read")
                ])),
                R,
            ),
            (json!({"sandboxPolicy": {"type": "danger-full-access"}}), D),
            (json!({"sandboxPolicy": {"type": "read-only"}}), R),
            (
                json!({"sandboxPolicy": {"type": "workspace-write"}, "sandboxCwd": "/home/me/my work"}),
                W,
            ),
            (
                json!({"sandboxPolicy": {"type": "workspace-write", "writable_roots": ["/home/me"]}, "sandboxCwd": "/x"}),
                W,
            ),
            (
                json!({"sandboxPolicy": {"type": "workspace-write"}, "sandboxCwd": "/x"}),
                R,
            ),
            (
                json!({"permissionProfile": {"type": "disabled"}, "sandboxPolicy": {"type": "read-only"}}),
                R,
            ),
        ] {
            assert_eq!(ceiled(&state, &ours()), Ok(mode), "{state}");
        }
    }

    #[test]
    fn what_is_unknown_is_the_narrowest_mode() {
        for state in [
            json!(null),
            json!("workspace-write"),
            json!({}),
            json!({"sandboxCwd": "/home/me/my work"}),
            json!({"permissionProfile": "workspace-write"}),
            json!({"permissionProfile": {"type": "novel"}}),
            json!({"permissionProfile": {"type": "managed"}}),
            json!({"permissionProfile": {"type": "managed", "file_system": {"type": "restricted"}}}),
            json!({"sandboxPolicy": {"type": "novel"}}),
            managed(
                json!([root("read"), {"path": {"type": "special", "value": {"kind": "novel"}}, "access": "write"}]),
            ),
            managed(json!([root("read"), path("/home/me/../me", "write")])),
        ] {
            assert_eq!(ceiled(&state, &ours()), Ok(Mode::ReadOnly), "{state}");
        }
    }

    #[test]
    fn what_no_mode_forbids_is_refused() {
        assert_eq!(
            ceiled(
                &managed(json!([root("read"), path("/home/me/.env", "none")])),
                &ours()
            ),
            Err(Exceeds::Hidden("/home/me/.env".into()))
        );
        let pattern =
            json!({"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"});
        assert_eq!(
            ceiled(&managed(json!([root("read"), pattern])), &ours()),
            Err(Exceeds::Hidden(
                "{\"type\":\"glob_pattern\",\"pattern\":\"**/*.env\"}".into()
            ))
        );
        assert_eq!(
            ceiled(&managed(json!([project("write")])), &ours()),
            Err(Exceeds::Unreadable)
        );
        let with_network = Ours {
            network: Network::Host,
            ..ours()
        };
        assert_eq!(
            ceiled(&managed(json!([root("read")])), &with_network),
            Err(Exceeds::Network)
        );
        assert_eq!(
            ceiled(
                &json!({"permissionProfile": {"type": "disabled"}}),
                &with_network
            ),
            Ok(Mode::DangerFullAccess)
        );
    }

    #[test]
    fn every_writable_root_of_ours_must_be_one_of_theirs() {
        let wide = Ours {
            writable: vec!["/srv/cache".into()],
            ..ours()
        };
        let narrow = managed(json!([root("read"), project("write")]));
        assert_eq!(ceiled(&narrow, &wide), Ok(Mode::ReadOnly));
        let covering = managed(json!([
            root("read"),
            project("write"),
            path("/srv", "write")
        ]));
        assert_eq!(ceiled(&covering, &wide), Ok(Mode::WorkspaceWrite));
    }
}
