//! Privileges: what root and set-user-id programs are inside, and that full access takes nothing away.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use crate::world::{anyone, ordinary, root};

const STATUS: &str = "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status";

#[test]
fn a_confined_command_has_no_capability_no_new_privileges_and_a_filter() {
    anyone(|world| {
        let none = "0000000000000000";
        let expected = format!(
            "CapInh:\t{none}\nCapPrm:\t{none}\nCapEff:\t{none}\nCapBnd:\t{none}\nCapAmb:\t{none}\nNoNewPrivs:\t1\nSeccomp:\t2"
        );
        for mode in ["read-only", "workspace-write"] {
            assert_eq!(world.call(mode).sh(STATUS).ok(), expected);
        }
    });
}

#[test]
fn full_access_sets_nothing_on_the_command() {
    anyone(|world| {
        let outside = world.host(STATUS);
        assert_eq!(world.full(STATUS).ok(), outside.trim_end());
        assert!(outside.contains("NoNewPrivs:\t0\nSeccomp:\t0"));
        let namespaces = "readlink /proc/self/ns/{user,mnt,pid,net,ipc,uts,cgroup}";
        assert_eq!(
            world.full(namespaces).ok(),
            world.host(namespaces).trim_end()
        );
        let inside = world.write(namespaces).ok().to_owned();
        for (inside, outside) in inside.lines().zip(world.host(namespaces).lines()).take(6) {
            assert_ne!(inside, outside);
        }
    });
}

#[test]
fn the_user_and_group_are_the_callers_own_inside() {
    anyone(|world| {
        let text = "id -u; id -g; touch f; stat -c '%u %g' f";
        let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
        for mode in ["workspace-write", "danger-full-access"] {
            assert_eq!(
                world.call(mode).sh(text).ok(),
                format!("{user}\n{group}\n{user} {group}")
            );
        }
    });
}

#[test]
fn set_user_id_programs_work_under_full_access_and_lend_nothing_confined() {
    root(|world| {
        // A copy of `id` that belongs to another user and runs as it.
        let file = world.outside().join("id");
        fs::copy("/usr/bin/id", &file).unwrap();
        chown(&file, Some(64_990), Some(64_990)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        let text = format!("{} -u", file.display());
        assert_eq!(world.full(&text).ok(), "64990");
        assert_eq!(world.write(&text).ok(), "0");
    });
}

#[test]
fn root_is_refused_devices_mounts_and_settings_of_the_machine() {
    root(|world| {
        let before = fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap();
        for text in [
            "mknod d b 1 1",
            "mknod /tmp/d c 1 1",
            "mount -t tmpfs tmpfs .",
            "mount -o remount,bind,rw /",
            "umount /tmp",
            "echo 0 > /proc/sys/kernel/randomize_va_space",
            "echo h > /proc/sysrq-trigger",
            "echo 0 > /sys/kernel/mm/ksm/run",
            "perl -e 'chroot \"/\" or exit 1'",
            "hostname other",
            "date -s 2000-01-01",
            "chown 1 f",
            "setpriv --reuid 1 true",
            "nice -n -5 true | grep x",
            "echo x > /etc/cofferdam-promise",
            "cat /etc/shadow",
            "dd if=/dev/vda of=/dev/null count=1",
        ] {
            world.write(format!("touch f; {text}")).failed();
        }
        assert_eq!(
            fs::read_to_string("/proc/sys/kernel/randomize_va_space").unwrap(),
            before
        );
        assert!(!fs::exists("/etc/cofferdam-promise").unwrap());
        world
            .full("mknod d b 1 1 && cat /etc/shadow >/dev/null && chown 1 f")
            .ok();
    });
}

#[test]
fn settings_of_the_machine_in_proc_and_sys_are_read_only_and_readable() {
    anyone(|world| {
        // As root every one of these files is writable by its mode, so that only the mounts refuse.
        let text = "for f in /proc/sys/kernel/core_pattern /proc/sys/vm/overcommit_memory /proc/sys/net/ipv4/ip_forward; do cat $f >/dev/null || exit 9; echo x > $f && exit 8; done; true";
        world.write(text).ok();
    });
}

#[test]
fn settings_of_the_machine_are_read_only_to_root_who_owns_them() {
    root(|world| {
        for path in [
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/sys/kernel/uevent_helper",
            "/sys/power/state",
        ] {
            if fs::exists(path).unwrap() {
                let done = world.write(format!("echo x > {path}"));
                assert_eq!(
                    done.failed(),
                    format!("bash: line 1: {path}: Read-only file system")
                );
            }
        }
    });
}

#[test]
fn root_works_on_files_of_others_where_the_workspace_is_anothers_and_nowhere_else() {
    root(|world| {
        for folder in [world.workspace(), world.outside()] {
            let file = folder.join("theirs");
            fs::write(&file, "theirs").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            chown(&file, Some(64_991), Some(64_991)).unwrap();
        }
        let text = "cat theirs && echo x >> theirs && chown 64992 theirs && chmod 640 theirs && touch mine && rm mine";
        // A workspace of root's own: nothing is kept, and the file's own mode counts.
        world.write(text).failed();
        chown(world.workspace(), Some(64_991), Some(64_991)).unwrap();
        world.write(text).ok();
        let facts = fs::metadata(world.workspace().join("theirs")).unwrap();
        assert_eq!((facts.uid(), facts.mode() & 0o777), (64_992, 0o640));
        let outside = world.outside().display().to_string();
        world.write(format!("echo x >> {outside}/theirs")).failed();
        world
            .write(format!("chown 64992 {outside}/theirs"))
            .failed();
        let kept = world.write(STATUS).ok().to_owned();
        // CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER, in the session's own user namespace.
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert!(
                kept.contains(&format!("{set}:\t000000000000000b")),
                "{kept}"
            );
        }
        for text in [
            "mknod d b 1 1",
            "mount -t tmpfs t .",
            "hostname x",
            "echo 1 > /proc/sys/kernel/core_pattern",
        ] {
            world.write(text).failed();
        }
    });
}

#[test]
fn a_change_of_owner_fails_as_it_does_outside() {
    ordinary(|world| {
        for mode in ["workspace-write", "danger-full-access"] {
            let done = world.call(mode).sh("touch f; chown 0 f");
            assert_eq!(
                done.failed(),
                "chown: changing ownership of 'f': Operation not permitted"
            );
            assert_eq!(done.facts().len(), 0, "{done}");
            world
                .call(mode)
                .sh("touch f; chown $(id -u):$(id -g) f")
                .ok();
        }
    });
}

#[test]
fn becoming_root_is_refused() {
    ordinary(|world| {
        world.needs("su");
        let done = world.write("su -c true </dev/null");
        assert!(!done.failed().is_empty());
        world.write("setpriv --reuid 0 true").failed();
        world.write("setpriv --reuid $(id -u) true").ok();
    });
}
