//! Seccomp programs: what is refused by number and argument, and what the command's init answers.
//!
//! Rule: unknown calls are let through and nothing kills; a refused call returns an errno. Programs
//! stack, and the kernel takes the strictest answer.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::PlanError;
use crate::policy::{Policy, calls};

/// What the arguments of calls may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// User and group, where they are the only ones in the user namespace: a change of owner to another
    /// fails as it does outside, with EPERM, and not with the EINVAL of an unmapped id, which
    /// fakeroot(1) and tar(1) don't expect.
    pub only_ids: Option<(u32, u32)>,
    /// Whether the set-user-id and set-group-id bits may be set: not by user 0 in folders of others, whom
    /// such a file would make root. (`openat2` names its bits in memory and can't be refused by them.)
    pub special_bits: bool,
    /// Stream and sequenced-packet UNIX sockets; their `connect` is supervised.
    pub unix: bool,
    /// IPv4 and IPv6 sockets.
    pub inet: bool,
}

#[cfg(target_arch = "x86_64")]
const ARCH: (TargetArch, u32) = (TargetArch::x86_64, 0xC000_003E);
#[cfg(target_arch = "aarch64")]
const ARCH: (TargetArch, u32) = (TargetArch::aarch64, 0xC000_00B7);

/// Calls whose mode counts only when they create.
#[cfg(target_arch = "x86_64")]
const OPENS: &[libc::c_long] = &[libc::SYS_open, libc::SYS_openat];
#[cfg(not(target_arch = "x86_64"))]
const OPENS: &[libc::c_long] = &[libc::SYS_openat];

const NAMESPACES: [libc::c_int; 8] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    0x80, // CLONE_NEWTIME, an argument of unshare alone: clone keeps its exit signal in these bits.
];

/// Calls that are refused for their arguments, whatever the profile says: name, when, errno.
pub const BY_ARGUMENT: [(&str, &str, &str); 20] = [
    ("clone", "with a namespace flag", "EPERM"),
    ("unshare", "with a namespace flag", "EPERM"),
    ("ioctl", "TIOCSTI or TIOCLINUX", "EPERM"),
    (
        "socket",
        "a family other than unix, inet, inet6 and netlink's route; UNIX datagrams; where no listener can be \
         had, unix; without a network namespace of its own, inet and inet6",
        "EPERM",
    ),
    ("socketpair", "UNIX datagrams", "EPERM"),
    ("chown", CHANGES_OWNER, "EPERM"),
    ("lchown", CHANGES_OWNER, "EPERM"),
    ("fchown", CHANGES_OWNER, "EPERM"),
    ("fchownat", CHANGES_OWNER, "EPERM"),
    ("chmod", SETS_ID, "EPERM"),
    ("fchmod", SETS_ID, "EPERM"),
    ("fchmodat", SETS_ID, "EPERM"),
    ("fchmodat2", SETS_ID, "EPERM"),
    ("creat", SETS_ID, "EPERM"),
    ("open", SETS_ID, "EPERM"),
    ("openat", SETS_ID, "EPERM"),
    ("mknod", SETS_ID, "EPERM"),
    ("mknodat", SETS_ID, "EPERM"),
    (
        "connect",
        "to a UNIX socket that isn't the session's own",
        "EACCES",
    ),
    (
        "*",
        "through the calling convention of another architecture",
        "EPERM",
    ),
];
const CHANGES_OWNER: &str = "to another owner than the caller, who isn't root";
const SETS_ID: &str = "with a set-user-id or set-group-id bit, by root in folders of others";

/// The programs that refuse calls: one by number, foreign calling conventions included, and one by argument.
///
/// # Errors
/// The policy names an errno that isn't one, or a rule can't be built.
pub fn refusals(policy: &Policy, allowed: Arguments) -> Result<Vec<Vec<u64>>, PlanError> {
    let mut by_errno: BTreeMap<u32, u32> = BTreeMap::new();
    for group in &policy.refused_calls {
        let errno = match group.errno.as_str() {
            "EPERM" => libc::EPERM,
            "ENOSYS" => libc::ENOSYS,
            other => return Err(PlanError::Filter(format!("no such refusal: {other}"))),
        };
        for name in &group.calls {
            // A call that this architecture never had needs no refusal.
            if let Some(number) = calls::number(name) {
                by_errno.insert(number_of(number), errno.unsigned_abs());
            }
        }
    }
    let filter = SeccompFilter::new(
        by_argument(allowed)?,
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.unsigned_abs()),
        ARCH.0,
    )
    .map_err(|error| PlanError::Filter(error.to_string()))?;
    let program: BpfProgram = filter
        .try_into()
        .map_err(|error: seccompiler::BackendError| PlanError::Filter(error.to_string()))?;
    Ok(vec![by_number(&by_errno), refuse_foreign(program)?])
}

/// Refuses calls by number: a search tree, for the kernel walks the program once for each call that there is
/// when it is installed.
fn by_number(refused: &BTreeMap<u32, u32>) -> Vec<u64> {
    let mut ranges: Vec<Range> = Vec::new();
    for (number, errno) in refused {
        match ranges.last_mut() {
            Some(last) if last.errno == *errno && last.end + 1 == *number => last.end = *number,
            _ => ranges.push(Range {
                start: *number,
                end: *number,
                errno: *errno,
            }),
        }
    }
    let mut program = native_only();
    // Its last word lets everything native through.
    program.pop();
    search(&ranges, &mut program);
    program
}

/// Calls with neighbouring numbers that are refused with one errno.
#[derive(Clone, Copy)]
struct Range {
    start: u32,
    end: u32,
    errno: u32,
}

fn search(ranges: &[Range], program: &mut Vec<u64>) {
    const LEAF: usize = 3;
    if ranges.len() <= LEAF {
        for range in ranges {
            program.push(jump_if_at_least(range.start, 0, 2));
            program.push(jump_if_at_least(range.end + 1, 1, 0));
            program.push(answer(libc::SECCOMP_RET_ERRNO | range.errno));
        }
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        return;
    }
    let (left, right) = ranges.split_at(ranges.len() / 2);
    let mut below = Vec::new();
    search(left, &mut below);
    // To the right through a long jump: a conditional one reaches 255 words.
    program.push(jump_if_at_least(right[0].start, 0, 1));
    program.push(jump(u32::try_from(below.len()).unwrap_or(u32::MAX)));
    program.extend(below);
    search(right, program);
}

/// The program whose calls the command's init answers: every `connect`, and `sendto` with an address.
pub fn supervision() -> Vec<u64> {
    let address_low = argument(4);
    let address_high = address_low + 4;
    vec![
        load(ARCH_AT),
        jump_if_equal(ARCH.1, 1, 0),
        answer(libc::SECCOMP_RET_ALLOW),
        load(CALL_AT),
        jump_if_equal(number_of(libc::SYS_connect), 7, 0),
        jump_if_equal(number_of(libc::SYS_sendto), 1, 0),
        answer(libc::SECCOMP_RET_ALLOW),
        load(address_low),
        jump_if_equal(0, 0, 3),
        load(address_high),
        jump_if_equal(0, 0, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_USER_NOTIF),
    ]
}

fn by_argument(allowed: Arguments) -> Result<BTreeMap<i64, Vec<SeccompRule>>, PlanError> {
    let condition = |at: u8, op: Is, value: u64| {
        SeccompCondition::new(at, Width::Dword, op, value)
            .map_err(|error| PlanError::Filter(error.to_string()))
    };
    let rule = |conditions: Vec<SeccompCondition>| {
        SeccompRule::new(conditions).map_err(|error| PlanError::Filter(error.to_string()))
    };
    let word = |value: libc::c_int| u64::from(value.unsigned_abs());
    let has = |at: u8, bits: libc::c_int| condition(at, Is::MaskedEq(word(bits)), word(bits));
    let is = |at: u8, value: libc::c_int| condition(at, Is::Eq, word(value));
    let is_not = |at: u8, value: libc::c_int| condition(at, Is::Ne, word(value));

    let mut clone = Vec::new();
    let mut unshare = Vec::new();
    for flag in NAMESPACES {
        unshare.push(rule(vec![has(0, flag)?])?);
        if flag != 0x80 {
            clone.push(rule(vec![has(0, flag)?])?);
        }
    }
    // The kernel looks at the low 32 bits of the request alone, and so does this.
    let ioctl = vec![
        rule(vec![condition(1, Is::Eq, libc::TIOCSTI)?])?,
        rule(vec![condition(1, Is::Eq, libc::TIOCLINUX)?])?,
    ];
    let kind = |kind: libc::c_int| condition(1, Is::MaskedEq(0xf), word(kind));
    // A datagram socket could be sent to a path without a `connect`, past the supervisor; the kernel
    // takes a raw UNIX socket for a datagram one.
    let datagram_pair = vec![
        rule(vec![is(0, libc::AF_UNIX)?, kind(libc::SOCK_DGRAM)?])?,
        rule(vec![is(0, libc::AF_UNIX)?, kind(libc::SOCK_RAW)?])?,
    ];
    let mut socket = datagram_pair.clone();
    socket.push(rule(vec![
        is_not(0, libc::AF_UNIX)?,
        is_not(0, libc::AF_INET)?,
        is_not(0, libc::AF_INET6)?,
        is_not(0, libc::AF_NETLINK)?,
    ])?);
    socket.push(rule(vec![
        is(0, libc::AF_NETLINK)?,
        is_not(2, libc::NETLINK_ROUTE)?,
    ])?);
    if !allowed.unix {
        socket.push(rule(vec![is(0, libc::AF_UNIX)?])?);
    }
    if !allowed.inet {
        socket.push(rule(vec![is(0, libc::AF_INET)?])?);
        socket.push(rule(vec![is(0, libc::AF_INET6)?])?);
    }
    let mut owner = BTreeMap::new();
    if let Some((user, group)) = allowed.only_ids {
        const KEEP: u64 = 0xffff_ffff;
        let other = |at: u8, own: u32| {
            let own = condition(at, Is::Ne, u64::from(own))?;
            rule(vec![own, condition(at, Is::Ne, KEEP)?])
        };
        #[cfg(target_arch = "x86_64")]
        let calls = [
            (libc::SYS_chown, 1),
            (libc::SYS_lchown, 1),
            (libc::SYS_fchown, 1),
            (libc::SYS_fchownat, 2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let calls = [(libc::SYS_fchown, 1), (libc::SYS_fchownat, 2)];
        for (call, at) in calls {
            owner.insert(call, vec![other(at, user)?, other(at + 1, group)?]);
        }
    }
    if !allowed.special_bits {
        #[cfg(target_arch = "x86_64")]
        let calls = [
            (libc::SYS_chmod, 1),
            (libc::SYS_fchmod, 1),
            (libc::SYS_fchmodat, 2),
            (libc::SYS_fchmodat2, 2),
            (libc::SYS_creat, 1),
            (libc::SYS_open, 2),
            (libc::SYS_openat, 3),
            (libc::SYS_mknod, 1),
            (libc::SYS_mknodat, 2),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let calls = [
            (libc::SYS_fchmod, 1),
            (libc::SYS_fchmodat, 2),
            (libc::SYS_fchmodat2, 2),
            (libc::SYS_openat, 3),
            (libc::SYS_mknodat, 2),
        ];
        for (call, at) in calls {
            let mut rules = Vec::new();
            for bit in [0o4000, 0o2000] {
                let mut conditions = vec![has(at, bit)?];
                if OPENS.contains(&call) {
                    conditions.push(has(at - 1, libc::O_CREAT)?);
                }
                rules.push(rule(conditions)?);
            }
            owner.insert(call, rules);
        }
    }
    owner.extend(BTreeMap::from([
        (libc::SYS_clone, clone),
        (libc::SYS_unshare, unshare),
        (libc::SYS_ioctl, ioctl),
        (libc::SYS_socket, socket),
        (libc::SYS_socketpair, datagram_pair),
    ]));
    Ok(owner)
}

/// seccompiler kills a process that calls through a foreign architecture; here such a call fails.
fn refuse_foreign(program: BpfProgram) -> Result<Vec<u64>, PlanError> {
    let mut words: Vec<u64> = program
        .iter()
        .map(|step| instruction(step.code, step.jt, step.jf, step.k))
        .collect();
    let expected = [
        load(ARCH_AT),
        jump_if_equal(ARCH.1, 1, 0),
        answer(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    match words.get_mut(..expected.len()) {
        Some(head) if head == expected => head[2] = refuse(libc::EPERM),
        _ => {
            return Err(PlanError::Filter(
                "the filter compiler changed how it checks the architecture".to_owned(),
            ));
        }
    }
    Ok(words)
}

/// Refuses foreign architectures, and on x86-64 the x32 numbers, which share its architecture word.
fn native_only() -> Vec<u64> {
    const X32_BIT: u32 = 0x4000_0000;
    vec![
        load(ARCH_AT),
        jump_if_equal(ARCH.1, 1, 0),
        refuse(libc::EPERM),
        load(CALL_AT),
        jump_if_at_least(X32_BIT, 0, 1),
        refuse(libc::EPERM),
        answer(libc::SECCOMP_RET_ALLOW),
    ]
}

// Offsets in `struct seccomp_data`, seccomp(2).
const CALL_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

// A `struct sock_filter` in its memory layout, linux/filter.h.
fn instruction(code: u16, jump_true: u8, jump_false: u8, k: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&code.to_ne_bytes());
    bytes[2] = jump_true;
    bytes[3] = jump_false;
    bytes[4..].copy_from_slice(&k.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn load(offset: u32) -> u64 {
    instruction(0x20, 0, 0, offset) // BPF_LD | BPF_W | BPF_ABS
}

fn jump_if_equal(k: u32, jump_true: u8, jump_false: u8) -> u64 {
    instruction(0x15, jump_true, jump_false, k) // BPF_JMP | BPF_JEQ | BPF_K
}

fn jump_if_at_least(k: u32, jump_true: u8, jump_false: u8) -> u64 {
    instruction(0x35, jump_true, jump_false, k) // BPF_JMP | BPF_JGE | BPF_K
}

fn jump(words: u32) -> u64 {
    instruction(0x05, 0, 0, words) // BPF_JMP | BPF_JA
}

fn answer(action: u32) -> u64 {
    instruction(0x06, 0, 0, action) // BPF_RET | BPF_K
}

fn refuse(errno: libc::c_int) -> u64 {
    answer(libc::SECCOMP_RET_ERRNO | errno.unsigned_abs())
}

fn number_of(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_call_that_is_refused_for_its_arguments_is_listed_and_no_other() {
        let allowed = Arguments {
            only_ids: Some((1000, 1000)),
            special_bits: false,
            unix: true,
            inet: true,
        };
        let filtered: BTreeSet<i64> = by_argument(allowed).unwrap().into_keys().collect();
        let listed: BTreeSet<i64> = BY_ARGUMENT
            .iter()
            // `connect` is supervised, and `*` is a program of its own.
            .filter(|(name, _, _)| !["connect", "*"].contains(name))
            .filter_map(|(name, _, _)| calls::number(name))
            .collect();
        assert_eq!(filtered, listed);
    }
}
