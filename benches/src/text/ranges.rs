//! Dividing a file into byte ranges that are read side by side.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::blocks::BlockReader;

/// Bytes `start .. end` of a file: the lines that begin in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte that is no longer part of it.
    pub end: u64,
}

/// Divides `length` bytes into `parts` ranges of about the same size, in order.
pub fn split_ranges(length: u64, parts: u32) -> Vec<ByteRange> {
    let parts = u64::from(parts.max(1));
    let at = |part: u64| length / parts * part + (length % parts).min(part);
    (0..parts)
        .map(|part| ByteRange {
            start: at(part),
            end: at(part + 1),
        })
        .collect()
}

/// Opens a file for the lines that begin within a range. Returns the reader and the offset of its
/// first line, for [`lines_before`].
///
/// # Errors
/// The file cannot be opened or read.
pub fn open_range(path: &Path, range: ByteRange) -> io::Result<(BlockReader<File>, u64)> {
    let mut file = File::open(path)?;
    let first = first_line_start(&mut file, range)?;
    file.seek(SeekFrom::Start(first))?;
    let limit = range.end.saturating_sub(first);
    Ok((BlockReader::new(file, Some(limit)), first))
}

/// How many lines end before an offset: what a line number within a range lacks.
///
/// # Errors
/// The file cannot be read.
pub fn lines_before(path: &Path, offset: u64) -> io::Result<u64> {
    let mut input = File::open(path)?.take(offset);
    let mut buffer = vec![0; PIECE_BYTES];
    let mut lines = 0;
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 {
            return Ok(lines);
        }
        let ends = memchr::memchr_iter(b'\n', &buffer[..read]).count();
        lines += u64::try_from(ends).expect("invariant: a length fits 64 bits");
    }
}

/// Where the first line begins that begins in the range; the end of the range if there is none.
fn first_line_start(file: &mut File, range: ByteRange) -> io::Result<u64> {
    let Some(before) = range.start.checked_sub(1) else {
        return Ok(0);
    };
    // A line begins at `start` if the byte before it ends one.
    file.seek(SeekFrom::Start(before))?;
    let mut offset = before;
    let mut buffer = vec![0; PIECE_BYTES];
    while offset < range.end {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        if let Some(at) = memchr::memchr(b'\n', &buffer[..read]) {
            let at = u64::try_from(at).expect("invariant: a length fits 64 bits");
            return Ok((offset + at + 1).min(range.end));
        }
        offset += u64::try_from(read).expect("invariant: a length fits 64 bits");
    }
    Ok(range.end)
}

const PIECE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{ByteRange, lines_before, open_range, split_ranges};
    use crate::text::lines;

    #[test]
    fn ranges_cover_everything_once() {
        for (length, parts) in [(0, 1), (1, 4), (10, 3), (1_000_003, 7)] {
            let ranges = split_ranges(length, parts);
            assert_eq!(ranges.first().map(|range| range.start), Some(0));
            assert_eq!(ranges.last().map(|range| range.end), Some(length));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes: Vec<u64> = ranges.iter().map(|range| range.end - range.start).collect();
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1));
        }
    }

    /// All lines of the ranges in order, each with the number that an error would name.
    fn numbered(file: &tempfile::NamedTempFile, ranges: &[ByteRange]) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        for range in ranges {
            let (mut reader, first) = open_range(file.path(), *range).expect("opened");
            let before = lines_before(file.path(), first).expect("counted");
            while let Some(block) = reader.next_block().expect("read") {
                let numbers = before + block.first_line..;
                all.extend(numbers.zip(lines(block.bytes).map(<[u8]>::to_vec)));
            }
        }
        all
    }

    proptest! {
        #[test]
        fn each_line_belongs_to_one_range_and_knows_its_number(text in "[ab\n]{0,60}", parts in 1_u32..20) {
            let mut file = tempfile::NamedTempFile::new().expect("temporary file");
            file.write_all(text.as_bytes()).expect("written");
            let length = u64::try_from(text.len()).expect("small");
            let expected: Vec<(u64, Vec<u8>)> = (1..)
                .zip(text.split_terminator('\n').map(|line| line.as_bytes().to_vec()))
                .collect();
            prop_assert_eq!(numbered(&file, &split_ranges(length, parts)), expected);
        }
    }
}
