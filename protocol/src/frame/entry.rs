//! Entries of a fixed size, and batches of them.

use std::fmt;
use std::marker::PhantomData;

use bytes::{Bytes, BytesMut};

use super::{EntryError, FrameError};

/// An entry of a batch: a value with an encoding of a fixed length.
pub trait Entry: Copy {
    /// Length of the encoding, in bytes.
    const BYTES: u32;

    /// Appends the encoding.
    fn put(&self, out: &mut BytesMut);

    /// Reads the encoding, [`Self::BYTES`] long.
    ///
    /// # Errors
    /// [`EntryError`] if it makes no sense.
    fn get(bytes: &[u8]) -> Result<Self, EntryError>;
}

/// A batch of checked entries, still in the bytes in which they arrived.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch<T> {
    bytes: Bytes,
    entries: PhantomData<fn() -> T>,
}

impl<T: Entry> Batch<T> {
    /// A batch of these entries, encoded. For tests and simulators, and for reading what was just written.
    pub fn from_entries(entries: &[T]) -> Self {
        let mut bytes = BytesMut::with_capacity(entries.len() * T::BYTES as usize);
        for entry in entries {
            entry.put(&mut bytes);
        }
        Self {
            bytes: bytes.freeze(),
            entries: PhantomData,
        }
    }

    /// The batch in a body, each entry of it checked.
    pub(super) fn decode(bytes: Bytes) -> Result<Self, FrameError> {
        for (index, entry) in bytes.chunks_exact(T::BYTES as usize).enumerate() {
            T::get(entry).map_err(|error| FrameError::Entry { index, error })?;
        }
        Ok(Self {
            bytes,
            entries: PhantomData,
        })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.bytes.len() / T::BYTES as usize
    }

    /// Whether there is none. A batch that arrived has at least one.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The entries in order, by value.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + Clone + '_ {
        self.bytes
            .chunks_exact(T::BYTES as usize)
            .map(|entry| T::get(entry).expect("invariant: entries were checked by decode"))
    }
}

impl<T: Entry + fmt::Debug> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
