//! Git works, and what of it runs code for the person outside stays as it is.

use std::fs;

use crate::world::{World, ordinary};

fn repository(world: &World) {
    world.needs("git");
    world.host("git init -q -b main . && echo a > f && git add f && git commit -qm first && mkdir -p .git/hooks .git/info");
}

#[test]
fn git_commit_works_and_hooks_and_config_stay_read_only() {
    ordinary(|world| {
        repository(world);
        fs::write(world.workspace().join(".git/info/attributes"), "").unwrap();
        let config = fs::read(world.workspace().join(".git/config")).unwrap();
        world.write("echo b > f && git add f && git commit -qm second && git branch other && git checkout -q other && echo c > f && git commit -qam third && git rebase -q main && git stash list && git gc -q && git log --oneline").ok();
        assert_eq!(world.host("git log --format=%s"), "third\nsecond\nfirst\n");
        for path in [
            ".git/config",
            ".git/hooks/pre-commit",
            ".git/info/attributes",
        ] {
            let done = world.write(format!("echo x >> {path}"));
            assert_eq!(
                done.failed(),
                format!("bash: line 1: {path}: Read-only file system")
            );
        }
        let denied = world.write("git config core.fsmonitor ./evil");
        assert!(
            denied
                .failed()
                .contains("could not write config file .git/config"),
            "{denied}"
        );
        assert_eq!(
            fs::read(world.workspace().join(".git/config")).unwrap(),
            config
        );
        world.write("echo x > .git/description").ok();
    });
}

#[test]
fn the_git_folder_cannot_be_renamed_away() {
    ordinary(|world| {
        repository(world);
        fs::create_dir(world.workspace().join("folder")).unwrap();
        for text in [
            "mv .git .git2",
            "rm -rf .git",
            "mv .git/hooks .git/hooks2",
            "rmdir .git/hooks",
        ] {
            let done = world.write(text);
            assert!(
                done.failed().contains("Device or resource busy"),
                "{text}: {done}"
            );
        }
        assert!(world.workspace().join(".git/config").exists());
        world.write("mv folder folder2 && rmdir folder2").ok();
        // And the folder above it isn't writable at all.
        let done = world.write("mv ../workspace ../elsewhere");
        done.failed();
    });
}

#[test]
fn a_linked_worktree_commits() {
    ordinary(|world| {
        world.needs("git");
        let main = world.outside().join("main");
        world.host(&format!(
            "git init -q -b main {0} && cd {0} && echo a > f && git add f && git commit -qm first && git worktree add -q -b side {1}/tree",
            main.display(),
            world.workspace().display()
        ));
        let tree = world.workspace().join("tree");
        let run = |text: &str| {
            world
                .call("workspace-write")
                .args(["--workspace", tree.to_str().unwrap()])
                .at(&tree)
                .sh(text)
        };
        run("echo b > f && git add f && git commit -qm second && git branch third").ok();
        assert_eq!(
            world.host(&format!("git -C {} log --format=%s side", main.display())),
            "second\nfirst\n"
        );
        // The main checkout is no part of the workspace, nor is what runs code.
        let main = main.display();
        for path in [
            format!("{main}/f"),
            format!("{main}/.git/config"),
            format!("{main}/.git/hooks/pre-commit"),
            "../tree/.git".to_owned(),
        ] {
            let done = run(&format!("echo x > {path}"));
            assert_eq!(
                done.failed(),
                format!("bash: line 1: {path}: Read-only file system")
            );
        }
    });
}

#[test]
fn a_worktree_pointer_that_does_not_agree_grants_nothing() {
    ordinary(|world| {
        world.needs("git");
        // A pointer that a command might have written, to somebody's repository.
        world.host(&format!(
            "git init -q -b main {0} && cd {0} && git commit -q --allow-empty -m first",
            world.outside().display()
        ));
        fs::write(
            world.workspace().join(".git"),
            format!("gitdir: {}/.git\n", world.outside().display()),
        )
        .unwrap();
        let path = world.outside().join(".git/description");
        let done = world.write(format!("echo x > {}", path.display()));
        assert_eq!(
            done.failed(),
            format!("bash: line 1: {}: Read-only file system", path.display())
        );
        world.write("echo x > f").ok();
    });
}

#[test]
fn hooks_of_a_nested_repository_and_of_hooks_path_stay_read_only() {
    ordinary(|world| {
        repository(world);
        world.host("git init -q vendor/sub && mkdir -p vendor/sub/.git/hooks myhooks && git config core.hooksPath myhooks");
        for path in [
            "vendor/sub/.git/hooks/pre-commit",
            "vendor/sub/.git/config",
            "myhooks/pre-commit",
        ] {
            let done = world.write(format!("echo x > {path}"));
            assert_eq!(
                done.failed(),
                format!("bash: line 1: {path}: Read-only file system")
            );
        }
        world.write("echo x > vendor/sub/f && git -C vendor/sub add f && git -C vendor/sub commit -qm x").ok();
    });
}

#[test]
fn nothing_is_created_in_the_workspace_to_protect_what_is_not_there() {
    ordinary(|world| {
        world.write("ls -A").ok();
        assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 0);
        assert_eq!(world.write("ls -A; touch f").ok(), "");
        assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 1);
    });
}

#[test]
fn folders_of_editors_and_agents_stay_read_only() {
    ordinary(|world| {
        for name in [".vscode", ".idea", ".claude", ".cursor", "other"] {
            fs::create_dir(world.workspace().join(name)).unwrap();
            let done = world.write(format!("echo x > {name}/f"));
            if name == "other" {
                done.ok();
            } else {
                assert_eq!(
                    done.failed(),
                    format!("bash: line 1: {name}/f: Read-only file system")
                );
            }
        }
        for name in [".mcp.json", ".cofferdam.toml", ".envrc"] {
            fs::write(world.workspace().join(name), "").unwrap();
            let done = world.write(format!("echo x > {name}"));
            assert_eq!(
                done.failed(),
                format!("bash: line 1: {name}: Read-only file system")
            );
            world.write(format!("rm -f {name}")).failed();
        }
        world.write("echo x > .envrc2").ok();
    });
}

#[test]
fn read_only_git_reads_and_commits_nothing() {
    ordinary(|world| {
        repository(world);
        let done = world.read_only("git log --format=%s && git status --short && echo b 2>/dev/null > f; git commit -qam second");
        assert!(done.failed().contains("Read-only file system"), "{done}");
        assert_eq!(done.out(), "first");
        assert_eq!(world.host("git log --format=%s"), "first\n");
    });
}
