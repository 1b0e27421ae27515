//! Sockets by raw address, and what is bound where.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// `connect(2)` with an address as bytes.
///
/// # Errors
/// What `connect(2)` says.
pub fn connect(socket: impl AsFd, address: &[u8]) -> Result<(), Errno> {
    let length = libc::socklen_t::try_from(address.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the kernel copies `length` bytes from the slice, which holds as many, and checks them.
    let done =
        unsafe { libc::connect(socket.as_fd().as_raw_fd(), address.as_ptr().cast(), length) };
    Errno::result(done).map(drop)
}

/// A UNIX socket that is bound to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundSocket {
    /// The low 32 bits of the file's inode number.
    pub inode: u32,
    /// The major number of the file's device.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// Every UNIX socket of this network namespace that is bound to a file (`sock_diag(7)`).
///
/// # Errors
/// What the netlink socket says; `ENOENT` where the kernel has no `unix_diag`.
pub fn unix_sockets_by_file() -> Result<impl Iterator<Item = BoundSocket>, Errno> {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
    const UNIX: u8 = 1; // AF_UNIX, in its netlink width
    const BY_FAMILY: u16 = 20;
    const DUMP: u16 = 0x301; // NLM_F_REQUEST | NLM_F_DUMP
    const SHOW_FILE: u32 = 2;
    const DONE: u16 = 3;
    const ERROR: u16 = 2;
    const FILE: u16 = 1;

    let plain = |errno: rustix::io::Errno| Errno::from_raw(errno.raw_os_error());
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(rustix::net::netlink::SOCK_DIAG),
    )
    .map_err(plain)?;
    // struct nlmsghdr, then struct unix_diag_req, linux/unix_diag.h.
    let mut request = Vec::new();
    for word in [40u32, u32::from(BY_FAMILY) | (u32::from(DUMP) << 16), 1, 0] {
        request.extend(word.to_ne_bytes());
    }
    request.extend([UNIX, 0, 0, 0]);
    for word in [u32::MAX, 0, SHOW_FILE, 0, 0] {
        request.extend(word.to_ne_bytes());
    }
    rustix::net::send(&socket, &request, SendFlags::empty()).map_err(plain)?;

    let mut bound = Vec::new();
    let mut buffer = vec![0u8; 64 * 1024];
    'dump: loop {
        let (length, _) =
            rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty()).map_err(plain)?;
        let mut rest = &buffer[..length];
        while let Some((kind, body, next)) = netlink_message(rest) {
            match kind {
                DONE => break 'dump,
                ERROR => return Err(Errno::ENOENT),
                _ => {}
            }
            // struct unix_diag_msg is 16 bytes; attributes follow.
            let mut attributes = body.get(16..).unwrap_or_default();
            while let Some((kind, value, next)) = attribute(attributes) {
                if kind == FILE
                    && let (Some(inode), Some(device)) = (word(value, 0), word(value, 4))
                {
                    // The kernel's own dev_t: twenty bits of minor.
                    bound.push(BoundSocket {
                        inode,
                        major: device >> 20,
                        minor: device & 0xf_ffff,
                    });
                }
                attributes = next;
            }
            rest = next;
        }
        if length == 0 {
            break;
        }
    }
    Ok(bound.into_iter())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk::<4>()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk::<2>()?))
}

/// Type and body of the first message, and what follows it.
fn netlink_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(word(bytes, 0)?).ok()?;
    let body = bytes.get(16..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((half(bytes, 4)?, body, next))
}

fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(half(bytes, 0)?);
    let value = bytes.get(4..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((half(bytes, 2)?, value, next))
}
