//! Workspaces: which folders can be one, whatever they are called and wherever they lie.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::world::{World, anyone, ordinary, root};

/// A command that works in this workspace writes there, and nowhere else.
fn works_in(world: &World, workspace: &Path) {
    let call = || {
        world
            .call("workspace-write")
            .args([OsStr::new("--workspace"), workspace.as_os_str()])
            .at(workspace)
    };
    call().sh("echo inside > f && cat f && pwd >/dev/null").ok();
    assert_eq!(fs::read_to_string(workspace.join("f")).unwrap(), "inside\n");
    let outside = world.outside().join("f");
    assert!(
        call()
            .sh(format!("echo x > {}", outside.display()))
            .failed()
            .ends_with("Read-only file system")
    );
    let narrow = world
        .call("read-only")
        .args([OsStr::new("--workspace"), workspace.as_os_str()])
        .at(workspace);
    narrow.sh("cat f && ! echo x > f").ok();
    fs::remove_file(workspace.join("f")).unwrap();
}

#[test]
fn any_bytes_may_stand_in_the_name_of_a_workspace() {
    anyone(|world| {
        for name in [
            &b"with some spaces"[..],
            b"with\nnewline",
            b"with\ttab\\and\\backslash",
            b"with'quotes\"and$dollar`tick",
            b"not-\xff\xfe-utf-8",
            "Ümläut-\u{1F980}".as_bytes(),
            b"-dash",
            b"*",
        ] {
            let workspace = world.workspace().join(OsStr::from_bytes(name));
            fs::create_dir(&workspace).unwrap();
            works_in(world, &workspace);
        }
    });
}

#[test]
fn a_workspace_below_tmp_is_shown_in_the_private_tmp() {
    anyone(|world| {
        for base in ["/tmp", "/dev/shm"] {
            let folder = tempfile::tempdir_in(base).unwrap();
            let workspace = folder.path().join("deep/er");
            fs::create_dir_all(&workspace).unwrap();
            fs::write(folder.path().join("sibling"), "").unwrap();
            works_in(world, &workspace);
            let call = world
                .call("workspace-write")
                .args([OsStr::new("--workspace"), workspace.as_os_str()])
                .at(&workspace);
            // Nothing else of the host's folder shows, and what is written beside it is private.
            let text = format!("ls -A {base}; ls ../..; touch ../../beside");
            let name = folder.path().file_name().unwrap().to_str().unwrap();
            assert_eq!(call.sh(text).ok(), format!("{name}\ndeep"));
            assert!(!folder.path().join("beside").exists());
        }
    });
}

#[test]
fn a_workspace_reached_through_a_symlink_works_under_both_names() {
    ordinary(|world| {
        let real = world.outside().join("real/project");
        fs::create_dir_all(&real).unwrap();
        symlink(world.outside().join("real"), world.outside().join("link")).unwrap();
        let through = world.outside().join("link/project");
        works_in(world, &through);
        let call = |workspace: &Path| {
            world
                .call("workspace-write")
                .args([OsStr::new("--workspace"), workspace.as_os_str()])
                .at(workspace)
        };
        call(&through)
            .sh(format!(
                "echo 1 > {}/a && echo 2 > {}/b",
                through.display(),
                real.display()
            ))
            .ok();
        assert!(real.join("a").exists() && real.join("b").exists());
        call(&through).sh("echo x > ../c").failed();
    });
}

#[test]
fn a_workspace_on_another_file_system_works_and_a_mount_below_it_too() {
    root(|world| {
        let workspace = world.workspace();
        world.host(&format!(
            "mount -t tmpfs tmpfs {0} && mkdir {0}/below && mount -t tmpfs tmpfs {0}/below",
            workspace.display()
        ));
        works_in(world, &workspace);
        world
            .call("workspace-write")
            .at(&workspace)
            .sh("echo x > below/f")
            .ok();
        assert!(workspace.join("below/f").exists());
        world.host(&format!("umount {0}/below {0}", workspace.display()));
    });
}

#[test]
fn a_disk_mounted_later_is_not_writable_inside() {
    root(|world| {
        let call = world.call("workspace-write");
        let place = world.outside().join("disk");
        fs::create_dir(&place).unwrap();
        let text = format!(
            "touch ready; while ! test -e go; do sleep 0.05; done; echo x > {}/f",
            place.display()
        );
        let running = call.start(&text);
        crate::world::eventually("it is ready", || world.workspace().join("ready").exists());
        world.host(&format!("mount -t tmpfs tmpfs {}", place.display()));
        fs::write(world.workspace().join("go"), "").unwrap();
        let mut running = running;
        let status = running.0.wait().unwrap();
        let there = place.join("f").exists();
        world.host(&format!("umount {}", place.display()));
        assert_eq!((status.code(), there), (Some(1), false));
    });
}

#[test]
fn the_whole_machine_and_system_folders_are_refused_as_workspaces() {
    anyone(|world| {
        for folder in [
            "/", "/usr", "/usr/lib", "/etc", "/home", "/var", "/proc", "/dev", "/tmp", "/bin",
            "/boot", "/sys", "/opt",
        ] {
            if !Path::new(folder).is_dir() {
                continue;
            }
            for mode in ["read-only", "workspace-write"] {
                let done = world
                    .call(mode)
                    .args(["--workspace", folder])
                    .sh("echo ran");
                let error = done.refused();
                assert_eq!(error["code"], "INVALID_ARGS", "{folder}: {error}");
                assert!(
                    error["message"].as_str().unwrap().contains("is refused: "),
                    "{error}"
                );
                assert_ne!(error["remedy"], "");
            }
            // It isn't hidden: it can be looked at.
            world.read_only(format!("cd {folder}")).ok();
        }
    });
}

#[test]
fn a_workspace_that_is_not_there_or_no_folder_is_refused() {
    ordinary(|world| {
        fs::write(world.workspace().join("file"), "").unwrap();
        for name in ["missing", "file"] {
            let done = world
                .call("workspace-write")
                .args([
                    OsString::from("--workspace"),
                    world.workspace().join(name).into(),
                ])
                .sh("echo ran");
            assert_eq!(done.refused()["code"], "INVALID_ARGS");
        }
        world
            .call("workspace-write")
            .args(["--workspace", "."])
            .sh("echo ran")
            .ok();
    });
}

#[test]
fn home_as_workspace_works_and_keeps_start_up_files_keys_and_autostart() {
    ordinary(|world| {
        for folder in [
            ".ssh",
            ".config/autostart",
            ".config/systemd/user",
            "bin",
            ".local/bin",
            "project",
        ] {
            fs::create_dir_all(world.home().join(folder)).unwrap();
        }
        for file in [".bashrc", ".profile", ".gitconfig"] {
            fs::write(world.home().join(file), "").unwrap();
        }
        let run = |text: &str| {
            world
                .call("workspace-write")
                .args([OsStr::new("--workspace"), world.home().as_os_str()])
                .at(world.home())
                .sh(text)
        };
        for path in [
            ".bashrc",
            ".profile",
            ".gitconfig",
            ".config/autostart/x.desktop",
            ".config/systemd/user/x.service",
            "bin/ls",
            ".local/bin/ls",
        ] {
            let done = run(&format!("echo x >> ~/{path}"));
            assert!(
                done.failed().ends_with("Read-only file system"),
                "{path}: {done}"
            );
        }
        run("echo x > ~/.ssh/authorized_keys").failed();
        run("mv ~/.config ~/.config2").failed();
        run("rm -rf ~/.ssh").failed();
        run("echo x > ~/project/f && echo y > ~/f && mkdir -p ~/.cache/x && echo z > ~/.config/other").ok();
        assert!(world.home().join("project/f").exists() && world.home().join(".ssh").exists());
    });
}

#[test]
fn a_working_directory_elsewhere_makes_nothing_writable() {
    ordinary(|world| {
        let run = |workdir: &Path, text: &str| {
            world
                .call("workspace-write")
                .args([OsStr::new("--workdir"), workdir.as_os_str()])
                .sh(text)
        };
        for folder in [world.outside(), world.home(), "/usr".into(), "/".into()] {
            let done = run(&folder, "pwd; echo x > f");
            assert_eq!(done.out(), folder.to_str().unwrap());
            assert!(!done.failed().is_empty());
            assert!(!folder.join("f").exists());
        }
        fs::create_dir(world.workspace().join("sub")).unwrap();
        run(&world.workspace().join("sub"), "echo x > f; echo y > ../g").ok();
        assert!(world.workspace().join("sub/f").exists() && world.workspace().join("g").exists());
    });
}

#[test]
fn further_writable_roots_are_writable_and_only_in_workspace_write() {
    ordinary(|world| {
        let text = format!("echo x > {}/f", world.outside().display());
        let with = |mode: &str| {
            world
                .call(mode)
                .args([OsStr::new("--writable"), world.outside().as_os_str()])
                .sh(&text)
        };
        with("read-only").failed();
        assert!(!world.outside().join("f").exists());
        with("workspace-write").ok();
        assert!(world.outside().join("f").exists());
    });
}
