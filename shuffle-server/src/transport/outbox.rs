//! What is to be written to one connection: frames, gathered.
//!
//! ```text
//!   segments   [ head 40+48 | payload in the arena | head 40+48 | payload in the arena | acks, credits, control ... ]
//!   heads      one contiguous buffer of everything that is not payload, in order
//!   written    every segment is a slice of a vectored write; a partial write is continued where it stopped
//! ```
//!
//! Runs of outputs of one kind become one frame. Payload stays where it is: the outbox holds a lease on the slot until the
//! last of its bytes is written.

use std::collections::VecDeque;
use std::io::IoSlice;

use buffer_pool::{FileRange, Leased, SlotRef};
use bytes::{Buf as _, Bytes, BytesMut};
use shuffle_protocol::frame::{self, EndEntry, FrameError, FrameKind, GrantEntry, NumberEntry, SlotEntry};

use crate::node::Output;

/// Slices of one vectored write; the kernel takes 1024, and a write of [`WRITE_BYTES`] in the default buffers has 65.
pub(crate) const MAX_SLICES: usize = 128;
/// How much payload is gathered before it is written.
pub(crate) const WRITE_BYTES: usize = 512 << 10;
/// Unsent bytes that are not payload at which reading from the connection stops.
pub(crate) const MAX_UNSENT_BYTES: usize = 1 << 20;

enum Segment {
    /// So many bytes of `heads`.
    Head(usize),
    Payload {
        lease: Leased,
        written: usize,
        slot: SlotRef,
    },
    /// Payload that goes from where it lies in a file; `range` is what is still unsent.
    File { range: FileRange, slot: SlotRef },
}

/// A part of what is to be sent, taken off the outbox: whoever has taken it answers for its slot.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Everything that is not payload.
    Head(Bytes),
    /// Payload that is still to be sent, in memory that stays as it is while the lease lives.
    Payload {
        /// The unsent bytes.
        lease: Leased,
        /// Whose they are; due in `done` once the kernel can read them no more.
        slot: SlotRef,
    },
}

/// What is being gathered into one frame, or one of each kind.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Run {
    #[default]
    Nothing,
    Slots,
    Ends,
    /// Buffers of one frame, their payload behind one head.
    Payload,
    /// What is absolute, or has no place in any order: it may overtake its own kind's neighbours, but nothing else.
    Free,
}

/// The entries of the run. They keep their room from run to run.
#[derive(Default)]
struct Entries {
    slots: Vec<SlotEntry>,
    ends: Vec<EndEntry>,
    grants: Vec<GrantEntry>,
    acks: Vec<NumberEntry>,
    credits: Vec<NumberEntry>,
    backlogs: Vec<NumberEntry>,
}

impl Entries {
    fn clear(&mut self) {
        self.slots.clear();
        self.ends.clear();
        self.grants.clear();
        self.acks.clear();
        self.credits.clear();
        self.backlogs.clear();
    }
}

/// Unsent frames of one connection.
#[derive(Default)]
pub(crate) struct Outbox {
    segments: VecDeque<Segment>,
    heads: BytesMut,
    payload: usize,
    files: u64,
    run: Run,
    entries: Entries,
    /// The payload of the frame that is being gathered.
    gathered: Vec<Segment>,
}

impl Outbox {
    /// Appends an output that has no payload of its own, or whose payload the receiver has mapped.
    ///
    /// # Errors
    /// A control message that is longer than a frame may be.
    pub(crate) fn push(&mut self, output: Output) -> Result<(), FrameError> {
        match output {
            Output::Slot { entry, .. } | Output::Joined { entry, .. } => self.in_run(Run::Slots).slots.push(entry),
            Output::End(entry) => self.in_run(Run::Ends).ends.push(entry),
            Output::Grant(entry) => self.in_run(Run::Free).grants.push(entry),
            Output::Credit(entry) => self.in_run(Run::Free).credits.push(entry),
            Output::Ack(entry) => self.in_run(Run::Free).acks.push(entry),
            Output::Backlog(entry) => self.in_run(Run::Free).backlogs.push(entry),
            Output::Control(message) => {
                self.finish_run();
                return self.encode(|heads| frame::encode_control(&message, heads));
            }
            Output::Ping(nonce) => self.push_ping(FrameKind::Ping, nonce),
            Output::Pong(nonce) => self.push_ping(FrameKind::Pong, nonce),
        }
        Ok(())
    }

    /// Appends a buffer whose payload goes inline, from the memory that `lease` holds; `joins`: in the frame of the one before.
    pub(crate) fn push_payload(&mut self, entry: SlotEntry, slot: SlotRef, lease: Leased, joins: bool) {
        self.payload += lease.as_ref().len();
        let written = 0;
        self.gather_payload(entry, Segment::Payload { lease, written, slot }, joins);
    }

    /// Appends a buffer whose payload goes inline, from the file in which it lies; `joins`: in the frame of the one before.
    pub(crate) fn push_file(&mut self, entry: SlotEntry, slot: SlotRef, range: FileRange, joins: bool) {
        self.payload += length_of(&range);
        self.files += 1;
        self.gather_payload(entry, Segment::File { range, slot }, joins);
    }

    fn gather_payload(&mut self, entry: SlotEntry, payload: Segment, joins: bool) {
        if !joins {
            self.finish_run();
        }
        self.in_run(Run::Payload).slots.push(entry);
        self.gathered.push(payload);
    }

    /// Turns the run that is being gathered into a frame; call it before writing.
    pub(crate) fn finish_run(&mut self) {
        let kind = std::mem::take(&mut self.run);
        if kind == Run::Nothing {
            return;
        }
        let mut run = std::mem::take(&mut self.entries);
        if let (Run::Payload, Some(first)) = (kind, run.slots.first().copied()) {
            self.encode_own(|heads| frame::encode_data_head(first.stream, first.sequence, &run.slots, heads));
            self.segments.extend(self.gathered.drain(..));
            run.slots.clear();
        }
        self.encode_own(|heads| {
            frame::encode_slots(&run.slots, heads);
            frame::encode_ends(&run.ends, heads);
            frame::encode_grants(&run.grants, heads);
            frame::encode_numbers(FrameKind::Ack, &run.acks, heads);
            frame::encode_numbers(FrameKind::Credit, &run.credits, heads);
            frame::encode_numbers(FrameKind::Backlog, &run.backlogs, heads);
        });
        run.clear();
        self.entries = run;
    }

    /// Unsent bytes of payload.
    pub(crate) fn unsent_payload(&self) -> usize {
        self.payload
    }

    /// Unsent bytes that are not payload.
    pub(crate) fn unsent_heads(&self) -> usize {
        self.heads.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Unsent buffers that go from a file.
    pub(crate) fn unsent_files(&self) -> u64 {
        self.files
    }

    /// What is to be sent next, if it lies in a file.
    pub(crate) fn next_file(&self) -> Option<&FileRange> {
        match self.segments.front() {
            Some(Segment::File { range, .. }) => Some(range),
            _ => None,
        }
    }

    /// Whether something follows the first `filled` slices of a gather.
    pub(crate) fn is_longer_than(&self, filled: usize) -> bool {
        self.segments.len() > filled
    }

    /// Fills `slices` with what is to be written next, in order, up to what lies in a file; gives how many were filled.
    pub(crate) fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut heads = self.heads.as_ref();
        let mut filled = 0;
        for (segment, slice) in self.segments.iter().zip(slices.iter_mut()) {
            *slice = match segment {
                Segment::Head(length) => {
                    let (head, rest) = heads.split_at(*length);
                    heads = rest;
                    IoSlice::new(head)
                }
                Segment::Payload { lease, written, .. } => IoSlice::new(&lease.as_ref()[*written..]),
                Segment::File { .. } => break,
            };
            filled += 1;
        }
        filled
    }

    /// `count` bytes have been written; slots that are done with are appended to `done`.
    pub(crate) fn advance(&mut self, mut count: usize, done: &mut Vec<SlotRef>) {
        while let Some(segment) = self.segments.front_mut() {
            match segment {
                Segment::Head(length) => {
                    let step = count.min(*length);
                    *length -= step;
                    self.heads.advance(step);
                    count -= step;
                    if *length > 0 {
                        return;
                    }
                }
                Segment::Payload { lease, written, slot } => {
                    let step = count.min(lease.as_ref().len() - *written);
                    *written += step;
                    self.payload -= step;
                    count -= step;
                    if *written < lease.as_ref().len() {
                        return;
                    }
                    done.push(*slot);
                }
                Segment::File { range, slot } => {
                    let step = count.min(length_of(range));
                    range.advance(u32::try_from(step).expect("invariant: a step is at most the range"));
                    self.payload -= step;
                    count -= step;
                    if range.length() > 0 {
                        return;
                    }
                    self.files -= 1;
                    done.push(*slot);
                }
            }
            self.segments.pop_front();
        }
        assert_eq!(count, 0, "invariant: no more is written than was gathered");
    }

    /// Takes the next pieces off, at most so many, until at least `bytes` bytes are taken or nothing is left.
    pub(crate) fn take(&mut self, bytes: usize, pieces: usize) -> Vec<Piece> {
        let (mut taken, mut count) = (Vec::new(), 0);
        while count < bytes && taken.len() < pieces {
            let Some(segment) = self.segments.pop_front() else {
                break;
            };
            let (piece, length) = match segment {
                Segment::Head(length) => (Piece::Head(self.heads.split_to(length).freeze()), length),
                Segment::Payload { lease, written, slot } => {
                    let length = lease.as_ref().len() - written;
                    self.payload -= length;
                    let lease = lease.skip(written);
                    (Piece::Payload { lease, slot }, length)
                }
                Segment::File { .. } => unreachable!("invariant: files are for strategies that ask for them"),
            };
            taken.push(piece);
            count += length;
        }
        taken
    }

    /// The connection is gone: every slot that was waiting to be written.
    pub(crate) fn abandon(&mut self) -> Vec<SlotRef> {
        self.run = Run::Nothing;
        self.entries.clear();
        self.heads.clear();
        (self.payload, self.files) = (0, 0);
        self.segments
            .drain(..)
            .chain(self.gathered.drain(..))
            .filter_map(|segment| match segment {
                Segment::Head(_) => None,
                Segment::Payload { slot, .. } | Segment::File { slot, .. } => Some(slot),
            })
            .collect()
    }

    /// The entries of a run of that kind: the one under way, or a new one.
    fn in_run(&mut self, run: Run) -> &mut Entries {
        if self.run != run {
            self.finish_run();
            self.run = run;
        }
        &mut self.entries
    }

    fn push_ping(&mut self, kind: FrameKind, nonce: u64) {
        self.finish_run();
        self.encode_own(|heads| frame::encode_ping(kind, nonce, heads));
    }

    fn encode_own(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let known = self.encode(|heads| {
            encode(heads);
            Ok(())
        });
        debug_assert!(known.is_ok());
    }

    fn encode(&mut self, encode: impl FnOnce(&mut BytesMut) -> Result<(), FrameError>) -> Result<(), FrameError> {
        let before = self.heads.len();
        encode(&mut self.heads)?;
        let added = self.heads.len() - before;
        match self.segments.back_mut() {
            Some(Segment::Head(length)) => *length += added,
            _ => self.segments.push_back(Segment::Head(added)),
        }
        Ok(())
    }
}

fn length_of(range: &FileRange) -> usize {
    usize::try_from(range.length()).unwrap_or(usize::MAX)
}
