//! Handles to one buffer's bytes: exclusive to write, then shared to read, and somebody is told when the last is dropped.
//!
//! ```text
//!   Writable --freeze--> Shared --clone/slice--> Shared ...      last drop --> Home::handle_home(slot, tag)
//!      |  \--hand_over--> slot number: another process has it now, nobody is told
//!      '--drop--> Home::handle_home(slot, tag)
//! ```
//!
//! In debug builds a buffer written by this process is filled with [`POISON`] on its way home, so whoever still reads it
//! reads nonsense that its checksum shows.

use std::{
    fmt,
    ops::{Bound, Deref, DerefMut, RangeBounds},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    arena::MappedArena,
    region::{ExclusiveLease, SharedLease},
};

/// What debug builds leave in a buffer that went home.
pub const POISON: u8 = 0xA5;

/// Whoever wants buffers back.
pub trait Home: Send + Sync {
    /// The last handle of a buffer, or of one view of it, was dropped. `tag` is what the handle was made with.
    ///
    /// Runs in the thread that dropped it: it must not block.
    fn handle_home(&self, slot: u32, tag: u64);
}

/// Where a handle reports to, and as what.
#[derive(Clone)]
struct Address {
    home: Arc<dyn Home>,
    tag: u64,
}

/// One buffer that only this handle can reach: `[u8]` of the whole buffer.
pub struct Writable {
    lease: Option<ExclusiveLease>,
    address: Option<Address>,
}

impl Writable {
    pub(crate) fn new(lease: ExclusiveLease, address: Option<(Arc<dyn Home>, u64)>) -> Self {
        Self {
            lease: Some(lease),
            address: address.map(|(home, tag)| Address { home, tag }),
        }
    }

    /// Buffer number within its arena.
    pub fn slot(&self) -> u32 {
        self.lease().slot()
    }

    /// No more writing: the bytes of `range` become readable by any number of clones.
    ///
    /// # Panics
    /// If the range does not lie within the buffer, as slicing does.
    pub fn freeze(mut self, range: impl RangeBounds<usize>) -> Shared {
        let (start, end) = resolve(range, self.len());
        let lease = self
            .lease
            .take()
            .expect("invariant: a writable has its lease until it goes");
        let view = View {
            lease: Some(lease.freeze()),
            address: self.address.take(),
            written_here: true,
        };
        Shared {
            view: Arc::new(view),
            start,
            end,
        }
    }

    /// Gives the buffer up without telling its home: its slot has been handed to another process, bytes and all.
    pub fn hand_over(mut self) -> u32 {
        let lease = self
            .lease
            .take()
            .expect("invariant: a writable has its lease until it goes");
        self.address = None;
        lease.slot()
    }

    fn lease(&self) -> &ExclusiveLease {
        self.lease
            .as_ref()
            .expect("invariant: a writable has its lease until it goes")
    }
}

impl Deref for Writable {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.lease().bytes()
    }
}

impl DerefMut for Writable {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.lease
            .as_mut()
            .expect("invariant: a writable has its lease until it goes")
            .bytes_mut()
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            go_home(lease, self.address.take());
        }
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Bytes of one buffer that do not change while any clone is there.
#[derive(Clone, Debug)]
pub struct Shared {
    view: Arc<View>,
    start: usize,
    end: usize,
}

impl Shared {
    /// `start..end` lies within the buffer.
    pub(crate) fn new(lease: SharedLease, start: usize, end: usize, address: Option<(Arc<dyn Home>, u64)>) -> Self {
        let address = address.map(|(home, tag)| Address { home, tag });
        Self {
            view: Arc::new(View {
                lease: Some(lease),
                address,
                written_here: false,
            }),
            start,
            end,
        }
    }

    /// Buffer number within its arena.
    pub fn slot(&self) -> u32 {
        self.view.lease().slot()
    }

    /// A part of these bytes, counted from their start.
    ///
    /// # Panics
    /// If the range does not lie within them, as slicing does.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = resolve(range, self.end - self.start);
        Self {
            view: Arc::clone(&self.view),
            start: self.start + start,
            end: self.start + end,
        }
    }

    /// The same bytes, uncopied, as [`Bytes`]; the buffer goes home when the last part of them is dropped.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.view.lease().bytes()[self.start..self.end]
    }
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

/// Bytes of one buffer that do not change while this is there: a [`Shared`] for one holder, without an allocation of its own.
#[derive(Debug)]
pub struct Leased {
    lease: SharedLease,
    start: usize,
    end: usize,
}

impl Leased {
    /// `start..end` lies within the buffer.
    pub(crate) fn new(lease: SharedLease, start: usize, end: usize) -> Self {
        Self { lease, start, end }
    }

    /// Buffer number within its arena.
    pub fn slot(&self) -> u32 {
        self.lease.slot()
    }

    /// The arena that the buffer is part of.
    pub fn arena(&self) -> MappedArena {
        MappedArena::of(Arc::clone(self.lease.region()))
    }

    /// Without its first `bytes` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        let (start, end) = resolve(bytes.., self.end - self.start);
        Self {
            start: self.start + start,
            end: self.start + end,
            lease: self.lease,
        }
    }
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.lease.bytes()[self.start..self.end]
    }
}

impl Deref for Leased {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

/// What all clones of a [`Shared`] have in common. Two views of one buffer report apart, each with its own tag.
struct View {
    lease: Option<SharedLease>,
    address: Option<Address>,
    written_here: bool,
}

impl View {
    fn lease(&self) -> &SharedLease {
        self.lease
            .as_ref()
            .expect("invariant: a view has its lease until it goes")
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let lease = self
            .lease
            .take()
            .expect("invariant: a view has its lease until it goes");
        let address = self.address.take();
        if cfg!(debug_assertions) && self.written_here {
            match lease.reclaim() {
                Ok(lease) => go_home(lease, address),
                Err(lease) => report(lease.slot(), lease, address),
            }
        } else {
            report(lease.slot(), lease, address);
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

fn go_home(mut lease: ExclusiveLease, address: Option<Address>) {
    if cfg!(debug_assertions) {
        lease.bytes_mut().fill(POISON);
    }
    report(lease.slot(), lease, address);
}

/// The lease ends before its home hears of it: the buffer may be granted to this process again at once.
fn report<L>(slot: u32, lease: L, address: Option<Address>) {
    drop(lease);
    if let Some(Address { home, tag }) = address {
        home.handle_home(slot, tag);
    }
}

fn resolve(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last + 1,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    assert!(
        start <= end && end <= length,
        "range {start}..{end} lies within {length} bytes"
    );
    (start, end)
}
