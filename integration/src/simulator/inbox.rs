//! What comes to an executor from its server.

use shuffle_protocol::control::control::Message;
use shuffle_protocol::frame::{Frame, SlotEntry};
use shuffle_protocol::{ShuffleError, StreamId, error::ErrorKind};

use super::channel::Item;
use super::connection::Packet;
use super::data::Content;
use super::desk::{Asked, Told};
use super::schedule::{Micros, SECONDS};
use super::world::World;

/// What an answer may take beyond the time that a request may wait: tasks and packets have delays.
const SLACK: Micros = 2 * SECONDS;

impl World {
    /// Something came from the server.
    pub(super) fn handle_packet(&mut self, process: usize, packet: Packet) {
        match packet {
            Packet::Frame(Frame::Control(message)) => self.handle_message(process, *message),
            Packet::Frame(Frame::Slots(batch)) => {
                for entry in batch.iter() {
                    self.handle_buffer(process, entry, None);
                }
            }
            Packet::Body(head, contents) => {
                for (entry, content) in head.slots.iter().zip(contents) {
                    self.handle_buffer(process, entry, Some(content));
                }
            }
            Packet::Head(_) => {}
            Packet::Frame(Frame::End(batch)) => {
                for entry in batch.iter() {
                    self.arrive(process, entry.stream, Item::End(entry));
                }
            }
            Packet::Frame(Frame::Grant(batch)) => self.with_desk(process, |producers, _, desk| {
                for entry in batch.iter() {
                    producers[entry.writer.value() as usize].handle_grant(entry.slot, desk);
                }
            }),
            Packet::Frame(Frame::Credit(batch)) => self.with_desk(process, |producers, _, _| {
                for entry in batch.iter() {
                    producers[entry.stream.value() as usize].handle_limit(entry.subpartition.value(), entry.number);
                }
            }),
            Packet::Frame(Frame::Ping(nonce)) => {
                self.with_desk(process, |_, _, desk| desk.send(Frame::Pong(nonce)));
            }
            Packet::Frame(Frame::Pong(_) | Frame::Backlog(_)) => {}
            other => self.accuse(|| format!("{other:?} came to an executor")),
        }
    }

    fn handle_buffer(&mut self, process: usize, entry: SlotEntry, content: Option<Content>) {
        self.arrive(process, entry.stream, Item::Buffer(entry, content));
    }

    fn arrive(&mut self, process: usize, stream: StreamId, item: Item) {
        self.with_desk(process, |_, gates, desk| {
            let found = gates.iter_mut().find_map(|gate| Some((gate.channel_of(stream)?, gate)));
            match found {
                Some((index, gate)) => gate.handle_arrival(index, item, desk),
                None => desk.accuse(|| format!("{item:?} came on a channel that never was")),
            }
        });
    }

    fn handle_message(&mut self, process: usize, message: Message) {
        let parse = |error: Option<shuffle_protocol::control::Error>| error.map(ShuffleError::from);
        match message {
            Message::Reply(reply) => {
                let Some((since, asked)) = self.processes[process].requests.waiting.remove(&reply.request) else {
                    return self.accuse(|| format!("an answer to request {} of process {process}", reply.request));
                };
                let (took, limit) = (self.now - since, self.plan.request_timeout + SLACK);
                if took > limit && !self.processes[process].was_stopped {
                    self.accuse(|| format!("the answer to {asked:?} of process {process} took {took} us"));
                }
                let outcome = parse(reply.error).map_or(Ok(()), Err);
                match asked {
                    Asked::Create(index) | Asked::Finish(index) if outcome.is_err() => {
                        self.note_told(process, Told::Writer(index));
                    }
                    Asked::Open(index) if outcome.is_err() => self.note_told(process, Told::Gate(index)),
                    _ => {}
                }
                self.trace(|| format!("process {process}: {asked:?} is answered with {outcome:?}"));
                self.with_desk(process, |producers, gates, desk| match asked {
                    Asked::Create(index) => producers[index].handle_created(outcome, desk),
                    Asked::Finish(index) => producers[index].handle_finished(outcome),
                    Asked::Open(index) => gates[index].handle_opened(outcome),
                    Asked::Other => {}
                });
            }
            Message::WriterFailed(failed) => {
                let error = parse(failed.error).unwrap_or_else(unnamed);
                self.trace(|| format!("process {process}: writer {} failed: {error}", failed.writer));
                self.note_told(process, Told::Writer(failed.writer as usize));
                self.with_desk(process, |producers, _, desk| {
                    producers[failed.writer as usize].handle_failed(error, desk);
                });
            }
            Message::ChannelFailed(failed) => {
                let error = parse(failed.error).unwrap_or_else(unnamed);
                self.trace(|| format!("process {process}: channel {} failed: {error}", failed.stream));
                let stream = StreamId::new(failed.stream);
                self.note_told(process, Told::Channel(stream));
                self.with_desk(process, |_, gates, desk| {
                    let found = gates.iter_mut().find_map(|gate| Some((gate.channel_of(stream)?, gate)));
                    if let Some((index, gate)) = found {
                        gate.handle_failed(index, error, desk);
                    }
                });
            }
            other => self.accuse(|| format!("{other:?} came to an executor")),
        }
    }

    fn note_told(&mut self, process: usize, who: Told) {
        let now = self.now;
        self.processes[process].told.entry(who).or_insert(now);
    }
}

fn unnamed() -> ShuffleError {
    ShuffleError::new(ErrorKind::Protocol, "a failure without an error")
}
