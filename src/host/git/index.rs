//! Which folders git's index names as repositories of their own.
//!
//! Rule: a broken index says as much as can be read of it, in bounded time; it only ever makes more guarded.
//! The format is in `gitformat-index(5)`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::host::paths::{self, Stamp};

/// What an index says about further repositories.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Folders below the top of the working tree.
    pub folders: Vec<PathBuf>,
    /// Whether the index is too large to be read, or names more.
    pub cut: bool,
}

/// The folders that the index in a git directory names, read again when it changes.
pub(super) fn links(git_dir: &Path) -> Arc<Links> {
    static KNOWN: LazyLock<Mutex<HashMap<Stamp, Arc<Links>>>> = LazyLock::new(Mutex::default);
    let file = git_dir.join("index");
    let Ok(meta) = fs::metadata(&file) else {
        return Arc::default();
    };
    let stamp = Stamp::of(&meta);
    // Each entry is whole by itself, so a panic elsewhere leaves nothing broken.
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(links) = known().get(&stamp) {
        return Arc::clone(links);
    }
    let links = Arc::new(match paths::read_small(&file, INDEX_BYTES) {
        Ok(bytes) => parse(&bytes),
        Err(_) => Links {
            folders: Vec::new(),
            cut: meta.len() > INDEX_BYTES,
        },
    });
    if stamp.is_settled() {
        let mut known = known();
        if known.len() >= INDEXES_AT_MOST {
            known.clear();
        }
        known.insert(stamp, Arc::clone(&links));
    }
    links
}

fn parse(bytes: &[u8]) -> Links {
    // The length of an object's name isn't written down; with the wrong one the first entry makes no sense.
    let [short, long] = [20, 32].map(|hash| entries(bytes, hash));
    let (folders, cut, _) = if short.2 >= long.2 { short } else { long };
    Links { folders, cut }
}

/// The folders of the entries with the mode of a link to a repository, whether there are more of them, and
/// how many entries could be read.
fn entries(bytes: &[u8], hash: usize) -> (Vec<PathBuf>, bool, u32) {
    let mut folders = Vec::new();
    let word = |at: usize| {
        let four = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(four))
    };
    let (Some(version), Some(count)) = (word(4), word(8)) else {
        return (folders, false, 0);
    };
    let mut name = Vec::new();
    let mut start = 12;
    for number in 0..count {
        let flags_at = start + 40 + hash;
        let (Some(mode), Some(flags)) = (word(start + 24), bytes.get(flags_at..flags_at + 2))
        else {
            return (folders, false, number);
        };
        let extended = version >= 3 && flags[0] & 0x40 != 0;
        let mut at = flags_at + if extended { 4 } else { 2 };
        if version == 4 {
            let Some((dropped, next)) = number_at(bytes, at) else {
                return (folders, false, number);
            };
            name.truncate(name.len().saturating_sub(dropped));
            at = next;
        } else {
            name.clear();
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(length) = rest.iter().position(|byte| *byte == 0) else {
            return (folders, false, number);
        };
        name.extend_from_slice(&rest[..length]);
        let told = usize::from(flags[0] & 0x0f) << 8 | usize::from(flags[1]);
        if told != name.len().min(0xfff) {
            return (folders, false, number);
        }
        if mode == LINK_MODE {
            let folder = PathBuf::from(OsString::from_vec(name.clone()));
            let mut parts = folder.components();
            if parts.all(|part| matches!(part, Component::Normal(_))) {
                if folders.len() == LINKS_AT_MOST {
                    return (folders, true, number);
                }
                folders.push(folder);
            }
        }
        start = if version == 4 {
            at + length + 1
        } else {
            // One to eight zeros make the entry's length a multiple of eight.
            start + ((at + length - start) / 8 + 1) * 8
        };
    }
    (folders, false, count)
}

/// A number in git's variable form, and where it ends.
fn number_at(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut value = 0usize;
    loop {
        let byte = *bytes.get(at)?;
        at += 1;
        value = value
            .checked_shl(7)?
            .checked_add(usize::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
        value = value.checked_add(1).filter(|value| *value < 1 << 32)?;
    }
}

/// The mode of an entry that names a repository of its own.
const LINK_MODE: u32 = 0o160_000;

/// A larger index isn't read.
const INDEX_BYTES: u64 = 16 << 20;

/// How many folders of one index are looked at.
const LINKS_AT_MOST: usize = 1024;

/// How many indexes are remembered.
const INDEXES_AT_MOST: usize = 256;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn git(folder: &Path, args: &[&str]) -> String {
        let output = Command::new("git")
            .args(args)
            .current_dir(folder)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn the_links_of_an_index_are_read_in_every_version_and_with_both_hashes() {
        for format in ["sha1", "sha256"] {
            for version in ["2", "3", "4"] {
                let scratch = tempfile::tempdir().unwrap();
                let top = scratch.path();
                git(top, &["init", "-q", &format!("--object-format={format}")]);
                let long = "n".repeat(200);
                let names = [
                    "a",
                    "a.d/b",
                    "a.d/bc",
                    "cc/ddd",
                    "é",
                    &long,
                    "x1234567",
                    "x12345678",
                ];
                for name in names {
                    fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
                    fs::write(top.join(name), "").unwrap();
                }
                git(top, &["add", "."]);
                let hash = if format == "sha1" { 40 } else { 64 };
                let id = "1".repeat(hash);
                for name in ["a.d/lib", "deep/er/and/deeper/sub", "zz"] {
                    let entry = format!("160000,{id},{name}");
                    git(top, &["update-index", "--add", "--cacheinfo", &entry]);
                }
                if version == "3" {
                    // An entry with further flags makes it this version.
                    git(top, &["update-index", "--skip-worktree", "cc/ddd"]);
                } else {
                    git(top, &["update-index", "--index-version", version]);
                }
                let bytes = fs::read(top.join(".git/index")).unwrap();
                assert_eq!(bytes[7].to_string(), version);
                let expected = ["a.d/lib", "deep/er/and/deeper/sub", "zz"].map(PathBuf::from);
                let found = links(&top.join(".git"));
                assert_eq!(found.folders, expected, "{format} {version}");
                assert!(!found.cut);
                for end in 0..bytes.len() {
                    parse(&bytes[..end]);
                }
            }
        }
    }

    #[test]
    fn an_index_that_is_missing_or_no_index_names_nothing_and_a_huge_one_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(*links(scratch.path()), Links::default());
        let file = scratch.path().join("index");
        fs::write(&file, [0xff; 4096]).unwrap();
        assert_eq!(*links(scratch.path()), Links::default());
        fs::File::create(&file)
            .unwrap()
            .set_len(INDEX_BYTES + 1)
            .unwrap();
        assert!(links(scratch.path()).cut);
    }
}
