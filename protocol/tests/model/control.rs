//! Control messages: whatever decodes can be looked at in every way without a panic, and errors come through unchanged.

use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::error::ShuffleError;
use shuffle_protocol::frame::{Deframer, Event, Frame, FrameKind};
use shuffle_protocol::ids::{PartitionId, SubpartitionRange};
use shuffle_protocol::notify::{Packer, Unpacker};
use shuffle_protocol::partition::GroupRef;

use super::deframer;

/// The bytes are the encoded message.
pub(crate) fn run(data: &[u8]) {
    let wire = deframer::frame(FrameKind::Control, 0, data);
    let (events, _) = deframer::events(&mut Deframer::new(), &wire, wire.len());
    for (event, _) in events {
        if let Event::Frame(Frame::Control(message)) = event {
            look(*message);
        }
    }
}

fn look(message: Message) {
    match message {
        Message::Hello(hello) => {
            if let Err(error) = hello.check() {
                look_at_error(&error);
            }
        }
        Message::Welcome(welcome) => {
            if let Err(error) = welcome.check() {
                look_at_error(&error);
            }
        }
        Message::CreatePartition(create) => {
            let kind = create.kind();
            if let Ok(kind) = &kind {
                let again = create.clone().with_kind(*kind);
                assert_eq!(again.kind().as_ref(), Ok(kind));
                drop(kind.validate());
            }
            look_at_group(create.group);
        }
        Message::FinishPartition(finish) => {
            for totals in &finish.totals {
                let (subpartition, counted) = totals.parts();
                assert_eq!(control::SubpartitionTotals::new(subpartition, &counted), *totals);
            }
        }
        Message::OpenGate(gate) => {
            for channel in gate.channels {
                look_at_range(channel.range);
                let id = channel.partition.map(PartitionId::from);
                assert_eq!(id.map(control::Partition::from), channel.partition);
            }
            look_at_group(gate.group);
        }
        Message::OpenChannel(open) => {
            look_at_range(open.range);
            look_at_group(open.group);
        }
        Message::GroupReport(report) => {
            look_at_group(report.group);
            look_at_cause(report.cause);
        }
        Message::GroupVerdict(verdict) => {
            look_at_group(verdict.group);
            look_at_cause(verdict.cause);
        }
        Message::GroupJoin(join) => look_at_group(join.group),
        Message::PartitionEvents(message) => look_at_events(message),
        Message::Fence(fence) => drop(control::parse_nodes(&fence.nodes)),
        Message::Reject(reject) => look_at_cause(reject.error),
        Message::Goodbye(goodbye) => look_at_cause(goodbye.reason),
        Message::Reply(reply) => look_at_cause(reply.error),
        Message::AbortPartition(abort) => look_at_cause(abort.cause),
        Message::FailGroup(fail) => look_at_cause(fail.cause),
        Message::WriterFailed(failed) => look_at_cause(failed.error),
        Message::ChannelFailed(failed) => look_at_cause(failed.error),
        Message::CloseChannel(close) => look_at_cause(close.error),
        Message::CloseGate(_)
        | Message::CancelChannel(_)
        | Message::ReleasePartition(_)
        | Message::ReleaseJob(_)
        | Message::ReleaseResult(_)
        | Message::Subscribe(_)
        | Message::EventsSeen(_)
        | Message::ReportMismatch(_)
        | Message::TraceBuffer(_)
        | Message::Status(_)
        | Message::FenceNotice(_)
        | Message::GroupLeave(_)
        | Message::AudienceClosed(_)
        | Message::Refetchable(_) => {}
    }
}

/// What can be taken out goes in again, and comes out the same.
fn look_at_events(message: control::PartitionEvents) {
    let unpack = |events: Vec<control::PartitionEvent>| {
        let mut unpacker = Unpacker::default();
        let changes = events
            .into_iter()
            .map_while(move |event| unpacker.handle_event(event).ok());
        changes.flatten().collect::<Vec<_>>()
    };
    let changes = unpack(message.events);
    let mut packer = Packer::default();
    changes.iter().for_each(|change| packer.push(change));
    let again = packer.finish(1, false).into_iter().flat_map(|message| message.events);
    assert_eq!(unpack(again.collect()), changes);
}

fn look_at_group(group: Option<control::Group>) {
    if let Some(group) = group
        && let Ok(checked) = GroupRef::try_from(group.clone())
    {
        assert_eq!(control::Group::from(&checked), group);
    }
}

fn look_at_range(range: Option<control::SubpartitionRange>) {
    if let Some(range) = range
        && let Ok(checked) = SubpartitionRange::try_from(range)
    {
        assert_eq!(checked.iter().len(), usize::try_from(range.count).expect("32 bits fit"));
        assert!(checked.iter().all(|index| checked.contains(index)));
        assert_eq!(control::SubpartitionRange::from(checked), range);
    }
}

fn look_at_cause(error: Option<control::Error>) {
    if let Some(error) = error {
        look_at_error(&ShuffleError::from(error));
    }
}

/// An error that came over the wire once comes over it unchanged from then on.
fn look_at_error(error: &ShuffleError) {
    let once = ShuffleError::from(control::Error::from(error));
    let twice = ShuffleError::from(control::Error::from(&once));
    assert_eq!(once, twice);
    assert_eq!(error.kind().code(), once.kind().code());
    assert_eq!(error.first_cause().kind().code(), once.first_cause().kind().code());
    assert!(!once.to_string().is_empty());
}
