//! The sending node's carrier: gathers pieces from read-only memory into vectored writes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use buffer_pool::MappedArena;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::frames::{Credits, HEAD_BYTES, Head};
use super::{CarrierLoad, gone, readable};
use crate::executor::ExecutorError;
use crate::load::{Done, Event, Totals, emit, wait_for_go};
use crate::peers::failed;
use crate::peers::memory::{map_pieces, meet_giver, pieces_of};
use crate::peers::packets::{Entry, decode, drain, encode, inbox, pass_on};

pub(super) fn run(load: &CarrierLoad, gather_bytes: u32) -> Result<Done, ExecutorError> {
    let (giver, descriptors) = meet_giver(&load.address)?;
    let arena = map_pieces(pieces_of(&descriptors)?, load.buffers, load.piece_bytes)?;
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed("listening"))?;
    let address = listener.local_addr().map_err(failed("listening"))?;
    emit(&Event::Listening(address.to_string()));
    let (stream, _) = listener.accept().map_err(failed("accepting"))?;
    stream.set_nodelay(true).map_err(failed("TCP_NODELAY"))?;
    let most = usize::try_from(gather_bytes / load.piece_bytes).expect("invariant: a count fits an address");
    let mut sender = Sender {
        load,
        // Two parts for each piece, and the system takes 1024 in a call.
        most: most.clamp(1, MOST_PARTS / 2),
        arena,
        giver,
        stream,
        credits: Credits::default(),
        waiting: VecDeque::new(),
        message: inbox(load.buffers),
    };
    let watch = wait_for_go()?;
    sender.send_all()?;
    let done = watch.stop(Totals::default());
    sender.hear_the_last()?;
    Ok(done)
}

struct Sender<'a> {
    load: &'a CarrierLoad,
    /// Pieces in one call.
    most: usize,
    arena: MappedArena,
    giver: OwnedFd,
    stream: TcpStream,
    credits: Credits,
    /// Filled and not sent.
    waiting: VecDeque<Entry>,
    message: Vec<u8>,
}

impl Sender<'_> {
    fn send_all(&mut self) -> Result<(), ExecutorError> {
        let mut left = self.load.pieces;
        while left > 0 {
            let idle = self.waiting.is_empty() || self.credits.left() == 0;
            let [from_giver, from_stream] = readable(&self.giver, &self.stream, idle)?;
            if from_giver {
                let there = drain(&self.giver, &mut self.message)?;
                self.waiting.extend(decode(&self.message));
                self.message.clear();
                if !there {
                    return Err(gone("giver"));
                }
            }
            if from_stream {
                self.receive_credits(RecvFlags::DONTWAIT)?;
            }
            let count = self.waiting.len().min(self.credits.left()).min(self.most);
            if count > 0 {
                self.send(count)?;
                left = left.saturating_sub(u64::try_from(count).expect("invariant: a count fits 64 bits"));
            }
        }
        Ok(())
    }

    /// Writes the pieces that have waited longest and gives their slots back.
    fn send(&mut self, count: usize) -> Result<(), ExecutorError> {
        self.credits.spend(count)?;
        let entries: Vec<Entry> = self.waiting.drain(..count).collect();
        let mut parts = Vec::with_capacity(count);
        for entry in &entries {
            let head = Head {
                length: self.load.piece_bytes,
                checksum: entry.checksum,
            };
            let piece = self.arena.shared(entry.slot, 0, self.load.piece_bytes);
            parts.push((head.encode(), piece.map_err(failed("a slot that came"))?));
        }
        let parts: Vec<(&[u8; HEAD_BYTES], &[u8])> = parts.iter().map(|(head, piece)| (head, &piece[..])).collect();
        gather(&mut self.stream, &parts).map_err(failed("writing"))?;
        encode(&entries, &mut self.message);
        pass_on(&self.giver, &mut self.message)
    }

    fn receive_credits(&mut self, flags: RecvFlags) -> Result<(), ExecutorError> {
        let mut space = [0; 256];
        match recv(&self.stream, &mut space[..], flags) {
            Ok((0, _)) => Err(gone("receiving relay")),
            Ok((length, _)) => {
                self.credits.handle_bytes(&space[..length]);
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(failed("receiving credits")(error)),
        }
    }

    /// Waits for every credit: a socket that closes with something unread is reset, and what the other side has yet to read is
    /// lost.
    fn hear_the_last(&mut self) -> Result<(), ExecutorError> {
        while self.credits.received() < self.load.pieces + u64::from(self.load.buffers) {
            self.receive_credits(RecvFlags::empty())?;
        }
        Ok(())
    }
}

/// Writes heads and pieces in as few calls as the system needs.
fn gather(stream: &mut impl Write, parts: &[(&[u8; HEAD_BYTES], &[u8])]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts
        .iter()
        .flat_map(|(head, piece)| [IoSlice::new(&head[..]), IoSlice::new(piece)])
        .collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        match stream.write_vectored(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(length) => IoSlice::advance_slices(&mut rest, length),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const MOST_PARTS: usize = 1024;

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::gather;

    /// Takes only so many bytes a call.
    struct Narrow(usize, Vec<u8>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = bytes.len().min(self.0);
            self.1.extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_gather_goes_on_where_the_system_stopped() {
        let parts: [(&[u8; 8], &[u8]); 2] = [(b"head one", b"piece"), (b"head two", b"another piece")];
        for most in [1, 3, 8, 100] {
            let mut narrow = Narrow(most, Vec::new());
            gather(&mut narrow, &parts).expect("written");
            assert_eq!(narrow.1, b"head onepiecehead twoanother piece");
        }
        assert!(gather(&mut Narrow(0, Vec::new()), &parts).is_err());
    }
}
