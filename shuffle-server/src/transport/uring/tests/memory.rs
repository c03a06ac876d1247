//! A job's arena, and gathers of it.

use buffer_pool::{ArenaFile, ArenaKind, JobKey, MappedArena, SlotRef};
use bytes::Bytes;

use crate::transport::uring::engine::Settings;
use crate::transport::uring::piece::{Gather, Piece};
use crate::transport::uring::sender::ZeroCopySends;

pub(super) const BUFFERS: u32 = 16;
pub(super) const BUFFER_BYTES: u32 = 32 << 10;
pub(super) const EXTENT_BUFFERS: u32 = 4;
pub(super) const JOB: JobKey = JobKey(7);
/// What loopback says of one zero-copy send.
pub(super) const ONE_COPIED: ZeroCopySends = ZeroCopySends {
    copied: 1,
    uncopied: 0,
    uncopied_bytes: 0,
};

pub(super) fn settings() -> Settings {
    Settings {
        threads: 1,
        entries: 256,
        total_buffers: BUFFERS,
        buffer_bytes: BUFFER_BYTES,
        extent_buffers: EXTENT_BUFFERS,
    }
}

/// All extents have their pages.
pub(super) struct Memory {
    pub(super) file: ArenaFile,
    pub(super) arena: MappedArena,
}

impl Memory {
    pub(super) fn new() -> Self {
        let bytes = u64::from(BUFFERS) * u64::from(BUFFER_BYTES);
        let extent_bytes = u64::from(EXTENT_BUFFERS) * u64::from(BUFFER_BYTES);
        let file = ArenaFile::create("uring-test", bytes, extent_bytes).unwrap();
        for extent in 0..BUFFERS / EXTENT_BUFFERS {
            file.allocate(extent).unwrap();
        }
        let arena = MappedArena::map_writable(file.writable_fd(), BUFFERS, BUFFER_BYTES).unwrap();
        Self { file, arena }
    }

    /// Fails if anybody still reads the buffer: then it must not be written.
    pub(super) fn fill(&self, slot: u32, value: u8) {
        fill(&self.arena, slot, value);
    }

    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.arena.writable(slot).is_ok()
    }

    pub(super) fn payload(&self, slot: u32) -> Piece {
        self.part(slot, BUFFER_BYTES)
    }

    pub(super) fn part(&self, slot: u32, bytes: u32) -> Piece {
        payload_of(&self.arena, slot, bytes)
    }

    /// A head of 40 bytes before each buffer.
    pub(super) fn gather(&self, slots: &[u32]) -> Gather {
        let pieces = slots.iter().flat_map(|slot| [head(40, 0xEE), self.payload(*slot)]);
        Gather::new(pieces.collect())
    }
}

pub(super) fn fill(arena: &MappedArena, slot: u32, value: u8) {
    let mut buffer = arena.writable(slot).unwrap();
    buffer.fill(value);
    buffer.hand_over();
}

pub(super) fn payload_of(arena: &MappedArena, slot: u32, bytes: u32) -> Piece {
    Piece::Payload {
        lease: arena.leased(slot, 0, bytes).unwrap(),
        slot: SlotRef {
            job: JOB,
            arena: ArenaKind::Write,
            slot,
        },
    }
}

pub(super) fn head(bytes: usize, value: u8) -> Piece {
    Piece::Head(Bytes::from(vec![value; bytes]))
}

pub(super) fn bytes_of(gather: &Gather) -> Vec<u8> {
    gather
        .pieces()
        .iter()
        .flat_map(|piece| piece.as_ref().to_vec())
        .collect()
}
