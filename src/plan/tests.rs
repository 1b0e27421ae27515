//! What hosts that give less amount to: whole enforcements, and which layer carries what.

use super::*;
use crate::host::facts::Availability;
use crate::mode::Mode;
use crate::policy::{Environment, Limits, Origin, Place, Require};

fn refused(step: &str) -> Availability {
    Availability::Refused {
        step: step.to_owned(),
        errno: "EPERM".to_owned(),
    }
}

fn host(landlock_abi: u32) -> HostFacts {
    HostFacts {
        uid: 1000,
        gid: 1000,
        landlock_abi,
        namespaces: Availability::Assumed,
        own_proc: Availability::Assumed,
        mount_table: 0,
        listener: Availability::Assumed,
    }
}

fn without_namespaces(landlock_abi: u32) -> HostFacts {
    HostFacts {
        namespaces: refused("unshare user namespace"),
        ..host(landlock_abi)
    }
}

fn place(path: &str) -> Place {
    Place {
        path: path.into(),
        origin: Origin::Workspace,
    }
}

fn policy() -> Policy {
    Policy {
        mode: Mode::WorkspaceWrite,
        workspace: "/w".into(),
        writable: vec![place("/w")],
        protected: vec![place("/w/.git/hooks")],
        protected_absent: Vec::new(),
        pinned: Vec::new(),
        protected_links: Vec::new(),
        hidden: vec![place("/home/u/.ssh")],
        visible: Vec::new(),
        home: None,
        scratch: ["/tmp", "/dev/shm", "/run"].map(PathBuf::from).to_vec(),
        network: Network::None,
        refused_calls: Vec::new(),
        limits: Limits::default(),
        environment: Environment::default(),
        require: Require::Partial,
        gaps: Vec::new(),
    }
}

fn identities() -> Identities {
    ["/w", "/w/.git/hooks", "/home/u/.ssh"]
        .into_iter()
        .zip(1..)
        .map(|(path, inode)| {
            let identity = Identity {
                device: 1,
                inode,
                folder: true,
                owner: 1000,
            };
            (PathBuf::from(path), identity)
        })
        .collect()
}

fn planned(policy: &Policy, facts: &HostFacts) -> Planned {
    plan(policy, &identities(), facts, Path::new("/tmp/scratch")).unwrap()
}

fn partial(missing: &[&str]) -> Enforcement {
    Enforcement {
        level: Level::Partial,
        missing: missing.iter().map(|words| (*words).to_owned()).collect(),
    }
}

fn full() -> Enforcement {
    Enforcement {
        level: Level::Full,
        missing: Vec::new(),
    }
}

const MODES: &str = "changes of mode, owner, times and attributes of files outside";
const SEEN: &str = "the host's processes, /tmp, /dev/shm and /run can be seen";
const IPC: &str = "the caller's System V and POSIX message queues, semaphores and shared memory";
const HIDDEN: &str = "hidden paths can be read";
const PROTECTED: &str = "protected paths in writable roots can be written";
const TRUNCATE: &str = "truncating files outside";
const SIGNALS: &str = "signals to the caller's other processes";
const REFER: &str = "moving and linking files between folders is refused everywhere";

#[test]
fn with_namespaces_landlock_from_abi_2_on_is_full_and_an_older_or_none_is_partial() {
    for abi in 2..=7 {
        assert_eq!(planned(&policy(), &host(abi)).enforcement, full(), "{abi}");
    }
    let oldest = planned(&policy(), &host(1));
    assert_eq!(oldest.plan.landlock, None);
    assert_eq!(
        oldest.enforcement,
        partial(&[
            "writing to named pipes outside, for Landlock 1 would refuse moves between folders"
        ])
    );
    assert_eq!(
        planned(&policy(), &host(0)).enforcement,
        partial(&["writing to named pipes outside, for the kernel has no Landlock"])
    );
}

#[test]
fn what_a_policy_could_not_look_at_makes_the_enforcement_partial() {
    let mut policy = policy();
    assert_eq!(planned(&policy, &host(6)).enforcement, full());
    policy.gaps = vec!["hooks of further repositories".to_owned()];
    assert_eq!(
        planned(&policy, &host(6)).enforcement,
        partial(&["hooks of further repositories"])
    );
}

#[test]
fn landlock_alone_names_what_each_abi_leaves_open() {
    let always = [MODES, SEEN, IPC, HIDDEN, PROTECTED];
    let with = |more: &[&str]| partial(&[&always[..], more].concat());
    for (abi, expected) in [
        (1, with(&[TRUNCATE, SIGNALS, REFER])),
        (2, with(&[TRUNCATE, SIGNALS])),
        (3, with(&[SIGNALS])),
        (4, with(&[SIGNALS])),
        (5, with(&[SIGNALS])),
        (6, with(&[])),
        (7, with(&[])),
    ] {
        let planned = planned(&policy(), &without_namespaces(abi));
        assert_eq!(planned.enforcement, expected, "{abi}");
        assert_eq!(planned.plan.view, None);
        assert_eq!(planned.plan.tree, Tree::Subreaper);
    }
}

#[test]
fn what_a_policy_has_not_is_not_missing_under_landlock_alone() {
    let plain = Policy {
        hidden: Vec::new(),
        protected: Vec::new(),
        ..policy()
    };
    assert_eq!(
        planned(&plain, &without_namespaces(7)).enforcement,
        partial(&[MODES, SEEN, IPC])
    );
}

#[test]
fn without_namespaces_and_landlock_there_is_no_plan() {
    let refusal = plan(
        &policy(),
        &identities(),
        &without_namespaces(0),
        Path::new("/tmp/scratch"),
    );
    assert_eq!(
        refusal,
        Err(PlanError::NoBackend {
            step: "unshare user namespace".to_owned(),
            errno: "EPERM".to_owned(),
        })
    );
}

#[test]
fn with_abi_2_the_mounts_alone_refuse_truncation_and_with_abi_3_landlock_does_too() {
    use landlock::{ABI, AccessFs};
    // What the last steps handle is what the crate says of the planned ABI.
    assert!(!AccessFs::from_write(ABI::V2).contains(AccessFs::Truncate));
    assert!(AccessFs::from_write(ABI::V3).contains(AccessFs::Truncate));
    let (old, new) = (
        planned(&policy(), &host(2)).plan,
        planned(&policy(), &host(3)).plan,
    );
    assert_eq!(old.landlock.map(|landlock| landlock.abi), Some(2));
    assert_eq!(new.landlock.map(|landlock| landlock.abi), Some(3));
    // The mounts don't depend on it: everything is read-only but the workspace and private scratch.
    assert_eq!(old.view, new.view);
    let writable: Vec<_> = old
        .view
        .unwrap()
        .mounts
        .into_iter()
        .filter(|mount| matches!(mount.what, What::Own { writable: true, .. }))
        .map(|mount| mount.target)
        .collect();
    assert_eq!(writable, [c"/w".to_owned()]);
}

#[test]
fn landlock_alone_grants_the_workspace_the_stand_in_for_tmp_and_plain_devices() {
    let landlock = planned(&policy(), &without_namespaces(7))
        .plan
        .landlock
        .unwrap();
    let right = |path: &str, grant| Right {
        path: CString::new(path).unwrap(),
        grant,
    };
    let mut rights = vec![
        right("/w", Grant::Write),
        right("/tmp/scratch", Grant::Write),
    ];
    rights.extend(
        [
            "null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts",
        ]
        .map(|node| right(&format!("/dev/{node}"), Grant::Devices)),
    );
    assert_eq!(
        landlock,
        Landlock {
            abi: 7,
            rights,
            scope_abstract_sockets: true,
            scope_signals: true,
            refuse_tcp: true,
        }
    );
    let read_only = Policy {
        mode: Mode::ReadOnly,
        writable: Vec::new(),
        ..policy()
    };
    let landlock = planned(&read_only, &without_namespaces(7))
        .plan
        .landlock
        .unwrap();
    assert_eq!(landlock.rights[0], right("/tmp/scratch", Grant::Write));
}

#[test]
fn without_a_new_proc_an_empty_one_hides_the_hosts_and_sockets_are_refused() {
    let facts = HostFacts {
        own_proc: refused("mount /proc"),
        ..host(7)
    };
    let degraded = planned(&policy(), &facts);
    assert_eq!(
        degraded.enforcement,
        partial(&[
            "/proc is empty, for the host refuses a new one",
            "UNIX sockets can't be used at all, for a path can't be judged without /proc",
        ])
    );
    assert_eq!(degraded.plan.tree, Tree::PidNamespace { proc: Proc::Empty });
    assert_eq!(degraded.plan.supervised, None);
    let fresh = planned(&policy(), &host(7)).plan;
    assert_eq!(fresh.tree, Tree::PidNamespace { proc: Proc::Fresh });
    assert_eq!(fresh.supervised, Some(filters::supervision()));
}

#[test]
fn without_a_listener_sockets_by_path_are_refused_as_a_whole() {
    let facts = HostFacts {
        listener: refused("seccomp listener"),
        ..host(7)
    };
    let degraded = planned(&policy(), &facts);
    assert_eq!(
        degraded.enforcement,
        partial(&["UNIX sockets can't be used at all, for no seccomp listener can be had"])
    );
    assert_eq!(degraded.plan.supervised, None);
    assert_ne!(
        degraded.plan.filters,
        planned(&policy(), &host(7)).plan.filters
    );
}

#[test]
fn without_namespaces_internet_sockets_are_refused_unless_the_network_is_the_hosts() {
    let open = Policy {
        network: Network::Host,
        ..policy()
    };
    let facts = without_namespaces(7);
    let (none, host_network) = (planned(&policy(), &facts), planned(&open, &facts));
    assert_ne!(none.plan.filters, host_network.plan.filters);
    let tcp = |planned: &Planned| planned.plan.landlock.as_ref().map(|it| it.refuse_tcp);
    assert_eq!(tcp(&none), Some(true));
    assert_eq!(tcp(&host_network), Some(false));
    assert_eq!(host_network.enforcement, none.enforcement);
}

#[test]
fn the_hosts_network_is_full_on_every_abi_because_abstract_names_are_judged_at_connect() {
    let open = Policy {
        network: Network::Host,
        ..policy()
    };
    for abi in [2, 5, 6, 7] {
        let planned = planned(&open, &host(abi));
        assert_eq!(planned.enforcement, full(), "{abi}");
        assert!(planned.plan.supervised.is_some());
    }
}
