//! Where the caller's home directories are.
//!
//! Rule: `$HOME` says what `~` means, and the account's own home is guarded as well, since its secrets
//! don't move when a variable does.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use super::paths::{self, Stamp};

/// What `~` means: `$HOME` when it is absolute, else the account's home.
pub fn home() -> Option<PathBuf> {
    std::env::var_os("HOME")
        .map(PathBuf::from)
        .filter(|home| home.is_absolute())
        .or_else(account_home)
}

/// The home in the user database, read once a process.
pub fn account_home() -> Option<PathBuf> {
    static HOME: OnceLock<Option<PathBuf>> = OnceLock::new();
    HOME.get_or_init(|| {
        nix::unistd::User::from_uid(nix::unistd::geteuid())
            .ok()
            .flatten()
            .map(|user| user.dir)
            .filter(|home| home.is_absolute())
    })
    .clone()
}

/// The folder of the user's configuration: `$XDG_CONFIG_HOME` when it is absolute, else `.config`
/// below `home`.
pub fn config_dir(home: Option<&Path>) -> Option<PathBuf> {
    std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| home.map(|home| home.join(".config")))
}

/// For root, who can read them all, the homes of the other users that exist: of the workspace's owner first,
/// then of those in `/etc/passwd`. Empty for everybody else.
pub fn other_homes(workspace: &Path) -> Vec<PathBuf> {
    if !nix::unistd::geteuid().is_root() {
        return Vec::new();
    }
    let owner = fs::metadata(workspace).map(|meta| meta.uid());
    let mut homes: Vec<PathBuf> = owner.ok().and_then(home_of).into_iter().collect();
    homes.extend(listed_homes());
    homes
}

/// The home of one user, in whatever database, asked for once a process.
fn home_of(uid: u32) -> Option<PathBuf> {
    static KNOWN: LazyLock<Mutex<HashMap<u32, Option<PathBuf>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= HOMES_AT_MOST && !known.contains_key(&uid) {
        known.clear();
    }
    let ask = || {
        let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid));
        user.ok().flatten().map(|user| user.dir)
    };
    let home = known.entry(uid).or_insert_with(ask).clone()?;
    (is_someones(&home) && home.is_dir()).then_some(home)
}

/// The homes in `/etc/passwd` that exist, read again when it changes.
fn listed_homes() -> Vec<PathBuf> {
    static KNOWN: Mutex<Option<(Stamp, Vec<PathBuf>)>> = Mutex::new(None);
    let file = Path::new("/etc/passwd");
    let Ok(meta) = fs::symlink_metadata(file) else {
        return Vec::new();
    };
    let stamp = Stamp::of(&meta);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*known {
        Some((then, homes)) if *then == stamp => homes.clone(),
        Some(_) | None => {
            let text = paths::read_small(file, PASSWD_BYTES).unwrap_or_default();
            let mut homes = homes_in(&text);
            homes.retain(|home| home.is_dir());
            homes.truncate(HOMES_AT_MOST);
            *known = Some((stamp, homes.clone()));
            homes
        }
    }
}

/// The homes in a text like `/etc/passwd`, each once: those of people before those of services.
fn homes_in(text: &[u8]) -> Vec<PathBuf> {
    let mut homes = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let [_, _, uid, _, _, home, ..] = fields[..] else {
            continue;
        };
        let uid = std::str::from_utf8(uid)
            .ok()
            .and_then(|uid| uid.parse().ok());
        let home = PathBuf::from(OsStr::from_bytes(home));
        let person = uid.is_some_and(|uid: u32| uid == 0 || uid >= FIRST_PERSON);
        if is_someones(&home) && !homes.iter().any(|(_, known)| *known == home) {
            homes.push((!person, home));
        }
    }
    homes.sort_by_key(|(service, _)| *service);
    homes.into_iter().map(|(_, home)| home).collect()
}

/// Whether a home is a folder of someone's own: services often name one of the system's.
fn is_someones(home: &Path) -> bool {
    const SYSTEM: [&str; 9] = [
        "/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/sbin", "/sys", "/usr",
    ];
    home.is_absolute()
        && home.parent().is_some()
        && !SYSTEM.iter().any(|folder| home.starts_with(folder))
}

/// How many homes are guarded.
const HOMES_AT_MOST: usize = 64;

/// As in most systems' `/etc/login.defs`: `UID_MIN`.
const FIRST_PERSON: u32 = 1000;

/// A longer `/etc/passwd` is taken as unreadable.
const PASSWD_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_of_people_come_first_each_once_and_the_systems_folders_are_none() {
        let text = b"daemon:x:1:1:d:/usr/sbin:/bin/sh\nwww:x:33:33::/var/www:/bin/sh\n\
                     sync:x:4:0::/:/bin/sync\nu:x:1000:1000:U,,:/home/u:/bin/sh\nbroken\n\
                     root:x:0:0::/root:/bin/sh\nv:x:1001:1:::\nu2:x:1002:1::/home/u:/bin/sh\n";
        assert_eq!(
            homes_in(text),
            ["/home/u", "/root", "/var/www"].map(PathBuf::from)
        );
    }

    #[test]
    fn root_knows_the_home_of_a_workspaces_owner() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        assert_eq!(home_of(0), account_home());
    }
}
