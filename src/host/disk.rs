//! The host's disk, sockets and processes, as a verdict on denials asks for them.
//!
//! Rule: asked outside of the confinement, as the caller's user, after the command has ended. It only
//! looks: nothing is opened for writing, nothing is connected to.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use rustix::io::Errno;

use crate::denial::{Disk, Kind, Permission, Target, Wish};

/// Symbolic links that are followed for one path, as the kernel does.
const MAX_LINKS: usize = 40;
/// Bytes of one socket table that are read.
const TABLE_CAP: u64 = 16 * 1024 * 1024;
/// Process ids up to this one are too likely to be the command's own, told from its PID namespace.
const LOW_PID: i32 = 300;

/// The real host.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDisk;

impl Disk for HostDisk {
    fn resolve(&self, path: &Path) -> Option<PathBuf> {
        resolve(path, &mut 0)
    }

    fn permits(&self, path: &Path, wish: Wish) -> Permission {
        match wish {
            Wish::Read => access(path, Access::READ_OK),
            Wish::Execute if self.kind(path) == Kind::Folder => Permission::Refused,
            Wish::Execute => access(path, Access::EXEC_OK),
            Wish::Write => match self.kind(path) {
                Kind::Folder => Permission::Refused,
                Kind::Missing => name(path),
                Kind::File | Kind::Special | Kind::Unknown => access(path, Access::WRITE_OK),
            },
            Wish::Name => name(path),
            Wish::Metadata => metadata(path),
        }
    }

    fn listens(&self, target: &Target) -> bool {
        match target {
            Target::Inet { address, datagram } => {
                let (tables, state) = if *datagram {
                    (["udp", "udp6"], UDP_BOUND)
                } else {
                    (["tcp", "tcp6"], TCP_LISTEN)
                };
                tables.iter().any(|table| {
                    internet_sockets(&socket_table(table), state)
                        .any(|bound| reaches(bound, *address))
                })
            }
            Target::SocketPath(path) => {
                let path = Path::new(OsStr::from_bytes(path));
                let table = socket_table("unix");
                unix_sockets(&table).any(|bound| is_bound_at(bound, path))
            }
            Target::SocketName(name) => {
                let table = socket_table("unix");
                // The table shows the NUL bytes of abstract names as `@`.
                let shown: Vec<u8> = std::iter::once(b'@')
                    .chain(
                        name.iter()
                            .map(|byte| if *byte == 0 { b'@' } else { *byte }),
                    )
                    .collect();
                unix_sockets(&table).any(|bound| bound == shown)
            }
        }
    }

    fn kind(&self, path: &Path) -> Kind {
        match fs::metadata(path) {
            Ok(data) if data.is_dir() => Kind::Folder,
            Ok(data) if data.is_file() => Kind::File,
            Ok(data) => {
                let kind = data.file_type();
                let special = kind.is_fifo()
                    || kind.is_socket()
                    || kind.is_char_device()
                    || kind.is_block_device();
                if special {
                    Kind::Special
                } else {
                    Kind::Unknown
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Kind::Missing
            }
            Err(_) => Kind::Unknown,
        }
    }

    fn device(&self, path: &Path) -> Option<u64> {
        path.ancestors()
            .find_map(|part| fs::symlink_metadata(part).ok())
            .map(|data| data.dev())
    }

    fn process(&self, pid: i32) -> Permission {
        let Some(process) = rustix::process::Pid::from_raw(pid).filter(|_| pid > LOW_PID) else {
            return Permission::Unknown;
        };
        match rustix::process::test_kill_process(process) {
            Ok(()) => Permission::Allowed,
            Err(_) => Permission::Refused,
        }
    }
}

/// `realpath(3)` as far as the path exists; the missing rest is appended.
fn resolve(path: &Path, links: &mut usize) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    match fs::canonicalize(path) {
        Ok(resolved) => return Some(resolved),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
        Err(_) => return None,
    }
    // A link that leads nowhere is followed to the name that would be created.
    if let Ok(target) = fs::read_link(path) {
        *links += 1;
        let folder = path.parent().unwrap_or(Path::new("/"));
        return if *links > MAX_LINKS {
            None
        } else {
            resolve(&folder.join(target), links)
        };
    }
    let folder = resolve(path.parent()?, links)?;
    match path.components().next_back()? {
        Component::Normal(name) => Some(folder.join(name)),
        Component::ParentDir => Some(folder.parent().unwrap_or(Path::new("/")).to_owned()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => Some(folder),
    }
}

/// `faccessat2(2)` with the effective ids.
fn access(path: &Path, wish: Access) -> Permission {
    match rustix::fs::accessat(CWD, path, wish, AtFlags::EACCESS) {
        Ok(()) => Permission::Allowed,
        Err(
            Errno::ACCESS
            | Errno::ROFS
            | Errno::PERM
            | Errno::NOENT
            | Errno::NOTDIR
            | Errno::TXTBSY,
        ) => Permission::Refused,
        Err(_) => Permission::Unknown,
    }
}

/// Whether the name may be created, removed or renamed in its folder.
fn name(path: &Path) -> Permission {
    let Some(folder) = path.parent() else {
        return Permission::Refused;
    };
    let writable = access(folder, Access::WRITE_OK | Access::EXEC_OK);
    if writable != Permission::Allowed {
        return writable;
    }
    let Ok(in_folder) = fs::metadata(folder) else {
        return Permission::Unknown;
    };
    let user = rustix::process::geteuid().as_raw();
    let sticky = in_folder.mode() & libc::S_ISVTX != 0 && user != 0 && in_folder.uid() != user;
    match fs::symlink_metadata(path) {
        Ok(old) if sticky && old.uid() != user => Permission::Refused,
        Ok(_) => Permission::Allowed,
        Err(error) if error.kind() == ErrorKind::NotFound => Permission::Allowed,
        Err(_) => Permission::Unknown,
    }
}

/// Whether mode, owner, times or attributes may be changed: the owner may, and root.
fn metadata(path: &Path) -> Permission {
    let (Ok(data), Ok(system)) = (fs::metadata(path), rustix::fs::statvfs(path)) else {
        return Permission::Refused;
    };
    let user = rustix::process::geteuid().as_raw();
    let read_only = system.f_flag.contains(StatVfsMountFlags::RDONLY);
    if !read_only && (user == 0 || data.uid() == user) {
        Permission::Allowed
    } else {
        Permission::Refused
    }
}

const TCP_LISTEN: &str = "0A";
const UDP_BOUND: &str = "07";
const ACCEPTS: u32 = 0x1_0000;
const DATAGRAM: u32 = 2;

/// `proc_net(5)`, as far as it is read; empty when there is none.
fn socket_table(name: &str) -> Vec<u8> {
    let mut table = Vec::new();
    if let Ok(file) = fs::File::open(Path::new("/proc/self/net").join(name)) {
        // What was read before an error still counts.
        file.take(TABLE_CAP).read_to_end(&mut table).ok();
    }
    table
}

/// The local addresses in this state.
fn internet_sockets<'a>(table: &'a [u8], state: &'a str) -> impl Iterator<Item = SocketAddr> + 'a {
    table
        .split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(move |line| {
            let mut columns = std::str::from_utf8(line).ok()?.split_whitespace();
            let (address, port) = columns.nth(1)?.split_once(':')?;
            (columns.nth(1)? == state).then_some(())?;
            Some(SocketAddr::new(
                hex_address(address)?,
                u16::from_str_radix(port, 16).ok()?,
            ))
        })
}

/// The table shows each 32-bit word of an address in the host's byte order.
fn hex_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::with_capacity(16);
    for at in (0..text.len()).step_by(8) {
        bytes.extend(
            u32::from_str_radix(text.get(at..at + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        );
    }
    if let Ok(four) = <[u8; 4]>::try_from(&bytes[..]) {
        return Some(Ipv4Addr::from(four).into());
    }
    <[u8; 16]>::try_from(&bytes[..])
        .ok()
        .map(|sixteen| Ipv6Addr::from(sixteen).into())
}

/// Whether a connection to `target` gets to a socket bound at `bound`; `::` takes IPv4 as well.
fn reaches(bound: SocketAddr, target: SocketAddr) -> bool {
    let (local, wanted) = (bound.ip().to_canonical(), target.ip().to_canonical());
    let wanted = if wanted.is_unspecified() {
        IpAddr::from([127, 0, 0, 1])
    } else {
        wanted
    };
    bound.port() == target.port()
        && (local == wanted || (local.is_unspecified() && (local.is_ipv6() || wanted.is_ipv4())))
}

/// Names of the UNIX sockets that accept connections or datagrams.
fn unix_sockets(table: &[u8]) -> impl Iterator<Item = &[u8]> {
    table
        .split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| {
            // Num RefCount Protocol Flags Type St Inode Path; a path may hold spaces.
            let mut rest = line;
            let mut columns: [&[u8]; 7] = [&[]; 7];
            for column in &mut columns {
                rest = rest.trim_ascii_start();
                let end = rest.iter().position(|byte| *byte == b' ')?;
                (*column, rest) = rest.split_at(end);
            }
            let hex = |bytes: &[u8]| u32::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok();
            let open = hex(columns[3])? & ACCEPTS != 0 || hex(columns[4])? == DATAGRAM;
            let name = rest.strip_prefix(b" ")?;
            (open && !name.is_empty()).then_some(name)
        })
}

/// Whether the name in the table means this path: as it is, through links, or from the folder in
/// which a socket with a relative name was bound.
fn is_bound_at(bound: &[u8], path: &Path) -> bool {
    let bound = Path::new(OsStr::from_bytes(bound));
    if bound == path {
        return true;
    }
    let is_socket = || fs::metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if bound.is_absolute() {
        bound.file_name() == path.file_name()
            && fs::canonicalize(bound).is_ok_and(|real| real == path)
    } else {
        !bound.as_os_str().as_bytes().starts_with(b"@")
            && bound.file_name() == path.file_name()
            && is_socket()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    #[test]
    fn a_path_is_resolved_as_far_as_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        fs::create_dir(real.join("d")).unwrap();
        symlink(real.join("d"), real.join("link")).unwrap();
        symlink("gone/x", real.join("dangling")).unwrap();
        symlink("loop", real.join("loop")).unwrap();
        let resolved = |name: &str| HostDisk.resolve(&real.join(name));
        assert_eq!(resolved("link/new/file"), Some(real.join("d/new/file")));
        assert_eq!(resolved("link/../d/x"), Some(real.join("d/x")));
        assert_eq!(resolved("dangling"), Some(real.join("gone/x")));
        assert_eq!(resolved("loop"), None);
        assert_eq!(HostDisk.resolve(Path::new("relative")), None);
    }

    #[test]
    fn own_files_may_be_written_and_folders_and_names_without_a_parent_may_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        fs::write(&file, "x").unwrap();
        let permits = |name: &str, wish| HostDisk.permits(&folder.path().join(name), wish);
        assert_eq!(permits("f", Wish::Read), Permission::Allowed);
        assert_eq!(permits("f", Wish::Write), Permission::Allowed);
        assert_eq!(permits("f", Wish::Name), Permission::Allowed);
        assert_eq!(permits("f", Wish::Metadata), Permission::Allowed);
        assert_eq!(permits("f", Wish::Execute), Permission::Refused);
        assert_eq!(permits("new", Wish::Write), Permission::Allowed);
        assert_eq!(permits("new", Wish::Metadata), Permission::Refused);
        assert_eq!(permits("no/new", Wish::Write), Permission::Refused);
        assert_eq!(
            HostDisk.permits(folder.path(), Wish::Write),
            Permission::Refused
        );
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(permits("f", Wish::Execute), Permission::Allowed);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
        let expected = if is_root() {
            Permission::Allowed
        } else {
            Permission::Refused
        };
        assert_eq!(permits("f", Wish::Read), expected);
        assert_eq!(permits("f", Wish::Write), expected);
    }

    #[test]
    fn files_of_the_system_are_for_root_alone() {
        let expected = if is_root() {
            Permission::Allowed
        } else {
            Permission::Refused
        };
        assert_eq!(
            HostDisk.permits(Path::new("/etc/passwd"), Wish::Write),
            expected
        );
        assert_eq!(
            HostDisk.permits(Path::new("/etc/passwd"), Wish::Metadata),
            expected
        );
        assert_eq!(
            HostDisk.permits(Path::new("/etc/new"), Wish::Name),
            expected
        );
        assert_eq!(
            HostDisk.permits(Path::new("/etc/passwd"), Wish::Read),
            Permission::Allowed
        );
    }

    #[test]
    fn kinds_and_devices_are_told_apart() {
        assert_eq!(HostDisk.kind(Path::new("/")), Kind::Folder);
        assert_eq!(HostDisk.kind(Path::new("/dev/null")), Kind::Special);
        assert_eq!(HostDisk.kind(Path::new("/etc/passwd")), Kind::File);
        assert_eq!(HostDisk.kind(Path::new("/no/such")), Kind::Missing);
        assert_eq!(
            HostDisk.device(Path::new("/no/such")),
            HostDisk.device(Path::new("/"))
        );
        assert_ne!(
            HostDisk.device(Path::new("/proc/self")),
            HostDisk.device(Path::new("/"))
        );
    }

    #[test]
    fn a_listener_is_found_and_a_closed_port_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let target = Target::Inet {
            address,
            datagram: false,
        };
        assert!(HostDisk.listens(&target));
        assert!(!HostDisk.listens(&Target::Inet {
            address,
            datagram: true
        }));
        drop(listener);
        assert!(!HostDisk.listens(&target));
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(HostDisk.listens(&Target::Inet {
            address: socket.local_addr().unwrap(),
            datagram: true
        }));
    }

    #[test]
    fn unix_sockets_are_found_by_path_and_by_name() {
        use std::os::linux::net::SocketAddrExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a b.sock");
        let target = Target::SocketPath(path.as_os_str().as_bytes().to_vec());
        assert!(!HostDisk.listens(&target));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(HostDisk.listens(&target));
        let name = format!("cofferdam-test-{}", std::process::id());
        let abstract_target = Target::SocketName(name.clone().into_bytes());
        assert!(!HostDisk.listens(&abstract_target));
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let _named = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        assert!(HostDisk.listens(&abstract_target));
    }

    #[test]
    fn addresses_reach_wildcards_of_their_family() {
        let reaches = |bound: &str, target: &str| {
            super::reaches(bound.parse().unwrap(), target.parse().unwrap())
        };
        assert!(reaches("0.0.0.0:80", "127.0.0.1:80"));
        assert!(reaches("[::]:80", "127.0.0.1:80"));
        assert!(reaches("[::ffff:127.0.0.1]:80", "127.0.0.1:80"));
        assert!(!reaches("0.0.0.0:80", "[::1]:80"));
        assert!(!reaches("127.0.0.1:80", "127.0.0.1:81"));
        assert!(!reaches("127.0.0.1:80", "127.0.0.2:80"));
    }

    #[test]
    fn a_process_of_this_user_may_be_signalled_and_one_that_ended_may_not() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let alive = HostDisk.process(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        if pid > LOW_PID {
            assert_eq!(alive, Permission::Allowed);
            assert_eq!(HostDisk.process(pid), Permission::Refused);
        }
        assert_eq!(HostDisk.process(1), Permission::Unknown);
    }

    #[test]
    fn a_told_refusal_is_judged_against_the_real_disk() {
        use crate::denial::{Dialect, Inputs, facts};
        use crate::mode::Mode;
        use crate::outcome::Ended;
        use crate::policy::{Environment, Limits, Network, Origin, Place, Policy, Require};

        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        let [inside, outside] = ["w", "o"].map(|name| real.join(name));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        let policy = Policy {
            pinned: Vec::new(),
            protected_links: Vec::new(),
            home: None,
            mode: Mode::WorkspaceWrite,
            workspace: inside.clone(),
            writable: vec![Place {
                path: inside.clone(),
                origin: Origin::Workspace,
            }],
            protected: vec![],
            protected_absent: vec![],
            hidden: vec![],
            visible: vec![],
            scratch: vec![],
            network: Network::None,
            refused_calls: vec![],
            limits: Limits::default(),
            environment: Environment::default(),
            require: Require::Partial,
            gaps: Vec::new(),
        };
        let told = |path: &str| -> Vec<PathBuf> {
            let stderr = format!("touch: cannot touch '{path}': Read-only file system\n");
            let inputs = Inputs {
                ended: Ended::Exited(1),
                command: "./build.sh",
                cwd: &inside,
                variables: &[],
                stdout: b"",
                stderr: stderr.as_bytes(),
                events: &[],
                policy: &policy,
                wider: None,
                dialect: Dialect::Mounts,
                disk: &HostDisk,
            };
            facts(&inputs)
                .into_iter()
                .filter_map(|fact| fact.path)
                .collect()
        };
        assert_eq!(told("link/new"), [outside.join("new")]);
        assert_eq!(
            told(&outside.join("new").to_string_lossy()),
            [outside.join("new")]
        );
        assert!(told("new").is_empty());
        assert!(told("link/no/new").is_empty());
        assert!(told("/no/such/folder/new").is_empty());
    }
}
