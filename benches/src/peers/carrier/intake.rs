//! From a stream of heads and pieces straight into free slots.

use std::io::{self, IoSliceMut};

use buffer_pool::{MappedArena, Writable};

use super::frames::{HEAD_BYTES, Head};
use crate::executor::ExecutorError;
use crate::peers::failed;
use crate::peers::packets::Entry;

/// Where the stream is: within a head, or within a piece and the head after it.
#[derive(Debug)]
pub(super) struct Intake<'a> {
    arena: &'a MappedArena,
    piece_bytes: u32,
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that have come.
    come: usize,
    piece: Option<Piece>,
}

#[derive(Debug)]
struct Piece {
    slot: Writable,
    filled: usize,
    checksum: u32,
}

/// What one read gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pulled {
    /// A piece that is complete.
    pub(super) entry: Option<Entry>,
    /// As much came as was asked for, so there may be more.
    pub(super) more: bool,
}

impl<'a> Intake<'a> {
    pub(super) fn new(arena: &'a MappedArena, piece_bytes: u32) -> Self {
        Self {
            arena,
            piece_bytes,
            head: [0; HEAD_BYTES],
            come: 0,
            piece: None,
        }
    }

    /// Reads once: the rest of a piece and the head of the next one. A piece goes to the free slot that came back last.
    ///
    /// # Errors
    /// The stream cannot be read or has ended, a head makes no sense, or no slot is free for what comes.
    pub(super) fn pull(
        &mut self,
        free: &mut Vec<u32>,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> Result<Pulled, ExecutorError> {
        let rest = self
            .piece
            .as_mut()
            .map_or(&mut [][..], |piece| &mut piece.slot[piece.filled..]);
        let of_piece = rest.len();
        let mut parts = [IoSliceMut::new(rest), IoSliceMut::new(&mut self.head[self.come..])];
        let asked = of_piece + HEAD_BYTES - self.come;
        let came = match read(&mut parts) {
            Ok(0) => return Err(ExecutorError::Other("the sending relay is gone".to_owned())),
            Ok(came) => came,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(Pulled::default());
            }
            Err(error) => return Err(failed("reading")(error)),
        };
        let mut pulled = Pulled {
            entry: None,
            more: came == asked,
        };
        if let Some(mut piece) = self.piece.take() {
            piece.filled += came.min(of_piece);
            if came < of_piece {
                self.piece = Some(piece);
                return Ok(pulled);
            }
            pulled.entry = Some(Entry {
                slot: piece.slot.hand_over(),
                checksum: piece.checksum,
            });
        }
        self.come += came - of_piece;
        if self.come == HEAD_BYTES {
            self.come = 0;
            self.piece = Some(self.begin(free)?);
        }
        Ok(pulled)
    }

    fn begin(&self, free: &mut Vec<u32>) -> Result<Piece, ExecutorError> {
        let head = Head::decode(self.head);
        if head.length != self.piece_bytes {
            return Err(ExecutorError::Other(format!("a piece of {} bytes", head.length)));
        }
        let slot = free
            .pop()
            .ok_or_else(|| ExecutorError::Other("a piece for which no slot is free".to_owned()))?;
        Ok(Piece {
            slot: self.arena.writable(slot).map_err(failed("a free slot"))?,
            filled: 0,
            checksum: head.checksum,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSliceMut, Read};

    use super::{Head, Intake};
    use crate::peers::memory::make;

    const PIECE: u32 = 4096;

    fn stream(pieces: u8) -> Vec<u8> {
        let mut stream = Vec::new();
        for number in 0..pieces {
            let head = Head {
                length: PIECE,
                checksum: u32::from(number),
            };
            stream.extend_from_slice(&head.encode());
            stream.extend(std::iter::repeat_n(number, 4096));
        }
        stream
    }

    #[test]
    fn pieces_land_in_free_slots_wherever_the_stream_is_cut() {
        let (_file, arena) = make("pieces", 2, PIECE).expect("memory");
        let stream = stream(5);
        for cut in [1, 7, 8, 9, 4095, 4096, 4103, 4104, 4105, 100_000] {
            let (mut rest, mut free, mut found) = (&stream[..], vec![0, 1], Vec::new());
            let mut intake = Intake::new(&arena, PIECE);
            while found.len() < 5 {
                let read = |parts: &mut [IoSliceMut<'_>]| {
                    let asked: usize = parts.iter().map(|part| part.len()).sum();
                    let mut left = cut.min(asked).min(rest.len());
                    let before = rest.len();
                    for part in parts {
                        let length = part.len().min(left);
                        rest.by_ref()
                            .take(u64::try_from(length).expect("small"))
                            .read_exact(&mut part[..length])?;
                        left -= length;
                    }
                    Ok(before - rest.len())
                };
                let Some(entry) = intake.pull(&mut free, read).expect("a good stream").entry else {
                    continue;
                };
                let piece = arena.shared(entry.slot, 0, PIECE).expect("handed over");
                assert!(piece.iter().all(|byte| u32::from(*byte) == entry.checksum), "cut {cut}");
                found.push(entry.checksum);
                drop(piece);
                free.push(entry.slot);
            }
            assert_eq!(found, [0, 1, 2, 3, 4], "cut {cut}");
        }
    }

    #[test]
    fn more_than_there_are_slots_and_a_foreign_length_are_refused() {
        let (_file, arena) = make("pieces", 1, PIECE).expect("memory");
        let read_all = |bytes: Vec<u8>, free: Vec<u32>| {
            let (mut rest, mut free) = (&bytes[..], free);
            let mut intake = Intake::new(&arena, PIECE);
            loop {
                let pulled = intake.pull(&mut free, |parts| rest.read_vectored(parts));
                if let Err(error) = pulled {
                    return error.message_and_cause().0;
                }
            }
        };
        assert!(read_all(stream(2), vec![0]).contains("no slot"));
        assert!(read_all(stream(1), vec![0]).contains("gone"));
        let head = Head { length: 8, checksum: 0 };
        assert!(read_all(head.encode().to_vec(), vec![0]).contains("8 bytes"));
    }
}
