//! What git's directories look like, read from files alone.
//!
//! Rule: git itself is never run here, because a repository's own configuration can make any git
//! command run a program (`core.fsmonitor`, filters, pagers). Everything that a repository says is a
//! claim: it is read with a cap, and only ever used to protect more, unless both ends of a link agree.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// The paths in a git directory through which it runs code for whoever uses git there, existing or not:
/// its own, those of its linked worktrees and those of its submodules' git directories.
pub fn sensitive_paths(git_dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![git_dir.to_owned()];
    let mut git_dirs = 0;
    while let Some(git_dir) = todo.pop() {
        git_dirs += 1;
        if git_dirs > GIT_DIRS_AT_MOST {
            break;
        }
        // `commondir` and `gitdir` redirect git to another configuration.
        for name in ["hooks", "config", "config.worktree", "commondir"] {
            found.push(git_dir.join(name));
        }
        found.push(git_dir.join("info/attributes"));
        for worktree in folders_in(&git_dir.join("worktrees")) {
            for name in ["config.worktree", "commondir", "gitdir"] {
                found.push(worktree.join(name));
            }
            todo.extend(module_git_dirs(&worktree.join("modules")));
        }
        todo.extend(module_git_dirs(&git_dir.join("modules")));
    }
    found
}

/// Folders below `root` that are repositories of their own: the submodules that `.gitmodules` lists,
/// and what a bounded look at the first two levels finds. Never more than [`NESTED_AT_MOST`].
///
/// The look is remembered for some seconds while `root` itself is unchanged, since it is made before every
/// command and a large workspace doesn't change by itself.
pub fn nested_repositories(root: &Path) -> Vec<PathBuf> {
    type Known = HashMap<PathBuf, ([Option<Stamp>; 2], Instant, Vec<PathBuf>)>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let stamp = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| Stamp::of(&meta));
    let stamps = [stamp(root), stamp(&root.join(".gitmodules"))];
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

fn look_for_repositories(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut level = vec![root.to_owned()];
    let mut budget = FOLDERS_AT_MOST;
    for _ in 0..NESTED_DEPTH {
        let mut below = Vec::new();
        for folder in &level {
            for child in folders_in(folder) {
                if budget == 0 {
                    break;
                }
                budget -= 1;
                let name = child.file_name().unwrap_or_default();
                if [".git", "node_modules", "target"]
                    .iter()
                    .any(|skip| name == *skip)
                {
                    continue;
                }
                if fs::symlink_metadata(child.join(".git")).is_ok() {
                    found.push(child.clone());
                }
                below.push(child);
            }
        }
        level = below;
    }
    let mut at = 0;
    let mut listing = submodules_in(root);
    loop {
        for folder in listing {
            if found.len() < NESTED_AT_MOST
                && !found.contains(&folder)
                && fs::symlink_metadata(folder.join(".git")).is_ok()
            {
                found.push(folder);
            }
        }
        found.truncate(NESTED_AT_MOST);
        let Some(next) = found.get(at) else { break };
        listing = submodules_in(next);
        at += 1;
    }
    found.sort();
    found
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
pub const NESTED_AT_MOST: usize = 32;

/// How long a look for nested repositories is remembered.
const LOOK_LASTS: Duration = Duration::from_secs(5);

/// How many roots' nested repositories are remembered.
const LOOKS_AT_MOST: usize = 1024;

/// How many levels below a root are looked at for nested repositories.
const NESTED_DEPTH: usize = 2;

/// How many folders are looked at for nested repositories, whatever the workspace holds.
const FOLDERS_AT_MOST: usize = 256;

/// How many git directories, submodules' included, are looked after below one.
const GIT_DIRS_AT_MOST: usize = 64;

/// How many names of one folder are read.
const NAMES_AT_MOST: usize = 1024;

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

/// The git directories below a `modules` folder; a submodule's name may hold slashes.
fn module_git_dirs(modules: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut level = folders_in(modules);
    for _ in 0..3 {
        let (git_dirs, others): (Vec<_>, Vec<_>) = level
            .into_iter()
            .take(GIT_DIRS_AT_MOST)
            .partition(|folder| is_git_dir(folder));
        found.extend(git_dirs);
        level = others
            .iter()
            .flat_map(|folder| folders_in(folder))
            .collect();
    }
    found
}

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

/// The real folders in a folder, no links, in the order of their names.
fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(names) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = names
        .take(NAMES_AT_MOST)
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

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
