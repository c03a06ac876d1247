//! Shared memory of a pair: a memfd with the pieces, made by the giver, passed over a socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use buffer_pool::{ArenaFile, MappedArena};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

use super::failed;
use crate::executor::ExecutorError;
use crate::load::{Event, emit};

/// A memfd with all its pages, mapped for reading and writing.
pub(super) fn make(name: &str, buffers: u32, buffer_bytes: u32) -> Result<(ArenaFile, MappedArena), ExecutorError> {
    let bytes = u64::from(buffers) * u64::from(buffer_bytes);
    let file = ArenaFile::create(name, bytes, bytes).map_err(failed("a memfd"))?;
    file.allocate(0).map_err(failed("memory for a memfd"))?;
    let arena = MappedArena::map_writable(file.writable_fd(), buffers, buffer_bytes).map_err(failed("mapping"))?;
    Ok((file, arena))
}

/// Waits at `path` for the taker and passes it descriptors.
pub(super) fn meet_taker(path: &str, descriptors: &[BorrowedFd<'_>]) -> Result<OwnedFd, ExecutorError> {
    let listener = socket()?;
    let address = SocketAddrUnix::new(path).map_err(failed(path))?;
    bind(&listener, &address).map_err(failed(path))?;
    listen(&listener, 1).map_err(failed(path))?;
    emit(&Event::Listening(path.to_owned()));
    let socket = accept(&listener).map_err(failed("accepting"))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    sendmsg(&socket, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::empty()).map_err(failed("passing memory"))?;
    Ok(socket)
}

/// Connects to the giver at `path` and gets its descriptors.
pub(super) fn meet_giver(path: &str) -> Result<(OwnedFd, Vec<OwnedFd>), ExecutorError> {
    let socket = socket()?;
    let address = SocketAddrUnix::new(path).map_err(failed(path))?;
    connect(&socket, &address).map_err(failed(path))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).map_err(failed("getting memory"))?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            descriptors.extend(some);
        }
    }
    Ok((socket, descriptors))
}

/// The descriptor of the pieces: the first that came.
pub(super) fn pieces_of(descriptors: &[OwnedFd]) -> Result<&OwnedFd, ExecutorError> {
    let first = descriptors.first();
    first.ok_or_else(|| ExecutorError::Other("no memory came".to_owned()))
}

/// The pieces as everyone but the giver sees them: read-only.
pub(super) fn map_pieces(pieces: &OwnedFd, buffers: u32, piece_bytes: u32) -> Result<MappedArena, ExecutorError> {
    MappedArena::map_readonly(pieces.as_fd(), buffers, piece_bytes).map_err(failed("mapping"))
}

fn socket() -> Result<OwnedFd, ExecutorError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed("a socket"))
}

const MOST_DESCRIPTORS: usize = 2;
