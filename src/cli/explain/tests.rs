use std::fs;
use std::os::unix::fs::symlink;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Explains a name in a workspace with a repository's `.git` and a `.vscode`, and cuts the folder's name.
fn explained(words: &[&str]) -> (String, serde_json::Value) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let top = fs::canonicalize(scratch.path()).unwrap();
    let workspace = top.join("w");
    for folder in [".git/objects", ".git/refs", ".git/hooks", ".vscode"] {
        fs::create_dir_all(workspace.join(folder)).unwrap();
    }
    fs::write(workspace.join(".git/HEAD"), "").unwrap();
    fs::write(workspace.join("file"), "").unwrap();
    fs::write(workspace.join("program"), "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(workspace.join("program"), mode).unwrap();
    symlink("file", workspace.join("link")).unwrap();
    let top = top.to_str().unwrap();
    let words = words.iter().map(|word| word.replace("TOP", top));
    let line = ["x".to_owned(), format!("--workspace={top}/w")];
    let args = Line::parse_from(line.into_iter().chain(words)).args;
    let explained = explain(&args).unwrap();
    let text = explained.as_text().unwrap().replace(top, "TOP");
    let json = explained.as_json().unwrap().to_string().replace(top, "TOP");
    (text, serde_json::from_str(&json).unwrap())
}

#[test]
fn a_file_of_the_workspace_is_explained_in_each_mode() {
    let text = |mode: &str| explained(&["--mode", mode, "TOP/w/program"]).0;
    assert_eq!(
        text("read-only"),
        "TOP/w/program
  mode       read-only, workspace TOP/w
  read       yes
  write      no: the policy
  execute    yes
  rule       the host's files are read-only
  writable   under workspace-write
"
    );
    assert_eq!(
        text("workspace-write"),
        "TOP/w/program
  mode       workspace-write, workspace TOP/w
  read       yes
  write      yes
  execute    yes
  rule       writable: TOP/w (the workspace)
  writable   under workspace-write
"
    );
    assert_eq!(
        text("danger-full-access"),
        "TOP/w/program
  mode       danger-full-access, workspace TOP/w
  read       yes
  write      yes
  execute    yes
  rule       this mode confines nothing
  writable   under workspace-write
"
    );
}

#[test]
fn a_link_is_followed_and_what_permissions_refuse_is_told_apart() {
    assert_eq!(
        explained(&["TOP/w/link"]).0,
        "TOP/w/link
  leads to   TOP/w/file
  mode       read-only, workspace TOP/w
  read       yes
  write      no: the policy
  execute    no: the file's own permissions
  rule       the host's files are read-only
  writable   under workspace-write
"
    );
    // Nothing can be created where the folder is missing, whatever the mode.
    assert_eq!(
        explained(&["--mode=workspace-write", "TOP/none/file"]).0,
        "TOP/none/file
  mode       workspace-write, workspace TOP/w
  read       no: the file's own permissions
  write      no: the policy, and the file's own permissions too
  execute    no: the file's own permissions
  rule       the host's files are read-only
  writable   under no mode: the file's own permissions refuse it
"
    );
}

#[test]
fn protected_pinned_absent_and_private_paths_name_their_rule() {
    let text = |name: &str| explained(&["--mode=workspace-write", name]).0;
    assert_eq!(
        text("TOP/w/.git/hooks/pre-commit"),
        "TOP/w/.git/hooks/pre-commit
  mode       workspace-write, workspace TOP/w
  read       no: the file's own permissions
  write      no: the policy
  execute    no: the file's own permissions
  rule       protected below a writable root: TOP/w/.git/hooks (built in)
  writable   under danger-full-access
"
    );
    assert!(text("TOP/w/.git").ends_with("  note       it can't be renamed or removed\n"));
    assert!(text("TOP/w/.idea/x").ends_with(
        "  note       nothing is there to be protected: a command that makes it is reported\n"
    ));
    assert_eq!(
        text("/dev/shm/x"),
        "/dev/shm/x
  mode       workspace-write, workspace TOP/w
  read       yes
  write      yes
  execute    yes
  rule       private to the session: /dev/shm
  writable   under read-only
  note       this is the session's own folder, not the host's
"
    );
}

#[test]
fn json_says_the_same_with_the_line_of_the_profile() {
    let json = explained(&["--mode=workspace-write", "TOP/w/.vscode"]).1;
    let line = json["rule"]["origin"]["profile"]["line"].as_u64().unwrap();
    let text = include_str!("../../../sandbox-profiles/workspace-write.toml");
    let line = usize::try_from(line).unwrap() - 1;
    assert_eq!(text.lines().nth(line).unwrap().trim(), "\".vscode\",");
    assert_eq!(
        json,
        serde_json::json!({
            "path": "TOP/w/.vscode",
            "resolved": "TOP/w/.vscode",
            "mode": "workspace-write",
            "workspace": "TOP/w",
            "read": true,
            "write": false,
            "execute": true,
            "policy": {"read": true, "write": false},
            "permissions": {"read": true, "write": true, "execute": true},
            "rule": {
                "kind": "protected",
                "path": "TOP/w/.vscode",
                "origin": {"profile": {"file": "built-in workspace-write", "line": line + 1}},
            },
            "writableUnder": "danger-full-access",
            "notes": [],
        })
    );
}
