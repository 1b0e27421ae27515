//! Answers the calls that the kernel's own layers can't judge: `connect`, above all to a UNIX socket by
//! path, which neither a read-only mount nor Landlock before ABI 9 refuses.
//!
//! Rule: a `connect` never goes on by itself, for the caller could change its arguments after they were
//! judged. A helper takes a copy of the socket and of the address and connects in the caller's place.
//! A UNIX socket by path answers when it lies in the session's scratch, or when a process of the
//! session's own network namespace listens on it; everything else is refused with `EACCES`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::message::{Failure, FailureKind as Kind, Step};
use super::wire;
use crate::denial::{Event, Target};
use crate::plan::Plan;
use crate::sys::{self, Child, Notification, Reply};

/// Events beyond this many are counted as lost.
const MAX_EVENTS: usize = 256;
/// The longest socket address that is looked at, `sockaddr_storage`.
const MAX_ADDRESS: usize = 128;

/// What an init knows of the calls that it answers.
pub(super) struct Supervisor {
    listener: Option<OwnedFd>,
    places: Vec<(PathBuf, u64)>,
    own_network: bool,
    /// Helpers report here: theirs, ours.
    reports: (OwnedFd, OwnedFd),
    events: Vec<Event>,
    seen: HashSet<Vec<u8>>,
    lost: bool,
}

impl Supervisor {
    pub fn new(plan: &Plan, own_network: bool) -> Result<Supervisor, Failure> {
        let places = plan
            .socket_places
            .iter()
            .map(|place| PathBuf::from(OsStr::from_bytes(place.to_bytes())))
            .filter_map(|place| {
                let device = rustix::fs::stat(&place).ok()?.st_dev;
                Some((place, device))
            })
            .collect();
        Ok(Supervisor {
            listener: None,
            places,
            own_network,
            reports: wire::pair().step(Kind::SetUp, "socketpair")?,
            events: Vec::new(),
            seen: HashSet::new(),
            lost: false,
        })
    }

    pub fn listener(&self) -> Option<&OwnedFd> {
        self.listener.as_ref()
    }

    pub fn listen(&mut self, listener: Option<OwnedFd>) {
        self.listener = listener;
    }

    /// The last process under the filter has gone. (Its descriptor would be ready for ever.)
    pub fn hang_up(&mut self) {
        self.listener = None;
    }

    /// Answers one waiting call.
    pub fn attend(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let call = match sys::receive(listener) {
            Ok(call) => call,
            // The caller was killed meanwhile.
            Err(_) => return,
        };
        if call.call == libc::SYS_connect {
            // A connection may take its time, and an open of a path too: never in here.
            match sys::fork() {
                Ok(Child::There(_)) => {}
                Ok(Child::Here) => {
                    self.connect(listener, &call);
                    sys::exit_now(0)
                }
                Err(errno) => {
                    sys::answer(listener, call.id, Reply::Fail(errno)).ok();
                }
            }
        } else {
            let address = read_address(&call, call.arguments[4], call.arguments[5]);
            let pending = sys::is_pending(listener, call.id);
            let event = address
                .ok()
                .filter(|_| pending)
                .and_then(|address| inet(&address))
                .filter(|address| self.goes_nowhere(*address))
                .map(|address| Event {
                    pid: call.thread.as_raw(),
                    call: "sendto".to_owned(),
                    target: Target::Inet {
                        address,
                        datagram: true,
                    },
                    errno: 0,
                });
            // Without UNIX datagram sockets no address of this call leads to a path.
            sys::answer(listener, call.id, Reply::Continue).ok();
            if let Some(event) = event {
                self.note(event);
            }
        }
        self.collect();
    }

    /// The events, and whether some were lost.
    pub fn finish(&mut self) -> (Vec<Event>, bool) {
        self.collect();
        (std::mem::take(&mut self.events), self.lost)
    }

    fn collect(&mut self) {
        rustix::io::ioctl_fionbio(&self.reports.1, true).ok();
        while let Ok(Some((event, _))) = wire::receive::<Event>(&self.reports.1) {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event) {
        let Ok(key) = postcard::to_allocvec(&(&event.target, event.errno)) else {
            return;
        };
        if self.seen.contains(&key) {
            return;
        }
        if self.events.len() == MAX_EVENTS {
            self.lost = true;
            return;
        }
        self.seen.insert(key);
        self.events.push(event);
    }

    /// A datagram to loopback that no socket of the session takes.
    fn goes_nowhere(&self, address: SocketAddr) -> bool {
        self.own_network && address.ip().is_loopback() && !bound_by_datagram(address.port())
    }

    /// The helper: connects in the caller's place, tells the init what happened, and answers.
    fn connect(&self, listener: &OwnedFd, call: &Notification) {
        let (reply, event) = match self.connect_for(listener, call) {
            Ok(event) => (Reply::Value(0), event),
            Err((errno, event)) => (Reply::Fail(errno), event),
        };
        if let Some(event) = event {
            wire::send(&self.reports.0, &event, &[]).ok();
        }
        sys::answer(listener, call.id, reply).ok();
    }

    fn connect_for(
        &self,
        listener: &OwnedFd,
        call: &Notification,
    ) -> Result<Option<Event>, (Errno, Option<Event>)> {
        let quiet = |errno: Errno| (errno, None);
        let raw = |errno: rustix::io::Errno| (Errno::from_raw(errno.raw_os_error()), None);
        let process = process_of(call.thread);
        let pidfd = rustix::process::Pid::from_raw(process.as_raw())
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(raw)?;
        let number = i32::try_from(low_word(call.arguments[0])).map_err(|_| quiet(Errno::EBADF))?;
        let socket = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).map_err(raw)?;
        let address = read_address(call, call.arguments[1], call.arguments[2]).map_err(quiet)?;
        let domain = rustix::net::sockopt::socket_domain(&socket).map_err(raw)?;
        let cwd = rustix::fs::open(
            format!("/proc/{process}/cwd"),
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
        );
        // What was read belongs to this caller only if it still waits.
        if !sys::is_pending(listener, call.id) {
            return Err(quiet(Errno::ESRCH));
        }
        // From here on with no more rights than the caller has.
        let none = rustix::thread::CapabilitySet::empty();
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: none,
                permitted: none,
                inheritable: none,
            },
        )
        .map_err(raw)?;

        let event = |target: Target, errno: Option<Errno>| Event {
            pid: process.as_raw(),
            call: "connect".to_owned(),
            target,
            errno: errno.map_or(0, |errno| errno as i32),
        };
        if domain == rustix::net::AddressFamily::UNIX {
            return match unix_address(&address) {
                Some(UnixAddress::Path(path)) => {
                    let cwd = cwd.map_err(raw)?;
                    self.connect_path(&socket, &cwd, &path)
                        .map(|()| None)
                        .map_err(|(errno, path)| {
                            let path = path.into_os_string().into_vec();
                            (errno, Some(event(Target::SocketPath(path), Some(errno))))
                        })
                }
                Some(UnixAddress::Abstract(name)) => {
                    let done = if self.own_network {
                        sys::connect(&socket, &address)
                    } else {
                        Err(Errno::EPERM)
                    };
                    done.map(|()| None).map_err(|errno| {
                        (errno, Some(event(Target::SocketName(name), Some(errno))))
                    })
                }
                None => sys::connect(&socket, &address)
                    .map(|()| None)
                    .map_err(quiet),
            };
        }
        let datagram = rustix::net::sockopt::socket_type(&socket)
            .is_ok_and(|kind| kind == rustix::net::SocketType::DGRAM);
        let target = inet(&address).map(|address| (address, Target::Inet { address, datagram }));
        match (sys::connect(&socket, &address), target) {
            (Ok(()), Some((address, target))) if datagram && self.goes_nowhere(address) => {
                Ok(Some(event(target, None)))
            }
            (Ok(()), _) => Ok(None),
            (Err(Errno::EINPROGRESS), _) => Err(quiet(Errno::EINPROGRESS)),
            (Err(errno), Some((_, target))) => Err((errno, Some(event(target, Some(errno))))),
            (Err(errno), None) => Err(quiet(errno)),
        }
    }

    /// Connects to a socket by path if the session may. The path is opened once, and that very file is
    /// judged and used. On failure the path as the caller would see it comes back.
    fn connect_path(
        &self,
        socket: &OwnedFd,
        cwd: &OwnedFd,
        path: &Path,
    ) -> Result<(), (Errno, PathBuf)> {
        let typed = || seen_path(cwd).map_or_else(|| path.to_owned(), |cwd| cwd.join(path));
        let at = openat2(
            cwd,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            // `/proc/self` would be this process and not the caller.
            ResolveFlags::NO_MAGICLINKS,
        )
        .map_err(|errno| (Errno::from_raw(errno.raw_os_error()), typed()))?;
        let resolved = seen_path(&at).unwrap_or_else(typed);
        let stat = fstat(&at)
            .map_err(|errno| (Errno::from_raw(errno.raw_os_error()), resolved.clone()))?;
        let in_scratch = self
            .places
            .iter()
            .any(|(place, device)| stat.st_dev == *device && resolved.starts_with(place));
        let allowed = in_scratch || (self.own_network && session_listens(stat.st_dev, stat.st_ino));
        if !allowed {
            return Err((Errno::EACCES, resolved));
        }
        let address = path_address(&at).map_err(|errno| (errno, resolved.clone()))?;
        sys::connect(socket, &address).map_err(|errno| (errno, resolved))
    }
}

/// What the kernel reads of a register that holds an int.
fn low_word(register: u64) -> u32 {
    let [a, b, c, d, ..] = register.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The process that a thread belongs to.
fn process_of(thread: Pid) -> Pid {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
            line.trim().parse().ok()
        })
        .map_or(thread, Pid::from_raw)
}

fn read_address(call: &Notification, at: u64, length: u64) -> Result<Vec<u8>, Errno> {
    let length = usize::try_from(low_word(length)).map_err(|_| Errno::EINVAL)?;
    if length > MAX_ADDRESS {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; length];
    let base = usize::try_from(at).map_err(|_| Errno::EFAULT)?;
    let read = process_vm_readv(
        call.thread,
        &mut [std::io::IoSliceMut::new(&mut bytes)],
        &[RemoteIoVec { base, len: length }],
    )?;
    if read == length {
        Ok(bytes)
    } else {
        Err(Errno::EFAULT)
    }
}

enum UnixAddress {
    Path(PathBuf),
    Abstract(Vec<u8>),
}

/// `None`: an address without a name, or of another family; the kernel answers it.
fn unix_address(address: &[u8]) -> Option<UnixAddress> {
    let (family, name) = address.split_first_chunk::<2>()?;
    if libc::c_int::from(u16::from_ne_bytes(*family)) != libc::AF_UNIX {
        return None;
    }
    match name.split_first()? {
        (0, name) => Some(UnixAddress::Abstract(name.to_vec())),
        _ => {
            let path = name.split(|byte| *byte == 0).next()?;
            Some(UnixAddress::Path(PathBuf::from(OsStr::from_bytes(path))))
        }
    }
}

/// The address that leads to an open file, whatever its path is by now.
fn path_address(at: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let family = u16::try_from(libc::AF_UNIX).map_err(|_| Errno::EINVAL)?;
    let mut address = family.to_ne_bytes().to_vec();
    address.extend(format!("/proc/self/fd/{}\0", at.as_raw_fd()).bytes());
    Ok(address)
}

fn inet(address: &[u8]) -> Option<SocketAddr> {
    let family = libc::c_int::from(u16::from_ne_bytes(*address.first_chunk::<2>()?));
    let port = u16::from_be_bytes(*address.get(2..)?.first_chunk::<2>()?);
    let ip = match family {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*address.get(4..)?.first_chunk::<4>()?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(*address.get(8..)?.first_chunk::<16>()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

fn seen_path(at: &OwnedFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", at.as_raw_fd())).ok()
}

/// Whether a socket of this network namespace is bound to this file, by `sock_diag(7)`.
fn session_listens(device: u64, inode: u64) -> bool {
    sys::unix_sockets_by_file().is_ok_and(|mut bound| {
        bound.any(|socket| {
            socket.inode == low_word(inode)
                && (socket.major, socket.minor)
                    == (rustix::fs::major(device), rustix::fs::minor(device))
        })
    })
}

/// Whether a datagram socket of this network namespace has this port.
fn bound_by_datagram(port: u16) -> bool {
    ["/proc/self/net/udp", "/proc/self/net/udp6"]
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .any(|table| {
            table.lines().skip(1).any(|line| {
                let local = line.split_whitespace().nth(1).unwrap_or_default();
                local
                    .rsplit_once(':')
                    .is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            })
        })
}
