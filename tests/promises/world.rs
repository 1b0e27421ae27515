//! The world of one test: an account, a home, a workspace, a folder outside of it, and the program.
//!
//! Rule: each test runs in a process of its own, as the account that it is about, with an environment that
//! is written down here. When it has ended, no process of it may be left.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getegid, geteuid};
use serde_json::Value;
use tempfile::TempDir;

/// In a process that runs one test: the folder of its world.
const BASE: &str = "COFFERDAM_PROMISES_BASE";
/// In a process that runs one test: the program.
const PROGRAM: &str = "COFFERDAM_PROMISES_PROGRAM";
/// The names of tests that may be skipped, with commas between them.
const EXPECTED_SKIPS: &str = "COFFERDAM_EXPECTED_SKIPS";
/// No test takes longer than this.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs `body` as an ordinary user.
#[track_caller]
pub fn ordinary<F: Fn(&World)>(body: F) {
    run(
        body,
        if geteuid().is_root() {
            vec![Who::MadeUp]
        } else {
            vec![Who::Caller]
        },
    );
}

/// Runs `body` as an ordinary user, and as root where that is possible.
#[track_caller]
pub fn anyone<F: Fn(&World)>(body: F) {
    run(
        body,
        if geteuid().is_root() {
            vec![Who::MadeUp, Who::Caller]
        } else {
            vec![Who::Caller]
        },
    );
}

/// Runs `body` as root; elsewhere it is a skip.
#[track_caller]
pub fn root<F: Fn(&World)>(body: F) {
    if geteuid().is_root() || inside().is_some() {
        run(body, vec![Who::Caller]);
    } else {
        skipped(&name_of::<F>(), "needs root");
    }
}

enum Who {
    /// An account with a number that nobody has.
    MadeUp,
    /// Whoever started the tests.
    Caller,
}

#[track_caller]
fn run<F: Fn(&World)>(body: F, accounts: Vec<Who>) {
    match inside() {
        Some(world) => body(&world),
        None => {
            for who in accounts {
                run_again(&name_of::<F>(), &who);
            }
        }
    }
}

/// The name of the test whose closure `F` is, as libtest knows it.
fn name_of<F>() -> String {
    let name = std::any::type_name::<F>();
    let (_, name) = name.split_once("::").unwrap();
    name.trim_end_matches("::{{closure}}").to_owned()
}

fn inside() -> Option<World> {
    let base = PathBuf::from(std::env::var_os(BASE)?);
    Some(World {
        program: std::env::var_os(PROGRAM).unwrap().into(),
        base,
    })
}

/// Runs one test of this executable in a process and a world of its own.
#[track_caller]
fn run_again(name: &str, who: &Who) {
    let programs = Programs::shared();
    let folder = tempfile::Builder::new()
        .prefix("cofferdam-promise-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let base = folder.path().canonicalize().unwrap();
    let (uid, gid) = match who {
        Who::MadeUp => made_up_account(),
        Who::Caller => (geteuid().as_raw(), getegid().as_raw()),
    };
    for part in ["", "home", "workspace", "outside", "log"] {
        let path = base.join(part);
        fs::create_dir_all(&path).unwrap();
        chown(&path, Some(uid), Some(gid)).unwrap();
    }

    let log = fs::File::create(base.join("log/output")).unwrap();
    let mut command = Command::new(&programs.tests);
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
        .env("HOME", base.join("home"))
        .env("USER", "somebody")
        .env("LANG", "C.UTF-8")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_AUTHOR_NAME", "Somebody")
        .env("GIT_AUTHOR_EMAIL", "somebody@example.org")
        .env("GIT_COMMITTER_NAME", "Somebody")
        .env("GIT_COMMITTER_EMAIL", "somebody@example.org")
        .env("RUST_BACKTRACE", "0")
        .env(BASE, &base)
        .env(PROGRAM, &programs.program)
        .current_dir(base.join("workspace"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .process_group(0);
    if let Who::MadeUp = who {
        command.uid(uid).gid(gid);
    }
    let mut child = command.spawn().unwrap();
    let status = wait(&mut child, LIMIT);
    let left = match who {
        Who::MadeUp => left_over(&|pid| owner(pid) == Some(uid)),
        Who::Caller => {
            let mark = format!("{BASE}={}", base.display());
            left_over(&|pid| has_variable(pid, &mark))
        }
    };
    for pid in &left {
        kill(*pid, Signal::SIGKILL).ok();
    }
    let told = String::from_utf8_lossy(&fs::read(base.join("log/output")).unwrap()).into_owned();
    if let Ok(reason) = fs::read_to_string(base.join("log/skipped")) {
        skipped(name, &reason);
    } else {
        let passed = status.is_some_and(|status| status.success()) && told.contains("1 passed");
        assert!(passed, "as user {uid}: {status:?}\n{told}");
    }
    assert_eq!(left, [], "processes of {name} are left\n{told}");
    // What a command may have made unreadable goes too.
    Command::new("chmod")
        .args(["-R", "u+rwX"])
        .arg(&base)
        .output()
        .unwrap();
}

/// A test that can't be run here. It fails when this run was told which skips to expect and this isn't one.
fn skipped(name: &str, reason: &str) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("skipped: {name}: {reason} ({count} so far)\n");
    // Not by a macro: libtest would keep it back.
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    if let Ok(expected) = std::env::var(EXPECTED_SKIPS) {
        assert!(
            expected.split(',').any(|known| known.trim() == name),
            "{name} was skipped ({reason}), and {EXPECTED_SKIPS} doesn't name it"
        );
    }
}

/// The program and this executable where every user may run them and no workspace holds them. They go with
/// the last test that uses them.
struct Programs {
    program: PathBuf,
    tests: PathBuf,
    _folder: TempDir,
}

impl Programs {
    fn shared() -> Arc<Programs> {
        static SHARED: Mutex<Weak<Programs>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(programs) = shared.upgrade() {
            return programs;
        }
        let folder = tempfile::Builder::new()
            .prefix("cofferdam-promises-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in("/var/tmp")
            .unwrap();
        let place = |from: &Path, name: &str| {
            let to = folder.path().canonicalize().unwrap().join(name);
            // A link where it can be had, since a debug build is large; a copy has modes of its own.
            let fit = fs::metadata(from).unwrap().mode() & 0o022 == 0;
            if !(fit && fs::hard_link(from, &to).is_ok()) {
                fs::copy(from, &to).unwrap();
                fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
            }
            to
        };
        let programs = Arc::new(Programs {
            program: place(Path::new(env!("CARGO_BIN_EXE_cofferdam")), "cofferdam"),
            tests: place(&std::env::current_exe().unwrap(), "promises"),
            _folder: folder,
        });
        *shared = Arc::downgrade(&programs);
        programs
    }
}

/// A user and a group that nobody has and no process uses: one for each test, so that no test meets another.
fn made_up_account() -> (u32, u32) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let at = NEXT
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(std::process::id() * 31);
        let uid = 64_001 + at % 900;
        if processes().into_iter().all(|pid| owner(pid) != Some(uid)) {
            return (uid, uid);
        }
    }
}

/// All processes that show in `/proc`.
pub fn processes() -> Vec<Pid> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .collect()
}

fn owner(pid: Pid) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    if status.contains("\nState:\tZ") {
        return None;
    }
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether a process was started with this in its environment.
pub fn has_variable(pid: Pid, variable: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable.as_bytes())
    })
}

/// The processes that are still there after a second.
fn left_over(is_ours: &dyn Fn(Pid) -> bool) -> Vec<Pid> {
    let end = Instant::now() + Duration::from_secs(1);
    loop {
        let left: Vec<Pid> = processes()
            .into_iter()
            .filter(|pid| is_ours(*pid))
            .collect();
        if left.is_empty() || Instant::now() > end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for a child; `None`, and the child killed, when it takes longer.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `condition` holds, for ten seconds at most.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a test has.
pub struct World {
    base: PathBuf,
    program: PathBuf,
}

impl World {
    /// The workspace; also the current folder.
    pub fn workspace(&self) -> PathBuf {
        self.base.join("workspace")
    }

    /// A folder of the same user outside of every writable root.
    pub fn outside(&self) -> PathBuf {
        self.base.join("outside")
    }

    /// The home folder.
    pub fn home(&self) -> PathBuf {
        self.base.join("home")
    }

    /// The folder that holds all of these.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Skips this test.
    pub fn skip(&self, reason: &str) -> ! {
        fs::write(self.base.join("log/skipped"), reason).unwrap();
        std::panic::resume_unwind(Box::new("skipped"))
    }

    /// Skips this test where a program is missing.
    pub fn needs(&self, program: &str) {
        let path = std::env::var_os("PATH").unwrap();
        if !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
            self.skip(&format!("{program} is missing"));
        }
    }

    /// `cofferdam run --json` in this mode, about the workspace.
    pub fn call(&self, mode: &str) -> Call<'_> {
        Call {
            world: self,
            args: vec!["run".into(), "--json".into(), "--mode".into(), mode.into()],
            env: Vec::new(),
            at: self.workspace(),
            stdin: Vec::new(),
        }
    }

    /// A shell command under read-only.
    pub fn read_only(&self, text: impl AsRef<OsStr>) -> Done {
        self.call("read-only").sh(text)
    }

    /// A shell command under workspace-write.
    pub fn write(&self, text: impl AsRef<OsStr>) -> Done {
        self.call("workspace-write").sh(text)
    }

    /// A shell command under danger-full-access.
    pub fn full(&self, text: impl AsRef<OsStr>) -> Done {
        self.call("danger-full-access").sh(text)
    }

    /// A shell command on the host, which must succeed; what it printed.
    pub fn host(&self, text: &str) -> String {
        let output = Command::new("bash").args(["-c", text]).output().unwrap();
        assert!(output.status.success(), "{text}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A process on the host, which ends with the returned value.
    pub fn companion(&self, program: &str, args: &[&str]) -> Companion {
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Companion(child.unwrap())
    }

    /// Runs async code of the library to its end.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(future)
    }
}

/// A process beside a test.
pub struct Companion(pub Child);

impl Companion {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A call of the program that is being put together.
pub struct Call<'a> {
    world: &'a World,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    at: PathBuf,
    stdin: Vec<u8>,
}

impl Call<'_> {
    /// Further arguments of `cofferdam run`.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Without `--json`: the command's own streams.
    pub fn plain(mut self) -> Self {
        self.args.retain(|arg| arg != "--json");
        self
    }

    /// A variable of the program's own environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// The program's current folder.
    pub fn at(mut self, folder: impl AsRef<Path>) -> Self {
        self.at = folder.as_ref().to_owned();
        self
    }

    /// The program's standard input.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Runs `bash -c text`.
    pub fn sh(self, text: impl AsRef<OsStr>) -> Done {
        self.args([OsStr::new("-c"), text.as_ref()]).done()
    }

    /// Runs a program.
    pub fn exec<S: AsRef<OsStr>>(self, words: impl IntoIterator<Item = S>) -> Done {
        self.args(["--"]).args(words).done()
    }

    /// Runs Perl code with arguments: the one language that a bare Debian has for every system call.
    pub fn perl(self, code: &str, args: &[&str]) -> Done {
        self.exec(
            ["perl", "-MSocket", "-MPOSIX", "-e", code]
                .into_iter()
                .chain(args.iter().copied()),
        )
    }

    /// The process, for a test that doesn't wait for it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.world.program);
        command
            .args(&self.args)
            .envs(self.env.iter().cloned())
            .current_dir(&self.at);
        command
    }

    /// Starts it and leaves it running.
    pub fn start(self, text: &str) -> Companion {
        let call = self.args(["-c", text]);
        let child = call
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Companion(child.unwrap())
    }

    /// Runs it to its end.
    pub fn done(self) -> Done {
        let mut command = self.command();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = self.stdin.clone();
        // A program that doesn't read it is none of this thread's business.
        let writing = std::thread::spawn(move || stdin.write_all(&bytes).ok());
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        Done::new(output)
    }
}

/// What the program answered.
#[derive(Debug)]
pub struct Done {
    /// The program's exit status, -N when signal N ended it.
    pub status: i32,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Its standard output as JSON, if it is.
    pub json: Value,
}

impl Done {
    /// What a process left behind.
    pub fn new(output: Output) -> Done {
        Done {
            status: output
                .status
                .code()
                .unwrap_or_else(|| -output.status.signal().unwrap()),
            json: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stdout: output.stdout,
            stderr: output.stderr,
        }
    }

    /// The command's standard output, without the last line break.
    pub fn out(&self) -> &str {
        self.stream("stdout")
    }

    /// The command's standard error, without the last line break.
    pub fn err(&self) -> &str {
        self.stream("stderr")
    }

    fn stream(&self, name: &str) -> &str {
        match self.json[name]["text"].as_str() {
            Some(text) => text.strip_suffix('\n').unwrap_or(text),
            None => panic!("no {name}: {self}"),
        }
    }

    /// The command exited with 0; its standard output.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert_eq!(self.status, 0, "{self}");
        self.out()
    }

    /// The command failed by itself; its standard error.
    #[track_caller]
    pub fn failed(&self) -> &str {
        assert!(![0, 124, 125].contains(&self.status), "{self}");
        self.err()
    }

    /// Nothing ran: the error object.
    #[track_caller]
    pub fn refused(&self) -> &Value {
        assert_eq!(self.status, 125, "{self}");
        assert!(self.json["error"].is_object(), "{self}");
        &self.json["error"]
    }

    /// Class, operation, path or address, errno and cure of each fact.
    pub fn facts(&self) -> Vec<[String; 5]> {
        let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let facts = self.json["sandbox"]["denials"]
            .as_array()
            .unwrap_or_else(|| panic!("{self}"));
        facts
            .iter()
            .map(|fact| {
                let about = if fact["path"].is_null() {
                    &fact["address"]
                } else {
                    &fact["path"]
                };
                [
                    &fact["class"],
                    &fact["operation"],
                    about,
                    &fact["errno"],
                    &fact["allowedUnder"],
                ]
                .map(text)
            })
            .collect()
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy;
        write!(
            f,
            "exit {}\n{}\n{}",
            self.status,
            text(&self.stdout),
            text(&self.stderr)
        )
    }
}
