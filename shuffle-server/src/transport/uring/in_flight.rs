//! Operations that the kernel has not completed for the last time, and the memory it may still read for them.
//!
//! | completion | the kernel | memory |
//! | --- | --- | --- |
//! | result, no more to come | is done | dropped |
//! | result, more to come | has sent, may read until the notification | kept |
//! | notification | is done, if the result was there; else it follows | dropped with the later of the two |

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use io_uring::cqueue;
use slotmap::{DefaultKey, Key as _, KeyData, SlotMap};

use super::operation::{Completion, Tag, Usage};
use super::piece::Gather;

/// `IORING_NOTIF_USAGE_ZC_COPIED`: the sign bit of a notification's result.
const COPIED: i32 = i32::MIN;

/// Memory that the kernel reads for one operation.
#[derive(Debug)]
pub(crate) enum Held {
    /// A message that is copied.
    Message {
        _gather: Rc<Gather>,
        _slices: Vec<libc::iovec>,
        header: Box<libc::msghdr>,
    },
    /// A piece that is not.
    Piece {
        _gather: Rc<Gather>,
    },
    /// An eventfd.
    Bell {
        _fd: Arc<OwnedFd>,
    },
    Nothing,
}

/// Whom a completion is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Bell,
    Cancel { line: u32 },
    Send(Tag),
}

#[derive(Debug)]
struct Op {
    held: Held,
    purpose: Purpose,
    /// Bytes, once the result has come; 0 if that is an error.
    sent: Option<usize>,
    /// A notification follows the result; known once that has come.
    notifies: bool,
    /// What the notification says: whether the kernel made a copy after all.
    copied: Option<bool>,
}

/// See the module's header. What is in it when it is dropped is leaked: the kernel may still read it.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    ops: SlotMap<DefaultKey, Op>,
}

impl InFlight {
    /// Gives the key that the operation's completions must carry, never used again for another.
    pub(crate) fn insert(&mut self, held: Held, purpose: Purpose) -> (u64, &Held) {
        let key = self.ops.insert(Op {
            held,
            purpose,
            sent: None,
            notifies: false,
            copied: None,
        });
        (key.data().as_ffi(), &self.ops[key].held)
    }

    /// Sends that have not been completed for the last time.
    pub(crate) fn sends(&self) -> usize {
        let is_send = |op: &&Op| matches!(op.purpose, Purpose::Send(_));
        self.ops.values().filter(is_send).count()
    }

    /// One entry of the completion queue; `None`: it means nothing to anybody.
    ///
    /// # Panics
    /// If there is no such operation.
    pub(crate) fn handle_completion(&mut self, key: u64, result: i32, flags: u32) -> Option<Completion> {
        let key = DefaultKey::from(KeyData::from_ffi(key));
        let (more, notification) = (cqueue::more(flags), cqueue::notif(flags));
        let Some(op) = self.ops.get_mut(key) else {
            // A linked zero-copy send that was given up before it began says so without promising a notification, and gets
            // one all the same (seen on Linux 6.18). The kernel never read its memory.
            assert!(notification, "invariant: the kernel completes what it was given, once");
            return None;
        };
        let tag = match op.purpose {
            Purpose::Send(tag) => tag,
            Purpose::Cancel { line } => {
                self.ops.remove(key);
                return Some(Completion::Cancelled { line });
            }
            Purpose::Bell => {
                if !more {
                    self.ops.remove(key);
                }
                return Some(Completion::Bell { armed: more });
            }
        };
        let mut sent = None;
        if notification {
            op.copied = Some(result & COPIED != 0);
        } else {
            op.notifies = more;
            let count = usize::try_from(result);
            op.sent = Some(count.unwrap_or(0));
            sent = Some(count.map_err(|_| io::Error::from_raw_os_error(-result)));
        }
        let released = op.sent.is_some() && (op.copied.is_some() || !op.notifies);
        let mut usage = None;
        if released {
            // One that failed has been neither copied nor not.
            usage = op.copied.zip(op.sent.filter(|bytes| *bytes > 0));
            self.ops.remove(key);
        }
        Some(Completion::Send {
            tag,
            sent,
            released,
            usage: usage.map(|(copied, bytes)| Usage { copied, bytes }),
        })
    }

    /// The kernel reads nothing any more: what is left is dropped.
    pub(crate) fn clear(&mut self) {
        self.ops.clear();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for (_, op) in self.ops.drain() {
            std::mem::forget(op);
        }
    }
}
