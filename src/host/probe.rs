//! What this host gives, found out by doing: each probe tries a step of the confinement in a child.
//!
//! Rule: a probe changes nothing outside its child, has an answer within [`LIMIT`], and one that hangs is
//! an answer too. Nothing is concluded from a version or a setting: those only explain a refusal.

use std::ffi::CStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid};
use serde::Serialize;

use crate::outcome::errno_name;
use crate::sys::{self, Child, MountAttributes};

/// How long a probe may take.
pub const LIMIT: Duration = Duration::from_millis(900);

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Whether the host gives it.
    pub given: bool,
    /// The step that was refused, or that no answer came.
    pub step: Option<String>,
    /// The errno's name; `None` for a probe that hung or died.
    pub errno: Option<String>,
    /// How long the probe took, in milliseconds.
    pub millis: f64,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    /// The kernel's release, as `uname -r` says.
    pub kernel: String,
    /// The caller's effective user.
    pub uid: u32,
    /// Landlock.
    pub landlock: Landlock,
    /// Namespaces, each inside a user namespace.
    pub namespaces: Namespaces,
    /// A fresh `/proc` in a nested PID namespace.
    pub proc: Answer,
    /// Seccomp.
    pub seccomp: Seccomp,
    /// Control groups, version 2.
    pub cgroup: Cgroup,
    /// What explains a refusal.
    pub settings: Settings,
}

/// What the kernel's Landlock has.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Landlock {
    /// The ABI; 0: none.
    pub abi: u32,
    /// What it can't govern.
    pub lacks: Vec<Lack>,
}

/// Something that an older Landlock can't govern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lack {
    /// The ABI that brought it.
    pub abi: u32,
    /// The kernel that brought it.
    pub kernel: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What carries it where namespaces can be had.
    pub carried_by: &'static str,
}

/// Which namespaces can be had.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Namespaces {
    /// With the caller's own user mapped.
    pub user: Answer,
    /// With all mounts made private and read-only.
    pub mount: Answer,
    /// With a process in it.
    pub pid: Answer,
    /// Without an interface that is up.
    pub network: Answer,
    /// Loopback, brought up in it.
    pub loopback: Answer,
    /// System V and POSIX queues.
    pub ipc: Answer,
    /// The host's name.
    pub uts: Answer,
}

/// What of seccomp can be had.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seccomp {
    /// A filter.
    pub filter: Answer,
    /// A filter whose calls another process answers.
    pub listener: Answer,
}

/// This process's control group. Nothing depends on it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cgroup {
    /// Its folder; `None` where version 2 isn't mounted.
    pub path: Option<PathBuf>,
    /// Whether the caller may make groups below it.
    pub delegated: Answer,
    /// The controllers there.
    pub controllers: Vec<String>,
}

/// Settings of the host; `None` where the kernel has no such setting or hides it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `user.max_user_namespaces`.
    pub max_user_namespaces: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, of Debian's older kernels.
    pub unprivileged_userns_clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, of Ubuntu.
    pub apparmor_restrict_unprivileged_userns: Option<u64>,
    /// This process's AppArmor profile.
    pub apparmor_profile: Option<String>,
    /// The security modules that are active, in their order.
    pub security_modules: Option<String>,
    /// Whether a seccomp filter lies on this process already.
    pub already_filtered: bool,
    /// What kind of container this is, as far as it says.
    pub container: Option<String>,
}

/// What Landlock learnt since its first ABI, as far as a command's confinement asks for it.
const LEARNT: [Lack; 5] = [
    Lack {
        abi: 2,
        kernel: "5.19",
        what: "moving and linking files between folders, which ABI 1 refuses everywhere",
        carried_by: "the mounts, and Landlock isn't used",
    },
    Lack {
        abi: 3,
        kernel: "6.2",
        what: "truncating files by path",
        carried_by: "the mounts",
    },
    Lack {
        abi: 4,
        kernel: "6.7",
        what: "TCP",
        carried_by: "the network namespace",
    },
    Lack {
        abi: 5,
        kernel: "6.10",
        what: "ioctls of devices",
        carried_by: "the private /dev",
    },
    Lack {
        abi: 6,
        kernel: "6.12",
        what: "abstract UNIX sockets and signals",
        carried_by: "the network and PID namespaces",
    },
];

/// What an ABI can't govern.
pub fn lacks(abi: u32) -> Vec<Lack> {
    LEARNT.into_iter().filter(|lack| lack.abi > abi).collect()
}

/// Tries everything, one after the other. Must be called while this process has one thread.
pub fn probe() -> Host {
    let abi = sys::landlock_abi();
    Host {
        kernel: nix::sys::utsname::uname().map_or_else(
            |_| "unknown".to_owned(),
            |name| name.release().to_string_lossy().into_owned(),
        ),
        uid: Uid::effective().as_raw(),
        landlock: Landlock {
            abi,
            lacks: lacks(abi),
        },
        namespaces: Namespaces {
            user: attempt(own_user),
            mount: attempt(|| {
                own_mounts()?;
                mount_at(c"/", c"tmpfs", "mount tmpfs")
            }),
            pid: attempt(|| {
                own_user()?;
                in_pid_namespace(|| Ok(()))
            }),
            network: attempt(|| inside(CloneFlags::CLONE_NEWNET, "unshare network namespace")),
            loopback: attempt(|| {
                inside(CloneFlags::CLONE_NEWNET, "unshare network namespace")?;
                at("bring loopback up", sys::loopback_up())
            }),
            ipc: attempt(|| inside(CloneFlags::CLONE_NEWIPC, "unshare IPC namespace")),
            uts: attempt(|| inside(CloneFlags::CLONE_NEWUTS, "unshare UTS namespace")),
        },
        proc: attempt(|| {
            own_mounts()?;
            in_pid_namespace(fresh_proc)
        }),
        seccomp: Seccomp {
            filter: attempt(|| {
                no_new_privs()?;
                at("install a seccomp filter", sys::install_filter(&[ALLOW]))
            }),
            listener: attempt(|| {
                no_new_privs()?;
                let listener = sys::install_listener(&[ALLOW]);
                at("install a seccomp listener", listener.map(drop))
            }),
        },
        cgroup: cgroup(),
        settings: settings(),
    }
}

/// A step that was refused.
type Refused = (&'static str, Errno);

fn at<T>(step: &'static str, done: Result<T, Errno>) -> Result<T, Refused> {
    done.map_err(|errno| (step, errno))
}

fn attempt(steps: impl FnOnce() -> Result<(), Refused>) -> Answer {
    attempt_within(LIMIT, steps)
}

/// Runs the steps in a child that then ends, and hears from it over a pipe.
fn attempt_within(limit: Duration, steps: impl FnOnce() -> Result<(), Refused>) -> Answer {
    let start = Instant::now();
    let answer = |given, step: Option<String>, errno| Answer {
        given,
        step,
        errno,
        millis: (start.elapsed().as_secs_f64() * 1e6).round() / 1e3,
    };
    let no = |step: &str, errno| answer(false, Some(step.to_owned()), Some(errno_name(errno)));
    let (read, write) = match rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
        Ok(ends) => ends,
        Err(errno) => return no("pipe", Errno::from_raw(errno.raw_os_error())),
    };
    let child = match sys::fork() {
        Ok(Child::There(child)) => child,
        Ok(Child::Here) => {
            drop(read);
            let said = match steps() {
                Ok(()) => "0 ".to_owned(),
                Err((step, errno)) => format!("{} {step}", errno as i32),
            };
            // Nobody hears it when the parent has given up.
            rustix::io::write(&write, said.as_bytes()).ok();
            sys::exit_now(0)
        }
        Err(errno) => return no("fork", errno),
    };
    drop(write);
    let left = limit.saturating_sub(start.elapsed());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
    let mut polled = [PollFd::new(
        std::os::fd::AsFd::as_fd(&read),
        PollFlags::POLLIN,
    )];
    let came = poll(&mut polled, timeout).is_ok_and(|ready| ready > 0);
    let mut said = String::new();
    if came {
        // What is said comes in one write; what isn't understood counts as unsaid.
        let mut bytes = [0; 256];
        let length = rustix::io::read(&read, &mut bytes).unwrap_or(0);
        said = String::from_utf8_lossy(&bytes[..length]).into_owned();
    }
    end(child);
    match said.split_once(' ') {
        Some(("0", _)) => answer(true, None, None),
        Some((errno, step)) => no(step, Errno::from_raw(errno.parse().unwrap_or(0))),
        None if came => answer(false, Some("the probe was killed".to_owned()), None),
        None => answer(
            false,
            Some(format!("no answer within {} ms", limit.as_millis())),
            None,
        ),
    }
}

/// Ends a child. One that doesn't even die (it hangs in the kernel) is left behind.
fn end(child: Pid) {
    // It may have ended by itself.
    kill(child, Signal::SIGKILL).ok();
    for _ in 0..50 {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) | Err(_) => return,
        }
    }
}

fn own_user() -> Result<(), Refused> {
    let (uid, gid) = (Uid::effective(), Gid::effective());
    at("unshare user namespace", unshare(CloneFlags::CLONE_NEWUSER))?;
    let write = |step, file: &str, text: String| at(step, std::fs::write(file, text).map_err(os));
    write(
        "write /proc/self/setgroups",
        "/proc/self/setgroups",
        "deny".to_owned(),
    )?;
    write(
        "write /proc/self/uid_map",
        "/proc/self/uid_map",
        format!("{uid} {uid} 1"),
    )?;
    write(
        "write /proc/self/gid_map",
        "/proc/self/gid_map",
        format!("{gid} {gid} 1"),
    )
}

fn inside(namespace: CloneFlags, step: &'static str) -> Result<(), Refused> {
    own_user()?;
    at(step, unshare(namespace))
}

fn own_mounts() -> Result<(), Refused> {
    inside(CloneFlags::CLONE_NEWNS, "unshare mount namespace")?;
    let root = rustix::fs::open(
        "/",
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let root = at(
        "open /",
        root.map_err(|errno| Errno::from_raw(errno.raw_os_error())),
    )?;
    let attributes = MountAttributes {
        read_only: true,
        private: true,
        recursive: true,
        ..MountAttributes::default()
    };
    at(
        "make all mounts read-only",
        sys::set_mount_attributes(&root, attributes),
    )
}

/// Runs a step as pid 1 of a new PID namespace.
fn in_pid_namespace(step: fn() -> Result<(), Refused>) -> Result<(), Refused> {
    const NAME: &str = "clone PID namespace";
    match at(NAME, sys::fork_into(libc::CLONE_NEWPID))? {
        Child::Here => {
            let errno = step().err().map_or(0, |(_, errno)| errno as i32);
            sys::exit_now(errno)
        }
        Child::There(child) => {
            let status = at(NAME, waitpid(child, None))?;
            let WaitStatus::Exited(_, errno) = status else {
                return Err((NAME, Errno::ECHILD));
            };
            if errno == 0 {
                Ok(())
            } else {
                Err(("mount /proc", Errno::from_raw(errno)))
            }
        }
    }
}

fn fresh_proc() -> Result<(), Refused> {
    mount_at(c"/proc", c"proc", "mount /proc")
}

fn mount_at(target: &CStr, kind: &CStr, step: &'static str) -> Result<(), Refused> {
    use rustix::mount::{MountFlags, mount};
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let done = mount(kind, target, kind, flags, None);
    at(
        step,
        done.map_err(|errno| Errno::from_raw(errno.raw_os_error())),
    )
}

fn no_new_privs() -> Result<(), Refused> {
    at("set no_new_privs", nix::sys::prctl::set_no_new_privs())
}

/// `BPF_RET | BPF_K` with `SECCOMP_RET_ALLOW`, in the memory layout of `struct sock_filter`.
const ALLOW: u64 = {
    let [a, b, c, d] = libc::SECCOMP_RET_ALLOW.to_ne_bytes();
    let [e, f] = 0x06_u16.to_ne_bytes();
    u64::from_ne_bytes([e, f, 0, 0, a, b, c, d])
};

fn os(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn cgroup() -> Cgroup {
    let path = cgroup_folder(
        &small("/proc/self/cgroup").unwrap_or_default(),
        &small("/proc/self/mountinfo").unwrap_or_default(),
    );
    let Some(path) = path else {
        return Cgroup {
            path: None,
            delegated: Answer {
                given: false,
                step: Some("find a cgroup2 mount".to_owned()),
                errno: Some("ENOENT".to_owned()),
                millis: 0.0,
            },
            controllers: Vec::new(),
        };
    };
    let delegated = attempt(|| {
        let folder = path.join(format!("cofferdam-doctor-{}", std::process::id()));
        at("mkdir of a group", std::fs::create_dir(&folder).map_err(os))?;
        at("rmdir of a group", std::fs::remove_dir(&folder).map_err(os))
    });
    let controllers = small(path.join("cgroup.controllers")).unwrap_or_default();
    Cgroup {
        delegated,
        controllers: controllers.split_whitespace().map(str::to_owned).collect(),
        path: Some(path),
    }
}

/// The folder of a process's group, from its `cgroup` and `mountinfo` (`cgroups(7)`, `proc(5)`).
fn cgroup_folder(groups: &str, mounts: &str) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        if file_system.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut words = mount.split(' ').skip(3);
        let (root, at) = (words.next()?, words.next()?);
        let below = Path::new(group).strip_prefix(root).ok()?;
        Some(Path::new(at).join(below))
    })
}

fn settings() -> Settings {
    let number = |file: &str| small(file)?.trim().parse().ok();
    let word = |file: &str| {
        let text = small(file)?.trim_matches(['\0', '\n', ' ']).to_owned();
        (!text.is_empty()).then_some(text)
    };
    Settings {
        max_user_namespaces: number("/proc/sys/user/max_user_namespaces"),
        unprivileged_userns_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor_restrict_unprivileged_userns: number(
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        ),
        apparmor_profile: word("/proc/self/attr/apparmor/current"),
        security_modules: word("/sys/kernel/security/lsm"),
        already_filtered: small("/proc/self/status")
            .is_some_and(|status| status.lines().any(|line| line == "Seccomp:\t2")),
        container: container(),
    }
}

fn container() -> Option<String> {
    if Path::new("/.dockerenv").exists() {
        Some("docker".to_owned())
    } else if Path::new("/run/.containerenv").exists() {
        Some("podman".to_owned())
    } else if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        Some("kubernetes".to_owned())
    } else {
        std::env::var("container")
            .ok()
            .filter(|name| !name.is_empty())
    }
}

/// The text of a file of the kernel, at most a megabyte of it.
fn small(path: impl AsRef<Path>) -> Option<String> {
    let mut text = Vec::new();
    std::fs::File::open(path)
        .ok()?
        .take(1 << 20)
        .read_to_end(&mut text)
        .ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_below_its_mount_and_only_in_version_2() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      31 25 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n";
        assert_eq!(
            cgroup_folder("1:pids:/x\n0::/user.slice/u\n", mounts),
            Some("/sys/fs/cgroup/user.slice/u".into())
        );
        assert_eq!(cgroup_folder("1:pids:/x\n", mounts), None);
        assert_eq!(cgroup_folder("0::/u\n", &mounts[..70]), None);
        // In a container the mount shows a part of the tree.
        let part = "31 25 0:27 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(
            cgroup_folder("0::/docker/1/a\n", part),
            Some("/sys/fs/cgroup/a".into())
        );
    }

    #[test]
    fn an_older_landlock_lacks_what_came_later() {
        let lacking = |abi| lacks(abi).iter().map(|lack| lack.abi).collect::<Vec<_>>();
        assert_eq!(lacking(0), [2, 3, 4, 5, 6]);
        assert_eq!(lacking(2), [3, 4, 5, 6]);
        assert_eq!(lacking(6), [0; 0]);
    }
}
