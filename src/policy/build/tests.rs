use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;
use crate::policy::{Access, Rule};

/// A home `h`, a workspace `w` and room beside them, in a folder that goes away.
struct World {
    _scratch: tempfile::TempDir,
    top: PathBuf,
}

impl World {
    fn new() -> World {
        // Below /tmp nothing is hidden, as nothing of it shows.
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let top = fs::canonicalize(scratch.path()).unwrap();
        fs::create_dir(top.join("h")).unwrap();
        fs::create_dir(top.join("w")).unwrap();
        World {
            _scratch: scratch,
            top,
        }
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.top.join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn folder(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn git(&self, folder: &str, args: &[&str]) {
        let output = Command::new("git")
            .args(["-c", "user.name=n", "-c", "user.email=e@x"])
            .args(["-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main"])
            .args(args)
            .current_dir(self.at(folder))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.at("h"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "git {args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Builds a policy for `w`, after `change` had its way with the request.
    fn build_with(
        &self,
        mode: Mode,
        change: impl FnOnce(&mut PolicyRequest<'_>),
    ) -> Result<(Policy, Vec<String>), NeverRan> {
        let workspace = self.at("w");
        let mut request = PolicyRequest {
            mode,
            workspace: &workspace,
            extra_writable: &[],
            network: None,
            require: None,
            profile: None,
            home: Some(self.at("h")),
            account_home: None,
            config_dir: Some(self.at("h/.config")),
            variable: &|_| None,
        };
        change(&mut request);
        Policy::build(&request)
    }

    fn build(&self, mode: Mode) -> Policy {
        let (policy, warnings) = self.build_with(mode, |_| ()).unwrap();
        assert_eq!(warnings, [""; 0]);
        policy
    }

    /// Names below the world's top.
    fn names(&self, places: &[Place]) -> Vec<String> {
        let names = places.iter().map(|place| {
            let name = place.path.strip_prefix(&self.top).unwrap_or(&place.path);
            name.to_str().unwrap().to_owned()
        });
        names.collect()
    }
}

fn may_write(policy: &Policy, path: impl AsRef<Path>) -> bool {
    policy.access(path.as_ref()).write
}

#[test]
fn the_workspace_is_writable_in_workspace_write_and_not_in_read_only() {
    let world = World::new();
    let file = world.at("w/file");
    assert_eq!(
        world.build(Mode::WorkspaceWrite).access(&file),
        Access {
            read: true,
            write: true,
            rule: Rule::Writable(Place {
                path: world.at("w"),
                origin: Origin::Workspace
            })
        }
    );
    assert_eq!(
        world.build(Mode::ReadOnly).access(&file),
        Access {
            read: true,
            write: false,
            rule: Rule::HostReadOnly
        }
    );
    assert!(!may_write(&world.build(Mode::WorkspaceWrite), world.at("beside")));
}
