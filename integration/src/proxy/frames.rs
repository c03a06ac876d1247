//! Finds the frames in a stream of bytes without understanding them, so that a fault can hit the
//! k-th frame of a kind. Pure.

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 40;

const MAGIC: [u8; 4] = *b"SHUF";

/// One frame header that went by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Kind of the frame, as on the wire.
    pub kind: u8,
    /// Where its header begins, in bytes of this direction of the connection.
    pub start: u64,
    /// Where the next header begins.
    pub end: u64,
}

/// Follows one direction of one connection.
#[derive(Debug, Default)]
pub struct Tracker {
    at: u64,
    header: Vec<u8>,
    skip: u64,
    lost: bool,
}

impl Tracker {
    /// Takes the next bytes of the stream; yields the headers that become complete in them.
    pub fn handle_bytes(&mut self, mut bytes: &[u8]) -> Vec<Seen> {
        let mut seen = Vec::new();
        while !bytes.is_empty() && !self.lost {
            if self.skip > 0 {
                let length = self.skip.min(as_u64(bytes.len()));
                bytes = &bytes[usize::try_from(length).unwrap_or(bytes.len())..];
                self.skip -= length;
                self.at += length;
                continue;
            }
            let length = (HEADER_BYTES - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..length]);
            self.at += as_u64(length);
            bytes = &bytes[length..];
            if self.header.len() == HEADER_BYTES {
                seen.extend(self.header_complete());
            }
        }
        seen
    }

    /// False once the stream no longer looks like frames.
    #[must_use]
    pub fn follows(&self) -> bool {
        !self.lost
    }

    fn header_complete(&mut self) -> Option<Seen> {
        let header = std::mem::take(&mut self.header);
        self.lost = header[..4] != MAGIC;
        if self.lost {
            return None;
        }
        let body = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        self.skip = u64::from(body);
        let start = self.at - as_u64(HEADER_BYTES);
        Some(Seen {
            kind: header[5],
            start,
            end: self.at + self.skip,
        })
    }
}

fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{HEADER_BYTES, Tracker};

    fn frame(kind: u8, body: u32) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES + usize::try_from(body).expect("small")];
        frame[..4].copy_from_slice(b"SHUF");
        frame[5] = kind;
        frame[8..12].copy_from_slice(&body.to_le_bytes());
        frame
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let stream = [frame(1, 0), frame(2, 100), frame(6, 16)].concat();
        for piece in [1, 3, 39, 40, 41, 500] {
            let mut tracker = Tracker::default();
            let seen: Vec<_> = stream
                .chunks(piece)
                .flat_map(|part| tracker.handle_bytes(part))
                .collect();
            let kinds: Vec<u8> = seen.iter().map(|one| one.kind).collect();
            let starts: Vec<u64> = seen.iter().map(|one| one.start).collect();
            assert_eq!((kinds, starts), (vec![1, 2, 6], vec![0, 40, 180]), "pieces of {piece}");
            assert_eq!(seen[2].end, 236);
        }
    }

    #[test]
    fn what_are_no_frames_is_let_go() {
        let mut tracker = Tracker::default();
        assert!(tracker.handle_bytes(&[b'x'; 100]).is_empty());
        assert!(!tracker.follows());
    }
}
