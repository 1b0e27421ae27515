//! The last steps of a command before `execve`, as a list.
//!
//! Rule: the order carries the confinement. Landlock comes after the last mount (it forbids mounting)
//! and needs no_new_privs; capabilities go before seccomp, whose filters are the last to be laid on; what
//! the command is, is only learned under all of it; nothing but 0, 1, 2 and a script's descriptor is open
//! afterwards.

use std::os::fd::{AsFd, OwnedFd};

use caps::CapSet;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::thread::CapabilitySet;

use super::message::{Failure, FailureKind as Kind, Go, Step};
use super::wire;
use crate::plan::{Grant, Landlock, Plan, Tree};
use crate::sys;

/// Confines this process, waits for the command that it is to become, and becomes it.
pub(super) fn become_command(plan: &Plan, from_cell: OwnedFd, to_init: &OwnedFd) -> ! {
    let failure = match confine(plan, to_init).and_then(|()| wait_for_command(from_cell)) {
        Ok((go, descriptors)) => match enter(&go, descriptors, to_init) {
            Ok(_to_init) => execute(&go),
            Err(failure) => failure,
        },
        Err(failure) => failure,
    };
    // Without an init nobody is there to be told.
    wire::send(to_init, &FromChild::Failed(failure), &[]).ok();
    sys::exit_now(125)
}

fn confine(plan: &Plan, to_init: &OwnedFd) -> Result<(), Failure> {
    leave_the_terminal()?;
    if plan.tree == Tree::Subreaper {
        // A PID namespace ends with its init; without one this much does.
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)
            .step(Kind::SetUp, "set the parent-death signal")?;
    }
    sys::reset_signals();
    set_limits(plan)?;
    rustix::thread::set_no_new_privs(true).step(Kind::SetUp, "set no_new_privs")?;
    if let Some(landlock) = &plan.landlock {
        restrict_by_landlock(landlock)?;
    }
    drop_capabilities(plan)?;
    for filter in &plan.filters {
        sys::install_filter(filter).step(Kind::SetUp, "install a seccomp filter")?;
    }
    if let Some(program) = &plan.supervised {
        let listener = sys::install_listener(program).step(Kind::Listener, "seccomp listener")?;
        wire::send(to_init, &FromChild::Listener, &[listener.as_fd()])
            .step(Kind::SetUp, "send the seccomp listener")?;
    }
    Ok(())
}

/// Descriptors of the command: standard input, output, error, and the script when there is one.
fn wait_for_command(from_cell: OwnedFd) -> Result<(Go, Vec<OwnedFd>), Failure> {
    match wire::receive::<Go>(from_cell).step(Kind::SetUp, "receive the command")? {
        Some(command) => Ok(command),
        // The cell has gone, or needs another one.
        None => sys::exit_now(0),
    }
}

/// The socket to the init, moved out of the way, comes back: it closes when the command begins.
fn enter(go: &Go, descriptors: Vec<OwnedFd>, to_init: &OwnedFd) -> Result<OwnedFd, Failure> {
    rustix::process::chdir(go.workdir.as_c_str())
        .step(Kind::Workdir, "enter the working directory")
        .map_err(|failure| failure.about(go.workdir.to_bytes()))?;
    place_stdio(go, &descriptors)?;
    let above = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, ABOVE).step(Kind::SetUp, "dup");
    let moved = above(to_init)?;
    let script = descriptors.get(3).map(above).transpose()?;
    // They may have come in at the very number that the script is wanted at.
    drop(descriptors);
    sys::close_from(3).step(Kind::SetUp, "close_range")?;
    if let (Some(script), Some(at)) = (&script, go.script_at) {
        sys::place_descriptor(script, at).step(Kind::SetUp, "dup2")?;
    }
    Ok(moved)
}

/// Above the numbers that a command's own descriptors are put at.
const ABOVE: i32 = 20;

fn place_stdio(go: &Go, descriptors: &[OwnedFd]) -> Result<(), Failure> {
    let [stdin, stdout, stderr, ..] = descriptors else {
        return Err(Failure::new(
            Kind::SetUp,
            "receive descriptors",
            Errno::EBADF,
        ));
    };
    let place = |from: &OwnedFd, at| sys::place_descriptor(from, at).step(Kind::SetUp, "dup2");
    if go.null_stdin {
        let null = rustix::fs::open(
            c"/dev/null",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .step(Kind::SetUp, "open /dev/null")?;
        place(&null, 0)?;
    } else {
        place(stdin, 0)?;
    }
    place(stdout, 1)?;
    place(stderr, 2)
}

/// What the child says to its init before it becomes the command.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum FromChild {
    /// The listener of its supervised calls is beside this.
    Listener,
    /// It never ran.
    Failed(Failure),
}

fn leave_the_terminal() -> Result<(), Failure> {
    nix::unistd::setsid().step(Kind::SetUp, "setsid").map(drop)
}

fn set_limits(plan: &Plan) -> Result<(), Failure> {
    for (resource, limit) in [
        (Resource::RLIMIT_NPROC, plan.max_processes),
        (Resource::RLIMIT_NOFILE, plan.max_open_files),
        (Resource::RLIMIT_FSIZE, plan.max_file_size),
    ] {
        if let Some(limit) = limit {
            let (_, hard) =
                nix::sys::resource::getrlimit(resource).step(Kind::SetUp, "getrlimit")?;
            let limit = limit.min(hard);
            setrlimit(resource, limit, limit).step(Kind::SetUp, "setrlimit")?;
        }
    }
    // A core file would be written wherever the host's pattern says.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).step(Kind::SetUp, "setrlimit")
}

fn restrict_by_landlock(plan: &Landlock) -> Result<(), Failure> {
    let status = landlock_ruleset(plan)
        .map_err(|_| Failure::new(Kind::SetUp, "Landlock ruleset", Errno::last()))?;
    if status == RulesetStatus::FullyEnforced {
        Ok(())
    } else {
        Err(Failure::new(
            Kind::SetUp,
            "Landlock is not enforced as planned",
            Errno::ENOTSUP,
        ))
    }
}

fn landlock_ruleset(plan: &Landlock) -> Result<RulesetStatus, RulesetError> {
    let abi = abi(plan.abi);
    let changes = AccessFs::from_write(abi);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(changes)?;
    if plan.refuse_tcp {
        ruleset = ruleset.handle_access(AccessNet::from_all(abi))?;
    }
    if plan.scope_abstract_sockets {
        ruleset = ruleset.scope(Scope::AbstractUnixSocket)?;
    }
    if plan.scope_signals {
        ruleset = ruleset.scope(Scope::Signal)?;
    }
    let mut ruleset = ruleset.create()?;
    for right in &plan.rights {
        // What isn't there needs no right (a host may lack `/dev/ptmx`), and what has become a link gets
        // none.
        let Ok(path) = rustix::fs::openat2(
            rustix::fs::CWD,
            right.path.as_c_str(),
            OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        ) else {
            continue;
        };
        let folder = rustix::fs::fstat(&path)
            .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
        let granted = granted(right.grant, abi);
        let granted = if folder {
            granted
        } else {
            granted & AccessFs::from_file(abi)
        };
        ruleset = ruleset.add_rule(PathBeneath::new(path, granted))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

fn granted(grant: Grant, abi: ABI) -> BitFlags<AccessFs> {
    let changes = AccessFs::from_write(abi);
    let existing = AccessFs::WriteFile | AccessFs::Truncate;
    match grant {
        Grant::Write => changes,
        Grant::WriteExisting => changes & existing,
        Grant::Devices => changes & (existing | AccessFs::IoctlDev),
    }
}

fn abi(number: u32) -> ABI {
    ABI::from(i32::try_from(number).unwrap_or(0))
}

fn drop_capabilities(plan: &Plan) -> Result<(), Failure> {
    let keep = CapabilitySet::from_bits_retain(plan.capabilities);
    // The bounding set can only be dropped with CAP_SETPCAP, which a caller without namespaces may lack.
    // Nothing is lost: under no_new_privs no program gives a capability that its caller hasn't got.
    let held = rustix::thread::capabilities(None).step(Kind::SetUp, "read capabilities")?;
    let mut sets = vec![CapSet::Effective, CapSet::Permitted, CapSet::Inheritable];
    if held.effective.contains(CapabilitySet::SETPCAP) {
        sets.push(CapSet::Bounding);
        for number in 0..64 {
            let one = CapabilitySet::from_bits_retain(1 << number);
            if !keep.contains(one) {
                match rustix::thread::remove_capability_from_bounding_set(one) {
                    // Past the last capability of this kernel.
                    Err(rustix::io::Errno::INVAL) => break,
                    other => other.step(Kind::SetUp, "drop the bounding set")?,
                }
            }
        }
    }
    rustix::thread::clear_ambient_capability_set().step(Kind::SetUp, "clear ambient set")?;
    rustix::thread::set_capabilities(
        None,
        rustix::thread::CapabilitySets {
            effective: keep,
            permitted: keep,
            inheritable: CapabilitySet::empty(),
        },
    )
    .step(Kind::SetUp, "drop capabilities")?;
    // Dropped is what isn't there afterwards.
    for set in sets {
        let left = caps::read(None, set)
            .map_err(|_| Failure::new(Kind::SetUp, "read capabilities", Errno::last()))?;
        let left = left.iter().fold(0, |bits, one| bits | one.bitmask());
        if left & !plan.capabilities != 0 {
            return Err(Failure::new(Kind::SetUp, "drop capabilities", Errno::EPERM));
        }
    }
    Ok(())
}

fn execute(go: &Go) -> Failure {
    let mut refused = Errno::ENOENT;
    for candidate in &go.candidates {
        let errno = sys::execve(candidate, &go.argv, &go.env);
        // As execvp(3): a folder of PATH that hasn't got it, or won't show it, doesn't end the search.
        if errno == Errno::EACCES {
            refused = errno;
        } else if errno != Errno::ENOENT && errno != Errno::ENOTDIR {
            return Failure::new(Kind::Exec, "execve", errno).about(candidate.to_bytes());
        }
    }
    let name = go.argv.first().map_or(&[][..], |name| name.to_bytes());
    Failure::new(Kind::Exec, "execve", refused).about(name)
}
