//! `cofferdam run --approval`: a person at the terminal or at another one is asked, and what they say
//! decides. The terminal is a pseudo-terminal that `setsid --ctty` makes the controlling one.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helpers of tests may panic as tests may.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_cofferdam");

/// What the command says when it is refused.
const REFUSED: &str = "touch: cannot touch 'made': Read-only file system\n";

/// A workspace and a home of the sessions.
struct World {
    dir: TempDir,
}

impl World {
    fn new() -> World {
        // Not below /tmp, which commands have their own of.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["w", "home", "run"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            let private = fs::Permissions::from_mode(0o700);
            fs::set_permissions(dir.path().join(name), private).unwrap();
        }
        World { dir }
    }

    fn workspace(&self) -> PathBuf {
        self.dir.path().join("w")
    }

    fn made(&self) -> PathBuf {
        self.workspace().join("made")
    }

    /// The markers of the refused run.
    fn markers(&self) -> String {
        format!(
            "[sandbox: file access denied under read-only mode]\n\
             [sandbox: blocked write {}; allowed under workspace-write]\n",
            self.made().display()
        )
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(self.workspace())
            .env("HOME", self.dir.path().join("home"))
            .env("DSH_HOME", self.dir.path().join("home/dsh"))
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// `cofferdam` with these arguments and without a terminal.
    fn cofferdam(&self, args: &[&str]) -> Output {
        let args: Vec<&str> = ["--wait", BINARY].iter().chain(args).copied().collect();
        self.command("setsid", &args).output().unwrap()
    }

    /// `cofferdam run` with these arguments at a terminal, where `typed` is typed after the question
    /// was shown: what came of it, and what was shown.
    fn at_the_terminal(&self, args: &[&str], typed: &str) -> (Output, String) {
        let pty = nix::pty::openpty(None, None).unwrap();
        let mut person = File::from(pty.master);
        let words = ["--ctty", "--wait", BINARY, "run"];
        let args: Vec<&str> = words.iter().chain(args).copied().collect();
        let child = self
            .command("setsid", &args)
            .stdin(Stdio::from(pty.slave))
            .spawn()
            .unwrap();
        let mut shown = Vec::new();
        let prompt = b"anything else rejects it: ";
        while !shown.windows(prompt.len()).any(|part| part == prompt) {
            let mut bytes = [0; 4096];
            let count = person.read(&mut bytes).expect("the question is shown");
            shown.extend_from_slice(&bytes[..count]);
        }
        assert!(!self.made().exists(), "it ran before the answer");
        person.write_all(typed.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (
            output,
            String::from_utf8(shown).unwrap().replace("\r\n", "\n"),
        )
    }

    /// What `cofferdam audit` says of every call: mode, end, exit code, and the approval's answer.
    fn audit(&self) -> Vec<Value> {
        let output = self.cofferdam(&["audit", "--json"]);
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).unwrap();
        lines
            .lines()
            .map(|line| {
                let entry: Value = serde_json::from_str(line).unwrap();
                json!([
                    entry["mode"],
                    entry["end"],
                    entry["exitCode"],
                    entry["approval"]["reason"],
                    entry["approval"]["answer"],
                    entry["approval"]["by"],
                ])
            })
            .collect()
    }

    fn reason(&self) -> String {
        format!(
            "escalate sandbox to workspace-write: under read-only it was denied: write {}",
            self.made().display()
        )
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

const COMMAND: &str = "printf 'hi '; touch made && echo done";

#[test]
fn allow_typed_at_the_terminal_runs_the_command_once_more_and_that_run_is_the_result() {
    let world = World::new();
    let args = ["--approval", "terminal", "-c", COMMAND];
    let (output, shown) = world.at_the_terminal(&args, "allow\n");
    assert_eq!(
        shown,
        format!(
            "Run this command once under workspace-write?\n\n    {COMMAND}\n\nDirectory: {w}\n\
             Mode now: read-only\nIt adds: writing below {w} and the configured writable folders, and \
             the network that is configured for this mode\n\
             Reason: under read-only it was denied: write {w}/made\n\
             Type \"allow\" to allow it once; anything else rejects it: ",
            w = world.workspace().display()
        )
    );
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "hi hi done\n");
    assert_eq!(text(&output.stderr), REFUSED);
    assert!(world.made().exists());
    let by = "the person at the terminal";
    assert_eq!(
        world.audit(),
        [
            json!(["read-only", "finished", 1, null, null, null]),
            json!([
                "workspace-write",
                "finished",
                0,
                world.reason(),
                "allowed-once",
                by
            ]),
        ]
    );
}

#[test]
fn anything_else_typed_at_the_terminal_leaves_the_first_result() {
    for typed in ["\n", "yes\n"] {
        let world = World::new();
        let args = ["--approval", "never,terminal", "-c", COMMAND];
        // What stands after `never` isn't asked.
        let unasked = world.cofferdam(&[&["run"], &args[..]].concat());
        assert_eq!(
            text(&unasked.stderr),
            format!("{REFUSED}{}", world.markers())
        );
        assert_eq!(world.audit(), [Value::Null; 0]);

        let args = ["--approval", "terminal", "-c", COMMAND];
        let (output, _shown) = world.at_the_terminal(&args, typed);
        assert_eq!(output.status.code(), Some(1), "{typed:?}");
        assert_eq!(text(&output.stdout), "hi ");
        assert_eq!(
            text(&output.stderr),
            format!(
                "{REFUSED}cofferdam: the user rejected escalating this command to \
                 \"workspace-write\"\n{}",
                world.markers()
            )
        );
        assert!(!world.made().exists());
        let by = "the person at the terminal";
        assert_eq!(
            world.audit(),
            [
                json!(["read-only", "finished", 1, null, null, null]),
                json!(["read-only", "failed", null, world.reason(), "rejected", by]),
            ]
        );
    }
}

#[test]
fn json_is_one_object_of_the_run_that_counts() {
    for (typed, mode, code, out) in [
        ("allow\n", "workspace-write", 0, "hi done\n"),
        ("no\n", "read-only", 1, "hi "),
    ] {
        let world = World::new();
        let args = ["--approval", "terminal", "--json", "--quiet", "-c", COMMAND];
        let (output, _shown) = world.at_the_terminal(&args, typed);
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(text(&output.stderr), "");
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["exitCode"], code);
        assert_eq!(object["sandbox"]["mode"], mode);
        assert_eq!(object["stdout"]["text"], out);
        assert_eq!(object["sandbox"]["denied"], code != 0);
    }
}

#[test]
fn nobody_is_asked_about_a_command_that_met_nothing_a_wider_mode_would_cure() {
    let world = World::new();
    for args in [
        [
            "run",
            "--approval",
            "terminal,queue",
            "-c",
            "printf fine; exit 3",
        ],
        // The exit status alone, and words alone, are no denial.
        [
            "run",
            "--approval",
            "terminal,queue",
            "-c",
            "printf fine; echo 'made: Permission denied' >&2; exit 3",
        ],
    ] {
        let output = world.cofferdam(&args);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert_eq!(text(&output.stdout), "fine");
    }
    let expected = json!(["read-only", "finished", 3, null, null, null]);
    assert_eq!(world.audit(), [expected.clone(), expected]);
}

#[test]
fn without_a_terminal_the_chain_ends_and_says_so() {
    let world = World::new();
    let output = world.cofferdam(&["run", "--approval", "terminal", "-c", "touch made"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        format!(
            "{REFUSED}cofferdam: sandbox escalation to \"workspace-write\" requires approval, but no \
             approval channel is available\n{}",
            world.markers()
        )
    );
    assert!(!world.made().exists());
}

/// A run that waits in the queue, and the question's id.
fn waiting(world: &World) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let args = [
        "--wait",
        BINARY,
        "run",
        "--approval",
        "terminal,queue",
        "-c",
        COMMAND,
    ];
    let mut child = world.command("setsid", &args).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut lines = String::new();
    for _ in 0..2 {
        stderr.read_line(&mut lines).unwrap();
    }
    let rest = lines.strip_prefix(REFUSED).expect(&lines);
    let id = rest.trim_end().rsplit(' ').next().unwrap().to_owned();
    assert_eq!(
        rest,
        format!(
            "cofferdam: an escalation waits: cofferdam approve {id}, or cofferdam reject {id}\n"
        )
    );
    (child, stderr, id)
}

#[test]
fn a_person_at_another_terminal_approves_or_rejects() {
    for (verb, code, out, said) in [
        ("approve", 0, "hi hi done\n", "approved, once\n"),
        ("reject", 1, "hi ", "rejected\n"),
    ] {
        let world = World::new();
        let (child, mut stderr, id) = waiting(&world);
        let listed = world.cofferdam(&["approvals"]);
        assert!(text(&listed.stdout).contains(COMMAND), "{listed:?}");
        assert!(!world.made().exists());
        let answered = world.cofferdam(&[verb, &id]);
        assert_eq!(text(&answered.stdout), said, "{answered:?}");
        let output = child.wait_with_output().unwrap();
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(output.status.code(), Some(code));
        assert_eq!(text(&output.stdout), out);
        assert_eq!(world.made().exists(), code == 0);
        let expected = if code == 0 {
            String::new()
        } else {
            format!(
                "cofferdam: the user rejected escalating this command to \"workspace-write\"\n{}",
                world.markers()
            )
        };
        assert_eq!(rest, expected);
        let audit = world.audit();
        let answer = if code == 0 {
            "allowed-once"
        } else {
            "rejected"
        };
        assert_eq!(audit[1][4], answer);
        let by = audit[1][5].as_str().unwrap();
        assert!(by.contains(&format!("by cofferdam {verb}, pid ")), "{by}");
        assert_eq!(
            text(&world.cofferdam(&["approvals"]).stdout),
            "nothing waits\n"
        );
    }
}

#[test]
fn an_interrupt_while_it_asks_takes_the_question_back_and_leaves_the_first_result() {
    let world = World::new();
    // The terminal sends SIGINT to the program for this character.
    let args = ["--approval", "terminal", "-c", COMMAND];
    let (output, _shown) = world.at_the_terminal(&args, "\u{3}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "hi ");
    assert!(!world.made().exists());
    assert_eq!(
        world.audit()[1],
        json!([
            "read-only",
            "failed",
            null,
            world.reason(),
            "cancelled",
            "the caller"
        ])
    );
}

#[test]
fn a_run_that_may_ask_and_cant_be_put_on_record_runs_nothing() {
    let world = World::new();
    fs::write(world.dir.path().join("home/dsh"), "a file").unwrap();
    for (approval, code) in [("terminal", 125), ("never", 0)] {
        let output = world.cofferdam(&["run", "--approval", approval, "-c", "echo ran"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert_eq!(text(&output.stdout), if code == 0 { "ran\n" } else { "" });
        if code != 0 {
            let dsh = world.dir.path().join("home/dsh/sessions");
            assert_eq!(
                text(&output.stderr),
                format!(
                    "cofferdam: a run that may ask can't be put on record: can't create {}: Not a \
                     directory (os error 20); set DSH_HOME to a folder of yours that can be written, \
                     or leave --approval out\n",
                    dsh.display()
                )
            );
        }
    }
}

#[test]
fn an_audit_of_such_a_run_is_filtered_by_mode_class_time_and_session() {
    let world = World::new();
    let args = ["--approval", "terminal", "-c", COMMAND];
    world.at_the_terminal(&args, "allow\n");
    let modes = |words: &[&str]| -> Vec<Value> {
        let output = world.cofferdam(&[&["audit", "--json"], words].concat());
        assert!(output.status.success(), "{output:?}");
        let lines = text(&output.stdout).lines();
        lines
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["mode"].clone())
            .collect()
    };
    let sessions = fs::read_dir(world.dir.path().join("home/dsh/sessions")).unwrap();
    let names: Vec<_> = sessions.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1);
    let id = names[0].to_str().unwrap();
    let both = ["read-only", "workspace-write"];
    assert_eq!(modes(&[]), both);
    assert_eq!(modes(&["--mode", "workspace-write"]), ["workspace-write"]);
    assert_eq!(modes(&["--class", "file_write"]), ["read-only"]);
    assert_eq!(modes(&["--class", "network"]), [""; 0]);
    assert_eq!(modes(&["--since", "1h"]), both);
    assert_eq!(modes(&["--until", "2020-01-01"]), [""; 0]);
    assert_eq!(modes(&["--session", &id[..8]]), both);
}

#[test]
fn a_command_is_told_the_home_of_the_sessions_and_its_own_when_it_is_on_record() {
    let world = World::new();
    let home = world.dir.path().join("home/dsh");
    let dsh = |args: &[&str]| -> Vec<String> {
        let command = ["-c", "env | grep ^DSH_ | sort"];
        let output = world
            .command(BINARY, &[&["run"], args, &command[..]].concat())
            .env("DSH_OTHER", "not inherited")
            .output()
            .unwrap();
        text(&output.stdout).lines().map(str::to_owned).collect()
    };
    let plain = vec![
        format!("DSH_HOME={}", home.display()),
        "DSH_SHELL=1".to_owned(),
    ];
    assert_eq!(dsh(&[]), plain);
    assert!(!home.exists(), "a run that asks nobody keeps no record");
    let told = dsh(&["--approval", "queue"]);
    let id = told[1].strip_prefix("DSH_SESSION_ID=").unwrap();
    let log = home.join(format!("sessions/{id}.jsonl"));
    assert!(log.exists());
    assert_eq!(told[2], format!("DSH_SESSION_JSONL={}", log.display()));
    assert_eq!([&told[0], &told[3]], [&plain[0], &plain[1]]);
}

#[test]
fn the_object_of_json_has_its_fields_in_the_order_of_its_description() {
    let world = World::new();
    let output = world.cofferdam(&["run", "--json", "-c", "touch made"]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        keys(&object),
        [
            "exitCode",
            "signal",
            "timedOut",
            "aborted",
            "timeoutMs",
            "durationMs",
            "stdout",
            "stderr",
            "sandbox"
        ]
    );
    assert_eq!(
        keys(&object["stdout"]),
        ["text", "truncated", "bytes", "spillPath"]
    );
    assert_eq!(
        keys(&object["sandbox"]),
        ["mode", "enforcement", "missing", "denied", "denials"]
    );
    assert_eq!(
        keys(&object["sandbox"]["denials"][0]),
        [
            "class",
            "operation",
            "path",
            "address",
            "errno",
            "allowedUnder",
            "evidence",
            "confidence",
            "line"
        ]
    );
    let refused = world.cofferdam(&["run", "--json", "--workspace", "/no/such", "-c", "true"]);
    let object: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(
        keys(&object["error"]),
        ["code", "message", "step", "errno", "remedy"]
    );
}
