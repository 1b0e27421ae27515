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
        assert_eq!(found.unseen, [""; 0]);
        let names = found
            .paths
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
fn a_crowd_of_nested_repositories_is_cut_off_and_told_and_as_many_as_are_looked_after_are_not() {
    let (_scratch, top) = scratch();
    for number in 0..NESTED_AT_MOST {
        fs::create_dir_all(top.join(format!("r{number}/.git"))).unwrap();
    }
    let found = nested_repositories(&top);
    assert_eq!((found.paths.len(), found.unseen), (NESTED_AT_MOST, vec![]));
    fs::create_dir_all(top.join("s/.git")).unwrap();
    let found = nested_repositories(&top);
    assert_eq!(found.paths.len(), NESTED_AT_MOST);
    assert_eq!(
        found.unseen,
        [format!(
            "hooks and configuration of repositories below {top:?} beyond the first 128"
        )]
    );
}

#[test]
fn a_crowd_of_folders_and_of_names_is_told() {
    let (_scratch, top) = scratch();
    for number in 1..FOLDERS_AT_MOST {
        fs::create_dir(top.join(format!("{number:05}"))).unwrap();
    }
    assert_eq!(look_for_repositories(&top).unseen, [""; 0]);
    fs::create_dir_all(top.join("y")).unwrap();
    fs::create_dir_all(top.join("z/.git")).unwrap();
    let told = format!(
        "hooks and configuration of repositories below {top:?} beyond its first 1024 folders"
    );
    assert_eq!(look_for_repositories(&top).unseen, [told]);
    let (_scratch, top) = scratch();
    for number in 0..=NAMES_AT_MOST {
        fs::write(top.join(number.to_string()), "").unwrap();
    }
    let told = format!(
        "hooks and configuration of repositories in folders below {top:?} of more than 4096 names"
    );
    assert_eq!(look_for_repositories(&top).unseen, [told]);
}

#[test]
fn a_submodule_is_found_where_its_git_directory_says_although_gitmodules_was_emptied() {
    let (_scratch, top) = scratch();
    let (main, library) = (top.join("main"), top.join("library"));
    repository(&main);
    repository(&library);
    let url = library.to_str().unwrap();
    run_git(&main, &["submodule", "add", "-q", url, "a/b/c/lib"]);
    assert_eq!(look_for_repositories(&main).paths, [main.join("a/b/c/lib")]);
    fs::write(main.join(".gitmodules"), "").unwrap();
    fs::remove_file(main.join(".git/index")).unwrap();
    assert_eq!(look_for_repositories(&main).paths, [main.join("a/b/c/lib")]);
}

#[test]
fn a_repository_that_the_index_links_is_found_at_any_depth_and_one_that_it_does_not_is_not() {
    let (_scratch, top) = scratch();
    repository(&top);
    repository(&top.join("a/b/c/linked"));
    repository(&top.join("a/b/c/not"));
    assert_eq!(nested_repositories(&top).paths, [] as [PathBuf; 0]);
    let entry = format!("160000,{},a/b/c/linked", "1".repeat(40));
    run_git(&top, &["update-index", "--add", "--cacheinfo", &entry]);
    assert_eq!(nested_repositories(&top).paths, [top.join("a/b/c/linked")]);
}

#[test]
fn a_crowd_of_git_directories_is_told_and_the_first_ones_are_looked_after() {
    let (_scratch, top) = scratch();
    let module = |name: &str| {
        for part in ["HEAD", "objects", "refs"] {
            fs::create_dir_all(top.join("modules").join(name).join(part)).unwrap();
        }
    };
    for number in 1..GIT_DIRS_AT_MOST {
        module(&format!("{number:03}"));
    }
    let found = sensitive_paths(&top);
    assert!(found.paths.contains(&top.join("modules/255/hooks")));
    assert_eq!(found.unseen, [""; 0]);
    module("zz");
    let found = sensitive_paths(&top);
    assert!(found.paths.contains(&top.join("hooks")));
    assert_eq!(
        found.unseen,
        [format!(
            "hooks and configuration of the git directories below {top:?} beyond the first 256"
        )]
    );
}

#[test]
fn a_configuration_with_its_includes_ends_at_a_loop_and_at_a_crowd() {
    let (_scratch, top) = scratch();
    let at = |name: &str| top.join(name);
    let names = |found: Vec<(PathBuf, Config)>| -> Vec<PathBuf> {
        found.into_iter().map(|(file, _)| file).collect()
    };
    fs::write(
        at("a"),
        "[include]\npath = b\n[includeIf \"onbranch:x\"]\npath = ~/c\n",
    )
    .unwrap();
    fs::write(at("b"), "[include]\npath = a\n").unwrap();
    let (found, cut) = config_with_includes(&at("a"), Some(&at("home")));
    assert_eq!(names(found), [at("a"), at("b"), at("home/c")]);
    assert!(!cut);
    let crowd: String = (0..INCLUDES_AT_MOST)
        .map(|number| format!("[include]\npath = {number}\n"))
        .collect();
    fs::write(at("a"), crowd).unwrap();
    let (found, cut) = config_with_includes(&at("a"), None);
    assert_eq!(found.len(), INCLUDES_AT_MOST);
    assert!(cut);
}
