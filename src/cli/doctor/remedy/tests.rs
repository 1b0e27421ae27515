//! What a person reads for each kind of host, whole.

use super::*;
use crate::host::probe::{Cgroup, Host, Landlock, Namespaces, Seccomp, Settings, lacks};
use crate::mode::Mode;

fn yes() -> Answer {
    Answer {
        given: true,
        step: None,
        errno: None,
        millis: 1.0,
    }
}

fn no(step: &str, errno: &str) -> Answer {
    Answer {
        given: false,
        step: Some(step.to_owned()),
        errno: Some(errno.to_owned()),
        millis: 1.0,
    }
}

fn host() -> Host {
    Host {
        kernel: "6.12.0".to_owned(),
        uid: 1000,
        landlock: Landlock {
            abi: 6,
            lacks: lacks(6),
        },
        namespaces: Namespaces {
            user: yes(),
            mount: yes(),
            pid: yes(),
            network: yes(),
            loopback: yes(),
            ipc: yes(),
            uts: yes(),
        },
        proc: yes(),
        seccomp: Seccomp {
            filter: yes(),
            listener: yes(),
        },
        cgroup: Cgroup {
            path: None,
            delegated: no("find a cgroup2 mount", "ENOENT"),
            controllers: Vec::new(),
        },
        settings: Settings::default(),
    }
}

fn without_namespaces(errno: &str, settings: Settings) -> Host {
    let refused = || no("unshare user namespace", errno);
    Host {
        namespaces: Namespaces {
            user: refused(),
            mount: refused(),
            pid: refused(),
            network: refused(),
            loopback: refused(),
            ipc: refused(),
            uts: refused(),
        },
        proc: refused(),
        settings,
        ..host()
    }
}

fn of(host: &Host) -> Vec<Gap> {
    gaps(host, &Ok("/usr/bin/cofferdam".into()), &[])
}

fn gap(what: &str, why: &str, remedy: &str) -> Gap {
    Gap {
        what: what.to_owned(),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    }
}

const ALONE: &str = "commands run under Landlock alone, and enforcement is partial";

#[test]
fn a_host_that_gives_everything_has_no_gap_though_it_delegates_no_cgroup() {
    assert_eq!(of(&host()), []);
}

#[test]
fn a_setting_that_refuses_namespaces_is_named_with_the_line_that_changes_it() {
    let settings = Settings {
        max_user_namespaces: Some(0),
        ..Settings::default()
    };
    assert_eq!(
        of(&without_namespaces("ENOSPC", settings)),
        [gap(
            ALONE,
            "unshare user namespace: ENOSPC; user.max_user_namespaces is 0",
            "sudo sysctl -w user.max_user_namespaces=15000\n\
             echo 'user.max_user_namespaces=15000' | sudo tee /etc/sysctl.d/60-cofferdam.conf",
        )]
    );
    let settings = Settings {
        unprivileged_userns_clone: Some(0),
        ..Settings::default()
    };
    assert_eq!(
        of(&without_namespaces("EPERM", settings)),
        [gap(
            ALONE,
            "unshare user namespace: EPERM; kernel.unprivileged_userns_clone is 0",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1\n\
             echo 'kernel.unprivileged_userns_clone=1' | sudo tee /etc/sysctl.d/60-cofferdam.conf",
        )]
    );
}

#[test]
fn ubuntu_gets_an_apparmor_profile_for_the_binary_that_was_found() {
    let settings = Settings {
        apparmor_restrict_unprivileged_userns: Some(1),
        ..Settings::default()
    };
    let mut host = host();
    host.settings = settings;
    host.namespaces.mount = no("make all mounts read-only", "EACCES");
    assert_eq!(
        of(&host),
        [gap(
            ALONE,
            "make all mounts read-only: EACCES; kernel.apparmor_restrict_unprivileged_userns is 1, \
             and no AppArmor profile lets cofferdam through",
            "printf '%s\\n' 'abi <abi/4.0>,' 'include <tunables/global>' \
             'profile cofferdam \"/usr/bin/cofferdam\" flags=(unconfined) {' '  userns,' \
             '  include if exists <local/cofferdam>' '}' | sudo tee /etc/apparmor.d/cofferdam\n\
             sudo apparmor_parser -r /etc/apparmor.d/cofferdam\n\
             # or, for every program\n\
             sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0\n\
             echo 'kernel.apparmor_restrict_unprivileged_userns=0' | sudo tee /etc/sysctl.d/60-cofferdam.conf",
        )]
    );
}

#[test]
fn in_docker_the_options_of_docker_run_are_named() {
    let settings = || Settings {
        container: Some("docker".to_owned()),
        ..Settings::default()
    };
    assert_eq!(
        of(&without_namespaces("EPERM", settings())),
        [gap(
            ALONE,
            "unshare user namespace: EPERM; a container's own filter or profile refuses it",
            "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
             --security-opt systempaths=unconfined IMAGE …",
        )]
    );
    let mut masked = host();
    masked.settings = settings();
    masked.proc = no("mount /proc", "EPERM");
    assert_eq!(
        of(&masked),
        [gap(
            "commands see an empty /proc and can't use UNIX sockets",
            "mount /proc: EPERM; the kernel gives no new /proc while parts of the present one are covered",
            "docker run --security-opt systempaths=unconfined IMAGE …",
        )]
    );
}

#[test]
fn a_kernel_without_landlock_is_told_the_parameter_that_keeps_its_other_modules() {
    let mut host = host();
    host.landlock.abi = 0;
    host.settings.security_modules = Some("lockdown,capability,apparmor".to_owned());
    assert_eq!(
        of(&host),
        [gap(
            "named pipes outside can be written, and enforcement is partial",
            "the kernel has no Landlock, or it isn't switched on",
            "# with CONFIG_SECURITY_LANDLOCK=y (Linux 5.13 or later): name it in the kernel's parameters, \
             and start again\n\
             echo \"GRUB_CMDLINE_LINUX=\\\"\\$GRUB_CMDLINE_LINUX lsm=landlock,$(cat /sys/kernel/security/lsm)\\\"\" | \
             sudo tee /etc/default/grub.d/60-landlock.cfg && sudo update-grub\n\
             # Fedora and its kin\n\
             sudo grubby --update-kernel=ALL --args=\"lsm=landlock,$(cat /sys/kernel/security/lsm)\"",
        )]
    );
    // With it switched on, an older ABI costs nothing where the mounts carry the rest.
    host.landlock.abi = 2;
    assert_eq!(of(&host), []);
}

#[test]
fn a_mode_that_a_profile_refuses_is_a_gap_of_its_own() {
    let trial = Trial {
        mode: Mode::ReadOnly,
        amount: Some(Amount::Refused),
        missing: vec!["hidden paths can be read".to_owned()],
        refused: Vec::new(),
        error: None,
        millis: 1.0,
        built: None,
    };
    assert_eq!(
        gaps(&host(), &Ok("/usr/bin/cofferdam".into()), &[trial]),
        [gap(
            "read-only refuses to run",
            "a profile says require = \"full\", and this isn't governed: hidden paths can be read",
            "# cure the other gaps, or set require = \"partial\" in the profile\n\
             cofferdam profile show",
        )]
    );
}

#[test]
fn a_failed_true_is_told_once_and_by_the_gap_that_explains_it() {
    let trial = |remedy: &str| Trial {
        mode: Mode::ReadOnly,
        amount: Some(Amount::Refused),
        missing: Vec::new(),
        refused: Vec::new(),
        error: Some(NeverRan::refused(
            crate::outcome::NeverRanCode::SandboxUnavailable,
            "it failed",
            remedy,
        )),
        millis: 1.0,
        built: None,
    };
    let binary = || Ok("/usr/bin/cofferdam".into());
    let own = gaps(&host(), &binary(), &[trial("do this")]);
    assert_eq!(
        own,
        [gap("read-only refuses to run", "it failed", "do this")]
    );
    let unexplained = gaps(&host(), &binary(), &[trial("")]);
    assert_eq!(
        unexplained,
        [gap("read-only refuses to run", "it failed", HANGS)]
    );
    let refused = without_namespaces("EPERM", Settings::default());
    let explained = gaps(
        &refused,
        &binary(),
        &[trial("run `cofferdam doctor` for remedies")],
    );
    assert_eq!(explained.len(), 1);
    assert_eq!(explained[0].what, ALONE);
}

#[test]
fn what_no_probe_explains_is_told_with_the_step_that_was_refused() {
    let trial = |amount| Trial {
        mode: Mode::ReadOnly,
        amount: Some(amount),
        missing: vec!["hidden paths can be read".to_owned()],
        refused: vec!["move_mount: EACCES".to_owned()],
        error: None,
        millis: 1.0,
        built: None,
    };
    let of = |amount| gaps(&host(), &Ok("/usr/bin/cofferdam".into()), &[trial(amount)]);
    assert_eq!(
        of(Amount::Partial),
        [gap(
            "enforcement is partial: hidden paths can be read",
            "move_mount: EACCES",
            WHO
        )]
    );
    assert_eq!(of(Amount::Full), []);
}
