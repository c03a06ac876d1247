//! Buffers back into records. Pure.
//!
//! A record that lies whole in one buffer comes out as a view of it: no copy. One that spans buffers is put together
//! in memory of its own, and the buffers it came in are free as soon as they are passed.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::producer::RECORD_PREFIX_BYTES;

/// What can be wrong with the bytes of a subpartition, read as records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum RecordError {
    /// The prefix promises more than the largest record allowed.
    #[error("a record of {bytes} bytes is beyond the limit of {max_bytes}")]
    TooLarge { bytes: u64, max_bytes: u64 },
    /// A buffer starts in the middle of a record, and no record was begun.
    #[error("a buffer begins in the middle of a record whose start never came")]
    NoStart,
    /// A record was begun, and the next buffer starts with another.
    #[error("a buffer begins a new record {missing} bytes before the end of the last one")]
    NoEnd { missing: u64 },
}

/// The buffer that is being read.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    rest: Bytes,
    /// Records that started in this buffer so far.
    started: u32,
}

impl Cursor {
    pub(crate) fn new(buffer: Bytes) -> Self {
        Self {
            rest: buffer,
            started: 0,
        }
    }

    pub(crate) fn started(&self) -> u32 {
        self.started
    }
}

/// Where the records of one subpartition stand between two buffers.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    partial: Option<Partial>,
}

/// A record of which a part has come.
#[derive(Debug)]
struct Partial {
    prefix: [u8; RECORD_PREFIX_BYTES],
    prefix_bytes: usize,
    /// Known once the prefix is whole.
    length: usize,
    body: BytesMut,
}

/// No more than this is reserved for a record before its bytes come.
const RESERVE_BYTES: usize = 64 << 10;

impl Assembly {
    /// Whether the next byte starts a record.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.partial.is_none()
    }

    /// A buffer comes next; `partial_start` as its sender declared it.
    pub(crate) fn handle_buffer(&self, partial_start: bool) -> Result<(), RecordError> {
        match (&self.partial, partial_start) {
            (Some(partial), false) => Err(RecordError::NoEnd {
                missing: partial.missing(),
            }),
            (None, true) => Err(RecordError::NoStart),
            _ => Ok(()),
        }
    }

    /// The next whole record, or `None` when the buffer is used up.
    #[inline]
    pub(crate) fn poll_record(&mut self, cursor: &mut Cursor, max_bytes: u64) -> Result<Option<Bytes>, RecordError> {
        if self.partial.is_none()
            && let Some(prefix) = cursor.rest.first_chunk::<RECORD_PREFIX_BYTES>()
        {
            let length = checked_length(*prefix, max_bytes)?;
            if cursor.rest.len() - RECORD_PREFIX_BYTES >= length {
                cursor.rest.advance(RECORD_PREFIX_BYTES);
                cursor.started += 1;
                return Ok(Some(cursor.rest.split_to(length)));
            }
        }
        self.poll_spanning(cursor, max_bytes)
    }

    #[cold]
    fn poll_spanning(&mut self, cursor: &mut Cursor, max_bytes: u64) -> Result<Option<Bytes>, RecordError> {
        if cursor.rest.is_empty() {
            // Drops the view, so that the buffer goes home before the next one comes.
            cursor.rest = Bytes::new();
            return Ok(None);
        }
        let partial = self.partial.get_or_insert_with(|| {
            cursor.started += 1;
            Partial {
                prefix: [0; RECORD_PREFIX_BYTES],
                prefix_bytes: 0,
                length: 0,
                body: BytesMut::new(),
            }
        });
        if partial.prefix_bytes < RECORD_PREFIX_BYTES {
            let missing = &mut partial.prefix[partial.prefix_bytes..];
            let n = missing.len().min(cursor.rest.len());
            cursor.rest.copy_to_slice(&mut missing[..n]);
            partial.prefix_bytes += n;
            if partial.prefix_bytes < RECORD_PREFIX_BYTES {
                cursor.rest = Bytes::new();
                return Ok(None);
            }
            partial.length = checked_length(partial.prefix, max_bytes)?;
            partial.body.reserve(partial.length.min(RESERVE_BYTES));
        }
        let n = (partial.length - partial.body.len()).min(cursor.rest.len());
        partial.body.put_slice(&cursor.rest[..n]);
        cursor.rest.advance(n);
        if partial.body.len() < partial.length {
            cursor.rest = Bytes::new();
            return Ok(None);
        }
        Ok(self.partial.take().map(|partial| partial.body.freeze()))
    }
}

impl Partial {
    fn missing(&self) -> u64 {
        let missing = RECORD_PREFIX_BYTES - self.prefix_bytes + self.length - self.body.len();
        u64::try_from(missing).unwrap_or(u64::MAX)
    }
}

fn checked_length(prefix: [u8; RECORD_PREFIX_BYTES], max_bytes: u64) -> Result<usize, RecordError> {
    let length = u32::from_le_bytes(prefix);
    let too_large = RecordError::TooLarge {
        bytes: u64::from(length),
        max_bytes,
    };
    if u64::from(length) > max_bytes {
        return Err(too_large);
    }
    usize::try_from(length).map_err(|_| too_large)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::producer::Encoder;

    /// Cuts records into buffers: (bytes, records started, partial start).
    fn encode(records: &[Vec<u8>], capacity: usize, flush_after: &[bool]) -> Vec<(Bytes, u32, bool)> {
        let mut buffers = Vec::new();
        let mut open: Option<(BytesMut, u32, bool)> = None;
        for (i, record) in records.iter().enumerate() {
            let mut encoder = Encoder::new(record).unwrap();
            while encoder.remaining() > 0 {
                let torn = encoder.is_torn();
                let (buffer, started, _) = open.get_or_insert_with(|| (BytesMut::new(), 0, torn));
                let mut space = vec![0; capacity - buffer.len()];
                let n = encoder.fill(&mut space);
                buffer.extend_from_slice(&space[..n]);
                if !torn {
                    *started += 1;
                }
                if buffer.len() == capacity {
                    buffers.extend(open.take());
                }
            }
            if flush_after.get(i).copied().unwrap_or(false) {
                buffers.extend(open.take());
            }
        }
        buffers.extend(open.take());
        buffers
            .into_iter()
            .map(|(bytes, started, partial)| (bytes.freeze(), started, partial))
            .collect()
    }

    fn decode(buffers: &[(Bytes, u32, bool)]) -> Result<Vec<Bytes>, RecordError> {
        let mut assembly = Assembly::default();
        let mut records = Vec::new();
        for (bytes, started, partial_start) in buffers {
            assembly.handle_buffer(*partial_start)?;
            let mut cursor = Cursor::new(bytes.clone());
            while let Some(record) = assembly.poll_record(&mut cursor, 1 << 20)? {
                records.push(record);
            }
            assert_eq!(cursor.started(), *started);
        }
        assert!(assembly.is_at_boundary());
        Ok(records)
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..30),
            capacity in 1usize..64,
            flush_after in prop::collection::vec(any::<bool>(), 0..30),
        ) {
            let buffers = encode(&records, capacity, &flush_after);
            prop_assert_eq!(decode(&buffers).unwrap(), records);
        }

        #[test]
        fn any_bytes_are_records_or_an_error(
            buffers in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..10),
        ) {
            let mut assembly = Assembly::default();
            for (bytes, partial_start) in buffers {
                if assembly.handle_buffer(partial_start).is_err() {
                    break;
                }
                let mut cursor = Cursor::new(bytes.into());
                while let Ok(Some(_)) = assembly.poll_record(&mut cursor, 64) {}
            }
        }
    }

    #[test]
    fn edge_lengths_around_the_buffer() {
        for capacity in [5usize, 16, 64] {
            let records: Vec<Vec<u8>> = [0, 1, capacity - 1, capacity, capacity + 1, 3 * capacity]
                .iter()
                .map(|n| vec![7; *n])
                .collect();
            assert_eq!(decode(&encode(&records, capacity, &[])).unwrap(), records);
        }
    }

    #[test]
    fn a_whole_record_is_a_view_of_its_buffer() {
        let buffers = encode(&[b"abc".to_vec(), b"defg".to_vec()], 64, &[]);
        let memory = buffers[0].0.as_ptr_range();
        for record in decode(&buffers).unwrap() {
            assert!(memory.contains(&record.as_ptr()));
        }
    }

    #[test]
    fn a_used_up_buffer_is_let_go_before_the_next_comes() {
        let owner = std::sync::Arc::new([3u8, 0, 0, 0, b'a']);
        struct Owner(std::sync::Arc<[u8; 5]>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                self.0.as_ref()
            }
        }
        let mut cursor = Cursor::new(Bytes::from_owner(Owner(owner.clone())));
        let mut assembly = Assembly::default();
        assert_eq!(assembly.poll_record(&mut cursor, 10), Ok(None));
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }

    #[test]
    fn lost_buffers_and_lengths_are_named() {
        let mut buffers = encode(&[vec![1; 20], vec![2; 3]], 8, &[]);
        buffers.remove(1);
        buffers.remove(1);
        assert_eq!(decode(&buffers), Err(RecordError::NoEnd { missing: 16 }));
        assert_eq!(Assembly::default().handle_buffer(true), Err(RecordError::NoStart));
        let mut cursor = Cursor::new(Bytes::from_static(&[0, 0, 0, 1, 0]));
        assert_eq!(
            Assembly::default().poll_record(&mut cursor, 100),
            Err(RecordError::TooLarge {
                bytes: 1 << 24,
                max_bytes: 100
            })
        );
    }
}
