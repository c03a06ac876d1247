//! Slot numbers in messages of a SOCK_SEQPACKET pair, several at a time; the pieces stay where they are.
//!
//! ```text
//! giver: fill slots, newest free one first  --- (slot, checksum) x batch --->  taker: read each
//!                                           <------ slot x batch -----------
//! ```
//!
//! Neither end knows whether somebody stands between them (`carrier`), who may make one message of several.

use std::os::fd::OwnedFd;

use buffer_pool::MappedArena;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::memory::{make, map_pieces, meet_giver, meet_taker, pieces_of};
use super::{End, PairLoad, changed, failed};
use crate::executor::ExecutorError;
use crate::load::{Done, Filler, Reader, wait_for_go};

/// One end of the pair.
pub(super) fn run(load: &PairLoad, batch: usize) -> Result<Done, ExecutorError> {
    match &load.end {
        End::Give { path } => {
            let (file, arena) = make("pieces", load.buffers, load.piece_bytes)?;
            let socket = meet_taker(path, &[file.readonly_fd()])?;
            give(load, batch, &arena, &socket)
        }
        End::Take { address } => {
            let (socket, descriptors) = meet_giver(address)?;
            let arena = map_pieces(pieces_of(&descriptors)?, load.buffers, load.piece_bytes)?;
            take(load, batch, &arena, &socket)
        }
    }
}

/// A slot and the checksum of what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slot: u32,
    pub(super) checksum: u32,
}

const ENTRY_BYTES: usize = 8;

/// Puts entries into an emptied message.
pub(super) fn encode(entries: &[Entry], message: &mut Vec<u8>) {
    message.clear();
    for entry in entries {
        message.extend_from_slice(&entry.slot.to_le_bytes());
        message.extend_from_slice(&entry.checksum.to_le_bytes());
    }
}

/// The entries of a message.
pub(super) fn decode(message: &[u8]) -> impl Iterator<Item = Entry> + '_ {
    message.chunks_exact(ENTRY_BYTES).map(|entry| {
        let (slot, checksum) = entry.split_at(4);
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("invariant: half an entry"));
        Entry {
            slot: number(slot),
            checksum: number(checksum),
        }
    })
}

/// Entries in a message or in several.
pub(super) fn count(messages: &[u8]) -> u64 {
    u64::try_from(messages.len() / ENTRY_BYTES).expect("invariant: a count fits 64 bits")
}

/// Space for all entries that can be on their way.
pub(super) fn inbox(buffers: u32) -> Vec<u8> {
    Vec::with_capacity(room(buffers))
}

fn room(buffers: u32) -> usize {
    ENTRY_BYTES * usize::try_from(buffers).expect("invariant: a count fits an address")
}

/// Appends all messages that have come; false if the other side is gone.
pub(super) fn drain(socket: &OwnedFd, messages: &mut Vec<u8>) -> Result<bool, ExecutorError> {
    loop {
        match recv(socket, spare_capacity(messages), RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(true),
            Err(error) => return Err(failed("receiving")(error)),
        }
    }
}

/// Sends what there is as one message and empties it.
pub(super) fn pass_on(socket: &OwnedFd, messages: &mut Vec<u8>) -> Result<(), ExecutorError> {
    if !messages.is_empty() {
        send(socket, messages, SendFlags::NOSIGNAL).map_err(failed("passing on"))?;
        messages.clear();
    }
    Ok(())
}

fn give(load: &PairLoad, batch: usize, arena: &MappedArena, socket: &OwnedFd) -> Result<Done, ExecutorError> {
    let mut filler = Filler::new(load.index);
    let mut free: Vec<u32> = (0..load.buffers).collect();
    let mut ready = Vec::with_capacity(batch);
    let (mut message, mut answer) = (Vec::new(), vec![0; room(load.buffers)]);
    let all = free.len();
    let watch = wait_for_go()?;
    for piece in 0..load.pieces {
        let slot = loop {
            match free.pop() {
                Some(slot) => break slot,
                None => collect(socket, &mut answer, RecvFlags::empty(), &mut free)?,
            };
        };
        let mut buffer = arena.writable(slot).map_err(failed("a free slot"))?;
        filler.fill(&mut buffer);
        let checksum = if load.checksums { crc32fast::hash(&buffer) } else { 0 };
        buffer.hand_over();
        ready.push(Entry { slot, checksum });
        if ready.len() == batch || free.is_empty() || piece + 1 == load.pieces {
            encode(&ready, &mut message);
            ready.clear();
            send(socket, &message, SendFlags::empty()).map_err(failed("sending"))?;
            // What came back last is warmest.
            while free.len() < all && collect(socket, &mut answer, RecvFlags::DONTWAIT, &mut free)? {}
        }
    }
    let done = watch.stop(filler.totals());
    // A socket that closes with something unread is reset, and what the taker has yet to read is lost.
    while free.len() < all {
        collect(socket, &mut answer, RecvFlags::empty(), &mut free)?;
    }
    Ok(done)
}

/// Gets back slots of one message; false if none has come and none was waited for.
fn collect(socket: &OwnedFd, answer: &mut [u8], flags: RecvFlags, free: &mut Vec<u32>) -> Result<bool, ExecutorError> {
    match recv(socket, &mut *answer, flags) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Err(ExecutorError::Other("the taker is gone".to_owned())),
        Ok((length, _)) => {
            free.extend(decode(&answer[..length]).map(|entry| entry.slot));
            Ok(true)
        }
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(failed("receiving")(error)),
    }
}

fn take(load: &PairLoad, batch: usize, arena: &MappedArena, socket: &OwnedFd) -> Result<Done, ExecutorError> {
    let mut reader = Reader::new();
    let mut message = vec![0; room(load.buffers)];
    let watch = wait_for_go()?;
    let mut piece = 0;
    while piece < load.pieces {
        let (length, _) = recv(socket, &mut message[..], RecvFlags::empty()).map_err(failed("receiving"))?;
        if length == 0 {
            return Err(ExecutorError::Other("the giver is gone".to_owned()));
        }
        for some in message[..length].chunks(batch * ENTRY_BYTES) {
            for entry in decode(some) {
                let bytes = arena
                    .shared(entry.slot, 0, load.piece_bytes)
                    .map_err(failed("a slot that came"))?;
                if load.checksums && crc32fast::hash(&bytes) != entry.checksum {
                    return Err(changed(piece));
                }
                reader.read(&bytes);
                piece += 1;
            }
            send(socket, some, SendFlags::NOSIGNAL).map_err(failed("giving back"))?;
        }
    }
    Ok(watch.stop(reader.totals()))
}

#[cfg(test)]
mod tests {
    use super::{Entry, decode, encode};

    #[test]
    fn entries_read_as_they_are_written() {
        let entries = [(0, 1), (63, u32::MAX)].map(|(slot, checksum)| Entry { slot, checksum });
        let mut message = vec![9];
        encode(&entries, &mut message);
        assert_eq!(message.len(), 16);
        assert!(decode(&message).eq(entries));
    }
}
