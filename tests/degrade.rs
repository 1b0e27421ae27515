//! What is promised on hosts that give less, with real processes in such places: made with `unshare`, and
//! with a seccomp filter that refuses what a container's would. Started as root, everything but the tests
//! of root runs as a user of its own. What the machine can't make is skipped by name.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helpers of tests may panic as tests may.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_cofferdam");
/// An ordinary user without a name.
const USER: u32 = 54_321;

const MODES: &str = "changes of mode, owner, times and attributes of files outside";
const SEEN: &str = "the host's processes, /tmp, /dev/shm and /run can be seen";
const IPC: &str = "the caller's System V and POSIX message queues, semaphores and shared memory";
const HIDDEN: &str = "hidden paths can be read";

/// A user with a home, a workspace `w` and a folder `o` outside of it.
struct World {
    dir: TempDir,
    root: bool,
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn world() -> World {
    make_world(false)
}

/// Commands run as root.
fn world_of_root() -> Option<World> {
    if !is_root() {
        println!("skipped: it is about root");
        return None;
    }
    Some(make_world(true))
}

fn make_world(root: bool) -> World {
    // Not below /tmp, which commands have their own of: what is outside must be seen to be refused.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("refuse.pl"), refuse_script()).unwrap();
    for name in ["w", "o", "home", "home/.ssh"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("home/.ssh/id"), "secret").unwrap();
    if is_root() && !root {
        for name in ["", "w", "o", "home", "home/.ssh", "home/.ssh/id"] {
            chown(dir.path().join(name), Some(USER), Some(USER)).unwrap();
        }
    }
    World { dir, root }
}

impl World {
    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Runs a script of the host, in the workspace, where `$C` is the binary, `$R` refuses calls.
    fn host(&self, script: &str) -> Output {
        let mut command = if is_root() && !self.root {
            let user = format!("--reuid={USER}");
            let mut command = Command::new("setpriv");
            command.args([&user, &format!("--regid={USER}"), "--clear-groups", "bash"]);
            command
        } else {
            Command::new("bash")
        };
        command
            .args(["-c", script])
            .current_dir(self.path("w"))
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("HOME", self.path("home"))
            .env("C", BINARY)
            .env("R", format!("perl {}", self.path("refuse.pl").display()))
            .env("O", self.path("o"))
            .env("W", self.path("w"))
            .output()
            .unwrap()
    }

    /// The one object that a script of the host prints.
    fn json(&self, script: &str) -> Value {
        let output = self.host(script);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!(
                "{error}: {script}\n{}\n{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        })
    }

    /// Whether a script of the host works; says so when not.
    fn gives(&self, script: &str, what: &str) -> bool {
        let given = self.host(script).status.success();
        if !given {
            println!("skipped: {what}");
        }
        given
    }

    fn gives_namespaces(&self) -> bool {
        self.gives(
            "unshare -Urmpf true && test -x $C",
            "no user namespaces, or no way to the binary",
        )
    }

    fn gives_landlock(&self) -> bool {
        self.gives(
            "test \"$($C doctor --json | grep -c '\"abi\": [67]')\" = 1",
            "no Landlock of ABI 6 or later",
        )
    }
}

/// A program that puts a filter on itself and becomes its arguments: `ERRNO CALL[:ARG:=|&:VALUE],… WORDS`.
/// With `hang` for the errno, such a call never returns.
fn refuse_script() -> String {
    format!(
        r#"
my ($errno, $list, @words) = @ARGV;
my $answer = $errno eq "hang" ? 0x7fc00000 : 0x50000 | $errno;
my @steps;
sub step {{ push @steps, pack("SCCL", @_) }}
for (split /,/, $list) {{
    my ($call, $argument, $how, $value) = split /:/;
    step(0x20, 0, 0, 0);
    step(0x15, 0, defined $argument ? 3 : 1, $call);
    if (defined $argument) {{
        step(0x20, 0, 0, 16 + 8 * $argument);
        step($how eq "=" ? 0x15 : 0x45, 0, 1, oct($value));
    }}
    step(0x06, 0, 0, $answer);
}}
step(0x06, 0, 0, 0x7fff0000);
my $steps = join "", @steps;
my $program = pack("S x6 P", scalar(@steps), $steps);
syscall({prctl}, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
my $listener = syscall({seccomp}, 1, $errno eq "hang" ? 8 : 0, $program);
$listener >= 0 or die "seccomp: $!";
exec @words or die "exec: $!" unless $errno eq "hang";
# This process keeps the listener and never looks at it.
my $child = fork() // die;
unless ($child) {{ exec @words or die "exec: $!" }}
waitpid($child, 0);
exit($? >> 8);
"#,
        prctl = libc::SYS_prctl,
        seccomp = libc::SYS_seccomp,
    )
}

/// Words that start a program as a container's default filter does: no namespaces, no mounts.
fn as_in_docker() -> String {
    let calls = [
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_mount_setattr,
    ];
    let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
    format!(
        "$R 1 {},{}:0:\\&:0x{:x}",
        calls.join(","),
        libc::SYS_clone,
        libc::CLONE_NEWUSER | libc::CLONE_NEWPID
    )
}

/// The same by a setting, inside a namespace where the caller counts as root.
fn without_user_namespaces(command: &str) -> String {
    format!(
        "exec unshare -Ur sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"' sh {command}"
    )
}

fn enforcement(result: &Value) -> (Value, Value) {
    let sandbox = &result["sandbox"];
    (sandbox["enforcement"].clone(), sandbox["missing"].clone())
}

fn text<'a>(result: &'a Value, stream: &str) -> &'a str {
    result[stream]["text"].as_str().unwrap()
}

const RUN: &str = "$C run --mode workspace-write --json";

#[test]
fn without_namespaces_landlock_alone_refuses_writes_outside_and_says_what_is_open() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let inside = format!("{RUN} -c 'touch in; touch $O/out'");
    for script in [
        without_user_namespaces(&inside),
        format!("{} {inside}", as_in_docker()),
    ] {
        let result = world.json(&script);
        assert_eq!(
            enforcement(&result),
            (json!("partial"), json!([MODES, SEEN, IPC, HIDDEN])),
            "{script}"
        );
        assert_eq!(
            text(&result, "stderr"),
            format!(
                "touch: cannot touch '{}': Permission denied\n",
                world.path("o/out").display()
            )
        );
        assert!(!world.path("o/out").exists());
        fs::remove_file(world.path("w/in")).unwrap();
    }
}

#[test]
fn a_person_is_told_that_enforcement_is_partial_unless_it_is_full_or_quiet() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let said = |script: &str| String::from_utf8(world.host(script).stderr).unwrap();
    assert_eq!(
        said(&format!("{} $C run -- true", as_in_docker())),
        format!(
            "[sandbox: enforced in part, see `cofferdam doctor`; not governed: \
             {MODES}; {SEEN}; {IPC}; {HIDDEN}]\n"
        )
    );
    assert_eq!(
        said(&format!("{} $C run --quiet -- true", as_in_docker())),
        ""
    );
    assert_eq!(said("$C run -- true"), "");
}

#[test]
fn where_full_enforcement_is_required_a_weaker_host_runs_nothing() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    fs::write(world.path("o/full.toml"), "require = \"full\"\n").unwrap();
    let run = format!("{RUN} --profile $O/full.toml -c 'touch ran'");
    assert_eq!(
        world.json(&without_user_namespaces(&run)),
        json!({"error": {
            "code": "SANDBOX_UNAVAILABLE",
            "message": format!(
                "the policy requires full enforcement, and this host doesn't govern: \
                 {MODES}; {SEEN}; {IPC}; {HIDDEN}"
            ),
            "step": null,
            "errno": null,
            "remedy": "run `cofferdam doctor` for remedies, or set require = \"partial\"",
        }})
    );
    assert!(!world.path("w/ran").exists());
    let result = world.json(&run);
    assert_eq!(enforcement(&result), (json!("full"), json!([])));
    assert!(world.path("w/ran").exists());
}

#[test]
fn landlock_alone_keeps_tcp_and_udp_shut_unless_the_network_is_the_hosts() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let run = |network: &str, kind: &str| {
        world.json(&format!(
            "{} {RUN} --network {network} -c 'exec 3<>/dev/{kind}/127.0.0.1/{port} && echo through'",
            as_in_docker()
        ))
    };
    for kind in ["tcp", "udp"] {
        assert_eq!(text(&run("host", kind), "stdout"), "through\n", "{kind}");
        let refused = run("none", kind);
        assert_eq!(text(&refused, "stdout"), "", "{kind}");
        assert!(
            text(&refused, "stderr").starts_with("bash: socket: Operation not permitted\n"),
            "{refused}"
        );
    }
}

#[test]
fn landlock_alone_reaches_only_unix_sockets_of_its_own_scratch() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let host = world.path("o/s");
    let server = std::os::unix::net::UnixListener::bind(&host).unwrap();
    fs::set_permissions(&host, fs::Permissions::from_mode(0o777)).unwrap();
    let connect = "IO::Socket::UNIX->new(Peer => $ARGV[0]) ? print \"through\" : print 0 + $!";
    let own = "$own = IO::Socket::UNIX->new(Local => $ARGV[0], Listen => 1) or die;";
    let perl = |before: &str, path: &str| {
        let result = world.json(&format!(
            "export P='{before} {connect}'; {} {RUN} -c 'perl -MIO::Socket::UNIX -e \"$P\" {path}'",
            as_in_docker()
        ));
        text(&result, "stdout").to_owned()
    };
    assert_eq!(perl("", "$O/s"), libc::EACCES.to_string());
    assert_eq!(perl(own, "$TMPDIR/s"), "through");
    drop(server);
}

#[test]
fn landlock_alone_leaves_no_process_and_no_scratch_behind() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let result = world.json(&format!(
        "{} {RUN} -c '(setsid sh -c \"trap : TERM HUP; echo \\$\\$ > pid; sleep 300\" &) ; \
         until test -s pid; do :; done; echo x > $TMPDIR/f; stat -c %a:%n $TMPDIR'",
        as_in_docker()
    ));
    let (mode, scratch) = text(&result, "stdout").trim().split_once(':').unwrap();
    assert_eq!(mode, "700");
    assert!(!Path::new(scratch).exists(), "{scratch}");
    let pid = fs::read_to_string(world.path("w/pid")).unwrap();
    assert!(!alive(&pid), "{pid}");
}

#[test]
fn a_killed_harness_or_cell_leaves_no_process_and_no_scratch_under_landlock_alone() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    for who in ["$!", "$(pgrep -P $!)"] {
        world.host(&format!(
            "{} {RUN} -c 'echo $TMPDIR > scratch; setsid sleep 300 & echo $! > pid; wait' & \
             until test -s pid; do sleep .05; done; kill -9 {who}",
            as_in_docker()
        ));
        let scratch = fs::read_to_string(world.path("w/scratch")).unwrap();
        let pid = fs::read_to_string(world.path("w/pid")).unwrap();
        let gone = || !Path::new(scratch.trim()).exists() && !alive(&pid);
        let start = Instant::now();
        while !gone() && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(gone(), "{who} {scratch} {pid}");
        fs::remove_file(world.path("w/pid")).unwrap();
    }
}

/// Whether a process is there and hasn't ended: one that nobody has reaped yet is gone.
fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.trim()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z"))
}

#[test]
fn without_a_proc_of_its_own_landlock_alone_refuses_to_run() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let in_pid_namespace = |mount: &str| {
        world.json(&format!(
            "unshare -Urpf {mount} sh -c 'echo 0 > /proc/sys/user/max_user_namespaces; exec \"$@\"' sh \
             {RUN} -c 'touch ran'"
        ))
    };
    let step = "find the command's processes: /proc isn't that of this PID namespace";
    assert_eq!(
        in_pid_namespace("")["error"],
        json!({
            "code": "SANDBOX_UNAVAILABLE",
            "message": format!("{step}: No such process"),
            "step": step,
            "errno": "ESRCH",
            "remedy": "run `cofferdam doctor` for remedies",
        })
    );
    assert!(!world.path("w/ran").exists());
    assert_eq!(in_pid_namespace("--mount-proc")["exitCode"], 0);
    assert!(world.path("w/ran").exists());
}

#[test]
fn without_landlock_the_mounts_alone_refuse_writes_outside() {
    let world = world();
    if !world.gives_namespaces() {
        return;
    }
    let result = world.json(&format!(
        "$R {} {} {RUN} -c 'touch in; touch $O/out'",
        libc::ENOSYS,
        libc::SYS_landlock_create_ruleset
    ));
    assert_eq!(
        enforcement(&result),
        (
            json!("partial"),
            json!(["writing to named pipes outside, for the kernel has no Landlock"])
        )
    );
    assert_eq!(
        text(&result, "stderr"),
        format!(
            "touch: cannot touch '{}': Read-only file system\n",
            world.path("o/out").display()
        )
    );
    assert!(!world.path("o/out").exists());
    assert!(world.path("w/in").exists());
}

#[test]
fn with_no_layer_at_all_nothing_runs() {
    let world = world();
    if !world.gives_namespaces() {
        return;
    }
    let none = format!(
        "$R {} {},{}",
        libc::ENOSYS,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_unshare
    );
    assert_eq!(
        world.json(&format!("{none} {RUN} -c 'touch ran'")),
        json!({"error": {
            "code": "SANDBOX_UNAVAILABLE",
            "message": "this host gives neither namespaces (unshare user namespace: ENOSYS) nor Landlock",
            "step": "unshare user namespace",
            "errno": "ENOSYS",
            "remedy": "run `cofferdam doctor` for remedies",
        }})
    );
    let refused = world.host(&format!(
        "{none} $C run --mode workspace-write -c 'touch ran'"
    ));
    assert_eq!(refused.status.code(), Some(125));
    assert!(!world.path("w/ran").exists());
}

#[test]
fn a_step_that_nothing_stands_in_for_is_named() {
    let world = world();
    if !world.gives_namespaces() {
        return;
    }
    for (call, step) in [
        (libc::SYS_seccomp, "install a seccomp filter"),
        (libc::SYS_capset, "drop capabilities"),
        (libc::SYS_close_range, "close_range"),
    ] {
        let result = world.json(&format!("$R 1 {call} {RUN} -c 'touch ran'"));
        assert_eq!(
            result["error"],
            json!({
                "code": "SANDBOX_UNAVAILABLE",
                "message": format!("{step}: Operation not permitted"),
                "step": step,
                "errno": "EPERM",
                "remedy": "run `cofferdam doctor` for remedies",
            })
        );
        assert!(!world.path("w/ran").exists());
    }
}

#[test]
fn with_a_covered_proc_commands_see_none_and_still_meet_on_loopback() {
    let world = world();
    if !world.gives_namespaces() {
        return;
    }
    let meet = "$s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\") or die; \
                IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", PeerPort => $s->sockport) or die; print \"met\"";
    let result = world.json(&format!(
        "export P='{meet}'; exec unshare -Urmpf sh -c 'mount --make-rprivate / && \
         mount -t tmpfs t /proc/sys/fs && exec \"$@\"' sh \
         {RUN} -c 'ls -A /proc; perl -MIO::Socket::INET -e \"$P\"'"
    ));
    assert_eq!(
        enforcement(&result),
        (
            json!("partial"),
            json!([
                "/proc is empty, for the host refuses a new one",
                "UNIX sockets can't be used at all, for a path can't be judged without /proc",
            ])
        )
    );
    assert_eq!(text(&result, "stderr"), "");
    assert_eq!(text(&result, "stdout"), "met");
}

#[test]
fn loopback_that_stays_down_is_a_note_and_the_command_runs() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let result = world.json(&format!(
        "$R 1 {}:1:=:0x{:x} {RUN} -c 'touch $O/out; echo ran'",
        libc::SYS_ioctl,
        libc::SIOCSIFFLAGS
    ));
    assert_eq!(
        enforcement(&result),
        (
            json!("full"),
            json!(["loopback, which could not be brought up (EPERM)"])
        )
    );
    assert_eq!(text(&result, "stdout"), "ran\n");
    assert!(!world.path("o/out").exists());
}

#[test]
fn nested_in_itself_only_the_stricter_of_both_holds() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    for (outer, inner, written) in [
        ("workspace-write", "workspace-write", true),
        ("workspace-write", "read-only", false),
        ("read-only", "workspace-write", false),
        ("read-only", "danger-full-access", false),
    ] {
        let output = world.host(&format!(
            "$C run --quiet --mode {outer} --env C --env O -c \
             '$C run --mode {inner} -c \"echo ran; touch in $O/out\"'"
        ));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "ran\n",
            "{outer} {inner}"
        );
        assert!(!world.path("o/out").exists(), "{outer} {inner}");
        assert_eq!(world.path("w/in").exists(), written, "{outer} {inner}");
        fs::remove_file(world.path("w/in")).ok();
    }
}

#[test]
fn inside_bubblewrap_what_both_allow_is_written_and_nothing_else() {
    let world = world();
    if !world.gives_namespaces() || !world.gives("bwrap --ro-bind / / true", "no bwrap") {
        return;
    }
    let bwrap = "bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc";
    let inside = format!("{RUN} -c 'touch in $O/out; echo ran'");
    let open = world.json(&format!("{bwrap} --bind $W $W --bind $O $O {inside}"));
    assert_eq!(text(&open, "stdout"), "ran\n");
    assert!(!world.path("o/out").exists());
    assert!(world.path("w/in").exists());
    fs::remove_file(world.path("w/in")).unwrap();
    let shut = world.json(&format!("{bwrap} {inside}"));
    assert_eq!(text(&shut, "stdout"), "ran\n");
    assert!(!world.path("w/in").exists());
}

#[test]
fn root_in_a_container_is_held_by_landlock_alone_with_and_without_power_over_its_own_bounds() {
    let Some(world) = world_of_root() else { return };
    if !world.gives_landlock() {
        return;
    }
    for drop in [
        "",
        "setpriv --bounding-set=-setpcap,-sys_admin --inh-caps=-all",
    ] {
        let result = world.json(&format!(
            "{drop} {} {RUN} -c 'touch in $O/out; grep CapEff /proc/self/status'",
            as_in_docker()
        ));
        assert_eq!(
            enforcement(&result),
            (json!("partial"), json!([MODES, SEEN, IPC, HIDDEN])),
            "{drop}"
        );
        assert_eq!(text(&result, "stdout"), "CapEff:\t0000000000000000\n");
        assert!(!world.path("o/out").exists());
        fs::remove_file(world.path("w/in")).unwrap();
    }
}

#[test]
fn doctor_is_content_where_every_mode_is_full_and_names_the_setting_where_not() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let modes = |report: &Value| {
        ["read-only", "workspace-write", "danger-full-access"]
            .map(|mode| report["modes"][mode]["enforcement"].clone())
    };
    let content = world.json("$C doctor --json");
    assert_eq!(modes(&content), [json!("full"), json!("full"), json!(null)]);
    assert_eq!(content["gaps"], json!([]));
    assert_eq!(world.host("$C doctor").status.code(), Some(0));

    let weaker = world.json(&without_user_namespaces("$C doctor --json"));
    assert_eq!(
        modes(&weaker),
        [json!("partial"), json!("partial"), json!(null)]
    );
    assert_eq!(
        weaker["gaps"],
        json!([{
            "what": "commands run under Landlock alone, and enforcement is partial",
            "why": "unshare user namespace: ENOSPC; user.max_user_namespaces is 0",
            "remedy": "sudo sysctl -w user.max_user_namespaces=15000\n\
                       echo 'user.max_user_namespaces=15000' | sudo tee /etc/sysctl.d/60-cofferdam.conf",
        }])
    );
    let status = world.host(&without_user_namespaces("$C doctor")).status;
    assert_eq!(status.code(), Some(1));
}

#[test]
fn doctor_waits_for_no_probe_that_hangs() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let start = Instant::now();
    let report = world.json(&format!("$R hang {} $C doctor --json", libc::SYS_mount));
    assert!(start.elapsed() < Duration::from_secs(8));
    let step = "no answer within 900 ms";
    assert_eq!(report["host"]["proc"]["given"], false);
    assert_eq!(report["host"]["proc"]["step"], step);
    assert_eq!(report["host"]["namespaces"]["user"]["given"], true);
    let mode = &report["modes"]["workspace-write"];
    assert_eq!(mode["enforcement"], "refused");
    assert_eq!(mode["error"]["message"], step);
}

#[test]
fn what_doctor_says_is_refused_removed_and_hidden_is() {
    let world = world();
    if !world.gives_namespaces() || !world.gives_landlock() {
        return;
    }
    let report = world.json("$C doctor --json");
    let policy = &report["policy"]["workspace-write"];

    let mut calls = Vec::new();
    for refused in policy["refusedCalls"].as_array().unwrap() {
        let name = refused["call"].as_str().unwrap();
        // What is refused for its arguments has tests of its own.
        if let (Some(number), true) = (
            cofferdam::policy::calls::number(name),
            refused["when"].is_null(),
        ) {
            calls.push((name, number, refused["errno"].as_str().unwrap()));
        }
    }
    assert!(calls.len() > 30, "{calls:?}");
    let (mut script, mut expected) = (String::new(), String::new());
    for (name, number, errno) in &calls {
        let errno = if *errno == "ENOSYS" {
            libc::ENOSYS
        } else {
            libc::EPERM
        };
        writeln!(expected, "{name} {errno}").unwrap();
        write!(
            script,
            "syscall({number}, -1, 0, 0, 0, 0); print \"{name} \", 0 + $!, \"\\n\"; "
        )
        .unwrap();
    }
    let result = world.json(&format!("export P='{script}'; {RUN} -c 'perl -e \"$P\"'"));
    assert_eq!(text(&result, "stdout"), expected);

    let removed = &policy["variables"]["removed"];
    let names: Vec<&str> = removed
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .filter(|name| *name != "XDG_RUNTIME_DIR") // It is set anew.
        .collect();
    let exports: String = names.iter().fold(String::new(), |mut all, name| {
        write!(all, "export {name}=/x; ").unwrap();
        all
    });
    let listed = names.join("|");
    let result = world.json(&format!(
        "{exports} export MY_KEY=1 A_SECRET=1 TOKENS=1 DSH_HOME=/x PLAIN=1; \
         {RUN} -c 'env | grep -E \"^({listed}|MY_KEY|A_SECRET|TOKENS|DSH_.*|PLAIN)=\" | grep -v DSH_SHELL=1'"
    ));
    assert_eq!(
        text(&result, "stdout")
            .lines()
            .filter(|line| *line != "DSH_HOME=/x")
            .collect::<Vec<_>>(),
        ["PLAIN=1"]
    );

    let ssh = world.path("home/.ssh");
    let hidden = policy["hidden"].as_array().unwrap();
    assert!(hidden.contains(&json!(ssh)), "{hidden:?}");
    for path in hidden {
        let path = path.as_str().unwrap();
        let result = world.json(&format!(
            "{RUN} -c 'test -d {path} && ls -A {path} || cat {path}'"
        ));
        assert_eq!(text(&result, "stdout"), "", "{path}");
    }
    let open = world.host("cat ~/.ssh/id");
    assert_eq!(open.stdout, b"secret");
}
