//! Finding the cofferdam binary that is started as a cell.
//!
//! Rule: a binary that a command could have written is refused: not in a writable root, not writable by
//! other users, and owned by root or by the caller. In a user namespace root's files show an owner without
//! a number; such a file is taken only when it is the very program that runs.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::outcome::{NeverRan, NeverRanCode};

/// The binary to start: `explicit`, else this executable when `self_serves` (its `main` calls
/// [`cell_main`](crate::cell_main) first), else `cofferdam` beside it, else on PATH.
///
/// # Errors
/// `SANDBOX_UNAVAILABLE`: there is none, or a command or another user could have changed it.
pub fn find(
    explicit: Option<&Path>,
    self_serves: bool,
    writable: &[&Path],
) -> Result<PathBuf, NeverRan> {
    let itself = explicit.is_none() && self_serves;
    let found = match explicit {
        Some(path) => path.to_owned(),
        None => search(self_serves).ok_or_else(|| {
            refused(
                "no cofferdam binary: none beside this program or on PATH".to_owned(),
                "install it with `cargo install cofferdam`, name its path, or call \
                 cofferdam::cell_main() first in main",
            )
        })?,
    };
    let canonical = found.canonicalize().map_err(|error| {
        refused(
            format!("no cofferdam binary at {}: {error}", found.display()),
            "name an existing one",
        )
    })?;
    judge(&canonical, writable, itself)?;
    Ok(canonical)
}

fn search(self_serves: bool) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    if self_serves {
        return Some(own);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    own.parent()
        .map(Path::to_owned)
        .into_iter()
        .chain(std::env::split_paths(&path).filter(|folder| folder.is_absolute()))
        .map(|folder| folder.join("cofferdam"))
        .find(|candidate| candidate.is_file())
}

fn judge(path: &Path, writable: &[&Path], itself: bool) -> Result<(), NeverRan> {
    if let Some(root) = writable.iter().find(|root| path.starts_with(root)) {
        return Err(refused(
            format!(
                "the cofferdam binary {} lies in the writable root {}, where a command could replace it",
                path.display(),
                root.display()
            ),
            "install it elsewhere, or use another workspace",
        ));
    }
    let facts = std::fs::metadata(path).map_err(|error| {
        refused(
            format!("no cofferdam binary at {}: {error}", path.display()),
            "name an existing one",
        )
    })?;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    if !facts.is_file() || facts.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(refused(
            format!(
                "the cofferdam binary {} can be changed by other users",
                path.display()
            ),
            &format!("make it yours alone: chmod go-w '{}'", path.display()),
        ));
    }
    let owner = facts.uid();
    let unmapped = itself && nameless_owner() == Some(owner);
    if ![0, Uid::effective().as_raw()].contains(&owner) && !unmapped {
        return Err(refused(
            format!(
                "the cofferdam binary {} belongs to user {owner}, who could change it",
                path.display()
            ),
            &format!("give it to root: sudo chown root '{}'", path.display()),
        ));
    }
    Ok(())
}

/// What stands for the owners that this user namespace has no number for; `None` where it has all.
fn nameless_owner() -> Option<u32> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let mapped: u64 = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum();
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    // The kernel's default, where a container hides the setting.
    let overflow = overflow
        .map_or(Ok(65534), |text| text.trim().parse())
        .ok()?;
    (mapped < u64::from(u32::MAX)).then_some(overflow)
}

fn refused(message: String, remedy: &str) -> NeverRan {
    NeverRan::refused(NeverRanCode::SandboxUnavailable, message, remedy)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn binary() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("cofferdam");
        std::fs::write(&path, "x").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (folder, path)
    }

    #[test]
    fn an_explicit_binary_of_the_callers_own_is_taken() {
        let (_folder, path) = binary();
        assert_eq!(find(Some(&path), false, &[]), Ok(path));
    }

    #[test]
    fn a_binary_in_a_writable_root_is_refused() {
        let (_folder, path) = binary();
        let root = path.parent().unwrap();
        let refusal = find(Some(&path), false, &[root]).unwrap_err();
        assert_eq!(refusal.code, NeverRanCode::SandboxUnavailable);
        assert_eq!(
            refusal.message,
            format!(
                "the cofferdam binary {} lies in the writable root {}, where a command could replace it",
                path.display(),
                root.display()
            )
        );
    }

    #[test]
    fn a_binary_that_others_may_write_is_refused() {
        let (_folder, path) = binary();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o775)).unwrap();
        let refusal = find(Some(&path), false, &[]).unwrap_err();
        assert_eq!(
            refusal.remedy,
            format!("make it yours alone: chmod go-w '{}'", path.display())
        );
    }

    #[test]
    fn a_missing_binary_is_named() {
        let refusal = find(Some(Path::new("/nonexistent/cofferdam")), false, &[]).unwrap_err();
        assert!(
            refusal
                .message
                .starts_with("no cofferdam binary at /nonexistent/cofferdam")
        );
    }
}
