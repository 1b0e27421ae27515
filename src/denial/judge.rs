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
    let readings: Vec<Reading> = read(inputs.stderr)
        .into_iter()
        .chain(read(inputs.stdout))
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
        let same = |old: &Fact| {
            old.class == fact.class
                && old.path == fact.path
                && old.address == fact.address
                && (old.operation == fact.operation || fact.evidence != old.evidence)
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
            if self.command.segments().iter().any(prints) {
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
            Subject::Privilege(program) => Some(Fact {
                address: None,
                ..self.told(
                    reading,
                    Class::Privilege,
                    "gain privilege",
                    Some(PathBuf::from(program)),
                )
            }),
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
        for path in paths
            .iter()
            .filter(|path| !path.starts_with(['/', '~', '.']))
        {
            for folder in self.command.written_paths() {
                let below = from_folder(self.inputs.cwd, &folder).join(path);
                if self.disk().kind(&below) != Kind::Missing
                    && self.disk().kind(&below) != Kind::Unknown
                    && let Some(fact) = self.one_file(reading, &below, false)
                {
                    return Some(fact);
                }
            }
        }
        if !paths.is_empty() {
            return None;
        }
        self.unnamed_file(reading)
    }

    /// A failed call that doesn't tell its path: one that the command names, if it fits.
    fn unnamed_file(&self, reading: &Reading) -> Option<Fact> {
        if matches!(reading.operation, Some("read" | "execute"))
            || !matches!(reading.errno, None | Some("EROFS" | "EACCES"))
        {
            return None;
        }
        let creates = reading.operation == Some("create");
        let fits = |path: &String| {
            let path = self.absolute(self.inputs.cwd, path);
            match self.disk().kind(&path) {
                Kind::Special => None,
                Kind::Folder if creates => self.one_file(reading, &path, true),
                _ => self.one_file(reading, &path, false),
            }
        };
        let absolute = self.command.written_paths();
        let relative = self.command.relative_names();
        if let Some(fact) = absolute
            .iter()
            .rev()
            .find_map(fits)
            .or_else(|| relative.iter().rev().find_map(fits))
        {
            return Some(fact);
        }
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
        let forbidden = match wish {
            Wish::Read | Wish::Execute => hidden,
            Wish::Name => !access.write || self.holds_protected(&target),
            Wish::Write | Wish::Metadata => !access.write,
        };
        if operation == Some("chown") && !self.keeps_the_owner() {
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
        let word = operation.unwrap_or(match wish {
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
        let offline = ["--no-index", "--offline"].iter().any(|option| {
            self.command
                .segments()
                .iter()
                .any(|s| s.words.iter().any(|word| word == option))
        });
        if !self.network_is_off() || host.is_some_and(local) || (host.is_none() && offline) {
            return None;
        }
        Some(self.network_fact(reading, "resolve", host.map(str::to_owned)))
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
            let privileged = (1..1024).contains(&port);
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
        (refused && !wants_privilege).then(|| {
            let operation = reading.operation.unwrap_or("call");
            Fact {
                address: None,
                ..self.told(
                    reading,
                    Class::Syscall,
                    if operation == "call" { call } else { operation },
                    None,
                )
            }
        })
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
        let set = match reading.errno {
            Some("EAGAIN") => limits.processes.is_some(),
            Some("EMFILE") => limits.open_files.is_some(),
            Some("EFBIG") => limits.file_size.is_some(),
            _ => false,
        };
        let own = self.command.starts("ulimit") || self.command.starts("prlimit");
        (set && !own).then(|| self.told(reading, Class::Limit, "exceed limit", None))
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
                // On success an address that nobody speaks of was a try with another way out.
                (self.network_is_off() && denied && (failed || told.is_some()))
                    .then(|| fact(None, Some(address.to_string()), name))
            }
            Target::SocketPath(bytes) => {
                use std::os::unix::ffi::OsStrExt;
                let path = PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
                matches!(event.errno, libc::EACCES | libc::EPERM).then(|| Fact {
                    allowed_under: Some(Mode::DangerFullAccess),
                    confidence: Confidence::Proven,
                    ..fact(Some(path), None, errno_name(errno))
                })
            }
            Target::SocketName(bytes) => {
                let name = format!("@{}", String::from_utf8_lossy(bytes));
                matches!(event.errno, libc::EACCES | libc::EPERM).then(|| Fact {
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
            before && !after && names(earlier, &piece) && !names(deciding, &piece)
        })
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
