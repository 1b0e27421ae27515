//! What git's directories look like, read from files alone.
//!
//! Rule: git itself is never run here, because a repository's own configuration can make any git
//! command run a program (`core.fsmonitor`, filters, pagers). Everything that a repository says is a
//! claim: it is read with a cap, and only ever used to protect more, unless both ends of a link agree.

mod index;

use std::collections::VecDeque;

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};

use super::paths::{self, Stamp};

/// What stands at `.git` in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DotGit {
    /// Nothing, or something that git wouldn't take for a repository either.
    Nothing,
    /// The git directory itself, canonical. It may lie elsewhere when `.git` is a link.
    Folder(PathBuf),
    /// A file that names a git directory elsewhere.
    Pointer(Pointer),
}

/// A `.git` file that names a git directory elsewhere: a linked worktree or a submodule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The git directory that it names, canonical and existing.
    pub git_dir: PathBuf,
    /// The directory that holds objects, refs and configuration; `git_dir` itself in a submodule.
    pub common_dir: PathBuf,
    /// Whether the git directory names this folder in turn and the two directories lie as git lays
    /// them, so that the user's own git must have linked them.
    pub both_ends_agree: bool,
}

/// Values of a git directory's configuration that name files which git will obey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `core.hooksPath`, each time that it is set, as written.
    pub hooks_paths: Vec<PathBuf>,
    /// `include.path` and `includeIf.*.path`, as written.
    pub includes: Vec<PathBuf>,
    /// The last `core.worktree`, as written.
    pub worktree: Option<PathBuf>,
}

/// What stands at `.git` in `folder`.
pub fn dot_git(folder: &Path) -> DotGit {
    let dot_git = folder.join(".git");
    let Some(canonical) = paths::existing(&dot_git) else {
        return DotGit::Nothing;
    };
    if canonical.is_dir() {
        return DotGit::Folder(canonical);
    }
    match pointer(folder, &canonical) {
        Some(pointer) => DotGit::Pointer(pointer),
        None => DotGit::Nothing,
    }
}

/// Whether a folder is a git directory: it has `HEAD`, `objects` and `refs`.
pub fn is_git_dir(folder: &Path) -> bool {
    fs::symlink_metadata(folder.join("HEAD")).is_ok()
        && folder.join("objects").is_dir()
        && folder.join("refs").is_dir()
}

/// What a bounded look found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// What there is.
    pub paths: Vec<PathBuf>,
    /// Where the look ended before it had seen all that it is meant to see, a phrase each.
    pub unseen: Vec<String>,
}

/// Where `commondir` in a git directory leads: git takes configuration and hooks from there.
pub fn redirected(git_dir: &Path) -> Option<PathBuf> {
    let content = paths::read_small(&git_dir.join("commondir"), POINTER_BYTES).ok()?;
    paths::existing(&git_dir.join(one_path(&content))).filter(|path| path != git_dir)
}

/// The paths in a git directory through which it runs code for whoever uses git there, existing or not:
/// its own, those of its linked worktrees and those of its submodules' git directories.
pub fn sensitive_paths(git_dir: &Path) -> Looked {
    let mut found = Looked::default();
    let mut todo = VecDeque::from([git_dir.to_owned()]);
    let mut left = GIT_DIRS_AT_MOST;
    let mut cut = false;
    while let Some(git_dir) = todo.pop_front() {
        if left == 0 {
            cut = true;
            break;
        }
        left -= 1;
        // `commondir` and `gitdir` redirect git to another configuration. A main git directory never has the
        // former, so that its appearance tells of an attack.
        for name in ["hooks", "config", "config.worktree", "commondir"] {
            found.paths.push(git_dir.join(name));
        }
        found.paths.push(git_dir.join("info/attributes"));
        let worktrees = listing(&git_dir.join("worktrees"), Marks::Ignored);
        cut |= worktrees.cut || worktrees.folders.len() > left;
        for worktree in worktrees.folders.into_iter().take(left) {
            left -= 1;
            for name in ["config.worktree", "commondir", "gitdir"] {
                found.paths.push(worktree.join(name));
            }
            cut |= add_module_git_dirs(&worktree.join("modules"), &mut todo);
        }
        cut |= add_module_git_dirs(&git_dir.join("modules"), &mut todo);
    }
    if cut {
        found.unseen.push(format!(
            "hooks and configuration of the git directories below {git_dir:?} beyond the first \
             {GIT_DIRS_AT_MOST}"
        ));
    }
    found
}

/// Folders below `root` that are repositories of their own, sorted: those that git knows as submodules at
/// any depth, and what a bounded look at the first two levels finds. Never more than [`NESTED_AT_MOST`].
///
/// The look is remembered for some seconds while `root` itself is unchanged, since it is made before every
/// command and a large workspace doesn't change by itself.
pub fn nested_repositories(root: &Path) -> Looked {
    type Known = HashMap<PathBuf, ([Option<Stamp>; 3], Instant, Looked)>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let stamp = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| Stamp::of(&meta));
    let stamps = [
        root.to_owned(),
        root.join(".gitmodules"),
        root.join(".git/index"),
    ]
    .map(|path| stamp(&path));
    // Each entry is whole by itself, so a panic elsewhere leaves nothing broken.
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((then, when, found)) = known().get(root)
        && *then == stamps
        && when.elapsed() < LOOK_LASTS
    {
        return found.clone();
    }
    let found = look_for_repositories(root);
    let mut known = known();
    if stamps.iter().flatten().all(Stamp::is_settled) {
        if known.len() >= LOOKS_AT_MOST {
            known.clear();
        }
        known.insert(root.to_owned(), (stamps, Instant::now(), found.clone()));
    } else {
        known.remove(root);
    }
    found
}

/// As [`nested_repositories`], always by a fresh look.
pub fn look_for_repositories(root: &Path) -> Looked {
    let mut found = Found::default();
    // First what git itself follows: the rest is whatever somebody has put there.
    for folder in known_to_git(root, &mut found.unseen) {
        found.add(folder);
    }
    let mut level = vec![root.to_owned()];
    let mut left = FOLDERS_AT_MOST;
    let (mut too_many, mut too_long) = (false, false);
    for depth in 1..=NESTED_DEPTH {
        let mut below = Vec::new();
        for folder in level {
            if left == 0 {
                too_many = true;
                break;
            }
            let listing = listing(&folder, Marks::Looked);
            too_long |= listing.cut;
            too_many |= listing.folders.len() > left;
            for (child, is_marked) in listing.folders.into_iter().zip(listing.marked).take(left) {
                left -= 1;
                let named = |name: &str| child.file_name().is_some_and(|own| own == name);
                if named(".git") {
                    continue;
                }
                if is_marked {
                    found.add(child.clone());
                }
                if depth < NESTED_DEPTH && !LEFT_OUT.iter().any(|name| named(name)) {
                    below.push(child);
                }
            }
        }
        level = below;
    }
    if too_many {
        found.unseen.push(format!(
            "hooks and configuration of repositories below {root:?} beyond its first \
             {FOLDERS_AT_MOST} folders"
        ));
    }
    if too_long {
        found.unseen.push(format!(
            "hooks and configuration of repositories in folders below {root:?} of more than \
             {NAMES_AT_MOST} names"
        ));
    }
    if found.more {
        found.unseen.push(format!(
            "hooks and configuration of repositories below {root:?} beyond the first \
             {NESTED_AT_MOST}"
        ));
    }
    found.folders.sort();
    Looked {
        paths: found.folders,
        unseen: found.unseen,
    }
}

/// Repositories in the order in which they were found, each with those that its git knows.
#[derive(Default)]
struct Found {
    folders: Vec<PathBuf>,
    known: HashSet<PathBuf>,
    unseen: Vec<String>,
    more: bool,
}

impl Found {
    fn add(&mut self, folder: PathBuf) {
        let mut todo = VecDeque::from([folder]);
        while let Some(folder) = todo.pop_front() {
            if self.known.contains(&folder) || !is_repository(&folder) {
                continue;
            }
            if self.folders.len() == NESTED_AT_MOST {
                self.more = true;
                return;
            }
            todo.extend(known_to_git(&folder, &mut self.unseen));
            self.known.insert(folder.clone());
            self.folders.push(folder);
        }
    }
}

/// Whether git would take a folder for a repository: it has a `.git`, or is a git directory itself.
fn is_repository(folder: &Path) -> bool {
    fs::symlink_metadata(folder.join(".git")).is_ok() || is_git_dir(folder)
}

/// The folders of a repository's submodules: those that its index links, which are all that git looks into by
/// itself, those that `.gitmodules` lists, and those that the git directories of submodules name.
fn known_to_git(top: &Path, unseen: &mut Vec<String>) -> Vec<PathBuf> {
    let mut found = submodules_in(top);
    let git_dir = match dot_git(top) {
        DotGit::Nothing => return found,
        DotGit::Folder(git_dir) => git_dir,
        DotGit::Pointer(pointer) => pointer.git_dir,
    };
    let links = index::links(&git_dir);
    if links.cut {
        unseen.push(format!(
            "hooks and configuration of repositories that the large index in {git_dir:?} links"
        ));
    }
    found.extend(links.folders.iter().map(|folder| top.join(folder)));
    // Git follows no link on the way to a submodule.
    found.retain(|folder| paths::existing(folder).as_ref() == Some(folder));
    let mut modules = VecDeque::new();
    // Where it is cut off, `sensitive_paths` says so.
    add_module_git_dirs(&git_dir.join("modules"), &mut modules);
    for module in modules.into_iter().take(GIT_DIRS_AT_MOST) {
        let worktree = config(&module.join("config")).worktree;
        let folder = worktree.and_then(|path| paths::existing(&module.join(path)));
        found.extend(folder.filter(|folder| folder != top && folder.starts_with(top)));
    }
    found
}

/// A configuration file and what it includes, under whatever condition, each with its values. The answer
/// is also whether there was more than is followed.
pub fn config_with_includes(file: &Path, home: Option<&Path>) -> (Vec<(PathBuf, Config)>, bool) {
    let mut found: Vec<(PathBuf, Config)> = Vec::new();
    let mut todo = VecDeque::from([(file.to_owned(), 0)]);
    let mut cut = false;
    while let Some((file, depth)) = todo.pop_front() {
        if found.iter().any(|(known, _)| *known == file) {
            continue;
        }
        if found.len() == INCLUDES_AT_MOST {
            cut = true;
            break;
        }
        let config = config(&file);
        let folder = file.parent().unwrap_or(Path::new("/"));
        let includes = config.includes.iter();
        // At this depth git gives up with an error.
        if depth < INCLUDE_DEPTH {
            todo.extend(includes.map(|path| (expand(path, folder, home), depth + 1)));
        }
        found.push((file, config));
    }
    (found, cut)
}

/// What a path in a configuration means: `~/x` below the home, else below `base` unless it is absolute.
pub fn expand(path: &Path, base: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => base.join(path),
    }
}

/// The telling values of one configuration file; nothing when it can't be read.
pub fn config(file: &Path) -> Config {
    let mut found = Config::default();
    for entry in entries(&paths::read_small(file, CONFIG_BYTES).unwrap_or_default()) {
        let value = PathBuf::from(OsString::from_vec(entry.value));
        match (entry.section.as_str(), entry.key.as_str()) {
            ("core", "hookspath") => found.hooks_paths.push(value),
            ("core", "worktree") => found.worktree = Some(value),
            ("include" | "includeif", "path") => found.includes.push(value),
            _ => {}
        }
    }
    found
}

/// How many nested repositories are looked after.
pub const NESTED_AT_MOST: usize = 128;

/// How long a look for nested repositories is remembered.
const LOOK_LASTS: Duration = Duration::from_secs(5);

/// How many roots' nested repositories are remembered.
const LOOKS_AT_MOST: usize = 1024;

/// How many levels below a root are looked at for nested repositories.
const NESTED_DEPTH: usize = 2;

/// Folders that may be repositories, but aren't looked into for others.
const LEFT_OUT: [&str; 2] = ["node_modules", "target"];

/// How many folders are looked at for nested repositories, whatever the workspace holds.
const FOLDERS_AT_MOST: usize = 1024;

/// How many git directories, worktrees' and submodules' included, are looked after below one.
const GIT_DIRS_AT_MOST: usize = 256;

/// How many names of one folder are read.
const NAMES_AT_MOST: usize = 4096;

/// How many configuration files are read for one.
const INCLUDES_AT_MOST: usize = 32;

/// As in git: `MAX_INCLUDE_DEPTH`.
const INCLUDE_DEPTH: usize = 10;

/// Longer configuration files are taken as unreadable.
const CONFIG_BYTES: u64 = 1 << 20;

/// Longer pointer files are taken as unreadable.
const POINTER_BYTES: u64 = 8192;

/// Reads the pointer file at the canonical path `file`, found as `.git` in `folder`.
fn pointer(folder: &Path, file: &Path) -> Option<Pointer> {
    let content = paths::read_small(file, POINTER_BYTES).ok()?;
    let named = one_path(content.strip_prefix(b"gitdir: ")?);
    let git_dir = paths::existing(&folder.join(named)).filter(|path| path.is_dir())?;
    let named_back = |name: &str| {
        let content = paths::read_small(&git_dir.join(name), POINTER_BYTES).ok()?;
        paths::existing(&git_dir.join(one_path(&content)))
    };
    Some(match named_back("commondir") {
        Some(common_dir) => Pointer {
            both_ends_agree: named_back("gitdir").as_deref() == Some(file)
                && git_dir.parent() == Some(&common_dir.join("worktrees"))
                && is_git_dir(&common_dir),
            git_dir,
            common_dir,
        },
        None => {
            let worktree = config(&git_dir.join("config")).worktree;
            let named_back = worktree.and_then(|path| paths::existing(&git_dir.join(path)));
            Pointer {
                both_ends_agree: named_back.as_deref() == file.parent() && is_git_dir(&git_dir),
                common_dir: git_dir.clone(),
                git_dir,
            }
        }
    })
}

/// The path in a file that holds one path and a line end.
fn one_path(content: &[u8]) -> PathBuf {
    let end = content
        .iter()
        .rposition(|byte| !matches!(byte, b'\n' | b'\r'))
        .map_or(0, |last| last + 1);
    PathBuf::from(OsString::from_vec(content[..end].to_vec()))
}

/// Adds the git directories below a `modules` folder, where a submodule's name may hold slashes. The answer
/// is whether there are more.
fn add_module_git_dirs(modules: &Path, found: &mut VecDeque<PathBuf>) -> bool {
    let mut level = vec![modules.to_owned()];
    let mut left = GIT_DIRS_AT_MOST;
    let mut cut = false;
    for _ in 0..MODULE_NAME_DEPTH {
        let mut below = Vec::new();
        for folder in level {
            let listing = listing(&folder, Marks::Ignored);
            cut |= listing.cut || listing.folders.len() > left;
            for child in listing.folders.into_iter().take(left) {
                left -= 1;
                if is_git_dir(&child) {
                    found.push_back(child);
                } else {
                    below.push(child);
                }
            }
        }
        level = below;
    }
    cut
}

/// How many parts a submodule's name may have.
const MODULE_NAME_DEPTH: usize = 4;

/// The folders that `.gitmodules` in `root` lists, as far as they stay below it.
fn submodules_in(root: &Path) -> Vec<PathBuf> {
    let content = paths::read_small(&root.join(".gitmodules"), CONFIG_BYTES).unwrap_or_default();
    entries(&content)
        .into_iter()
        .filter(|entry| entry.section == "submodule" && entry.key == "path")
        .map(|entry| PathBuf::from(OsString::from_vec(entry.value)))
        .filter(|path| {
            path.components()
                .all(|part| matches!(part, Component::Normal(_)))
        })
        .map(|path| root.join(path))
        .collect()
}

/// The real folders in a folder, no links.
#[derive(Default)]
struct Listing {
    /// In the order of their names.
    folders: Vec<PathBuf>,
    /// Whether there is a `.git` or a `HEAD` in each.
    marked: Vec<bool>,
    /// Whether the folder holds more names than are read.
    cut: bool,
}

/// Whether folders are looked into for what marks a repository.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marks {
    Looked,
    Ignored,
}

fn listing(folder: &Path, marks: Marks) -> Listing {
    let mut found = Listing::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(folder, flags, Mode::empty()) else {
        return found;
    };
    // From the open folder each look is much shorter than by a whole path.
    let facts = |name: &[u8]| rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW);
    let mut buffer = Vec::with_capacity(LISTING_BYTES);
    let mut entries = RawDir::new(&opened, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    let mut left = NAMES_AT_MOST;
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if left == 0 {
            found.cut = true;
            break;
        }
        left -= 1;
        let mut kind = entry.file_type();
        if kind == FileType::Unknown
            && let Ok(facts) = facts(name)
        {
            kind = FileType::from_raw_mode(facts.st_mode);
        }
        if kind == FileType::Directory {
            names.push(OsString::from_vec(name.to_owned()));
        }
    }
    names.sort();
    for name in names {
        if marks == Marks::Looked {
            let holds = |mark: &[u8]| facts(&[name.as_bytes(), mark].concat()).is_ok();
            found.marked.push(holds(b"/.git") || holds(b"/HEAD"));
        }
        found.folders.push(folder.join(name));
    }
    found
}

/// How much of a folder is read at once.
const LISTING_BYTES: usize = 16 << 10;

/// One assignment of a git configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// In lower case, without its subsection.
    section: String,
    /// In lower case.
    key: String,
    value: Vec<u8>,
}

/// Reads a git configuration file as `git-config(1)` describes it; what git would refuse is skipped, so
/// that a broken line hides nothing that follows it.
fn entries(content: &[u8]) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut section = String::new();
    let mut rest = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    while let Some(&first) = rest.first() {
        match first {
            b'[' => {
                let (name, after) = section_header(&rest[1..]);
                section = name;
                rest = after;
            }
            b'#' | b';' => rest = next_line(rest),
            byte if byte.is_ascii_whitespace() => rest = &rest[1..],
            byte if byte.is_ascii_alphabetic() => {
                let end = rest
                    .iter()
                    .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-')
                    .unwrap_or(rest.len());
                let key = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
                rest = skip_blanks(&rest[end..]);
                if rest.first() == Some(&b'=') {
                    let (value, after) = value(&rest[1..]);
                    rest = after;
                    found.push(Entry {
                        section: section.clone(),
                        key,
                        value,
                    });
                } else {
                    rest = next_line(rest);
                }
            }
            _ => rest = next_line(rest),
        }
    }
    found
}

/// The section's name and what follows the closing bracket.
fn section_header(text: &[u8]) -> (String, &[u8]) {
    let mut quoted = false;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\n' => break,
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            b']' if !quoted => break,
            _ => {}
        }
        at += 1;
    }
    let at = at.min(text.len());
    let name = text[..at]
        .split(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'.'))
        .next()
        .unwrap_or_default();
    let after = text.get(at + 1..).unwrap_or_default();
    (String::from_utf8_lossy(name).to_ascii_lowercase(), after)
}

/// A value after its `=`, and what follows its line.
fn value(text: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut value = Vec::new();
    // The length of `value` up to its last byte that isn't unquoted white space.
    let mut kept = 0;
    let (mut quoted, mut comment) = (false, false);
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'\n' => break,
            _ if comment => {}
            b'\r' if text.get(at) == Some(&b'\n') => {}
            b'"' => {
                quoted = !quoted;
                kept = value.len();
            }
            b'#' | b';' if !quoted => comment = true,
            b'\\' => {
                let escaped = text.get(at).copied();
                at += 1;
                match escaped {
                    Some(b'n') => value.push(b'\n'),
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(b'\r') if text.get(at) == Some(&b'\n') => at += 1,
                    Some(b'\n') | None => {}
                    Some(other) => value.push(other),
                }
                kept = value.len();
            }
            byte if byte.is_ascii_whitespace() && !quoted => {
                if !value.is_empty() {
                    value.push(byte);
                }
            }
            byte => {
                value.push(byte);
                kept = value.len();
            }
        }
    }
    value.truncate(kept);
    (value, text.get(at.min(text.len())..).unwrap_or_default())
}

fn next_line(text: &[u8]) -> &[u8] {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => &text[end + 1..],
        None => &[],
    }
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'));
    &text[blanks.count()..]
}

#[cfg(test)]
mod tests;
