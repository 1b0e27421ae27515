use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;
use crate::policy::{Access, Rule};

const WRITE: Mode = Mode::WorkspaceWrite;

/// A home `h`, a workspace `w` and room beside them, in a folder that goes away.
struct World {
    _scratch: tempfile::TempDir,
    top: PathBuf,
    workspace: PathBuf,
}

impl World {
    fn new() -> World {
        // Not in /tmp, where nothing is hidden, as nothing of it shows.
        let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
        let top = fs::canonicalize(scratch.path()).unwrap();
        let world = World {
            _scratch: scratch,
            workspace: top.join("w"),
            top,
        };
        world.folder("h");
        world.folder("w");
        world
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
            .args([
                "-c",
                "protocol.file.allow=always",
                "-c",
                "init.defaultBranch=main",
            ])
            .args(args)
            .current_dir(self.at(folder))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.at("h"))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {args:?}: {stderr}");
    }

    /// A repository with one commit.
    fn repository(&self, folder: &str) {
        self.folder(folder);
        self.git(folder, &["init", "-q"]);
        self.git(folder, &["commit", "-q", "--allow-empty", "-m", "i"]);
    }

    fn request(&self, mode: Mode) -> PolicyRequest<'_> {
        PolicyRequest {
            mode,
            workspace: &self.workspace,
            extra_writable: &[],
            network: None,
            require: None,
            profile: None,
            home: Some(self.at("h")),
            account_home: None,
            config_dir: Some(self.at("h/.config")),
            variable: &|_| None,
        }
    }

    fn policy(&self, mode: Mode) -> Policy {
        policy(&self.request(mode))
    }

    /// The names of places, as far as they lie in the world.
    fn names(&self, places: &[Place]) -> Vec<String> {
        let inside = places
            .iter()
            .filter_map(|place| place.path.strip_prefix(&self.top).ok());
        inside
            .map(|name| name.to_str().unwrap().to_owned())
            .collect()
    }

    fn line(&self, file: &Path, line: usize) -> Origin {
        Origin::Profile {
            file: file.to_str().unwrap().to_owned(),
            line,
        }
    }
}

/// Builds a policy that nothing is to be said about.
fn policy(request: &PolicyRequest<'_>) -> Policy {
    let (policy, warnings) = Policy::build(request).unwrap();
    assert_eq!(warnings, [""; 0]);
    policy
}

fn error(request: &PolicyRequest<'_>) -> String {
    Policy::build(request).unwrap_err().to_string()
}

fn may_write(policy: &Policy, path: impl AsRef<Path>) -> bool {
    policy.access(path.as_ref()).write
}

#[test]
fn the_workspace_is_writable_in_workspace_write_and_not_in_read_only() {
    let world = World::new();
    let file = world.at("w/file");
    assert_eq!(
        world.policy(WRITE).access(&file),
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
        world.policy(Mode::ReadOnly).access(&file),
        Access {
            read: true,
            write: false,
            rule: Rule::HostReadOnly
        }
    );
    assert!(!may_write(&world.policy(WRITE), world.at("beside")));
    assert_eq!(
        world.policy(Mode::DangerFullAccess).access(&file).rule,
        Rule::Unconfined
    );
}

#[test]
fn a_workspace_that_is_missing_or_no_folder_or_relative_is_refused() {
    let world = World::new();
    let file = world.write("file", "");
    let missing = world.at("no\nne");
    for mode in Mode::ALL {
        let text = |workspace: &Path| {
            let request = PolicyRequest {
                workspace,
                ..world.request(mode)
            };
            let refused = Policy::build(&request).unwrap_err();
            assert_eq!(refused.code, NeverRanCode::InvalidArgs);
            refused.to_string()
        };
        assert_eq!(
            text(&missing),
            format!("workspace {missing:?} doesn't exist; create it or name another")
        );
        assert_eq!(
            text(&file),
            format!("workspace {file:?} isn't a folder; name a folder with --workspace")
        );
        assert_eq!(
            text(Path::new("here")),
            "workspace \"here\" isn't an absolute path; name it from the root"
        );
    }
}

#[test]
fn the_whole_machine_and_system_folders_are_refused_and_folders_below_some_are_not() {
    let reason = |path: &str| system_folder(Path::new(path), &[], Strictness::Workspace);
    for path in [
        "/",
        "/home",
        "/root",
        "/tmp",
        "/usr",
        "/var",
        "/var/lib",
        "/opt",
        "/srv",
        "/mnt",
        "/etc",
        "/etc/x",
        "/boot",
        "/bin",
        "/lib",
        "/lib64/x",
        "/sbin",
        "/proc",
        "/proc/self",
        "/sys/kernel",
        "/dev",
        "/dev/shm",
        "/run",
        "/run/user/1000",
        "/run/media",
        "/usr/bin",
        "/usr/lib/x",
        "/usr/local",
        "/usr/local/bin",
    ] {
        assert_ne!(reason(path), None, "{path}");
    }
    for path in [
        "/home/u",
        "/home/u/p",
        "/root/p",
        "/tmp/w",
        "/usr/src/app",
        "/opt/app",
        "/srv/x",
        "/var/www/x",
        "/var/lib/jenkins/w",
        "/mnt/disk",
        "/dev/shm/w",
        "/run/media/u/disk",
        "/work",
        "/data/etc",
    ] {
        assert_eq!(reason(path), None, "{path}");
    }
    let home = |path: &str| {
        let homes = [PathBuf::from(path)];
        system_folder(Path::new(path), &homes, Strictness::Workspace)
    };
    assert_eq!(home("/root"), None);
    assert_ne!(home("/"), None);
    assert_ne!(home("/etc"), None);
    // Who names a root beside the workspace may mean a folder of the system, but never all of it.
    let root = |path: &str| system_folder(Path::new(path), &[], Strictness::Root);
    assert_eq!(root("/etc/nginx"), None);
    assert_ne!(root("/etc"), None);
    assert_ne!(root("/proc/sys"), None);
}

#[test]
fn a_refused_workspace_says_why_and_full_access_takes_it() {
    let world = World::new();
    let request = |mode| PolicyRequest {
        workspace: Path::new("/etc"),
        ..world.request(mode)
    };
    for mode in [Mode::ReadOnly, WRITE] {
        assert_eq!(
            error(&request(mode)),
            "workspace \"/etc\" is refused: it holds the settings of the machine; use a folder of \
             your own, such as a project below your home"
        );
    }
    assert_eq!(
        policy(&request(Mode::DangerFullAccess)).network,
        Network::Host
    );
}

#[test]
fn a_workspace_of_any_name_and_one_behind_a_link_are_canonical() {
    let world = World::new();
    let odd = world.at(OsStr::from_bytes(b"a b\n\xff"));
    fs::create_dir(&odd).unwrap();
    symlink(&odd, world.at("link")).unwrap();
    for workspace in [&odd, &world.at("link")] {
        let policy = policy(&PolicyRequest {
            workspace,
            ..world.request(WRITE)
        });
        assert_eq!(policy.workspace, odd);
        assert!(may_write(&policy, odd.join("file")));
        let json = serde_json::to_value(&policy).unwrap();
        assert!(
            json["workspace"]
                .as_str()
                .unwrap()
                .ends_with("a b\n\u{fffd}")
        );
    }
}

#[test]
fn the_deepest_rule_wins_whatever_the_order_in_the_profile() {
    let world = World::new();
    world.folder("root/ro/rw");
    let root = world.at("root");
    let root = root.display();
    for lines in [
        format!("writable = ['{root}', '{root}/ro/rw']\nprotected = ['{root}/ro']\n"),
        format!("protected = ['{root}/ro']\nwritable = ['{root}/ro/rw', '{root}']\n"),
    ] {
        let profile = world.write("p.toml", &lines);
        let policy = policy(&PolicyRequest {
            profile: Some(&profile),
            ..world.request(WRITE)
        });
        assert!(may_write(&policy, world.at("root/a")));
        assert!(!may_write(&policy, world.at("root/ro/b")));
        assert!(may_write(&policy, world.at("root/ro/rw/c")));
        assert_eq!(world.names(&policy.writable), ["root", "root/ro/rw", "w"]);
        assert_eq!(world.names(&policy.protected), ["root/ro"]);
    }
}

#[test]
fn a_single_file_can_be_a_writable_root_and_a_socket_or_nothing_can_not() {
    let world = World::new();
    let file = world.write("file", "");
    let fifo = world.at("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let none = world.at("none");
    let with = |root: &Path| {
        Policy::build(&PolicyRequest {
            extra_writable: &[root.to_owned()],
            ..world.request(WRITE)
        })
    };
    let (policy, _) = with(&file).unwrap();
    assert!(may_write(&policy, &file));
    assert!(!may_write(&policy, world.at("file2")));
    assert_eq!(
        with(&fifo).unwrap_err().to_string(),
        format!(
            "writable root {fifo:?} is neither a folder nor a file; name a folder or a regular file"
        )
    );
    assert_eq!(
        with(&none).unwrap_err().to_string(),
        format!("writable root {none:?} doesn't exist; create it or name another")
    );
    assert_eq!(
        with(Path::new("/usr")).unwrap_err().to_string(),
        "writable root \"/usr\" is refused: it holds the programs of the machine; name the folder \
         below it that the command needs"
    );
}

#[test]
fn in_read_only_no_root_is_writable_whoever_names_it() {
    let world = World::new();
    let root = world.folder("root");
    let profile = world.write("p.toml", &format!("writable = ['{}']", root.display()));
    let request = |mode| PolicyRequest {
        profile: Some(&profile),
        ..world.request(mode)
    };
    assert_eq!(policy(&request(Mode::ReadOnly)).writable, []);
    assert!(may_write(&policy(&request(WRITE)), world.at("root/x")));
}

#[test]
fn a_root_that_became_a_link_is_refused_and_the_same_folder_is_taken() {
    let world = World::new();
    world.folder("target");
    let build = world.folder("w/build");
    let roots = [build.clone()];
    let request = PolicyRequest {
        extra_writable: &roots,
        ..world.request(WRITE)
    };
    assert_eq!(world.names(&policy(&request).writable), ["w", "w/build"]);
    fs::remove_dir(&build).unwrap();
    symlink(world.at("target"), &build).unwrap();
    assert_eq!(
        error(&request),
        format!(
            "writable root {build:?} is reached through the link {build:?}, which a command could \
             have made; name the place that it should be, without a link inside a writable root"
        )
    );
    // A link that stays inside gives nothing away.
    fs::remove_file(&build).unwrap();
    symlink(world.folder("w/inner"), &build).unwrap();
    assert_eq!(world.names(&policy(&request).writable), ["w", "w/inner"]);
    // A link outside of every root is the user's.
    let outside = [world.at("link")];
    symlink(world.at("target"), &outside[0]).unwrap();
    let request = PolicyRequest {
        extra_writable: &outside,
        ..world.request(WRITE)
    };
    assert_eq!(world.names(&policy(&request).writable), ["target", "w"]);
}

#[test]
fn secrets_of_the_home_are_hidden_and_its_other_files_are_not() {
    let world = World::new();
    world.write("h/.ssh/id", "");
    world.write("h/.npmrc", "");
    world.write("h/.gitconfig", "");
    world.write("other/.ssh/id", "");
    for mode in [Mode::ReadOnly, WRITE] {
        let policy = policy(&PolicyRequest {
            account_home: Some(world.at("other")),
            ..world.request(mode)
        });
        let reads = |name: &str| policy.access(&world.at(name)).read;
        assert!(!reads("h/.ssh"));
        assert!(!reads("h/.ssh/id"));
        assert!(!reads("h/.npmrc"));
        assert!(reads("h/.gitconfig"));
        assert!(!reads("other/.ssh/id"));
        assert_eq!(
            world.names(&policy.hidden),
            ["h/.npmrc", "h/.ssh", "other/.ssh"]
        );
    }
}

#[test]
fn a_workspace_below_a_hidden_folder_works_and_the_hidden_folder_itself_is_refused() {
    let world = World::new();
    let inside = world.folder("h/.ssh/project");
    let request = |workspace| PolicyRequest {
        workspace,
        ..world.request(WRITE)
    };
    let built = policy(&request(&inside));
    assert!(may_write(&built, inside.join("x")));
    assert!(!built.access(&world.at("h/.ssh/id")).read);
    let ssh = world.at("h/.ssh");
    let (file, line) = builtin_line("read-only", "\"~/.ssh\",");
    assert_eq!(
        error(&request(&ssh)),
        format!(
            "{ssh:?} can't be worked in: {file}:{line} hides it; choose another workspace, or \
             unhide it in a profile of yours"
        )
    );
}

#[test]
fn sockets_are_hidden_wherever_a_variable_says_and_never_the_home_or_the_workspace() {
    let world = World::new();
    world.write("xdg/bus", "");
    world.write("agent", "");
    world.write("tmux", "");
    let value = |name: &str, text: String| (name.to_owned(), OsString::from(text));
    let top = world.top.display();
    let hidden = |variables: &[(String, OsString)]| {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        world.names(
            &policy(&PolicyRequest {
                variable: &variable,
                ..world.request(WRITE)
            })
            .hidden,
        )
    };
    assert_eq!(
        hidden(&[
            value(
                "DBUS_SESSION_BUS_ADDRESS",
                format!("unix:abstract=/no;unix:path={top}/xdg/bus,guid=1")
            ),
            value("DOCKER_HOST", format!("unix://{top}/agent")),
            value("TMUX", format!("{top}/tmux,12,0")),
            value("SSH_AUTH_SOCK", format!("{top}/missing")),
        ]),
        ["agent", "tmux", "xdg/bus"]
    );
    assert_eq!(
        hidden(&[value("XDG_RUNTIME_DIR", format!("{top}/xdg"))]),
        ["xdg"]
    );
    for wide in ["", "/h", "/w"] {
        let wide = value("XDG_RUNTIME_DIR", format!("{top}{wide}"));
        assert_eq!(hidden(&[wide]), [""; 0]);
    }
}

#[test]
fn start_up_files_are_protected_when_the_home_is_the_workspace_and_the_rest_is_writable() {
    let world = World::new();
    world.write("h/.bashrc", "");
    world.folder("h/.config/fish");
    let home = world.at("h");
    let policy = policy(&PolicyRequest {
        workspace: &home,
        ..world.request(WRITE)
    });
    assert_eq!(
        world.names(&policy.protected),
        ["h/.bashrc", "h/.config/fish"]
    );
    assert_eq!(world.names(&policy.pinned), ["h/.config"]);
    for name in [
        "h/.ssh",
        "h/.zshrc",
        "h/.config/autostart",
        "h/.vscode",
        "h/.git",
    ] {
        assert!(
            world
                .names(&policy.protected_absent)
                .contains(&name.to_owned()),
            "{name}"
        );
    }
    assert!(may_write(&policy, world.at("h/notes")));
    assert!(!may_write(&policy, world.at("h/.bashrc")));
    // Elsewhere they are out of reach anyway, and no rule is spent on them.
    assert_eq!(world.policy(WRITE).protected, []);
}

#[test]
fn editor_and_agent_folders_are_protected_and_nothing_is_created_for_the_others() {
    let world = World::new();
    world.write("w/.vscode/tasks.json", "");
    world.write("w/.envrc", "");
    let policy = world.policy(WRITE);
    assert_eq!(world.names(&policy.protected), ["w/.envrc", "w/.vscode"]);
    assert!(!may_write(&policy, world.at("w/.vscode/tasks.json")));
    assert!(may_write(&policy, world.at("w/src/main.rs")));
    assert!(
        world
            .names(&policy.protected_absent)
            .contains(&"w/.idea".to_owned())
    );
    let mut names: Vec<_> = fs::read_dir(world.at("w"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, [".envrc", ".vscode"]);
}

#[test]
fn a_protected_path_that_is_a_link_protects_its_target_and_is_watched_itself() {
    let world = World::new();
    world.folder("w/conf");
    symlink("conf", world.at("w/.vscode")).unwrap();
    symlink(world.folder("elsewhere"), world.at("w/.idea")).unwrap();
    let policy = world.policy(WRITE);
    assert_eq!(world.names(&policy.protected), ["w/conf"]);
    assert_eq!(
        world.names(&policy.protected_links),
        ["w/.idea", "w/.vscode"]
    );
}

#[test]
fn in_a_plain_repository_hooks_and_configuration_are_protected_and_objects_are_not() {
    let world = World::new();
    world.repository("w");
    fs::remove_dir_all(world.at("w/.git/info")).unwrap();
    let policy = world.policy(WRITE);
    assert_eq!(
        world.names(&policy.protected),
        ["w/.git/config", "w/.git/hooks"]
    );
    assert_eq!(world.names(&policy.pinned), ["w/.git"]);
    for name in [
        "w/.git/config.worktree",
        "w/.git/commondir",
        "w/.git/info/attributes",
    ] {
        assert!(
            world
                .names(&policy.protected_absent)
                .contains(&name.to_owned()),
            "{name}"
        );
    }
    for name in [
        "w/.git/index.lock",
        "w/.git/objects/00",
        "w/.git/refs/heads/x",
        "w/.git/HEAD",
    ] {
        assert!(may_write(&policy, world.at(name)), "{name}");
    }
    assert!(!may_write(&policy, world.at("w/.git/hooks/pre-commit")));
}

#[test]
fn a_linked_worktree_gets_its_git_directory_with_hooks_and_configuration_protected() {
    let world = World::new();
    world.repository("main");
    fs::remove_dir(world.at("w")).unwrap();
    let workspace = world.at("w");
    world.git(
        "main",
        &[
            "worktree",
            "add",
            "-q",
            workspace.to_str().unwrap(),
            "-b",
            "topic",
        ],
    );
    let policy = world.policy(WRITE);
    assert_eq!(
        policy.writable,
        [
            Place {
                path: world.at("main/.git"),
                origin: Origin::GitWorktree
            },
            Place {
                path: workspace,
                origin: Origin::Workspace
            }
        ]
    );
    assert_eq!(
        world.names(&policy.protected),
        [
            "main/.git/config",
            "main/.git/hooks",
            "main/.git/worktrees/w/commondir",
            "main/.git/worktrees/w/gitdir",
            "w/.git",
        ]
    );
    assert_eq!(
        world.names(&policy.pinned),
        ["main/.git/worktrees", "main/.git/worktrees/w"]
    );
    for name in [
        "main/.git/packed-refs.lock",
        "main/.git/worktrees/w/index.lock",
    ] {
        assert!(may_write(&policy, world.at(name)), "{name}");
    }
    assert!(!may_write(&policy, world.at("main/file")));
    // Nothing is granted where nothing is to be written.
    assert_eq!(world.policy(Mode::ReadOnly).writable, []);
}

#[test]
fn a_git_file_whose_far_end_names_another_folder_grants_nothing() {
    let world = World::new();
    world.repository("main");
    let other = world.at("other");
    world.git(
        "main",
        &[
            "worktree",
            "add",
            "-q",
            other.to_str().unwrap(),
            "-b",
            "topic",
        ],
    );
    fs::copy(other.join(".git"), world.at("w/.git")).unwrap();
    let (policy, warnings) = Policy::build(&world.request(WRITE)).unwrap();
    assert_eq!(world.names(&policy.writable), ["w"]);
    assert_eq!(
        warnings,
        [format!(
            "git can't write here: {:?} names {:?}, which doesn't name it in turn",
            world.at("w/.git"),
            world.at("main/.git/worktrees/other")
        )]
    );
}

#[test]
fn a_git_directory_that_a_command_laid_out_grants_nothing_above_the_workspace() {
    let world = World::new();
    // The worktree's layout, with the workspace itself in the place of `worktrees`: both ends agree.
    let workspace = world.folder("bait/worktrees");
    for name in ["HEAD", "objects/x", "refs/x"] {
        world.write(&format!("bait/{name}"), "");
    }
    world.write("bait/worktrees/x/commondir", "../..\n");
    world.write(
        "bait/worktrees/x/gitdir",
        &format!("{}/.git\n", workspace.display()),
    );
    world.write("bait/worktrees/.git", "gitdir: x\n");
    let request = PolicyRequest {
        workspace: &workspace,
        ..world.request(WRITE)
    };
    let (policy, warnings) = Policy::build(&request).unwrap();
    assert_eq!(world.names(&policy.writable), ["bait/worktrees"]);
    assert_eq!(warnings.len(), 1);
}

#[test]
fn a_submodule_as_workspace_gets_its_git_directory() {
    let world = World::new();
    world.repository("library");
    world.repository("main");
    let library = world.at("library");
    world.git(
        "main",
        &[
            "submodule",
            "add",
            "-q",
            library.to_str().unwrap(),
            "vendor/lib",
        ],
    );
    let workspace = world.at("main/vendor/lib");
    let policy = policy(&PolicyRequest {
        workspace: &workspace,
        ..world.request(WRITE)
    });
    assert_eq!(
        world.names(&policy.writable),
        ["main/.git/modules/vendor/lib", "main/vendor/lib"]
    );
    assert!(!may_write(
        &policy,
        world.at("main/.git/modules/vendor/lib/hooks/x")
    ));
    assert!(may_write(
        &policy,
        world.at("main/.git/modules/vendor/lib/index.lock")
    ));
}

#[test]
fn submodules_and_nested_repositories_are_protected_as_the_first_one_is() {
    let world = World::new();
    world.repository("library");
    world.repository("w");
    let library = world.at("library");
    world.git(
        "w",
        &[
            "submodule",
            "add",
            "-q",
            library.to_str().unwrap(),
            "a/b/c/lib",
        ],
    );
    world.repository("w/vendor/sub");
    let policy = world.policy(WRITE);
    for name in [
        "w/.git/hooks/x",
        "w/.git/config",
        "w/.git/modules/a/b/c/lib/hooks/x",
        "w/.git/modules/a/b/c/lib/config",
        "w/a/b/c/lib/.git",
        "w/vendor/sub/.git/hooks/x",
        "w/vendor/sub/.git/config",
    ] {
        assert!(!may_write(&policy, world.at(name)), "{name}");
    }
    for name in [
        "w/a/b/c/lib/f",
        "w/vendor/sub/.git/index",
        "w/.git/modules/a/b/c/lib/index",
    ] {
        assert!(may_write(&policy, world.at(name)), "{name}");
    }
    for name in ["w/.git", "w/vendor", "w/vendor/sub", "w/vendor/sub/.git"] {
        assert!(
            world.names(&policy.pinned).contains(&name.to_owned()),
            "{name}"
        );
    }
}

#[test]
fn hooks_and_includes_that_a_configuration_names_are_protected_and_the_whole_workspace_is_not() {
    let world = World::new();
    world.repository("w");
    world.folder("w/.githooks");
    world.git("w", &["config", "core.hooksPath", ".githooks"]);
    world.git("w", &["config", "include.path", "../.gitshared"]);
    world.write("w/.gitshared", "");
    world.write(
        "h/.gitconfig",
        "[Core]\n\tHooksPath = everywhere ; a comment\n",
    );
    let policy = world.policy(WRITE);
    assert!(!may_write(&policy, world.at("w/.githooks/pre-commit")));
    assert!(!may_write(&policy, world.at("w/.gitshared")));
    assert!(
        world
            .names(&policy.protected_absent)
            .contains(&"w/everywhere".to_owned())
    );
    world.git("w", &["config", "core.hooksPath", "."]);
    let (policy, warnings) = Policy::build(&world.request(WRITE)).unwrap();
    assert!(may_write(&policy, world.at("w/file")));
    assert_eq!(
        warnings,
        [format!(
            "{:?} names {:?} for hooks, a whole writable root, so they aren't protected",
            world.at("w/.git/config"),
            world.at("w/.")
        )]
    );
}

#[test]
fn a_git_directory_or_hooks_behind_a_link_break_nothing() {
    let world = World::new();
    world.repository("real");
    fs::remove_dir_all(world.at("real/.git/hooks")).unwrap();
    symlink(world.folder("shared"), world.at("real/.git/hooks")).unwrap();
    symlink(world.at("real/.git"), world.at("w/.git")).unwrap();
    let policy = world.policy(WRITE);
    assert_eq!(policy.protected, []);
    assert_eq!(world.names(&policy.protected_links), ["w/.git"]);
    assert!(!may_write(&policy, world.at("real/.git/hooks/x")));
    // The same repository as the workspace: its hooks lie outside, and their link is watched.
    let real = world.at("real");
    let policy = super::tests::policy(&PolicyRequest {
        workspace: &real,
        ..world.request(WRITE)
    });
    assert_eq!(world.names(&policy.protected_links), ["real/.git/hooks"]);
    assert_eq!(world.names(&policy.pinned), ["real/.git"]);
}

#[test]
fn a_bare_repository_as_workspace_is_protected_too() {
    let world = World::new();
    world.git("w", &["init", "-q", "--bare"]);
    let policy = world.policy(WRITE);
    assert!(!may_write(&policy, world.at("w/hooks/post-receive")));
    assert!(!may_write(&policy, world.at("w/config")));
    assert!(may_write(&policy, world.at("w/objects/x")));
}

#[test]
fn a_file_of_the_workspace_tightens_and_its_loosening_is_left_out_by_name() {
    let world = World::new();
    world.folder("w/secret");
    world.folder("w/fixed");
    world.folder("h/.ssh");
    let own = world.write(
        "w/.cofferdam.toml",
        "network = 'host'\nwritable = ['/']\nhidden = ['secret']\nprotected = ['fixed']\n\
         unhide = ['~/.ssh']\nallow_calls = ['bpf']\nrequire = 'full'\n[limits]\n\
         processes = 10\nscratch_bytes = '1 TiB'\n[environment]\nremove = ['A']\nkeep = ['B_KEY']\n\
         set = { LD_PRELOAD = 'x' }\n[[refuse]]\ncalls = ['ptrace', 'bpf']\nerrno = 'EPERM'\n\
         reason = 'not here'\n",
    );
    let (policy, warnings) = Policy::build(&world.request(WRITE)).unwrap();
    let own = own.display();
    assert_eq!(
        warnings,
        [format!(
            "ignored loosening settings from the workspace: network ({own}:1), writable ({own}:2), \
             unhide ({own}:5), allow_calls ({own}:6), environment.keep ({own}:13), \
             environment.set ({own}:14), limits.scratch_bytes ({own}:10)"
        )]
    );
    assert_eq!(policy.network, Network::None);
    assert_eq!(policy.require, Require::Full);
    assert_eq!(world.names(&policy.writable), ["w"]);
    assert_eq!(world.names(&policy.hidden), ["h/.ssh", "w/secret"]);
    assert_eq!(
        world.names(&policy.protected),
        ["w/.cofferdam.toml", "w/fixed"]
    );
    assert_eq!(policy.limits.processes, Some(10));
    assert_eq!(policy.limits.scratch_bytes, Some(4 << 30));
    assert!(policy.environment.remove.contains(&"A".to_owned()));
    assert_eq!(policy.environment.keep, [""; 0]);
    assert!(
        policy
            .environment
            .set
            .iter()
            .all(|(name, _)| name != "LD_PRELOAD")
    );
    let refused = |name: &str| {
        let groups = policy.refused_calls.iter();
        groups
            .filter(|group| group.calls.iter().any(|call| call == name))
            .count()
    };
    assert_eq!((refused("ptrace"), refused("bpf")), (1, 1));
    // Without confinement nothing of it applies.
    assert_eq!(world.policy(Mode::DangerFullAccess).network, Network::Host);
}

#[test]
fn a_workspace_can_turn_the_network_off_that_the_caller_turned_on() {
    let world = World::new();
    let request = PolicyRequest {
        network: Some(Network::Host),
        ..world.request(WRITE)
    };
    assert_eq!(policy(&request).network, Network::Host);
    let own = world.write("w/.cofferdam.toml", "network = 'none'\n");
    let (policy, warnings) = Policy::build(&request).unwrap();
    assert_eq!(policy.network, Network::None);
    assert_eq!(
        warnings,
        [format!(
            "the network stays off although the caller asked for it: {}:1 turns it off",
            own.display()
        )]
    );
}

#[test]
fn a_profile_of_the_user_loosens() {
    let world = World::new();
    world.folder("h/.ssh");
    world.folder("h/.aws");
    world.folder("w/.vscode");
    let root = world.folder("root");
    let profile = world.write(
        "p.toml",
        &format!(
            "network = 'host'\nwritable = ['{}']\nunhide = ['$HOME/.ssh/']\nunprotect = ['.vscode']\n\
             allow_calls = ['clone3']\n[limits]\nprocesses = 'unlimited'\n\
             [environment]\nkeep = ['MY_KEY']\nset = {{ A = 'b' }}\n",
            root.display()
        ),
    );
    let policy = policy(&PolicyRequest {
        profile: Some(&profile),
        ..world.request(WRITE)
    });
    assert_eq!(policy.network, Network::Host);
    assert_eq!(world.names(&policy.hidden), ["h/.aws"]);
    assert_eq!(policy.protected, []);
    assert_eq!(
        policy.writable[0],
        Place {
            path: root,
            origin: world.line(&profile, 2)
        }
    );
    assert_eq!(policy.limits.processes, None);
    assert_eq!(policy.environment.keep, ["MY_KEY"]);
    assert!(policy.environment.set.contains(&("A".into(), "b".into())));
    let calls = policy.refused_calls.iter().flat_map(|group| &group.calls);
    let calls: Vec<_> = calls.map(String::as_str).collect();
    assert!(!calls.contains(&"clone3"));
    assert!(calls.contains(&"io_uring_setup"));
}

#[test]
fn one_profile_serves_every_mode_and_a_typing_error_shows_where_the_list_is() {
    let world = World::new();
    let profile = world.write(
        "p.toml",
        "unhide = ['~/.ssh']\nunprotect = ['.vscode']\nallow_calls = ['bpf']\n",
    );
    for mode in Mode::ALL {
        policy(&PolicyRequest {
            profile: Some(&profile),
            ..world.request(mode)
        });
    }
    let profile = world.write("q.toml", "unprotect = ['.vscod']\n");
    let request = |mode| PolicyRequest {
        profile: Some(&profile),
        ..world.request(mode)
    };
    policy(&request(Mode::ReadOnly));
    assert_eq!(
        error(&request(WRITE)),
        format!(
            "{}:1: nothing of that name is protected: \".vscod\"; write it as it stands in the list \
             of protected paths, see `cofferdam profile show`",
            profile.display()
        )
    );
}

#[test]
fn a_standing_profile_of_the_user_counts_for_its_mode_and_a_chosen_one_is_stronger() {
    let world = World::new();
    let standing = world.write(
        "h/.config/cofferdam/workspace-write.toml",
        "network = 'host'\nrequire = 'full'\n",
    );
    let chosen = world.write("p.toml", "network = 'none'\n");
    assert_eq!(world.policy(Mode::ReadOnly).network, Network::None);
    assert_eq!(world.policy(WRITE).network, Network::Host);
    let built = policy(&PolicyRequest {
        profile: Some(&chosen),
        ..world.request(WRITE)
    });
    assert_eq!(
        (built.network, built.require),
        (Network::None, Require::Full)
    );
    // Changed, it is read again.
    fs::write(&standing, "network = 'none'\n# longer\n").unwrap();
    assert_eq!(world.policy(WRITE).network, Network::None);
}

#[test]
fn a_profile_that_a_command_could_reach_is_protected_and_one_behind_its_link_refused() {
    let world = World::new();
    let inside = world.write("w/conf/p.toml", "network = 'host'\n");
    let built = policy(&PolicyRequest {
        profile: Some(&inside),
        ..world.request(WRITE)
    });
    assert!(!may_write(&built, &inside));
    assert_eq!(world.names(&built.pinned), ["w/conf"]);
    let link = world.at("w/link.toml");
    symlink(world.write("p.toml", ""), &link).unwrap();
    assert_eq!(
        error(&PolicyRequest {
            profile: Some(&link),
            ..world.request(WRITE)
        }),
        format!(
            "profile {link:?} is reached through the link {link:?}, which a command could have \
             made; name the place that it should be, without a link inside a writable root"
        )
    );
}

#[test]
fn what_is_wrong_about_a_path_of_a_profile_is_said_with_its_line() {
    let world = World::new();
    let (file, line) = builtin_line("read-only", "\"~/.ssh\",");
    assert_eq!(file, "built-in read-only");
    assert!(line > 1);
    for (text, expected) in [
        (
            "\nwritable = ['/no/such']\n",
            "2: writable root \"/no/such\" doesn't exist; create it or name another",
        ),
        (
            "hidden = [\n'/usr']\n",
            "2: \"/usr\" would hide \"/usr\", which every command needs; hide something narrower",
        ),
        (
            "visible = ['/etc']\n",
            "1: \"/etc\" isn't below /run; remove it: only /run is private, everything else is \
             visible unless it is hidden",
        ),
        (
            "unhide = ['~/.shh']\n",
            "1: nothing of that name is hidden: \"~/.shh\"; write it as it stands in the list of \
             hidden paths, see `cofferdam profile show`",
        ),
        (
            "allow_calls = ['read']\n",
            "1: \"read\" isn't refused; remove it, or see `cofferdam profile show` for what is refused",
        ),
    ] {
        let profile = world.write("p.toml", text);
        let refused = Policy::build(&PolicyRequest {
            profile: Some(&profile),
            ..world.request(WRITE)
        })
        .unwrap_err();
        assert_eq!(refused.code, NeverRanCode::InvalidProfile);
        assert_eq!(
            refused.to_string(),
            format!("{}:{expected}", profile.display())
        );
    }
    let missing = world.at("none.toml");
    assert_eq!(
        error(&PolicyRequest {
            profile: Some(&missing),
            ..world.request(WRITE)
        }),
        format!(
            "profile {missing:?} can't be read: No such file or directory (os error 2); name a \
             readable TOML file of at most 256 KiB"
        )
    );
}

#[test]
fn a_broken_file_of_the_workspace_or_a_link_is_an_error_and_a_fifo_hangs_nothing() {
    let world = World::new();
    let own = world.write("w/.cofferdam.toml", "netwrok = 'none'\n");
    assert!(error(&world.request(WRITE)).starts_with(&format!(
        "{}:1: unknown key `netwrok`; use one of: `network`, ",
        own.display()
    )));
    fs::remove_file(&own).unwrap();
    symlink(world.write("p.toml", ""), &own).unwrap();
    assert_eq!(
        error(&world.request(WRITE)),
        format!(
            "{own:?} is a symbolic link; make it a regular file, or name the profile with --profile"
        )
    );
    fs::remove_file(&own).unwrap();
    nix::unistd::mkfifo(&own, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(
        error(&world.request(WRITE)),
        format!(
            "profile {own:?} can't be read: not a regular file; name a readable TOML file of at \
             most 256 KiB"
        )
    );
}

#[test]
fn a_large_workspace_costs_no_more_than_a_small_one() {
    let world = World::new();
    world.repository("w");
    for folder in 0..400 {
        world.folder(&format!("w/d{folder}/x/y"));
    }
    let folders = git::nested_repositories(&world.at("w"));
    assert_eq!(folders, [] as [PathBuf; 0]);
    let start = std::time::Instant::now();
    for _ in 0..20 {
        world.policy(WRITE);
    }
    // Twenty times some hundred look-ups; a walk of the tree would still be seen on a busy machine.
    let each = start.elapsed() / 20;
    assert!(each < std::time::Duration::from_millis(50), "{each:?}");
}

/// The origin of a line of a built-in profile.
fn builtin_line(mode: &str, line: &str) -> (String, usize) {
    let name = format!("built-in {mode}");
    let text = profile::BUILTIN_TEXTS
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap()
        .1;
    let at = text.lines().position(|other| other.trim() == line).unwrap();
    (name, at + 1)
}

#[test]
fn a_read_only_workspace_in_a_private_folder_shows_and_one_elsewhere_needs_nothing() {
    let private = tempfile::tempdir_in("/tmp").unwrap();
    let workspace = fs::canonicalize(private.path()).unwrap();
    let shown = policy(&PolicyRequest::new(Mode::ReadOnly, &workspace));
    let place = Place {
        path: workspace.clone(),
        origin: Origin::Workspace,
    };
    assert!(shown.visible.contains(&place), "{:?}", shown.visible);
    assert_eq!(
        shown.access(&workspace.join("file")),
        Access {
            read: true,
            write: false,
            rule: Rule::Visible(place.clone()),
        }
    );
    assert!(may_write(
        &policy(&PolicyRequest::new(WRITE, &workspace)),
        workspace.join("file")
    ));
    let world = World::new();
    let elsewhere = world.policy(Mode::ReadOnly);
    assert!(
        elsewhere
            .visible
            .iter()
            .all(|place| place.origin != Origin::Workspace)
    );
}
