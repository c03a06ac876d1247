//! Records into fixed buffers. Pure.
//!
//! ```text
//!  buffer 0                              buffer 1
//! +------+-------+------+---------------+-----------+------+----+ - - -
//! | len  | bytes | len  | bytes ...     ... bytes   | len  | b  | unused
//! +------+-------+------+---------------+-----------+------+----+ - - -
//!   u32 little-endian                    ^ partial start
//! ```
//!
//! The records of one subpartition are one stream of bytes, cut where a buffer is full: a record, and even its
//! length prefix, may span any number of buffers. A buffer counts the records that *start* in it.

/// Bytes of the length prefix of a record.
pub const RECORD_PREFIX_BYTES: usize = 4;

/// Writes one whole record, length prefix first, to the start of `space` and gives the bytes used, or `None` (and
/// writes nothing) if it does not fit.
///
/// For an engine that fills reserved buffers itself and wants [`Gate::next_record`](crate::Gate::next_record) to
/// read them.
///
/// ```
/// let mut buffer = [0; 16];
/// assert_eq!(shuffle_client::encode_record(&mut buffer, b"row"), Some(7));
/// assert_eq!(&buffer[..7], b"\x03\0\0\0row");
/// assert_eq!(shuffle_client::encode_record(&mut buffer, &[0; 13]), None);
/// ```
#[inline]
pub fn encode_record(space: &mut [u8], record: &[u8]) -> Option<usize> {
    let prefix = u32::try_from(record.len()).ok()?.to_le_bytes();
    let needed = record.len() + RECORD_PREFIX_BYTES;
    let space = space.get_mut(..needed)?;
    space[..RECORD_PREFIX_BYTES].copy_from_slice(&prefix);
    space[RECORD_PREFIX_BYTES..].copy_from_slice(record);
    Some(needed)
}

/// One record on its way into one or more buffers.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    prefix: [u8; RECORD_PREFIX_BYTES],
    record: &'a [u8],
    written: usize,
}

impl<'a> Encoder<'a> {
    /// `None` if the length of the record does not fit its prefix.
    pub(crate) fn new(record: &'a [u8]) -> Option<Self> {
        let prefix = u32::try_from(record.len()).ok()?.to_le_bytes();
        Some(Self {
            prefix,
            record,
            written: 0,
        })
    }

    /// Bytes still to write, prefix included.
    pub(crate) fn remaining(&self) -> usize {
        RECORD_PREFIX_BYTES + self.record.len() - self.written
    }

    /// Whether some bytes, but not all, are written.
    pub(crate) fn is_torn(&self) -> bool {
        self.written > 0 && self.remaining() > 0
    }

    /// Writes what fits to the start of `space` and gives the number of bytes.
    pub(crate) fn fill(&mut self, space: &mut [u8]) -> usize {
        let mut filled = 0;
        if self.written < RECORD_PREFIX_BYTES {
            filled = copy_some(space, &self.prefix[self.written..]);
            self.written += filled;
        }
        if self.written >= RECORD_PREFIX_BYTES {
            let copied = copy_some(&mut space[filled..], &self.record[self.written - RECORD_PREFIX_BYTES..]);
            self.written += copied;
            filled += copied;
        }
        filled
    }
}

fn copy_some(to: &mut [u8], from: &[u8]) -> usize {
    let n = to.len().min(from.len());
    to[..n].copy_from_slice(&from[..n]);
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_byte_by_byte_as_at_once() {
        let record = b"some record";
        let mut whole = [0; 15];
        assert_eq!(encode_record(&mut whole, record), Some(15));
        for step in 1..=15 {
            let mut encoder = Encoder::new(record).unwrap();
            let mut out = Vec::new();
            while encoder.remaining() > 0 {
                let mut space = vec![0; step];
                let n = encoder.fill(&mut space);
                out.extend_from_slice(&space[..n]);
                assert_eq!(encoder.is_torn(), out.len() < 15);
            }
            assert_eq!(out, whole);
        }
    }

    #[test]
    fn an_empty_record_is_its_prefix() {
        let mut space = [9; 5];
        assert_eq!(encode_record(&mut space, b""), Some(4));
        assert_eq!(space, [0, 0, 0, 0, 9]);
        assert_eq!(encode_record(&mut space[..3], b""), None);
    }
}
