//! A disk that is mounted while a session lives shows in the session's next command.
//!
//! In a binary of its own: the test takes a mount namespace for the whole process. It needs root.

use std::fs;

use cofferdam::executor::{Confined, Confinement, Executor, Ran, Settings, Watch};
use cofferdam::mode::Mode;
use cofferdam::request::ExecRequest;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

#[test]
fn a_disk_mounted_later_shows_and_is_writable_in_the_workspace_alone() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: a_disk_mounted_later_shows: mounting needs root");
        return;
    }
    // The test's thread is the one that starts the cell, and a namespace belongs to a thread.
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    let shared = MsFlags::MS_SHARED | MsFlags::MS_REC;
    mount(none, "/", none, shared, none).unwrap();

    let workspace = tempfile::tempdir_in("/var/tmp").unwrap();
    let outside = tempfile::tempdir_in("/var/tmp").unwrap();
    for folder in [workspace.path().join("disk"), outside.path().join("disk")] {
        fs::create_dir(folder).unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let executor = Confined::new(
            Settings {
                workspace: Some(workspace.path().to_owned()),
                ..Settings::default()
            },
            Confinement {
                mode: Mode::WorkspaceWrite,
                binary: Some(env!("CARGO_BIN_EXE_cofferdam").into()),
                ..Confinement::default()
            },
        );
        let text = format!(
            "cat disk/name; echo new > disk/made; cat {0}/disk/name; echo new > {0}/disk/made; echo kept >> /tmp/seen; cat /tmp/seen",
            outside.path().display()
        );
        let run = async || {
            let spec = executor.resolve(ExecRequest::shell(text.as_str())).unwrap();
            match executor.run(spec, Watch::default()).await.unwrap() {
                Ran::Finished(finished) => finished.stdout.text,
                Ran::Yielded(id) => panic!("yielded as {id:?}"),
            }
        };
        assert_eq!(run().await, "kept\n");
        for (at, name) in [(workspace.path(), "inside\n"), (outside.path(), "outside\n")] {
            let disk = at.join("disk");
            mount(Some("disk"), &disk, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            fs::write(disk.join("name"), name).unwrap();
        }
        // The session's scratch is still the same.
        assert_eq!(run().await, "inside\noutside\nkept\nkept\n");
        assert!(workspace.path().join("disk/made").exists());
        assert!(!outside.path().join("disk/made").exists());
        executor.shutdown().await;
        for at in [workspace.path(), outside.path()] {
            nix::mount::umount(&at.join("disk")).unwrap();
        }
    });
}
