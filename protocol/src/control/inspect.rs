//! What an encoded control message may cost to decode, found out before it is decoded.
//!
//! Decoding turns two bytes of an empty element into a hundred bytes of a struct, so a bound on the encoded length
//! alone is none on memory. Only [`FinishPartition`](super::FinishPartition) and [`OpenGate`](super::OpenGate) have
//! lists that are meant to be long; every other message is small. Here the outermost two layers of the encoding are
//! walked, nothing is allocated.

use crate::frame::FrameError;
use crate::limits::{MAX_CHANNELS_PER_GATE, MAX_CONTROL_BYTES, MAX_SMALL_CONTROL_BYTES, MAX_SUBPARTITIONS};

/// A message with one long list.
struct Long {
    /// Field number of the list in its message.
    list: u64,
    /// Most elements.
    elements: u32,
}

/// Longest element of a long list, in bytes: a channel with the longest node address fits.
const MAX_ELEMENT_BYTES: usize = 512;
/// Most fields of a long message beside its list.
const MAX_OTHER_FIELDS: u32 = 64;

const fn long(message: u64) -> Option<Long> {
    match message {
        11 => Some(Long {
            list: 3,
            elements: MAX_SUBPARTITIONS,
        }),
        13 => Some(Long {
            list: 5,
            elements: MAX_CHANNELS_PER_GATE,
        }),
        _ => None,
    }
}

/// Checks that `body` is one message, and small, or long only in the list that may be long.
///
/// # Errors
/// [`FrameError::Control`] or [`FrameError::ControlTooLarge`].
pub(crate) fn inspect(body: &[u8]) -> Result<(), FrameError> {
    let mut outer = Fields(body);
    let (message, content) = match (outer.next()?, outer.next()?) {
        (Some((message, Some(content))), None) => (message, content),
        _ => return Err(malformed("it is not exactly one message")),
    };
    match long(message) {
        Some(long) => inspect_long(content, &long),
        None => at_most(body.len(), MAX_SMALL_CONTROL_BYTES),
    }
}

fn inspect_long(content: &[u8], long: &Long) -> Result<(), FrameError> {
    at_most(content.len(), MAX_CONTROL_BYTES)?;
    let mut fields = Fields(content);
    let (mut elements, mut others, mut other_bytes) = (0u32, 0u32, 0usize);
    while let Some((number, value)) = fields.next()? {
        let bytes = value.map_or(0, <[u8]>::len);
        if number == long.list {
            elements += 1;
            if elements > long.elements {
                return Err(malformed("its list has too many elements"));
            }
            if bytes > MAX_ELEMENT_BYTES {
                return Err(malformed("an element of its list is too long"));
            }
        } else {
            others += 1;
            other_bytes += bytes;
            if others > MAX_OTHER_FIELDS {
                return Err(malformed("it has too many fields"));
            }
            at_most(other_bytes, MAX_SMALL_CONTROL_BYTES)?;
        }
    }
    Ok(())
}

fn at_most(bytes: usize, limit: u32) -> Result<(), FrameError> {
    if bytes > limit as usize {
        return Err(FrameError::ControlTooLarge {
            bytes: bytes.try_into().unwrap_or(u64::MAX),
            limit,
        });
    }
    Ok(())
}

fn malformed(what: &str) -> FrameError {
    FrameError::Control(what.to_owned())
}

/// One field: its number, and its bytes if it is length-delimited.
type Field<'a> = (u64, Option<&'a [u8]>);

/// The fields of one encoded message that are left.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<Field<'a>>, FrameError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => {
                self.varint()?;
                None
            }
            1 => {
                self.take(8)?;
                None
            }
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| malformed("a length is absurd"))?;
                Some(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                None
            }
            _ => return Err(malformed("a field has an unknown encoding")),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], FrameError> {
        let (value, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| malformed("a field is cut off"))?;
        self.0 = rest;
        Ok(value)
    }

    fn varint(&mut self) -> Result<u64, FrameError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(malformed("a number has too many digits"))
    }
}
