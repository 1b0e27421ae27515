//! Where the caller's home directories are.
//!
//! Rule: `$HOME` says what `~` means, and the account's own home is guarded as well, since its secrets
//! don't move when a variable does.

use std::path::PathBuf;
use std::sync::OnceLock;

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
pub fn config_dir(home: Option<&std::path::Path>) -> Option<PathBuf> {
    std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .or_else(|| home.map(|home| home.join(".config")))
}
