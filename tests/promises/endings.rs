//! How commands end: exit statuses, timeouts, signals, and that nothing of them is left.

use std::fs;
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::world::{World, anyone, eventually, has_variable, ordinary, processes};

/// Processes of the host whose environment has this mark, which the command was given.
fn marked(mark: &str) -> Vec<Pid> {
    let variable = format!("MARK={mark}");
    processes()
        .into_iter()
        .filter(|pid| has_variable(*pid, &variable))
        .collect()
}

fn mark() -> String {
    format!("m{}", std::process::id())
}

/// Runs a command with a mark and a timeout; nothing with the mark may be left afterwards.
fn ends(world: &World, mode: &str, timeout_ms: u32, text: &str) -> crate::world::Done {
    let mark = mark();
    let timeout = timeout_ms.to_string();
    let call = world
        .call(mode)
        .args(["--timeout-ms", &timeout, "--env", &format!("MARK={mark}")]);
    let done = call.sh(text);
    assert_eq!(marked(&mark), [], "{text}: {done}");
    done
}

#[test]
fn the_exit_status_is_the_commands_own() {
    anyone(|world| {
        for mode in ["read-only", "workspace-write", "danger-full-access"] {
            for status in [0, 1, 7, 124, 125, 126, 127, 255] {
                let done = world.call(mode).sh(format!("exit {status}"));
                assert_eq!(
                    (done.status, &done.json["exitCode"]),
                    (status, &status.into()),
                    "{mode}"
                );
                assert_eq!(
                    world.call(mode).plain().sh(format!("exit {status}")).status,
                    status
                );
            }
        }
    });
}

#[test]
fn a_signal_reads_as_128_and_its_number() {
    ordinary(|world| {
        for (number, name) in [
            (15, "SIGTERM"),
            (9, "SIGKILL"),
            (11, "SIGSEGV"),
            (6, "SIGABRT"),
            (34, "SIGRTMIN+0"),
        ] {
            let done = world.write(format!("kill -{number} $$"));
            assert_eq!(done.status, 128 + number, "{done}");
            assert_eq!(
                (
                    done.json["exitCode"].is_null(),
                    done.json["signal"].as_str()
                ),
                (true, Some(name))
            );
        }
        // A shell that saw its child die of one exits by itself.
        let done = world.write("bash -c 'kill -9 $$'; exit $?");
        assert_eq!(
            (
                done.status,
                done.json["exitCode"].as_i64(),
                done.json["signal"].as_str()
            ),
            (137, Some(137), None)
        );
    });
}

#[test]
fn a_timeout_reads_as_124_whatever_the_command_makes_of_it() {
    ordinary(|world| {
        for text in ["sleep 300", "trap 'exit 0' TERM; sleep 300 & wait"] {
            let done = ends(world, "workspace-write", 300, text);
            assert_eq!(done.status, 124, "{done}");
            assert_eq!(done.json["timedOut"], true);
            assert_eq!(done.json["timeoutMs"], 300);
        }
        let done = world
            .call("workspace-write")
            .plain()
            .args(["--timeout-ms", "300"])
            .sh("echo a; sleep 300");
        assert_eq!(
            (done.status, &done.stdout[..], &done.stderr[..]),
            (124, &b"a\n"[..], &b"[timed out after 300ms]\n"[..])
        );
        assert_eq!(
            ends(world, "workspace-write", 60_000, "sleep 0.1").status,
            0
        );
    });
}

#[test]
fn setsid_and_double_forks_die_with_the_command() {
    anyone(|world| {
        for text in [
            "setsid sleep 300 & sleep 0.1",
            "(setsid bash -c 'sleep 300 & disown; sleep 300' &) ; sleep 0.1",
            "nohup bash -c 'trap \"\" HUP TERM INT; sleep 300' >/dev/null 2>&1 & disown; sleep 0.1",
        ] {
            let done = ends(world, "workspace-write", 60_000, text);
            assert_eq!(done.status, 0, "{done}");
        }
    });
}

#[test]
fn a_grandchild_that_holds_the_pipe_does_not_delay_the_result() {
    ordinary(|world| {
        let start = Instant::now();
        assert_eq!(
            ends(world, "workspace-write", 60_000, "sleep 300 & echo done").ok(),
            "done"
        );
        assert_eq!(
            ends(
                world,
                "workspace-write",
                60_000,
                "exec > >(tee log); echo logged"
            )
            .ok(),
            "logged"
        );
        assert!(start.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn children_that_ignore_term_die_after_the_grace_period() {
    ordinary(|world| {
        let start = Instant::now();
        let text = "trap '' TERM; bash -c 'trap \"\" TERM; while :; do sleep 1; done' & while :; do sleep 1; done";
        let done = ends(world, "workspace-write", 200, text);
        assert_eq!((done.status, &done.json["timedOut"]), (124, &true.into()));
        assert!(start.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn term_comes_first_so_that_a_command_can_clean_up() {
    ordinary(|world| {
        let done = ends(
            world,
            "workspace-write",
            300,
            "trap 'echo cleaned > cleaned; exit 3' TERM; sleep 300 & wait",
        );
        assert_eq!(done.status, 124);
        assert_eq!(
            fs::read_to_string(world.workspace().join("cleaned")).unwrap(),
            "cleaned\n"
        );
    });
}

#[test]
fn stopped_children_die_with_the_command() {
    ordinary(|world| {
        let done = ends(
            world,
            "workspace-write",
            60_000,
            "sleep 300 & kill -STOP $!; echo done",
        );
        assert_eq!(done.ok(), "done");
        assert_eq!(
            ends(world, "workspace-write", 300, "kill -STOP $$; sleep 300").status,
            124
        );
    });
}

#[test]
fn a_fork_bomb_ends_with_its_timeout() {
    ordinary(|world| {
        let profile = world.home().join("p.toml");
        fs::write(&profile, "[limits]\nprocesses = 60\n").unwrap();
        let mark = mark();
        let call = world.call("workspace-write").args([
            "--timeout-ms",
            "1000",
            "--env",
            &format!("MARK={mark}"),
        ]);
        let done = call
            .args(["--profile", profile.to_str().unwrap()])
            .sh("f() { f | f & }; f 2>/dev/null; sleep 300");
        assert_eq!(done.status, 124, "{done}");
        assert_eq!(marked(&mark), []);
    });
}

#[test]
fn after_sigkill_of_the_program_nothing_is_left_within_a_second() {
    anyone(|world| {
        for mode in ["read-only", "workspace-write"] {
            let mark = mark();
            let call = world.call(mode).args(["--env", &format!("MARK={mark}")]);
            let mut running = call.start("trap '' TERM HUP; setsid sleep 300 & sleep 300");
            eventually("two sleep", || marked(&mark).len() >= 3);
            running.0.kill().unwrap();
            running.0.wait().unwrap();
            let end = Instant::now() + Duration::from_secs(1);
            while !marked(&mark).is_empty() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(marked(&mark), [], "{mode}");
        }
    });
}

/// The cells of a program.
fn cells_of(parent: u32) -> Vec<Pid> {
    processes()
        .into_iter()
        .filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after_name = stat.rsplit(')').next().unwrap_or_default();
            after_name.split_whitespace().nth(1) == Some(&parent.to_string())
        })
        .collect()
}

#[test]
fn after_sigkill_of_the_cell_nothing_is_left_and_the_program_says_so() {
    anyone(|world| {
        let mark = mark();
        let call = world
            .call("workspace-write")
            .args(["--env", &format!("MARK={mark}")]);
        let running = call.start("trap '' TERM HUP; setsid sleep 300 & sleep 300");
        eventually("two sleep", || marked(&mark).len() >= 3);
        let [cell] = cells_of(running.pid())[..] else {
            panic!("not one cell");
        };
        kill(cell, Signal::SIGKILL).unwrap();
        let start = Instant::now();
        let mut running = running;
        let status = running.0.wait().unwrap();
        assert_eq!(marked(&mark), []);
        assert!(start.elapsed() < Duration::from_secs(10));
        let mut told = String::new();
        running
            .0
            .stdout
            .as_mut()
            .unwrap()
            .read_to_string(&mut told)
            .unwrap();
        assert!(
            told.contains("the end of the command, whose init was killed"),
            "{told}"
        );
        assert_eq!(status.code(), Some(137), "{told}");
    });
}

#[test]
fn an_interrupted_program_ends_its_command() {
    ordinary(|world| {
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            let mark = mark();
            let call = world.call("workspace-write").plain();
            let call = call.args(["--env", &format!("MARK={mark}")]);
            let mut running = call.start("echo ready; sleep 300");
            let mut ready = [0; 6];
            running
                .0
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut ready)
                .unwrap();
            kill(Pid::from_raw(running.pid().cast_signed()), signal).unwrap();
            // The command's own end: it was asked to with SIGTERM.
            assert_eq!(running.0.wait().unwrap().code(), Some(128 + 15), "{signal}");
            assert_eq!(marked(&mark), [], "{signal}");
        }
    });
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    ordinary(|world| {
        let mark = mark();
        let program = world.program().display();
        let text = format!(
            "{program} run --mode workspace-write --env MARK={mark} -c 'while :; do echo y; done' | head -n 2"
        );
        let output = Command::new("bash").args(["-c", &text]).output().unwrap();
        assert_eq!(output.stdout, b"y\ny\n");
        eventually("the command ends", || marked(&mark).is_empty());
    });
}
