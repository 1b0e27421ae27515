//! The tools over the confined executor, as a harness has them in its own process.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helpers of tests may panic as tests may.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cofferdam::environment::managed::{Managed, Variable};
use cofferdam::executor::{Confined, Confinement, Settings};
use cofferdam::mode::Mode;
use cofferdam::session::{Home, Session};
use cofferdam::tools::{Call, CallResult, Composition, Tools};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The tools over a confined executor, and where they work.
struct World {
    dir: TempDir,
    home: Home,
    managed: Managed,
    tools: Tools,
}

impl World {
    /// Commands inherit `inherited`, or this process's environment.
    fn new(inherited: Option<&[(&str, &str)]>) -> World {
        // Not below /tmp, which commands have their own of.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let workspace = dir.path().join("w");
        std::fs::create_dir(&workspace).unwrap();
        let settings = Settings {
            workspace: Some(workspace),
            grace: Duration::from_millis(500),
            inherited: inherited.map(|pairs| {
                let owned = pairs
                    .iter()
                    .map(|(name, value)| (name.into(), value.into()));
                owned.collect()
            }),
            ..Settings::default()
        };
        let confinement = Confinement {
            binary: Some(PathBuf::from(env!("CARGO_BIN_EXE_cofferdam"))),
            ..Confinement::default()
        };
        let home = Home::find(Some(&dir.path().join("dsh"))).unwrap();
        let managed = Managed::new(home.clone());
        let executor = Arc::new(Confined::new(settings, confinement));
        World {
            tools: Tools::new(Composition::new(executor, managed.clone())),
            managed,
            dir,
            home,
        }
    }

    fn workspace(&self) -> PathBuf {
        self.dir.path().join("w")
    }

    fn session(&self) -> Arc<Session> {
        Arc::new(Session::create(&self.home, &self.workspace(), Mode::ReadOnly).unwrap())
    }

    async fn bash(&self, session: &Arc<Session>, command: &str, background: bool) -> CallResult {
        let arguments = json!({
            "command": command, "description": "A command of a test", "run_in_background": background,
        });
        self.tools.call("bash", &arguments, of(session)).await
    }

    async fn about(&self, tool: &str, session: &Arc<Session>, task: &Value) -> CallResult {
        let arguments = json!({"task_id": task});
        self.tools.call(tool, &arguments, of(session)).await
    }
}

fn of(session: &Arc<Session>) -> Call {
    Call {
        session: Some(Arc::clone(session)),
        ..Call::default()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

/// The host's processes that have the word among their arguments.
fn processes(word: &str) -> Vec<String> {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            line.split('\0').any(|part| part == word).then_some(line)
        })
        .collect()
}

#[test]
fn two_hundred_sessions_in_one_process_keep_their_modes_tasks_and_tmp_apart() {
    const SESSIONS: usize = 200;
    /// Sessions that call at the same time.
    const AT_ONCE: usize = 4;
    // Each session with a task holds half a dozen descriptors; a login shell's soft limit may be 1024.
    let files = Resource::RLIMIT_NOFILE;
    let (_, hard) = getrlimit(files).unwrap();
    setrlimit(files, hard.min(8192), hard).unwrap();
    let world = World::new(None);
    let seconds = format!("36{:06}", std::process::id());
    let mode_of = |index: usize| [Mode::ReadOnly, Mode::WorkspaceWrite][index % 2];
    block_on(async {
        let sessions: Vec<_> = (0..SESSIONS).map(|_| world.session()).collect();
        for (index, session) in sessions.iter().enumerate() {
            session.switch(mode_of(index), "test").unwrap();
        }
        let first = async |index: usize| {
            let session = &sessions[index];
            let command =
                format!("ls /tmp; echo {index} > /tmp/mine; touch made-{index} && echo made");
            let done = world.bash(session, &command, false).await;
            let task = world.bash(session, &format!("sleep {seconds}"), true).await;
            assert_eq!(
                done.structured["sandbox"]["mode"],
                json!(mode_of(index)),
                "{}",
                done.text
            );
            assert_eq!(
                task.structured["sandbox"]["mode"],
                json!(mode_of(index)),
                "{}",
                task.text
            );
            let made = world.workspace().join(format!("made-{index}"));
            if mode_of(index) == Mode::ReadOnly {
                assert_eq!(done.structured["stdout"]["text"], "", "{}", done.text);
                assert_eq!(done.structured["exitCode"], 1);
                assert!(!made.exists());
            } else {
                assert_eq!(done.text, "made\n");
                assert!(made.exists());
            }
            task.structured["task"].clone()
        };
        let mut tasks = Vec::new();
        for start in (0..SESSIONS).step_by(AT_ONCE) {
            let (a, b, c, d) = tokio::join!(
                first(start),
                first(start + 1),
                first(start + 2),
                first(start + 3)
            );
            tasks.extend([a, b, c, d]);
        }
        // All of them live side by side now.
        assert_eq!(processes(&seconds).len(), SESSIONS);
        for (index, session) in sessions.iter().enumerate() {
            let mine = world.bash(session, "ls /tmp; cat /tmp/mine", false).await;
            assert_eq!(mine.text, format!("mine\n{index}\n"));
            let other = &tasks[(index + 1) % SESSIONS];
            for tool in ["bash_output", "bash_kill"] {
                let refused = world.about(tool, session, other).await;
                let name = other.as_str().unwrap();
                assert!(refused.is_error);
                assert_eq!(
                    refused.text,
                    format!("task {name} belongs to another session")
                );
            }
            let own = world.about("bash_output", session, &tasks[index]).await;
            assert_eq!(own.text, "(no new output)\n[status: running]");
        }
        // A switch and an end of one are nobody else's.
        sessions[1].switch(Mode::ReadOnly, "test").unwrap();
        let killed = world.about("bash_kill", &sessions[1], &tasks[1]).await;
        assert_eq!(
            killed.text,
            format!("killed background task {}", tasks[1].as_str().unwrap())
        );
        for (index, mode) in [(1, Mode::ReadOnly), (3, Mode::WorkspaceWrite)] {
            let now = world.bash(&sessions[index], "true", false).await;
            assert_eq!(now.structured["sandbox"]["mode"], json!(mode));
        }
        assert_eq!(processes(&seconds).len(), SESSIONS - 1);
        world.tools.executor().shutdown().await;
        assert_eq!(processes(&seconds), Vec::<String>::new());
    });
}

#[test]
fn a_command_has_the_callers_environment_without_secrets_and_with_the_managed_one() {
    let inherited = [
        ("PATH", "/usr/bin:/bin"),
        ("LANG", "C.UTF-8"),
        ("EDITOR", "vi"),
        ("PAGER", "less"),
        ("TERM", "xterm"),
        ("MY_API_KEY", "1"),
        ("client_secret_file", "2"),
        ("Github_Token_2", "3"),
        ("MONKEY", "4"),
        ("DSH_HOME", "/elsewhere"),
        ("DSH_SESSION_ID", "another"),
        ("DSH_ANYTHING", "5"),
    ];
    let world = World::new(Some(&inherited));
    let registered = world.managed.register(
        "test",
        vec![Variable::new("DSH_TEST", "What a test adds.")],
        Box::new(|_calling| vec![("DSH_TEST".to_owned(), "added".to_owned())]),
    );
    let contribution = registered.unwrap();
    let session = world.session();
    let dsh = world.home.text();
    let log = session.log_path().unwrap();
    let log = format!("DSH_SESSION_JSONL={}", log.display());
    let id = format!("DSH_SESSION_ID={}", session.id());
    let home = format!("DSH_HOME={dsh}");
    let mut expected = vec![
        home.as_str(),
        &id,
        &log,
        "DSH_SHELL=1",
        "DSH_TEST=added",
        "EDITOR=vi",
        "GIT_EDITOR=false",
        "GIT_PAGER=cat",
        "GIT_SEQUENCE_EDITOR=false",
        "LANG=C.UTF-8",
        "NO_COLOR=1",
        "PAGER=cat",
        "PATH=/usr/bin:/bin",
        "TERM=dumb",
    ];
    block_on(async {
        // What bash sets by itself, and what confinement moves, isn't the contract's.
        let command =
            "env -u PWD -u SHLVL -u _ -u OLDPWD -u TMPDIR -u TMPPREFIX -u XDG_RUNTIME_DIR | sort";
        let done = world.bash(&session, command, false).await;
        assert_eq!(done.text.lines().collect::<Vec<_>>(), expected);
        drop(contribution);
        expected.retain(|line| !line.starts_with("DSH_TEST"));
        let done = world.bash(&session, command, false).await;
        assert_eq!(done.text.lines().collect::<Vec<_>>(), expected);
        world.tools.executor().shutdown().await;
    });
    assert!(Path::new(&log["DSH_SESSION_JSONL=".len()..]).exists());
}

#[test]
fn schemas_list_their_properties_in_the_order_of_their_declaration() {
    let world = World::new(None);
    let schemas = || -> Vec<String> {
        let definitions = world.tools.definitions().iter();
        definitions
            .map(|tool| tool.input_schema().to_string())
            .collect()
    };
    let names = |schema: &str| -> Vec<String> {
        let schema: Value = serde_json::from_str(schema).unwrap();
        schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let first = schemas();
    assert_eq!(
        names(&first[0]),
        [
            "command",
            "description",
            "timeoutMs",
            "workdir",
            "run_in_background",
            "sandbox_permissions",
            "justification"
        ]
    );
    assert_eq!(names(&first[1]), ["task_id", "wait_ms"]);
    assert_eq!(first, schemas());
    assert_eq!(
        first[2],
        "{\"type\":\"object\",\"properties\":{\"task_id\":{\"type\":\"string\",\
         \"description\":\"The task's id, as in `bash-1`.\"}},\"required\":[\"task_id\"]}"
    );
}
