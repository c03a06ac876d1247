//! Reading text in blocks of whole lines.

use std::io::{self, Read};

/// The longest line that is accepted, in bytes without its line end.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// Some whole lines: each ends with `\n`, except perhaps the last one of the input.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// Number of the first line, counted from 1 where the reader began.
    pub first_line: u64,
    /// The lines, with their line ends.
    pub bytes: &'a [u8],
}

/// Why no block could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The input cannot be read.
    #[error("cannot read: {0}")]
    Io(#[from] io::Error),
    /// A line that does not end in time.
    #[error("line {line}: expected at most {MAX_LINE_BYTES} bytes and then a line end")]
    LineTooLong {
        /// Its number, counted from 1 where the reader began.
        line: u64,
    },
}

/// Cuts an input into blocks of whole lines.
///
/// ```text
/// buffer: [ given out | incomplete line | free ]     the incomplete line moves to the front
/// ```
#[derive(Debug)]
pub struct BlockReader<R> {
    input: R,
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that were given out already.
    given: usize,
    /// Bytes of the buffer that hold input.
    filled: usize,
    /// How many bytes of lines may still begin: the rest of the range, counted from `given`.
    left: Option<u64>,
    next_line: u64,
    ended: bool,
}

impl<R: Read> BlockReader<R> {
    /// Reads the lines that begin within the next `limit` bytes of the input (all, if `None`).
    pub fn new(input: R, limit: Option<u64>) -> Self {
        Self {
            input,
            buffer: vec![0; BLOCK_BYTES],
            given: 0,
            filled: 0,
            left: limit,
            next_line: 1,
            ended: false,
        }
    }

    /// The next lines, at least one; `None` at the end of the input or of the range.
    ///
    /// # Errors
    /// The input cannot be read, or a line is longer than [`MAX_LINE_BYTES`].
    pub fn next_block(&mut self) -> Result<Option<Block<'_>>, ReadError> {
        self.buffer.copy_within(self.given..self.filled, 0);
        self.filled -= self.given;
        self.given = 0;
        if self.left == Some(0) {
            return Ok(None);
        }
        let end = loop {
            if let Some(end) = self.whole_lines() {
                break end;
            }
            if self.ended {
                break self.filled;
            }
            self.fill()?;
        };
        if end == 0 {
            return Ok(None);
        }
        self.given = end;
        let bytes = &self.buffer[..end];
        let first_line = self.next_line;
        self.next_line += count(memchr::memchr_iter(b'\n', bytes).count());
        self.left = self.left.map(|left| left.saturating_sub(count(end)));
        Ok(Some(Block { first_line, bytes }))
    }

    /// The end of the last whole line in the buffer, of those that begin within the range; `None` if there is none.
    fn whole_lines(&self) -> Option<usize> {
        let filled = &self.buffer[..self.filled];
        let mut before = filled;
        if let Some(left) = self.left
            && left <= count(self.filled)
        {
            // The line that holds the last byte of the range is the last one.
            let last = usize::try_from(left).expect("invariant: below a length") - 1;
            if let Some(at) = memchr::memchr(b'\n', &filled[last..]) {
                return Some(last + at + 1);
            }
            before = &filled[..last];
        }
        memchr::memrchr(b'\n', before).map(|at| at + 1)
    }

    /// Reads more of the line at the front of the buffer.
    fn fill(&mut self) -> Result<(), ReadError> {
        if self.filled == self.buffer.len() {
            if self.filled > MAX_LINE_BYTES {
                return Err(ReadError::LineTooLong { line: self.next_line });
            }
            self.buffer.resize((self.buffer.len() * 2).min(MAX_LINE_BYTES + 1), 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.filled..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        }
    }
}

/// The lines of a block without their line ends. Nothing follows a line end at the end of the block.
pub fn lines(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let line;
        (line, rest) = match memchr::memchr(b'\n', rest) {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &[][..]),
        };
        Some(line)
    })
}

fn count(length: usize) -> u64 {
    u64::try_from(length).expect("invariant: a length fits 64 bits")
}

/// How much is read and handed on at once where lines allow it.
const BLOCK_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::io::{self, Read};

    use super::{BlockReader, MAX_LINE_BYTES, ReadError, lines};

    /// Gives out few bytes at a time, as a pipe may.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn read_all(input: impl Read, limit: Option<u64>) -> (Vec<Vec<u8>>, Vec<u64>) {
        let mut reader = BlockReader::new(input, limit);
        let mut all = Vec::new();
        let mut firsts = Vec::new();
        while let Some(block) = reader.next_block().expect("readable") {
            assert_eq!(block.first_line, u64::try_from(all.len()).expect("small") + 1);
            firsts.push(block.first_line);
            all.extend(lines(block.bytes).map(<[u8]>::to_vec));
        }
        (all, firsts)
    }

    #[test]
    fn lines_pass_whatever_the_pieces() {
        let text = b"one\n\nthree\r\nfour\nlast without end";
        for piece in 1..text.len() + 1 {
            let (all, _) = read_all(Trickle(text, piece), None);
            let expected: Vec<Vec<u8>> = ["one", "", "three\r", "four", "last without end"]
                .iter()
                .map(|line| line.as_bytes().to_vec())
                .collect();
            assert_eq!(all, expected, "pieces of {piece}");
        }
    }

    #[test]
    fn an_empty_input_has_no_line_and_a_line_end_is_one_empty_line() {
        assert!(read_all(&b""[..], None).0.is_empty());
        assert_eq!(read_all(&b"\n"[..], None).0, vec![Vec::<u8>::new()]);
    }

    #[test]
    fn a_line_longer_than_a_block_passes() {
        let long = vec![b'x'; 3 << 20];
        let mut text = b"short\n".to_vec();
        text.extend_from_slice(&long);
        text.extend_from_slice(b"\nend\n");
        let (all, _) = read_all(&text[..], None);
        assert_eq!(all, vec![b"short".to_vec(), long, b"end".to_vec()]);
    }

    #[test]
    fn the_longest_line_passes_and_a_longer_one_is_refused_by_number() {
        let text = |length: usize| {
            let mut text = b"one\ntwo\n".to_vec();
            text.resize(text.len() + length, b'x');
            text.extend_from_slice(b"\nend\n");
            text
        };
        for limit in [None, Some(9)] {
            let (all, _) = read_all(&text(MAX_LINE_BYTES)[..], limit);
            assert_eq!(all[2].len(), MAX_LINE_BYTES);
            let text = text(MAX_LINE_BYTES + 1);
            let mut reader = BlockReader::new(&text[..], limit);
            let error = loop {
                match reader.next_block() {
                    Ok(block) => assert!(block.is_some(), "the input does not end before the error"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, ReadError::LineTooLong { line: 3 }), "{error}");
        }
    }

    #[test]
    fn a_limit_ends_with_the_line_that_holds_its_last_byte() {
        let text = b"aa\nbb\ncc\n";
        let taken = |limit| read_all(Trickle(text, 4), Some(limit)).0.len();
        assert_eq!((0..=9).map(taken).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
    }
}
