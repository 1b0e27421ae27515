//! The judge: which claims of the text, and which watched calls, are denials.
//!
//! Rule: a claim becomes a fact only when the policy forbids exactly that, the errno is one that the
//! confinement gives, and the file's own permissions would have allowed it. What the command quotes,
//! and what failed before the part that decided its exit status, is left out.

use std::path::{Path, PathBuf};

use crate::mode::Mode;
use crate::outcome::{Ended, errno_name};
use crate::policy::{Access, Network, Policy, Rule};

use super::command::{Command, Segment, base_name, from_folder};
use super::read::{Reading, Subject, read};
use super::words::{Sign, signs};
use super::{Class, Confidence, Disk, Event, Evidence, Fact, Kind, Permission, Target, Wish};

/// Facts that are kept of one command.
pub const MAX_FACTS: usize = 64;

/// Which errnos the confinement gives for a refused file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Read-only mounts, with or without Landlock: EROFS; EACCES only for what is hidden and for
    /// FIFOs and devices; EBUSY and EXDEV where a protected path is a mount of its own.
    Mounts,
    /// Landlock alone: EACCES, and EPERM for what seccomp refuses.
    Landlock,
}

/// All that a verdict depends on.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// How the command ended.
    pub ended: Ended,
    /// The command's text.
    pub command: &'a str,
    /// Where it started, as the command sees it.
    pub cwd: &'a Path,
    /// Its environment; `HOME` and what the text names are looked up.
    pub variables: &'a [(String, String)],
    /// Standard output, as a [`Collector`](super::Collector) condensed it.
    pub stdout: &'a [u8],
    /// Standard error, likewise.
    pub stderr: &'a [u8],
    /// Calls that a supervisor saw.
    pub events: &'a [Event],
    /// The policy that it ran under.
    pub policy: &'a Policy,
    /// The policy of the next wider confined mode, for the cure. `None`: none is wider, or the cure is
    /// judged by the workspace alone.
    pub wider: Option<&'a Policy>,
    /// The errnos of the backend.
    pub dialect: Dialect,
    /// What is on disk.
    pub disk: &'a dyn Disk,
}

/// The denials, in the order in which they were told: events first, then standard error, then output.
pub fn facts(inputs: &Inputs<'_>) -> Vec<Fact> {
    if !inputs.policy.mode.is_confined() {
        return Vec::new();
    }
    let command = Command::read(inputs.command, inputs.cwd, inputs.variables);
    let judge = Judge {
        inputs,
        command: &command,
    };
    let told_on_output = read(inputs.stdout)
        .into_iter()
        .filter(|reading| judge.belongs_on_output(reading));
    let readings: Vec<Reading> = read(inputs.stderr)
        .into_iter()
        .chain(told_on_output)
        .filter(|reading| !judge.is_quotation(reading))
        .collect();
    let told: Vec<(Fact, &Reading)> = readings
        .iter()
        .filter_map(|reading| judge.fact(reading).map(|fact| (fact, reading)))
        .collect();
    let mut facts = judge.events(&readings);
    if !judge.failed_by_itself(&told) {
        facts.extend(told.into_iter().map(|(fact, _)| fact));
    }
    let mut unique: Vec<Fact> = Vec::new();
    for fact in facts {
        // An address that isn't told adds nothing to one that is.
        let unnamed = |fact: &Fact| fact.path.is_none() && fact.address.is_none();
        let same = |old: &Fact| {
            let alike = old.class == fact.class
                && ((old.path == fact.path && old.address == fact.address) || unnamed(&fact));
            // What the kernel refused at a path, a program tells of in its own words.
            let seen =
                old.evidence == Evidence::Kernel && old.path.is_some() && old.path == fact.path;
            alike || seen
        };
        if unique.len() < MAX_FACTS && !unique.iter().any(same) {
            unique.push(fact);
        }
    }
    unique
}

struct Judge<'a> {
    inputs: &'a Inputs<'a>,
    command: &'a Command,
}

impl Judge<'_> {
    fn policy(&self) -> &Policy {
        self.inputs.policy
    }

    fn disk(&self) -> &dyn Disk {
        self.inputs.disk
    }

    /// Whether the command shows this line rather than meets it.
    fn is_quotation(&self, reading: &Reading) -> bool {
        let line = reading.line.as_str();
        if self.command.holds(line) {
            return true;
        }
        let phrase = signs(line.as_bytes())
            .filter(|found| matches!(found.sign, Sign::Errno(_) | Sign::Symbol(_)))
            .last();
        if let Some(found) = phrase {
            let phrase = &line[found.start..found.end];
            // `make 2>&1 | grep 'Permission denied'` looks for the phrase; all else prints it.
            let prints = |segment: &Segment| {
                segment.words.iter().any(|word| word.contains(phrase))
                    && !matches!(
                        segment.program(),
                        Some("grep" | "egrep" | "fgrep" | "rg" | "sed" | "awk")
                    )
            };
            // A path that the command doesn't hold was met and not printed: `git commit -m '… denied'`.
            let met = match &reading.subject {
                Subject::Paths(paths) => paths
                    .first()
                    .is_some_and(|path| !self.command.mentions(path)),
                Subject::Socket(_)
                | Subject::Name(_)
                | Subject::Address { .. }
                | Subject::Call(_)
                | Subject::Process(_)
                | Subject::Privilege(_)
                | Subject::Limit => false,
            };
            if !met && self.command.segments().iter().any(prints) {
                return true;
            }
        }
        if !self.command.only_shows() {
            return false;
        }
        match reading.program.as_deref() {
            Some(program) => {
                !self.command.starts(program)
                    && !matches!(program, "bash" | "sh" | "dash" | "zsh" | "ksh")
            }
            None => {
                !(self.command.starts("git")
                    && (line.starts_with("fatal: ") || line.starts_with("error: ")))
            }
        }
    }

    /// Programs complain on standard error. On standard output another program's complaint is data,
    /// unless the command leads one into the other.
    fn belongs_on_output(&self, reading: &Reading) -> bool {
        let merged = [">&1", "&>", "|&", "STDOUT", "capture"]
            .iter()
            .any(|sign| self.command.mentions(sign));
        let own = reading
            .program
            .as_deref()
            .is_none_or(|program| self.command.starts(program));
        merged || own
    }

    fn fact(&self, reading: &Reading) -> Option<Fact> {
        match &reading.subject {
            // What a program calls a warning it got over.
            Subject::Paths(_) | Subject::Call(_) if reading.warned => None,
            Subject::Paths(paths) => self.file(reading, paths),
            Subject::Socket(path) => self.socket(reading, path),
            Subject::Name(host) => self.name(reading, host.as_deref()),
            Subject::Address { host, port } => self.address(reading, host.as_deref(), *port),
            Subject::Call(call) => self.call(reading, call),
            Subject::Process(pid) => self.process(reading, *pid),
            Subject::Privilege(program) => {
                let path = ["/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin"]
                    .iter()
                    .map(|folder| Path::new(folder).join(program))
                    .find(|path| self.disk().kind(path) == Kind::File);
                let path = path.unwrap_or_else(|| PathBuf::from(program));
                Some(self.told(reading, Class::Privilege, "setuid", Some(path)))
            }
            Subject::Limit => self.limit(reading),
        }
    }

    /// A fact with what all facts of the text share.
    fn told(
        &self,
        reading: &Reading,
        class: Class,
        operation: &str,
        path: Option<PathBuf>,
    ) -> Fact {
        Fact {
            class,
            operation: operation.to_owned(),
            path,
            address: None,
            errno: reading.errno.unwrap_or("EPERM").to_owned(),
            allowed_under: Some(Mode::DangerFullAccess),
            evidence: Evidence::Errno,
            confidence: Confidence::Likely,
            line: Some(reading.line.clone()),
        }
    }

    // ---- files ----

    fn file(&self, reading: &Reading, paths: &[String]) -> Option<Fact> {
        if reading.errno == Some("EXDEV") {
            return self.crossing(reading, paths);
        }
        let explicit = self.command.base_folders();
        for path in paths {
            let bases = explicit
                .iter()
                .map(|folder| from_folder(self.inputs.cwd, folder))
                .chain([self.inputs.cwd.to_owned()]);
            for base in bases {
                if let Some(fact) =
                    self.one_file(reading, &self.absolute(&base, path), path.ends_with('/'))
                {
                    let confidence = if reading.errno.is_some() {
                        Confidence::Proven
                    } else {
                        Confidence::Likely
                    };
                    return Some(Fact { confidence, ..fact });
                }
                if path.starts_with('/') || path.starts_with('~') {
                    break;
                }
            }
        }
        // A name below a folder that the command names: `rmtree('/x')` tells only `f`.
        let bare = |path: &&String| !path.starts_with(['/', '~', '.']);
        let missing =
            |path: &String| self.disk().kind(&self.inputs.cwd.join(path)) == Kind::Missing;
        let folders = self.command.written_paths(None);
        for path in paths.iter().filter(bare) {
            for folder in folders
                .iter()
                .map(|folder| self.absolute(self.inputs.cwd, folder))
            {
                let below = folder.join(path);
                let there = !matches!(self.disk().kind(&below), Kind::Missing | Kind::Unknown);
                let new = missing(path) && self.disk().kind(&folder) == Kind::Folder;
                if (there || new)
                    && let Some(fact) = self.one_file(reading, &below, false)
                {
                    return Some(fact);
                }
            }
        }
        if paths.is_empty() {
            return self
                .named_by_command(reading)
                .or_else(|| self.unnamed_file(reading));
        }
        // A bare word that is no file was no path: `cannot open output: …`.
        let no_paths = paths
            .iter()
            .all(|path| bare(&path) && !path.contains(['/', ' ', '(']) && missing(path));
        let names_itself = paths.iter().any(|path| self.command.has_word(path));
        if no_paths && !names_itself {
            self.named_by_command(reading)
        } else {
            None
        }
    }

    /// A failed call that doesn't tell its path: one that the command names, if it fits.
    fn named_by_command(&self, reading: &Reading) -> Option<Fact> {
        if matches!(reading.operation, Some("read" | "execute"))
            || !matches!(reading.errno, None | Some("EROFS" | "EACCES"))
        {
            return None;
        }
        let creates = reading.operation == Some("create");
        let fits = |path: &String| {
            let path = self.absolute(self.inputs.cwd, path);
            let kind = self.disk().kind(&path);
            if kind == Kind::Special {
                return None;
            }
            self.one_file(reading, &path, creates && kind == Kind::Folder)
        };
        let absolute = self.command.written_paths(interpreter(&reading.line));
        let relative = self.command.relative_names();
        let made = |path: &&String| {
            !creates || self.disk().kind(&self.inputs.cwd.join(path.as_str())) != Kind::File
        };
        absolute
            .iter()
            .rev()
            .find_map(fits)
            .or_else(|| relative.iter().rev().filter(made).find_map(fits))
    }

    /// A failed call without any path.
    fn unnamed_file(&self, reading: &Reading) -> Option<Fact> {
        // Read-only mounts are what says EROFS here, whatever the path was.
        if reading.errno != Some("EROFS") || self.inputs.dialect != Dialect::Mounts {
            return None;
        }
        let cure = match self.inputs.wider {
            Some(wider) => wider.mode,
            None if self.policy().mode == Mode::ReadOnly => Mode::WorkspaceWrite,
            None => Mode::DangerFullAccess,
        };
        let operation = reading.operation.unwrap_or("write");
        Some(Fact {
            allowed_under: Some(cure),
            ..self.told(reading, Class::FileWrite, operation, None)
        })
    }

    fn absolute(&self, base: &Path, path: &str) -> PathBuf {
        let home = || {
            self.inputs
                .variables
                .iter()
                .find(|(name, _)| name == "HOME")
                .map(|(_, home)| home.as_str())
        };
        if let Some(rest) = path.strip_prefix("~/")
            && let Some(home) = home()
        {
            return Path::new(home).join(rest);
        }
        from_folder(base, path)
    }

    /// The path with its links resolved as the operation does.
    fn resolve(&self, path: &Path, wish: Wish) -> Option<PathBuf> {
        match (wish, path.parent(), path.file_name()) {
            // The name itself is changed, not what it points at.
            (Wish::Name, Some(folder), Some(name)) => Some(self.disk().resolve(folder)?.join(name)),
            _ => self.disk().resolve(path),
        }
    }

    fn one_file(&self, reading: &Reading, path: &Path, into_folder: bool) -> Option<Fact> {
        let operation = reading.operation;
        let wish = wish_of(operation);
        let shown = self.resolve(path, wish)?;
        let target = if into_folder {
            shown.join(".new")
        } else {
            shown.clone()
        };
        let access = self.policy().access(&target);
        let hidden = !access.read;
        // An unknown operation on what is hidden was most likely a look at it.
        let wish = if hidden && operation.is_none() {
            Wish::Read
        } else {
            wish
        };
        if operation == Some("open") && self.disk().kind(&target) != Kind::File {
            return None;
        }
        let forbidden = match wish {
            Wish::Read | Wish::Execute => hidden,
            Wish::Name => !access.write || self.holds_protected(&target),
            Wish::Write | Wish::Metadata => !access.write,
        };
        if operation == Some("chown") && !self.keeps_the_owner() {
            return None;
        }
        if reading.errno == Some("ENOENT")
            && (operation != Some("create") || !reading.line.contains("mkdir"))
        {
            return None;
        }
        if !forbidden || !self.errno_fits(reading.errno, &access, &target, wish) {
            return None;
        }
        let (target, shown) = if self.allowed_by_permissions(&target, wish, operation) {
            (target, shown)
        } else {
            // Folders on the way are made first, and the whole path is told.
            let first = self
                .first_missing(&target)
                .filter(|_| operation == Some("create"))?;
            if self.policy().access(&first).write
                || self.disk().permits(&first, Wish::Name) != Permission::Allowed
            {
                return None;
            }
            (first.clone(), first)
        };
        let class = match wish {
            Wish::Read => Class::FileRead,
            Wish::Execute => Class::Exec,
            Wish::Write | Wish::Name | Wish::Metadata => Class::FileWrite,
        };
        let word = operation
            .filter(|operation| *operation != "open")
            .unwrap_or(match wish {
                Wish::Read => "read",
                Wish::Execute => "execute",
                Wish::Write | Wish::Name | Wish::Metadata => "write",
            });
        let errno = reading.errno.unwrap_or(match self.inputs.dialect {
            Dialect::Mounts if !hidden => "EROFS",
            Dialect::Mounts | Dialect::Landlock => "EACCES",
        });
        let allowed_under = Some(self.cure(&target, wish));
        Some(Fact {
            errno: errno.to_owned(),
            allowed_under,
            ..self.told(reading, class, word, Some(shown))
        })
    }

    /// Whether each `chown` of the command names the user who runs it, or no user: all else needs a
    /// privilege that only root has.
    fn keeps_the_owner(&self) -> bool {
        let variable = |name: &str| {
            self.inputs
                .variables
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.as_str())
        };
        let Some(user) = variable("USER").or_else(|| variable("LOGNAME")) else {
            return true;
        };
        let named = |segment: &Segment| {
            segment
                .command()
                .iter()
                .skip(1)
                .find(|word| !word.starts_with('-'))
                .map(|word| word.split([':', '.']).next().unwrap_or_default().to_owned())
        };
        user == "root"
            || self
                .command
                .segments()
                .iter()
                .filter(|segment| segment.program() == Some("chown"))
                .filter_map(named)
                .all(|owner| owner.is_empty() || owner == user || owner.starts_with('$'))
    }

    /// Whether the confinement gives this errno for such a refusal.
    fn errno_fits(&self, errno: Option<&str>, access: &Access, path: &Path, wish: Wish) -> bool {
        let hidden = !access.read;
        match (self.inputs.dialect, errno) {
            (_, None) => true,
            (Dialect::Mounts, Some("EROFS")) => true,
            (Dialect::Mounts, Some("EACCES" | "EPERM")) => {
                hidden || self.disk().kind(path) == Kind::Special
            }
            (Dialect::Mounts, Some("EBUSY")) => {
                hidden || matches!(access.rule, Rule::Protected(_)) || self.holds_protected(path)
            }
            (Dialect::Landlock, Some("EACCES")) => true,
            (Dialect::Landlock, Some("EPERM")) => wish == Wish::Metadata,
            // Node says ENOENT for any failure of a recursive `mkdir`; beside its parent it is none.
            (_, Some("ENOENT")) => {
                self.disk().kind(path) == Kind::Missing
                    && path
                        .parent()
                        .is_some_and(|folder| self.disk().kind(folder) == Kind::Folder)
            }
            _ => false,
        }
    }

    /// Whether a protected or hidden path lies below, so that the name can't be taken away.
    fn holds_protected(&self, path: &Path) -> bool {
        let policy = self.policy();
        policy
            .protected
            .iter()
            .chain(&policy.hidden)
            .any(|place| place.path != path && place.path.starts_with(path))
    }

    fn allowed_by_permissions(&self, path: &Path, wish: Wish, operation: Option<&str>) -> bool {
        let permits = |wish| self.disk().permits(path, wish) == Permission::Allowed;
        match operation {
            // A new name, or new content for an old one.
            Some("create" | "link") => match self.disk().kind(path) {
                Kind::Missing | Kind::Unknown => permits(Wish::Name),
                Kind::File | Kind::Folder | Kind::Special => permits(Wish::Write),
            },
            _ => permits(wish),
        }
    }

    /// The topmost part of the path that isn't there.
    fn first_missing(&self, path: &Path) -> Option<PathBuf> {
        path.ancestors()
            .take_while(|part| self.disk().kind(part) == Kind::Missing)
            .last()
            .map(Path::to_owned)
    }

    /// The narrowest mode that allows it.
    fn cure(&self, path: &Path, wish: Wish) -> Mode {
        let reads = matches!(wish, Wish::Read | Wish::Execute);
        if let Some(wider) = self.inputs.wider {
            let access = wider.access(path);
            let allowed = if reads { access.read } else { access.write };
            return if allowed {
                wider.mode
            } else {
                Mode::DangerFullAccess
            };
        }
        let policy = self.policy();
        let kept = policy
            .protected
            .iter()
            .chain(&policy.protected_absent)
            .chain(&policy.hidden)
            .any(|place| path.starts_with(&place.path));
        if !reads && policy.mode == Mode::ReadOnly && path.starts_with(&policy.workspace) && !kept {
            Mode::WorkspaceWrite
        } else {
            Mode::DangerFullAccess
        }
    }

    /// EXDEV between what may be written and what may not, on one and the same file system.
    fn crossing(&self, reading: &Reading, paths: &[String]) -> Option<Fact> {
        let resolved: Vec<PathBuf> = paths
            .iter()
            .filter_map(|path| self.resolve(&self.absolute(self.inputs.cwd, path), Wish::Name))
            .collect();
        let outside = resolved
            .iter()
            .find(|path| !self.policy().access(path).write)?;
        let inside = resolved
            .iter()
            .find(|path| self.policy().access(path).write)?;
        let device = self.disk().device(outside)?;
        if self.disk().device(inside)? != device {
            return None;
        }
        let operation = if reading.line.contains("link '") {
            "link"
        } else {
            reading.operation.unwrap_or("rename")
        };
        let wish = if operation == "link" {
            Wish::Write
        } else {
            Wish::Name
        };
        if self.disk().permits(outside, wish) != Permission::Allowed {
            return None;
        }
        let allowed_under = Some(self.cure(outside, wish));
        Some(Fact {
            allowed_under,
            confidence: Confidence::Proven,
            ..self.told(reading, Class::FileWrite, operation, Some(outside.clone()))
        })
    }

    // ---- network ----

    fn network_is_off(&self) -> bool {
        self.policy().network == Network::None
    }

    fn network_fact(&self, reading: &Reading, operation: &str, address: Option<String>) -> Fact {
        Fact {
            address,
            allowed_under: Some(self.network_cure()),
            ..self.told(reading, Class::Network, operation, None)
        }
    }

    fn network_cure(&self) -> Mode {
        match self.inputs.wider {
            Some(wider) if wider.network == Network::Host => wider.mode,
            _ => Mode::DangerFullAccess,
        }
    }

    fn name(&self, reading: &Reading, host: Option<&str>) -> Option<Fact> {
        let local = |host: &str| host == "localhost" || host.parse::<std::net::IpAddr>().is_ok();
        let offline =
            reading.line.contains("(from versions: none)") && self.command.mentions("--no-index");
        if !self.network_is_off() || host.is_some_and(local) || offline {
            return None;
        }
        let host = host
            .map(str::to_owned)
            .or_else(|| self.command.hosts().into_iter().next());
        Some(self.network_fact(reading, "resolve", host))
    }

    fn address(&self, reading: &Reading, host: Option<&str>, port: Option<u16>) -> Option<Fact> {
        if !self.network_is_off() {
            return None;
        }
        let errno = reading.errno;
        let by_landlock =
            self.inputs.dialect == Dialect::Landlock && matches!(errno, Some("EACCES" | "EPERM"));
        let operation = reading.operation.unwrap_or("connect");
        // What the line doesn't tell is taken from the command.
        let named: Vec<(String, Option<u16>)> = match host {
            Some(host) => vec![(host.to_owned(), port)],
            None => self.command.addresses(),
        };
        let typed = |host: &str, port: Option<u16>| match port {
            Some(port) if host.contains(':') => format!("[{host}]:{port}"),
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        if operation == "bind" {
            let port = port
                .or(named.first().and_then(|(_, port)| *port))
                .unwrap_or(0);
            let privileged =
                (1..1024).contains(&port) || (port == 0 && self.command.has_low_port());
            let address = named.first().map(|(host, port)| typed(host, *port));
            return (by_landlock && !privileged)
                .then(|| self.network_fact(reading, "bind", address));
        }
        // A raw socket needs a privilege anyway.
        if operation == "socket" && (!by_landlock || self.command.mentions("SOCK_RAW")) {
            return None;
        }
        let unreachable = matches!(errno, Some("ENETUNREACH" | "EHOSTUNREACH" | "ENETDOWN"));
        let own_words = errno.is_none();
        for (host, port) in &named {
            let loopback = host == "localhost"
                || host
                    .parse::<std::net::IpAddr>()
                    .is_ok_and(|ip| ip.to_canonical().is_loopback() || ip.is_unspecified());
            let denied = if loopback {
                (own_words || by_landlock || matches!(errno, Some("ECONNREFUSED")))
                    && port.is_some_and(|port| self.listens(host, port))
            } else {
                unreachable || own_words || by_landlock
            };
            if denied {
                return Some(self.network_fact(reading, "connect", Some(typed(host, *port))));
            }
        }
        // No route at all is what the missing network says, whatever the address was.
        let alone = named.is_empty() && (unreachable || (by_landlock && operation == "socket"));
        alone.then(|| self.network_fact(reading, "connect", None))
    }

    fn listens(&self, host: &str, port: u16) -> bool {
        let ip = match host {
            "localhost" => std::net::IpAddr::from([127, 0, 0, 1]),
            _ => match host.parse::<std::net::IpAddr>() {
                Ok(ip) => ip.to_canonical(),
                Err(_) => return false,
            },
        };
        self.disk().listens(&Target::Inet {
            address: (ip, port).into(),
            datagram: false,
        })
    }

    fn socket(&self, reading: &Reading, path: &str) -> Option<Fact> {
        let path = self.absolute(self.inputs.cwd, path);
        let resolved = self.disk().resolve(&path)?;
        let listens = |path: &Path| {
            self.disk().listens(&Target::SocketPath(
                path.as_os_str().as_encoded_bytes().to_vec(),
            ))
        };
        let heard = listens(&resolved) || listens(&path);
        let usable = self.disk().permits(&resolved, Wish::Write) == Permission::Allowed;
        // Sockets by path are hidden, so a program is told that there is none.
        let errno_fits = matches!(
            reading.errno,
            None | Some("ENOENT" | "EACCES" | "EPERM" | "ECONNREFUSED")
        );
        (heard && usable && errno_fits).then(|| Fact {
            errno: reading.errno.unwrap_or("ENOENT").to_owned(),
            ..self.told(reading, Class::Network, "connect", Some(resolved))
        })
    }

    // ---- the rest ----

    fn call(&self, reading: &Reading, call: &str) -> Option<Fact> {
        let refused = self.policy().refused_calls.iter().any(|group| {
            group
                .calls
                .iter()
                .any(|name| name == call || (call == "unshare" && name == "clone"))
        });
        // `unshare -m` needs a privilege anyway; a user namespace doesn't.
        let wants_privilege = reading.program.as_deref() == Some("unshare")
            && !self.command.segments().iter().any(|segment| {
                segment.words.iter().any(|word| {
                    word.starts_with("--map")
                        || word == "--user"
                        || (word.starts_with('-')
                            && !word.starts_with("--")
                            && word.contains(['r', 'U', 'c']))
                })
            });
        (refused && !wants_privilege).then(|| self.told(reading, Class::Syscall, call, None))
    }

    fn process(&self, reading: &Reading, pid: i32) -> Option<Fact> {
        (pid > 1 && self.disk().process(pid) == Permission::Allowed).then(|| Fact {
            address: Some(format!("pid {pid}")),
            ..self.told(
                reading,
                Class::Process,
                reading.operation.unwrap_or("signal"),
                None,
            )
        })
    }

    fn limit(&self, reading: &Reading) -> Option<Fact> {
        let limits = &self.policy().limits;
        let (set, operation) = match reading.errno {
            Some("EAGAIN") => (limits.processes.is_some(), "fork"),
            Some("EMFILE") => (limits.open_files.is_some(), "open"),
            Some("EFBIG") => (limits.file_size.is_some(), "write"),
            _ => (false, ""),
        };
        let own = self.command.starts("ulimit") || self.command.starts("prlimit");
        (set && !own).then(|| self.told(reading, Class::Limit, operation, None))
    }

    fn events(&self, readings: &[Reading]) -> Vec<Fact> {
        let network_told = readings.iter().find(|reading| {
            matches!(
                reading.subject,
                Subject::Name(_) | Subject::Address { .. } | Subject::Socket(_)
            )
        });
        self.inputs
            .events
            .iter()
            .filter_map(|event| self.event(event, network_told))
            .collect()
    }

    fn event(&self, event: &Event, told: Option<&Reading>) -> Option<Fact> {
        let failed = !self.inputs.ended.success();
        let errno = nix::errno::Errno::from_raw(event.errno);
        let fact = |path: Option<PathBuf>, address: Option<String>, errno: String| Fact {
            class: Class::Network,
            operation: "connect".to_owned(),
            path,
            address,
            errno,
            allowed_under: Some(self.network_cure()),
            evidence: Evidence::Kernel,
            confidence: if told.is_some() {
                Confidence::Proven
            } else {
                Confidence::Likely
            },
            line: told.map(|reading| reading.line.clone()),
        };
        match &event.target {
            Target::Inet { address, .. } => {
                let loopback =
                    address.ip().to_canonical().is_loopback() || address.ip().is_unspecified();
                let open = matches!(errno, nix::errno::Errno::EINPROGRESS) || event.errno == 0;
                let (denied, name) = if loopback {
                    let refused = open || event.errno == libc::ECONNREFUSED;
                    (
                        refused && self.disk().listens(&event.target),
                        "ECONNREFUSED".to_owned(),
                    )
                } else {
                    (
                        open || matches!(
                            event.errno,
                            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EPERM
                        ),
                        if open {
                            "ENETUNREACH".to_owned()
                        } else {
                            errno_name(errno)
                        },
                    )
                };
                // On success an address that nobody speaks of was a try with another way out; but a lost
                // datagram tells nobody.
                let lost = loopback && open;
                (self.network_is_off() && denied && (failed || told.is_some() || lost))
                    .then(|| fact(None, Some(address.to_string()), name))
            }
            Target::SocketPath(bytes) => {
                use std::os::unix::ffi::OsStrExt;
                let path = PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
                let refused = matches!(event.errno, libc::EACCES | libc::EPERM);
                // Sockets below `/run` are hidden, and the C library itself looks for some of them.
                let hidden = event.errno == libc::ENOENT
                    && (failed || told.is_some())
                    && !is_name_service(&path)
                    && self.disk().listens(&event.target);
                (refused || hidden).then(|| Fact {
                    allowed_under: Some(Mode::DangerFullAccess),
                    confidence: Confidence::Proven,
                    ..fact(Some(path), None, errno_name(errno))
                })
            }
            Target::SocketName(bytes) => {
                let name = format!("@{}", String::from_utf8_lossy(bytes));
                let refused = matches!(event.errno, libc::EACCES | libc::EPERM);
                // A network namespace of one's own has its own names.
                let elsewhere =
                    event.errno == libc::ECONNREFUSED && self.disk().listens(&event.target);
                (refused || elsewhere).then(|| Fact {
                    allowed_under: Some(Mode::DangerFullAccess),
                    confidence: Confidence::Proven,
                    ..fact(None, Some(name), errno_name(errno))
                })
            }
        }
    }

    /// Whether the command failed in its last part, behind a `;`, and all refusals were met by name
    /// before it: `touch ~/stamp; gcc broken.c`.
    fn failed_by_itself(&self, told: &[(Fact, &Reading)]) -> bool {
        let deciding = self.command.deciding();
        let earlier = &self.command.segments()[..self.command.segments().len() - deciding.len()];
        let own_status = deciding
            .iter()
            .all(|segment| !matches!(segment.program(), None | Some("exit" | "return" | "wait")));
        if told.is_empty()
            || earlier.is_empty()
            || !own_status
            || self.inputs.ended.success()
            || self.command.stops_at_failure()
        {
            return false;
        }
        let names = |segments: &[Segment], piece: &str| {
            segments.iter().any(|segment| {
                segment
                    .words
                    .iter()
                    .chain(&segment.outputs)
                    .any(|word| word.contains(piece))
            })
        };
        told.iter().all(|(fact, reading)| {
            let piece = match (&fact.path, &fact.address) {
                (Some(path), _) => path.to_string_lossy().into_owned(),
                (None, Some(address)) => address.clone(),
                (None, None) => return false,
            };
            let program = reading.program.as_deref().map(base_name);
            let before =
                program.is_some_and(|program| earlier.iter().any(|s| s.program() == Some(program)));
            let after = program
                .is_some_and(|program| deciding.iter().any(|s| s.program() == Some(program)));
            // `cp x /there/` names the folder of what it couldn't create.
            let folder = fact
                .path
                .as_deref()
                .and_then(Path::parent)
                .filter(|folder| folder.components().count() > 2);
            let named = |segments: &[Segment]| {
                names(segments, &piece)
                    || folder.is_some_and(|folder| names(segments, &folder.to_string_lossy()))
            };
            before && !after && named(earlier) && !named(deciding)
        })
    }
}

/// Sockets that the C library tries on its way to users, groups and hosts, with another way behind.
fn is_name_service(path: &Path) -> bool {
    ["nscd", "userdb", "nslcd", "sssd", "lib/sss"]
        .iter()
        .any(|service| path.to_string_lossy().contains(service))
}

/// The interpreter whose message the line is, by its form.
fn interpreter(line: &str) -> Option<&'static str> {
    if line.contains(" at ") && line.contains(" line ") && line.ends_with('.') {
        Some("perl")
    } else if line.contains("[Errno ") {
        Some("python")
    } else {
        None
    }
}

fn wish_of(operation: Option<&str>) -> Wish {
    match operation {
        Some("read") => Wish::Read,
        Some("execute") => Wish::Execute,
        Some("remove" | "rename" | "link") => Wish::Name,
        Some("chmod" | "chown" | "set times" | "set attribute") => Wish::Metadata,
        _ => Wish::Write,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::policy::{Environment, Limits, Origin, Place, RefusedCalls, Require};

    /// `/w` is the workspace, `/o` and `/h` lie outside and belong to the user, all else is root's.
    struct FakeDisk;

    const FOLDERS: &[&str] = &[
        "/", "/w", "/w/.git", "/w/src", "/o", "/o/dir", "/h", "/h/.ssh", "/etc", "/tmp",
    ];
    const FILES: &[&str] = &[
        "/w/f",
        "/w/.git/config",
        "/w/locked",
        "/o/f",
        "/o/locked",
        "/o/dir/f",
        "/h/.ssh/id",
        "/etc/hosts",
        "/etc/shadow",
    ];

    impl Disk for FakeDisk {
        fn resolve(&self, path: &Path) -> Option<PathBuf> {
            // `/w/link` leads out of the workspace.
            match path.strip_prefix("/w/link") {
                Ok(rest) if rest.as_os_str().is_empty() => Some("/o".into()),
                Ok(rest) => Some(Path::new("/o").join(rest)),
                Err(_) => Some(path.to_owned()),
            }
        }
        fn permits(&self, path: &Path, wish: Wish) -> Permission {
            let own = ["/w", "/o", "/h", "/tmp"]
                .iter()
                .any(|root| path.starts_with(root));
            let locked = path.ends_with("locked");
            let parent = path
                .parent()
                .is_some_and(|folder| FOLDERS.iter().any(|known| folder == Path::new(known)));
            let there = self.kind(path) != Kind::Missing;
            let allowed = match wish {
                Wish::Read => there && !locked && path != Path::new("/etc/shadow"),
                Wish::Write => own && parent && !locked && self.kind(path) != Kind::Folder,
                Wish::Name => own && parent,
                Wish::Metadata => own && there,
                Wish::Execute => false,
            };
            if allowed {
                Permission::Allowed
            } else {
                Permission::Refused
            }
        }
        fn listens(&self, target: &Target) -> bool {
            match target {
                Target::Inet { address, .. } => address.port() == 8080,
                Target::SocketPath(path) => path == b"/run/docker.sock",
                Target::SocketName(_) => false,
            }
        }
        fn kind(&self, path: &Path) -> Kind {
            let is = |list: &[&str]| list.iter().any(|known| path == Path::new(known));
            if is(FOLDERS) {
                Kind::Folder
            } else if is(FILES) {
                Kind::File
            } else if is(&["/o/fifo", "/dev/null", "/run/docker.sock"]) {
                Kind::Special
            } else {
                Kind::Missing
            }
        }
        fn device(&self, path: &Path) -> Option<u64> {
            Some(u64::from(path.starts_with("/h")))
        }
        fn process(&self, pid: i32) -> Permission {
            if pid == 4711 {
                Permission::Allowed
            } else {
                Permission::Refused
            }
        }
    }

    fn policy(mode: Mode) -> Policy {
        let place = |path: &str| Place {
            path: path.into(),
            origin: Origin::Builtin,
        };
        Policy {
            pinned: Vec::new(),
            protected_links: Vec::new(),
            home: None,
            mode,
            workspace: "/w".into(),
            writable: if mode == Mode::ReadOnly {
                vec![]
            } else {
                vec![place("/w")]
            },
            protected: vec![place("/w/.git/config")],
            protected_absent: vec![],
            hidden: vec![place("/h/.ssh")],
            visible: vec![],
            scratch: vec!["/tmp".into()],
            network: Network::None,
            refused_calls: vec![RefusedCalls {
                calls: vec!["unshare".into(), "ptrace".into()],
                errno: "EPERM".into(),
                reason: String::new(),
            }],
            limits: Limits {
                processes: Some(100),
                ..Limits::default()
            },
            environment: Environment::default(),
            require: Require::Partial,
            gaps: Vec::new(),
        }
    }

    struct Run<'a> {
        command: &'a str,
        stderr: &'a str,
        stdout: &'a str,
        exit: i32,
        mode: Mode,
        dialect: Dialect,
        events: Vec<Event>,
    }

    const MOUNTS: Run<'static> = Run {
        command: "program",
        stderr: "",
        stdout: "",
        exit: 1,
        mode: Mode::WorkspaceWrite,
        dialect: Dialect::Mounts,
        events: Vec::new(),
    };

    impl Run<'_> {
        fn facts(&self) -> Vec<Fact> {
            let variables = [
                ("HOME".to_owned(), "/h".to_owned()),
                ("USER".to_owned(), "me".to_owned()),
            ];
            let policy = policy(self.mode);
            facts(&Inputs {
                ended: Ended::Exited(self.exit),
                command: self.command,
                cwd: Path::new("/w"),
                variables: &variables,
                stdout: self.stdout.as_bytes(),
                stderr: self.stderr.as_bytes(),
                events: &self.events,
                policy: &policy,
                wider: None,
                dialect: self.dialect,
                disk: &FakeDisk,
            })
        }

        /// `class operation object errno cure` of each fact.
        fn told(&self) -> Vec<String> {
            let short = |fact: &Fact| {
                let object = fact
                    .path
                    .as_ref()
                    .map(|path| path.display().to_string())
                    .or(fact.address.clone())
                    .unwrap_or("-".into());
                let cure = fact.allowed_under.map_or("never", Mode::as_str);
                format!(
                    "{:?} {} {object} {} {cure}",
                    fact.class, fact.operation, fact.errno
                )
            };
            self.facts().iter().map(short).collect()
        }
    }

    /// Lines of standard error with their one fact, or none.
    fn each(base: &Run<'_>, rows: &[(&str, &str)]) {
        let wrong: Vec<_> = rows
            .iter()
            .map(|(stderr, expected)| {
                (
                    *stderr,
                    Run {
                        stderr,
                        events: Vec::new(),
                        ..*base
                    }
                    .told(),
                    *expected,
                )
            })
            .filter(|(_, told, expected)| {
                if expected.is_empty() {
                    !told.is_empty()
                } else {
                    *told != [expected.to_string()]
                }
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_whole_fact_of_the_text() {
        assert_eq!(
            Run {
                stderr: "touch: cannot touch '/w/link/new': Read-only file system\n",
                ..MOUNTS
            }
            .facts(),
            [Fact {
                class: Class::FileWrite,
                operation: "write".into(),
                path: Some("/o/new".into()),
                address: None,
                errno: "EROFS".into(),
                allowed_under: Some(Mode::DangerFullAccess),
                evidence: Evidence::Errno,
                confidence: Confidence::Proven,
                line: Some("touch: cannot touch '/w/link/new': Read-only file system".into()),
            }]
        );
    }

    #[test]
    fn under_mounts_a_write_outside_is_a_denial_and_its_near_misses_are_not() {
        each(
            &MOUNTS,
            &[
                (
                    "touch: cannot touch '/o/new': Read-only file system",
                    "FileWrite write /o/new EROFS danger-full-access",
                ),
                (
                    "touch: cannot touch '/o/new': No such file or directory",
                    "",
                ),
                // The errno of plain permissions.
                ("touch: cannot touch '/o/new': Permission denied", ""),
                // The user couldn't anyway.
                ("bash: line 1: /etc/hosts: Read-only file system", ""),
                ("rm: cannot remove '/etc/hosts': Read-only file system", ""),
                ("touch: cannot touch '/o/locked': Read-only file system", ""),
                (
                    "mkdir: cannot create directory '/o/no/new': Read-only file system",
                    "FileWrite create /o/no EROFS danger-full-access",
                ),
                (
                    "mkdir: cannot create directory '/etc/no/new': Read-only file system",
                    "",
                ),
                // The policy allows it: a read-only mount or a mode of the user's own.
                ("touch: cannot touch 'src/x': Read-only file system", ""),
                ("cat: locked: Permission denied", ""),
                ("touch: cannot touch '/tmp/x': Read-only file system", ""),
                // FIFOs are Landlock's matter, whose errno is another.
                (
                    "bash: line 1: /o/fifo: Permission denied",
                    "FileWrite write /o/fifo EACCES danger-full-access",
                ),
                ("bash: line 1: /dev/null: Permission denied", ""),
                (
                    "rm: cannot remove '/o/f': Read-only file system",
                    "FileWrite remove /o/f EROFS danger-full-access",
                ),
                ("rm: cannot remove '/o/f': Directory not empty", ""),
                (
                    "chmod: changing permissions of '/o/f': Read-only file system",
                    "FileWrite chmod /o/f EROFS danger-full-access",
                ),
                (
                    "chmod: changing permissions of '/o/f': Operation not permitted",
                    "",
                ),
                (
                    "OSError: [Errno 30] Read-only file system: '/o/p'",
                    "FileWrite write /o/p EROFS danger-full-access",
                ),
                ("PermissionError: [Errno 13] Permission denied: '/o/p'", ""),
                (
                    "PermissionError: [Errno 13] Permission denied: '/mock/path'",
                    "",
                ),
                (
                    "error: unable to write file /o/f",
                    "FileWrite write /o/f EROFS danger-full-access",
                ),
                ("error: unable to write file /etc/hosts", ""),
                ("warning: cache /o/c unusable: Read-only file system", ""),
            ],
        );
    }

    #[test]
    fn protected_and_hidden_paths_have_errnos_of_their_own() {
        each(
            &MOUNTS,
            &[
                (
                    "error: could not write config file .git/config: Device or resource busy",
                    "FileWrite write /w/.git/config EBUSY danger-full-access",
                ),
                (
                    "error: could not write config file src/config: Device or resource busy",
                    "",
                ),
                (
                    "mv: cannot move '.git' to 'g': Device or resource busy",
                    "FileWrite rename /w/.git EBUSY danger-full-access",
                ),
                ("mv: cannot move 'src' to 'g': Device or resource busy", ""),
                (
                    "cat: /h/.ssh/id: Permission denied",
                    "FileRead read /h/.ssh/id EACCES danger-full-access",
                ),
                ("cat: /etc/shadow: Permission denied", ""),
                ("cat: /h/.ssh/none: No such file or directory", ""),
            ],
        );
    }

    #[test]
    fn the_cure_is_the_narrowest_mode() {
        let read_only = Run {
            mode: Mode::ReadOnly,
            ..MOUNTS
        };
        each(
            &read_only,
            &[
                (
                    "bash: line 1: f: Read-only file system",
                    "FileWrite write /w/f EROFS workspace-write",
                ),
                (
                    "bash: line 1: /o/f: Read-only file system",
                    "FileWrite write /o/f EROFS danger-full-access",
                ),
                (
                    "bash: line 1: .git/config: Read-only file system",
                    "FileWrite write /w/.git/config EROFS danger-full-access",
                ),
            ],
        );
        let wider = policy(Mode::WorkspaceWrite);
        let told = |wider| {
            facts(&Inputs {
                ended: Ended::Exited(1),
                command: "x",
                cwd: Path::new("/w"),
                variables: &[],
                stdout: b"",
                stderr: b"bash: line 1: f: Read-only file system",
                events: &[],
                policy: &policy(Mode::ReadOnly),
                wider,
                dialect: Dialect::Mounts,
                disk: &FakeDisk,
            })[0]
                .allowed_under
        };
        assert_eq!(told(Some(&wider)), Some(Mode::WorkspaceWrite));
        assert_eq!(
            Run {
                mode: Mode::DangerFullAccess,
                stderr: "bash: /o/f: Read-only file system",
                ..MOUNTS
            }
            .told(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn under_landlock_the_errnos_change_places() {
        each(
            &Run {
                dialect: Dialect::Landlock,
                ..MOUNTS
            },
            &[
                (
                    "touch: cannot touch '/o/new': Permission denied",
                    "FileWrite write /o/new EACCES danger-full-access",
                ),
                ("touch: cannot touch '/o/new': Read-only file system", ""),
                ("touch: cannot touch '/etc/new': Permission denied", ""),
                ("bash: line 1: locked: Permission denied", ""),
                (
                    "chmod: changing permissions of '/o/f': Operation not permitted",
                    "FileWrite chmod /o/f EPERM danger-full-access",
                ),
                (
                    "chmod: changing permissions of '/etc/hosts': Operation not permitted",
                    "",
                ),
                (
                    "ssh: connect to host 192.0.2.1 port 22: Permission denied",
                    "Network connect 192.0.2.1:22 EACCES danger-full-access",
                ),
                ("git@192.0.2.1: Permission denied (publickey).", ""),
            ],
        );
    }

    #[test]
    fn exit_126_and_127_are_the_shells_own() {
        each(
            &Run {
                exit: 126,
                command: "./run.sh",
                ..MOUNTS
            },
            &[("bash: line 1: ./run.sh: Permission denied", "")],
        );
        each(
            &Run {
                exit: 127,
                command: "nope",
                ..MOUNTS
            },
            &[("bash: line 1: nope: command not found", "")],
        );
        each(
            &Run {
                exit: 126,
                command: "./run.sh",
                dialect: Dialect::Landlock,
                ..MOUNTS
            },
            &[("bash: line 1: ./run.sh: Permission denied", "")],
        );
    }

    #[test]
    fn what_the_command_quotes_is_no_denial_and_what_it_meets_is() {
        let line = "touch: cannot touch '/o/new': Read-only file system";
        let told = |command: &str| {
            Run {
                command,
                stderr: line,
                ..MOUNTS
            }
            .told()
            .len()
        };
        assert_eq!(told("touch /o/new"), 1);
        assert_eq!(told("make"), 1);
        assert_eq!(told("make 2>&1 | grep 'Read-only file system'"), 1);
        assert_eq!(told("cat build.log >&2; exit 1"), 0);
        assert_eq!(
            told("echo \"touch: cannot touch '/o/new': Read-only file system\" >&2; false"),
            0
        );
        assert_eq!(told("grep -rn 'Read-only file system' . >&2"), 0);
        assert_eq!(told("git commit -m 'fix: Read-only file system'"), 1);
        assert_eq!(
            told("python3 -c \"raise OSError(30, 'Read-only file system', '/o/new')\""),
            0
        );
        let shown = |command: &str| {
            Run {
                command,
                stdout: line,
                ..MOUNTS
            }
            .told()
            .len()
        };
        assert_eq!(shown("touch /o/new 2>&1 | tail -5"), 1);
        assert_eq!(shown("python3 show.py"), 0);
    }

    #[test]
    fn a_failure_of_its_own_behind_the_denial_is_no_denial() {
        let line = "touch: cannot touch '/o/stamp': Read-only file system";
        let told = |command: &str, exit| {
            Run {
                command,
                exit,
                stderr: line,
                ..MOUNTS
            }
            .told()
            .len()
        };
        assert_eq!(told("touch /o/stamp; gcc broken.c", 1), 0);
        assert_eq!(told("touch /o/stamp && gcc broken.c", 1), 1);
        assert_eq!(told("touch /o/stamp; cat /o/stamp", 1), 1);
        assert_eq!(told("touch /o/stamp; exit 1", 1), 1);
        assert_eq!(told("touch /o/stamp; echo done", 0), 1);
        assert_eq!(told("set -e; touch /o/stamp; gcc x.c", 1), 1);
    }

    #[test]
    fn a_link_across_the_boundary_is_a_denial_only_on_one_file_system() {
        each(
            &MOUNTS,
            &[
                (
                    "ln: failed to create hard link 'here' => '/o/f': Invalid cross-device link",
                    "FileWrite link /o/f EXDEV danger-full-access",
                ),
                (
                    "ln: failed to create hard link 'here' => '/h/f': Invalid cross-device link",
                    "",
                ),
                (
                    "ln: failed to create hard link 'here' => 'src/f': Invalid cross-device link",
                    "",
                ),
                (
                    "OSError: [Errno 18] Invalid cross-device link: '/o/f' -> 'moved'",
                    "FileWrite rename /o/f EXDEV danger-full-access",
                ),
                (
                    "OSError: [Errno 18] Invalid cross-device link: '/etc/hosts' -> 'moved'",
                    "",
                ),
            ],
        );
    }

    #[test]
    fn a_missing_network_is_a_denial_and_a_closed_port_is_not() {
        each(
            &MOUNTS,
            &[
                (
                    "curl: (6) Could not resolve host: web.test",
                    "Network resolve web.test EAI_AGAIN danger-full-access",
                ),
                ("curl: (22) The requested URL returned error: 403", ""),
                (
                    "ssh: connect to host 192.0.2.1 port 22: Network is unreachable",
                    "Network connect 192.0.2.1:22 ENETUNREACH danger-full-access",
                ),
                (
                    "ssh: connect to host 192.0.2.1 port 22: Connection refused",
                    "",
                ),
                (
                    "Error: connect ECONNREFUSED 127.0.0.1:8080",
                    "Network connect 127.0.0.1:8080 ECONNREFUSED danger-full-access",
                ),
                ("Error: connect ECONNREFUSED 127.0.0.1:8099", ""),
                ("Error: connect ECONNREFUSED ::1:8099", ""),
                (
                    "Cannot connect to the Docker daemon at unix:///run/docker.sock.",
                    "",
                ),
            ],
        );
        // The port stands only in the command.
        let python = |port| {
            Run {
                command: &format!("python3 -c \"socket.create_connection(('127.0.0.1',{port}))\""),
                stderr: "ConnectionRefusedError: [Errno 111] Connection refused",
                ..MOUNTS
            }
            .told()
            .len()
        };
        assert_eq!((python(8080), python(8099)), (1, 0));
    }

    #[test]
    fn the_rest_is_told_by_class() {
        each(
            &MOUNTS,
            &[
                (
                    "sudo: effective uid is not 0, is sudo installed setuid root?",
                    "Privilege setuid sudo EPERM danger-full-access",
                ),
                ("su: Authentication failure", ""),
                (
                    "strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted",
                    "Syscall ptrace - EPERM danger-full-access",
                ),
                ("keyctl: keyctl(1): Operation not permitted", ""),
                (
                    "bash: line 1: kill: (4711) - No such process",
                    "Process signal pid 4711 ESRCH danger-full-access",
                ),
                ("bash: line 1: kill: (4712) - No such process", ""),
                (
                    "bash: fork: retry: Resource temporarily unavailable",
                    "Limit fork - EAGAIN danger-full-access",
                ),
                ("OSError: [Errno 24] Too many open files: 'x'", ""),
            ],
        );
        let unshare = |command| {
            Run {
                command,
                stderr: "unshare: unshare failed: Operation not permitted",
                ..MOUNTS
            }
            .told()
            .len()
        };
        assert_eq!((unshare("unshare -r id"), unshare("unshare -m id")), (1, 0));
    }

    #[test]
    fn watched_calls_are_judged_by_what_listens_outside() {
        let inet = |address: &str, errno| Event {
            pid: 2,
            call: "connect".into(),
            target: Target::Inet {
                address: address.parse().unwrap(),
                datagram: false,
            },
            errno,
        };
        let told = |event: Event, exit| {
            Run {
                events: vec![event],
                exit,
                ..MOUNTS
            }
            .told()
        };
        assert_eq!(
            told(inet("127.0.0.1:8080", libc::ECONNREFUSED), 1),
            ["Network connect 127.0.0.1:8080 ECONNREFUSED danger-full-access"]
        );
        assert!(told(inet("127.0.0.1:8099", libc::ECONNREFUSED), 1).is_empty());
        assert_eq!(
            told(inet("192.0.2.1:80", 0), 1),
            ["Network connect 192.0.2.1:80 ENETUNREACH danger-full-access"]
        );
        assert!(told(inet("192.0.2.1:80", 0), 0).is_empty());
        let unix = |target, errno| Event {
            pid: 2,
            call: "connect".into(),
            target,
            errno,
        };
        let path = Path::new("/run/x y.sock").as_os_str().as_bytes().to_vec();
        assert_eq!(
            told(unix(Target::SocketPath(path.clone()), libc::EACCES), 0),
            ["Network connect /run/x y.sock EACCES danger-full-access"]
        );
        assert!(told(unix(Target::SocketPath(path), libc::ENOENT), 1).is_empty());
        assert_eq!(
            told(unix(Target::SocketName(b"bus".to_vec()), libc::EPERM), 1),
            ["Network connect @bus EPERM danger-full-access"]
        );
    }

    #[test]
    fn a_path_that_only_program_text_names_is_found_when_the_call_failed_without_one() {
        let told = |command: &str, stderr: &str| {
            Run {
                command,
                stderr,
                ..MOUNTS
            }
            .told()
        };
        let denied = ["FileWrite write /o/q EROFS danger-full-access"];
        let line = "cannot save settings (Read-only file system)";
        assert_eq!(told("python3 - <<P\nopen('/o/q','w')\nP\n", line), denied);
        assert_eq!(
            told(
                "perl -e 'open F,\">/o/q\" or die $!'",
                "Read-only file system at -e line 1."
            ),
            denied
        );
        assert!(
            told(
                "python3 - <<P\nopen('/etc/q','w')\nP\n",
                "cannot save settings (Permission denied)"
            )
            .is_empty()
        );
        assert!(
            told(
                "python3 - <<P\nopen('/o/q','w')\nP\n",
                "settings (Read-only file system)"
            )
            .is_empty()
        );
    }

    #[test]
    fn a_pathless_message_is_held_against_the_part_of_its_own_interpreter() {
        let facts = Run {
            command: "perl -e \"open(F,'>','/o/l') or die $!\"; tee /o/t",
            stderr: "Read-only file system at -e line 1.\ntee: /o/t: Read-only file system\n",
            ..MOUNTS
        };
        assert_eq!(
            facts.told(),
            [
                "FileWrite write /o/l EROFS danger-full-access",
                "FileWrite write /o/t EROFS danger-full-access"
            ]
        );
    }

    #[test]
    fn each_thing_is_told_once_and_no_more_than_the_cap() {
        let stderr: String = (0..200)
            .map(|n| format!("rm: cannot remove '/o/{n}': Read-only file system\n").repeat(2))
            .collect();
        let facts = Run {
            stderr: &stderr,
            ..MOUNTS
        }
        .facts();
        assert_eq!(facts.len(), MAX_FACTS);
        assert_eq!(facts[1].path, Some("/o/1".into()));
    }

    proptest::proptest! {
        /// Whatever a command prints and however it is written, the judge answers within its cap.
        #[test]
        fn any_command_and_any_output_are_judged_without_a_panic(
            command in "([a-z~/ ]|'|\"|`|\\$|[{}()<>|&;=]|\n|EOF|<<|é|2>|bash -c |cd /o|/dev/tcp/a/1){0,40}",
            stderr in "([a-z:/ .]|'|\"|[«»“”‘’`()@-]|\n|Read-only file system|EROFS|Permission denied|\\[Errno 13\\] |只读文件系统|could not |port 8|kill|/o/x|lookup |: ){0,40}",
            landlock in proptest::bool::ANY,
        ) {
            let dialect = if landlock { Dialect::Landlock } else { Dialect::Mounts };
            let facts = Run { command: &command, stderr: &stderr, stdout: &stderr, dialect, ..MOUNTS }.facts();
            proptest::prop_assert!(facts.len() <= MAX_FACTS);
            proptest::prop_assert!(facts.iter().all(|fact| fact.path.is_none() || !policy(Mode::WorkspaceWrite).access(fact.path.as_deref().unwrap()).write || fact.class != Class::FileWrite || fact.path.as_deref() == Some(Path::new("/w/.git"))));
        }
    }
}
