//! A reader on this node found that a buffer does not have its checksum.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::{Sequence, ShuffleError, StreamId, control};

use crate::node::{ChannelNo, Node, Output, SessionId};

impl<B: Backing> Node<B> {
    /// Traces it; the reader gets the buffer once more, or its channel fails with the verdict.
    ///
    /// # Errors
    /// It does not hold such a buffer.
    pub(crate) fn report_mismatch(
        &mut self,
        now: Instant,
        id: SessionId,
        report: &control::ReportMismatch,
    ) -> Result<(), ShuffleError> {
        match self.channel_of(id, StreamId::new(report.stream)) {
            Some(ChannelNo::Local(no)) => self.trace_source(no, Sequence::new(report.sequence), report.got),
            Some(ChannelNo::Remote(no)) => self.trace_received(now, no, report),
            // It has ended meanwhile.
            None => Ok(()),
        }
    }

    /// Gives an executor a buffer once more that it holds.
    pub(crate) fn give_slot(&mut self, id: SessionId, channel: ChannelNo, output: Output) {
        if let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_open()) {
            session.sink.again.push((channel, output));
            self.wake_session(id);
        }
    }

    /// Appends them, but for those that it has given back meanwhile.
    pub(super) fn poll_again(&mut self, id: SessionId, out: &mut Vec<Output>) {
        let Some(session) = self
            .sessions
            .get_mut(id)
            .filter(|session| !session.sink.again.is_empty())
        else {
            return;
        };
        for (channel, output) in std::mem::take(&mut session.sink.again) {
            if let Output::Slot { slot, .. } = &output
                && self.is_viewed(*slot, id, channel)
            {
                out.push(output);
            }
        }
    }
}
