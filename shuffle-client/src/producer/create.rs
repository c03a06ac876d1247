//! From a specification to a writer.

use std::sync::Arc;

use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{AbortPartition, CreatePartition};
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{RequestId, WriterId};
use shuffle_protocol::limits::MAX_SUBPARTITIONS;
use shuffle_protocol::session::Features;

use super::core::CoreConfig;
use super::handle::WriterShared;
use super::selector::Selection;
use super::spec::{FlushInterval, PartitionSpec};
use super::writer::Writer;
use crate::attach::{Lifeline, notify, request_or_undo};

/// A writer's place in its session. Dropped while open it aborts the partition, whether its creation was answered yet
/// or not.
pub(super) struct Registration {
    pub(super) session: Arc<Lifeline>,
    pub(super) writer: Arc<WriterShared>,
    open: bool,
}

impl Registration {
    fn new(session: Arc<Lifeline>, writer: Arc<WriterShared>) -> Result<Self> {
        session.shared().registry().add_writer(writer.id, writer.clone())?;
        Ok(Self {
            session,
            writer,
            open: true,
        })
    }

    /// Leaves the session; what the writer still holds goes back. False: it had left before.
    pub(super) fn close(&mut self, reason: ShuffleError) -> bool {
        if !std::mem::take(&mut self.open) {
            return false;
        }
        self.session.shared().registry().remove_writer(self.writer.id);
        self.writer.handle_failure(reason, self.session.outbox());
        true
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let cancelled = ShuffleError::new(ErrorKind::Cancelled, "the writer was dropped before it finished");
        if self.close(cancelled.clone()) {
            let cause = cancelled.job(self.session.facts().job).partition(self.writer.partition);
            notify(&self.session, |request| abort_message(request, self.writer.id, &cause));
        }
    }
}

pub(super) fn abort_message(request: RequestId, writer: WriterId, cause: &ShuffleError) -> Message {
    Message::AbortPartition(AbortPartition {
        request: request.value(),
        writer: writer.value(),
        cause: Some(cause.into()),
    })
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("partition", &self.writer.partition)
            .finish_non_exhaustive()
    }
}

/// Creates the partition and gives its writer.
pub(crate) async fn create(session: Arc<Lifeline>, mut spec: PartitionSpec) -> Result<Writer> {
    let partition = spec.partition;
    check(&spec).map_err(|error| error.partition(partition))?;
    let facts = session.facts();
    let able = facts.features.contains(Features::SLICES);
    spec.settle_sorted(able).map_err(|error| error.partition(partition))?;
    let id = session.shared().next_writer();
    let config = CoreConfig {
        writer: id,
        subpartitions: spec.subpartitions,
        capacity: usize::try_from(facts.buffer_bytes).expect("invariant: Linux has at least 32 bits"),
        max_queued: spec.max_queued.unwrap_or(facts.max_queued),
        max_record: usize::try_from(facts.max_record_bytes).unwrap_or(usize::MAX),
        after_each_record: spec.flush_interval == FlushInterval::AfterEachRecord,
        checksums: spec.checksums,
        compression: spec.compression,
        max_buffers: spec.max_buffers,
        sorted: spec.sorted == Some(true),
    };
    let writer = Arc::new(WriterShared::new(partition, config));
    let mut registration = Registration::new(session.clone(), writer)?;
    let cancelled = ShuffleError::new(ErrorKind::Cancelled, "nobody waited for the partition to be created");
    // Made here, so that no reference to the specification and its selector lives across the wait.
    let message = spec.to_message(RequestId::new(0), id);
    let created = request_or_undo(
        &session,
        "creating a partition",
        spec.timeout,
        |request| {
            Message::CreatePartition(CreatePartition {
                request: request.value(),
                ..message
            })
        },
        |request| abort_message(request, id, &cancelled.partition(partition)),
    )
    .await;
    if let Err(error) = created {
        if !matches!(error.kind(), ErrorKind::TimedOut { .. }) {
            // The server said no: there is nothing to abort.
            registration.close(error.clone());
        }
        return Err(error.partition(partition));
    }
    let flush = spec.flush_interval;
    let selection = Selection::new(spec.selector, spec.subpartitions);
    Ok(Writer::new(registration, selection, flush))
}

fn check(spec: &PartitionSpec) -> Result<()> {
    if spec.subpartitions > MAX_SUBPARTITIONS {
        let kind = ErrorKind::LimitExceeded {
            what: "subpartitions".to_owned(),
            limit: MAX_SUBPARTITIONS.into(),
            asked: spec.subpartitions.into(),
        };
        return Err(ShuffleError::new(kind, "too many subpartitions"));
    }
    if spec.min_buffers == 0 || spec.max_buffers.is_some_and(|most| most < spec.min_buffers) {
        return Err(ShuffleError::new(
            ErrorKind::InvalidRequest,
            format!(
                "{} to {} buffers: at least one, and no more at least than at most",
                spec.min_buffers,
                spec.max_buffers
                    .map_or("any number of".to_owned(), |most| most.to_string())
            ),
        ));
    }
    spec.compression.check()?;
    spec.kind.validate()
}
