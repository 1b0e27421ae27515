//! Sessions, by the library: what their commands share, and what they never share with others.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use cofferdam::executor::{
    Confined, Confinement, Executor, Finished, Kill, Ran, Settings, TaskId, TaskStatus, Watch,
};
use cofferdam::mode::{Mode, ModeSource};
use cofferdam::outcome::{Ended, NeverRan};
use cofferdam::request::{ExecRequest, Owner};
use tokio_util::sync::CancellationToken;

use crate::world::{World, anyone, eventually, ordinary};

/// An executor and the way to ask it.
pub struct Bench<E> {
    pub executor: E,
}

/// A confined executor whose sessions start in workspace-write mode.
pub fn bench(world: &World) -> Bench<Confined> {
    bench_with(world, |_| {})
}

pub fn bench_with(world: &World, change: impl FnOnce(&mut Settings)) -> Bench<Confined> {
    bench_of(world, change, |_| {})
}

fn bench_of(
    world: &World,
    change: impl FnOnce(&mut Settings),
    confine: impl FnOnce(&mut Confinement),
) -> Bench<Confined> {
    let mut settings = Settings {
        workspace: Some(world.workspace()),
        grace: Duration::from_millis(500),
        ..Settings::default()
    };
    change(&mut settings);
    let mut confinement = Confinement {
        mode: Mode::WorkspaceWrite,
        binary: Some(world.program().to_owned()),
        ..Confinement::default()
    };
    confine(&mut confinement);
    Bench {
        executor: Confined::new(settings, confinement),
    }
}

impl<E: Executor> Bench<E> {
    pub async fn ask(&self, request: ExecRequest) -> Result<Finished, NeverRan> {
        let spec = self.executor.resolve(request)?;
        match self.executor.run(spec, Watch::default()).await? {
            Ran::Finished(finished) => Ok(*finished),
            Ran::Yielded(id) => panic!("yielded as {id:?}"),
        }
    }

    pub async fn sh(&self, session: &str, text: &str) -> Finished {
        self.ask(request(session, text)).await.unwrap()
    }

    pub async fn start(&self, session: &str, text: &str) -> TaskId {
        let mut request = request(session, text);
        request.owner = Some(Owner(session.to_owned()));
        let spec = self.executor.resolve(request).unwrap();
        self.executor.start(spec).await.unwrap()
    }
}

pub fn request(session: &str, text: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(text);
    request.session = Some(session.to_owned());
    request
}

fn under(mode: Mode, session: &str, text: &str) -> ExecRequest {
    let mut request = request(session, text);
    request.mode = Some((mode, ModeSource::Grant));
    request
}

#[test]
fn tmp_and_shared_memory_belong_to_the_session_and_to_no_other() {
    anyone(|world| {
        let bench = bench(world);
        world.block_on(async {
            for folder in ["/tmp", "/dev/shm", "$XDG_RUNTIME_DIR"] {
                assert!(
                    bench
                        .sh("a", &format!("echo a > {folder}/f"))
                        .await
                        .ended
                        .success()
                );
                assert_eq!(
                    bench.sh("a", &format!("cat {folder}/f")).await.stdout.text,
                    "a\n"
                );
                let other = bench.sh("b", &format!("cat {folder}/f")).await;
                assert_eq!(
                    (other.ended, other.stdout.text.as_str()),
                    (Ended::Exited(1), "")
                );
            }
            bench.executor.end_session("a").await;
            assert_eq!(bench.sh("a", "ls /tmp").await.stdout.text, "");
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn both_confined_modes_of_a_session_share_its_tmp_and_loopback() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            bench
                .ask(under(Mode::ReadOnly, "a", "echo kept > /tmp/f"))
                .await
                .unwrap();
            let done = bench.sh("a", "cat /tmp/f; echo x > f").await;
            assert_eq!(
                (done.ended, done.stdout.text.as_str()),
                (Ended::Exited(0), "kept\n")
            );
            let narrow = bench
                .ask(under(Mode::ReadOnly, "a", "cat /tmp/f; echo x > g"))
                .await
                .unwrap();
            assert_eq!(
                (narrow.ended, narrow.stdout.text.as_str()),
                (Ended::Exited(1), "kept\n")
            );
            assert!(!world.workspace().join("g").exists());
            bench.executor.shutdown().await;
        });
    });
}

const SERVE: &str = r#"exec perl -MIO::Socket::INET -e '
    $l = IO::Socket::INET->new(LocalAddr => "127.0.0.1:8766", Listen => 5, ReuseAddr => 1) or die $!;
    $| = 1; print "ready\n"; while ($c = $l->accept) { print $c "hello\n"; close $c }'"#;
const ASK: &str = "exec 3<>/dev/tcp/127.0.0.1/8766 && cat <&3";

async fn ready(bench: &Bench<Confined>, task: &TaskId) {
    let mut told = String::new();
    for _ in 0..50 {
        let read = bench
            .executor
            .read_output(task, Duration::from_secs(1))
            .await
            .unwrap();
        told += &read.stdout;
        if told.contains("ready") {
            return;
        }
        assert_eq!(read.status, TaskStatus::Running, "{read:?}");
    }
    panic!("not ready");
}

#[test]
fn a_server_in_the_background_answers_the_next_call_and_no_other_session() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            let task = bench.start("a", SERVE).await;
            ready(&bench, &task).await;
            assert_eq!(bench.sh("a", ASK).await.stdout.text, "hello\n");
            assert_eq!(
                bench
                    .ask(under(Mode::ReadOnly, "a", ASK))
                    .await
                    .unwrap()
                    .stdout
                    .text,
                "hello\n"
            );
            let other = bench.sh("b", ASK).await;
            assert!(!other.ended.success());
            assert!(
                other.stderr.text.contains("Connection refused"),
                "{other:?}"
            );
            assert!(std::net::TcpStream::connect("127.0.0.1:8766").is_err());
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_killed_task_frees_its_port_whatever_it_wrapped_itself_in() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            let wrapped = "bash -c \"setsid bash serve.sh & wait\" & wait";
            fs::write(world.workspace().join("serve.sh"), SERVE).unwrap();
            let task = bench.start("a", wrapped).await;
            ready(&bench, &task).await;
            assert_eq!(bench.executor.kill(&task).await, Ok(Kill::Killed));
            let again = bench.start("a", SERVE).await;
            ready(&bench, &again).await;
            assert_eq!(bench.executor.kill(&again).await, Ok(Kill::Killed));
            assert_eq!(bench.executor.kill(&again).await, Ok(Kill::AlreadyFinished));
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn tasks_end_with_their_session_and_those_of_others_go_on() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            bench
                .start("a", "while :; do date >> a; sleep 0.05; done")
                .await;
            let other = bench
                .start("b", "while :; do date >> b; sleep 0.05; done")
                .await;
            let size = |name: &str| {
                fs::metadata(world.workspace().join(name)).map_or(0, |facts| facts.len())
            };
            eventually("both tick", || size("a") > 0 && size("b") > 0);
            bench.executor.end_session("a").await;
            let (a, b) = (size("a"), size("b"));
            eventually("the other goes on", || size("b") > b);
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(size("a"), a);
            let status = bench
                .executor
                .read_output(&other, Duration::ZERO)
                .await
                .unwrap()
                .status;
            assert_eq!(status, TaskStatus::Running);
            bench.executor.shutdown().await;
            let b = size("b");
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(size("b"), b);
        });
    });
}

#[test]
fn a_task_keeps_the_mode_that_it_was_started_under_and_a_later_call_has_its_own() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            let task = bench
                .start("a", "while :; do date >> ticks; sleep 0.05; done")
                .await;
            eventually("it ticks", || world.workspace().join("ticks").exists());
            let narrow = bench
                .ask(under(Mode::ReadOnly, "a", "echo x > f"))
                .await
                .unwrap();
            assert_eq!(
                (narrow.ended, narrow.sandbox.mode),
                (Ended::Exited(1), Mode::ReadOnly)
            );
            assert_eq!(narrow.sandbox.denials.len(), 1);
            let listed = bench.executor.list();
            assert_eq!(
                (listed[0].id.clone(), listed[0].mode),
                (task, Mode::WorkspaceWrite)
            );
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_background_task_tells_what_was_denied_once_when_it_has_settled() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            let task = bench
                .start(
                    "a",
                    &format!("echo x > {}/f; sleep 0.2", world.outside().display()),
                )
                .await;
            let mut reports = Vec::new();
            for _ in 0..100 {
                let read = bench
                    .executor
                    .read_output(&task, Duration::from_secs(1))
                    .await
                    .unwrap();
                reports.extend(read.sandbox);
                if read.status != TaskStatus::Running {
                    break;
                }
            }
            assert!(
                bench
                    .executor
                    .read_output(&task, Duration::ZERO)
                    .await
                    .unwrap()
                    .sandbox
                    .is_none()
            );
            assert_eq!(reports.len(), 1);
            let path = world.outside().join("f");
            assert_eq!(
                reports[0]
                    .denials
                    .iter()
                    .map(|fact| fact.path.clone())
                    .collect::<Vec<_>>(),
                [Some(path)]
            );
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_grant_runs_wider_once_and_the_calls_beside_it_do_not() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            let write = |name: &str| format!("echo x > {}/{name}", world.outside().display());
            assert!(!bench.sh("a", &write("1")).await.ended.success());
            let granted = bench
                .ask(under(Mode::DangerFullAccess, "a", &write("2")))
                .await
                .unwrap();
            assert!(granted.ended.success());
            assert_eq!(
                (granted.sandbox.mode, granted.sandbox.level),
                (Mode::DangerFullAccess, None)
            );
            assert!(!bench.sh("a", &write("3")).await.ended.success());
            let names: Vec<_> = fs::read_dir(world.outside())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(names, ["2"]);
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn an_abort_and_a_dropped_call_end_the_tree() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            let text = "trap '' HUP; (setsid bash -c 'while :; do date >> ticks; sleep 0.05; done' &); sleep 300";
            let ticks = world.workspace().join("ticks");
            let size = || fs::metadata(&ticks).map_or(0, |facts| facts.len());
            // Cancelled.
            let abort = CancellationToken::new();
            let spec = bench.executor.resolve(request("a", text)).unwrap();
            let watch = Watch { abort: abort.clone(), ..Watch::default() };
            let cancel = async {
                while size() == 0 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
                abort.cancel();
            };
            let (ran, ()) = tokio::join!(bench.executor.run(spec, watch), cancel);
            let Ran::Finished(finished) = ran.unwrap() else { panic!() };
            assert_eq!(finished.cut, Some(cofferdam::executor::Cut::Aborted));
            let before = size();
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(size(), before);
            // Dropped.
            let spec = bench.executor.resolve(request("a", text)).unwrap();
            let dropped = tokio::time::timeout(Duration::from_millis(500), bench.executor.run(spec, Watch::default())).await;
            assert!(dropped.is_err());
            tokio::time::sleep(Duration::from_millis(700)).await;
            let before = size();
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(size(), before);
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_writable_root_that_was_replaced_by_a_link_between_two_calls_lets_nothing_through() {
    ordinary(|world| {
        let build = world.workspace().join("build");
        let target = world.outside().join("target");
        fs::create_dir(&build).unwrap();
        fs::create_dir(&target).unwrap();
        let roots: Vec<PathBuf> = vec![build.clone()];
        let bench = bench_of(world, |_| {}, |confinement| confinement.writable = roots);
        world.block_on(async {
            assert!(bench.sh("a", "echo x > build/f").await.ended.success());
            let swap = format!("rm -rf build && ln -s {} build", target.display());
            bench.sh("a", &swap).await;
            // However the swap went: by the command, or by someone outside.
            if build.is_dir() && !build.is_symlink() {
                fs::remove_dir_all(&build).unwrap();
                std::os::unix::fs::symlink(&target, &build).unwrap();
            }
            let second = bench
                .ask(request(
                    "a",
                    &format!(
                        "echo evil > {}/key; echo evil > build/key",
                        target.display()
                    ),
                ))
                .await;
            if let Ok(finished) = &second {
                assert!(!finished.ended.success(), "{finished:?}");
            }
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_workspace_that_was_replaced_is_seen_anew() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            bench.sh("a", "echo old > f").await;
            fs::rename(world.workspace(), world.base().join("moved")).unwrap();
            fs::create_dir(world.workspace()).unwrap();
            fs::write(world.workspace().join("g"), "new").unwrap();
            let done = bench.sh("a", "ls; echo x > h").await;
            assert_eq!(
                (done.ended, done.stdout.text.as_str()),
                (Ended::Exited(0), "g\n")
            );
            assert!(world.workspace().join("h").exists());
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn what_a_command_plants_is_protected_from_the_next_call_on() {
    ordinary(|world| {
        world.needs("git");
        let bench = bench(world);
        world.block_on(async {
            bench.sh("a", "mkdir .vscode; git init -q .").await;
            let done = bench
                .sh(
                    "a",
                    "echo x > .vscode/tasks.json; echo x > .git/hooks/pre-commit; echo x > f",
                )
                .await;
            assert_eq!(
                done.stderr.text.matches("Read-only file system").count(),
                2,
                "{done:?}"
            );
            assert!(world.workspace().join("f").exists());
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn thirty_calls_at_once_in_three_sessions_keep_apart() {
    ordinary(|world| {
        let bench = std::sync::Arc::new(bench(world));
        world.block_on(async {
            let calls: Vec<_> = (0..30)
                .map(|n| {
                    let bench = std::sync::Arc::clone(&bench);
                    tokio::spawn(async move {
                        let session = format!("s{}", n % 3);
                        let text = format!("echo {n} > /tmp/{n}; sleep 0.1; cat /tmp/{n}; ls /proc | grep -c '^[0-9]'");
                        (n, bench.sh(&session, &text).await)
                    })
                })
                .collect();
            for call in calls {
                let (n, done) = call.await.unwrap();
                let lines: Vec<&str> = done.stdout.text.lines().collect();
                assert_eq!(lines[0], n.to_string());
                assert!(lines[1].parse::<u32>().unwrap() <= 5, "{done:?}");
            }
            for session in ["s0", "s1", "s2"] {
                assert_eq!(bench.sh(session, "ls /tmp | wc -l").await.stdout.text, "10\n");
            }
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn a_killed_cell_is_replaced_for_the_next_call() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            bench.sh("a", "true").await;
            let own = std::process::id().to_string();
            let cells: Vec<_> = crate::world::processes()
                .into_iter()
                .filter(|pid| {
                    let status =
                        fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                    status.lines().any(|line| line == format!("PPid:\t{own}"))
                })
                .collect();
            assert_eq!(cells.len(), 1);
            nix::sys::signal::kill(cells[0], nix::sys::signal::Signal::SIGKILL).unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(bench.sh("a", "echo again").await.stdout.text, "again\n");
            bench.executor.shutdown().await;
        });
    });
}

#[test]
fn text_of_any_length_runs_in_a_session_that_has_run_before() {
    ordinary(|world| {
        let bench = bench(world);
        world.block_on(async {
            for length in [10, 200_000, 10, 3_000_000] {
                let text = format!(
                    ": {}\necho $((40 + 2)); ls /proc/self/fd | wc -l",
                    "x".repeat(length)
                );
                let done = bench.sh("a", &text).await;
                assert_eq!(
                    (done.stdout.text.as_str(), done.stderr.text.as_str()),
                    ("42\n4\n", "")
                );
            }
            bench.executor.shutdown().await;
        });
    });
}
