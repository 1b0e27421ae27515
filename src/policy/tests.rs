use super::*;

fn places(paths: &[&str]) -> Vec<Place> {
    let place = |path: &&str| Place {
        path: PathBuf::from(path),
        origin: Origin::Builtin,
    };
    paths.iter().map(place).collect()
}

/// Writable `/a`, protected `/a/b`, writable `/a/b/c`, hidden `/a/b/c/d`, writable `/a/b/c/d/e`; hidden
/// `/h`; private `/tmp` and `/run` with `/run/v` visible and the writable `/tmp/w`.
fn layered(mode: Mode) -> Policy {
    Policy {
        mode,
        workspace: PathBuf::from("/a"),
        home: None,
        writable: places(&["/a/b/c/d/e", "/tmp/w", "/a", "/a/b/c"]),
        protected: places(&["/a/b", "/same"]),
        protected_absent: places(&["/a/later"]),
        pinned: places(&[]),
        protected_links: places(&[]),
        hidden: places(&["/h", "/a/b/c/d", "/same"]),
        visible: places(&["/run/v"]),
        scratch: vec![PathBuf::from("/tmp"), PathBuf::from("/run")],
        network: Network::None,
        refused_calls: Vec::new(),
        limits: Limits::default(),
        environment: Environment::default(),
        require: Require::Partial,
        gaps: Vec::new(),
    }
}

#[test]
fn the_deepest_rule_decides_and_at_equal_depth_the_one_that_allows_less() {
    let place = |path: &str| places(&[path]).remove(0);
    for (path, read, write, rule) in [
        ("/", true, false, Rule::HostReadOnly),
        ("/other/file", true, false, Rule::HostReadOnly),
        ("/ab", true, false, Rule::HostReadOnly),
        ("/a", true, true, Rule::Writable(place("/a"))),
        ("/a/x", true, true, Rule::Writable(place("/a"))),
        ("/a/later", true, true, Rule::Writable(place("/a"))),
        ("/a/b", true, false, Rule::Protected(place("/a/b"))),
        ("/a/b/x", true, false, Rule::Protected(place("/a/b"))),
        ("/a/b/c/x", true, true, Rule::Writable(place("/a/b/c"))),
        ("/a/b/c/d/x", false, false, Rule::Hidden(place("/a/b/c/d"))),
        (
            "/a/b/c/d/e/x",
            true,
            true,
            Rule::Writable(place("/a/b/c/d/e")),
        ),
        ("/h/x", false, false, Rule::Hidden(place("/h"))),
        ("/same", false, false, Rule::Hidden(place("/same"))),
        (
            "/tmp/x",
            true,
            true,
            Rule::Scratch {
                path: PathBuf::from("/tmp"),
            },
        ),
        ("/tmp/w/x", true, true, Rule::Writable(place("/tmp/w"))),
        ("/run/v/x", true, false, Rule::Visible(place("/run/v"))),
        (
            "/run/vx",
            true,
            true,
            Rule::Scratch {
                path: PathBuf::from("/run"),
            },
        ),
    ] {
        let expected = Access { read, write, rule };
        let policy = layered(Mode::WorkspaceWrite);
        assert_eq!(policy.access(Path::new(path)), expected, "{path}");
    }
}

#[test]
fn without_confinement_every_path_is_open() {
    let access = layered(Mode::DangerFullAccess).access(Path::new("/h/x"));
    assert_eq!(
        access,
        Access {
            read: true,
            write: true,
            rule: Rule::Unconfined
        }
    );
}

#[test]
fn an_origin_reads_as_a_person_would_say_it() {
    let line = Origin::Profile {
        file: "built-in read-only".into(),
        line: 12,
    };
    assert_eq!(line.to_string(), "built-in read-only:12");
    assert_eq!(Origin::Workspace.to_string(), "the workspace");
    assert_eq!(Origin::Builtin.to_string(), "built in");
}
