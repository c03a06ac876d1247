//! Who has something to send: the lists from which drivers are woken, each once.

use std::collections::VecDeque;
use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::control::Message;

use super::{ChannelNo, Dial, Node, Output, SessionId, Wake};
use crate::partition::{OutletNo, SinkRef, Turn};
use crate::peer::PathId;

/// What waits to be sent to one session or over one path.
#[derive(Debug, Default)]
pub(crate) struct Sink {
    /// In the order in which it goes out.
    pub(crate) out: VecDeque<Output>,
    /// Outlets that may have something, taken in turn.
    pub(crate) ready: Turn,
    /// Buffers that did not match at an executor, which holds them, and are given to it once more.
    pub(crate) again: Vec<(ChannelNo, Output)>,
    /// The driver has been told and has not looked yet.
    pub(crate) woken: bool,
}

impl Sink {
    pub(crate) fn control(&mut self, message: Message) {
        self.out.push_back(Output::Control(Box::new(message)));
    }
}

impl<B: Backing> Node<B> {
    /// Who has output now. Each is named once until it is polled.
    pub fn poll_wake(&mut self) -> Option<Wake> {
        self.wakes.pop_front()
    }

    /// A connection to be made now.
    pub fn poll_dial(&mut self, now: Instant) -> Option<Dial> {
        while let Some(path) = self.dials.pop_front() {
            if let Some(dial) = self.start_dial(now, path) {
                return Some(dial);
            }
        }
        None
    }

    pub(crate) fn wake_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.is_open()
            && !session.sink.woken
        {
            session.sink.woken = true;
            self.wakes.push_back(Wake::Session(id));
        }
    }

    pub(crate) fn wake_path(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id)
            && let Some(link) = path.link
            && !path.sink.woken
        {
            path.sink.woken = true;
            self.wakes.push_back(Wake::Link(link));
        }
    }

    /// Puts an outlet on its sink's list.
    pub(crate) fn list_outlet(&mut self, no: OutletNo) {
        let Some(outlet) = self.outlets.get_mut(no) else { return };
        if outlet.listed {
            return;
        }
        outlet.listed = true;
        match outlet.sink {
            SinkRef::Session(id) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.sink.ready.push_back(no);
                }
                self.wake_session(id);
            }
            SinkRef::Path(id) => {
                if let Some(path) = self.paths.get_mut(id) {
                    path.sink.ready.push_back(no);
                }
                self.wake_path(id);
            }
        }
    }

    pub(crate) fn tell_session(&mut self, id: SessionId, message: Message) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.is_open()
        {
            session.sink.control(message);
            self.wake_session(id);
        }
    }

    pub(crate) fn tell_path(&mut self, id: PathId, message: Message) {
        if let Some(path) = self.paths.get_mut(id)
            && path.link.is_some()
        {
            path.sink.control(message);
            self.wake_path(id);
        }
    }
}
