//! System calls: each that the filter refuses fails with its documented errno, and none kills its caller.

use std::os::unix::fs::PermissionsExt;

use cofferdam::policy::calls;
use serde_json::Value;

use crate::world::{World, anyone, ordinary};

/// Makes each call that is named as `number:argument,argument…` and prints its errno, or 0.
const CALLS: &str = r#"
    for (@ARGV) {
        my ($number, $arguments) = split /:/;
        my @arguments = map { $_ + 0 } split /,/, $arguments;
        my $result = syscall($number, @arguments);
        my $errno = $result == -1 ? $! + 0 : 0;
        # A call that went through may have made a process.
        exit 0 if $result == 0 && $number == 56;
        print "$errno\n";
    }
"#;

fn errnos(world: &World, mode: &str, calls: &[String]) -> Vec<i32> {
    let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
    let done = world.call(mode).perl(CALLS, &calls);
    done.ok()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

fn refused_calls(world: &World) -> Vec<(String, i32)> {
    let program = world.program().display();
    let shown: Value =
        serde_json::from_str(&world.host(&format!("{program} profile show --json"))).unwrap();
    let mut found = Vec::new();
    for group in shown["policy"]["refusedCalls"].as_array().unwrap() {
        let errno = match group["errno"].as_str().unwrap() {
            "EPERM" => libc::EPERM,
            "ENOSYS" => libc::ENOSYS,
            other => panic!("{other}"),
        };
        for name in group["calls"].as_array().unwrap() {
            found.push((name.as_str().unwrap().to_owned(), errno));
        }
    }
    found
}

#[test]
fn every_refused_call_fails_with_the_errno_that_the_profile_shows() {
    anyone(|world| {
        let listed = refused_calls(world);
        assert!(listed.len() > 40, "{listed:?}");
        let (names, expected): (Vec<_>, Vec<_>) = listed
            .into_iter()
            .filter_map(|(name, errno)| Some(((name.clone(), calls::number(&name)?), errno)))
            .unzip();
        // Nothing valid, so that what isn't refused fails in another way.
        let arguments: Vec<_> = names
            .iter()
            .map(|(_, number)| format!("{number}:-1,-1,-1,-1,-1,-1"))
            .collect();
        for mode in ["read-only", "workspace-write"] {
            let found = errnos(world, mode, &arguments);
            let told: Vec<_> = names.iter().zip(&found).collect();
            assert_eq!(found, expected, "{mode}: {told:?}");
        }
    });
}

#[test]
fn an_unconfined_process_may_make_calls_that_are_refused_here() {
    ordinary(|world| {
        // With arguments that make them fail for another reason.
        let calls = ["keyctl", "add_key", "setns", "pidfd_getfd", "quotactl_fd"];
        let arguments: Vec<_> = calls
            .iter()
            .map(|name| format!("{}:-1,-1,-1,-1,-1,-1", calls::number(name).unwrap()))
            .collect();
        let outside = errnos(world, "danger-full-access", &arguments);
        assert!(!outside.contains(&libc::EPERM), "{outside:?}");
        assert_eq!(
            errnos(world, "workspace-write", &arguments),
            [libc::EPERM; 5]
        );
    });
}

#[test]
fn calls_that_only_tighten_or_that_programs_need_go_through() {
    ordinary(|world| {
        for (name, arguments, expected) in [
            ("getpid", "0", 0),
            ("seccomp", "2,0,0", libc::EFAULT), // SECCOMP_GET_ACTION_AVAIL
            ("landlock_create_ruleset", "0,0,1", 0),
            ("memfd_create", "0,0", libc::EFAULT),
            ("ptrace", "0,0,0,0", 0), // PTRACE_TRACEME
            ("inotify_init1", "0", 0),
            ("personality", "4294967295", 0),
        ] {
            let call = format!("{}:{arguments}", calls::number(name).unwrap());
            assert_eq!(
                errnos(world, "workspace-write", &[call]),
                [expected],
                "{name}"
            );
        }
    });
}

#[test]
fn new_namespaces_are_refused_in_every_way_to_ask_for_them() {
    anyone(|world| {
        const NAMESPACES: [u64; 8] = [
            0x0002_0000,
            0x0200_0000,
            0x0400_0000,
            0x0800_0000,
            0x1000_0000,
            0x2000_0000,
            0x4000_0000,
            0x80,
        ];
        let mut asked: Vec<String> = NAMESPACES
            .iter()
            .map(|flag| format!("272:{flag}"))
            .collect();
        // Not hidden among others, and not by bits that the kernel doesn't look at.
        asked.push(format!("272:{}", 0x1000_0000_u64 | 0x200));
        asked.extend(
            NAMESPACES[..7]
                .iter()
                .map(|flag| format!("56:{},0,0,0,0", flag | 17)),
        );
        assert_eq!(
            errnos(world, "workspace-write", &asked),
            vec![libc::EPERM; asked.len()]
        );
        // What doesn't make a namespace is free: CLONE_FS | CLONE_FILES.
        assert_eq!(
            errnos(world, "workspace-write", &["272:1536".to_owned()]),
            [0]
        );
        assert_eq!(
            errnos(world, "danger-full-access", &["272:268435456".to_owned()]),
            [0]
        );
        world.write("unshare -Ur true").failed();
        world.full("unshare -Ur true").ok();
    });
}

#[test]
fn x32_numbers_fail_with_eperm_and_kill_nobody() {
    ordinary(|world| {
        let calls = [
            "39:0".to_owned(),
            format!("{}:0", 0x4000_0000 + 39),
            "39:0".to_owned(),
        ];
        assert_eq!(
            errnos(world, "workspace-write", &calls),
            [0, libc::EPERM, 0]
        );
    });
}

#[test]
fn calls_of_a_foreign_architecture_fail_with_eperm_and_kill_nobody() {
    ordinary(|world| {
        // A whole program: getpid through `int 0x80`, then exit through `syscall` with 0 if it
        // answered a number, else with the errno.
        let code: &[u8] = &[
            0xb8, 20, 0, 0, 0, // mov eax, 20
            0xcd, 0x80, // int 0x80
            0x31, 0xff, // xor edi, edi
            0x85, 0xc0, // test eax, eax
            0x7f, 0x04, // jg +4
            0x89, 0xc7, // mov edi, eax
            0xf7, 0xdf, // neg edi
            0xb8, 60, 0, 0, 0, // mov eax, 60
            0x0f, 0x05, // syscall
        ];
        let path = world.workspace().join("foreign");
        std::fs::write(&path, elf(code)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let outside = world.full("./foreign").status;
        if outside == libc::ENOSYS || outside == 128 + libc::SIGSEGV {
            world.skip("this kernel runs no 32-bit programs");
        }
        assert_eq!(outside, 0);
        assert_eq!(world.write("./foreign").status, libc::EPERM);
    });
}

/// The smallest executable that holds this code.
fn elf(code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2u16, 62] {
        file.extend(half.to_le_bytes()); // an executable for x86-64
    }
    file.extend(1u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        file.extend(word.to_le_bytes()); // entry, program headers, no sections
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend([1u32, 5].iter().flat_map(|word| word.to_le_bytes())); // loaded, readable and executable
    let size = HEADERS + code.len() as u64;
    for word in [0, BASE, BASE, size, size, 4096] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file
}

#[test]
fn a_terminal_takes_no_typing_from_a_command_and_other_requests_work() {
    ordinary(|world| {
        // A terminal of the command's own, the only one that it could type into.
        let code = r#"
            if (fork) { wait; exit $?; }
            setsid(); $SIG{HUP} = "IGNORE"; $| = 1;
            open my $m, "+<", "/dev/ptmx" or die "ptmx $!";
            my $zero = pack "i", 0; my $n = pack "i", 0;
            ioctl $m, 0x40045431, $zero or die; ioctl $m, 0x80045430, $n or die;
            open my $s, "+<", "/dev/pts/" . unpack("i", $n) or die "pts $!";
            for my $request (0x5412, 0x100005412, 0x541C, 0x5413) {
                my $buffer = "x" x 8;
                print syscall(16, fileno($s), $request, $buffer) == -1 ? $! + 0 : 0, "\n";
            }
        "#;
        let found = |mode| world.call(mode).perl(code, &[]).ok().to_owned();
        // TIOCSTI, the same with a bit that the kernel drops, TIOCLINUX, TIOCGWINSZ.
        assert_eq!(found("workspace-write"), "1\n1\n1\n0");
        assert_ne!(found("danger-full-access"), found("workspace-write"));
    });
}

#[test]
fn sockets_of_other_families_are_refused_and_ordinary_ones_are_not() {
    ordinary(|world| {
        for (name, domain, kind, protocol, expected) in [
            ("stream by path", libc::AF_UNIX, libc::SOCK_STREAM, 0, 0),
            ("IPv4", libc::AF_INET, libc::SOCK_STREAM, 0, 0),
            ("IPv6", libc::AF_INET6, libc::SOCK_DGRAM, 0, 0),
            (
                "routes",
                libc::AF_NETLINK,
                libc::SOCK_RAW,
                libc::NETLINK_ROUTE,
                0,
            ),
            (
                "device events",
                libc::AF_NETLINK,
                libc::SOCK_RAW,
                libc::NETLINK_KOBJECT_UEVENT,
                libc::EPERM,
            ),
            (
                "datagram by path",
                libc::AF_UNIX,
                libc::SOCK_DGRAM,
                0,
                libc::EPERM,
            ),
            ("packets", libc::AF_PACKET, libc::SOCK_RAW, 0, libc::EPERM),
            (
                "virtual machines",
                libc::AF_VSOCK,
                libc::SOCK_STREAM,
                0,
                libc::EPERM,
            ),
            (
                "kernel cryptography",
                libc::AF_ALG,
                libc::SOCK_SEQPACKET,
                0,
                libc::EPERM,
            ),
            (
                "bluetooth",
                libc::AF_BLUETOOTH,
                libc::SOCK_RAW,
                0,
                libc::EPERM,
            ),
        ] {
            let call = format!("41:{domain},{kind},{protocol}");
            assert_eq!(
                errnos(world, "workspace-write", &[call]),
                [expected],
                "{name}"
            );
        }
        let pair = |kind| {
            let code = "print socketpair(my $a, my $b, AF_UNIX, $ARGV[0], 0) ? 0 : $! + 0";
            world
                .call("workspace-write")
                .perl(code, &[kind])
                .ok()
                .to_owned()
        };
        assert_eq!(
            (pair("1"), pair("5"), pair("2")),
            ("0".into(), "0".into(), "1".into())
        );
    });
}
