//! What a launch costs: medians of interleaved rounds, and their ratio to a plain spawn of the same
//! command in the same run. `cargo bench --bench launch [-- ROUNDS]`.
//!
//! "warm" goes through a session's cell that has run commands before; "whole" is `cofferdam run` as a
//! process of its own. `bwrap` is measured beside them where it is installed, with the same view.

#![allow(clippy::print_stdout)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam::executor::{Confined, Confinement, Executor, Ran, Settings, Watch};
use cofferdam::mode::Mode;
use cofferdam::request::{self, ExecRequest};

const BINARY: &str = env!("CARGO_BIN_EXE_cofferdam");

/// How, what, and doing it once.
type Row<'a> = (&'a str, &'a str, Box<dyn FnMut() + 'a>);

fn main() {
    // `cargo test --benches` passes --test: one round shows that it works.
    let test = std::env::args().any(|word| word == "--test");
    let rounds = std::env::args()
        .skip(1)
        .find_map(|word| word.parse().ok())
        .unwrap_or(if test { 1 } else { 200 });
    let workspace = tempfile::tempdir().expect("a workspace");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let executor = runtime.block_on(async {
        Confined::new(
            Settings {
                workspace: Some(workspace.path().to_owned()),
                ..Settings::default()
            },
            Confinement {
                mode: Mode::WorkspaceWrite,
                binary: Some(BINARY.into()),
                ..Confinement::default()
            },
        )
    });
    let warm = |request: ExecRequest| {
        runtime.block_on(async {
            let spec = executor.resolve(request).expect("resolved");
            match executor.run(spec, Watch::default()).await.expect("ran") {
                Ran::Finished(finished) => assert!(finished.ended.success(), "{finished:?}"),
                Ran::Yielded(id) => panic!("yielded as {id:?}"),
            }
        });
    };
    let shell = || ExecRequest::shell("true");
    let program = || {
        ExecRequest::new(request::Command::Program {
            program: "/bin/true".into(),
            args: Vec::new(),
        })
    };
    warm(shell());

    let mut rows: Vec<Row<'_>> = vec![
        ("plain", "true", Box::new(|| plain(&["/bin/true"]))),
        ("warm", "true", Box::new(|| warm(program()))),
        (
            "plain",
            "bash -c true",
            Box::new(|| plain(&["bash", "-c", "true"])),
        ),
        ("warm", "bash -c true", Box::new(|| warm(shell()))),
        (
            "whole",
            "true",
            Box::new(|| whole(workspace.path(), &["--", "/bin/true"])),
        ),
        (
            "whole",
            "bash -c true",
            Box::new(|| whole(workspace.path(), &["-c", "true"])),
        ),
    ];
    if Command::new("bwrap").arg("--version").output().is_ok() {
        rows.push((
            "bwrap",
            "true",
            Box::new(|| bwrap(workspace.path(), &["/bin/true"])),
        ));
        rows.push((
            "bwrap",
            "bash -c true",
            Box::new(|| bwrap(workspace.path(), &["bash", "-c", "true"])),
        ));
    }
    // `-- warm` measures these alone, for a profiler.
    if std::env::args().any(|word| word == "warm") {
        rows.retain(|row| row.0 == "warm");
    }
    let mut times: Vec<Vec<Duration>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds + rounds.min(5) {
        for (row, times) in rows.iter_mut().zip(&mut times) {
            let start = Instant::now();
            (row.2)();
            if round >= rounds.min(5) {
                times.push(start.elapsed());
            }
        }
    }
    report(&rows, times);
    drop(rows);
    runtime.block_on(executor.shutdown());
}

fn report(rows: &[Row<'_>], times: Vec<Vec<Duration>>) {
    let medians: Vec<f64> = times
        .into_iter()
        .map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e3
        })
        .collect();
    println!("{:<8} {:<14} {:>9}  ÷ plain", "how", "command", "median ms");
    for ((how, command, _), median) in rows.iter().zip(&medians) {
        let plain = rows
            .iter()
            .zip(&medians)
            .find(|((how, other, _), _)| *how == "plain" && other == command)
            .map_or(f64::NAN, |(_, plain)| *plain);
        println!(
            "{how:<8} {command:<14} {median:>9.3}  {:>6.2}",
            median / plain
        );
    }
}

fn plain(words: &[&str]) {
    let done = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .expect("spawned");
    assert!(done.status.success());
}

fn whole(workspace: &Path, words: &[&str]) {
    let done = Command::new(BINARY)
        .args(["run", "--mode", "workspace-write", "--workspace"])
        .arg(workspace)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("spawned");
    assert!(done.status.success(), "{done:?}");
}

/// The same view as far as bwrap can: read-only host, writable workspace, private scratch, own network.
fn bwrap(workspace: &Path, words: &[&str]) {
    let done = Command::new("bwrap")
        .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"])
        .args([
            "--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/dev/shm", "--bind",
        ])
        .args([workspace, workspace])
        .args(["--unshare-all", "--new-session", "--die-with-parent"])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("spawned");
    assert!(done.status.success(), "{done:?}");
}
