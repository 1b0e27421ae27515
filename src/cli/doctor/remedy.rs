//! From what a host refuses to what a person can type.
//!
//! Rule: a pure function of the findings. A gap names what is lost and who refuses; its remedy is a
//! command, the least that helps first. Where no command helps, it says what does.

use std::path::{Path, PathBuf};

use super::{Amount, Gap, Trial};
use crate::host::probe::{Answer, Host};
use crate::outcome::NeverRan;

/// Every gap, in the order in which a set-up meets it. Nothing is a gap that costs no mode anything.
pub(super) fn gaps(host: &Host, binary: &Result<PathBuf, NeverRan>, trials: &[Trial]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    if let Err(error) = binary {
        gaps.push(Gap {
            what: "no command can be confined".to_owned(),
            why: error.message.clone(),
            remedy: error.remedy.clone(),
        });
    }
    gaps.extend(namespaces(host, binary.as_deref().ok()));
    gaps.extend(proc(host));
    gaps.extend(landlock(host));
    gaps.extend(seccomp(host));
    gaps.extend(loopback(host));
    let known = !gaps.is_empty();
    for trial in trials {
        if let Some(error) = &trial.error {
            let ours = error.remedy.is_empty() || error.remedy.contains("cofferdam doctor");
            // A failure that a gap above explains needs no second one.
            if !(known && ours) {
                gaps.push(Gap {
                    what: format!("{} refuses to run", trial.mode),
                    why: error.message.clone(),
                    remedy: if ours {
                        HANGS.to_owned()
                    } else {
                        error.remedy.clone()
                    },
                });
            }
        } else if trial.amount == Some(Amount::Refused) {
            gaps.push(Gap {
                what: format!("{} refuses to run", trial.mode),
                why: format!(
                    "a profile says require = \"full\", and this isn't governed: {}",
                    trial.missing.join("; ")
                ),
                remedy: "# cure the other gaps, or set require = \"partial\" in the profile\n\
                         cofferdam profile show"
                    .to_owned(),
            });
        }
    }
    // The probes found nothing, and yet something was refused.
    let weaker = trials
        .iter()
        .find(|trial| trial.amount == Some(Amount::Partial));
    if let Some(trial) = weaker.filter(|_| gaps.is_empty()) {
        gaps.push(Gap {
            what: format!("enforcement is partial: {}", trial.missing.join("; ")),
            why: trial.refused.join("; "),
            remedy: WHO.to_owned(),
        });
    }
    gaps
}

const WHO: &str =
    "# see who refuses it\nsudo dmesg | tail\nsudo sysctl -a 2>/dev/null | grep userns";
const OUTSIDE: &str = "# run it outside of that sandbox\ncofferdam doctor";
const HANGS: &str = "# say what is tried, and look for a mount that hangs\n\
                     COFFERDAM_LOG=debug cofferdam run -- true\n\
                     findmnt -rno TARGET | while read -r at; do timeout 1 stat -t \"$at\" >/dev/null || echo \"$at\"; done";

fn because(answer: &Answer) -> String {
    super::said(answer).trim_start_matches("no: ").to_owned()
}

fn namespaces(host: &Host, binary: Option<&Path>) -> Option<Gap> {
    let names = &host.namespaces;
    let refused = [
        &names.user,
        &names.mount,
        &names.pid,
        &names.network,
        &names.ipc,
        &names.uts,
    ]
    .into_iter()
    .find(|answer| !answer.given)?;
    let settings = &host.settings;
    let ordinary = host.uid != 0;
    let mut by = "";
    let remedy = if settings.max_user_namespaces == Some(0) {
        by = "; user.max_user_namespaces is 0";
        setting("user.max_user_namespaces", "15000")
    } else if ordinary && settings.unprivileged_userns_clone == Some(0) {
        by = "; kernel.unprivileged_userns_clone is 0";
        setting("kernel.unprivileged_userns_clone", "1")
    } else if host.seccomp.listener.errno.as_deref() == Some("EBUSY") {
        by = "; an outer sandbox refuses it";
        OUTSIDE.to_owned()
    } else if let Some(container) = &settings.container {
        by = "; a container's own filter or profile refuses it";
        in_container(container, host)
    } else if ordinary && settings.apparmor_restrict_unprivileged_userns == Some(1) {
        by = "; kernel.apparmor_restrict_unprivileged_userns is 1, and no AppArmor profile lets \
              cofferdam through";
        apparmor(binary.unwrap_or(Path::new("/usr/local/bin/cofferdam")))
    } else if settings.already_filtered {
        by = "; a seccomp filter lies on this process already: another sandbox or a container";
        format!(
            "# run it outside of that sandbox; where that is a container:\n{}",
            in_container("docker", host)
        )
    } else {
        match refused.errno.as_deref() {
            Some("ENOSYS" | "EINVAL") => "# boot a kernel with CONFIG_USER_NS=y\n\
                                          grep CONFIG_USER_NS \"/boot/config-$(uname -r)\""
                .to_owned(),
            Some("ENOSPC" | "EUSERS") => {
                by = "; a limit of this or of an outer user namespace is reached";
                setting("user.max_user_namespaces", "15000")
            }
            Some(_) => WHO.to_owned(),
            None => HANGS.to_owned(),
        }
    };
    Some(Gap {
        what: alone(host),
        why: format!("{}{by}", because(refused)),
        remedy,
    })
}

/// What is lost where namespaces can't be had.
fn alone(host: &Host) -> String {
    match host.landlock.abi {
        0 => "no command can be confined",
        _ => "commands run under Landlock alone, and enforcement is partial",
    }
    .to_owned()
}

/// Now, and after the next start.
fn setting(name: &str, value: &str) -> String {
    format!(
        "sudo sysctl -w {name}={value}\n\
         echo '{name}={value}' | sudo tee /etc/sysctl.d/60-cofferdam.conf"
    )
}

/// The default filter of Docker refuses namespaces and mounts without CAP_SYS_ADMIN; its AppArmor profile
/// refuses mounts as such; an unconfined process then meets Ubuntu's own restriction.
fn in_container(container: &str, host: &Host) -> String {
    let mut lines = Vec::new();
    match container {
        "podman" => {
            lines.push(
                "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL IMAGE …",
            );
        }
        "kubernetes" => lines.push(
            "# in the container's securityContext: seccompProfile: {type: Unconfined}, \
             appArmorProfile: {type: Unconfined}, procMount: Unmasked (with hostUsers: false)",
        ),
        _ => {
            lines.push(
                "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
                 --security-opt systempaths=unconfined IMAGE …",
            );
            if host.uid == 0 {
                lines.push(
                    "# or, for root and at a higher price: docker run --cap-add SYS_ADMIN \
                     --security-opt apparmor=unconfined --security-opt systempaths=unconfined IMAGE …",
                );
            }
        }
    }
    if host.settings.apparmor_restrict_unprivileged_userns == Some(1) {
        lines.push(
            "# and on the host\nsudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        );
    }
    lines.join("\n")
}

/// Ubuntu 23.10 and later: a profile that confines nothing and allows user namespaces.
fn apparmor(binary: &Path) -> String {
    let binary = binary.display();
    format!(
        "printf '%s\\n' 'abi <abi/4.0>,' 'include <tunables/global>' \
         'profile cofferdam \"{binary}\" flags=(unconfined) {{' '  userns,' \
         '  include if exists <local/cofferdam>' '}}' | sudo tee /etc/apparmor.d/cofferdam\n\
         sudo apparmor_parser -r /etc/apparmor.d/cofferdam\n\
         # or, for every program\n{}",
        setting("kernel.apparmor_restrict_unprivileged_userns", "0")
    )
}

fn proc(host: &Host) -> Option<Gap> {
    // Without namespaces a new one isn't asked for.
    if host.proc.given || !host.namespaces.mount.given || !host.namespaces.pid.given {
        return None;
    }
    let remedy = match host.settings.container.as_deref() {
        Some("podman") => "podman run --security-opt unmask=ALL IMAGE …".to_owned(),
        Some("kubernetes") => {
            "# in the container's securityContext: procMount: Unmasked (with hostUsers: false)"
                .to_owned()
        }
        Some(_) => "docker run --security-opt systempaths=unconfined IMAGE …".to_owned(),
        None => "# uncover what is mounted over parts of /proc\nfindmnt -R /proc\n\
                 # in a container: docker run --security-opt systempaths=unconfined IMAGE …"
            .to_owned(),
    };
    Some(Gap {
        what: "commands see an empty /proc and can't use UNIX sockets".to_owned(),
        why: format!(
            "{}; the kernel gives no new /proc while parts of the present one are covered",
            because(&host.proc)
        ),
        remedy,
    })
}

fn landlock(host: &Host) -> Option<Gap> {
    let namespaces = host.namespaces.user.given && host.namespaces.mount.given;
    let modules = host.settings.security_modules.as_deref();
    let pipes = if namespaces {
        "named pipes outside can be written, and enforcement is partial"
    } else {
        "without namespaces no command can be confined"
    };
    let (what, why, remedy) = match host.landlock.abi {
        0 if modules.is_some_and(|modules| modules.split(',').any(|name| name == "landlock")) => (
            pipes,
            "the kernel has Landlock, but a filter refuses it".to_owned(),
            in_container(host.settings.container.as_deref().unwrap_or("docker"), host),
        ),
        0 => (
            pipes,
            "the kernel has no Landlock, or it isn't switched on".to_owned(),
            LANDLOCK.to_owned(),
        ),
        1 if namespaces => (
            pipes,
            "Landlock 1 would refuse every move between folders, so it isn't used".to_owned(),
            KERNEL_5_19.to_owned(),
        ),
        abi if abi < 6 && !namespaces => (
            "without namespaces an old Landlock leaves more open",
            format!(
                "ABI {abi} lacks {}",
                host.landlock
                    .lacks
                    .iter()
                    .map(|lack| lack.what)
                    .collect::<Vec<_>>()
                    .join("; ")
            ),
            "# boot Linux 6.12 or later\nuname -r".to_owned(),
        ),
        _ => return None,
    };
    Some(Gap {
        what: what.to_owned(),
        why,
        remedy,
    })
}

/// The parameter replaces the whole list of modules, so the present ones are named again.
const LANDLOCK: &str = "# with CONFIG_SECURITY_LANDLOCK=y (Linux 5.13 or later): name it in the kernel's \
     parameters, and start again\n\
     echo \"GRUB_CMDLINE_LINUX=\\\"\\$GRUB_CMDLINE_LINUX lsm=landlock,$(cat /sys/kernel/security/lsm)\\\"\" | \
     sudo tee /etc/default/grub.d/60-landlock.cfg && sudo update-grub\n\
     # Fedora and its kin\n\
     sudo grubby --update-kernel=ALL --args=\"lsm=landlock,$(cat /sys/kernel/security/lsm)\"";
const KERNEL_5_19: &str = "# boot Linux 5.19 or later\nuname -r";

fn seccomp(host: &Host) -> Option<Gap> {
    let (filter, listener) = (&host.seccomp.filter, &host.seccomp.listener);
    if !filter.given {
        return Some(Gap {
            what: "no command can be confined".to_owned(),
            why: because(filter),
            remedy: "# boot a kernel with CONFIG_SECCOMP_FILTER=y, or leave the sandbox that refuses it\n\
                     grep CONFIG_SECCOMP \"/boot/config-$(uname -r)\""
                .to_owned(),
        });
    }
    if listener.given {
        return None;
    }
    let (by, remedy) = match listener.errno.as_deref() {
        Some("EBUSY") => (
            "; an outer sandbox listens already, and the kernel allows one",
            OUTSIDE.to_owned(),
        ),
        Some("EINVAL") => ("; it came with Linux 5.19", KERNEL_5_19.to_owned()),
        _ => (
            "",
            in_container(host.settings.container.as_deref().unwrap_or("docker"), host),
        ),
    };
    Some(Gap {
        what: "commands can't use UNIX sockets".to_owned(),
        why: format!("{}{by}", because(listener)),
        remedy,
    })
}

fn loopback(host: &Host) -> Option<Gap> {
    let names = &host.namespaces;
    if names.loopback.given || !names.network.given {
        return None;
    }
    Some(Gap {
        what: "servers and clients of one session can't meet on 127.0.0.1".to_owned(),
        why: because(&names.loopback),
        remedy: if host.settings.apparmor_restrict_unprivileged_userns == Some(1) {
            apparmor(Path::new("/usr/local/bin/cofferdam"))
        } else {
            "# see who refuses CAP_NET_ADMIN inside a user namespace\n\
             unshare -Urn ip link set lo up; sudo dmesg | tail"
                .to_owned()
        },
    })
}

#[cfg(test)]
mod tests;
