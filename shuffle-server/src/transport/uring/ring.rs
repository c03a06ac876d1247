//! One io_uring: the only room of this crate with `unsafe`. What it offers is safe.
//!
//! ```text
//!   send(), send_zero_copy()       kernel                                       memory of the operation
//!     in_flight.insert --push-->    reads gather
//!                                   completion, no more to come ------------->  dropped
//!                                   completion, more to come (zero copy)        stays
//!                                   notification ---------------------------->  dropped
//! ```
//!
//! JUSTIFICATION. The kernel reads memory after the call that named it has returned: no safe API can lend a slice for that.
//! The safe ways, `writev` and `sendfile`, copy every payload byte on a real network card or hold it until the peer has read
//! it; published measurements give a copying send 0.42 cycles per byte and a registered zero-copy send 0.145 (MEASUREMENTS,
//! "Published, by others").
//!
//! What the blocks rest on:
//! 1. *Life*: everything an operation names (message header, slices, bytes) is [`Held`] by it and lies on the heap or in a
//!    mapping, so moving what holds it does not move it. [`InFlight`] drops it only at the operation's last completion: the
//!    only one, or the notification where the first said that one follows, in whatever order they come. Dropping the ring
//!    earlier leaks what is still in flight; [`Ring::close`] frees it, once the kernel has let go of the whole ring.
//! 2. *No writer*: a [`Gather`] is never changed once made. Its payload is leased ([`buffer_pool::Leased`]): nobody in this
//!    process can get the buffer for writing, and the server grants it to no other process, before the lease ends.
//! 3. *Registered memory*: an [`Extent`] keeps the mapping its addresses lie in until the kernel has forgotten the entry. The
//!    entry is only an address and pinned pages: the kernel reads it when an operation says so, and that one holds a lease.
//! 4. *Who*: the ring is neither `Send` nor `Sync`, so the task that made it is the only one that submits, as the kernel was
//!    promised (`SINGLE_ISSUER`).

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use buffer_pool::MappedArena;
use io_uring::squeue::Entry;
use io_uring::types::{CancelBuilder, Fd, Fixed};
use io_uring::{IoUring, Probe, opcode};

#[cfg(not(test))]
use super::enter::enter;
use super::in_flight::{Held, InFlight, Purpose};
use super::operation::{Completion, Manner, Tag, Wait, passes};
use super::piece::{Gather, Piece};
#[cfg(test)]
use super::tests::failpoint::enter;
use super::unavailable::first_missing;
use super::witness::Witness;

/// `IORING_SEND_ZC_REPORT_USAGE`, which the crate does not export.
const REPORT_USAGE: u16 = 1 << 3;
/// What the kernel takes in one message.
pub(crate) const MAX_SLICES: usize = 1024;

/// A registered extent.
#[derive(Debug)]
struct Extent {
    _arena: MappedArena,
    start: usize,
    end: usize,
}

/// See the module's header.
pub(crate) struct Ring {
    ring: IoUring,
    in_flight: InFlight,
    extents: Vec<Option<Extent>>,
    witness: Option<Witness>,
    _one_thread: PhantomData<*const ()>,
}

impl Ring {
    /// # Errors
    /// What `io_uring_setup` says: EPERM, ENOSYS, EINVAL (a flag it does not know), ENOMEM.
    pub(crate) fn open(entries: u32) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .dontfork()
            .build(entries)?;
        Ok(Self {
            ring,
            in_flight: InFlight::default(),
            extents: Vec::new(),
            witness: None,
            _one_thread: PhantomData,
        })
    }

    /// The first operation that this kernel lacks.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub(crate) fn missing(&self) -> io::Result<Option<&'static str>> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        Ok(first_missing(|code| probe.is_supported(code)))
    }

    /// Makes the tables of sockets and extents, empty.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn make_tables(&mut self, files: u32, extents: u16) -> io::Result<()> {
        let submitter = self.ring.submitter();
        // The witness stands behind the sockets.
        submitter.register_files_sparse(files + 1)?;
        let (witness, registered) = Witness::new()?;
        submitter.register_files_update(files, &[registered.as_raw_fd()])?;
        submitter.register_buffers_sparse(extents.into())?;
        self.extents.resize_with(extents.into(), || None);
        self.witness = Some(witness);
        Ok(())
    }

    /// Ends the ring. What the kernel still reads it is made to give up; this waits until it reads nothing any more, and then
    /// the memory of all operations is dropped.
    pub(crate) fn close(self) {
        let Self {
            ring,
            mut in_flight,
            extents,
            witness,
            ..
        } = self;
        drop(ring);
        if let Some(witness) = witness {
            witness.wait();
            in_flight.clear();
        }
        drop(extents);
    }

    /// Registers a socket; the kernel holds it until [`Self::clear_file`].
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn set_file(&mut self, index: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.ring
            .submitter()
            .register_files_update(index, &[socket.as_raw_fd()])
            .map(drop)
    }

    /// Forgets a socket; operations on it go on.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn clear_file(&mut self, index: u32) -> io::Result<()> {
        self.ring.submitter().register_files_update(index, &[-1]).map(drop)
    }

    /// Registers the buffers `slots` of an arena, which must all be allocated: registering faults pages in.
    ///
    /// # Errors
    /// What the kernel says; ENOMEM is the limit of locked memory.
    ///
    /// # Panics
    /// If the entry is taken or the buffers are not the arena's.
    pub(crate) fn set_extent(&mut self, index: u16, arena: &MappedArena, slots: Range<u32>) -> io::Result<()> {
        let span = arena.span(slots).expect("invariant: an extent lies within its arena");
        let entry = &mut self.extents[usize::from(index)];
        assert!(
            entry.is_none(),
            "invariant: an entry is cleared before it is used again"
        );
        let memory = libc::iovec {
            iov_base: span.start.cast_mut().cast(),
            iov_len: span.end.addr() - span.start.addr(),
        };
        // SAFETY: (3) the addresses lie in the mapping that `arena` keeps; a clone of it stands in `extents` from here until
        // the kernel has forgotten the entry, or until `ring`, which is dropped first, is gone.
        unsafe {
            self.ring
                .submitter()
                .register_buffers_update(index.into(), &[memory], None)
        }?;
        *entry = Some(Extent {
            _arena: arena.clone(),
            start: span.start.addr(),
            end: span.end.addr(),
        });
        Ok(())
    }

    /// Forgets an extent: its pages are no longer pinned, unless an operation still reads them.
    ///
    /// # Errors
    /// What the kernel says; then it is still registered.
    pub(crate) fn clear_extent(&mut self, index: u16) -> io::Result<()> {
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        // SAFETY: an empty entry names no memory.
        unsafe {
            self.ring
                .submitter()
                .register_buffers_update(index.into(), &[nothing], None)
        }?;
        self.extents[usize::from(index)] = None;
        Ok(())
    }

    /// Makes room for so many operations, by submitting what is there; false: not now.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn make_room(&mut self, count: usize) -> io::Result<bool> {
        if self.room() < count {
            self.submit(Wait::No)?;
        }
        Ok(self.room() >= count)
    }

    /// Sends `pieces` of a gather in one message that the kernel copies, without the first `skip` bytes.
    ///
    /// # Panics
    /// If there is no room, or the pieces are not the gather's, too many, or shorter than `skip`.
    pub(crate) fn send(
        &mut self,
        file: u32,
        gather: &Rc<Gather>,
        pieces: Range<usize>,
        skip: usize,
        manner: Manner,
        tag: Tag,
    ) {
        assert!(
            pieces.len() <= MAX_SLICES,
            "invariant: a message has at most {MAX_SLICES} slices"
        );
        let first = pieces.start;
        let slice = |(at, piece): (usize, &Piece)| {
            let bytes = &piece.as_ref()[if at == 0 { skip } else { 0 }..];
            libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            }
        };
        let mut slices: Vec<libc::iovec> = gather.pieces()[first..pieces.end]
            .iter()
            .enumerate()
            .map(slice)
            .collect();
        // SAFETY: msghdr is plain data of the C library, for which all zeroes is "no address, no slices, no control data".
        let mut header: Box<libc::msghdr> = unsafe { Box::new(std::mem::zeroed()) };
        header.msg_iov = slices.as_mut_ptr();
        header.msg_iovlen = slices.len();
        let held = Held::Message {
            _gather: Rc::clone(gather),
            _slices: slices,
            header,
        };
        self.push(held, Purpose::Send(tag), |held| {
            let Held::Message { header, .. } = held else {
                unreachable!("invariant: it was made just now")
            };
            opcode::SendMsg::new(Fixed(file), std::ptr::from_ref(&**header))
                .flags(manner.message_flags().cast_unsigned())
                .build()
                .flags(manner.entry_flags())
        });
    }

    /// Sends one piece of a gather without its first `skip` bytes, from where it lies in a registered extent.
    ///
    /// # Panics
    /// If there is no room, or the piece does not lie in that extent.
    pub(crate) fn send_zero_copy(
        &mut self,
        file: u32,
        gather: &Rc<Gather>,
        (piece, skip): (usize, usize),
        extent: u16,
        manner: Manner,
        tag: Tag,
    ) {
        let bytes = &gather.pieces()[piece].as_ref()[skip..];
        let (start, length) = (bytes.as_ptr(), bytes.len());
        let fits = self.extents[usize::from(extent)]
            .as_ref()
            .is_some_and(|extent| extent.start <= start.addr() && start.addr() + length <= extent.end);
        assert!(fits, "invariant: a fixed send lies within its registered extent");
        let length = u32::try_from(length).expect("invariant: a buffer is shorter than 4 GiB");
        let held = Held::Piece {
            _gather: Rc::clone(gather),
        };
        self.push(held, Purpose::Send(tag), |_| {
            opcode::SendZc::new(Fixed(file), start, length)
                .buf_index(Some(extent))
                .zc_flags(REPORT_USAGE)
                .flags(manner.message_flags())
                .build()
                .flags(manner.entry_flags())
        });
    }

    /// Gives up all operations on a socket; each of them still completes. Not found are those that a link has just set free
    /// and that the kernel has not started yet: ask again.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn cancel(&mut self, file: u32) {
        self.push(Held::Nothing, Purpose::Cancel { line: file }, |_| {
            opcode::AsyncCancel2::new(CancelBuilder::fd(Fixed(file)).all()).build()
        });
    }

    /// Completes with [`Completion::Bell`] whenever something is written to this eventfd.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn listen(&mut self, bell: &Arc<OwnedFd>) {
        let fd = bell.as_raw_fd();
        let held = Held::Bell { _fd: Arc::clone(bell) };
        self.push(held, Purpose::Bell, |_| {
            opcode::PollAdd::new(Fd(fd), u32::from(libc::POLLIN.cast_unsigned()))
                .multi(true)
                .build()
        });
    }

    /// Operations that fit the submission queue.
    pub(crate) fn entries(&mut self) -> usize {
        self.ring.submission().capacity()
    }

    /// Whether the completion queue is full and the kernel keeps more completions aside.
    #[cfg(test)]
    pub(crate) fn has_overflowed(&mut self) -> bool {
        self.ring.submission().cq_overflow()
    }

    /// Submits what has been pushed.
    ///
    /// # Errors
    /// What the kernel says, but for what passes by itself.
    pub(crate) fn submit(&mut self, wait: Wait) -> io::Result<()> {
        if matches!(wait, Wait::No) {
            let queue = self.ring.submission();
            if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                return Ok(());
            }
        }
        match enter(&mut self.ring, wait) {
            Ok(_) => Ok(()),
            Err(error) if passes(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next thing the kernel has said.
    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let entry = self.ring.completion().next()?;
            let (key, result, flags) = (entry.user_data(), entry.result(), entry.flags());
            if let Some(completion) = self.in_flight.handle_completion(key, result, flags) {
                return Some(completion);
            }
        }
    }

    /// Sends whose memory the kernel may still read.
    pub(crate) fn sends(&self) -> usize {
        self.in_flight.sends()
    }

    fn room(&mut self) -> usize {
        let queue = self.ring.submission();
        queue.capacity() - queue.len()
    }

    fn push(&mut self, held: Held, purpose: Purpose, entry: impl FnOnce(&Held) -> Entry) {
        let (key, held) = self.in_flight.insert(held, purpose);
        let entry = entry(held).user_data(key);
        // SAFETY: (1) all that the entry names belongs to the operation that was inserted just now under the key the entry
        // carries: it stays until the kernel has completed that key for the last time. (2) nobody writes it meanwhile. The
        // descriptors are registered, or held by the operation.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("invariant: room is made before an operation is pushed");
    }
}
