//! The serving side: queues and senders.

use std::collections::VecDeque;

use shuffle_protocol::ids::Sequence;
use shuffle_protocol::stream::{ResumePoint, Sender};

use super::{Channel, Down, Item, Up, World};

impl World {
    pub(super) fn produce(&mut self, at: usize, n: usize) {
        if let Some(channel) = self.channels.get_mut(at)
            && !channel.ended
        {
            match n {
                0 => channel.queue.push_back(Item::End { last: false }),
                _ => channel.queue.extend(std::iter::repeat_n(Item::Buffer, n)),
            }
        }
    }

    pub(super) fn pump(&mut self, at: usize) {
        let Some(channel) = self.channels.get_mut(at).filter(|channel| channel.attached) else {
            return;
        };
        let Some(sender) = channel.sender.as_mut() else { return };
        let id = channel.id;
        let waiting = |queue: &VecDeque<Item>| {
            let buffers = queue.iter().filter(|item| **item == Item::Buffer).count();
            u32::try_from(buffers).expect("a short queue")
        };
        while let Some((sequence, &(stamp, item))) = sender.poll_resend() {
            let backlog = waiting(&channel.queue);
            self.down.push_back(Down::Item {
                id,
                sequence,
                stamp,
                item,
                backlog,
            });
        }
        while let Some(&item) = channel.queue.front() {
            if item == Item::Buffer && !sender.can_send_buffer() {
                break;
            }
            channel.queue.pop_front();
            let stamp = channel.produced;
            channel.produced += 1;
            let sequence = match item {
                Item::Buffer => sender.send_buffer((stamp, item)),
                Item::End { .. } => sender.send_end((stamp, item)),
            };
            let backlog = waiting(&channel.queue);
            self.down.push_back(Down::Item {
                id,
                sequence,
                stamp,
                item,
                backlog,
            });
        }
        if let Some(waiting) = sender.poll_backlog(waiting(&channel.queue)) {
            self.down.push_back(Down::Backlog { id, waiting });
        }
    }

    pub(super) fn arrive_up(&mut self) {
        let Some(message) = self.up.pop_front() else { return };
        let id = match message {
            Up::Open { id, .. } | Up::Credit { id, .. } | Up::Ack { id, .. } | Up::Close { id } => id,
        };
        let Some(channel) = self.channels.iter_mut().find(|channel| channel.id == id) else {
            return;
        };
        let Channel { sender, freed, .. } = channel;
        let mut free = |items: Vec<(u64, Item)>| {
            for (stamp, _) in items {
                assert_eq!(stamp, *freed, "freed twice, or out of order");
                *freed += 1;
            }
        };
        match (message, sender.as_mut()) {
            (Up::Open { point, resume, .. }, Some(sender)) => {
                assert!(resume);
                let ResumePoint {
                    acknowledged,
                    received,
                    credit,
                } = point;
                let freed = sender.handle_resume(acknowledged, received, credit);
                free(freed.expect("an honest resume").collect());
                channel.attached = true;
            }
            (Up::Open { point, .. }, None) => {
                assert_eq!(point.received, Sequence::ZERO);
                *sender = Some(Sender::new(point.credit).expect("an honest credit"));
                channel.attached = true;
            }
            (Up::Credit { limit, .. }, Some(sender)) => {
                sender.handle_credit(limit).expect("an honest credit");
            }
            (Up::Ack { below, .. }, Some(sender)) => {
                free(sender.handle_ack(below).expect("an honest ack").collect());
            }
            (Up::Close { .. }, _) => {
                free(sender.take().map(Sender::close).unwrap_or_default());
                channel.attached = false;
                channel.queue.clear();
            }
            (Up::Credit { .. } | Up::Ack { .. }, None) => panic!("told before the channel was open"),
        }
    }
}
