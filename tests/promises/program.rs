//! The program: its output, its environment, its profiles and its refusals.

use std::fs;

use serde_json::json;

use crate::world::{World, anyone, ordinary};

#[test]
fn output_passes_byte_for_byte_and_streams_stay_apart() {
    ordinary(|world| {
        for mode in ["read-only", "workspace-write", "danger-full-access"] {
            let done = world
                .call(mode)
                .plain()
                .sh(r"printf 'a\0\377\nb'; printf '\200err' >&2");
            assert_eq!(
                (done.status, &done.stdout[..], &done.stderr[..]),
                (0, &b"a\0\xff\nb"[..], &b"\x80err"[..])
            );
        }
    });
}

#[test]
fn standard_input_is_empty_unless_asked_for() {
    ordinary(|world| {
        let call = || world.call("workspace-write").stdin("hello\n");
        assert_eq!(call().sh("cat | wc -c").ok(), "0");
        assert_eq!(call().args(["--stdin"]).sh("cat").ok(), "hello");
        assert_eq!(
            call()
                .stdin("echo from stdin")
                .args(["-c", "-"])
                .done()
                .ok(),
            "from stdin"
        );
        let long = format!(": {}\necho $((40 + 2))", "x".repeat(300_000));
        assert_eq!(call().stdin(long).args(["-c", "-"]).done().ok(), "42");
    });
}

#[test]
fn a_program_gets_its_arguments_as_they_are_and_the_shell_no_start_up_files() {
    ordinary(|world| {
        fs::write(world.home().join(".bashrc"), "echo started").unwrap();
        let done = world
            .call("workspace-write")
            .env("BASH_ENV_", "x")
            .exec(["printf", "%s|", "a b", "$HOME", ""]);
        assert_eq!(done.ok(), "a b|$HOME||");
        assert_eq!(world.write("echo $0 $-").ok(), "bash hBc");
    });
}

#[test]
fn the_json_object_has_exactly_the_documented_shape() {
    ordinary(|world| {
        let path = world.outside().join("f");
        let mut done = world.write(format!("echo out; echo x > {}", path.display()));
        let duration = done.json["durationMs"].take();
        assert!(duration.as_f64().is_some_and(|duration| duration > 0.0));
        let line = format!("bash: line 1: {}: Read-only file system", path.display());
        let expected = json!({
            "exitCode": 1, "signal": null, "timedOut": false, "aborted": false, "timeoutMs": 120_000, "durationMs": null,
            "stdout": {"text": "out\n", "truncated": false, "bytes": 4, "spillPath": null},
            "stderr": {"text": format!("{line}\n"), "truncated": false, "bytes": line.len() + 1, "spillPath": null},
            "sandbox": {
                "mode": "workspace-write", "enforcement": "full", "missing": [], "denied": true,
                "denials": [{
                    "class": "file_write", "operation": "write", "path": path, "address": null, "errno": "EROFS",
                    "allowedUnder": "danger-full-access", "evidence": "errno", "confidence": "proven", "line": line,
                }],
            },
        });
        assert_eq!(done.json, expected);
        assert_eq!(done.stderr, b"");
        assert_eq!(done.status, 1);

        let unconfined = world.full("true");
        assert_eq!(
            unconfined.json["sandbox"],
            json!({"mode": "danger-full-access", "enforcement": null, "missing": [], "denied": false, "denials": []})
        );
    });
}

#[test]
fn denial_markers_stand_at_the_end_of_standard_error_unless_it_shall_be_quiet() {
    ordinary(|world| {
        let path = world.outside().join("f");
        let path = path.display();
        let call = || world.call("workspace-write").plain();
        let text = format!("echo x > {path}");
        let own = format!("bash: line 1: {path}: Read-only file system\n");
        let markers = format!(
            "[sandbox: file access denied under workspace-write mode]\n[sandbox: blocked write {path}; allowed under danger-full-access]\n"
        );
        assert_eq!(
            String::from_utf8(call().sh(&text).stderr).unwrap(),
            own.clone() + &markers
        );
        assert_eq!(
            String::from_utf8(call().args(["--quiet"]).sh(&text).stderr).unwrap(),
            own
        );
        assert_eq!(call().sh("echo x > f").stderr, b"");
    });
}

#[test]
fn what_can_not_start_is_told_as_one_object_and_exits_with_125() {
    ordinary(|world| {
        let error = |done: crate::world::Done, code: &str, message: &str| {
            let error = done.refused();
            assert_eq!(error["code"], code, "{error}");
            assert!(
                error["message"].as_str().unwrap().contains(message),
                "{error}"
            );
            let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["code", "message", "step", "errno", "remedy"]);
        };
        let call = || world.call("workspace-write");
        error(
            call().exec(["no-such-program"]),
            "SPAWN_FAILED",
            "no-such-program",
        );
        error(
            call().args(["--workspace", "/nonexistent"]).sh("touch f"),
            "INVALID_ARGS",
            "/nonexistent",
        );
        error(
            call().args(["--workdir", "/nonexistent"]).sh("touch f"),
            "INVALID_ARGS",
            "/nonexistent",
        );
        error(
            call().args(["--profile", "/nonexistent"]).sh("touch f"),
            "INVALID_PROFILE",
            "/nonexistent",
        );
        error(
            call().args(["--writable", "/nonexistent"]).sh("touch f"),
            "INVALID_ARGS",
            "/nonexistent",
        );
        let plain = world
            .call("workspace-write")
            .plain()
            .exec(["no-such-program"]);
        assert_eq!((plain.status, plain.stdout.len()), (125, 0));
        assert!(plain.stderr.starts_with(b"cofferdam: "), "{plain}");
        for words in [
            &["--mode", "wide"][..],
            &["--network", "some"],
            &["--timeout-ms", "0"],
            &["--nonsense"],
        ] {
            assert_eq!(
                world.call("read-only").args(words).sh("touch f").status,
                125
            );
        }
        assert_eq!(fs::read_dir(world.workspace()).unwrap().count(), 0);
        call().sh("touch f").ok();
    });
}

#[test]
fn secrets_of_the_environment_stay_outside_and_managed_variables_come_in() {
    ordinary(|world| {
        for mode in ["read-only", "workspace-write", "danger-full-access"] {
            let call = world
                .call(mode)
                .env("OPENAI_API_KEY", "leak")
                .env("My_Secret", "leak")
                .env("github_token", "leak")
                .env("DSH_SESSION_ID", "leak")
                .env("PAGER", "less")
                .env("PLAIN", "kept")
                .env("GIVEN_TOKEN", "given")
                .args(["--env", "GIVEN_TOKEN", "--env", "NAMED_KEY=named"]);
            let done = call.sh("env");
            let text = done.ok();
            assert!(!text.contains("leak"), "{text}");
            for line in [
                "PLAIN=kept",
                "GIVEN_TOKEN=given",
                "NAMED_KEY=named",
                "NO_COLOR=1",
                "TERM=dumb",
                "PAGER=cat",
                "GIT_PAGER=cat",
            ] {
                assert!(
                    text.lines().any(|other| other == line),
                    "{mode}: {line} in {text}"
                );
            }
        }
        let confined = world
            .call("workspace-write")
            .env("TMPDIR", "/elsewhere")
            .sh("echo $TMPDIR; cat <<< here");
        assert_eq!(confined.ok(), "/tmp\nhere");
    });
}

fn with_profile(world: &World, text: &str) -> crate::world::Done {
    let profile = world.home().join("p.toml");
    fs::write(&profile, text).unwrap();
    world
        .call("workspace-write")
        .args(["--profile", profile.to_str().unwrap()])
        .sh("touch ran")
}

#[test]
fn a_profile_with_an_error_is_refused_with_file_and_line_and_runs_nothing() {
    ordinary(|world| {
        let file = world.home().join("p.toml").display().to_string();
        for (text, line, about) in [
            ("# a\nnetwrok = \"none\"\n", 2, "netwrok"),
            ("network = \"some\"\n", 1, "some"),
            ("\n\nwritable = [3]\n", 3, "integer"),
            ("writable = [\n  \"/nonexistent\",\n]\n", 2, "/nonexistent"),
            ("[limits]\nprocesses = -1\n", 2, "a limit must be positive"),
            (
                "[[refuse]]\ncalls = [\"mont\"]\nerrno = \"EPERM\"\nreason = \"r\"\n",
                2,
                "mont",
            ),
            ("network = \"none\n", 1, ""),
        ] {
            let done = with_profile(world, text);
            let error = done.refused();
            assert_eq!(error["code"], "INVALID_PROFILE", "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("{file}:{line}")) && message.contains(about),
                "{text}: {message}"
            );
            assert_ne!(error["remedy"], "", "{text}: {message}");
            assert!(!world.workspace().join("ran").exists());
        }
        with_profile(world, "network = \"none\"\n").ok();
        assert!(world.workspace().join("ran").exists());
    });
}

#[test]
fn a_profile_of_the_user_loosens_and_a_file_of_the_workspace_only_tightens() {
    ordinary(|world| {
        let outside = world.outside().display().to_string();
        let loose = format!("network = \"host\"\nwritable = [\"{outside}\"]\n");
        // The same text, once by the workspace and once by the user.
        fs::write(world.workspace().join(".cofferdam.toml"), &loose).unwrap();
        let text = format!("echo x > {outside}/f");
        let done = world.write(&text);
        assert!(done.failed().ends_with("Read-only file system"));
        assert!(
            String::from_utf8_lossy(&done.stderr)
                .contains("ignored loosening settings from the workspace"),
            "{done}"
        );
        assert!(!world.outside().join("f").exists());
        world
            .write("echo 'network = \"host\"' > .cofferdam.toml")
            .failed();
        fs::remove_file(world.workspace().join(".cofferdam.toml")).unwrap();

        let config = world.home().join(".config/cofferdam");
        fs::create_dir_all(&config).unwrap();
        fs::write(config.join("workspace-write.toml"), &loose).unwrap();
        world.write(&text).ok();
        assert!(world.outside().join("f").exists());

        fs::write(
            world.workspace().join(".cofferdam.toml"),
            "hidden = [\"private\"]\nprotected = [\"kept\"]\n",
        )
        .unwrap();
        fs::write(world.workspace().join("private"), "").unwrap();
        fs::write(world.workspace().join("kept"), "").unwrap();
        world.write("cat private").failed();
        world.write("echo x > kept").failed();
        world.write("cat kept; echo x > other").ok();
    });
}

#[test]
fn what_profile_show_and_explain_say_is_what_happens() {
    ordinary(|world| {
        let program = world.program().display().to_string();
        fs::create_dir(world.home().join(".ssh")).unwrap();
        let show = world.host(&format!(
            "{program} profile show --mode workspace-write --json"
        ));
        let show: serde_json::Value = serde_json::from_str(&show).unwrap();
        let hidden: Vec<&str> = show["policy"]["hidden"]
            .as_array()
            .unwrap()
            .iter()
            .map(|place| place["path"].as_str().unwrap())
            .collect();
        assert!(
            hidden.contains(&world.home().join(".ssh").to_str().unwrap()),
            "{hidden:?}"
        );
        for path in &hidden {
            world
                .write(format!(
                    "if test -d '{path}'; then ls '{path}'; else head -c1 '{path}'; fi"
                ))
                .failed();
        }
        for (path, write) in [("workspace/f", true), ("outside/f", false)] {
            let path = world.base().join(path);
            let told = world.host(&format!(
                "{program} explain --mode workspace-write --json {}",
                path.display()
            ));
            let told: serde_json::Value = serde_json::from_str(&told).unwrap();
            let done = world.write(format!("echo x > {}", path.display()));
            assert_eq!(
                (done.status == 0, told["write"] == true),
                (write, write),
                "{told}"
            );
        }
    });
}

#[test]
fn nested_roots_hold_whatever_their_order() {
    ordinary(|world| {
        let root = world.outside().join("root");
        let profile = world.home().join("p.toml");
        for turned in [false, true] {
            fs::create_dir_all(root.join("ro/rw")).unwrap();
            let r = root.display();
            let mut writable = [format!("\"{r}\""), format!("\"{r}/ro/rw\"")];
            if turned {
                writable.reverse();
            }
            fs::write(
                &profile,
                format!(
                    "writable = [{}]\nprotected = [\"{r}/ro\"]\n",
                    writable.join(", ")
                ),
            )
            .unwrap();
            let text = format!("echo 1 > {r}/a; echo 1 > {r}/ro/b; echo 1 > {r}/ro/rw/c; true");
            let done = world
                .call("workspace-write")
                .args(["--profile", profile.to_str().unwrap()])
                .sh(text);
            assert_eq!(done.facts().len(), 1, "{done}");
            assert_eq!(done.facts()[0][2], format!("{r}/ro/b"));
            assert_eq!(
                ["a", "ro/b", "ro/rw/c"].map(|name| root.join(name).exists()),
                [true, false, true]
            );
            fs::remove_dir_all(&root).unwrap();
        }
    });
}

#[test]
fn a_single_file_can_be_a_writable_root() {
    ordinary(|world| {
        let (one, other) = (world.outside().join("one"), world.outside().join("other"));
        fs::write(&one, "").unwrap();
        fs::write(&other, "").unwrap();
        let with = |text: String| {
            world
                .call("workspace-write")
                .args(["--writable", one.to_str().unwrap()])
                .sh(text)
        };
        with(format!("echo x > {}", one.display())).ok();
        with(format!("echo x > {}", other.display())).failed();
        assert_eq!(fs::read_to_string(one).unwrap(), "x\n");
    });
}

#[test]
fn a_program_file_that_a_command_could_replace_is_refused() {
    anyone(|world| {
        let copy = world.workspace().join("cofferdam");
        fs::copy(world.program(), &copy).unwrap();
        let run = |mode: &str| {
            let output = std::process::Command::new(&copy)
                .args(["run", "--json", "--mode", mode, "-c", "echo ran"])
                .output();
            crate::world::Done::new(output.unwrap())
        };
        let done = run("workspace-write");
        assert!(
            done.refused()["message"]
                .as_str()
                .unwrap()
                .contains("where a command could replace it"),
            "{done}"
        );
        assert_eq!(run("read-only").ok(), "ran");
    });
}
