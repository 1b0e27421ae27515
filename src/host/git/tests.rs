use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

/// Folders of a test, canonical.
fn scratch() -> (tempfile::TempDir, PathBuf) {
    let scratch = tempfile::tempdir().unwrap();
    let top = fs::canonicalize(scratch.path()).unwrap();
    (scratch, top)
}

fn run_git(folder: &Path, args: &[&str]) {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@x",
            "-c",
            "protocol.file.allow=always",
        ])
        .args(args)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?}: {stderr}");
}

fn repository(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    run_git(folder, &["init", "-q"]);
    run_git(folder, &["commit", "-q", "--allow-empty", "-m", "i"]);
}

#[test]
fn a_configuration_is_read_as_git_reads_it() {
    let (_scratch, top) = scratch();
    let file = top.join("config");
    // The values that git itself answers for this file are compared below.
    let text = "\u{feff}; comment\n[CORE]\n  hooksPath = one two  # not this\n\tbare\n\
                hookspath = \"  quoted # kept \"  \nHooksPath=a\\\n  b\\\\c\\td\n\
                [core \"sub\"] [include]path=~/x\r\n[includeIf \"gitdir:[x]/\\\"\"]\n path = y ; z\n\
                [core] worktree = ../../w\n[other]\nhooksPath = no\n";
    fs::write(&file, text).unwrap();
    let found = config(&file);
    assert_eq!(
        found,
        Config {
            hooks_paths: ["one two", "  quoted # kept ", "a  b\\c\td"]
                .map(PathBuf::from)
                .to_vec(),
            includes: ["~/x", "y"].map(PathBuf::from).to_vec(),
            worktree: Some(PathBuf::from("../../w")),
        }
    );
    let ask = |key: &str| {
        let output = Command::new("git")
            .args(["config", "--no-includes", "-z", "--file"])
            .arg(&file)
            .args(["--get-all", key])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let values = text.split_terminator('\0').map(PathBuf::from);
        values.collect::<Vec<_>>()
    };
    assert_eq!(ask("core.hooksPath"), found.hooks_paths);
    assert_eq!(ask("include.path"), [PathBuf::from("~/x")]);
    assert_eq!(ask("core.worktree"), [PathBuf::from("../../w")]);
}

#[test]
fn a_missing_a_broken_and_an_endless_configuration_say_nothing_or_what_they_can() {
    let (_scratch, top) = scratch();
    assert_eq!(config(&top.join("none")), Config::default());
    nix::unistd::mkfifo(&top.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(config(&top.join("fifo")), Config::default());
    for text in [
        "[",
        "[core",
        "[core \"",
        "[core]\nhooksPath = \\",
        "=",
        "[core]\nhooksPath = \"a",
    ] {
        fs::write(top.join("broken"), text).unwrap();
        config(&top.join("broken"));
    }
    fs::write(
        top.join("broken"),
        "[core\n]]]\n=x\n[core]\n!\nhooksPath = a",
    )
    .unwrap();
    assert_eq!(
        config(&top.join("broken")).hooks_paths,
        [PathBuf::from("a")]
    );
}

#[test]
fn each_kind_of_dot_git_is_told_apart() {
    let (_scratch, top) = scratch();
    let main = top.join("main");
    repository(&main);
    assert_eq!(dot_git(&top), DotGit::Nothing);
    assert_eq!(dot_git(&main), DotGit::Folder(main.join(".git")));
    fs::create_dir(top.join("link")).unwrap();
    symlink(main.join(".git"), top.join("link/.git")).unwrap();
    assert_eq!(
        dot_git(&top.join("link")),
        DotGit::Folder(main.join(".git"))
    );
    run_git(&main, &["worktree", "add", "-q", "../tree", "-b", "topic"]);
    assert_eq!(
        dot_git(&top.join("tree")),
        DotGit::Pointer(Pointer {
            git_dir: main.join(".git/worktrees/tree"),
            common_dir: main.join(".git"),
            both_ends_agree: true,
        })
    );
    let host = top.join("host");
    repository(&host);
    run_git(
        &host,
        &["submodule", "add", "-q", main.to_str().unwrap(), "a/lib"],
    );
    assert_eq!(
        dot_git(&host.join("a/lib")),
        DotGit::Pointer(Pointer {
            git_dir: host.join(".git/modules/a/lib"),
            common_dir: host.join(".git/modules/a/lib"),
            both_ends_agree: true,
        })
    );
    for text in ["", "gitdir: ", "gitdir: none\n", "other"] {
        fs::write(top.join(".git"), text).unwrap();
        let expected = match text {
            // An empty name is the folder itself, which names nothing back.
            "gitdir: " => DotGit::Pointer(Pointer {
                git_dir: top.clone(),
                common_dir: top.clone(),
                both_ends_agree: false,
            }),
            _ => DotGit::Nothing,
        };
        assert_eq!(dot_git(&top), expected, "{text:?}");
    }
}

#[test]
fn a_worktree_reached_through_a_link_agrees_and_a_moved_one_does_not() {
    let (_scratch, top) = scratch();
    let main = top.join("main");
    repository(&main);
    fs::create_dir(top.join("real")).unwrap();
    symlink(top.join("real"), top.join("alias")).unwrap();
    let tree = top.join("alias/tree");
    run_git(
        &main,
        &[
            "worktree",
            "add",
            "-q",
            tree.to_str().unwrap(),
            "-b",
            "topic",
        ],
    );
    let agrees = |folder: &Path| match dot_git(folder) {
        DotGit::Pointer(pointer) => pointer.both_ends_agree,
        DotGit::Nothing | DotGit::Folder(_) => panic!("no pointer"),
    };
    assert!(agrees(&tree));
    assert!(agrees(&top.join("real/tree")));
    fs::rename(top.join("real/tree"), top.join("moved")).unwrap();
    assert!(!agrees(&top.join("moved")));
}

#[test]
fn nested_repositories_are_found_two_levels_deep_and_deeper_where_gitmodules_says() {
    let (_scratch, top) = scratch();
    for folder in [
        "one",
        "a/two",
        "a/b/three",
        "x/y/z/listed",
        "node_modules/p",
    ] {
        fs::create_dir_all(top.join(folder).join(".git")).unwrap();
    }
    let found = |at: &Path| {
        let found = nested_repositories(at);
        let names = found
            .iter()
            .map(|folder| folder.strip_prefix(at).unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(found(&top), [Path::new("a/two"), Path::new("one")]);
    fs::write(
        top.join(".gitmodules"),
        "[submodule \"l\"]\n\tpath = x/y/z/listed\n[submodule \"bad\"]\n\tpath = ../../etc\n",
    )
    .unwrap();
    assert_eq!(
        found(&top),
        [
            Path::new("a/two"),
            Path::new("one"),
            Path::new("x/y/z/listed")
        ]
    );
}

#[test]
fn a_crowd_of_nested_repositories_is_cut_off() {
    let (_scratch, top) = scratch();
    for number in 0..NESTED_AT_MOST + 5 {
        fs::create_dir_all(top.join(format!("r{number}/.git"))).unwrap();
    }
    assert_eq!(nested_repositories(&top).len(), NESTED_AT_MOST);
}
