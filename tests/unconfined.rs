//! What the unconfined executor promises, with real processes.

#![allow(clippy::unwrap_used)] // Helpers of tests may panic as tests may.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cofferdam::executor::{
    Cut, Executor, Finished, Kill, Level, Live, Ran, SandboxReport, Settings, Stream, TaskId,
    TaskInfo, TaskRead, TaskStatus, Unconfined, Watch,
};
use cofferdam::mode::{Mode, ModeSource};
use cofferdam::outcome::{Ended, NeverRan, NeverRanCode};
use cofferdam::output::SpillCaps;
use cofferdam::request::{Command, ExecRequest, Owner};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

struct World {
    executor: Arc<Unconfined>,
    /// The workspace; also the base of the spill folders.
    dir: TempDir,
}

fn world() -> World {
    world_with(|_| {})
}

fn world_with(change: impl FnOnce(&mut Settings)) -> World {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("w")).unwrap();
    fs::create_dir(dir.path().join("spill")).unwrap();
    let mut settings = Settings {
        workspace: Some(dir.path().join("w")),
        spill_base: dir.path().join("spill"),
        grace: Duration::from_millis(400),
        ..Settings::default()
    };
    change(&mut settings);
    World {
        executor: Arc::new(Unconfined::new(settings)),
        dir,
    }
}

impl World {
    async fn ran(&self, request: ExecRequest, watch: Watch) -> Result<Ran, NeverRan> {
        let spec = self.executor.resolve(request)?;
        self.executor.run(spec, watch).await
    }

    async fn run(&self, request: ExecRequest) -> Finished {
        match self.ran(request, Watch::default()).await.unwrap() {
            Ran::Finished(finished) => *finished,
            Ran::Yielded(id) => panic!("yielded as {id:?}"),
        }
    }

    async fn bash(&self, text: &str) -> Finished {
        self.run(ExecRequest::shell(text)).await
    }

    async fn start(&self, text: &str) -> TaskId {
        self.start_for(text, None).await
    }

    async fn start_for(&self, text: &str, owner: Option<&str>) -> TaskId {
        let mut request = ExecRequest::shell(text);
        request.owner = owner.map(|owner| Owner(owner.to_owned()));
        let spec = self.executor.resolve(request).unwrap();
        self.executor.start(spec).await.unwrap()
    }

    /// Reads until the task has settled; all reads but the last, put together, and the last.
    async fn to_the_end(&self, id: &TaskId) -> (String, TaskRead) {
        let mut seen = String::new();
        loop {
            let read = self
                .executor
                .read_output(id, Duration::from_secs(20))
                .await
                .unwrap();
            seen += &read.stdout;
            if read.status != TaskStatus::Running {
                return (seen, read);
            }
        }
    }

    fn workspace(&self) -> PathBuf {
        self.dir.path().join("w").canonicalize().unwrap()
    }

    /// Numbers of the processes whose working directory is the workspace.
    fn processes(&self) -> Vec<u32> {
        let here = self.workspace();
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == here))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    async fn nothing_is_left(&self) {
        for _ in 0..100 {
            if self.processes().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("still there: {:?}", self.processes());
    }

    /// Waits until a command has created this file in the workspace.
    async fn appears(&self, name: &str) {
        let path = self.workspace().join(name);
        for _ in 0..500 {
            if path.exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{name} never appeared");
    }

    fn spill_files(&self) -> usize {
        fs::read_dir(self.dir.path().join("spill"))
            .unwrap()
            .flatten()
            .map(|entry| fs::read_dir(entry.path()).unwrap().count())
            .sum()
    }
}

fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

// How it ends

#[tokio::test]
async fn a_command_reports_its_own_exit_code_and_both_streams() {
    let finished = world().bash("echo out; echo err >&2; exit 7").await;
    assert_eq!(finished.ended, Ended::Exited(7));
    assert_eq!(finished.cut, None);
    assert_eq!(finished.timeout, Some(Duration::from_secs(120)));
    assert_eq!(finished.stdout.text, "out\n");
    assert_eq!(finished.stdout.bytes, 4);
    assert_eq!(finished.stderr.text, "err\n");
    assert_eq!(
        finished.sandbox,
        SandboxReport {
            mode: Mode::DangerFullAccess,
            level: None::<Level>,
            missing: vec![],
            denials: vec![],
            changed: vec![],
        }
    );
}

#[tokio::test]
async fn a_signal_death_is_told_from_an_exit_code() {
    let world = world();
    assert_eq!(world.bash("kill -KILL $$").await.ended, Ended::Signalled(9));
    assert_eq!(world.bash("exit 137").await.ended, Ended::Exited(137));
}

#[tokio::test]
async fn a_timeout_is_reported_even_when_the_command_traps_it_and_exits_with_0() {
    let world = world();
    let mut request = ExecRequest::shell("trap 'echo bye; exit 0' TERM; echo on; sleep 60 & wait");
    request.timeout = Some(Duration::from_millis(300));
    let finished = world.run(request).await;
    assert_eq!(finished.ended, Ended::Exited(0));
    assert_eq!(finished.cut, Some(Cut::TimedOut));
    assert_eq!(finished.timeout, Some(Duration::from_millis(300)));
    assert_eq!(finished.stdout.text, "on\nbye\n");
}

#[tokio::test]
async fn a_tree_that_ignores_sigterm_dies_after_the_grace_period() {
    let world = world();
    let mut request = ExecRequest::shell(
        "bash -c 'trap \"\" TERM INT HUP; while true; do sleep 1; done' & \
         setsid bash -c 'trap \"\" TERM; sleep 60; sleep 60' & \
         bash -c 'trap \"\" TERM; sleep 60; sleep 60'",
    );
    request.timeout = Some(Duration::from_millis(300));
    let finished = world.run(request).await;
    assert_eq!(finished.cut, Some(Cut::TimedOut));
    assert_eq!(finished.ended, Ended::Signalled(15));
    assert!(finished.duration >= Duration::from_millis(700));
    assert!(finished.duration < Duration::from_millis(2_000));
    assert_eq!(finished.sandbox.missing, Vec::<String>::new());
    assert_eq!(world.processes(), Vec::<u32>::new());
}

#[tokio::test]
async fn a_stopped_child_ends_with_the_tree() {
    let world = world();
    let mut request = ExecRequest::shell("sleep 60 & kill -STOP $!; kill -STOP $$");
    request.timeout = Some(Duration::from_millis(200));
    let finished = world.run(request).await;
    assert_eq!(finished.cut, Some(Cut::TimedOut));
    assert_eq!(world.processes(), Vec::<u32>::new());
}

#[tokio::test]
async fn an_abort_ends_the_tree_and_the_later_timeout_does_not_replace_it() {
    let world = world();
    let mut request = ExecRequest::shell("trap '' TERM; echo on; while :; do sleep 1; done");
    request.timeout = Some(Duration::from_millis(500));
    let abort = CancellationToken::new();
    let watch = Watch {
        abort: abort.clone(),
        ..Watch::default()
    };
    let (ran, ()) = tokio::join!(world.ran(request, watch), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        abort.cancel();
    });
    let Ran::Finished(finished) = ran.unwrap() else {
        panic!("yielded")
    };
    assert_eq!(finished.cut, Some(Cut::Aborted));
    assert_eq!(finished.ended, Ended::Signalled(9));
    assert_eq!(finished.stdout.text, "on\n");
    assert_eq!(world.processes(), Vec::<u32>::new());
}

#[tokio::test]
async fn an_abort_before_the_start_runs_nothing() {
    let world = world();
    let watch = Watch::default();
    watch.abort.cancel();
    let refused = world.ran(ExecRequest::shell("touch ran"), watch).await;
    assert_eq!(
        refused,
        Err(NeverRan::refused(
            NeverRanCode::Aborted,
            "command aborted",
            ""
        ))
    );
    assert!(!world.workspace().join("ran").exists());
    world.bash("touch ran").await;
    assert!(world.workspace().join("ran").exists());
}

#[tokio::test]
async fn dropping_a_run_kills_its_tree() {
    let world = world();
    let request =
        ExecRequest::shell("setsid sleep 60 & trap '' TERM; touch on; while :; do sleep 1; done");
    tokio::select! {
        _ = world.ran(request, Watch::default()) => panic!("it ended"),
        () = world.appears("on") => {}
    }
    world.nothing_is_left().await;
}

// What is left behind

#[tokio::test]
async fn a_background_grandchild_that_holds_the_pipe_does_not_delay_the_result() {
    let world = world();
    let finished = world.bash("(sleep 30; echo late) & echo hi").await;
    assert_eq!(finished.stdout.text, "hi\n");
    assert_eq!(finished.ended, Ended::Exited(0));
    assert!(finished.duration < Duration::from_secs(1));
    assert_eq!(world.processes(), Vec::<u32>::new());
}

#[tokio::test]
async fn a_daemon_that_left_the_group_and_writes_for_ever_does_not_delay_the_result() {
    let world = world();
    let finished = world
        .bash("setsid bash -c 'echo $$ > pid; while :; do echo noise; done' & while ! test -s pid; do :; done; echo hi")
        .await;
    assert!(finished.duration < Duration::from_secs(3));
    assert!(finished.stdout.bytes > 0);
    // It goes when it writes to the pipe that nobody reads any more.
    world.nothing_is_left().await;
}

#[tokio::test]
async fn a_filter_that_the_command_left_behind_may_finish_its_output() {
    let world = world();
    let finished = world
        .bash("exec > >(tee -a log.txt) 2>&1; echo start; sleep .1; echo end")
        .await;
    assert_eq!(finished.stdout.text, "start\nend\n");
    assert_eq!(
        fs::read_to_string(world.workspace().join("log.txt")).unwrap(),
        "start\nend\n"
    );
    assert!(finished.duration < Duration::from_secs(1));
}

// What a command is given

#[tokio::test]
async fn standard_input_is_empty_unless_bytes_are_given() {
    let world = world();
    let finished = world
        .bash("cat; read -r x; echo $?; readlink /proc/self/fd/0")
        .await;
    assert_eq!(finished.stdout.text, "1\n/dev/null\n");
    let mut request = ExecRequest::shell("cat; wc -c < /dev/stdin");
    request.stdin = Some(vec![b'x'; 200_000]);
    let finished = world.run(request).await;
    assert_eq!(finished.stdout.bytes, 200_000 + "200000\n".len() as u64);
}

#[tokio::test]
async fn a_command_has_three_descriptors_a_session_of_its_own_and_no_terminal() {
    // A descriptor without close-on-exec, as a careless part of a harness may hold it.
    let leaky = fs::File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&leaky, rustix::io::FdFlags::empty()).unwrap();
    let world = world();
    let finished = world.run(program("ls", &["/proc/self/fd"])).await;
    // The last one is the folder that `ls` reads.
    assert_eq!(finished.stdout.text, "0\n1\n2\n3\n");
    let finished = world
        .bash(
            "[ $$ = $(ps -o sid= -p $$) ] && echo leader; : 2>/dev/null < /dev/tty || echo none; \
             grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | tr -s '\\t ' ' '",
        )
        .await;
    assert_eq!(
        finished.stdout.text,
        "leader\nnone\nNoNewPrivs: 0\nSeccomp: 0\n"
    );
    drop(leaky);
}

#[tokio::test]
async fn shell_text_of_any_length_runs_like_short_text() {
    let world = world();
    for size in [1_000, 131_000, 200_000, 3_000_000] {
        let text = format!(
            "echo \"$0 $#\"; wc -c <<'EOF'\n{}\nEOF\nnosuchcommand\nls /proc/self/fd | wc -l; (exit 3)",
            "x".repeat(size)
        );
        let finished = world.bash(&text).await;
        assert_eq!(
            finished.stdout.text,
            // `ls` has its own folder open beside the three.
            format!("bash 0\n{}\n4\n", size + 1),
            "{size}"
        );
        assert_eq!(
            finished.stderr.text, "bash: line 4: nosuchcommand: command not found\n",
            "{size}"
        );
        assert_eq!(finished.ended, Ended::Exited(3));
    }
}

#[tokio::test]
async fn the_environment_is_the_scrubbed_one_and_nothing_else() {
    let world = world_with(|settings| {
        settings.inherited = Some(vec![
            ("PATH".into(), std::env::var_os("PATH").unwrap()),
            ("MY_API_KEY".into(), "secret".into()),
            ("DSH_STALE".into(), "1".into()),
            ("EDITOR".into(), "vim".into()),
        ]);
    });
    let mut request = ExecRequest::new(Command::Program {
        program: "env".into(),
        args: vec![],
    });
    request.env = vec![("A_TOKEN".into(), "on purpose".into())];
    request.managed_env = vec![("DSH_SHELL".to_owned(), "1".to_owned())];
    let finished = world.run(request).await;
    let path = std::env::var("PATH").unwrap();
    assert_eq!(
        finished.stdout.text,
        format!(
            "A_TOKEN=on purpose\nDSH_SHELL=1\nEDITOR=vim\nGIT_EDITOR=false\nGIT_PAGER=cat\n\
             GIT_SEQUENCE_EDITOR=false\nNO_COLOR=1\nPAGER=cat\nPATH={path}\nTERM=dumb\n"
        )
    );
}

#[tokio::test]
async fn an_interactive_rebase_fails_and_changes_nothing_and_a_merge_still_works() {
    let world = world();
    let finished = world
        .bash(
            "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
             git init -q -b m . && git commit -q --allow-empty -m a && git checkout -q -b t && git commit -q --allow-empty -m b &&
             git checkout -q -b u HEAD~1 && git commit -q --allow-empty -m c
             h=$(git rev-parse HEAD); git rebase -i t 2>/dev/null; echo rebase=$?
             git commit --amend --allow-empty 2>/dev/null; echo amend=$?
             test $h = $(git rev-parse HEAD) && echo same
             git merge -q t; echo merge=$?",
        )
        .await;
    assert_eq!(finished.stdout.text, "rebase=1\namend=1\nsame\nmerge=0\n");
}

#[tokio::test]
async fn a_program_runs_without_a_shell_and_its_arguments_stay_as_they_are() {
    let request = ExecRequest::new(Command::Program {
        program: "printf".into(),
        args: ["%s|", "a b", "$HOME", ""].map(OsString::from).to_vec(),
    });
    assert_eq!(world().run(request).await.stdout.text, "a b|$HOME||");
}

// What never ran

fn program(name: &str, args: &[&str]) -> ExecRequest {
    ExecRequest::new(Command::Program {
        program: name.into(),
        args: args.iter().map(OsString::from).collect(),
    })
}

#[tokio::test]
async fn a_program_that_can_not_start_is_an_error_and_not_exit_127() {
    let world = world();
    fs::write(world.workspace().join("plain"), "echo hi").unwrap();
    let refused = |message: &str, errno: &str, remedy: &str| {
        Err(NeverRan {
            code: NeverRanCode::SpawnFailed,
            message: message.to_owned(),
            step: Some("execve".to_owned()),
            errno: Some(errno.to_owned()),
            remedy: remedy.to_owned(),
        })
    };
    assert_eq!(
        world
            .ran(program("no-such-program", &[]), Watch::default())
            .await,
        refused(
            "program not found: no-such-program (No such file or directory)",
            "ENOENT",
            "install it, correct its name or give its full path"
        )
    );
    assert_eq!(
        world.ran(program("./plain", &[]), Watch::default()).await,
        refused(
            "program is not executable: ./plain (Permission denied)",
            "EACCES",
            "make it executable (chmod +x), or run it through its interpreter"
        )
    );
    let script = world.workspace().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(
        world.ran(program("./script", &[]), Watch::default()).await,
        refused(
            "the interpreter of ./script was not found (No such file or directory)",
            "ENOENT",
            "correct its first line, or install the interpreter or loader that it names"
        )
    );
    let long = "x".repeat(200_000);
    assert_eq!(
        world.ran(program("true", &[&long]), Watch::default()).await,
        refused(
            "arguments and environment are too long: true (Argument list too long)",
            "E2BIG",
            "pass long values in a file, or run the command as shell text"
        )
    );
    assert_eq!(
        world.run(program("true", &["x"])).await.ended,
        Ended::Exited(0)
    );
    assert_eq!(
        world.bash("no-such-program 2>/dev/null").await.ended,
        Ended::Exited(127)
    );
}

#[tokio::test]
async fn a_bad_working_directory_is_refused_by_name() {
    let world = world();
    let refusal = |workdir: &Path| {
        let mut request = ExecRequest::shell("true");
        request.workdir = Some(workdir.to_path_buf());
        world
            .executor
            .resolve(request)
            .map_err(|error| error.to_string())
    };
    let gone = world.workspace().join("gone");
    fs::create_dir(&gone).unwrap();
    let spec = refusal(&gone).unwrap();
    fs::remove_dir(&gone).unwrap();
    let message = format!("working directory does not exist: {}", gone.display());
    assert_eq!(refusal(&gone).unwrap_err(), message);
    assert_eq!(
        refusal(Path::new("sub")).unwrap_err(),
        "working directory is not absolute: sub; give its full path"
    );
    assert_eq!(
        refusal(Path::new("/etc/passwd")).unwrap_err(),
        "working directory is not a folder: /etc/passwd"
    );
    // It may disappear after the request was resolved.
    let late = world
        .executor
        .run(spec, Watch::default())
        .await
        .unwrap_err();
    assert_eq!(
        (late.code, late.to_string()),
        (NeverRanCode::InvalidArgs, message)
    );
}

#[tokio::test]
async fn defaults_and_caps_are_applied_once_and_stay_visible() {
    let world = world();
    let resolve = |timeout: Option<u64>| {
        let mut request = ExecRequest::shell("true");
        request.timeout = timeout.map(Duration::from_secs);
        world.executor.resolve(request).unwrap()
    };
    assert_eq!(resolve(None).timeout(), Duration::from_secs(120));
    assert_eq!(resolve(Some(5)).timeout(), Duration::from_secs(5));
    assert_eq!(resolve(Some(5_000)).timeout(), Duration::from_secs(600));
    assert_eq!(resolve(None).workspace(), world.workspace());
    assert_eq!(resolve(None).workdir(), world.workspace());
    assert_eq!(
        resolve(None).mode(),
        (Mode::DangerFullAccess, ModeSource::Default)
    );
    assert_eq!(world.executor.confines(), None);
}

#[tokio::test]
async fn a_confined_mode_and_values_that_no_process_can_be_given_are_refused() {
    let world = world();
    let refusal = |change: &dyn Fn(&mut ExecRequest)| {
        let mut request = ExecRequest::shell("true");
        change(&mut request);
        world.executor.resolve(request).unwrap_err().to_string()
    };
    assert_eq!(
        refusal(&|request| request.mode = Some((Mode::ReadOnly, ModeSource::Session))),
        "this executor can't confine a command to read-only; use the confined executor"
    );
    assert_eq!(
        refusal(&|request| request.command = Command::Shell("a\0b".into())),
        "the command holds a NUL byte; remove it"
    );
    assert_eq!(
        refusal(&|request| request.env = vec![("A=B".into(), "c".into())]),
        "invalid variable name: \"A=B\"; use a name without = and NUL"
    );
    assert_eq!(
        refusal(&|request| request.workspace = Some("/no/such".into())),
        "workspace does not exist: /no/such; create it or name an existing folder"
    );
}

// Output

#[tokio::test]
async fn a_long_stream_keeps_its_tail_and_spills_whole_from_the_first_byte() {
    let world = world();
    let finished = world
        .bash("head -c 400000 /dev/zero | tr '\\0' x; echo; echo 'error: build failed'; exit 101")
        .await;
    let whole = format!("{}\nerror: build failed\n", "x".repeat(400_000));
    assert_eq!(finished.ended, Ended::Exited(101));
    assert!(finished.stdout.truncated);
    assert_eq!(finished.stdout.bytes, whole.len() as u64);
    assert_eq!(finished.stdout.text, whole[whole.len() - 64_000..]);
    let spill = finished.stdout.spill.unwrap();
    assert!(fs::read(&spill).unwrap() == whole.as_bytes());
    assert_eq!(mode_of(&spill), 0o600);
    assert_eq!(mode_of(spill.parent().unwrap()), 0o700);
    assert_eq!(finished.stderr.spill, None);
    assert!(!finished.stderr.truncated);
    drop(world.executor);
    assert!(!spill.exists(), "the folder goes with its session");
}

#[tokio::test]
async fn output_that_fits_makes_no_spill_folder() {
    let world = world_with(|settings| settings.tail_bytes = 10);
    let finished = world.bash("printf 0123456789").await;
    assert_eq!(
        (finished.stdout.text.as_str(), finished.stdout.truncated),
        ("0123456789", false)
    );
    assert_eq!(world.executor.spill_dir(None).path(), None);
    let finished = world.bash("printf 0123456789a").await;
    assert_eq!(
        (finished.stdout.text.as_str(), finished.stdout.truncated),
        ("123456789a", true)
    );
    assert_eq!(
        finished.stdout.spill.unwrap().parent(),
        world.executor.spill_dir(None).path().as_deref()
    );
}

#[tokio::test]
async fn multibyte_text_has_no_broken_character_at_the_seam() {
    let world = world();
    let finished = world
        .bash("python3 -c \"import sys; s='\\u2588\\u8a9e\\U0001F600e\\u0301'; [sys.stdout.write('x'*k+s*30000+'\\n') for k in range(4)]\"")
        .await;
    let pattern = "\u{2588}\u{8a9e}\u{1F600}e\u{301}".repeat(30_000);
    let whole: String = (0..4)
        .map(|k| format!("{}{pattern}\n", "x".repeat(k)))
        .collect();
    assert!(!finished.stdout.text.contains('\u{fffd}'));
    assert!(whole.ends_with(&finished.stdout.text));
    assert!(finished.stdout.text.len() > 63_990);
    assert!(fs::read(finished.stdout.spill.unwrap()).unwrap() == whole.as_bytes());
}

#[tokio::test]
async fn a_stream_beyond_the_cap_goes_on_without_a_copy() {
    let world = world_with(|settings| {
        settings.spill_caps = SpillCaps {
            file: 300_000,
            session: 1_000_000,
        };
    });
    let finished = world.bash("head -c 300000 /dev/zero").await;
    assert!(finished.stdout.spill.is_some());
    let finished = world.bash("head -c 300001 /dev/zero; echo end").await;
    assert_eq!(finished.ended, Ended::Exited(0));
    assert_eq!(
        (finished.stdout.truncated, finished.stdout.spill),
        (true, None)
    );
    assert_eq!(finished.stdout.bytes, 300_005);
    assert!(finished.stdout.text.ends_with("\0end\n"));
    assert_eq!(world.spill_files(), 1, "the partial copy is removed");
}

#[tokio::test]
async fn without_a_place_for_the_copy_the_command_goes_on() {
    let world = world_with(|settings| settings.spill_base = "/no/such/folder".into());
    let finished = world.bash("seq 1 100000; echo end").await;
    assert_eq!(finished.ended, Ended::Exited(0));
    assert_eq!(
        (finished.stdout.truncated, finished.stdout.spill),
        (true, None)
    );
    assert!(finished.stdout.text.ends_with("100000\nend\n"));
}

#[tokio::test]
async fn a_live_tap_sees_every_byte_of_both_streams_in_order() {
    #[derive(Default)]
    struct Tap(Mutex<(Vec<u8>, Vec<u8>)>);
    impl Live for Tap {
        fn chunk(&self, stream: Stream, bytes: &[u8]) {
            let mut seen = self.0.lock().unwrap();
            match stream {
                Stream::Stdout => seen.0.extend(bytes),
                Stream::Stderr => seen.1.extend(bytes),
            }
        }
    }
    let tap = Arc::new(Tap::default());
    let watch = Watch {
        live: Some(tap.clone()),
        ..Watch::default()
    };
    world()
        .ran(
            ExecRequest::shell("seq 1 50000; printf 'a\\377' >&2"),
            watch,
        )
        .await
        .unwrap();
    let seen = tap.0.lock().unwrap();
    let expected: String = (1..=50_000).map(|n| format!("{n}\n")).collect();
    assert!(seen.0 == expected.as_bytes());
    assert_eq!(seen.1, b"a\xff");
}

// Background tasks

#[tokio::test]
async fn reads_put_together_are_the_stream_and_the_last_one_knows_the_end() {
    let world = world();
    let id = world
        .start("for i in $(seq 1 2000); do echo $i; [ $((i%200)) = 0 ] && sleep .02; done; exit 4")
        .await;
    assert_eq!(id, TaskId("bash-1".to_owned()));
    let mut seen = String::new();
    let last = loop {
        let read = world
            .executor
            .read_output(&id, Duration::ZERO)
            .await
            .unwrap();
        seen += &read.stdout;
        if read.status != TaskStatus::Running {
            break read;
        }
        assert_eq!(read.sandbox, None);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let expected: String = (1..=2000).map(|n| format!("{n}\n")).collect();
    assert_eq!(seen, expected);
    assert_eq!(last.status, TaskStatus::Completed { exit_code: 4 });
    assert!(last.sandbox.is_some());
    let after = world
        .executor
        .read_output(&id, Duration::from_secs(5))
        .await
        .unwrap();
    assert_eq!(
        after,
        TaskRead {
            stdout: String::new(),
            stderr: String::new(),
            dropped: None,
            status: TaskStatus::Completed { exit_code: 4 },
            sandbox: None,
        }
    );
}

#[tokio::test]
async fn unread_output_that_fell_out_of_memory_is_reported_with_its_copy() {
    let world = world_with(|settings| settings.tail_bytes = 1_000);
    let id = world.start("seq 1 5000; touch done; sleep 60").await;
    world.appears("done").await;
    let whole: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    let mut read = world
        .executor
        .read_output(&id, Duration::ZERO)
        .await
        .unwrap();
    while !read.stdout.ends_with("5000\n") {
        read = world
            .executor
            .read_output(&id, Duration::from_secs(5))
            .await
            .unwrap();
    }
    assert_eq!(read.stdout, whole[whole.len() - 1_000..]);
    let dropped = read.dropped.unwrap();
    assert_eq!(dropped.len(), 1);
    assert!(fs::read(&dropped[0]).unwrap() == whole.as_bytes());
    let next = world
        .executor
        .read_output(&id, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!((next.stdout.as_str(), next.dropped), ("", None));
    world.executor.shutdown().await;
}

#[tokio::test]
async fn a_character_split_between_two_reads_is_carried() {
    let world = world();
    let id = world
        .start("printf 'a\\xe8\\xaa'; touch half; while ! test -e go; do sleep .01; done; printf '\\x9e'")
        .await;
    world.appears("half").await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let read = world
        .executor
        .read_output(&id, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(read.stdout, "a");
    fs::write(world.workspace().join("go"), "").unwrap();
    let (rest, _) = world.to_the_end(&id).await;
    assert_eq!(rest, "\u{8a9e}");
}

#[tokio::test]
async fn a_waiting_read_returns_with_the_first_output_and_not_later() {
    let world = world();
    let id = world.start("sleep .2; echo x; sleep 60").await;
    let started = Instant::now();
    let read = world
        .executor
        .read_output(&id, Duration::from_millis(50))
        .await
        .unwrap();
    assert_eq!(
        (read.stdout.as_str(), &read.status),
        ("", &TaskStatus::Running)
    );
    assert!(started.elapsed() >= Duration::from_millis(50));
    let read = world
        .executor
        .read_output(&id, Duration::from_secs(30))
        .await
        .unwrap();
    assert_eq!(read.stdout, "x\n");
    assert!(started.elapsed() < Duration::from_secs(10));
    world.executor.shutdown().await;
}

#[tokio::test]
async fn a_kill_waits_until_the_whole_tree_is_gone() {
    let world = world();
    let id = world
        .start("bash -c \"bash -c 'setsid sleep 300 & touch on; wait' & wait\"")
        .await;
    world.appears("on").await;
    assert_eq!(world.executor.kill(&id).await, Ok(Kill::Killed));
    assert_eq!(world.processes(), Vec::<u32>::new());
    let (_, last) = world.to_the_end(&id).await;
    assert_eq!(last.status, TaskStatus::Killed);
}

#[tokio::test]
async fn killing_a_finished_task_is_no_news_and_an_unknown_one_is_an_error() {
    let world = world();
    let id = world.start("exit 7").await;
    world.to_the_end(&id).await;
    assert_eq!(world.executor.kill(&id).await, Ok(Kill::AlreadyFinished));
    let (_, read) = world.to_the_end(&id).await;
    assert_eq!(read.status, TaskStatus::Completed { exit_code: 7 });
    let unknown = TaskId("bash-9".to_owned());
    assert_eq!(
        world.executor.kill(&unknown).await.unwrap_err().to_string(),
        "unknown bash task \"bash-9\""
    );
    assert!(world.executor.owner_of(&unknown).is_err());
}

#[tokio::test]
async fn a_task_that_a_signal_ended_says_which() {
    let world = world();
    let id = world.start("kill -SEGV $$").await;
    let (_, last) = world.to_the_end(&id).await;
    assert_eq!(
        last.status,
        TaskStatus::KilledBySignal("SIGSEGV".to_owned())
    );
}

#[tokio::test]
async fn owners_are_stored_with_their_tasks_and_the_empty_one_is_real() {
    let world = world();
    let one = world.start_for("true", Some("one")).await;
    let empty = world.start_for("true", Some("")).await;
    let open = world.start_for("true", None).await;
    assert_eq!(
        world.executor.owner_of(&one),
        Ok(Some(Owner("one".to_owned())))
    );
    assert_eq!(
        world.executor.owner_of(&empty),
        Ok(Some(Owner(String::new())))
    );
    assert_eq!(world.executor.owner_of(&open), Ok(None));
    for id in [&one, &empty, &open] {
        world.to_the_end(id).await;
    }
    let info = |id: &str, owner: Option<&str>| TaskInfo {
        id: TaskId(id.to_owned()),
        owner: owner.map(|owner| Owner(owner.to_owned())),
        mode: Mode::DangerFullAccess,
        command: "true".to_owned(),
        status: TaskStatus::Completed { exit_code: 0 },
    };
    assert_eq!(
        world.executor.list(),
        [
            info("bash-1", Some("one")),
            info("bash-2", Some("")),
            info("bash-3", None)
        ]
    );
}

#[tokio::test]
async fn a_listener_hears_of_each_task_once_even_beside_one_that_panics() {
    let world = world();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let gone = Arc::new(AtomicUsize::new(0));
    let _panics = world.executor.on_done(Box::new(|_| panic!("on purpose")));
    let counter = Arc::clone(&gone);
    let dropped = world.executor.on_done(Box::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    let list = Arc::clone(&heard);
    let _listens = world.executor.on_done(Box::new(move |info| {
        list.lock().unwrap().push(info.clone())
    }));
    drop(dropped);
    let one = world.start_for("exit 3", Some("me")).await;
    world.to_the_end(&one).await;
    let two = world.start("sleep 60").await;
    world.executor.kill(&two).await.unwrap();
    let three = world.start("sleep 60").await;
    world.executor.shutdown().await;
    assert_eq!(
        world
            .executor
            .list()
            .last()
            .map(|info| (info.id.clone(), info.status.clone())),
        Some((three, TaskStatus::Killed))
    );
    let heard: Vec<_> = heard
        .lock()
        .unwrap()
        .iter()
        .map(|info| (info.id.0.clone(), info.owner.clone(), info.status.clone()))
        .collect();
    assert_eq!(
        heard,
        [
            (
                "bash-1".to_owned(),
                Some(Owner("me".to_owned())),
                TaskStatus::Completed { exit_code: 3 }
            ),
            ("bash-2".to_owned(), None, TaskStatus::Killed),
        ]
    );
    assert_eq!(gone.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_shutdown_kills_tasks_and_foreground_runs_and_refuses_new_ones() {
    let world = world();
    let spill = world.executor.spill_dir(None).create().unwrap();
    world
        .start("trap '' TERM; touch a; while :; do sleep 1; done")
        .await;
    let executor = Arc::clone(&world.executor);
    let spec = executor
        .resolve(ExecRequest::shell("touch b; sleep 60"))
        .unwrap();
    let run = tokio::spawn(async move { executor.run(spec, Watch::default()).await });
    world.appears("a").await;
    world.appears("b").await;
    world.executor.shutdown().await;
    assert_eq!(world.processes(), Vec::<u32>::new());
    assert!(!spill.exists());
    let Ok(Ran::Finished(finished)) = run.await.unwrap() else {
        panic!("it should have been aborted")
    };
    assert_eq!(finished.cut, Some(Cut::Aborted));
    let refused = NeverRan::refused(
        NeverRanCode::ShutDown,
        "the executor is shut down",
        "make a new one",
    );
    let spec = || {
        world
            .executor
            .resolve(ExecRequest::shell("touch c"))
            .unwrap()
    };
    assert_eq!(
        world.executor.run(spec(), Watch::default()).await,
        Err(refused.clone())
    );
    assert_eq!(world.executor.start(spec()).await, Err(refused));
    assert!(!world.workspace().join("c").exists());
}

#[tokio::test]
async fn the_end_of_a_session_takes_its_tasks_and_spills_and_no_others() {
    let world = world();
    let start = async |session: &str, text: &str| {
        let mut request = ExecRequest::shell(text);
        request.session = Some(session.to_owned());
        let spec = world.executor.resolve(request).unwrap();
        world.executor.start(spec).await.unwrap()
    };
    let one = start("one", "touch a; sleep 60").await;
    let two = start("two", "touch b; while ! test -e go; do sleep .01; done").await;
    let spills =
        ["one", "two"].map(|session| world.executor.spill_dir(Some(session)).create().unwrap());
    world.appears("a").await;
    world.appears("b").await;
    world.executor.end_session("one").await;
    assert_eq!(spills.each_ref().map(|path| path.exists()), [false, true]);
    fs::write(world.workspace().join("go"), "").unwrap();
    assert_eq!(world.to_the_end(&one).await.1.status, TaskStatus::Killed);
    assert_eq!(
        world.to_the_end(&two).await.1.status,
        TaskStatus::Completed { exit_code: 0 }
    );
}

#[tokio::test]
async fn a_run_that_takes_long_goes_on_as_a_task_and_keeps_output_and_timeout() {
    let world = world();
    let mut request = ExecRequest::shell("echo early; sleep .4; echo late; sleep 60");
    request.timeout = Some(Duration::from_millis(1_200));
    request.owner = Some(Owner("me".to_owned()));
    let abort = CancellationToken::new();
    let watch = Watch {
        yield_after: Some(Duration::from_millis(200)),
        abort: abort.clone(),
        live: None,
    };
    let Ok(Ran::Yielded(id)) = world.ran(request, watch).await else {
        panic!("it should have yielded")
    };
    // The call is over, so its abort has nothing to say any more.
    abort.cancel();
    assert_eq!(
        world.executor.owner_of(&id),
        Ok(Some(Owner("me".to_owned())))
    );
    let first = world
        .executor
        .read_output(&id, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        (first.stdout.as_str(), &first.status),
        ("early\n", &TaskStatus::Running)
    );
    let (rest, last) = world.to_the_end(&id).await;
    assert_eq!(rest, "late\n");
    assert_eq!(
        last.status,
        TaskStatus::KilledBySignal("SIGTERM".to_owned())
    );
    world.nothing_is_left().await;
}

#[tokio::test]
async fn a_short_run_does_not_yield() {
    let watch = Watch {
        yield_after: Some(Duration::from_secs(20)),
        ..Watch::default()
    };
    let ran = world().ran(ExecRequest::shell("echo hi"), watch).await;
    assert!(matches!(ran, Ok(Ran::Finished(finished)) if finished.stdout.text == "hi\n"));
}
