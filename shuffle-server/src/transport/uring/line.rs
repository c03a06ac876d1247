//! One connection, seen from the server's thread: gathers go in, buffers come back.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use buffer_pool::SlotRef;

use super::engine::{Engine, Place};
use super::mail::{Command, LineMail};
use super::piece::Gather;
use super::sender::{Report, ZeroCopySends};

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
    lent: Lent,
    failed: bool,
    closed: bool,
    zero_copy: ZeroCopySends,
}

/// The buffers of each gather that is with the ring. They are noted here, so that none is lost with a ring's thread.
#[derive(Debug, Default)]
struct Lent {
    /// `None`: that gather has come back, and one before it has not.
    gathers: VecDeque<Option<Vec<SlotRef>>>,
    /// Number of the first of them.
    first: u64,
}

impl Lent {
    fn is_empty(&self) -> bool {
        self.gathers.is_empty()
    }

    fn lend(&mut self, gather: &Gather) {
        self.gathers.push_back(Some(gather.slots().collect()));
    }

    /// # Panics
    /// If this gather is not lent.
    fn take_back(&mut self, number: u64, done: &mut Vec<SlotRef>) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let gather = at.and_then(|at| self.gathers.get_mut(at)).and_then(Option::take);
        done.extend(gather.expect("invariant: a gather comes back once"));
        while self.gathers.front().is_some_and(Option::is_none) {
            self.gathers.pop_front();
            self.first += 1;
        }
    }

    fn take_back_all(&mut self, done: &mut Vec<SlotRef>) {
        done.extend(self.gathers.drain(..).flatten().flatten());
    }
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
        state.unsent == 0 && state.lent.is_empty()
    }

    /// Sends these bytes behind all others.
    ///
    /// # Panics
    /// If there is no room.
    pub(crate) fn send(&self, gather: Gather) {
        assert!(self.has_room(), "invariant: no more is sent than there is room for");
        let mut state = self.state.borrow_mut();
        state.unsent += 1;
        state.lent.lend(&gather);
        if state.closed {
            // Nobody else would say that it comes back.
            drop(gather);
            self.mail.post(Report::default(), true);
        } else if let Some(place) = self.place {
            // Refused by a ring whose thread is ending: everything comes back with its last word.
            let _ = self.engine.push(place, |line| Command::Send { line, gather });
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
        let unsent = state.unsent.checked_sub(report.sent);
        state.unsent = unsent.expect("invariant: a gather is sent once");
        state.zero_copy.add(report.zero_copy);
        for number in report.released {
            state.lent.take_back(number, done);
        }
        if news.closed {
            state.closed = true;
            state.unsent = 0;
            state.lent.take_back_all(done);
        }
        match report.failed {
            Some(error) if !std::mem::replace(&mut state.failed, true) => Err(error),
            _ => Ok(true),
        }
    }

    /// Resolves when [`Self::take_news`] has something.
    pub(crate) async fn wait(&self) {
        self.mail.wait().await;
    }

    /// Zero-copy sends since this was asked last, as the kernel has reported of them.
    pub(crate) fn take_zero_copy_sends(&self) -> ZeroCopySends {
        std::mem::take(&mut self.state.borrow_mut().zero_copy)
    }

    /// Ends the connection: what is out is given up. Resolves when the kernel reads nothing of it any more; then every buffer
    /// has come back.
    pub(crate) async fn finish(&mut self, done: &mut Vec<SlotRef>) {
        let Some(place) = self.place.take() else { return };
        // Refused: it is being closed already.
        let _ = self.engine.push(place, |line| Command::Close { line });
        loop {
            // Its end is known.
            let _ = self.take_news(done);
            if self.state.borrow().closed {
                break;
            }
            self.wait().await;
        }
        self.engine.free(place);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let _ = self.engine.push(place, |line| Command::Close { line });
        }
    }
}
