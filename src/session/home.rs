//! The folder that everything of a user's sessions lies in: `$DSH_HOME`, else `~/.dsh`.
//!
//! Rule: absolute and UTF-8, since commands are told it; what is made below it is for its owner alone.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{SessionError, file_error, is_id};

/// Where sessions are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home(PathBuf);

/// Why there is no home.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HomeError {
    /// Neither configured nor in the environment.
    #[error("no folder for sessions: set DSH_HOME or HOME")]
    Missing,
    /// A path that commands can't be told.
    #[error("the folder for sessions, {0:?}, isn't UTF-8; set DSH_HOME to one that is")]
    NotUtf8(PathBuf),
    /// A relative path and no current directory to take it from.
    #[error(
        "the folder for sessions, {0:?}, is relative and the current directory is gone; set DSH_HOME to an absolute path"
    )]
    Relative(PathBuf),
}

impl Home {
    /// `configured`, else `$DSH_HOME`, else `~/.dsh`; a relative one is taken from the current
    /// directory. Nothing is made on disk.
    ///
    /// # Errors
    /// None of them is there, or the path can't be used.
    pub fn find(configured: Option<&Path>) -> Result<Home, HomeError> {
        Home::choose(
            configured,
            std::env::var_os("DSH_HOME"),
            std::env::var_os("HOME"),
            std::env::current_dir().ok().as_deref(),
        )
    }

    fn choose(
        configured: Option<&Path>,
        dsh_home: Option<OsString>,
        user_home: Option<OsString>,
        current: Option<&Path>,
    ) -> Result<Home, HomeError> {
        let filled =
            |word: Option<OsString>| word.filter(|word| !word.is_empty()).map(PathBuf::from);
        let path = configured
            .map(Path::to_owned)
            .or_else(|| filled(dsh_home))
            .or_else(|| filled(user_home).map(|home| home.join(".dsh")))
            .ok_or(HomeError::Missing)?;
        if path.to_str().is_none() {
            return Err(HomeError::NotUtf8(path));
        }
        if path.is_absolute() {
            return Ok(Home(path));
        }
        match current {
            Some(current) if current.to_str().is_some() => Ok(Home(current.join(path))),
            Some(current) => Err(HomeError::NotUtf8(current.join(path))),
            None => Err(HomeError::Relative(path)),
        }
    }

    /// The folder itself, absolute.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder as text, for `DSH_HOME`.
    pub fn text(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }

    /// The folder of the session logs; it may not be there yet.
    pub fn sessions(&self) -> PathBuf {
        self.0.join("sessions")
    }

    /// The log of the session `id`; it may not be there.
    pub(super) fn log_path(&self, id: &str) -> PathBuf {
        self.sessions().join(format!("{id}.jsonl"))
    }

    /// The file of an existing session's log.
    ///
    /// # Errors
    /// The word is no id, or no log has it.
    pub fn existing_log(&self, id: &str) -> Result<PathBuf, SessionError> {
        if !is_id(id) {
            return Err(SessionError::BadId(id.to_owned()));
        }
        let path = self.log_path(id);
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_file() => Ok(path),
            Ok(_) => Err(SessionError::Unknown {
                id: id.to_owned(),
                dir: self.sessions(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(SessionError::Unknown {
                id: id.to_owned(),
                dir: self.sessions(),
            }),
            Err(error) => Err(file_error("look at", &path)(error)),
        }
    }

    /// Makes the folder of the logs, for its owner alone, and tightens one that is open to others.
    pub(super) fn prepare_sessions(&self) -> Result<PathBuf, SessionError> {
        let dir = self.sessions();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(file_error("create", &dir))?;
        let mode = fs::metadata(&dir)
            .map_err(file_error("look at", &dir))?
            .mode();
        if mode & 0o077 != 0 {
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))
                .map_err(file_error("close to others", &dir))?;
        }
        Ok(dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(
        configured: Option<&str>,
        dsh: Option<&str>,
        user: Option<&str>,
    ) -> Result<Home, HomeError> {
        Home::choose(
            configured.map(Path::new),
            dsh.map(OsString::from),
            user.map(OsString::from),
            Some(Path::new("/here")),
        )
    }

    #[test]
    fn the_home_is_the_configured_one_else_the_environments_else_below_the_users() {
        let path = |home: Result<Home, HomeError>| home.unwrap().path().to_owned();
        assert_eq!(
            path(choose(Some("/a"), Some("/b"), Some("/c"))),
            Path::new("/a")
        );
        assert_eq!(path(choose(None, Some("/b"), Some("/c"))), Path::new("/b"));
        assert_eq!(
            path(choose(None, Some(""), Some("/c"))),
            Path::new("/c/.dsh")
        );
        assert_eq!(
            path(choose(None, Some("rel"), None)),
            Path::new("/here/rel")
        );
        assert_eq!(choose(None, None, None), Err(HomeError::Missing));
    }
}
