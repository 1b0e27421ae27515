//! Files: what can be read and written in which mode.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use crate::world::{anyone, ordinary};

/// Prints the errno of one system call on a path, or 0.
const ERRNO: &str = r#"
    my ($call, $path) = @ARGV;
    my %calls = (
        chmod => sub { chmod 0777, $path },
        chown => sub { chown $<, $( + 0, $path },
        utime => sub { utime 1, 1, $path },
        truncate => sub { truncate $path, 0 },
        setxattr => sub { syscall(188, $path, my $n = "user.a", my $v = "v", 1, 0) == 0 },
        append => sub { open my $f, ">>", $path },
        create => sub { open my $f, ">", "$path.new" },
        unlink => sub { unlink $path },
        rename => sub { rename $path, "$path.moved" },
        link => sub { link $path, "$path.link" },
        symlink => sub { symlink "a", "$path.symlink" },
        mkdir => sub { mkdir "$path.dir" },
        mkfifo => sub { mkfifo("$path.fifo", 0600) },
    );
    print $calls{$call}->() ? 0 : $! + 0;
"#;

#[test]
fn write_outside_the_workspace_is_refused_with_erofs() {
    anyone(|world| {
        let outside = world.outside();
        let denied = world.write(format!("echo x > {}/f", outside.display()));
        assert_eq!(
            denied.failed(),
            format!(
                "bash: line 1: {}/f: Read-only file system",
                outside.display()
            )
        );
        assert!(!outside.join("f").exists());
        world.write("echo x > f").ok();
        assert_eq!(
            fs::read_to_string(world.workspace().join("f")).unwrap(),
            "x\n"
        );
    });
}

#[test]
fn every_change_of_a_file_outside_is_refused_with_erofs_and_works_in_the_workspace() {
    anyone(|world| {
        for call in [
            "chmod", "chown", "utime", "truncate", "setxattr", "append", "create", "rename",
            "link", "symlink", "mkdir", "mkfifo", "unlink",
        ] {
            for (folder, expected) in [(world.outside(), libc::EROFS), (world.workspace(), 0)] {
                let file = folder.join("f");
                fs::write(&file, "kept").unwrap();
                let before = fs::metadata(&file).unwrap();
                let done = world
                    .call("workspace-write")
                    .perl(ERRNO, &[call, file.to_str().unwrap()]);
                assert_eq!(done.ok(), expected.to_string(), "{call} in {folder:?}");
                if expected != 0 {
                    let after = fs::metadata(&file).unwrap();
                    assert_eq!(
                        (before.ctime(), before.ctime_nsec(), before.mode()),
                        (after.ctime(), after.ctime_nsec(), after.mode()),
                        "{call}"
                    );
                    let names: Vec<_> = fs::read_dir(&folder)
                        .unwrap()
                        .map(|e| e.unwrap().file_name())
                        .collect();
                    assert_eq!(names, ["f"], "{call}");
                }
                for entry in fs::read_dir(&folder).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() {
                        fs::remove_dir(path).unwrap()
                    } else {
                        fs::remove_file(path).unwrap()
                    }
                }
            }
        }
    });
}

#[test]
fn read_only_writes_nothing_in_the_workspace_and_still_has_its_private_tmp() {
    anyone(|world| {
        let denied = world.read_only("echo x > f");
        assert_eq!(denied.failed(), "bash: line 1: f: Read-only file system");
        assert!(!world.workspace().join("f").exists());
        assert_eq!(
            world.read_only("cat > /tmp/f <<< hello; cat /tmp/f").ok(),
            "hello"
        );
        assert_eq!(
            world.read_only("echo a > /dev/shm/f; cat /dev/shm/f").ok(),
            "a"
        );
        world.write("echo x > f").ok();
    });
}

#[test]
fn files_of_the_host_are_readable_and_runnable() {
    ordinary(|world| {
        fs::write(world.outside().join("f"), "content").unwrap();
        for mode in ["read-only", "workspace-write"] {
            let done = world.call(mode).sh(format!(
                "cat {}/f; test -r /etc/passwd; ls /usr/bin/env",
                world.outside().display()
            ));
            assert_eq!(done.ok(), "content/usr/bin/env");
        }
    });
}

#[test]
fn a_fifo_outside_is_not_written() {
    ordinary(|world| {
        for (folder, expected) in [(world.outside(), libc::EACCES), (world.workspace(), 0)] {
            let fifo = folder.join("fifo");
            nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
            // Open for reading and writing, so that nobody waits for the other end.
            let _reader = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(&fifo)
                .unwrap();
            let code = r#"print open(my $f, ">", $ARGV[0]) ? 0 : $! + 0"#;
            let done = world
                .call("workspace-write")
                .perl(code, &[fifo.to_str().unwrap()]);
            assert_eq!(done.ok(), expected.to_string(), "{folder:?}");
        }
    });
}

#[test]
fn the_terminals_of_other_sessions_are_not_written() {
    ordinary(|world| {
        world.needs("script");
        let host_terminals = fs::read_dir("/dev/pts").unwrap().count();
        let listing = world.write("ls /dev/pts; ls /dev").ok().to_owned();
        assert_eq!(
            listing,
            "ptmx\nfd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero",
            "{host_terminals} on the host"
        );
        // A terminal of one's own can be had.
        world
            .write("script -qec 'test -t 0 && echo yes' /dev/null | grep -q yes")
            .ok();
    });
}

#[test]
fn the_home_ssh_folder_is_unreadable_and_the_rest_of_home_is_readable() {
    anyone(|world| {
        for (path, secret) in [
            (".ssh/id_ed25519", true),
            (".aws/credentials", true),
            (".gnupg/private-keys-v1.d/k", true),
            (".netrc", true),
            (".npmrc", true),
            (".config/gh/hosts.yml", true),
            (".mozilla/firefox/cookies.sqlite", true),
            (".bash_history", true),
            (".gitconfig", false),
            (".config/other/f", false),
            (".sshx/id", false),
        ] {
            let file = world.home().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "content").unwrap();
            for mode in ["read-only", "workspace-write"] {
                let done = world.call(mode).sh(format!("cat ~/{path}"));
                if secret {
                    let text = done.failed();
                    let denied = format!("cat: {}: Permission denied", file.display());
                    assert_eq!(text, denied);
                } else {
                    assert_eq!(done.ok(), "content");
                }
            }
            assert_eq!(world.full(format!("cat ~/{path}")).ok(), "content");
        }
    });
}

#[test]
fn a_secret_is_not_reached_through_a_link_or_a_name_made_in_the_workspace() {
    ordinary(|world| {
        fs::create_dir(world.home().join(".ssh")).unwrap();
        fs::write(world.home().join(".ssh/id"), "secret").unwrap();
        fs::write(world.home().join("open"), "open").unwrap();
        symlink(world.home().join(".ssh"), world.workspace().join("a")).unwrap();
        symlink(world.home().join("open"), world.workspace().join("b")).unwrap();
        world.write("cat a/id").failed();
        assert_eq!(world.write("cat b").ok(), "open");
        let hard = world.write("ln ~/.ssh/id c");
        hard.failed();
        let through_proc =
            world.write("cat /proc/self/root$HOME/.ssh/id /proc/1/root$HOME/.ssh/id");
        assert_eq!(through_proc.out(), "");
        through_proc.failed();
        assert_eq!(world.write("cat /proc/self/root$HOME/open").ok(), "open");
    });
}

#[test]
fn a_symlink_in_the_workspace_carries_no_write_outside() {
    ordinary(|world| {
        fs::write(world.outside().join("f"), "kept").unwrap();
        fs::write(world.workspace().join("g"), "old").unwrap();
        symlink(world.outside().join("f"), world.workspace().join("out")).unwrap();
        symlink(world.workspace().join("g"), world.workspace().join("in")).unwrap();
        assert_eq!(
            world.write("echo x > out").failed(),
            "bash: line 1: out: Read-only file system"
        );
        world.write("echo x > in").ok();
        assert_eq!(
            fs::read_to_string(world.outside().join("f")).unwrap(),
            "kept"
        );
        assert_eq!(
            fs::read_to_string(world.workspace().join("g")).unwrap(),
            "x\n"
        );
    });
}

#[test]
fn a_hard_link_brings_no_file_from_outside_into_the_workspace() {
    ordinary(|world| {
        fs::write(world.outside().join("f"), "kept").unwrap();
        fs::write(world.workspace().join("g"), "g").unwrap();
        let denied = world.write(format!("ln {}/f f", world.outside().display()));
        assert_eq!(
            denied.failed(),
            format!(
                "ln: failed to create hard link 'f' => '{}/f': Invalid cross-device link",
                world.outside().display()
            )
        );
        world.write("ln g h && echo x > h").ok();
        assert_eq!(
            fs::read_to_string(world.workspace().join("g")).unwrap(),
            "x\n"
        );
    });
}

#[test]
fn a_file_is_not_moved_out_of_the_workspace_or_into_it() {
    ordinary(|world| {
        fs::write(world.outside().join("f"), "kept").unwrap();
        fs::write(world.workspace().join("g"), "kept").unwrap();
        let outside = world.outside().display().to_string();
        world.write(format!("mv {outside}/f f")).failed();
        world.write(format!("mv g {outside}/g")).failed();
        assert!(world.outside().join("f").exists() && !world.outside().join("g").exists());
        world.write("mv g h").ok();
        assert!(world.workspace().join("h").exists());
    });
}

#[test]
fn devices_are_the_harmless_ones_and_they_work() {
    anyone(|world| {
        world
            .write(
                "echo x > /dev/null; head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c",
            )
            .ok();
        world
            .write("test -e /dev/fd/0 && echo a | tee /dev/stderr")
            .ok();
        // One cannot be made either: not in the workspace, not in the private /tmp.
        let code = r#"print syscall(133, $ARGV[0], 0020666, 0x103) == 0 ? 0 : $! + 0"#;
        for path in [world.workspace().join("d").to_str().unwrap(), "/tmp/d"] {
            let done = world.call("workspace-write").perl(code, &[path]);
            assert_eq!(done.ok(), libc::EPERM.to_string());
        }
        world
            .write("ls /dev/kmsg /dev/mem /dev/sda /dev/vda /dev/fuse /dev/net")
            .failed();
    });
}

#[test]
fn a_file_without_a_name_is_executed_inside_the_same_confinement() {
    ordinary(|world| {
        // memfd_create, then the shell by its descriptor: the write outside is still refused.
        let code = r#"
            my $fd = syscall(319, my $n = "x", 0);
            open my $m, ">&=", $fd; open my $b, "<", "/bin/sh"; binmode $_ for $m, $b;
            local $/; print {$m} scalar <$b>; close $b; $m->flush;
            $^F = 255; fcntl($m, F_SETFD, 0);
            exec "/proc/self/fd/$fd", "-c", $ARGV[0]; die $!;
        "#;
        let run = |folder: &std::path::Path| {
            let text = format!("echo x > {}/f", folder.display());
            world.call("workspace-write").perl(code, &[&text])
        };
        assert!(
            run(&world.outside())
                .failed()
                .ends_with("Read-only file system")
        );
        run(&world.workspace()).ok();
        assert!(world.workspace().join("f").exists() && !world.outside().join("f").exists());
    });
}

#[test]
fn descriptors_of_the_caller_are_closed_in_the_command() {
    ordinary(|world| {
        let call = world
            .call("workspace-write")
            .args(["-c", "ls /proc/self/fd; echo x >&7"]);
        let leak = world.outside().join("leak");
        let text = format!(r#"exec 7>"{}"; exec "$@""#, leak.display());
        let mut command = std::process::Command::new("bash");
        command
            .args(["-c", &text, "-"])
            .arg(world.program())
            .args(call.command().get_args());
        let done = crate::world::Done::new(command.output().unwrap());
        // 3 is the folder that ls reads.
        assert_eq!(done.out(), "0\n1\n2\n3");
        assert_eq!(done.failed(), "bash: line 1: 7: Bad file descriptor");
        assert_eq!(fs::read_to_string(leak).unwrap(), "");
    });
}

#[test]
fn private_places_are_gone_after_the_session_and_were_never_the_hosts() {
    ordinary(|world| {
        for folder in ["/tmp", "/dev/shm", "/var/tmp"] {
            let name = format!("cofferdam-{}", std::process::id());
            let text = format!("echo x > {folder}/{name}");
            if folder == "/var/tmp" {
                world.write(&text).failed();
            } else {
                world.write(&text).ok();
            }
            assert!(!std::path::Path::new(folder).join(&name).exists());
            world.write(format!("test -e {folder}/{name}")).failed();
        }
        assert_eq!(
            world.write("ls -A /tmp /dev/shm").ok(),
            "/dev/shm:\n\n/tmp:"
        );
    });
}

#[test]
fn modes_of_private_places_are_those_that_programs_expect() {
    anyone(|world| {
        let text = "stat -c '%a %n' /tmp /dev/shm /run /dev $XDG_RUNTIME_DIR; stat -c %u $XDG_RUNTIME_DIR | grep -qx $(id -u)";
        let uid = nix::unistd::geteuid();
        let expected = format!("1777 /tmp\n1777 /dev/shm\n755 /run\n755 /dev\n700 /run/user/{uid}");
        assert_eq!(world.write(text).ok(), expected);
    });
}

#[test]
fn set_user_id_bits_lend_nothing_in_a_confined_mode() {
    ordinary(|world| {
        world.needs("su");
        let file = world.workspace().join("id");
        fs::copy("/usr/bin/id", &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        let nosuid =
            "grep -c nosuid <(findmnt -n -o OPTIONS -T . 2>/dev/null || grep ' / ' /proc/mounts)";
        assert_eq!(
            world
                .write(format!("{nosuid}; grep NoNewPrivs /proc/self/status"))
                .ok(),
            "1\nNoNewPrivs:\t1"
        );
        assert_eq!(
            world.full("grep NoNewPrivs /proc/self/status").ok(),
            "NoNewPrivs:\t0"
        );
    });
}
