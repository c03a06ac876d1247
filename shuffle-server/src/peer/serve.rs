//! Other nodes asking us: channels from our partitions to their readers.

use std::time::Instant;

use buffer_pool::Backing;
use shuffle_protocol::control::{self, control::Message, required};
use shuffle_protocol::{
    GroupRef, JobId, PartitionId, Sequence, ShuffleError, StreamId, SubpartitionRange, error::ErrorKind,
};

use super::PathId;
use crate::executor::protocol;
use crate::node::Node;
use crate::partition::{Item, Lookup, Outlet, OutletNo, OutletPlace, OutletState, SinkRef};

impl<B: Backing> Node<B> {
    /// A channel is asked for, or taken up again.
    pub(crate) fn serve_open(
        &mut self,
        now: Instant,
        path_id: PathId,
        open: &control::OpenChannel,
    ) -> Result<(), ShuffleError> {
        let stream = StreamId::new(open.stream);
        let job = JobId::new(open.job);
        let id = PartitionId::from(required(open.partition, "partition")?);
        let range = SubpartitionRange::try_from(required(open.range, "range")?)?;
        let group = open.group.clone().map(GroupRef::try_from).transpose()?;
        let Some(path) = self.paths.get(path_id) else {
            return Ok(());
        };
        let connection = path.connections;
        if let Some(&no) = path.outlets.get(&stream) {
            let is_same = self
                .outlets
                .get(no)
                .is_some_and(|outlet| outlet.job == job && outlet.id == id && outlet.range == range);
            if !is_same {
                return Err(protocol(format!("channel {stream} is open already")));
            }
            // A first request that was overtaken: it was said on a connection that its reader has replaced since.
            return if open.resume {
                self.resume_outlet(now, no, connection, open)
            } else {
                Ok(())
            };
        }
        if open.resume && open.received > 0 {
            let error = self.why_gone(job, id, group.as_ref());
            let close = control::CloseChannel {
                stream: open.stream,
                error: Some((&error).into()),
                by_producer: true,
            };
            self.tell_path(path_id, Message::CloseChannel(close));
            return Ok(());
        }
        let deadline = now + self.timeout(open.timeout_ms);
        let place = OutletPlace {
            job,
            id,
            range,
            sink: SinkRef::Path(path_id),
            stream,
            group: group.clone(),
            told_of: open.broadcast.map(|broadcast| broadcast.consumers),
            moved: open.moved.map(Into::into),
            packed_into: open.packed.then_some(self.config.buffer_bytes),
        };
        let mut outlet = Outlet::new(place, open.credit, now, deadline)?;
        outlet.confirmed = connection;
        let no = self.outlets.insert(outlet);
        if let Some(path) = self.paths.get_mut(path_id) {
            path.outlets.insert(stream, no);
        }
        if let Some(group) = &group
            && let Some(verdict) = self.groups.verdict(job, group.id).cloned()
        {
            self.fail_outlet(now, no, verdict);
            return Ok(());
        }
        self.place_outlet(now, no);
        Ok(())
    }

    /// Why a channel is not here any more that its reader wants to take up again: what ended it while there was no
    /// connection on which to say so.
    fn why_gone(&mut self, job: JobId, id: PartitionId, group: Option<&GroupRef>) -> ShuffleError {
        if let Some(verdict) = group.and_then(|group| self.groups.verdict(job, group.id)) {
            return verdict.clone();
        }
        match self.registry.lookup(job, id) {
            Lookup::Refused(error)
                if matches!(error.kind(), ErrorKind::PartitionFailed | ErrorKind::Superseded { .. }) =>
            {
                error
            }
            _ => ShuffleError::new(
                ErrorKind::ConnectionLost,
                "this node has given the channel up since its connection broke",
            )
            .job(job)
            .partition(id)
            .node(&self.config.address),
        }
    }

    fn resume_outlet(
        &mut self,
        now: Instant,
        no: OutletNo,
        connection: u64,
        open: &control::OpenChannel,
    ) -> Result<(), ShuffleError> {
        let Some(outlet) = self.outlets.get_mut(no) else {
            return Ok(());
        };
        outlet.confirmed = connection;
        let freed: Vec<Item> = outlet
            .sender
            .handle_resume(
                Sequence::new(open.acknowledged),
                Sequence::new(open.received),
                open.credit,
            )
            .map_err(ShuffleError::from)?
            .collect();
        self.counters.channels_resumed += 1;
        self.handle_acked(now, no, freed);
        self.list_outlet(no);
        Ok(())
    }

    pub(crate) fn handle_peer_ack(
        &mut self,
        now: Instant,
        path: PathId,
        stream: StreamId,
        below: u64,
    ) -> Result<(), ShuffleError> {
        match self.outlet_of(path, stream) {
            Some(no) => self.ack_outlet(now, no, Sequence::new(below)),
            None => Ok(()),
        }
    }

    pub(crate) fn handle_peer_credit(
        &mut self,
        path: PathId,
        stream: StreamId,
        limit: u64,
    ) -> Result<(), ShuffleError> {
        let Some(no) = self.outlet_of(path, stream) else {
            return Ok(());
        };
        if let Some(outlet) = self.outlets.get_mut(no) {
            outlet.sender.handle_credit(limit).map_err(ShuffleError::from)?;
        }
        self.list_outlet(no);
        Ok(())
    }

    /// A buffer did not match at its reader.
    pub(crate) fn handle_trace_request(
        &mut self,
        path: PathId,
        trace: &control::TraceBuffer,
    ) -> Result<(), ShuffleError> {
        match self.outlet_of(path, StreamId::new(trace.stream)) {
            Some(no) => self.trace_source(no, Sequence::new(trace.sequence), trace.got),
            None => Ok(()),
        }
    }

    /// The reader wants no more.
    pub(crate) fn handle_reader_closed(&mut self, now: Instant, path: PathId, stream: StreamId) {
        if let Some(no) = self.outlet_of(path, stream) {
            self.drop_outlet(now, no);
        }
    }

    /// The reader's node is lost.
    pub(crate) fn lose_outlet(&mut self, now: Instant, no: OutletNo, error: &ShuffleError) {
        let Some(outlet) = self.outlets.get(no) else { return };
        let (job, group) = (outlet.job, outlet.group.clone());
        let error = outlet.locate(error.clone());
        self.drop_outlet(now, no);
        if let Some(group) = group {
            self.handle_member_failed(now, job, &group, error);
        }
    }

    /// Readers that have not taken up their channels on this connection, which is back for long, are gone.
    pub(crate) fn drop_unconfirmed(&mut self, now: Instant, id: PathId) {
        let Some(path) = self.paths.get(id).filter(|path| path.link.is_some()) else {
            return;
        };
        let connection = path.connections;
        let gone: Vec<_> = path
            .outlets
            .values()
            .copied()
            .filter(|no| {
                self.outlets
                    .get(*no)
                    .is_some_and(|outlet| outlet.confirmed < connection)
            })
            .collect();
        for no in gone {
            self.drop_outlet(now, no);
        }
    }

    pub(crate) fn outlet_of(&self, path: PathId, stream: StreamId) -> Option<OutletNo> {
        self.paths.get(path)?.outlets.get(&stream).copied()
    }

    /// Which partition an outlet reads, once it is there; for invariants.
    pub(crate) fn partition_of(&self, no: OutletNo) -> Option<crate::partition::PartitionNo> {
        match self.outlets.get(no)?.state {
            OutletState::Open(partition) => Some(partition),
            OutletState::Waiting { .. } | OutletState::Failed => None,
        }
    }
}
