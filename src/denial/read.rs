//! Reads errnos out of what programs print: shells, coreutils, git, Python, Node, Rust, Go, Java,
//! Perl, Ruby, PHP, tar, rsync, package managers and their like.
//!
//! Rule: a reading is a claim of the text and nothing more. It names a path, an address or a call
//! that [`facts`](super::facts) can hold against policy and permissions; a phrase with none of them
//! is no reading.

use std::borrow::Cow;

use super::command::{base_name, host_and_port};
use super::words::{self, Sign};

/// Lines of one stream that are looked at; the collector keeps fewer.
const MAX_LINES: usize = 16 * 1024;
/// Readings that are kept of one stream.
const MAX_READINGS: usize = 256;
/// Candidates for the path of one reading.
const MAX_PATHS: usize = 12;
/// How far a path may stand from its errno, in lines.
const LOOK_BACK: usize = 6;
const LOOK_AHEAD: usize = 3;

/// What a line claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The errno's name; `None` when the program told the failure in its own words.
    pub errno: Option<&'static str>,
    /// The operation, when the line tells it: `write`, `create`, `remove`, `rename`, `link`, `chmod`,
    /// `read`, `execute`, `connect`, `bind`, `resolve`, …
    pub operation: Option<&'static str>,
    /// What it is about.
    pub subject: Subject,
    /// The program that the line names as its speaker.
    pub program: Option<String>,
    /// Whether the program itself calls it a warning.
    pub warned: bool,
    /// The line, as printed but for escape sequences.
    pub line: String,
}

/// What a reading is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Paths as typed, the likeliest first. One that ends in `/` is a folder in which something could
    /// not be created. Empty: a call failed and the line doesn't say on what.
    Paths(Vec<String>),
    /// A UNIX socket by path.
    Socket(String),
    /// A host name that didn't resolve, when the line tells it.
    Name(Option<String>),
    /// An internet address, as far as the line tells it.
    Address {
        /// Host name or address.
        host: Option<String>,
        /// Port.
        port: Option<u16>,
    },
    /// A system call.
    Call(String),
    /// A process, by its id.
    Process(i32),
    /// A privilege that the named program lacks.
    Privilege(String),
    /// A limit, by the errno alone.
    Limit,
}

/// What the text of one stream claims, in order.
pub fn read(text: &[u8]) -> Vec<Reading> {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<Cow<'_, str>> = text.lines().take(MAX_LINES).map(clean).collect();
    let mut readings = Vec::new();
    for at in 0..lines.len() {
        if readings.len() >= MAX_READINGS {
            break;
        }
        if let Some(reading) = read_line(&lines, at)
            && !readings.contains(&reading)
        {
            readings.push(reading);
        }
    }
    readings
}

fn read_line(lines: &[Cow<'_, str>], at: usize) -> Option<Reading> {
    let line: &str = &lines[at];
    if !words::carries(line.as_bytes()) || is_quotation(line) {
        return None;
    }
    let seen = Seen::new(lines, at);
    privilege(&seen)
        .or_else(|| call(&seen))
        .or_else(|| process(&seen))
        .or_else(|| name(&seen))
        .or_else(|| socket(&seen))
        .or_else(|| connection(&seen))
        .or_else(|| limit(&seen))
        .or_else(|| block(&seen))
        .or_else(|| file_by_errno(&seen))
        .or_else(|| file_by_wording(&seen))
}

/// One line with what all readers ask of it.
struct Seen<'a> {
    lines: &'a [Cow<'a, str>],
    at: usize,
    line: &'a str,
    lower: String,
    program: Option<&'a str>,
    errno: Option<(&'static str, usize, usize)>,
}

impl<'a> Seen<'a> {
    fn new(lines: &'a [Cow<'a, str>], at: usize) -> Seen<'a> {
        let line: &str = &lines[at];
        // The phrase of the C library says where the path stands; a symbol only in its absence.
        let mut errno = None;
        let mut by_symbol = None;
        for found in words::signs(line.as_bytes()) {
            match found.sign {
                Sign::Errno(name) => errno = Some((name, found.start, found.end)),
                Sign::Symbol(name) if by_symbol.is_none() => {
                    by_symbol = Some((name, found.start, found.end))
                }
                Sign::Symbol(_) | Sign::Wording => {}
            }
        }
        let errno = errno.or(by_symbol);
        Seen {
            lines,
            at,
            line,
            lower: line.to_ascii_lowercase(),
            program: speaker(line),
            errno,
        }
    }

    fn has(&self, piece: &str) -> bool {
        self.lower.contains(piece)
    }

    fn errno_name(&self) -> Option<&'static str> {
        self.errno.map(|(name, _, _)| name)
    }

    fn before(&self) -> &'a str {
        self.errno
            .map_or(self.line, |(_, start, _)| &self.line[..start])
    }

    fn after(&self) -> &'a str {
        self.errno.map_or("", |(_, _, end)| &self.line[end..])
    }

    /// The text behind the piece, which is looked for without regard to case.
    fn behind(&self, piece: &str) -> Option<&'a str> {
        self.lower
            .find(piece)
            .map(|start| &self.line[start + piece.len()..])
    }

    fn reading(&self, operation: Option<&'static str>, subject: Subject) -> Reading {
        Reading {
            errno: self.errno_name(),
            operation,
            subject,
            program: self.program.map(str::to_owned),
            warned: is_warning(&self.lower),
            line: self.line.trim().to_owned(),
        }
    }

    /// Whether a stack trace or the lines just above speak of sockets.
    fn socket_context(&self) -> Option<&'static str> {
        self.lines[self.at.saturating_sub(4)..self.at]
            .iter()
            .rev()
            .find_map(|line| {
                let marks: [(&str, &'static str); 6] = [
                    ("connect(", "connect"),
                    ("create_connection", "connect"),
                    ("getaddrinfo", "resolve"),
                    ("sendto(", "connect"),
                    (".bind(", "bind"),
                    ("_socket.socket", "socket"),
                ];
                marks
                    .into_iter()
                    .find(|(mark, _)| line.contains(mark))
                    .map(|(_, operation)| operation)
            })
    }
}

/// The line without escape sequences and without the marks that some tools put before each line.
fn clean(line: &str) -> Cow<'_, str> {
    let mut line = if line.contains(['\x1b', '\r', '\x07']) {
        Cow::Owned(strip_escapes(line))
    } else {
        Cow::Borrowed(line)
    };
    for mark in ["npm error ", "npm ERR! ", "[ERROR] ", "E   "] {
        if let Some(rest) = line.strip_prefix(mark) {
            line = Cow::Owned(if mark == "E   " {
                rest.trim_start().to_owned()
            } else {
                rest.to_owned()
            });
        }
    }
    if line.starts_with("Exception in thread \"")
        && let Some((_, rest)) = line.split_once("\" ")
    {
        line = Cow::Owned(rest.to_owned());
    }
    line
}

fn strip_escapes(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => {
                if chars.next_if_eq(&'[').is_some() {
                    while chars.next_if(|c| !c.is_ascii_alphabetic()).is_some() {}
                }
                chars.next();
            }
            '\r' | '\x07' => {}
            _ => text.push(c),
        }
    }
    text
}

/// Whether the line looks like one of a log, a difference or a shell's trace, shown again.
fn is_quotation(line: &str) -> bool {
    let text = line.trim_start();
    if text.starts_with("+ ")
        || text.starts_with("> ")
        || text.starts_with("< ")
        || text.starts_with("$ ")
    {
        return true;
    }
    // A clock in brackets: `[12:00:02]` or `[2026-01-01 12:00:02]`.
    text.match_indices('[').any(|(at, _)| {
        let inner = text[at + 1..].split(']').next().unwrap_or_default();
        let clock = inner
            .rsplit([' ', 'T'])
            .next()
            .unwrap_or_default()
            .as_bytes();
        clock.len() >= 8
            && clock[..8].iter().enumerate().all(|(at, byte)| match at {
                2 | 5 => *byte == b':',
                _ => byte.is_ascii_digit(),
            })
    })
}

fn is_warning(lower: &str) -> bool {
    (lower.contains("warning:") && !lower.contains("php warning"))
        || lower.starts_with("warn ")
        || lower.contains("ignoring")
}

/// The program before the first colon, if the line starts as programs' messages do.
fn speaker(line: &str) -> Option<&str> {
    let (first, rest) = line.split_once(": ")?;
    let name = base_name(first);
    let named = !name.is_empty()
        && !first.contains(char::is_whitespace)
        && name.len() <= 40
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-' | '[' | ']'));
    // `/home/me/x: Read-only file system` names a file.
    let is_path = first.contains('/')
        && !rest.contains(": ")
        && words::signs(rest.as_bytes())
            .next()
            .is_some_and(|found| found.start == 0);
    let is_level = matches!(
        name.to_ascii_lowercase().as_str(),
        "error" | "fatal" | "warning" | "e" | "w" | "err" | "panic" | "caused"
    );
    (named && !is_path && !is_exception(name) && !is_level).then_some(name)
}

/// `sudo`, `su`, `ping` and other programs that need their set-user-id bit.
fn privilege(seen: &Seen<'_>) -> Option<Reading> {
    // PAM's answer when its set-user-id helper can't read the passwords; it follows su's own prompt.
    if seen.has("su: system error") {
        return Some(Reading {
            errno: Some("EPERM"),
            ..seen.reading(Some("setuid"), Subject::Privilege("su".to_owned()))
        });
    }
    let program = seen.program?;
    let told = seen.has("no new privileges")
        || seen.has("effective uid is not 0")
        || seen.has("must be setuid")
        || seen.has("have the setuid bit set")
        || seen.has("missing cap_net_raw")
        || (matches!(
            program,
            "su" | "sudo"
                | "newgrp"
                | "sg"
                | "pkexec"
                | "doas"
                | "newuidmap"
                | "newgidmap"
                | "fusermount"
                | "fusermount3"
                | "ping"
                | "ping6"
                | "traceroute"
                | "mtr"
        ) && seen.errno_name() == Some("EPERM"));
    told.then(|| Reading {
        errno: Some("EPERM"),
        ..seen.reading(Some("setuid"), Subject::Privilege(program.to_owned()))
    })
}

/// A call that seccomp or a limit on namespaces refuses.
fn call(seen: &Seen<'_>) -> Option<Reading> {
    let refused = matches!(
        seen.errno_name(),
        Some("EPERM" | "ENOSYS" | "ENOSPC" | "EACCES")
    );
    let namespace = seen.has("unshare failed")
        || seen.has("new namespace")
        || (refused && (seen.has("uid map") || seen.has("uid_map") || seen.has("user namespace")));
    if namespace {
        return Some(seen.reading(None, Subject::Call("unshare".to_owned())));
    }
    if !refused || seen.errno_name() == Some("EACCES") {
        return None;
    }
    const CALLS: &[&str] = &[
        "ptrace",
        "io_uring_setup",
        "keyctl",
        "add_key",
        "request_key",
        "userfaultfd",
        "perf_event_open",
        "bpf",
        "unshare",
        "setns",
        "clone3",
        "clone",
    ];
    let before = seen.before();
    let name = CALLS.iter().find(|name| {
        before.match_indices(**name).any(|(at, name)| {
            let behind = before[at + name.len()..].trim_start();
            let bounded =
                !before[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '/');
            bounded
                && (behind.starts_with('(')
                    || behind.starts_with(':')
                    || behind.starts_with("failed"))
        })
    })?;
    Some(seen.reading(None, Subject::Call((*name).to_owned())))
}

/// A signal that didn't reach its process.
fn process(seen: &Seen<'_>) -> Option<Reading> {
    if !matches!(seen.errno_name(), Some("ESRCH" | "EPERM")) {
        return None;
    }
    let before = seen.before();
    let about = [
        "kill", "renice", "pkill", "strace", "gdb", "ptrace", "taskset", "prlimit",
    ];
    if !about.iter().any(|name| before.contains(name)) {
        return None;
    }
    let id = before
        .split(|c: char| !c.is_ascii_digit())
        .rfind(|digits| digits.len() >= 2 || before.contains(&format!("({digits})")))?;
    let operation = if before.contains("kill") {
        "signal"
    } else {
        "control process"
    };
    Some(seen.reading(Some(operation), Subject::Process(id.parse().ok()?)))
}

/// A host name that doesn't resolve.
fn name(seen: &Seen<'_>) -> Option<Reading> {
    let resolver = matches!(
        seen.errno_name(),
        Some("EAI_AGAIN" | "EAI_NONAME" | "EAI_FAIL")
    );
    const TOLD: &[&str] = &[
        "could not resolve hostname ",
        "could not resolve host: ",
        "could not resolve host ",
        "couldn't resolve host ",
        "couldn't resolve host: ",
        "unable to resolve host address ",
        "unable to resolve host ",
        "can't resolve ",
        "temporary failure resolving ",
        "could not translate host name ",
        "failed to resolve ",
        "bad address ",
        "unknownhostexception: ",
        "getaddrinfo eai_again ",
        "getaddrinfo enotfound ",
        " lookup ",
    ];
    let told = TOLD
        .iter()
        .filter(|piece| **piece != " lookup " || seen.has("dial "))
        .find_map(|piece| seen.behind(piece));
    let host = match told {
        Some(rest) => host_word(rest),
        None if seen.has("#53")
            && (seen.has("network unreachable") || seen.has("permission denied")) =>
        {
            seen.behind(" for ").and_then(host_word)
        }
        None if resolver
            || seen.has("failed to lookup address")
            || seen.has("no servers could be reached") =>
        {
            seen.before()
                .rsplit(": ")
                .map(str::trim)
                .find(|piece| is_host(piece.trim_end_matches(':')))
                .and_then(host_word)
        }
        None if !seen.line.is_ascii()
            && seen.errno.is_none()
            && RESOLVE_ELSEWHERE
                .iter()
                .any(|piece| seen.line.contains(piece)) =>
        {
            quoted(seen.line).into_iter().find(|word| is_host(word))
        }
        // pip tells nothing else when each query of its index failed.
        None if seen.has("could not find a version") && seen.has("(from versions: none)") => None,
        None => return None,
    };
    let errno = seen
        .errno_name()
        .filter(|errno| errno.starts_with("EAI") || errno.starts_with("ENET"))
        .unwrap_or("EAI_AGAIN");
    Some(Reading {
        errno: Some(errno),
        ..seen.reading(Some("resolve"), Subject::Name(host))
    })
}

/// "Could not resolve", as wget says it in the other languages.
const RESOLVE_ELSEWHERE: &[&str] = &[
    "aufgelöst",
    "résoudre",
    "resolver",
    "разрешить",
    "解決できません",
    "无法解析",
    "해석할 수 없",
];

fn host_word(rest: &str) -> Option<String> {
    let word: String = rest
        .trim_start_matches(['\'', '"', '`', '‘', '“', ' '])
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        .collect();
    let word = word.trim_end_matches('.').to_owned();
    (!word.is_empty()).then_some(word)
}

fn is_host(word: &str) -> bool {
    word.contains('.')
        && !word.starts_with('.')
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
        && word.chars().any(|c| c.is_ascii_alphabetic())
        && !is_exception(word)
}

/// Names of exceptions, as runtimes print them before the message.
fn is_exception(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("error")
        || name.ends_with("exception")
        || name.ends_with("gaierror")
        || name.ends_with("herror")
}

/// A UNIX socket by path.
fn socket(seen: &Seen<'_>) -> Option<Reading> {
    if let Some(rest) = seen.behind("unix://") {
        let path: String = rest
            .chars()
            .take_while(|c| !c.is_whitespace() && !matches!(c, '\'' | '"' | ','))
            .collect();
        let path = path.trim_end_matches(['.', ':']).to_owned();
        return path
            .starts_with('/')
            .then(|| seen.reading(Some("connect"), Subject::Socket(path)));
    }
    let unreached = matches!(
        seen.errno_name(),
        Some("ENOENT" | "ECONNREFUSED" | "EACCES" | "EPERM")
    );
    if !unreached || seen.has("/dev/tcp/") || !(seen.has("socket") || seen.has("connect")) {
        return None;
    }
    let path = quoted(seen.before())
        .into_iter()
        .rev()
        .chain(tokens(seen.before()))
        .find(|path| path.starts_with('/'))?;
    Some(seen.reading(Some("connect"), Subject::Socket(path)))
}

/// An internet address that isn't reached.
fn connection(seen: &Seen<'_>) -> Option<Reading> {
    const TOLD: &[&str] = &[
        "failed to connect to",
        "couldn't connect to",
        "could not connect to",
        "cannot connect to",
        "can't connect to",
        "unable to connect to",
        "connection to server",
    ];
    let errno = seen.errno_name();
    let told = TOLD.iter().any(|piece| seen.has(piece));
    let network = matches!(
        errno,
        Some("ENETUNREACH" | "EHOSTUNREACH" | "ENETDOWN" | "ECONNREFUSED")
    );
    let refused = matches!(errno, Some("EACCES" | "EPERM"));
    let by_word = if seen.has("listen ") || seen.has("bind") {
        Some("bind")
    } else if [
        "connect",
        "dial ",
        "socket:",
        "sendto",
        "urlopen",
        "/dev/tcp/",
        "java.net.",
    ]
    .iter()
    .any(|word| seen.has(word))
    {
        Some("connect")
    } else {
        None
    };
    let operation = if told || network {
        Some("connect")
    } else if refused {
        by_word.or_else(|| {
            let pathless = !seen.after().contains('\'') && !seen.before().contains('\'');
            seen.socket_context().filter(|_| pathless)
        })
    } else {
        None
    }?;
    // A path in the line makes it a matter of files.
    if refused && quoted(seen.line).iter().any(|path| path.starts_with('/')) {
        return None;
    }
    let (host, port) = address(seen.line);
    let mut reading = seen.reading(Some(operation), Subject::Address { host, port });
    reading.errno = errno;
    // wget and others put the errno on a line of its own and whisper the rest.
    Some(reading)
}

/// The address that a line names.
fn address(line: &str) -> (Option<String>, Option<u16>) {
    // The shell's own network: `/dev/tcp/HOST/PORT`.
    if let Some((_, rest)) = line
        .split_once("/dev/tcp/")
        .or_else(|| line.split_once("/dev/udp/"))
    {
        let mut parts = rest
            .split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')))
            .filter(|part| !part.is_empty());
        return (
            parts.next().map(str::to_owned),
            parts.next().and_then(|port| port.parse().ok()),
        );
    }
    let mut host = None;
    let mut port = None;
    let mut expect_port = false;
    let mut number = None;
    let mut before = "";
    for piece in line.split(|c: char| {
        c.is_whitespace()
            || matches!(
                c,
                '"' | '\'' | ',' | '(' | ')' | '|' | '«' | '»' | '“' | '”' | '„'
            )
    }) {
        let piece = piece.trim_end_matches([':', '.', ';']);
        if piece.is_empty() {
            continue;
        }
        let bare = piece
            .split_once("://")
            .map_or(piece, |(_, rest)| rest.split('/').next().unwrap_or(rest));
        let (name, own_port) = host_and_port(bare);
        if expect_port {
            port = piece.parse().ok();
            expect_port = false;
        } else if piece == "port" {
            expect_port = true;
        } else if (name == "localhost"
            || name.parse::<std::net::IpAddr>().is_ok()
            || (matches!(before, "to" | "host" | "at") && is_host(name)))
            && (host.is_none() || (port.is_none() && own_port.is_some()))
        {
            host = Some(name.to_owned());
            port = own_port.or(port);
        }
        if host.is_some() && number.is_none() && !is_address(name) {
            // "Port" in another language.
            number = piece
                .trim_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .ok()
                .filter(|port: &u16| *port > 9);
        }
        before = piece;
    }
    if port.is_none() && !line.is_ascii() {
        port = number;
    }
    (host, port)
}

fn is_address(word: &str) -> bool {
    word == "localhost" || word.parse::<std::net::IpAddr>().is_ok()
}

fn limit(seen: &Seen<'_>) -> Option<Reading> {
    let told = match seen.errno_name() {
        Some("EAGAIN") => seen.has("fork") || seen.has("thread") || seen.has("clone"),
        Some("EMFILE" | "EFBIG") => true,
        _ => seen.has("file size limit exceeded"),
    };
    told.then(|| {
        let reading = seen.reading(None, Subject::Limit);
        Reading {
            errno: reading.errno.or(Some("EFBIG")),
            ..reading
        }
    })
}

/// An error object printed field by field, as Node and npm do: `code: 'EACCES'`, `syscall`, `path`.
fn block(seen: &Seen<'_>) -> Option<Reading> {
    let (field, _) = field(seen.line)?;
    seen.errno.filter(|_| field == "code")?;
    let mut paths = Vec::new();
    let mut call = None;
    for line in seen.lines.iter().skip(seen.at + 1).take(LOOK_BACK) {
        match self::field(line) {
            Some(("path", value)) => paths.push(value.to_owned()),
            Some(("dest", value)) => paths.insert(0, value.to_owned()),
            Some(("syscall", value)) => call = Some(value),
            _ => {}
        }
    }
    let operation = match call {
        Some("mkdir" | "symlink" | "link") => Some("create"),
        Some("unlink" | "rmdir") => Some("remove"),
        Some("rename") => Some("rename"),
        Some("scandir" | "stat" | "lstat" | "access") => Some("read"),
        Some("chmod" | "fchmod") => Some("chmod"),
        _ => None,
    };
    (!paths.is_empty()).then(|| seen.reading(operation, Subject::Paths(paths)))
}

/// Name and value of `name: 'value',` or `name value`.
fn field(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.trim().split_once(' ')?;
    let value = value.trim_end_matches(',').trim_matches(['\'', '"']);
    Some((name.trim_end_matches(':'), value))
}

/// A path, or at least a call, with an errno.
fn file_by_errno(seen: &Seen<'_>) -> Option<Reading> {
    let errno = seen.errno_name()?;
    if !matches!(
        errno,
        "EROFS" | "EACCES" | "EPERM" | "EBUSY" | "EXDEV" | "ENOENT" | "ENOSPC"
    ) {
        return None;
    }
    let operation = operation(seen);
    let mut paths = paths_of(seen);
    if paths.is_empty() && seen.at > 0 && seen.lines[seen.at - 1].ends_with(';') {
        paths = quoted(&seen.lines[seen.at - 1]);
        paths.reverse();
    }
    if paths.is_empty()
        && (seen.line.starts_with(char::is_whitespace)
            || seen.program.is_none()
            || seen.has(" error: ")
            || seen.has("i/o error"))
    {
        paths = paths_nearby(seen);
    }
    if paths.is_empty() && !tells_a_call(seen) {
        return None;
    }
    for path in &mut paths {
        if seen.has("could not lock") && !path.ends_with(".lock") {
            // git creates the lock beside the file.
            path.push_str(".lock");
        } else if (seen.has("temporary file in ")
            || seen.has("temp file in ")
            || seen.has("tempdir in "))
            && !path.ends_with('/')
        {
            path.push('/');
        }
    }
    paths.truncate(MAX_PATHS);
    Some(seen.reading(operation, Subject::Paths(paths)))
}

/// Whether the line tells a failed call although it names no path.
fn tells_a_call(seen: &Seen<'_>) -> bool {
    let structured = [
        "[errno ",
        "(os error ",
        "os { code:",
        "exception",
        "errno::",
        "\"errno\"",
        "errno: -",
    ]
    .iter()
    .any(|mark| seen.has(mark));
    const VERBS: &[&str] = &[
        "open",
        "opening",
        "create",
        "creating",
        "creat",
        "write",
        "writing",
        "mkdir",
        "unlink",
        "remove",
        "removing",
        "rename",
        "renaming",
        "save",
        "saving",
        "lock",
        "locking",
        "copy",
        "copying",
        "move",
        "moving",
        "append",
        "temp",
        "temporary",
        "here-document",
        "fopen",
        "openat",
        "mkstemp",
        "mkdtemp",
    ];
    let before = seen.before().to_ascii_lowercase();
    let mut words = before.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    structured || words.any(|word| VERBS.contains(&word))
        // Perl's `die`, which adds where it stands.
        || (seen.after().starts_with(" at ") && seen.after().contains(" line "))
}

/// The paths that the line itself names, the likeliest first.
fn paths_of(seen: &Seen<'_>) -> Vec<String> {
    let (before, after) = (seen.before(), seen.after());
    let mut paths = Vec::new();
    // Rust's `Os { code: 30, … }` holds no path.
    if seen.has("os { code:") {
        return paths;
    }
    for key in ["\"path\":\"", "\"dest\":\"", "path: '"] {
        if let Some((_, rest)) = seen.line.split_once(key) {
            paths.extend(rest.split(['"', '\'']).next().map(str::to_owned));
        }
    }
    if !paths.is_empty() {
        return paths;
    }
    // Behind the errno: `: 'x'` (Python), `, open 'x'` (Node), ` @ rb_sysopen - x` (Ruby), ` at path "x"` (Rust).
    if let Some((_, rest)) = after.split_once(" @ ") {
        let named = rest.split_once(" - ").map_or(rest, |(_, path)| path);
        let named = named
            .rsplit_once(" (Errno::")
            .map_or(named, |(path, _)| path)
            .trim_end_matches(['\n', ' ']);
        match named
            .strip_prefix('(')
            .and_then(|pair| pair.strip_suffix(')'))
            .and_then(|pair| pair.split_once(", "))
        {
            Some((from, to)) => paths.extend([to.to_owned(), from.to_owned()]),
            None => paths.push(named.to_owned()),
        }
    } else {
        let mut behind = quoted(after);
        behind.reverse();
        paths.extend(behind);
        if paths.is_empty() {
            let told = after
                .strip_prefix(" while setting flags on ")
                .or_else(|| {
                    after
                        .strip_prefix(", ")
                        .and_then(|rest| rest.split_once(' '))
                        .map(|(_, path)| path)
                })
                .or_else(|| after.strip_prefix(": "))
                .or_else(|| after.strip_prefix(" - "));
            paths.extend(
                told.map(|path| path.trim().to_owned())
                    .filter(|path| looks_like_path(path)),
            );
        }
    }
    // Before it, in quotes; of several the last, for it is the one that was to be changed.
    let mut quotes = quoted(before);
    if !before.contains(" => ") {
        quotes.reverse();
    }
    paths.extend(quotes.into_iter().filter(|path| !path.starts_with("refs/")));
    // PHP's `file_put_contents(x): Failed to open stream`.
    if let Some((_, rest)) = before.split_once('(')
        && let Some((path, _)) = rest.split_once("): ")
        && looks_like_path(path)
    {
        paths.push(path.to_owned());
    }
    // Before it, between colons; the speaker and line numbers are no paths.
    let before =
        before.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, ':' | '(' | '['));
    let segments: Vec<&str> = before
        .split(": ")
        .map(|segment| segment.trim_matches([' ', ':']))
        .collect();
    for segment in segments
        .iter()
        .skip(usize::from(seen.program.is_some()))
        .rev()
    {
        let segment = segment.split('：').next().unwrap_or_default();
        if segment.starts_with('/') {
            paths.push(segment.to_owned());
        }
        paths.extend(tokens(segment));
    }
    // Only a line without a better candidate leaves it to a bare word.
    let bare = if paths.is_empty() { &segments[..] } else { &[] };
    for (at, segment) in bare.iter().enumerate().rev() {
        let word = segment.rsplit(' ').next().unwrap_or_default();
        let is_symbol =
            words::signs(word.as_bytes()).any(|found| found.start == 0 && found.end == word.len());
        let is_no_name = is_symbol || word.chars().all(|c| c.is_ascii_digit());
        // The first one is the speaker, a level or an exception, unless it is a call.
        let alone = at > 0 && !segment.contains(' ');
        if !is_no_name && looks_like_path(word) && (alone || is_call_and_path(segment)) {
            paths.push(word.to_owned());
        }
    }
    distinct(paths)
}

/// Each of the paths once, in order, none empty.
fn distinct(paths: Vec<String>) -> Vec<String> {
    let mut unique = Vec::new();
    for path in paths {
        if !path.is_empty() && !unique.contains(&path) {
            unique.push(path);
        }
    }
    unique
}

/// Whether a segment tells a call and then its path without quotes: `open x` (Go), `cannot mkdir x`.
fn is_call_and_path(segment: &str) -> bool {
    const CALLS: &[&str] = &[
        "open",
        "mkdir",
        "create",
        "remove",
        "rename",
        "unlink",
        "unlinkat",
        "symlink",
        "link",
        "chmod",
        "chown",
        "truncate",
        "stat",
        "lstat",
        "write",
        "mkdirat",
        "openat",
        "fork/exec",
        "opening",
        "writing",
        "creating",
        "file",
        "directory",
        "lock",
        "to",
    ];
    let mut words = segment.rsplit(' ').skip(1).take(1);
    words.next().is_some_and(|word| CALLS.contains(&word))
}

/// Paths on the lines around, for errnos that stand on a line of their own.
fn paths_nearby(seen: &Seen<'_>) -> Vec<String> {
    let failed = |line: &str| {
        let lower = line.to_ascii_lowercase();
        [
            "fail",
            "could not",
            "couldn't",
            "cannot",
            "can't",
            "unable",
            "error",
        ]
        .iter()
        .any(|word| lower.contains(word))
    };
    let named = |line: &str| -> Vec<String> {
        let mut paths: Vec<String> = quoted(line)
            .into_iter()
            .filter(|path| path.contains('/'))
            .collect();
        paths.extend(tokens(line));
        if paths.is_empty()
            && let Some((_, last)) = line.trim_end().rsplit_once(": ")
            && looks_like_path(last)
        {
            paths.push(last.to_owned());
        }
        paths
    };
    let back = seen.lines[seen.at.saturating_sub(LOOK_BACK)..seen.at]
        .iter()
        .rev();
    let ahead = seen.lines.iter().skip(seen.at + 1).take(LOOK_AHEAD);
    back.chain(ahead)
        .filter(|line| failed(line))
        .map(|line| named(line))
        .find(|paths| !paths.is_empty())
        .unwrap_or_default()
}

const CREATE: &[&str] = &[
    "could not create",
    "couldn't create",
    "cannot create",
    "can't create",
    "unable to create",
    "failed to create",
    "error creating",
];
const WRITE: &[&str] = &[
    "could not write",
    "couldn't write",
    "cannot write",
    "can't write",
    "unable to write",
    "failed to write",
    "error writing",
    "cannot save",
    "could not save",
    "failed to save",
];
const OPEN: &[&str] = &[
    "could not open",
    "couldn't open",
    "cannot open",
    "can't open",
    "unable to open",
    "failed to open",
];

/// A path that a program couldn't use, told in its own words without an errno.
fn file_by_wording(seen: &Seen<'_>) -> Option<Reading> {
    if seen.errno.is_some() {
        return None;
    }
    let mut paths = quoted(seen.line);
    paths.reverse();
    paths.extend(tokens(seen.line));
    let (operation, paths) = if seen.has("no usable temporary directory") {
        let folders = paths.into_iter().map(|path| path + "/").collect();
        ("create", folders)
    } else if seen.has("unable to open database") || seen.has("readonly database") {
        ("write", paths)
    } else if seen.has("couldn't open file ") {
        let told = seen
            .behind("couldn't open file ")
            .map(|rest| rest.trim().to_owned());
        ("read", told.into_iter().chain(paths).collect())
    } else if seen.has("can't open file for writing")
        || seen.has("failure writing output to destination")
        || seen.has("not writeable")
    {
        ("write", paths)
    } else if seen.has("could not write index") {
        ("write", vec![".git/index.lock".to_owned()])
    } else if CREATE.iter().any(|piece| seen.has(piece)) {
        ("create", paths)
    } else if WRITE.iter().any(|piece| seen.has(piece)) && !paths.is_empty() {
        ("write", paths)
    } else if OPEN.iter().any(|piece| seen.has(piece)) && !paths.is_empty() {
        // A file that isn't there can't be opened either: only what exists is meant.
        ("open", paths)
    } else {
        return None;
    };
    let mut paths = distinct(paths);
    paths.truncate(MAX_PATHS);
    Some(seen.reading(Some(operation), Subject::Paths(paths)))
}

/// The operation that the line tells, by its speaker and its verbs.
fn operation(seen: &Seen<'_>) -> Option<&'static str> {
    let by_program = match seen.program {
        Some("rm" | "rmdir" | "unlink") => Some("remove"),
        Some("mkdir" | "mkfifo" | "mknod" | "mktemp") => Some("create"),
        Some("chmod" | "setfacl") => Some("chmod"),
        Some("chown" | "chgrp") => Some("chown"),
        Some("setfattr" | "chattr") => Some("set attribute"),
        Some("ln") => Some("link"),
        Some("mv") => Some("rename"),
        Some(
            "cat" | "head" | "tail" | "grep" | "ls" | "du" | "wc" | "less" | "cmp" | "diff"
            | "file" | "cd",
        ) => Some("read"),
        _ => None,
    };
    let text = format!("{} {}", seen.before(), seen.after()).to_ascii_lowercase();
    const VERBS: &[(&str, &str)] = &[
        ("for reading", "read"),
        ("for writing", "write"),
        ("for output", "write"),
        (": cd:", "read"),
        ("cannot access", "read"),
        ("cannot stat", "read"),
        ("can't stat", "read"),
        ("scandir", "read"),
        ("opendir", "read"),
        ("cannot open directory", "read"),
        ("cannot read", "read"),
        ("cannot execute", "execute"),
        ("fork/exec", "execute"),
        ("changing permissions", "chmod"),
        ("chmod", "chmod"),
        ("changing ownership", "chown"),
        ("changing group", "chown"),
        ("chown", "chown"),
        ("utime", "set times"),
        ("setting times", "set times"),
        ("mkdir", "create"),
        ("unlink", "remove"),
        ("rmdir", "remove"),
        ("remove", "remove"),
        ("delete", "remove"),
        ("rename", "rename"),
        ("symlink", "link"),
        ("hard link", "link"),
        ("create", "create"),
        ("write", "write"),
        ("writing", "write"),
    ];
    let by_verb = VERBS
        .iter()
        .find(|(verb, _)| text.contains(verb))
        .map(|(_, operation)| *operation);
    let told = by_program
        .or(by_verb)
        .or((seen.program == Some("find")).then_some("read"));
    // No look at a file is answered with EROFS.
    told.filter(|operation| *operation != "read" || seen.errno_name() != Some("EROFS"))
}

/// What stands in quotes of any kind, in order.
fn quoted(text: &str) -> Vec<String> {
    const PAIRS: &[(char, char)] = &[
        ('\'', '\''),
        ('"', '"'),
        ('‘', '’'),
        ('“', '”'),
        ('„', '“'),
        ('«', '»'),
        ('»', '«'),
        ('`', '\''),
        ('`', '`'),
        ('「', '」'),
    ];
    let mut found = Vec::new();
    let mut rest = text;
    while found.len() < MAX_PATHS {
        let Some(start) = rest.find(['\'', '"', '‘', '“', '„', '«', '»', '`', '「'])
        else {
            break;
        };
        let open = rest[start..].chars().next().unwrap_or_default();
        // An apostrophe inside of a word opens nothing: `can't`.
        if open == '\''
            && rest[..start].ends_with(char::is_alphanumeric)
            && !rest[..start].ends_with(|c: char| !c.is_ascii())
        {
            rest = &rest[start + 1..];
            continue;
        }
        let body = &rest[start + open.len_utf8()..];
        let end = PAIRS
            .iter()
            .filter(|(left, _)| *left == open)
            .filter_map(|(_, right)| body.find(*right).map(|end| (end, right.len_utf8())))
            .min();
        let Some((end, width)) = end else {
            rest = body;
            continue;
        };
        let inner = body[..end].trim_matches(['\u{a0}', '\u{202f}', ' ']);
        if !inner.is_empty() && inner.len() < 4096 {
            found.push(inner.to_owned());
        }
        rest = &body[end + width..];
    }
    found
}

/// Words that start as paths do.
fn tokens(text: &str) -> Vec<String> {
    text.split(|c: char| {
        c.is_whitespace() || matches!(c, '\'' | '"' | '(' | ')' | '‘' | '’' | '`' | '，')
    })
    .map(|word| {
        word.split('：')
            .next()
            .unwrap_or(word)
            .trim_end_matches([':', ',', ';', '.'])
    })
    .filter(|word| {
        word.len() > 1
            && (word.starts_with('/') || word.starts_with("./") || word.starts_with("../"))
            && !word.starts_with("//")
    })
    .take(MAX_PATHS)
    .map(str::to_owned)
    .collect()
}

fn looks_like_path(word: &str) -> bool {
    !word.is_empty()
        && word.len() < 4096
        && !word.contains(['\'', '"', '(', ')', '[', ']', '{', '}', '<', '>', '='])
        && (word.contains('/') || !word.contains(' '))
        && word.chars().any(char::is_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts all rows at once, so that one run shows every wrong one.
    fn each(rows: &[(&str, &str)]) {
        let wrong: Vec<_> = rows
            .iter()
            .map(|(text, expected)| (*text, told(text), *expected))
            .filter(|(_, told, expected)| *told != [expected.to_string()])
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// Errno (`-` for own words), operation, subject and speaker of each reading, in short.
    fn told(text: &str) -> Vec<String> {
        read(text.as_bytes())
            .into_iter()
            .map(|reading| {
                let subject = match reading.subject {
                    Subject::Paths(paths) => format!("paths {}", paths.join(" ")),
                    Subject::Socket(path) => format!("socket {path}"),
                    Subject::Name(host) => format!("name {}", host.unwrap_or_default()),
                    Subject::Address { host, port } => {
                        format!(
                            "address {}:{}",
                            host.unwrap_or_default(),
                            port.map_or(String::new(), |port| port.to_string())
                        )
                    }
                    Subject::Call(call) => format!("call {call}"),
                    Subject::Process(pid) => format!("process {pid}"),
                    Subject::Privilege(program) => format!("privilege {program}"),
                    Subject::Limit => "limit".to_owned(),
                };
                format!(
                    "{} {} {}",
                    reading.errno.unwrap_or("-"),
                    reading.operation.unwrap_or("?"),
                    subject
                )
            })
            .collect()
    }

    #[test]
    fn the_path_is_found_where_each_program_puts_it() {
        each(&[
            (
                "bash: line 1: /h/out: Read-only file system",
                "EROFS ? paths /h/out",
            ),
            (
                "bash: line 1: out.txt: Read-only file system",
                "EROFS ? paths out.txt",
            ),
            (
                "/bin/sh: 1: cannot create /s/x: Read-only file system",
                "EROFS create paths /s/x",
            ),
            (
                "zsh:1: read-only file system: /s/zsh",
                "EROFS ? paths /s/zsh",
            ),
            (
                "touch: cannot touch '/h/t': Permission denied",
                "EACCES ? paths /h/t",
            ),
            (
                "mkdir: cannot create directory ‘/h/a b’: Read-only file system",
                "EROFS create paths /h/a b /h/a",
            ),
            (
                "mkdir: das Verzeichnis „build“ kann nicht angelegt werden: Das Dateisystem ist nur lesbar",
                "EROFS create paths build",
            ),
            (
                "mkdir: impossible de créer le répertoire « build »: Permission non accordée",
                "EACCES create paths build",
            ),
            (
                "rm: '/h/n'을(를) 제거할 수 없습니다: 읽기전용 파일 시스템",
                "EROFS remove paths /h/n",
            ),
            (
                "tar: arc: Cannot mkdir: Read-only file system",
                "EROFS create paths arc",
            ),
            (
                "tar: /s/out.tar：无法 open: 只读文件系统",
                "EROFS ? paths /s/out.tar",
            ),
            (
                "OSError: [Errno 30] Read-only file system: '/h/p'",
                "EROFS ? paths /h/p",
            ),
            (
                "OSError: [Errno 30] Read-only file system: 'a' -> '/h/b'",
                "EROFS ? paths /h/b a",
            ),
            (
                "Error: EROFS: read-only file system, open '/h/n'",
                "EROFS ? paths /h/n",
            ),
            (
                "{\"errno\":-30,\"code\":\"EROFS\",\"syscall\":\"unlink\",\"path\":\"/s/f\"}",
                "EROFS remove paths /s/f",
            ),
            (
                "-e:1:in `write': Read-only file system @ rb_sysopen - /h/r (Errno::EROFS)",
                "EROFS write paths /h/r write",
            ),
            (
                "error: couldn't create a temp dir: Read-only file system (os error 30) at path \"/s/x\"",
                "EROFS create paths /s/x",
            ),
            (
                "open out.txt: read-only file system",
                "EROFS ? paths out.txt",
            ),
            (
                "go: creating work dir: mkdir /t/b: read-only file system",
                "EROFS create paths /t/b",
            ),
            (
                "Exception in thread \"main\" java.nio.file.FileSystemException: out.txt: Read-only file system",
                "EROFS ? paths out.txt",
            ),
            (
                "java.nio.file.AccessDeniedException: /h/j.txt",
                "EACCES ? paths /h/j.txt",
            ),
            (
                "PHP Warning:  file_put_contents(/h/p): Failed to open stream: Read-only file system in x on line 1",
                "EROFS ? paths /h/p",
            ),
            (
                "lua5.4: (command line):1: /h/l: Read-only file system",
                "EROFS ? paths /h/l",
            ),
            (
                "Can't do inplace edit on /h/n: Cannot make temp name: Read-only file system.",
                "EROFS ? paths /h/n",
            ),
            (
                "rsync: [Receiver] mkdir \"/h/rs\" failed: Read-only file system (30)",
                "EROFS create paths /h/rs",
            ),
            (
                "E: Could not open lock file /v/lock - open (13: Permission denied)",
                "EACCES ? paths /v/lock",
            ),
            (
                "/usr/bin/ld: cannot open output file /h/main: Permission denied",
                "EACCES ? paths /h/main",
            ),
            (
                "error: could not lock config file .git/config: Read-only file system",
                "EROFS ? paths .git/config.lock",
            ),
            (
                "error: could not write config file .git/config: Device or resource busy",
                "EBUSY write paths .git/config",
            ),
            (
                "fatal: cannot lock ref 'refs/heads/b': Unable to create '/p/b.lock': Read-only file system",
                "EROFS create paths /p/b.lock",
            ),
            (
                "fatal: cannot mkdir sub: Read-only file system",
                "EROFS create paths sub",
            ),
            ("/h/w.txt: Read-only file system", "EROFS ? paths /h/w.txt"),
            (
                "ln: failed to create hard link 'n' => '/h/o': Invalid cross-device link",
                "EXDEV link paths n /h/o",
            ),
            (
                "Cannot create temporary file in ./: Read-only file system",
                "EROFS create paths ./",
            ),
            (
                "Error: unable to open database \"/h/a.db\": unable to open database file",
                "- write paths /h/a.db",
            ),
            ("curl: (37) Couldn't open file /h/x", "- read paths /h/x"),
            (
                "find: cannot delete ‘/s/f’: Read-only file system",
                "EROFS remove paths /s/f",
            ),
        ]);
    }

    #[test]
    fn the_path_is_found_on_the_lines_around() {
        for (text, expected) in [
            (
                "error: failed to write x\n\nCaused by:\n  failed to open: /w/Cargo.lock\n\nCaused by:\n  Read-only file system (os error 30)",
                "EROFS ? paths /w/Cargo.lock",
            ),
            (
                "checkdir:  cannot create extraction directory: /h/uz\n           Read-only file system",
                "EROFS ? paths /h/uz",
            ),
            (
                "npm error code EACCES\nnpm error syscall open\nnpm error path /h/.npmrc\nnpm error errno -13",
                "EACCES ? paths /h/.npmrc",
            ),
            (
                "  errno: -30,\n  code: 'EROFS',\n  syscall: 'mkdir',\n  path: '/s/nd'\n}",
                "EROFS create paths /s/nd",
            ),
        ] {
            assert!(
                told(text).contains(&expected.to_owned()),
                "{text}: {:?}",
                told(text)
            );
        }
    }

    #[test]
    fn failures_of_the_network_are_told_with_their_address() {
        each(&[
            (
                "curl: (6) Could not resolve host: web.test",
                "EAI_AGAIN resolve name web.test",
            ),
            (
                "ssh: Could not resolve hostname web.test: Temporary failure in name resolution",
                "EAI_AGAIN resolve name web.test",
            ),
            (
                "wget: unable to resolve host address ‘web.test’",
                "EAI_AGAIN resolve name web.test",
            ),
            (
                "wget: bad address 'web.test'",
                "EAI_AGAIN resolve name web.test",
            ),
            (
                "ping: web.test: Name or service not known",
                "EAI_NONAME resolve name web.test",
            ),
            (
                "socket.gaierror: [Errno -3] Temporary failure in name resolution",
                "EAI_AGAIN resolve name ",
            ),
            (
                "Error: getaddrinfo EAI_AGAIN web.test",
                "EAI_AGAIN resolve name web.test",
            ),
            (
                "Get \"http://web.test/\": dial tcp: lookup web.test on 192.0.2.1:53: dial udp 192.0.2.1:53: connect: network is unreachable",
                "ENETUNREACH resolve name web.test",
            ),
            (
                "Exception in thread \"main\" java.net.UnknownHostException: web.test",
                "EAI_AGAIN resolve name web.test",
            ),
            (
                ";; UDP setup with 192.0.2.1#53(192.0.2.1) for web.test failed: network unreachable.",
                "ENETUNREACH resolve name web.test",
            ),
            (
                "curl: (7) Failed to connect to 192.0.2.1 port 80 after 0 ms: Couldn't connect to server",
                "- connect address 192.0.2.1:80",
            ),
            (
                "ssh: connect to host 192.0.2.1 port 22: Network is unreachable",
                "ENETUNREACH connect address 192.0.2.1:22",
            ),
            (
                "Error: connect ECONNREFUSED 127.0.0.1:8080",
                "ECONNREFUSED connect address 127.0.0.1:8080",
            ),
            (
                "psql: error: connection to server at \"127.0.0.1\", port 5432 failed: Connection refused",
                "ECONNREFUSED connect address 127.0.0.1:5432",
            ),
            (
                "bash: line 1: /dev/tcp/127.0.0.1/80: Connection refused",
                "ECONNREFUSED connect address 127.0.0.1:80",
            ),
            (
                "OSError: [Errno 101] Network is unreachable",
                "ENETUNREACH connect address :",
            ),
            (
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?",
                "- connect socket /var/run/docker.sock",
            ),
        ]);
    }

    #[test]
    fn privileges_calls_processes_and_limits_are_told_apart() {
        each(&[
            (
                "sudo: The \"no new privileges\" flag is set, which prevents sudo from running as root.",
                "EPERM setuid privilege sudo",
            ),
            (
                "sudo: effective uid is not 0, is /usr/bin/sudo on a file system with the 'nosuid' option set?",
                "EPERM setuid privilege sudo",
            ),
            ("Password: su: System error", "EPERM setuid privilege su"),
            (
                "su: cannot set groups: Operation not permitted",
                "EPERM setuid privilege su",
            ),
            (
                "unshare: unshare failed: Operation not permitted",
                "EPERM ? call unshare",
            ),
            (
                "strace: ptrace(PTRACE_TRACEME, ...): Operation not permitted",
                "EPERM ? call ptrace",
            ),
            (
                "bash: line 1: kill: (17553) - No such process",
                "ESRCH signal process 17553",
            ),
            (
                "bash: fork: retry: Resource temporarily unavailable",
                "EAGAIN ? limit",
            ),
        ]);
    }

    #[test]
    fn words_without_a_path_an_address_or_a_call_are_no_reading() {
        for text in [
            "Permission denied",
            "expects EACCES: permission denied",
            "test 3: locked -> Permission denied (expected)",
            "error: Read-only file system (simulated)",
            "  # got: Operation not permitted (as expected)",
            "remote: 403 Forbidden: permission denied for this token",
            "seccomp landlock sandbox",
            "ModuleNotFoundError: No module named 'x'",
            "ls: cannot access it, sadly",
            "[12:00:02] install: cannot create /usr/lib/demo: Permission denied",
            "< touch: cannot touch '/h/t': Read-only file system",
            "+ echo '/h/t: Read-only file system'",
        ] {
            assert_eq!(told(text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn a_warning_is_marked_and_an_error_is_not() {
        let warned = |text: &str| read(text.as_bytes())[0].warned;
        assert!(warned(
            "warning: cache dir /h/c unusable: Read-only file system"
        ));
        assert!(!warned(
            "error: cache dir /h/c unusable: Read-only file system"
        ));
    }
}
