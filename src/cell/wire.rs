//! Messages over SOCK_SEQPACKET sockets, with descriptors beside them.
//!
//! Rule: a long message travels as a sealed memory file, so no message is cut and none blocks for want
//! of buffer space.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Messages up to this many bytes travel in the packet itself.
const INLINE: usize = 60_000;
const MAX_DESCRIPTORS: usize = 8;

/// A pair of connected sockets, both close-on-exec.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
}

/// Sends one message.
pub(crate) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let body = postcard::to_allocvec(message).map_err(|_| Errno::INVAL)?;
    let mut descriptors = descriptors.to_vec();
    let file;
    let inline = body.len() <= INLINE;
    let packet: &[u8] = if inline {
        &body
    } else {
        file = memory_file("cofferdam message", &body)?;
        descriptors.push(file.as_fd());
        &[]
    };
    // One byte in front tells the two forms apart, and keeps the packet from being empty.
    let form = [u8::from(!inline)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(Errno::INVAL);
    }
    let parts = [IoSlice::new(&form), IoSlice::new(packet)];
    sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Receives one message and its descriptors; `None` at the end.
pub(crate) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let mut packet = vec![0; INLINE + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut packet)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    let Some((form, inline)) = packet[..received.bytes].split_first() else {
        return Ok(None);
    };
    let whole;
    let body = if *form == 0 {
        inline
    } else {
        let mut file = std::fs::File::from(descriptors.pop().ok_or(Errno::BADMSG)?);
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).map_err(|_| Errno::IO)?;
        file.read_to_end(&mut bytes).map_err(|_| Errno::IO)?;
        whole = bytes;
        &whole
    };
    let message = postcard::from_bytes(body).map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, descriptors)))
}

/// A sealed file in memory that holds `bytes`, its offset at the start.
pub(crate) fn memory_file(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)
        .and_then(|()| std::io::Seek::rewind(&mut file))
        .map_err(|error| {
            error
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)
        })?;
    fcntl_add_seals(
        &file,
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL,
    )?;
    Ok(file.into())
}
