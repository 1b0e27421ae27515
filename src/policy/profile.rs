//! Profile files: what a mode means, as TOML, and how the layers of them add up.
//!
//! Rule: a profile of the user may loosen what is built in; a file of the workspace may only tighten,
//! and what it would loosen is left out by name. Every unknown key and impossible value is an error
//! with file, line and remedy.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use serde::Deserialize;
use toml::Spanned;

use super::{Limits, Network, Origin, RefusedCalls, Require, calls};
use crate::host::paths::{self, Stamp};
use crate::mode::Mode;
use crate::outcome::{NeverRan, NeverRanCode};

/// The name of a workspace's own profile, in its top folder.
pub const WORKSPACE_FILE: &str = ".cofferdam.toml";

/// A value with the line that says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// What it says.
    pub value: T,
    /// Where it says so.
    pub origin: Origin,
}

/// One profile file, checked as far as that needs neither a workspace nor a home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    network: Option<Setting<Network>>,
    require: Option<Setting<Require>>,
    writable: Vec<Setting<String>>,
    hidden: Vec<Setting<String>>,
    hidden_variables: Vec<Setting<String>>,
    protected: Vec<Setting<String>>,
    visible: Vec<Setting<String>>,
    unhide: Vec<Setting<String>>,
    unprotect: Vec<Setting<String>>,
    allow_calls: Vec<Setting<String>>,
    refuse: Vec<Setting<RefusedCalls>>,
    limits: Vec<(Limit, Setting<Option<u64>>)>,
    remove: Vec<Setting<String>>,
    keep: Vec<Setting<String>>,
    set: Vec<(String, Setting<String>)>,
}

/// What the layers say together: paths still as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What may be reached on the network.
    pub network: Setting<Network>,
    /// What to do on a weaker host.
    pub require: Setting<Require>,
    /// Further writable roots.
    pub writable: Vec<Setting<String>>,
    /// Paths that can't be read.
    pub hidden: Vec<Setting<String>>,
    /// Variables of the caller that name sockets to hide.
    pub hidden_variables: Vec<Setting<String>>,
    /// Paths that stay read-only below a writable root.
    pub protected: Vec<Setting<String>>,
    /// Paths below `/run` that stay visible.
    pub visible: Vec<Setting<String>>,
    /// Refused system calls; no call stands in two groups.
    pub refuse: Vec<Setting<RefusedCalls>>,
    /// Resource limits, by the names that profiles use.
    pub limits: BTreeMap<&'static str, Setting<Option<u64>>>,
    /// Names that are removed from the environment.
    pub remove: Vec<Setting<String>>,
    /// Names that pass although the scrub would remove them.
    pub keep: Vec<Setting<String>>,
    /// Variables that every command gets.
    pub set: BTreeMap<String, Setting<String>>,
    /// What a file of the workspace would have loosened, as in `network (/w/.cofferdam.toml:1)`.
    pub ignored: Vec<String>,
}

impl Settings {
    /// The limits as numbers.
    pub fn limit_values(&self) -> Limits {
        let of = |limit: Limit| self.limits.get(limit.name()).and_then(|set| set.value);
        Limits {
            processes: of(Limit::Processes),
            open_files: of(Limit::OpenFiles),
            file_size: of(Limit::FileSize),
            scratch_bytes: of(Limit::ScratchBytes),
        }
    }
}

/// What the caller's arguments say, stronger than the user's profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `--network`.
    pub network: Option<Network>,
    /// `--require`.
    pub require: Option<Require>,
}

/// Adds up the built-in profile of `mode`, the profiles of the user in their order, the caller's
/// arguments, and the workspace's own profile.
///
/// # Errors
/// `unhide`, `unprotect` or `allow_calls` names what nothing before it names.
pub fn settle(
    mode: Mode,
    user: &[Arc<Profile>],
    arguments: Arguments,
    workspace: Option<&Profile>,
) -> Result<Arc<Settings>, NeverRan> {
    static BUILTIN_ALONE: [OnceLock<Arc<Settings>>; 3] = [const { OnceLock::new() }; 3];
    let alone = &BUILTIN_ALONE[mode as usize];
    if !user.is_empty() || arguments != Arguments::default() || workspace.is_some() {
        return add_up(mode, user, arguments, workspace).map(Arc::new);
    }
    if let Some(settings) = alone.get() {
        return Ok(settings.clone());
    }
    let settings = Arc::new(add_up(mode, user, arguments, workspace)?);
    Ok(alone.get_or_init(|| settings).clone())
}

fn add_up(
    mode: Mode,
    user: &[Arc<Profile>],
    arguments: Arguments,
    workspace: Option<&Profile>,
) -> Result<Settings, NeverRan> {
    let builtin = |at: usize| &BUILTIN[at].1;
    // Workspace-write is read-only with writable roots, so it starts from the same file.
    let layers: &[&Result<Profile, NeverRan>] = match mode {
        Mode::ReadOnly => &[builtin(0)],
        Mode::WorkspaceWrite => &[builtin(0), builtin(1)],
        Mode::DangerFullAccess => &[builtin(2)],
    };
    let origin = Origin::Builtin;
    let mut settings = Settings {
        network: Setting {
            value: Network::None,
            origin: origin.clone(),
        },
        require: Setting {
            value: Require::Partial,
            origin,
        },
        writable: Vec::new(),
        hidden: Vec::new(),
        hidden_variables: Vec::new(),
        protected: Vec::new(),
        visible: Vec::new(),
        refuse: Vec::new(),
        limits: BTreeMap::new(),
        remove: Vec::new(),
        keep: Vec::new(),
        set: BTreeMap::new(),
        ignored: Vec::new(),
    };
    for layer in layers {
        add(&mut settings, mode, layer.as_ref().map_err(Clone::clone)?)?;
    }
    for layer in user {
        add(&mut settings, mode, layer)?;
    }
    let argument = Profile {
        network: arguments.network.map(from_argument),
        require: arguments.require.map(from_argument),
        ..Profile::default()
    };
    add(&mut settings, mode, &argument)?;
    if let Some(layer) = workspace {
        let (tightening, ignored) = tightening_part(layer, &settings);
        add(&mut settings, mode, &tightening)?;
        settings.ignored = ignored;
    }
    Ok(settings)
}

/// Reads a profile file. A file that hasn't changed since the last call isn't read again.
///
/// # Errors
/// The file can't be read, or something in it is unknown, of a wrong type or impossible.
pub fn load(file: &Path) -> Result<Arc<Profile>, NeverRan> {
    type Known = HashMap<PathBuf, (Stamp, Arc<Profile>)>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let unreadable = |error: &dyn std::fmt::Display| {
        refused(
            format!("profile {file:?} can't be read: {error}"),
            "name a readable TOML file of at most 256 KiB",
        )
    };
    let meta = fs::metadata(file).map_err(|error| unreadable(&error))?;
    let stamp = Stamp::of(&meta);
    // A map of parsed profiles is whole after a panic elsewhere.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((seen, profile)) = known.get(file)
        && *seen == stamp
    {
        return Ok(profile.clone());
    }
    let bytes = paths::read_small(file, FILE_BYTES).map_err(|error| unreadable(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it isn't UTF-8"))?;
    let profile = Arc::new(parse(&file.to_string_lossy(), &text)?);
    if known.len() == FILES_KNOWN_AT_MOST {
        known.clear();
    }
    if stamp.is_settled() {
        known.insert(file.to_owned(), (stamp, profile.clone()));
    }
    Ok(profile)
}

/// Reads the text of a profile; `file` is its name in errors and origins.
///
/// # Errors
/// Something in it is unknown, of a wrong type or impossible: the text says where and what to do.
pub fn parse(file: &str, text: &str) -> Result<Profile, NeverRan> {
    let source = Source::new(file, text);
    let raw: Raw = toml::from_str(text).map_err(|error| source.syntax(&error))?;
    source.check(raw)
}

/// An error about one line of a profile.
pub(crate) fn wrong(origin: &Origin, fact: impl std::fmt::Display, remedy: &str) -> NeverRan {
    refused(format!("{origin}: {fact}"), remedy)
}

/// The text of each built-in profile, by the name that origins show.
pub const BUILTIN_TEXTS: [(&str, &str); 3] = [
    (
        "built-in read-only",
        include_str!("../../sandbox-profiles/read-only.toml"),
    ),
    (
        "built-in workspace-write",
        include_str!("../../sandbox-profiles/workspace-write.toml"),
    ),
    (
        "built-in danger-full-access",
        include_str!("../../sandbox-profiles/danger-full-access.toml"),
    ),
];

type Builtin = (&'static str, Result<Profile, NeverRan>);

static BUILTIN: LazyLock<[Builtin; 3]> =
    LazyLock::new(|| BUILTIN_TEXTS.map(|(name, text)| (name, parse(name, text))));

/// A profile longer than this is refused.
const FILE_BYTES: u64 = 256 << 10;

/// How many parsed profiles are remembered.
const FILES_KNOWN_AT_MOST: usize = 64;

/// A limit of `[limits]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Processes,
    OpenFiles,
    FileSize,
    ScratchBytes,
}

impl Limit {
    fn name(self) -> &'static str {
        match self {
            Limit::Processes => "processes",
            Limit::OpenFiles => "open_files",
            Limit::FileSize => "file_size",
            Limit::ScratchBytes => "scratch_bytes",
        }
    }
}

/// The file as serde sees it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    network: Option<Spanned<Network>>,
    require: Option<Spanned<Require>>,
    #[serde(default)]
    writable: Vec<Spanned<String>>,
    #[serde(default)]
    hidden: Vec<Spanned<String>>,
    #[serde(default)]
    hidden_variables: Vec<Spanned<String>>,
    #[serde(default)]
    protected: Vec<Spanned<String>>,
    #[serde(default)]
    visible: Vec<Spanned<String>>,
    #[serde(default)]
    unhide: Vec<Spanned<String>>,
    #[serde(default)]
    unprotect: Vec<Spanned<String>>,
    #[serde(default)]
    allow_calls: Vec<Spanned<String>>,
    #[serde(default)]
    refuse: Vec<RawRefuse>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    environment: RawEnvironment,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRefuse {
    calls: Spanned<Vec<Spanned<String>>>,
    errno: Spanned<String>,
    reason: Spanned<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    processes: Option<Spanned<RawAmount>>,
    open_files: Option<Spanned<RawAmount>>,
    file_size: Option<Spanned<RawAmount>>,
    scratch_bytes: Option<Spanned<RawAmount>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type, expected a number, a text like \"4 GiB\", or \"unlimited\""
)]
enum RawAmount {
    Number(i64),
    Text(String),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEnvironment {
    #[serde(default)]
    remove: Vec<Spanned<String>>,
    #[serde(default)]
    keep: Vec<Spanned<String>>,
    #[serde(default)]
    set: BTreeMap<String, Spanned<String>>,
}

/// A file being checked.
struct Source<'a> {
    file: &'a str,
    /// Where lines end.
    ends: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(file: &'a str, text: &'a str) -> Source<'a> {
        let ends = text.match_indices('\n').map(|(at, _)| at).collect();
        Source { file, ends }
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::Profile {
            file: self.file.to_owned(),
            line: 1 + self.ends.partition_point(|end| *end < span.start),
        }
    }

    /// Serde's and TOML's own errors, in this project's words.
    fn syntax(&self, error: &toml::de::Error) -> NeverRan {
        let origin = self.origin(&error.span().unwrap_or(0..0));
        let message = error.message().trim().replace('\n', ", ");
        match message.split_once(", expected ") {
            Some((fact, expected)) if fact.starts_with("unknown field") => wrong(
                &origin,
                fact.replace("unknown field", "unknown key"),
                &format!("use {}", expected.replace("one of ", "one of: ")),
            ),
            Some((fact, expected)) => wrong(
                &origin,
                fact.replace("unknown variant", "unknown value"),
                &format!("write {expected}"),
            ),
            None => wrong(&origin, message, "correct this line"),
        }
    }

    fn check(&self, raw: Raw) -> Result<Profile, NeverRan> {
        let mut limits = Vec::new();
        for (limit, amount) in [
            (Limit::Processes, raw.limits.processes),
            (Limit::OpenFiles, raw.limits.open_files),
            (Limit::FileSize, raw.limits.file_size),
            (Limit::ScratchBytes, raw.limits.scratch_bytes),
        ] {
            if let Some(amount) = amount {
                limits.push((limit, self.amount(amount)?));
            }
        }
        let mut set = Vec::new();
        for (name, value) in raw.environment.set {
            let value = self.setting(value);
            self.variable(&name, &value.origin)?;
            if value.value.contains('\0') {
                let fact = format!("the value of {name} holds a NUL byte");
                return Err(wrong(&value.origin, fact, "remove it"));
            }
            set.push((name, value));
        }
        Ok(Profile {
            network: raw.network.map(|value| self.setting(value)),
            require: raw.require.map(|value| self.setting(value)),
            writable: self.paths(raw.writable)?,
            hidden: self.paths(raw.hidden)?,
            hidden_variables: self.variables(raw.hidden_variables)?,
            protected: self.paths(raw.protected)?,
            visible: self.paths(raw.visible)?,
            unhide: self.paths(raw.unhide)?,
            unprotect: self.paths(raw.unprotect)?,
            allow_calls: self.calls(raw.allow_calls)?,
            refuse: raw
                .refuse
                .into_iter()
                .map(|group| self.refuse(group))
                .collect::<Result<_, _>>()?,
            limits,
            remove: self.variables(raw.environment.remove)?,
            keep: self.variables(raw.environment.keep)?,
            set,
        })
    }

    fn setting<T>(&self, value: Spanned<T>) -> Setting<T> {
        Setting {
            origin: self.origin(&value.span()),
            value: value.into_inner(),
        }
    }

    fn paths(&self, values: Vec<Spanned<String>>) -> Result<Vec<Setting<String>>, NeverRan> {
        let checked = values.into_iter().map(|value| {
            let value = self.setting(value);
            let text = &value.value;
            let dots = Path::new(text)
                .components()
                .any(|part| part == std::path::Component::ParentDir);
            let foreign_home = text.starts_with('~') && text != "~" && !text.starts_with("~/");
            let foreign_variable =
                text.starts_with('$') && text != "$HOME" && !text.starts_with("$HOME/");
            if text.is_empty() || text.contains('\0') || dots || foreign_home || foreign_variable {
                return Err(wrong(
                    &value.origin,
                    format!("{text:?} is no path that a profile can name"),
                    "write /an/absolute/path, ~/below/home or relative/to/the/root, without \"..\"",
                ));
            }
            Ok(value)
        });
        checked.collect()
    }

    fn variables(&self, values: Vec<Spanned<String>>) -> Result<Vec<Setting<String>>, NeverRan> {
        let checked = values.into_iter().map(|value| {
            let value = self.setting(value);
            self.variable(&value.value, &value.origin).map(|()| value)
        });
        checked.collect()
    }

    fn variable(&self, name: &str, origin: &Origin) -> Result<(), NeverRan> {
        if name.is_empty() || name.contains(['=', '\0']) {
            let fact = format!("{name:?} is no name of a variable");
            return Err(wrong(origin, fact, "write a name without \"=\""));
        }
        if name.starts_with("DSH_") {
            let fact = format!("{name} is managed by cofferdam");
            return Err(wrong(origin, fact, "remove it"));
        }
        Ok(())
    }

    fn calls(&self, values: Vec<Spanned<String>>) -> Result<Vec<Setting<String>>, NeverRan> {
        let checked = values.into_iter().map(|value| {
            let value = self.setting(value);
            if calls::is_known(&value.value) {
                return Ok(value);
            }
            Err(wrong(
                &value.origin,
                format!("no system call is named {:?}", value.value),
                "write a name from the system call table, as in \"io_uring_setup\"",
            ))
        });
        checked.collect()
    }

    fn refuse(&self, group: RawRefuse) -> Result<Setting<RefusedCalls>, NeverRan> {
        let origin = self.origin(&group.calls.span());
        let calls = self.calls(group.calls.into_inner())?;
        let errno = self.setting(group.errno);
        if !["EPERM", "EACCES", "ENOSYS"].contains(&errno.value.as_str()) {
            return Err(wrong(
                &errno.origin,
                format!("a refused call can't return {:?}", errno.value),
                "write \"EPERM\", \"EACCES\" or \"ENOSYS\"",
            ));
        }
        let reason = self.setting(group.reason);
        if calls.is_empty() || reason.value.trim().is_empty() {
            return Err(wrong(
                &origin,
                "a group of refused calls without calls or without a reason",
                "name at least one call and say why it is refused",
            ));
        }
        Ok(Setting {
            value: RefusedCalls {
                calls: calls.into_iter().map(|call| call.value).collect(),
                errno: errno.value,
                reason: reason.value,
            },
            origin,
        })
    }

    fn amount(&self, amount: Spanned<RawAmount>) -> Result<Setting<Option<u64>>, NeverRan> {
        let amount = self.setting(amount);
        let value = match &amount.value {
            RawAmount::Number(number) => u64::try_from(*number).ok().filter(|number| *number > 0),
            RawAmount::Text(text) if text == "unlimited" => {
                return Ok(Setting {
                    value: None,
                    origin: amount.origin,
                });
            }
            RawAmount::Text(text) => bytes(text),
        };
        match value {
            Some(_) => Ok(Setting {
                value,
                origin: amount.origin,
            }),
            None => Err(wrong(
                &amount.origin,
                "a limit must be positive",
                "write a number such as 4096, a text such as \"4 GiB\", or \"unlimited\"",
            )),
        }
    }
}

/// `4 GiB`, `512 MiB`, `64 KiB`, `4096`.
fn bytes(text: &str) -> Option<u64> {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    let unit = match text[end..].trim() {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let number: u64 = text[..end].parse().ok()?;
    number.checked_mul(1 << unit).filter(|bytes| *bytes > 0)
}

fn from_argument<T>(value: T) -> Setting<T> {
    Setting {
        value,
        origin: Origin::Argument,
    }
}

/// Lays a profile over what stands: lists add, single values replace. One profile serves several modes, so
/// what it takes away needs to stand only in a mode that has such a list.
fn add(settings: &mut Settings, mode: Mode, layer: &Profile) -> Result<(), NeverRan> {
    let (confined, writing) = (mode.is_confined(), mode == Mode::WorkspaceWrite);
    for (names, key, must_stand, standing) in [
        (&layer.unhide, "hidden", confined, &mut settings.hidden),
        (
            &layer.unprotect,
            "protected",
            writing,
            &mut settings.protected,
        ),
    ] {
        for name in names {
            let before = standing.len();
            standing.retain(|place| !same_name(&place.value, &name.value));
            if must_stand && standing.len() == before {
                return Err(wrong(
                    &name.origin,
                    format!("nothing of that name is {key}: {:?}", name.value),
                    &format!(
                        "write it as it stands in the list of {key} paths, see `cofferdam profile show`"
                    ),
                ));
            }
        }
    }
    for call in &layer.allow_calls {
        let mut found = false;
        for group in &mut settings.refuse {
            let before = group.value.calls.len();
            group.value.calls.retain(|name| *name != call.value);
            found |= group.value.calls.len() != before;
        }
        if confined && !found {
            return Err(wrong(
                &call.origin,
                format!("{:?} isn't refused", call.value),
                "remove it, or see `cofferdam profile show` for what is refused",
            ));
        }
    }
    if let Some(network) = &layer.network {
        settings.network = network.clone();
    }
    if let Some(require) = &layer.require {
        settings.require = require.clone();
    }
    settings.writable.extend(layer.writable.iter().cloned());
    settings.hidden.extend(layer.hidden.iter().cloned());
    settings
        .hidden_variables
        .extend(layer.hidden_variables.iter().cloned());
    settings.protected.extend(layer.protected.iter().cloned());
    settings.visible.extend(layer.visible.iter().cloned());
    for group in &layer.refuse {
        let mut group = group.clone();
        group.value.calls.retain(|call| {
            let mut standing = settings.refuse.iter().flat_map(|group| &group.value.calls);
            !standing.any(|name| name == call)
        });
        settings.refuse.push(group);
    }
    settings
        .refuse
        .retain(|group| !group.value.calls.is_empty());
    for (limit, value) in &layer.limits {
        settings.limits.insert(limit.name(), value.clone());
    }
    settings.remove.extend(layer.remove.iter().cloned());
    settings.keep.extend(layer.keep.iter().cloned());
    for (name, value) in &layer.set {
        settings.set.insert(name.clone(), value.clone());
    }
    Ok(())
}

/// What of a workspace's profile asks for less than what stands, and the names of the rest.
fn tightening_part(layer: &Profile, standing: &Settings) -> (Profile, Vec<String>) {
    let mut ignored = Vec::new();
    let mut ignore = |key: &str, origin: &Origin| ignored.push(format!("{key} ({origin})"));
    let network = layer.network.clone().filter(|network| {
        let loosens = network.value == Network::Host && standing.network.value == Network::None;
        if loosens {
            ignore("network", &network.origin);
        }
        !loosens
    });
    let require = layer.require.clone().filter(|require| {
        let loosens = require.value == Require::Partial && standing.require.value == Require::Full;
        if loosens {
            ignore("require", &require.origin);
        }
        !loosens
    });
    for (key, names) in [
        ("writable", &layer.writable),
        ("visible", &layer.visible),
        ("unhide", &layer.unhide),
        ("unprotect", &layer.unprotect),
        ("allow_calls", &layer.allow_calls),
        ("environment.keep", &layer.keep),
    ] {
        if let Some(first) = names.first() {
            ignore(key, &first.origin);
        }
    }
    // A variable can loosen (`LD_PRELOAD`, `PATH`), and nothing says which do.
    if let Some((_, first)) = layer.set.first() {
        ignore("environment.set", &first.origin);
    }
    let limits = layer.limits.iter().filter(|(limit, asked)| {
        let standing = standing.limits.get(limit.name()).and_then(|set| set.value);
        let loosens = match (asked.value, standing) {
            (None, Some(_)) => true,
            (Some(asked), Some(standing)) => asked > standing,
            (_, None) => false,
        };
        if loosens {
            ignore(&format!("limits.{}", limit.name()), &asked.origin);
        }
        !loosens
    });
    let tightening = Profile {
        network,
        require,
        hidden: layer.hidden.clone(),
        hidden_variables: layer.hidden_variables.clone(),
        protected: layer.protected.clone(),
        refuse: layer.refuse.clone(),
        limits: limits.cloned().collect(),
        remove: layer.remove.clone(),
        ..Profile::default()
    };
    (tightening, ignored)
}

/// Whether two written paths mean the same: `~/x` and `$HOME/x`, with or without a trailing slash.
fn same_name(one: &str, other: &str) -> bool {
    let plain = |name: &str| {
        let name = name
            .strip_prefix("$HOME")
            .map_or_else(|| name.to_owned(), |rest| format!("~{rest}"));
        name.trim_end_matches('/').to_owned()
    };
    plain(one) == plain(other)
}

fn refused(message: String, remedy: impl Into<String>) -> NeverRan {
    NeverRan::refused(NeverRanCode::InvalidProfile, message, remedy)
}

#[cfg(test)]
mod tests;
