use super::*;

fn error(text: &str) -> String {
    let refused = parse("p.toml", text).unwrap_err();
    assert_eq!(refused.code, NeverRanCode::InvalidProfile);
    refused.to_string()
}

fn settled(mode: Mode, user: &str, workspace: &str) -> Settings {
    let user = Arc::new(parse("u", user).unwrap());
    let workspace = parse("w", workspace).unwrap();
    add_up(mode, &[user], Arguments::default(), Some(&workspace)).unwrap()
}

#[test]
fn every_built_in_profile_reads_and_refuses_no_call_twice() {
    for mode in Mode::ALL {
        let settings = settled(mode, "", "");
        let calls = settings.refuse.iter().flat_map(|group| &group.value.calls);
        let mut calls: Vec<_> = calls.collect();
        let all = calls.len();
        calls.sort();
        calls.dedup();
        assert_eq!(calls.len(), all);
        let network = if mode.is_confined() {
            Network::None
        } else {
            Network::Host
        };
        assert_eq!(settings.network.value, network);
    }
    // Merging drops repeated calls, so the texts themselves are looked at as well.
    for (_, text) in BUILTIN_TEXTS {
        let profile = parse("p", text).unwrap();
        let calls = profile.refuse.iter().flat_map(|group| &group.value.calls);
        let mut calls: Vec<_> = calls.collect();
        let all = calls.len();
        calls.sort();
        calls.dedup();
        assert_eq!(calls.len(), all);
        for list in [&profile.hidden, &profile.protected, &profile.remove] {
            let mut names: Vec<_> = list.iter().map(|name| &name.value).collect();
            names.sort();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }
}

#[test]
fn tracing_and_tightening_calls_stay_allowed_and_fallbacks_read_enosys() {
    let settings = settled(Mode::ReadOnly, "", "");
    let errno = |call: &str| {
        let groups = settings.refuse.iter().map(|group| &group.value);
        let mut groups = groups.filter(|group| group.calls.iter().any(|name| name == call));
        groups.next().map(|group| group.errno.as_str())
    };
    for call in [
        "ptrace",
        "process_vm_readv",
        "seccomp",
        "landlock_create_ruleset",
        "clone",
    ] {
        assert_eq!(errno(call), None, "{call}");
    }
    for call in ["io_uring_setup", "clone3"] {
        assert_eq!(errno(call), Some("ENOSYS"), "{call}");
    }
    for call in [
        "mount",
        "open_tree_attr",
        "setns",
        "keyctl",
        "bpf",
        "pidfd_getfd",
    ] {
        assert_eq!(errno(call), Some("EPERM"), "{call}");
    }
}

#[test]
fn workspace_write_hides_and_refuses_what_read_only_does() {
    let narrow = settled(Mode::ReadOnly, "", "");
    let wide = settled(Mode::WorkspaceWrite, "", "");
    assert_eq!(narrow.hidden, wide.hidden);
    assert_eq!(narrow.refuse, wide.refuse);
    assert_eq!(narrow.protected, []);
    assert_ne!(wide.protected, []);
}

#[test]
fn each_mistake_is_an_error_with_file_line_and_remedy() {
    let path_remedy =
        "write /an/absolute/path, ~/below/home or relative/to/the/root, without \"..\"";
    for (text, expected) in [
        (
            "\nnetwork = 'maybe'",
            "p.toml:2: unknown value `maybe`; write `none` or `host`".to_owned(),
        ),
        (
            "# one\n\nwritable = 3",
            "p.toml:3: invalid type: integer `3`; write a sequence".to_owned(),
        ),
        (
            "hidden = ['/a',\n 3]",
            "p.toml:2: invalid type: integer `3`; write a string".to_owned(),
        ),
        (
            "[environment]\nkepe = []",
            "p.toml:2: unknown key `kepe`; use one of: `remove`, `keep`, `set`".to_owned(),
        ),
        (
            "[limits]\nprocesses = 0",
            "p.toml:2: a limit must be positive; write a number such as 4096, a text such as \
             \"4 GiB\", or \"unlimited\""
                .to_owned(),
        ),
        (
            "limits.file_size = '4 GB'",
            "p.toml:1: a limit must be positive; write a number such as 4096, a text such as \
             \"4 GiB\", or \"unlimited\""
                .to_owned(),
        ),
        (
            "limits.file_size = true",
            "p.toml:1: invalid type; write a number, a text like \"4 GiB\", or \"unlimited\""
                .to_owned(),
        ),
        (
            "hidden = ['../x']",
            format!("p.toml:1: \"../x\" is no path that a profile can name; {path_remedy}"),
        ),
        (
            "protected = ['']",
            format!("p.toml:1: \"\" is no path that a profile can name; {path_remedy}"),
        ),
        (
            "writable = ['~other/x']",
            format!("p.toml:1: \"~other/x\" is no path that a profile can name; {path_remedy}"),
        ),
        (
            "writable = ['$TMPDIR']",
            format!("p.toml:1: \"$TMPDIR\" is no path that a profile can name; {path_remedy}"),
        ),
        (
            "[[refuse]]\ncalls = ['mont']\nerrno = 'EPERM'\nreason = 'x'",
            "p.toml:2: no system call is named \"mont\"; write a name from the system call table, \
             as in \"io_uring_setup\""
                .to_owned(),
        ),
        (
            "[[refuse]]\ncalls = ['mount']\nerrno = 'EIO'\nreason = 'x'",
            "p.toml:3: a refused call can't return \"EIO\"; write \"EPERM\", \"EACCES\" or \
             \"ENOSYS\""
                .to_owned(),
        ),
        (
            "[[refuse]]\ncalls = []\nerrno = 'EPERM'\nreason = 'x'",
            "p.toml:2: a group of refused calls without calls or without a reason; name at least \
             one call and say why it is refused"
                .to_owned(),
        ),
        (
            "[[refuse]]\ncalls = ['mount']\nreason = 'x'",
            "p.toml:1: missing field `errno`; correct this line".to_owned(),
        ),
        (
            "[environment]\nset = { DSH_HOME = '/x' }",
            "p.toml:2: DSH_HOME is managed by cofferdam; remove it".to_owned(),
        ),
        (
            "environment.remove = ['A=B']",
            "p.toml:1: \"A=B\" is no name of a variable; write a name without \"=\"".to_owned(),
        ),
        ("x", "p.toml:1: key with no value; write `=`".to_owned()),
        (
            "network = 'none'\nnetwork = 'none'",
            "p.toml:2: duplicate key; correct this line".to_owned(),
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn limits_are_numbers_texts_or_unlimited() {
    let settings = settled(
        Mode::ReadOnly,
        "[limits]\nprocesses = 7\nfile_size = '2 GiB'\nopen_files = '64'\nscratch_bytes = 'unlimited'",
        "",
    );
    assert_eq!(
        settings.limit_values(),
        Limits {
            processes: Some(7),
            open_files: Some(64),
            file_size: Some(2 << 30),
            scratch_bytes: None,
        }
    );
}

#[test]
fn a_workspace_tightens_each_single_value_and_loosens_none() {
    for (user, workspace, ignored) in [
        ("network = 'host'", "network = 'none'", ""),
        ("network = 'host'", "network = 'host'", ""),
        ("network = 'none'", "network = 'host'", "network (w:1)"),
        ("require = 'partial'", "require = 'full'", ""),
        ("require = 'full'", "require = 'partial'", "require (w:1)"),
        ("limits.processes = 9", "limits.processes = 8", ""),
        ("limits.processes = 9", "limits.processes = 9", ""),
        (
            "limits.processes = 9",
            "limits.processes = 10",
            "limits.processes (w:1)",
        ),
        (
            "limits.processes = 9",
            "limits.processes = 'unlimited'",
            "limits.processes (w:1)",
        ),
        ("limits.processes = 'unlimited'", "limits.processes = 9", ""),
        ("", "limits.open_files = 9", ""),
        ("", "visible = ['/run/x']", "visible (w:1)"),
        ("", "unprotect = ['.vscode']", "unprotect (w:1)"),
        ("", "hidden_variables = ['X']", ""),
    ] {
        let tried = settled(Mode::WorkspaceWrite, user, workspace);
        assert_eq!(tried.ignored.join(", "), ignored, "{workspace}");
        let kept = settled(Mode::WorkspaceWrite, user, "");
        if !ignored.is_empty() {
            let same = Settings {
                ignored: Vec::new(),
                ..tried
            };
            assert_eq!(same, kept, "{workspace}");
        }
    }
}

#[test]
fn later_single_values_replace_and_later_lists_add() {
    let one = Arc::new(parse("one", "network = 'host'\nhidden = ['/one']").unwrap());
    let two = Arc::new(parse("two", "network = 'none'\nhidden = ['/two']").unwrap());
    let argument = Arguments {
        network: Some(Network::Host),
        require: None,
    };
    let settings = add_up(Mode::ReadOnly, &[one, two], Arguments::default(), None).unwrap();
    let (network, hidden) = (settings.network, settings.hidden);
    assert_eq!(network.value, Network::None);
    assert_eq!(network.origin.to_string(), "two:1");
    let last: Vec<_> = hidden
        .iter()
        .rev()
        .take(2)
        .map(|name| name.value.as_str())
        .collect();
    assert_eq!(last, ["/two", "/one"]);
    let settings = add_up(Mode::ReadOnly, &[], argument, None).unwrap();
    assert_eq!(settings.network.value, Network::Host);
    assert_eq!(settings.network.origin, Origin::Argument);
}
