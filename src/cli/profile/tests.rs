use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

/// Text and JSON of a new workspace's policy, with a profile laid over it; the folder above reads `TOP`.
fn shown_with(mode: &str, profile: &str) -> (String, Value) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let workspace = scratch.path().join("w");
    std::fs::create_dir(&workspace).unwrap();
    let file = scratch.path().join("p.toml");
    std::fs::write(&file, profile).unwrap();
    let words = ["x", "show", "--mode", mode, "--workspace"].map(str::to_owned);
    let paths = [&workspace, &file].map(|path| path.to_str().unwrap().to_owned());
    let [workspace, file] = paths;
    let rest = [workspace, "--profile".to_owned(), file];
    let line = Line::parse_from(words.into_iter().chain(rest));
    let Command::Show(select) = line.args.command;
    let built = select.build(select.mode).unwrap();
    let top = scratch.path().to_str().unwrap();
    let text = as_text(&built).unwrap().replace(top, "TOP");
    let json = as_json(&built).unwrap().to_string().replace(top, "TOP");
    (text, serde_json::from_str(&json).unwrap())
}

#[test]
fn each_line_names_its_origin() {
    let profile = "network = 'host'\n[limits]\nprocesses = 'unlimited'\nscratch_bytes = 5\n\
         [environment]\nkeep = ['A_KEY']\n";
    let (text, json) = shown_with("workspace-write", profile);
    let line_of = |builtin: &str, line: &str| {
        1 + builtin
            .lines()
            .position(|other| other.trim() == line)
            .unwrap()
    };
    let narrow = include_str!("../../../sandbox-profiles/read-only.toml");
    let wide = include_str!("../../../sandbox-profiles/workspace-write.toml");
    let calls = line_of(narrow, "calls = [\"clone3\"]");
    let idea = line_of(wide, "\".idea\",");
    // The columns' width depends on the folder's name.
    let lines: Vec<_> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for line in [
        "mode workspace-write".to_owned(),
        "workspace TOP/w".to_owned(),
        "network host TOP/p.toml:1".to_owned(),
        "TOP/w the workspace".to_owned(),
        format!("TOP/w/.idea built-in workspace-write:{idea}"),
        format!("clone3: ENOSYS (built-in read-only:{calls})"),
        "processes unlimited TOP/p.toml:3".to_owned(),
        "scratch_bytes 5 in each private folder TOP/p.toml:4".to_owned(),
        "kept A_KEY TOP/p.toml:6".to_owned(),
    ] {
        assert!(lines.contains(&line), "{line:?} in\n{text}");
    }
    assert_eq!(json["policy"]["network"], "host");
    assert_eq!(json["origins"]["network"], "TOP/p.toml:1");
    assert_eq!(json["origins"]["limits"]["processes"], "TOP/p.toml:3");
    assert_eq!(
        json["origins"]["environment"]["keep"]["A_KEY"],
        "TOP/p.toml:6"
    );
    assert_eq!(json["policy"]["limits"]["processes"], Value::Null);
    let groups = json["policy"]["refusedCalls"].as_array().unwrap().len();
    assert_eq!(
        json["origins"]["refusedCalls"].as_array().unwrap().len(),
        groups
    );
}

#[test]
fn full_access_shows_the_environment_alone() {
    let (text, _) = shown_with("danger-full-access", "[environment]\nset = { A = 'b' }\n");
    assert_eq!(
        text,
        "mode            danger-full-access
workspace       TOP/w
nothing is confined: only the rules for the environment count

environment, beside the scrub of names with KEY, SECRET or TOKEN in them
  set           A=b                                TOP/p.toml:2
"
    );
}
