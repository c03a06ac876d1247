//! The producer's end of a result partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{FinishPartition, SubpartitionTotals};
use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
use shuffle_protocol::ids::{PartitionId, SubpartitionIndex};
use shuffle_protocol::partition::Totals;
use tokio_util::task::AbortOnDropHandle;

use super::core::{EventCursor, Need};
use super::create::{Registration, abort_message};
use super::handle::{WriteBuffer, WriterShared, release};
use super::record::Encoder;
use super::selector::{Choice, Selection};
use super::spec::FlushInterval;
use super::timer;
use crate::attach::{Lifeline, request};

/// How long a starved writer waits while enough of its buffers are on their way to readers. Then it gives more away, in case
/// these readers wait for what is in the rest.
const PATIENCE: Duration = Duration::from_millis(20);

/// What a finished partition holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishReport {
    /// Buffers, records, bytes and digest of each subpartition, in order.
    pub subpartitions: Vec<Totals>,
    /// Payload bytes before they were packed; as many as [`FinishReport::bytes`] without compression.
    pub unpacked_bytes: u64,
}

impl FinishReport {
    /// Payload bytes of all subpartitions as they travel: records with their length prefixes, and events.
    pub fn bytes(&self) -> u64 {
        self.subpartitions.iter().map(|totals| totals.bytes).sum()
    }

    /// Records of all subpartitions.
    pub fn records(&self) -> u64 {
        self.subpartitions.iter().map(|totals| totals.records).sum()
    }
}

/// Writes one result partition, in two layers that may be mixed: records in ([`write`](Self::write),
/// [`write_to`](Self::write_to)), or buffers in ([`reserve`](Self::reserve), [`commit`](Self::commit)).
///
/// A call waits for a buffer of the pool, or for readers of a subpartition whose queue is full, and for nothing else;
/// it ends with an error when the partition fails. The first failure is kept: every later call returns it.
///
/// **Dropping a future.** Every call may be dropped at any await. What it had not done is not done, with one
/// exception: a record or event that is longer than a buffer may then be in the stream in part, or an event for all
/// subpartitions in some of them, and every later call but [`abort`](Self::abort) says so.
///
/// **Dropping the writer** aborts the partition as cancelled; only [`finish`](Self::finish) completes it.
#[derive(Debug)]
pub struct Writer {
    registration: Registration,
    selection: Selection,
    // Ends with the writer.
    _timer: Option<AbortOnDropHandle<()>>,
}

impl Writer {
    pub(super) fn new(registration: Registration, selection: Selection, flush: FlushInterval) -> Self {
        let _timer = timer::spawn(&registration, flush);
        let writer = Self {
            registration,
            selection,
            _timer,
        };
        // States the first demand.
        writer.shared().with(writer.session().outbox(), |_| ());
        writer
    }

    /// The partition that is written.
    pub fn partition(&self) -> PartitionId {
        self.shared().partition
    }

    // --------------------------------------------------------------------------------------------- records in

    /// Writes a record to the subpartition that the selector chooses for `key`.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to); `InvalidRequest` if a custom selector chose a subpartition that is not there.
    #[inline]
    pub async fn write(&mut self, key: &[u8], record: &[u8]) -> Result<()> {
        let subpartition = match self.choose(key, record.len())? {
            Choice::Fixed(subpartition) | Choice::Free(subpartition) => subpartition,
            Choice::AllBlocked => self.choose_unblocked(key, record.len()).await?,
        };
        self.write_to(subpartition, record).await
    }

    /// Writes a record to a subpartition: 0 bytes up to the server's limit, in as many buffers as it takes.
    ///
    /// It waits while the queue of the subpartition is full or no buffer is granted. While the record fits the buffer
    /// that is open it is copied there, and nothing else happens.
    ///
    /// # Errors
    /// `RecordTooLarge`; `InvalidRequest` for a subpartition that is not there; whatever failed the partition.
    #[inline]
    pub async fn write_to(&mut self, subpartition: SubpartitionIndex, record: &[u8]) -> Result<()> {
        if self.shared().append(self.session().outbox(), subpartition, record) {
            return Ok(());
        }
        self.write_slowly(subpartition, record).await
    }

    async fn write_slowly(&mut self, subpartition: SubpartitionIndex, record: &[u8]) -> Result<()> {
        let max_bytes = self.session().facts().max_record_bytes;
        let bytes = u64::try_from(record.len()).unwrap_or(u64::MAX);
        let mut encoder = Encoder::new(record).filter(|_| bytes <= max_bytes).ok_or_else(|| {
            ShuffleError::new(ErrorKind::RecordTooLarge { bytes, max_bytes }, "")
                .partition(self.partition())
                .subpartition(subpartition)
        })?;
        self.check_alive()?;
        loop {
            let need = self.with(|core| core.write_step(subpartition, &mut encoder, Instant::now()))?;
            if !self.wait_for(need).await {
                return Ok(());
            }
        }
    }

    fn choose(&mut self, key: &[u8], bytes: usize) -> Result<Choice> {
        let (shared, session) = (&self.registration.writer, &self.registration.session);
        let choice = if self.selection.needs_load() {
            let selection = &mut self.selection;
            shared.with(session.outbox(), |core| {
                selection.select(key, |index| core.load(index, bytes))
            })
        } else {
            self.selection.select(key, |_| Some(0))
        };
        choice.map_err(|error| error.partition(shared.partition))
    }

    async fn choose_unblocked(&mut self, key: &[u8], bytes: usize) -> Result<SubpartitionIndex> {
        loop {
            self.check_alive()?;
            match self.choose(key, bytes)? {
                Choice::Fixed(subpartition) | Choice::Free(subpartition) => return Ok(subpartition),
                Choice::AllBlocked => self.shared().wake.notified().await,
            }
        }
    }

    // --------------------------------------------------------------------------------------------- buffers in

    /// A free buffer of the pool, to be filled in place for this subpartition.
    ///
    /// # Errors
    /// `InvalidRequest` for a subpartition that is not there; whatever failed the partition.
    pub async fn reserve(&mut self, subpartition: SubpartitionIndex) -> Result<WriteBuffer> {
        loop {
            if let Some(memory) = self.with(|core| core.lend(subpartition))? {
                return Ok(WriteBuffer {
                    memory: Some(memory),
                    subpartition,
                    writer: self.shared().clone(),
                    session: self.session().clone(),
                });
            }
            self.wait_for(Need::Buffer).await;
        }
    }

    /// Hands over the first `used` bytes of a buffer, in which `records` records start, behind everything that was written
    /// to its subpartition before. It waits while the queue of the subpartition is full. Of 0 bytes nothing is sent.
    ///
    /// What the bytes mean is between producer and consumer; if the consumer reads records, they are records as
    /// [`encode_record`](crate::encode_record) makes them, and each lies whole in its buffer.
    ///
    /// # Errors
    /// With the buffer: `InvalidRequest` if `used` is beyond its capacity or it is another writer's; whatever failed the
    /// partition.
    pub async fn commit(
        &mut self,
        mut buffer: WriteBuffer,
        used: usize,
        records: u32,
    ) -> std::result::Result<(), (ShuffleError, WriteBuffer)> {
        let invalid = |message: &str| ShuffleError::new(ErrorKind::InvalidRequest, message).partition(self.partition());
        if !Arc::ptr_eq(&buffer.writer, self.shared()) {
            return Err((invalid("the buffer was reserved from another writer"), buffer));
        }
        if used > buffer.len() {
            return Err((invalid("more bytes than the buffer has"), buffer));
        }
        if used == 0 && records > 0 {
            return Err((invalid("no record starts in no bytes"), buffer));
        }
        if used == 0 {
            // Its drop puts the buffer back.
            return self.check_alive().map_err(|error| (error, buffer));
        }
        loop {
            let subpartition = buffer.subpartition;
            let memory = &mut buffer.memory;
            match self.with(|core| core.commit_step(subpartition, memory, used, records)) {
                Err(error) => return Err((error, buffer)),
                Ok(need) => {
                    if !self.wait_for(need).await {
                        return Ok(());
                    }
                }
            }
        }
    }

    // ---------------------------------------------------------------------------------------- events, flush, end

    /// Puts an event of any size behind what was written so far, into one subpartition or (`None`) into each.
    ///
    /// # Errors
    /// `RecordTooLarge` beyond the server's limit for records; `InvalidRequest` for a subpartition that is not there;
    /// whatever failed the partition.
    pub async fn write_event(&mut self, subpartition: Option<SubpartitionIndex>, event: &[u8]) -> Result<()> {
        let max_bytes = self.session().facts().max_record_bytes;
        let bytes = u64::try_from(event.len()).unwrap_or(u64::MAX);
        if bytes > max_bytes {
            let kind = ErrorKind::RecordTooLarge { bytes, max_bytes };
            return Err(ShuffleError::new(kind, "an event").partition(self.partition()));
        }
        self.check_alive()?;
        let all = 0..self.with(|core| Ok(core.subpartitions()))?;
        let chosen = subpartition.map_or(all, |one| one.value()..one.value().saturating_add(1));
        for index in chosen.clone() {
            let subpartition = SubpartitionIndex::new(index);
            let mut cursor = EventCursor::new(event);
            loop {
                let need = self.with(|core| {
                    let need = core.event_step(subpartition, &mut cursor)?;
                    let under_way = cursor.is_torn() || index > chosen.start;
                    core.set_torn((need != Need::Nothing && under_way).then_some(subpartition));
                    Ok(need)
                })?;
                if !self.wait_for(need).await {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Hands over what is in partly filled buffers, and returns once that is done for all subpartitions.
    ///
    /// # Errors
    /// Whatever failed the partition.
    pub async fn flush(&mut self) -> Result<()> {
        loop {
            let need = self.with(super::core::Core::flush_step)?;
            if !self.wait_for(need).await {
                return Ok(());
            }
        }
    }

    /// Completes the partition: hands over what is left, and tells the server and through it every reader how many
    /// buffers, records and bytes each subpartition holds. Dropping the future aborts the partition.
    ///
    /// # Errors
    /// Whatever failed the partition. It is aborted then.
    pub async fn finish(mut self) -> Result<FinishReport> {
        self.flush().await?;
        let (session, writer) = (self.session().clone(), self.shared().clone());
        let (totals, unpacked_bytes, unused) =
            self.with(|core| Ok((core.totals(), core.unpacked_bytes(), core.take_unsent())))?;
        release(writer.id, unused, session.outbox());
        let message = finish_message(&totals);
        let finished = request(&session, "finishing a partition", None, |request| {
            Message::FinishPartition(FinishPartition {
                request: request.value(),
                writer: writer.id.value(),
                totals: message,
            })
        })
        .await;
        match finished {
            Ok(_) => {
                self.registration.close(ended("the partition is finished"));
                Ok(FinishReport {
                    subpartitions: totals,
                    unpacked_bytes,
                })
            }
            // Dropping the writer aborts it. A failure that was told meanwhile is the cause.
            Err(error) => Err(self
                .check_alive()
                .err()
                .unwrap_or_else(|| error.partition(writer.partition))),
        }
    }

    /// Gives the partition up. Its readers get `cause` as the first cause of their error.
    ///
    /// # Errors
    /// Whatever kept the server from being told.
    pub async fn abort(mut self, cause: ShuffleError) -> Result<()> {
        let (session, writer) = (self.session().clone(), self.shared().clone());
        self.registration.close(ended("the partition is aborted"));
        request(&session, "aborting a partition", None, |request| {
            abort_message(request, writer.id, &cause)
        })
        .await
        .map(|_| ())
        .map_err(|error| error.partition(writer.partition))
    }

    // ----------------------------------------------------------------------------------------------- helpers

    fn shared(&self) -> &Arc<WriterShared> {
        &self.registration.writer
    }

    fn session(&self) -> &Arc<Lifeline> {
        &self.registration.session
    }

    fn with<R>(&self, step: impl FnOnce(&mut super::core::Core<crate::attach::Filling>) -> Result<R>) -> Result<R> {
        self.shared()
            .with(self.session().outbox(), step)
            .map_err(|error| error.partition(self.partition()))
    }

    fn check_alive(&self) -> Result<()> {
        self.with(|core| core.check_alive())
    }

    /// Waits for what a step needs. False: it needs nothing.
    async fn wait_for(&mut self, need: Need) -> bool {
        match need {
            Need::Nothing => return false,
            Need::Limit => self.shared().wake.notified().await,
            Need::Buffer => {
                self.shared()
                    .with(self.session().outbox(), |core| core.handle_starved(false));
                let granted = self.shared().wake.notified();
                if tokio::time::timeout(PATIENCE, granted).await.is_err() {
                    self.shared()
                        .with(self.session().outbox(), |core| core.handle_starved(true));
                }
            }
        }
        true
    }
}

/// Subpartitions that hold something, as the server wants them.
fn finish_message(totals: &[Totals]) -> Vec<SubpartitionTotals> {
    (0..)
        .map(SubpartitionIndex::new)
        .zip(totals)
        .filter(|(_, totals)| totals.buffers > 0)
        .map(|(index, totals)| SubpartitionTotals::new(index, totals))
        .collect()
}

fn ended(message: &str) -> ShuffleError {
    ShuffleError::new(ErrorKind::InvalidRequest, message)
}
