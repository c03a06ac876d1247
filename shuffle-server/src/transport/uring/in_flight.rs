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

use super::operation::{Completion, Tag};
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
    sent: bool,
    /// A notification follows the result; known once that has come.
    notifies: bool,
    notified: bool,
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
            sent: false,
            notifies: false,
            notified: false,
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
        let (mut sent, mut copied) = (None, None);
        if notification {
            op.notified = true;
            copied = Some(result & COPIED != 0);
        } else {
            op.sent = true;
            op.notifies = more;
            sent = Some(match usize::try_from(result) {
                Ok(count) => Ok(count),
                Err(_) => Err(io::Error::from_raw_os_error(-result)),
            });
        }
        let released = op.sent && (op.notified || !op.notifies);
        if released {
            self.ops.remove(key);
        }
        Some(Completion::Send {
            tag,
            sent,
            released,
            copied,
        })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for (_, op) in self.ops.drain() {
            std::mem::forget(op);
        }
    }
}
