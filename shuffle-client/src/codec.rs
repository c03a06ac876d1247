//! Payload that is packed by its writer and unpacked by its reader. Pure.
//!
//! What travels and what is counted, checked and digested is the packed payload:
//! `4 bytes of length before packing, little-endian | one LZ4 block or one Zstandard frame`.
//! A payload that would not get smaller travels as it is.

use bytes::Bytes;
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::partition::Codec;

/// Whether and how a writer packs its buffers, each by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: some hundred MB/s to a GB/s for each writer.
    Lz4,
    /// Zstandard: smaller and slower.
    Zstd {
        /// As the zstd library counts them: 1 is fast, 22 is small, below 0 is faster still.
        level: i32,
    },
}

impl Compression {
    /// # Errors
    /// `InvalidRequest`: there is no such level.
    pub(crate) fn check(self) -> Result<()> {
        let levels = zstd::compression_level_range();
        match self {
            Self::Zstd { level } if !levels.contains(&level) => Err(ShuffleError::new(
                ErrorKind::InvalidRequest,
                format!(
                    "zstd has no compression level {level}: choose one from {} to {}",
                    levels.start(),
                    levels.end()
                ),
            )),
            _ => Ok(()),
        }
    }
}

const LENGTH_BYTES: usize = 4;
/// Less is not worth packing.
const SHORTEST: usize = 64;

/// Packs the buffers of one writer.
pub(crate) struct Packer {
    method: Method,
    packed: Vec<u8>,
}

enum Method {
    Plain,
    Lz4,
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Packer {
    /// One for this choice; plain, where the library has no memory for its tables.
    pub(crate) fn new(compression: Compression) -> Self {
        let method = match compression {
            Compression::None => Method::Plain,
            Compression::Lz4 => Method::Lz4,
            Compression::Zstd { level } => zstd::bulk::Compressor::new(level).map_or(Method::Plain, Method::Zstd),
        };
        Self {
            method,
            packed: Vec::new(),
        }
    }

    /// Packs a payload in its place if it gets smaller. Its new length in bytes, and how it is packed now.
    pub(crate) fn pack(&mut self, payload: &mut [u8]) -> (usize, Codec) {
        let plain = (payload.len(), Codec::Plain);
        if payload.len() < SHORTEST {
            return plain;
        }
        // Room for what is worth it and no more: who finds no room has not made it smaller.
        let room = match &self.method {
            Method::Plain => return plain,
            Method::Lz4 => lz4_flex::block::get_maximum_output_size(payload.len()),
            Method::Zstd(_) => payload.len() - LENGTH_BYTES - 1,
        };
        self.packed.resize(room, 0);
        let packed = match &mut self.method {
            Method::Plain => return plain,
            Method::Lz4 => lz4_flex::block::compress_into(payload, &mut self.packed)
                .map(|n| (n, Codec::Lz4))
                .ok(),
            Method::Zstd(zstd) => {
                let packed = zstd.compress_to_buffer(payload, &mut self.packed[..]);
                packed.map(|n| (n, Codec::Zstd)).ok()
            }
        };
        match packed {
            Some((length, codec)) if LENGTH_BYTES + length < payload.len() => {
                let before = u32::try_from(payload.len()).expect("invariant: a buffer is at most 16 MiB");
                payload[..LENGTH_BYTES].copy_from_slice(&before.to_le_bytes());
                payload[LENGTH_BYTES..LENGTH_BYTES + length].copy_from_slice(&self.packed[..length]);
                (LENGTH_BYTES + length, codec)
            }
            _ => plain,
        }
    }
}

/// Unpacks a payload that is not plain. No writer has packed more than `most` bytes, and no more are allocated.
///
/// # Errors
/// `Protocol`: it was not packed like this.
pub(crate) fn unpack(codec: Codec, payload: &[u8], most: usize) -> Result<Bytes> {
    let broken = |what: String| ShuffleError::new(ErrorKind::Protocol, format!("a buffer packed as {codec:?}: {what}"));
    let (length, packed) = payload
        .split_first_chunk()
        .ok_or_else(|| broken(format!("it has {} bytes, and no length", payload.len())))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).expect("invariant: Linux has at least 32 bits");
    if length > most {
        return Err(broken(format!("{length} bytes before packing, a buffer has {most}")));
    }
    let mut bytes = vec![0; length];
    let unpacked = match codec {
        Codec::Plain => return Err(broken("it is not packed".to_owned())),
        Codec::Lz4 => {
            lz4_flex::block::decompress_into(packed, &mut bytes).map_err(|error| broken(error.to_string()))?
        }
        Codec::Zstd => {
            zstd::bulk::decompress_to_buffer(packed, &mut bytes[..]).map_err(|error| broken(error.to_string()))?
        }
    };
    if unpacked != length {
        return Err(broken(format!("{unpacked} bytes came out instead of {length}")));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use shuffle_protocol::partition::Codec;

    use super::{Compression, Packer, unpack};

    const CHOICES: [Compression; 4] = [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 1 },
        Compression::Zstd { level: -5 },
    ];

    fn there_and_back(packer: &mut Packer, bytes: &[u8]) -> (usize, Codec) {
        let mut payload = bytes.to_vec();
        let (length, codec) = packer.pack(&mut payload);
        let payload = &payload[..length];
        match codec {
            Codec::Plain => assert_eq!(payload, bytes),
            codec => {
                assert!(length < bytes.len());
                assert_eq!(unpack(codec, payload, bytes.len()).unwrap(), bytes);
                unpack(codec, payload, bytes.len() - 1).unwrap_err();
            }
        }
        (length, codec)
    }

    #[test]
    fn what_repeats_shrinks_and_what_does_not_stays() {
        let repeats: Vec<u8> = (0..32u32 << 10).map(|at| (at / 100 % 7).to_le_bytes()[0]).collect();
        // The generator of SplitMix64, one byte of each number.
        let noise: Vec<u8> = (1..=32u64 << 10)
            .map(|at| {
                let x = at.wrapping_mul(0x9E37_79B9_7F4A_7C15);
                let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB).to_le_bytes()[5]
            })
            .collect();
        for (choice, codec) in [
            (CHOICES[1], Codec::Lz4),
            (CHOICES[2], Codec::Zstd),
            (CHOICES[3], Codec::Zstd),
        ] {
            let mut packer = Packer::new(choice);
            let (length, packed) = there_and_back(&mut packer, &repeats);
            assert!(
                packed == codec && length < repeats.len() / 10,
                "{choice:?}: {length} bytes"
            );
            assert_eq!(there_and_back(&mut packer, &noise), (noise.len(), Codec::Plain));
        }
        assert_eq!(
            there_and_back(&mut Packer::new(Compression::None), &repeats).1,
            Codec::Plain
        );
    }

    #[test]
    fn a_level_that_is_not_there_is_refused() {
        for compression in CHOICES {
            compression.check().unwrap();
        }
        let error = Compression::Zstd { level: 23 }.check().unwrap_err();
        assert!(error.to_string().contains("level 23"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(runs in vec((any::<u8>(), 0..200usize), 0..40), choice in 0..CHOICES.len()) {
            let bytes: Vec<u8> = runs.into_iter().flat_map(|(byte, count)| std::iter::repeat_n(byte, count)).collect();
            there_and_back(&mut Packer::new(CHOICES[choice]), &bytes);
        }

        #[test]
        fn any_payload_is_unpacked_or_refused(payload in vec(any::<u8>(), 0..300), zstd: bool, most in 0..5000usize) {
            let codec = if zstd { Codec::Zstd } else { Codec::Lz4 };
            if let Ok(bytes) = unpack(codec, &payload, most) {
                prop_assert!(bytes.len() <= most);
            }
        }

        /// A damaged one is refused, or is as long as it says.
        #[test]
        fn a_damaged_payload_is_refused_or_as_long_as_it_says(at in 0..200usize, bit in 0..8u32, zstd: bool) {
            let mut payload: Vec<u8> = (0..2000u32).map(|at| (at / 9 % 40).to_le_bytes()[0]).collect();
            let choice = if zstd { CHOICES[2] } else { CHOICES[1] };
            let (length, codec) = Packer::new(choice).pack(&mut payload);
            payload.truncate(length);
            let place = at % length;
            payload[place] ^= 1 << bit;
            if let Ok(bytes) = unpack(codec, &payload, 4000) {
                prop_assert_eq!(bytes.len(), usize::try_from(u32::from_le_bytes(*payload.first_chunk().unwrap())).unwrap());
            }
        }
    }
}
