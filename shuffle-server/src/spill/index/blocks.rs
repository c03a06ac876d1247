//! Items in blocks, each with its checksum.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IndexError;

/// Bytes of a checksum.
pub(super) const CRC_BYTES: usize = size_of::<U32>();

const ITEMS_PER_BLOCK: usize = 256;

/// Counts the blocks of one index.
pub(super) struct Blocks {
    seed: u32,
    next: u32,
}

impl Blocks {
    /// `seed` is the header's checksum.
    pub(super) fn new(seed: u32) -> Self {
        Self { seed, next: 0 }
    }

    /// Puts the items behind `out`.
    pub(super) fn encode<T: IntoBytes + Immutable>(&mut self, items: &[T], out: &mut Vec<u8>) {
        for block in items.chunks(ITEMS_PER_BLOCK) {
            let block = block.as_bytes();
            let checksum = U32::new(self.checksum(block));
            out.extend(block);
            out.extend(checksum.as_bytes());
        }
    }

    /// All items of a section that has the right length.
    pub(super) fn decode<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy>(
        &mut self,
        section: &[u8],
        what: &'static str,
    ) -> Result<Vec<T>, IndexError> {
        let mut items = Vec::with_capacity(section.len() / size_of::<T>());
        for block in section.chunks(ITEMS_PER_BLOCK * size_of::<T>() + CRC_BYTES) {
            let (block, written) = block
                .split_last_chunk::<CRC_BYTES>()
                .expect("invariant: a section ends behind a checksum");
            let (number, got, expected) = (self.next, self.checksum(block), u32::from_le_bytes(*written));
            if expected != got {
                let what = format!("block {number} ({what})");
                return Err(IndexError::Checksum { what, expected, got });
            }
            let block = <[T]>::ref_from_bytes(block).map_err(|_| too_many())?;
            items.extend(block);
        }
        Ok(items)
    }

    fn checksum(&mut self, block: &[u8]) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        checksum(&[&self.seed.to_le_bytes(), &number.to_le_bytes(), block])
    }
}

/// CRC-32 (IEEE) of parts of an index, one behind the other.
pub(super) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize()
}

/// Bytes of a section of so many items, of which there are that many in memory.
pub(super) fn section_bytes<T>(items: usize) -> usize {
    checked_section_bytes::<T>(items).expect("invariant: what was counted in memory fits")
}

/// Bytes of a section of so many items, if that can be.
pub(super) fn checked_section_bytes<T>(items: usize) -> Option<usize> {
    let checksums = items.div_ceil(ITEMS_PER_BLOCK).checked_mul(CRC_BYTES)?;
    items.checked_mul(size_of::<T>())?.checked_add(checksums)
}

/// A count that was read and may be anything.
pub(super) fn narrow(count: u64) -> Result<usize, IndexError> {
    usize::try_from(count).map_err(|_| too_many())
}

/// More than can be.
pub(super) fn too_many() -> IndexError {
    IndexError::Contradiction("it counts more than can be".to_owned())
}

/// A count of things in memory, as it is written.
pub(super) fn count(items: usize) -> u32 {
    u32::try_from(items).expect("invariant: no partition has 2^32 buffers in one subpartition")
}

/// A length in memory.
pub(super) fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).expect("invariant: a length in memory fits in 64 bits")
}
