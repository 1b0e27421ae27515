//! Repositories that came while a command ran.
//!
//! Rule: a policy guards the repositories that it knew; what git would obey in a new one was written by
//! whoever made it, so it is told by name.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Origin, Policy};
use crate::host::git;

/// Repositories in and below the writable roots that are there now and that `policy` didn't know, sorted: the
/// `.git` of each, or the folder itself where it is a git directory. It looks anew, as far as a policy does.
pub fn new_repositories(policy: &Policy) -> Vec<PathBuf> {
    let guarded = [&policy.protected, &policy.pinned, &policy.protected_links];
    let known: HashSet<&Path> = guarded
        .into_iter()
        .flatten()
        .map(|place| place.path.as_path())
        .collect();
    // A git directory that the policy knew has a configuration, or would be told to get one.
    let is_known_git_dir = |folder: &Path| {
        let config = folder.join("config");
        known.contains(config.as_path())
            || policy
                .protected_absent
                .iter()
                .any(|place| place.path == config)
    };
    let mut found = Vec::new();
    for root in &policy.writable {
        if root.origin == Origin::GitWorktree || !root.path.is_dir() {
            continue;
        }
        let nested = git::look_for_repositories(&root.path).paths;
        for folder in std::iter::once(root.path.clone()).chain(nested) {
            if !policy.access(&folder).write {
                continue;
            }
            let dot_git = folder.join(".git");
            if std::fs::symlink_metadata(&dot_git).is_ok() {
                if !known.contains(dot_git.as_path()) {
                    found.push(dot_git);
                }
            } else if git::is_git_dir(&folder) && !is_known_git_dir(&folder) {
                found.push(folder);
            }
        }
    }
    found.sort();
    found.dedup();
    found
}
