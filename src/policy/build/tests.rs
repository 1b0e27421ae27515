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
            other_homes: Vec::new(),
            mounts: Arc::default(),
            earlier: None,
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
    let found = git::nested_repositories(&world.at("w"));
    assert_eq!(found, git::Looked::default());
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

/// Whether a command could rename something in the world: not what a policy pins, protects or hides.
fn can_be_moved(policy: &Policy, path: &Path) -> bool {
    let held = [&policy.pinned, &policy.protected, &policy.hidden];
    may_write(policy, path.parent().unwrap())
        && !held.into_iter().flatten().any(|place| place.path == path)
}

#[test]
fn a_folder_above_something_hidden_can_not_be_moved_away_and_one_beside_it_can() {
    let world = World::new();
    for name in [
        "h/.config/gh/hosts.yml",
        "h/.fly/config.yml",
        "h/.cache/huggingface/token",
        "h/.cache/other/x",
        "h/.docker/config.json",
        "h/notes/x",
    ] {
        world.write(name, "");
    }
    let home = world.at("h");
    let policy = policy(&PolicyRequest {
        workspace: &home,
        ..world.request(WRITE)
    });
    for name in [
        "h/.config",
        "h/.config/gh",
        "h/.fly",
        "h/.cache",
        "h/.cache/huggingface",
        "h/.docker",
    ] {
        assert!(!can_be_moved(&policy, &world.at(name)), "{name}");
    }
    for name in ["h/notes", "h/.cache/other"] {
        assert!(can_be_moved(&policy, &world.at(name)), "{name}");
    }
    // What is protected as a whole isn't made writable by a pin on the way to what is hidden in it.
    let docker = "h/.docker".to_owned();
    assert!(!world.names(&policy.pinned).contains(&docker));
    assert!(!may_write(&policy, world.at("h/.docker/x")));
}

#[test]
fn a_pin_below_a_protected_folder_would_make_it_writable_and_is_left_out() {
    let world = World::new();
    world.write("w/fixed/deep/secret/x", "");
    world.write("w/loose/deep/secret/x", "");
    let profile = world.write(
        "p.toml",
        "protected = ['fixed']\nhidden = ['fixed/deep/secret', 'loose/deep/secret']\n",
    );
    let policy = policy(&PolicyRequest {
        profile: Some(&profile),
        ..world.request(WRITE)
    });
    assert_eq!(world.names(&policy.pinned), ["w/loose", "w/loose/deep"]);
}

#[test]
fn a_repository_in_a_protected_or_hidden_folder_stays_as_shut_as_its_folder() {
    let world = World::new();
    for folder in ["h/.oh-my-zsh", "h/.password-store", "h/project"] {
        world.repository(folder);
    }
    let home = world.at("h");
    let policy = policy(&PolicyRequest {
        workspace: &home,
        ..world.request(WRITE)
    });
    assert_eq!(world.names(&policy.pinned), ["h/project", "h/project/.git"]);
    assert!(!may_write(&policy, world.at("h/.oh-my-zsh/.git/index")));
    assert!(may_write(&policy, world.at("h/project/.git/index")));
    let hooks = world.at("h/.password-store/.git/hooks");
    assert!(!policy.access(&hooks).read);
    // None of them is new.
    assert_eq!(crate::policy::new_repositories(&policy), [] as [PathBuf; 0]);
}

#[test]
fn a_link_on_the_way_to_something_hidden_is_watched() {
    let world = World::new();
    world.write("h/dotfiles/aws/credentials", "");
    symlink("dotfiles/aws", world.at("h/.aws")).unwrap();
    let home = world.at("h");
    let policy = policy(&PolicyRequest {
        workspace: &home,
        ..world.request(WRITE)
    });
    assert_eq!(world.names(&policy.hidden), ["h/dotfiles/aws"]);
    assert_eq!(world.names(&policy.protected_links), ["h/.aws"]);
}

#[test]
fn a_nested_repository_can_not_open_what_is_hidden_by_naming_it_as_its_configuration() {
    let world = World::new();
    world.repository("h/sub");
    world.write("h/.ssh/id", "");
    world.write("h/shared", "");
    world.git("h/sub", &["config", "--add", "include.path", "~/.ssh/id"]);
    world.git("h/sub", &["config", "--add", "include.path", "~/shared"]);
    let home = world.at("h");
    let policy = policy(&PolicyRequest {
        workspace: &home,
        ..world.request(WRITE)
    });
    let access = |name: &str| {
        let access = policy.access(&world.at(name));
        (access.read, access.write)
    };
    assert_eq!(access("h/.ssh/id"), (false, false));
    assert_eq!(access("h/shared"), (true, false));
}

#[test]
fn hooks_that_an_include_of_an_include_names_are_protected_whatever_its_condition() {
    let world = World::new();
    world.repository("w");
    world.git("w", &["config", "include.path", "../.gitconfig"]);
    world.write(
        "w/.gitconfig",
        "[includeIf \"onbranch:x\"]\npath = more/conf\n",
    );
    world.write("w/more/conf", "[core]\nhooksPath = .githooks\n");
    world.folder("w/.githooks");
    world.folder("w/other");
    let policy = world.policy(WRITE);
    for name in ["w/.gitconfig", "w/more/conf", "w/.githooks/pre-commit"] {
        assert!(!may_write(&policy, world.at(name)), "{name}");
    }
    for name in ["w/more/x", "w/other/pre-commit"] {
        assert!(may_write(&policy, world.at(name)), "{name}");
    }
}

#[test]
fn other_users_secrets_are_hidden_and_their_start_up_files_protected_where_they_can_be_reached() {
    let world = World::new();
    world.write("h/.ssh/id", "");
    world.write("u/.ssh/id", "");
    world.write("u/.bashrc", "");
    world.write("u/work/x", "");
    let homes = [world.at("u")];
    let read = |policy: &Policy| policy.access(&world.at("u/.ssh/id")).read;
    assert!(read(&world.policy(Mode::ReadOnly)));
    for mode in [Mode::ReadOnly, WRITE] {
        let policy = policy(&PolicyRequest {
            other_homes: homes.to_vec(),
            ..world.request(mode)
        });
        assert!(!read(&policy));
        assert!(policy.access(&world.at("u/work/x")).read);
        assert_eq!(world.names(&policy.hidden), ["h/.ssh", "u/.ssh"]);
    }
    let workspace = world.at("u");
    let policy = policy(&PolicyRequest {
        workspace: &workspace,
        other_homes: homes.to_vec(),
        ..world.request(WRITE)
    });
    assert!(!may_write(&policy, world.at("u/.bashrc")));
    assert!(may_write(&policy, world.at("u/work/x")));
}

#[test]
fn a_hidden_folder_is_hidden_under_its_other_names_and_what_lies_beside_them_is_not() {
    let world = World::new();
    world.write("h/.ssh/id", "");
    world.write("alias/.ssh/id", "");
    world.write("alias/x", "");
    world.write("part/id", "");
    let top = world.top.display();
    // As if `h` were mounted at `alias` too, and one folder of it at `part`; at `none` is nothing.
    let text = format!(
        "1 0 8:1 / / rw\n2 1 8:1 {top}/h {top}/alias rw\n3 1 8:1 {top}/h/.ssh/k {top}/part rw\n\
         4 1 8:1 {top}/h {top}/none rw\n"
    );
    let policy = policy(&PolicyRequest {
        mounts: Arc::new(Mounts::parse(text.as_bytes())),
        ..world.request(Mode::ReadOnly)
    });
    assert_eq!(
        world.names(&policy.hidden),
        ["alias/.ssh", "h/.ssh", "part"]
    );
    assert!(policy.access(&world.at("alias/x")).read);
    assert_eq!(policy.gaps, [""; 0]);
}

#[test]
fn a_command_can_not_push_what_was_guarded_out_of_what_is_looked_at() {
    let world = World::new();
    world.repository("w/zlib");
    let earlier = world.policy(WRITE);
    let hook = world.at("w/zlib/.git/hooks/pre-commit");
    assert!(!may_write(&earlier, &hook));
    assert_eq!(earlier.gaps, [""; 0]);
    for number in 0..git::NESTED_AT_MOST {
        world.folder(&format!("w/{number:03}/.git"));
    }
    let gaps = [format!(
        "hooks and configuration of repositories below {:?} beyond the first 128",
        world.at("w")
    )];
    let forgetful = world.policy(WRITE);
    assert!(may_write(&forgetful, &hook));
    assert_eq!(forgetful.gaps, gaps);
    let later = policy(&PolicyRequest {
        earlier: Some(&earlier),
        ..world.request(WRITE)
    });
    for name in ["w/zlib/.git/hooks/pre-commit", "w/zlib/.git/config"] {
        assert!(!may_write(&later, world.at(name)), "{name}");
    }
    for name in ["w/zlib/.git", "w/zlib"] {
        assert!(!can_be_moved(&later, &world.at(name)), "{name}");
    }
    let absent = world.at("w/zlib/.git/commondir");
    let is_watched = |policy: &Policy| {
        let mut watched = policy.protected_absent.iter();
        watched.any(|place| place.path == absent)
    };
    assert!(is_watched(&later));
    assert!(may_write(&later, world.at("w/zlib/file")));
    assert_eq!(later.gaps, gaps);
    // What was absent and has come is protected from then on, and what is gone is forgotten.
    fs::write(&absent, "../elsewhere").unwrap();
    fs::remove_dir_all(world.at("w/zlib/.git/hooks")).unwrap();
    let last = policy(&PolicyRequest {
        earlier: Some(&later),
        ..world.request(WRITE)
    });
    assert!(!may_write(&last, &absent));
    let hooks = "w/zlib/.git/hooks".to_owned();
    assert!(!world.names(&last.protected).contains(&hooks));
}

#[test]
fn a_link_that_is_led_elsewhere_does_not_open_what_it_hid_before() {
    let world = World::new();
    world.write("h/dotfiles/aws/credentials", "");
    symlink("dotfiles/aws", world.at("h/.aws")).unwrap();
    let home = world.at("h");
    let request = || PolicyRequest {
        workspace: &home,
        ..world.request(WRITE)
    };
    let earlier = policy(&request());
    fs::remove_file(world.at("h/.aws")).unwrap();
    fs::create_dir(world.at("h/.aws")).unwrap();
    assert_eq!(world.names(&policy(&request()).hidden), ["h/.aws"]);
    let later = policy(&PolicyRequest {
        earlier: Some(&earlier),
        ..request()
    });
    assert_eq!(world.names(&later.hidden), ["h/.aws", "h/dotfiles/aws"]);
    // The user's own word counts at once.
    let profile = world.write("p.toml", "unhide = ['~/.aws']\n");
    let freed = policy(&PolicyRequest {
        earlier: Some(&earlier),
        profile: Some(&profile),
        ..request()
    });
    assert_eq!(world.names(&freed.hidden), [""; 0]);
}

#[test]
fn a_redirected_git_directory_is_told_and_what_it_obeys_is_protected() {
    let world = World::new();
    world.repository("w");
    let absent = world.at("w/.git/commondir");
    let before = world.policy(WRITE);
    let mut watched = before.protected_absent.iter();
    assert!(watched.any(|place| place.path == absent));
    world.write("w/fake/config", "[core]\nfsmonitor = /bin/true\n");
    fs::write(&absent, "../fake\n").unwrap();
    let (policy, warnings) = Policy::build(&world.request(WRITE)).unwrap();
    for name in ["w/.git/commondir", "w/fake/config"] {
        assert!(!may_write(&policy, world.at(name)), "{name}");
    }
    assert!(may_write(&policy, world.at("w/fake/x")));
    assert_eq!(
        warnings,
        [format!(
            "git in {:?} takes hooks and configuration from {:?}, for a `commondir` leads there that \
             git never writes: look at both before you use git there",
            world.at("w"),
            world.at("w/fake")
        )]
    );
}

#[test]
fn repositories_that_a_command_makes_are_told_and_those_that_were_there_are_not() {
    let new = crate::policy::new_repositories;
    let none = [] as [PathBuf; 0];
    let world = World::new();
    world.repository("w");
    world.repository("w/old");
    world.git("w", &["init", "-q", "--bare", "old-bare"]);
    let library = world.at("w/old");
    let url = library.to_str().unwrap();
    world.git("w", &["submodule", "--quiet", "add", url, "a/b/c/lib"]);
    symlink("../old/.git", world.folder("w/linked").join(".git")).unwrap();
    let before = world.policy(WRITE);
    assert_eq!(new(&before), none);
    world.repository("w/sub");
    world.git("w", &["init", "-q", "--bare", "deep/bare"]);
    world.git("w", &["submodule", "--quiet", "add", url, "x/y/z/lib"]);
    assert_eq!(
        new(&before),
        ["w/deep/bare", "w/sub/.git", "w/x/y/z/lib/.git"].map(|name| world.at(name))
    );
    // A workspace without a repository that becomes one, in either way.
    for (args, made) in [
        (&["init", "-q", "--bare"][..], "w"),
        (&["init", "-q"], "w/.git"),
    ] {
        let world = World::new();
        let before = world.policy(WRITE);
        assert_eq!(new(&before), none);
        world.git("w", args);
        assert_eq!(new(&before), [world.at(made)]);
    }
}

/// Prints what a policy costs: `cargo test --release --lib costs -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement, which no number can fail"]
#[allow(clippy::print_stdout)]
fn what_a_policy_costs() {
    let settled = || std::thread::sleep(std::time::Duration::from_secs(4));
    let report = |what: &str, request: &PolicyRequest<'_>| {
        // Longer than a look for repositories is remembered, which commands seldom follow each other within.
        let mut cold = Vec::new();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(5100));
            let start = std::time::Instant::now();
            build(request).unwrap();
            cold.push(start.elapsed());
        }
        let mut warm: Vec<_> = (0..400)
            .map(|_| {
                let start = std::time::Instant::now();
                build(request).unwrap();
                start.elapsed()
            })
            .collect();
        cold.sort();
        warm.sort();
        let policy = build(request).unwrap().policy;
        println!(
            "{what}: after a pause {:?}, at once {:?}; {} protected, {} pinned, {} hidden",
            cold[1],
            warm[200],
            policy.protected.len(),
            policy.pinned.len(),
            policy.hidden.len()
        );
    };
    let plain = World::new();
    plain.repository("w");
    let wide = World::new();
    wide.repository("w");
    for folder in 0..200 {
        wide.folder(&format!("w/d{folder}/x"));
        wide.folder(&format!("w/d{folder}/y"));
    }
    let many = World::new();
    many.repository("w");
    for folder in 0..100 {
        for name in ["HEAD", "config", "hooks/x", "objects/x", "refs/x"] {
            many.write(&format!("w/r{folder:03}/.git/{name}"), "");
        }
    }
    settled();
    report("plain", &PolicyRequest::new(WRITE, &plain.workspace));
    report(
        "plain, read-only",
        &PolicyRequest::new(Mode::ReadOnly, &plain.workspace),
    );
    report("600 folders", &PolicyRequest::new(WRITE, &wide.workspace));
    report(
        "100 repositories",
        &PolicyRequest::new(WRITE, &many.workspace),
    );
}
