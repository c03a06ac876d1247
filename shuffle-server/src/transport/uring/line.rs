//! One connection, seen from the server's thread: gathers go in, buffers come back.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use buffer_pool::SlotRef;

use super::engine::{Engine, Place};
use super::mail::{Command, LineMail};
use super::piece::Gather;

/// Gathers under way at once: the ring starts the next without asking for it. Those of which every byte is sent and only
/// the notification is missing do not count.
pub(crate) const MAX_UNSENT: usize = 2;

/// A connection that sends through a ring. Dropping it ends it; [`Line::finish`] says when the kernel is done with it.
#[derive(Debug)]
pub(crate) struct Line {
    engine: Rc<Engine>,
    place: Option<Place>,
    mail: Arc<LineMail>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    unsent: usize,
    /// Buffers lent to the ring.
    lent: usize,
    failed: bool,
    closed: bool,
    copied: u64,
    uncopied: u64,
}

impl Line {
    /// # Errors
    /// There is no place for it.
    pub(crate) fn open(engine: &Rc<Engine>, socket: impl AsFd) -> io::Result<Self> {
        let mail = Arc::default();
        let place = engine.open(socket, &mail)?;
        Ok(Self {
            engine: Rc::clone(engine),
            place: Some(place),
            mail,
            state: RefCell::default(),
        })
    }

    /// Whether another gather may be given.
    pub(crate) fn has_room(&self) -> bool {
        self.state.borrow().unsent < MAX_UNSENT
    }

    /// Whether nothing that was given is under way, as far as has been heard.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.borrow();
        state.unsent == 0 && state.lent == 0
    }

    /// Sends these bytes behind all others.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn send(&self, gather: Gather) {
        assert!(self.has_room(), "invariant: no more is sent than there is room for");
        {
            let mut state = self.state.borrow_mut();
            state.unsent += 1;
            state.lent += gather.slots().count();
        }
        if let Some(place) = self.place {
            self.engine.push(place, |line| Command::Send { line, gather });
        }
    }

    /// Takes in what the ring has said; buffers that the kernel reads no more are appended to `done`. True: there was something.
    ///
    /// # Errors
    /// The connection is broken; said once.
    pub(crate) fn take_news(&self, done: &mut Vec<SlotRef>) -> io::Result<bool> {
        let Some(news) = self.mail.take() else {
            return Ok(false);
        };
        let mut state = self.state.borrow_mut();
        let report = news.report;
        let (unsent, lent) = (
            state.unsent.checked_sub(report.sent),
            state.lent.checked_sub(report.slots.len()),
        );
        state.unsent = unsent.expect("invariant: a gather is sent once");
        state.lent = lent.expect("invariant: a buffer comes back once");
        state.copied += report.copied;
        state.uncopied += report.uncopied;
        state.closed |= news.closed;
        done.extend(report.slots);
        match report.failed {
            Some(error) if !std::mem::replace(&mut state.failed, true) => Err(error),
            _ => Ok(true),
        }
    }

    /// Resolves when [`Self::take_news`] has something.
    pub(crate) async fn wait(&self) {
        self.mail.wait().await;
    }

    /// Zero-copy sends so far: those the kernel copied after all, and the others.
    pub(crate) fn zero_copy_sends(&self) -> (u64, u64) {
        let state = self.state.borrow();
        (state.copied, state.uncopied)
    }

    /// Ends the connection: what is out is given up. Resolves when the kernel reads nothing of it any more; then every buffer
    /// has come back.
    pub(crate) async fn finish(mut self, done: &mut Vec<SlotRef>) {
        let Some(place) = self.place.take() else { return };
        self.engine.push(place, |line| Command::Close { line });
        loop {
            // Its end is known.
            let _ = self.take_news(done);
            if self.state.borrow().closed {
                break;
            }
            self.wait().await;
        }
        debug_assert!(
            self.is_idle(),
            "invariant: a line that is closed has given back everything"
        );
        self.engine.free(place);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.engine.push(place, |line| Command::Close { line });
        }
    }
}
