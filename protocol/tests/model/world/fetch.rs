//! The fetching side: receivers, the credit of their gate, and the reader.

use std::collections::VecDeque;

use shuffle_protocol::ids::Sequence;
use shuffle_protocol::stream::{Arrival, Receiver};

use super::{Channel, Down, Item, MOST_CHANNELS, Up, World};

impl World {
    pub(super) fn open(&mut self) {
        if self.channels.len() == MOST_CHANNELS {
            return;
        }
        let id = self.opened;
        self.opened += 1;
        let receiver = Receiver::new(0);
        if self.connected {
            self.up.push_back(Up::Open {
                id,
                point: receiver.resume_point(),
                resume: false,
            });
        }
        self.channels.push(Channel {
            id,
            sender: None,
            attached: false,
            queue: VecDeque::new(),
            produced: 0,
            ended: false,
            freed: 0,
            receiver,
            index: self.gate.add_channel(),
            viewed: 0,
            arrived: 0,
            checked: 0,
            cancelled: false,
        });
    }

    pub(super) fn arrive_down(&mut self) {
        let Some(message) = self.down.pop_front() else { return };
        let id = match message {
            Down::Item { id, .. } | Down::Backlog { id, .. } => id,
        };
        // Late for a channel that is forgotten: ignored.
        let Some(channel) = self.channels.iter_mut().find(|channel| channel.id == id) else {
            return;
        };
        match message {
            Down::Backlog { waiting, .. } => {
                if !channel.cancelled && !channel.receiver.is_finished() {
                    self.gate.handle_backlog(channel.index, waiting);
                }
            }
            Down::Item {
                sequence,
                stamp,
                item,
                backlog,
                ..
            } => {
                let arrival = match item {
                    Item::Buffer => channel.receiver.handle_buffer(sequence),
                    Item::End { last } => channel.receiver.handle_end(sequence, last),
                };
                if channel.cancelled {
                    assert_eq!(arrival, Ok(Arrival::Duplicate));
                    return;
                }
                assert_eq!(arrival, Ok(Arrival::Accept), "on a link in order");
                assert_eq!(stamp, channel.arrived, "lost, repeated or out of order");
                channel.arrived += 1;
                match item {
                    Item::Buffer => {
                        channel.viewed += 1;
                        self.gate.handle_buffer(channel.index, backlog);
                    }
                    Item::End { last: true } => {
                        let reserved = channel.receiver.reclaim_credit();
                        self.gate.handle_cancel(channel.index, reserved);
                        self.free += u32::try_from(reserved).expect("a small pool");
                    }
                    Item::End { last: false } => {}
                }
            }
        }
    }

    pub(super) fn assign(&mut self) {
        while self.free > 0 {
            let Some(index) = self.gate.poll_assign() else { return };
            let open = |channel: &&mut Channel| channel.index == index && !channel.cancelled;
            let channel = self.channels.iter_mut().find(open).expect("a channel that is open");
            self.free -= 1;
            channel.receiver.add_credit(1);
        }
    }

    pub(super) fn tell(&mut self, at: usize) {
        let Some(channel) = self.channels.get_mut(at).filter(|_| self.connected) else {
            return;
        };
        if channel.cancelled {
            return;
        }
        let id = channel.id;
        self.up
            .extend(channel.receiver.poll_credit().map(|limit| Up::Credit { id, limit }));
        self.up
            .extend(channel.receiver.poll_ack().map(|below| Up::Ack { id, below }));
    }

    pub(super) fn check(&mut self, at: usize, n: usize) {
        let Some(channel) = self.channels.get_mut(at) else {
            return;
        };
        if !channel.cancelled {
            let n = u64::try_from(n).expect("64 bits fit");
            channel.checked = channel.arrived.min(channel.checked.saturating_add(n));
            let checked = channel.receiver.handle_checked(Sequence::new(channel.checked));
            checked.expect("an honest reader");
        }
    }

    pub(super) fn release(&mut self, at: usize) {
        if let Some(channel) = self.channels.get_mut(at)
            && channel.viewed > 0
        {
            channel.viewed -= 1;
            self.gate.handle_release(channel.index);
            self.free += 1;
        }
    }

    pub(super) fn cancel(&mut self, at: usize) {
        let Some(channel) = self.channels.get_mut(at) else {
            return;
        };
        if channel.cancelled {
            return;
        }
        channel.cancelled = true;
        let was_finished = channel.receiver.is_finished();
        let reserved = channel.receiver.cancel();
        if !was_finished {
            self.gate.handle_cancel(channel.index, reserved);
            self.free += u32::try_from(reserved).expect("a small pool");
        }
        if self.connected {
            self.up.push_back(Up::Close { id: channel.id });
        }
    }
}
