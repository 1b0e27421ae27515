//! Processes: what a command sees of others, and what it can do to them.

use std::fs;

use crate::world::{anyone, ordinary};

#[test]
fn proc_shows_the_commands_own_processes_and_no_others() {
    anyone(|world| {
        let host = world.companion("sleep", &["300"]);
        let text = "ls /proc | grep -E '^[0-9]+$' | sort -n | head -50; cat /proc/1/comm";
        // Some for the pipeline itself, and none of the hundreds outside.
        let listed = world.write(text).ok().to_owned();
        let numbers: Vec<u32> = listed
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        assert!(
            numbers.len() <= 10 && numbers.iter().all(|pid| *pid < 30),
            "{listed}"
        );
        assert_eq!(
            world.full(format!("cat /proc/{}/comm", host.pid())).ok(),
            "sleep"
        );
    });
}

#[test]
fn the_environment_and_memory_of_host_processes_are_unreadable() {
    ordinary(|world| {
        let call = world
            .call("workspace-write")
            .env("OPENAI_API_KEY", "s3cret");
        let done = call
            .sh("cat /proc/*/environ | tr '\\0' '\\n' | grep -c s3cret; grep -c . /proc/self/maps");
        let lines: Vec<&str> = done.ok().lines().collect();
        assert_eq!(lines[0], "0");
        assert_ne!(lines[1], "0");
        // Where the process is the caller's own, it can be read.
        assert_eq!(
            world
                .write("A=b bash -c 'cat /proc/$$/environ' | tr '\\0' '\\n' | grep ^A=")
                .ok(),
            "A=b"
        );
    });
}

#[test]
fn no_signal_reaches_a_host_process() {
    anyone(|world| {
        let mut host = world.companion("sleep", &["300"]);
        let pid = host.pid();
        let denied = world.write(format!("kill -9 {pid}"));
        assert!(denied.failed().ends_with("No such process"), "{denied}");
        assert!(host.runs());
        world
            .write("sleep 300 & kill -9 $!; wait $!; test $? = 137")
            .ok();
        world.full(format!("kill -9 {pid}")).ok();
    });
}

#[test]
fn host_processes_are_not_traced_and_own_children_are() {
    ordinary(|world| {
        let host = world.companion("sleep", &["300"]);
        // PTRACE_SEIZE of a process by number, after making one.
        let code = r#"
            my $pid = $ARGV[0] || fork || do { sleep 60; exit };
            print syscall(101, 0x4206, $pid + 0, 0, 0) == -1 ? $! + 0 : 0;
            kill 9, $pid unless $ARGV[0];
        "#;
        let trace = |mode: &str, pid: &str| world.call(mode).perl(code, &[pid]).ok().to_owned();
        assert_eq!(
            trace("workspace-write", &host.pid().to_string()),
            libc::ESRCH.to_string()
        );
        assert_eq!(trace("workspace-write", "0"), "0");
        // Its parent is in reach but has more rights than it.
        assert_eq!(trace("workspace-write", "1"), libc::EPERM.to_string());
    });
}

#[test]
fn a_debugger_works_on_the_commands_own_programs() {
    ordinary(|world| {
        world.needs("strace");
        let done = world.write(
            "strace -f -e trace=execve -o trace.txt sh -c /bin/true; grep -c execve trace.txt",
        );
        assert_eq!(done.ok(), "2");
    });
}

#[test]
fn the_init_of_a_command_can_not_be_looked_into_or_written() {
    anyone(|world| {
        for text in [
            "cat /proc/1/environ",
            "cat /proc/1/mem",
            "cat /proc/1/fd/0",
            "ls /proc/1/root/",
            "ls /proc/1/cwd/",
        ] {
            let done = world.write(text);
            assert!(
                done.failed().ends_with("Permission denied"),
                "{text}: {done}"
            );
            world
                .write(
                    text.replace("/proc/1/", "/proc/self/")
                        .replace("mem", "stat"),
                )
                .ok();
        }
    });
}

#[test]
fn system_v_shared_memory_and_host_names_are_the_sessions_own() {
    anyone(|world| {
        // shmget with a key that everyone could guess: a segment of the host isn't found.
        let code = r#"print shmget($ARGV[0], 4096, $ARGV[1]) ? 0 : $! + 0"#;
        let key = (0x0c0f_0000 + std::process::id()).to_string();
        let get =
            |mode: &str, flags: &str| world.call(mode).perl(code, &[&key, flags]).ok().to_owned();
        assert_eq!(get("danger-full-access", "950"), "0"); // IPC_CREAT | 0666
        assert_eq!(get("workspace-write", "438"), libc::ENOENT.to_string());
        assert_eq!(get("danger-full-access", "438"), "0");
        world.host(&format!("ipcrm -M {key}"));
    });
}

#[test]
fn a_command_has_no_controlling_terminal() {
    ordinary(|world| {
        world.needs("script");
        let program = world.program().display();
        let text = |mode: &str| {
            let inner = format!(
                "{program} run --quiet --mode {mode} -c \"exec 3<>/dev/tty && echo terminal; true\""
            );
            world.host(&format!("script -qec '{inner}' /dev/null"))
        };
        assert!(text("workspace-write").contains("/dev/tty: No such device or address"));
        let there = world.host("script -qec 'exec 3<>/dev/tty && echo terminal' /dev/null");
        assert_eq!(there.trim(), "terminal");
    });
}

#[test]
fn limits_of_the_profile_hold() {
    ordinary(|world| {
        let profile = world.home().join("p.toml");
        fs::write(
            &profile,
            "[limits]\nprocesses = 40\nopen_files = 64\nfile_size = \"1 MiB\"\nscratch_bytes = \"2 MiB\"\n",
        )
        .unwrap();
        let with = |text: &str| {
            world
                .call("workspace-write")
                .args(["--profile", profile.to_str().unwrap()])
                .sh(text)
        };
        assert_eq!(with("ulimit -n; ulimit -u; ulimit -c").ok(), "64\n40\n0");
        assert_eq!(
            with("head -c 2000000 /dev/zero > f; stat -c %s f").ok(),
            (1 << 20).to_string()
        );
        assert!(with("head -c 900000 /dev/zero > /tmp/a && head -c 900000 /dev/zero > /tmp/b && head -c 900000 /dev/zero > /tmp/c").failed().contains("No space left"));
        world
            .write("head -c 2000000 /dev/zero > f && head -c 3000000 /dev/zero > /tmp/c")
            .ok();
    });
}
