//! Where payload lies in this process: in the job's mapped arenas, or on the heap of an executor without a local
//! server.
//!
//! ```text
//!   grant  -> Filling -> filled, handed over -> (the server's)
//!   arrival -> View -> Bytes -> last drop -> Release entry
//! ```
//!
//! A slot is leased here between grant and hand-over, and between arrival and release; the lease ends before the server
//! is told, so what it grants next is never leased already.

use std::sync::Arc;

use buffer_pool::{Leased, MappedArena, Writable};
use bytes::{Bytes, BytesMut};
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::frame::{Arena, ReleaseEntry, SlotEntry};

use super::shared::Lifeline;
use crate::consumer;
use crate::producer::Space;

/// The memory of a session.
pub(crate) enum Memory {
    /// On the server's node: its two arenas.
    Mapped { write: MappedArena, read: MappedArena },
    /// Elsewhere: each granted slot is a heap buffer until it is handed over.
    Heap { buffer_bytes: u32 },
}

/// A granted buffer.
pub(crate) enum Filling {
    Mapped { slot: u32, memory: Writable },
    Heap { slot: u32, memory: BytesMut },
}

/// The payload of a received buffer. Its drop gives the buffer back to the server.
pub(crate) struct View {
    payload: Option<Payload>,
    /// `None`: another view gives the buffer back.
    release: Option<ReleaseEntry>,
    session: Arc<Lifeline>,
}

enum Payload {
    Mapped(Leased),
    Heap(Bytes),
}

impl Memory {
    /// The memory of a slot that was granted.
    pub(crate) fn filling(&self, slot: u32) -> Result<Filling> {
        Ok(match self {
            Self::Mapped { write, .. } => {
                let memory = write.writable(slot).map_err(|error| broken("a grant", &error))?;
                Filling::Mapped { slot, memory }
            }
            Self::Heap { buffer_bytes } => {
                let bytes = usize::try_from(*buffer_bytes).expect("invariant: Linux has at least 32 bits");
                Filling::Heap {
                    slot,
                    memory: BytesMut::zeroed(bytes),
                }
            }
        })
    }

    /// The payload that a descriptor names; `inline` if it came with it.
    pub(crate) fn view(&self, entry: &SlotEntry, inline: Option<Bytes>, session: Arc<Lifeline>) -> Result<View> {
        let payload = match (self, inline) {
            (Self::Heap { .. }, Some(bytes)) => Payload::Heap(bytes),
            (Self::Mapped { write, read }, None) => {
                let arena = match entry.arena {
                    Arena::Write => write,
                    Arena::Read => read,
                };
                let leased = arena
                    .leased(entry.slot, entry.offset, entry.length)
                    .map_err(|error| broken("a descriptor", &error))?;
                Payload::Mapped(leased)
            }
            (Self::Heap { .. }, None) => {
                return Err(ShuffleError::new(
                    ErrorKind::Protocol,
                    "a descriptor of shared memory on a session that has none",
                ));
            }
            (Self::Mapped { .. }, Some(_)) => {
                return Err(ShuffleError::new(
                    ErrorKind::Protocol,
                    "payload inline on a session with shared memory",
                ));
            }
        };
        let release = ReleaseEntry {
            stream: entry.stream,
            slot: entry.slot,
            arena: entry.arena,
        };
        Ok(View {
            payload: Some(payload),
            release: Some(release),
            session,
        })
    }
}

impl Filling {
    /// Ends the lease. The payload, where it travels inline.
    pub(crate) fn hand_over(self, used: usize) -> Option<Bytes> {
        match self {
            Self::Mapped { memory, .. } => {
                memory.hand_over();
                None
            }
            Self::Heap { mut memory, .. } => {
                memory.truncate(used);
                Some(memory.freeze())
            }
        }
    }
}

impl Space for Filling {
    fn slot(&self) -> u32 {
        match self {
            Self::Mapped { slot, .. } | Self::Heap { slot, .. } => *slot,
        }
    }

    #[inline]
    fn space(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped { memory, .. } => memory,
            Self::Heap { memory, .. } => memory,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped { memory, .. } => memory,
            Self::Heap { memory, .. } => memory,
        }
    }
}

impl View {
    /// The payload as bytes that give the buffer back at their last drop.
    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Its buffer is given back by another view.
    pub(super) fn disown(&mut self) {
        self.release = None;
    }

    /// Whether the data came from this node's own memory and not from another node.
    pub(crate) fn is_local(&self) -> bool {
        self.release.is_some_and(|release| release.arena == Arena::Write)
    }
}

impl consumer::Payload for View {
    fn renew(&mut self, mut repeated: Self) {
        self.payload = repeated.payload.take();
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        match &self.payload {
            Some(Payload::Mapped(leased)) => leased,
            Some(Payload::Heap(bytes)) => bytes,
            None => &[],
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.payload = None;
        if let Some(release) = self.release {
            self.session.outbox().push(|out| out.releases.push(release));
        }
    }
}

fn broken(what: &str, error: &dyn std::fmt::Display) -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, format!("{what} from the server: {error}"))
}
