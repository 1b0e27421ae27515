//! What the text of a command says about itself: its programs, folders, paths and addresses.
//!
//! Rule: a loose reading of shell text that is only used to weigh evidence. It expands `~` and known
//! variables, gives up on what only a shell can know, and reads no more than [`TEXT_CAP`] bytes.

use std::path::{Path, PathBuf};

/// Bytes of the text that are read.
pub const TEXT_CAP: usize = 64 * 1024;
const MAX_SEGMENTS: usize = 512;
const MAX_DEPTH: u8 = 3;

/// One simple command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its words without quotes, `~` and known variables expanded.
    pub words: Vec<String>,
    /// Files that it is redirected to, in the same form.
    pub outputs: Vec<String>,
    /// Whether a `;` or a line break stands before it, at the top of the text.
    pub fresh: bool,
}

impl Segment {
    /// The program's name without its folders; wrappers such as `env` or `timeout` are passed over.
    pub fn program(&self) -> Option<&str> {
        self.command().first().map(|word| base_name(word))
    }

    /// The words from the program on.
    pub fn command(&self) -> &[String] {
        let mut rest = &self.words[..];
        while let Some(word) = rest.first() {
            let wrapper = match base_name(word) {
                "timeout" => {
                    rest = &rest[1..];
                    while let Some(option) = rest.first().filter(|word| word.starts_with('-')) {
                        let with_value = matches!(option.as_str(), "-k" | "-s");
                        rest = rest.get(1 + usize::from(with_value)..).unwrap_or(&[]);
                    }
                    rest = rest.get(1..).unwrap_or(&[]);
                    continue;
                }
                "env" | "command" | "exec" | "nohup" | "nice" | "time" | "builtin" | "xargs" => {
                    true
                }
                "if" | "then" | "else" | "elif" | "while" | "until" | "do" | "!" | "{" | "}"
                | "(" => true,
                name => is_assignment(name) || is_assignment(word),
            };
            if !wrapper {
                break;
            }
            rest = &rest[1..];
            while rest.len() > 1 && rest[0].starts_with('-') {
                rest = &rest[1..];
            }
        }
        rest
    }
}

/// A command's text, read.
#[derive(Clone, Debug, Default)]
pub struct Command {
    text: String,
    segments: Vec<Segment>,
    home: Option<String>,
    /// Bodies of here-documents.
    documents: Vec<String>,
}

impl Command {
    /// Reads the text; `variables` is the environment that it starts with.
    pub fn read(text: &str, cwd: &Path, variables: &[(String, String)]) -> Command {
        let text = cap(text);
        let mut known: Vec<(String, String)> = variables.to_vec();
        known.push(("PWD".to_owned(), cwd.to_string_lossy().into_owned()));
        let mut command = Command {
            text: text.to_owned(),
            ..Command::default()
        };
        split(text, &mut known, MAX_DEPTH, true, &mut command);
        command.home = value("HOME", &known).map(str::to_owned);
        command
    }

    /// The simple commands, in order, those inside of `bash -c '…'` after their caller.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether every program in it only shows what is stored somewhere, so that an error told in
    /// another program's name is a quotation.
    pub fn only_shows(&self) -> bool {
        const SHOWS: &[&str] = &[
            "bash",
            "sh",
            "dash",
            "tee",
            "while",
            "done",
            "fi",
            "esac",
            "}",
            "read",
            "for",
            "case",
            "local",
            "return",
            "sleep",
            "wait",
            "kill",
            "export",
            "shift",
            "cat",
            "head",
            "tail",
            "grep",
            "egrep",
            "fgrep",
            "rg",
            "zcat",
            "zgrep",
            "less",
            "more",
            "diff",
            "cmp",
            "echo",
            "printf",
            "jq",
            "ls",
            "wc",
            "sort",
            "uniq",
            "cut",
            "tr",
            "tac",
            "nl",
            "column",
            "strings",
            "true",
            "false",
            ":",
            "exit",
            "test",
            "[",
            "cd",
            "pwd",
            "journalctl",
            "dmesg",
            "file",
            "stat",
            "od",
            "xxd",
            "hexdump",
            "fold",
            "rev",
            "set",
            "paste",
            "comm",
            "awk",
            "sed",
            "git",
        ];
        const GIT_SHOWS: &[&str] = &[
            "log",
            "show",
            "diff",
            "grep",
            "blame",
            "cat-file",
            "status",
            "shortlog",
            "rev-parse",
            "ls-files",
        ];
        !self.segments.is_empty()
            && self.segments.iter().all(|segment| {
                let words = segment.command();
                let Some(program) = words.first().map(|word| base_name(word)) else {
                    return true;
                };
                let is_shell = matches!(program, "bash" | "sh" | "dash");
                SHOWS.contains(&program)
                    && (!is_shell
                        || words
                            .iter()
                            .any(|word| word.starts_with('-') && word.ends_with('c')))
                    && (program != "git"
                        || words
                            .iter()
                            .skip(1)
                            .any(|word| GIT_SHOWS.contains(&word.as_str())))
            })
    }

    /// Whether a program of this name is started by the text itself.
    pub fn starts(&self, program: &str) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.program() == Some(program))
    }

    /// Whether the text itself holds this piece, as in `echo 'x: Permission denied'`.
    pub fn holds(&self, piece: &str) -> bool {
        let piece = piece.trim();
        piece.len() >= 6 && self.text.contains(piece)
    }

    /// Whether some word or redirection is exactly this.
    pub fn has_word(&self, word: &str) -> bool {
        self.segments.iter().any(|segment| {
            segment
                .words
                .iter()
                .chain(&segment.outputs)
                .any(|other| other == word)
        })
    }

    /// Whether some word is a port that only root may listen at.
    pub fn has_low_port(&self) -> bool {
        let low = |word: &String| {
            word.parse()
                .is_ok_and(|port: u16| (1..1024).contains(&port))
        };
        self.segments
            .iter()
            .any(|segment| segment.words.iter().any(low))
    }

    /// Whether the text itself holds this word.
    pub fn mentions(&self, word: &str) -> bool {
        self.text.contains(word)
    }

    /// Folders that relative names are meant from: targets of `cd`, of `tar -C` and of their like.
    pub fn base_folders(&self) -> Vec<String> {
        let mut folders = Vec::new();
        for segment in &self.segments {
            let words = segment.command();
            let program = words.first().map(|word| base_name(word));
            if matches!(program, Some("cd" | "pushd")) {
                folders.extend(
                    words
                        .iter()
                        .skip(1)
                        .find(|word| !word.starts_with('-'))
                        .cloned(),
                );
            }
            let mut rest = words.iter().skip(1);
            while let Some(word) = rest.next() {
                if word == "-C" || word == "--directory" {
                    folders.extend(rest.next().cloned());
                } else if let Some(folder) = word
                    .strip_prefix("-C")
                    .or_else(|| word.strip_prefix("--directory="))
                    && !folder.is_empty()
                {
                    folders.push(folder.to_owned());
                }
            }
        }
        folders.truncate(8);
        folders
    }

    /// Files that some part is redirected to.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.segments
            .iter()
            .flat_map(|segment| segment.outputs.iter().map(String::as_str))
    }

    /// Paths that the text names, redirections first: absolute ones, those below `~` or a known
    /// variable, and those inside of quoted program text. With a program, only those in its parts,
    /// when there are any.
    pub fn written_paths(&self, program: Option<&str>) -> Vec<String> {
        let own = |segment: &&Segment| {
            program.is_none_or(|program| {
                segment
                    .program()
                    .is_some_and(|name| name.starts_with(program))
            })
        };
        let mut paths = Vec::new();
        let mut inner = Vec::new();
        for segment in self.segments.iter().filter(own) {
            paths.extend(segment.outputs.iter().cloned());
            for word in &segment.words {
                let value = word
                    .split_once('=')
                    .map_or(word.as_str(), |(_, value)| value);
                if word.starts_with('/') && !word.contains(char::is_whitespace) {
                    inner.push(word.clone());
                } else if value.starts_with('/') && !value.contains(char::is_whitespace) {
                    inner.push(value.to_owned());
                } else if word.contains('/') {
                    inner.extend(embedded_paths(word, self.home.as_deref()));
                }
            }
        }
        paths.append(&mut inner);
        // Program text from a here-document: `python3 - <<E`.
        const RUN: &[&str] = &[
            "python", "python3", "node", "perl", "ruby", "php", "bash", "sh", "sqlite3", "psql",
        ];
        if RUN.iter().any(|program| self.starts(program)) {
            for document in &self.documents {
                paths.extend(embedded_paths(document, self.home.as_deref()));
            }
        }
        if paths.is_empty() && program.is_some() {
            return self.written_paths(None);
        }
        paths.dedup();
        paths.truncate(MAX_SEGMENTS);
        paths
    }

    /// Names without a folder that may be files: the arguments, and what stands in quotes inside of
    /// program text and has an extension.
    pub fn relative_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for segment in &self.segments {
            for word in segment.command().iter().skip(1) {
                if word.contains(['\'', '"', '(']) {
                    let pieces = word.split(['\'', '"']).filter(|piece| {
                        piece.contains('.')
                            && piece
                                .chars()
                                .all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'))
                    });
                    names.extend(
                        pieces
                            .filter(|piece| !piece.starts_with('/'))
                            .map(str::to_owned),
                    );
                } else if !word.is_empty()
                    && !word.starts_with(['-', '/', '$', '+'])
                    && !word.contains(['=', ':', '*', ' ', '@'])
                {
                    names.push(word.clone());
                }
            }
        }
        names.truncate(64);
        names
    }

    /// Internet addresses that the text names, each with the port that goes with it, if one does.
    pub fn addresses(&self) -> Vec<(String, Option<u16>)> {
        let mut addresses = Vec::new();
        for segment in &self.segments {
            for word in segment.words.iter().chain(&segment.outputs) {
                if let Some((host, port)) = word
                    .strip_prefix("/dev/tcp/")
                    .and_then(|rest| rest.split_once('/'))
                    && is_address(host)
                {
                    addresses.push((host.to_owned(), port.parse().ok()));
                }
            }
            let joined = segment.words.join(" ");
            let pieces: Vec<&str> = joined
                .split(|c: char| {
                    !(c.is_ascii_alphanumeric()
                        || matches!(c, '.' | ':' | '-' | '_' | '/' | '[' | ']'))
                })
                .filter(|piece| !piece.is_empty())
                .collect();
            let numbers: Vec<u16> = pieces
                .iter()
                .filter_map(|piece| piece.parse().ok())
                .filter(|port| *port > 0)
                .collect();
            for piece in &pieces {
                let (piece, default) = match piece.split_once("://") {
                    Some((scheme, rest)) => {
                        (rest.split('/').next().unwrap_or(rest), scheme_port(scheme))
                    }
                    None => (*piece, None),
                };
                let (host, port) = host_and_port(piece);
                if !is_address(host) {
                    continue;
                }
                match port.or(default) {
                    Some(port) => addresses.push((host.to_owned(), Some(port))),
                    None if numbers.is_empty() => addresses.push((host.to_owned(), None)),
                    None => {
                        addresses.extend(numbers.iter().map(|port| (host.to_owned(), Some(*port))))
                    }
                }
            }
        }
        addresses
    }

    /// Host names of the URLs that the text names.
    pub fn hosts(&self) -> Vec<String> {
        let mut hosts = Vec::new();
        for piece in self.segments.iter().flat_map(|segment| &segment.words) {
            for (at, _) in piece.match_indices("://").take(8) {
                let rest = &piece[at + 3..];
                let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
                let host: String = rest
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
                    .collect();
                if !host.is_empty() && !is_address(&host) {
                    hosts.push(host);
                }
            }
        }
        hosts
    }

    /// The simple commands from the last `;` or line break on: the exit status is theirs, unless they
    /// only pass on an earlier one (`exit $r`) or say one themselves (`exit 1`).
    pub fn deciding(&self) -> &[Segment] {
        let start = self
            .segments
            .iter()
            .rposition(|segment| segment.fresh)
            .unwrap_or(0);
        &self.segments[start..]
    }

    /// Whether the shell stops at the first failure.
    pub fn stops_at_failure(&self) -> bool {
        self.segments.iter().any(|segment| {
            segment.program() == Some("set")
                && segment
                    .words
                    .iter()
                    .any(|word| word.starts_with('-') && word.contains('e') || word == "errexit")
        })
    }
}

/// The name behind the last slash.
pub fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// Host and port of `host:port`, `[::1]:port` or a bare host.
pub fn host_and_port(text: &str) -> (&str, Option<u16>) {
    if let Some(rest) = text.strip_prefix('[')
        && let Some((host, tail)) = rest.split_once(']')
    {
        return (
            host,
            tail.strip_prefix(':').and_then(|port| port.parse().ok()),
        );
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && !host.is_empty() => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (host, None),
        },
        _ => (text, None),
    }
}

fn is_address(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok()
}

fn scheme_port(scheme: &str) -> Option<u16> {
    match scheme.rsplit(|c: char| !c.is_ascii_alphanumeric()).next()? {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        "ssh" => Some(22),
        "ftp" => Some(21),
        "git" => Some(9418),
        "postgres" | "postgresql" => Some(5432),
        "mysql" => Some(3306),
        "redis" => Some(6379),
        _ => None,
    }
}

fn cap(text: &str) -> &str {
    let mut end = text.len().min(TEXT_CAP);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn value<'a>(name: &str, known: &'a [(String, String)]) -> Option<&'a str> {
    known
        .iter()
        .rev()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

/// Splits shell text into simple commands.
fn split(text: &str, known: &mut Vec<(String, String)>, depth: u8, top: bool, out: &mut Command) {
    let mut scan = Scan {
        chars: text.char_indices().peekable(),
        text,
        documents: Vec::new(),
        bodies: Vec::new(),
    };
    let mut segment = Segment {
        fresh: top,
        ..Segment::default()
    };
    let mut to_output = false;
    let mut skip_word = false;
    let mut nesting = 0usize;
    while out.segments.len() < MAX_SEGMENTS {
        let Some(token) = scan.next(known) else { break };
        match token {
            Token::Word(word) => {
                if skip_word {
                    skip_word = false;
                } else if to_output {
                    to_output = false;
                    segment.outputs.push(word);
                } else {
                    match word.as_str() {
                        "{" | "do" | "then" | "case" => nesting += 1,
                        "}" | "done" | "fi" | "esac" => nesting = nesting.saturating_sub(1),
                        _ => {}
                    }
                    if segment.words.is_empty()
                        && is_assignment(&word)
                        && known.len() < 256
                        && let Some((name, value)) = word.split_once('=')
                    {
                        known.push((name.to_owned(), value.to_owned()));
                    }
                    segment.words.push(word);
                }
            }
            Token::Output => to_output = true,
            Token::Input => skip_word = true,
            Token::Nothing => {}
            Token::Open => nesting += 1,
            Token::Close => nesting = nesting.saturating_sub(1),
            Token::Joined | Token::Ended => {
                let fresh = top && nesting == 0 && matches!(token, Token::Ended);
                close(&mut segment, known, depth, out);
                segment.fresh = fresh || (segment.fresh && out.segments.is_empty());
            }
        }
    }
    out.documents.extend(scan.bodies);
    close(&mut segment, known, depth, out);
}

/// Puts the finished segment into the list, and what it hands to a shell of its own after it.
fn close(segment: &mut Segment, known: &mut Vec<(String, String)>, depth: u8, out: &mut Command) {
    let done = std::mem::take(segment);
    if done.words.is_empty() && done.outputs.is_empty() {
        segment.fresh = done.fresh;
        return;
    }
    let words = done.command();
    let inner = match words.first().map(|word| base_name(word)) {
        Some("bash" | "sh" | "dash" | "zsh" | "ksh" | "su") if depth > 0 => words
            .iter()
            .position(|word| word.starts_with('-') && word.ends_with('c'))
            .and_then(|at| words.get(at + 1).cloned()),
        _ => None,
    };
    out.segments.push(done);
    if let Some(inner) = inner {
        split(&inner, known, depth - 1, false, out);
    }
}

#[derive(PartialEq, Eq)]
enum Token {
    Word(String),
    /// `>`, `>>`, `>|`, `&>`: a file to write follows.
    Output,
    /// `<` or a copy of a descriptor: a word to pass over follows.
    Input,
    Open,
    Close,
    /// Something that has been dealt with.
    Nothing,
    /// `|`, `&&`, `||`, `&`.
    Joined,
    /// `;` or a line break.
    Ended,
}

struct Scan<'a> {
    chars: std::iter::Peekable<std::str::CharIndices<'a>>,
    text: &'a str,
    /// Ends of the here-documents whose bodies start behind this line.
    documents: Vec<String>,
    /// The bodies that have been passed over.
    bodies: Vec<String>,
}

impl Scan<'_> {
    fn eat(&mut self, wanted: char) -> bool {
        self.chars.next_if(|(_, c)| *c == wanted).is_some()
    }

    fn next(&mut self, known: &[(String, String)]) -> Option<Token> {
        while self
            .chars
            .next_if(|(_, c)| matches!(c, ' ' | '\t' | '\r'))
            .is_some()
        {}
        let (start, first) = *self.chars.peek()?;
        match first {
            '\n' | ';' => {
                self.chars.next();
                if first == '\n' {
                    self.pass_documents();
                }
                Some(Token::Ended)
            }
            '|' => {
                self.chars.next();
                if !self.eat('|') {
                    self.eat('&');
                }
                Some(Token::Joined)
            }
            '&' => {
                self.chars.next();
                if self.eat('>') {
                    self.eat('>');
                    return Some(Token::Output);
                }
                self.eat('&');
                Some(Token::Joined)
            }
            '(' => {
                self.chars.next();
                Some(Token::Open)
            }
            ')' => {
                self.chars.next();
                Some(Token::Close)
            }
            '>' | '<' => {
                self.chars.next();
                Some(self.redirection(first, known))
            }
            '#' => {
                while self.chars.next_if(|(_, c)| *c != '\n').is_some() {}
                self.next(known)
            }
            _ => {
                let word = self.word(known);
                // `2>` and its like: the number belongs to the redirection.
                if word.len() <= 2
                    && word.chars().all(|c| c.is_ascii_digit())
                    && let Some((at, c)) = self.chars.peek().copied()
                    && matches!(c, '>' | '<')
                    && at == start + word.len()
                {
                    self.chars.next();
                    return Some(self.redirection(c, known));
                }
                Some(Token::Word(word))
            }
        }
    }

    fn redirection(&mut self, sign: char, known: &[(String, String)]) -> Token {
        if sign == '<' && self.eat('<') {
            if self.eat('<') {
                return Token::Input;
            }
            self.eat('-');
            while self.eat(' ') {}
            let end = self.word(known);
            if self.documents.len() < 16 {
                self.documents.push(end);
            }
            return Token::Nothing;
        }
        while self
            .chars
            .next_if(|(_, c)| *c == sign || *c == '|')
            .is_some()
        {}
        if self.eat('&') || sign == '<' {
            Token::Input
        } else {
            Token::Output
        }
    }

    /// Passes over the bodies of the here-documents: they are data.
    fn pass_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
            let mut body = String::new();
            while let Some((start, _)) = self.chars.peek().copied() {
                let line = self.text[start..].lines().next().unwrap_or_default();
                let after = start + line.len();
                while self.chars.next_if(|(at, _)| *at <= after).is_some() {}
                if line.trim_start_matches('\t') == end {
                    break;
                }
                body.push_str(line);
                body.push('\n');
            }
            self.bodies.push(body);
        }
    }

    fn word(&mut self, known: &[(String, String)]) -> String {
        let mut word = String::new();
        if self.chars.peek().is_some_and(|(_, c)| *c == '~') {
            self.chars.next();
            let alone = self.chars.peek().is_none_or(|(_, c)| {
                matches!(c, '/' | ' ' | '\t' | '\n' | ';' | '&' | '|' | ')' | ':')
            });
            match value("HOME", known) {
                Some(home) if alone => word.push_str(home),
                _ => word.push('~'),
            }
        }
        while let Some((at, c)) = self.chars.peek().copied() {
            match c {
                ' ' | '\t' | '\r' | '\n' | ';' | '|' | '&' | '(' | ')' | '<' | '>' => break,
                '\'' => {
                    self.chars.next();
                    for (_, c) in self.chars.by_ref() {
                        if c == '\'' {
                            break;
                        }
                        word.push(c);
                    }
                }
                '"' => {
                    self.chars.next();
                    while let Some((at, c)) = self.chars.next() {
                        match c {
                            '"' => break,
                            '\\' => word.extend(self.chars.next().map(|(_, c)| c)),
                            '$' => self.variable(at, known, &mut word),
                            _ => word.push(c),
                        }
                    }
                }
                '\\' => {
                    self.chars.next();
                    word.extend(self.chars.next().map(|(_, c)| c).filter(|c| *c != '\n'));
                }
                '$' => {
                    self.chars.next();
                    self.variable(at, known, &mut word);
                }
                _ => {
                    self.chars.next();
                    word.push(c);
                }
            }
        }
        word
    }

    /// Expands a known variable behind a `$` that stands at `at`; all else stays as it is written.
    fn variable(&mut self, at: usize, known: &[(String, String)], word: &mut String) {
        let rest = &self.text[at + 1..];
        if rest.starts_with('(') {
            // A substitution: its words are no words of this command.
            let end = closing(rest);
            while self
                .chars
                .next_if(|(place, _)| *place <= at + end)
                .is_some()
            {}
            word.push_str("$()");
            return;
        }
        let braced = rest.starts_with('{');
        let name_text = if braced { &rest[1..] } else { rest };
        let length = name_text
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(name_text.len());
        let name = &name_text[..length];
        let closed = !braced || name_text[length..].starts_with('}');
        match value(name, known) {
            Some(value) if length > 0 && closed => {
                let end = at + length + if braced { 2 } else { 0 };
                while self.chars.next_if(|(place, _)| *place <= end).is_some() {}
                word.push_str(value);
            }
            _ => word.push('$'),
        }
    }
}

/// Where the bracket that opens the text closes, in bytes; the end if it doesn't.
fn closing(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

/// Absolute paths, and those below the home folder, inside of program text.
fn embedded_paths(word: &str, home: Option<&str>) -> Vec<String> {
    const ENDS: &[char] = &[
        '\'', '"', '`', ' ', '\t', '\n', ')', '(', ',', ';', '|', '<', '>', '&', '{', '}', '[',
        ']', '+',
    ];
    let mut text = word.to_owned();
    if let Some(home) = home {
        for spelled in [
            "$ENV{HOME}",
            "$ENV{\"HOME\"}",
            "ENV['HOME']+'",
            "process.env.HOME+'",
            "os.environ['HOME']+'",
        ] {
            text = text.replace(spelled, home);
        }
        text = text
            .replace("'~/", &format!("'{home}/"))
            .replace("\"~/", &format!("\"{home}/"));
    }
    let mut paths = Vec::new();
    let mut before = ' ';
    let mut skip_until = 0;
    for (at, c) in text.char_indices() {
        if at >= skip_until
            && c == '/'
            && (ENDS.contains(&before) || matches!(before, ' ' | '=' | ':'))
        {
            let rest = &text[at..];
            if !rest.starts_with("//") {
                let end = rest.find(ENDS).unwrap_or(rest.len());
                if end > 1 {
                    paths.push(rest[..end].to_owned());
                }
                skip_until = at + end;
            }
        }
        before = c;
    }
    paths
}

/// The paths as they would be looked up from `cwd`.
pub fn from_folder(folder: &Path, path: &str) -> PathBuf {
    folder.join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> Command {
        let variables = [
            ("HOME".to_owned(), "/home/me".to_owned()),
            ("O".to_owned(), "/out".to_owned()),
        ];
        Command::read(text, Path::new("/ws"), &variables)
    }

    fn words(text: &str) -> Vec<Vec<String>> {
        command(text)
            .segments()
            .iter()
            .map(|segment| segment.words.clone())
            .collect()
    }

    #[test]
    fn words_lose_their_quotes_and_known_names_are_expanded() {
        assert_eq!(
            words("cp 'a b' ~/x \"$O/y\" ${O}/z $UNKNOWN/q ~other/w"),
            [[
                "cp",
                "a b",
                "/home/me/x",
                "/out/y",
                "/out/z",
                "$UNKNOWN/q",
                "~other/w"
            ]]
        );
        assert_eq!(
            words("D=/d; touch $D/f"),
            [vec!["D=/d"], vec!["touch", "/d/f"]]
        );
    }

    #[test]
    fn redirections_are_files_and_not_words() {
        let command = command("echo hi 2>/dev/null > ~/out; cat < in >> log 2>&1 | tail -5");
        let outputs: Vec<&str> = command.outputs().collect();
        assert_eq!(outputs, ["/dev/null", "/home/me/out", "log"]);
        assert_eq!(command.segments()[0].words, ["echo", "hi"]);
        assert_eq!(command.segments()[2].words, ["tail", "-5"]);
    }

    #[test]
    fn a_here_document_is_data_and_no_command() {
        let command = command("cat > /a <<'E' && make\nrm x\nE\ntouch y");
        let programs: Vec<_> = command
            .segments()
            .iter()
            .filter_map(Segment::program)
            .collect();
        assert_eq!(programs, ["cat", "make", "touch"]);
    }

    #[test]
    fn the_program_is_found_behind_its_wrappers() {
        for text in [
            "timeout -k 1 5 curl x",
            "A=1 env -i curl x",
            "exec /usr/bin/curl x",
            "! curl x",
        ] {
            assert_eq!(
                command(text).segments()[0].program(),
                Some("curl"),
                "{text}"
            );
        }
        assert!(command("bash -c 'cd /x && curl y'").starts("curl"));
        assert!(!command("echo curl").starts("curl"));
    }

    #[test]
    fn the_part_behind_the_last_semicolon_decides_the_exit_status() {
        let deciding = |text: &str| -> Vec<String> {
            command(text)
                .deciding()
                .iter()
                .filter_map(|s| s.program().map(str::to_owned))
                .collect()
        };
        assert_eq!(deciding("touch a; gcc b"), ["gcc"]);
        assert_eq!(deciding("touch a && gcc b"), ["touch", "gcc"]);
        assert_eq!(
            deciding(": > l && echo x || { echo y >&2; exit 3; }"),
            [":", "echo", "echo", "exit"]
        );
    }

    #[test]
    fn a_command_that_only_shows_is_told_from_one_that_does_something() {
        assert!(command("cat build.log; exit 1").only_shows());
        assert!(command("git log -1 && false").only_shows());
        assert!(!command("cat build.log; make").only_shows());
        assert!(!command("git fetch").only_shows());
        assert!(!command("").only_shows());
    }

    #[test]
    fn paths_and_addresses_inside_of_program_text_are_seen() {
        assert_eq!(
            command("python3 -c \"open('/a/b','w')\"").written_paths(None),
            ["/a/b"]
        );
        assert_eq!(
            command("perl -e 'open(F,\">\",\"$ENV{HOME}/p\")'").written_paths(None),
            ["/home/me/p"]
        );
        assert_eq!(
            command("curl http://127.0.0.1:8080/ok").addresses(),
            [("127.0.0.1".to_owned(), Some(8080))]
        );
        assert_eq!(
            command("nc -z -w2 127.0.0.1 80").addresses()[0].0,
            "127.0.0.1"
        );
        assert_eq!(
            command("x connect(('192.0.2.1',80),3)").written_paths(None),
            Vec::<String>::new()
        );
    }
}
