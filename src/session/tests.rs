//! The log under several writers, a killed one, torn and foreign lines; the fold; resuming.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::mode::Mode::{DangerFullAccess, ReadOnly, WorkspaceWrite};

fn home() -> (tempfile::TempDir, Home) {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::find(Some(&dir.path().join("dsh"))).unwrap();
    (dir, home)
}

fn create(home: &Home) -> Session {
    Session::create(home, Path::new("/w"), WorkspaceWrite).unwrap()
}

fn append_raw(session: &Session, bytes: &[u8]) {
    let path = session.log_path().unwrap();
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(bytes).unwrap();
}

fn kinds(session: &Session) -> Vec<String> {
    session.events().unwrap().iter().map(Event::kind).collect()
}

#[test]
fn a_new_log_is_for_its_owner_alone_and_an_open_folder_is_tightened() {
    let (_dir, home) = home();
    let session = create(&home);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&home.sessions()), 0o700);
    assert_eq!(mode(&session.log_path().unwrap()), 0o600);
    assert_eq!(
        session.log_path().unwrap(),
        home.sessions().join(format!("{}.jsonl", session.id()))
    );

    fs::set_permissions(home.sessions(), fs::Permissions::from_mode(0o755)).unwrap();
    create(&home);
    assert_eq!(mode(&home.sessions()), 0o700);
    assert_eq!(list(&home).unwrap().len(), 2);
}

#[test]
fn ids_are_128_random_bits_and_nothing_else_names_a_file() {
    let (_dir, home) = home();
    let ids: HashSet<String> = (0..100).map(|_| random_id().unwrap()).collect();
    assert_eq!(ids.len(), 100);
    assert!(ids.iter().all(|id| is_id(id)));
    for word in [
        "",
        "../../etc/passwd",
        "A0",
        &"g".repeat(32),
        &"a".repeat(31),
        &"A".repeat(32),
    ] {
        assert_eq!(
            Session::resume(&home, word, WorkspaceWrite)
                .unwrap_err()
                .to_string(),
            format!(
                "\"{word}\" is no session id: use 32 hexadecimal digits as `cofferdam session list` prints them"
            )
        );
    }
    let unknown = "0".repeat(32);
    assert_eq!(
        Session::resume(&home, &unknown, WorkspaceWrite)
            .unwrap_err()
            .to_string(),
        format!(
            "no session \"{unknown}\" below {}; `cofferdam session list` prints those that are there",
            home.sessions().display()
        )
    );
    assert_eq!(list(&home).unwrap(), [""; 0]);
}

#[test]
fn a_log_that_is_a_link_is_not_followed() {
    let (dir, home) = home();
    let session = create(&home);
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(session.log_path().unwrap(), &elsewhere).unwrap();
    symlink(&elsewhere, session.log_path().unwrap()).unwrap();
    assert!(matches!(
        Session::resume(&home, session.id(), WorkspaceWrite),
        Err(SessionError::Unknown { .. })
    ));
    assert!(log::Log::open(&session.log_path().unwrap()).is_err());
    assert!(log::Log::open(&elsewhere).is_ok());
}

#[test]
fn the_override_is_the_last_switch_and_sessions_do_not_see_each_others() {
    let (_dir, home) = home();
    let (one, other) = (create(&home), create(&home));
    assert_eq!(one.standing().unwrap().switched, None);
    one.switch(DangerFullAccess, "ada").unwrap();
    one.switch(ReadOnly, "ada").unwrap();
    assert_eq!(one.standing().unwrap().switched, Some(ReadOnly));
    assert_eq!(fold(&one.events().unwrap()), Some(ReadOnly));
    assert_eq!(other.standing().unwrap().switched, None);
    assert_eq!(
        kinds(&one),
        ["session/start", "bash/sandbox-mode", "bash/sandbox-mode"],
        "a switch is exactly one event"
    );
    assert_eq!(
        one.effective(WorkspaceWrite).unwrap(),
        (ReadOnly, ModeSource::Session)
    );
    assert_eq!(
        other.effective(WorkspaceWrite).unwrap(),
        (WorkspaceWrite, ModeSource::Default)
    );
}

#[test]
fn a_session_without_a_file_folds_the_same_and_keeps_a_bounded_past() {
    let session = Session::in_memory(Path::new("/w"), WorkspaceWrite).unwrap();
    session.switch(ReadOnly, "ada").unwrap();
    for _ in 0..2000 {
        session.record(What::ModeTold { mode: ReadOnly }).unwrap();
    }
    assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    assert_eq!(session.events().unwrap().len(), 1024);
    assert_eq!(session.log_path(), None);
}

#[test]
fn a_resumed_session_has_its_id_and_folder_even_one_that_is_no_utf8_and_a_default_of_today() {
    let (_dir, home) = home();
    let cwd = PathBuf::from(std::ffi::OsString::from_vec(b"/w/\xff\n x".to_vec()));
    let session = Session::create(&home, &cwd, DangerFullAccess).unwrap();
    let resumed = Session::resume(&home, session.id(), WorkspaceWrite).unwrap();
    assert_eq!(resumed.id(), session.id());
    assert_eq!(resumed.cwd(), cwd);
    assert_eq!(resumed.default_mode(), WorkspaceWrite);
    assert_eq!(kinds(&resumed), ["session/start", "session/resume"]);
}

#[test]
fn a_switch_from_outside_is_one_event_and_holds_at_once() {
    let (_dir, home) = home();
    let session = create(&home);
    switch(&home, session.id(), ReadOnly, "ada").unwrap();
    assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    assert_eq!(kinds(&session), ["session/start", "bash/sandbox-mode"]);
    assert!(switch(&home, &"0".repeat(32), ReadOnly, "ada").is_err());
}

#[test]
fn a_task_runs_until_it_has_settled_in_whichever_order_the_two_are_written() {
    let process = Process::current();
    let started = |task: &str| What::TaskStarted {
        call: "c".to_owned(),
        task: task.to_owned(),
        mode: WorkspaceWrite,
        command: "make".to_owned(),
        process,
    };
    let settled = |task: &str, process| What::TaskSettled {
        task: task.to_owned(),
        status: Settled::Exited(0),
        process,
    };
    let another = Process { pid: 1, started: 1 };
    let log = [
        settled("bash-1", process),
        started("bash-1"),
        started("bash-2"),
        started("bash-3"),
        settled("bash-2", process),
        settled("bash-3", another),
    ];
    let events: Vec<Event> = log.into_iter().map(Event::now).collect();
    let names: Vec<String> = running(&events).into_iter().map(|task| task.task).collect();
    assert_eq!(names, ["bash-3"]);
}

#[test]
fn a_log_without_a_start_is_not_resumed() {
    let (_dir, home) = home();
    let session = create(&home);
    fs::write(
        session.log_path().unwrap(),
        "{\"type\":\"bash/sandbox-mode\"",
    )
    .unwrap();
    assert_eq!(
        Session::resume(&home, session.id(), WorkspaceWrite)
            .unwrap_err()
            .to_string(),
        format!(
            "the log {} doesn't begin with a readable session/start event; start a new session",
            session.log_path().unwrap().display()
        )
    );
}

#[test]
fn a_torn_tail_is_passed_over_and_the_next_event_starts_on_a_fresh_line() {
    let (_dir, home) = home();
    let session = create(&home);
    session.switch(ReadOnly, "ada").unwrap();
    append_raw(
        &session,
        b"{\"at\":1,\"type\":\"bash/sandbox-mode\",\"mode\":\"danger-full",
    );
    assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    assert_eq!(kinds(&session), ["session/start", "bash/sandbox-mode"]);

    let resumed = Session::resume(&home, session.id(), WorkspaceWrite).unwrap();
    assert_eq!(resumed.standing().unwrap().switched, Some(ReadOnly));
    assert_eq!(
        kinds(&resumed),
        ["session/start", "bash/sandbox-mode", "session/resume"]
    );
    let text = fs::read_to_string(session.log_path().unwrap()).unwrap();
    let unreadable = text
        .lines()
        .filter(|line| Event::parse(line.as_bytes()).is_err());
    assert_eq!(unreadable.count(), 1);
    assert!(text.ends_with("}\n"));
}

#[test]
fn foreign_kinds_are_kept_and_an_unreadable_switch_counts_as_read_only() {
    let (_dir, home) = home();
    let session = create(&home);
    session.switch(DangerFullAccess, "ada").unwrap();
    append_raw(
        &session,
        b"\n{\"type\":\"of/tomorrow\",\"at\":7,\"x\":[1]}\nnot json\n[]\n\0\0\0\n{\"type\":3}\n\xff\n",
    );
    assert_eq!(session.standing().unwrap().switched, Some(DangerFullAccess));
    let events = session.events().unwrap();
    let foreign = events.last().unwrap();
    assert_eq!(events.len(), 3);
    assert_eq!((foreign.at, foreign.kind().as_str()), (7, "of/tomorrow"));
    assert_eq!(
        foreign.to_value(),
        json!({"type": "of/tomorrow", "at": 7, "x": [1]})
    );

    append_raw(
        &session,
        b"{\"type\":\"bash/sandbox-mode\",\"mode\":\"of-tomorrow\"}\n",
    );
    assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    session.switch(WorkspaceWrite, "ada").unwrap();
    assert_eq!(session.standing().unwrap().switched, Some(WorkspaceWrite));
}

#[test]
fn an_overlong_line_costs_bounded_memory_and_nothing_after_it_is_lost() {
    let (_dir, home) = home();
    let session = create(&home);
    append_raw(&session, &vec![b'x'; log::MAX_LINE + 10]);
    session.switch(ReadOnly, "ada").unwrap();
    assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    assert_eq!(kinds(&session), ["session/start", "bash/sandbox-mode"]);
}

#[test]
fn a_long_text_is_cut_at_a_character_with_a_note() {
    assert_eq!(clip("short", 5), "short");
    assert_eq!(clip("ééé", 5), "éé… (2 bytes more)");
    let path = |bytes| PathBuf::from("a".repeat(bytes));
    assert_eq!(clip_path(&path(4096)), path(4096));
    let cut = format!("{}… (1 bytes more)", "a".repeat(4096));
    assert_eq!(clip_path(&path(4097)), PathBuf::from(cut));
}

#[test]
fn the_longest_events_fit_a_line_and_a_longer_one_is_refused() {
    let (_dir, home) = home();
    let session = create(&home);
    let worst = |most| clip(&"\u{1}".repeat(MAX_COMMAND + 1), most);
    let asked = |command: String| What::Asked {
        call: "c".to_owned(),
        question: "q".to_owned(),
        reason: worst(MAX_TEXT),
        command,
        workdir: PathBuf::from("/w"),
        from: ReadOnly,
        to: WorkspaceWrite,
    };
    session.record(asked(worst(MAX_COMMAND))).unwrap();
    assert!(session.record(asked("x".repeat(log::MAX_LINE))).is_err());
    session.switch(ReadOnly, "ada").unwrap();
    assert_eq!(
        kinds(&session),
        ["session/start", "approval/asked", "bash/sandbox-mode"]
    );
}

#[test]
fn a_process_is_told_apart_from_a_later_one_with_its_number() {
    let me = Process::current();
    assert!(me.is_alive());
    let later = Process {
        started: me.started + 1,
        ..me
    };
    assert!(!later.is_alive());
}

/// What the writers of the next test are; run by itself it has nothing to do.
#[test]
fn writer_of_the_test_with_eight_writers() {
    let Ok(path) = std::env::var("COFFERDAM_TEST_LOG") else {
        return;
    };
    let name = std::env::var("COFFERDAM_TEST_NAME").unwrap();
    let count: usize = std::env::var("COFFERDAM_TEST_COUNT")
        .unwrap()
        .parse()
        .unwrap();
    let mut log = log::Log::open(Path::new(&path)).unwrap();
    let mut acknowledged = std::io::stdout();
    for index in 0..count {
        let by = format!("{name}-{index}");
        let mode = ReadOnly;
        log.append(&Event::now(What::SandboxMode {
            mode,
            by: by.clone(),
        }))
        .unwrap();
        writeln!(acknowledged, "ack {by}").unwrap();
        if std::env::var_os("COFFERDAM_TEST_DIES").is_some() && index == count / 2 {
            // Dies in the middle of a write, as a full page cache or a signal can make it.
            let mut raw = OpenOptions::new().append(true).open(&path).unwrap();
            raw.write_all(b"{\"at\":1,\"type\":\"bash/sandbox-mode\",\"mode\":\"danger-full-access\",\"by\":\"")
                .unwrap();
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
    }
}

#[test]
fn ten_thousand_events_of_eight_writers_survive_one_that_is_killed_in_mid_write() {
    let (_dir, home) = home();
    let session = create(&home);
    let children: Vec<_> = (0..8)
        .map(|writer| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args([
                    "--exact",
                    "session::tests::writer_of_the_test_with_eight_writers",
                ])
                .args(["--nocapture", "--test-threads=1"])
                .env("COFFERDAM_TEST_LOG", session.log_path().unwrap())
                .env("COFFERDAM_TEST_NAME", format!("w{writer}"))
                .env(
                    "COFFERDAM_TEST_COUNT",
                    if writer == 0 { "2500" } else { "1250" },
                )
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            if writer == 0 {
                command.env("COFFERDAM_TEST_DIES", "1");
            }
            let mut child = command.spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let reader = std::thread::spawn(move || {
                lines
                    .map_while(Result::ok)
                    // The test runner writes its own words before the first one.
                    .filter_map(|line| Some(line.split_once("ack ")?.1.to_owned()))
                    .collect::<Vec<String>>()
            });
            (child, reader)
        })
        .collect();
    let mut acknowledged = Vec::new();
    for (index, (mut child, reader)) in children.into_iter().enumerate() {
        let status = child.wait().unwrap();
        assert_eq!(
            status.signal(),
            (index == 0).then_some(libc::SIGKILL),
            "writer {index}"
        );
        acknowledged.extend(reader.join().unwrap());
    }
    assert_eq!(acknowledged.len(), 1251 + 7 * 1250);

    let text = fs::read(session.log_path().unwrap()).unwrap();
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let torn = lines.filter(|line| Event::parse(line).is_err()).count();
    assert_eq!(torn, 1, "at most one torn line");
    let kept: Vec<String> = session
        .events()
        .unwrap()
        .into_iter()
        .filter_map(|event| {
            let What::SandboxMode { by, .. } = event.what else {
                return None;
            };
            Some(by)
        })
        .collect();
    let distinct: HashSet<&String> = kept.iter().collect();
    assert_eq!(
        distinct,
        acknowledged.iter().collect(),
        "no acknowledged event is lost"
    );
    assert_eq!(kept.len(), distinct.len(), "and none is there twice");
    assert_eq!(
        Session::resume(&home, session.id(), WorkspaceWrite)
            .unwrap()
            .standing()
            .unwrap()
            .switched,
        Some(ReadOnly)
    );
}

#[test]
fn an_event_that_lands_behind_a_torn_line_is_written_again_before_it_is_acknowledged() {
    let (_dir, home) = home();
    let session = create(&home);
    let done = std::sync::atomic::AtomicBool::new(false);
    let order = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Writers that die in mid-write, one after the other.
            while !done.load(order) {
                append_raw(&session, b"{\"at\":1,\"type\":\"bash/san");
            }
        });
        for index in 0..2000 {
            session.switch_unsynced(&index.to_string());
        }
        done.store(true, order);
    });
    let by: HashSet<String> = session
        .events()
        .unwrap()
        .into_iter()
        .filter_map(|event| {
            let What::SandboxMode { by, .. } = event.what else {
                return None;
            };
            Some(by)
        })
        .collect();
    assert_eq!(by.len(), 2000);
}

impl Session {
    fn switch_unsynced(&self, by: &str) {
        let by = by.to_owned();
        self.record(What::SandboxMode { mode: ReadOnly, by })
            .unwrap();
    }
}

/// Writes large events until it is killed; run by itself it has nothing to do.
#[test]
fn writer_of_the_test_with_a_random_kill() {
    let Ok(path) = std::env::var("COFFERDAM_TEST_BIG_LOG") else {
        return;
    };
    let mut log = log::Log::open(Path::new(&path)).unwrap();
    let mut acknowledged = std::io::stdout();
    for index in 0.. {
        let by = format!("{index} {}", "x".repeat(200_000));
        let mode = ReadOnly;
        log.append(&Event::now(What::SandboxMode { mode, by }))
            .unwrap();
        writeln!(acknowledged, "ack {index}").unwrap();
    }
}

#[test]
fn a_session_switched_to_read_only_and_killed_at_any_moment_resumes_read_only() {
    for round in 0..8 {
        let (_dir, home) = home();
        let session = create(&home);
        session.switch(ReadOnly, "ada").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "session::tests::writer_of_the_test_with_a_random_kill",
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env("COFFERDAM_TEST_BIG_LOG", session.log_path().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut acknowledged = 0;
        while acknowledged < 3 {
            acknowledged += usize::from(lines.next().unwrap().contains("ack "));
        }
        std::thread::sleep(std::time::Duration::from_micros(311 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged += lines.filter(|line| line.contains("ack ")).count();

        let resumed = Session::resume(&home, session.id(), WorkspaceWrite).unwrap();
        assert_eq!(resumed.standing().unwrap().switched, Some(ReadOnly));
        let written = kinds(&resumed)
            .iter()
            .filter(|kind| *kind == "bash/sandbox-mode")
            .count()
            - 1;
        assert!(written >= acknowledged, "{written} of {acknowledged}");
        assert_eq!(kinds(&resumed).last().unwrap(), "session/resume");
    }
}

proptest! {
    #[test]
    fn no_line_panics_and_what_is_read_is_an_event_with_its_kind(line in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(event) = Event::parse(&line) {
            prop_assert!(event.to_value().get("type").is_some());
        }
    }

    #[test]
    fn no_object_panics_and_its_kind_is_kept(
        kind in prop_oneof![
            Just("session/start"), Just("bash/call"), Just("bash/result"), Just("approval/asked"),
            Just("approval/resolved"), Just("bash/sandbox-mode"), Just("bash/task-settled"), Just("x"),
        ],
        keys in prop::collection::vec(prop_oneof![
            Just("at"), Just("mode"), Just("by"), Just("call"), Just("cwd"), Just("task"), Just("status"),
            Just("denials"), Just("command"), Just("process"),
        ], 0..8),
        values in prop::collection::vec(prop_oneof![
            Just(json!(null)), Just(json!(1)), Just(json!(-1.5)), Just(json!("read-only")), Just(json!([])),
            Just(json!({})), Just(json!([1, 300])), Just(json!({"pid": 1, "started": 2})),
        ], 8),
    ) {
        let mut body = json!({"type": kind});
        for (key, value) in keys.iter().zip(values) {
            body[*key] = value;
        }
        let event = Event::parse(body.to_string().as_bytes()).unwrap();
        prop_assert_eq!(event.kind(), kind);
        fold([&event]);
    }

    #[test]
    fn a_log_of_any_bytes_is_read_to_its_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (_dir, home) = home();
        let session = create(&home);
        append_raw(&session, &bytes);
        session.switch(ReadOnly, "ada").unwrap();
        prop_assert_eq!(session.standing().unwrap().switched, Some(ReadOnly));
    }
}
