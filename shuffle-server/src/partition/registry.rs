//! Which partitions a job has on this node, which it had, and who waits for one to come.
//!
//! To a reader "not yet", "unknown", "released", "expired", "superseded" and "failed" are different
//! answers; what a partition ended as is remembered for a while after it has gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use shuffle_protocol::{JobId, PartitionId, PartitionKey, ShuffleError, error::ErrorKind};

use super::{OutletNo, PartitionNo};

/// How a partition ended.
#[derive(Debug, Clone)]
pub(crate) enum Tombstone {
    Released,
    Expired,
    Failed(ShuffleError),
}

#[derive(Debug, Default)]
struct Place {
    /// Attempts below this are fenced.
    fence: u32,
    live: Option<(u32, PartitionNo)>,
    ended: Option<(u32, Tombstone)>,
    waiting: BTreeSet<OutletNo>,
    touched: Option<Instant>,
    /// When those who wait are looked at next.
    look_at: Option<Instant>,
}

/// What a reader who names an attempt is told.
#[derive(Debug)]
pub(crate) enum Lookup {
    Live(PartitionNo),
    /// Not there yet, and may still come.
    Wait,
    Refused(ShuffleError),
}

/// The registry of one node.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    jobs: HashMap<JobId, BTreeMap<PartitionKey, Place>>,
}

impl Registry {
    fn place(&mut self, job: JobId, key: PartitionKey) -> &mut Place {
        self.jobs.entry(job).or_default().entry(key).or_default()
    }

    /// Whether this attempt may be registered now.
    ///
    /// # Errors
    /// `Superseded` by a newer attempt or fence; `AlreadyExists` for an attempt that is or was there.
    pub(crate) fn admit(&mut self, job: JobId, id: PartitionId) -> Result<(), ShuffleError> {
        let place = self.place(job, id.key());
        let newest = place.fence.max(place.newest().unwrap_or(0));
        if id.attempt < newest {
            return Err(superseded(job, id, newest));
        }
        if place.newest() == Some(id.attempt) {
            return Err(ShuffleError::new(
                ErrorKind::AlreadyExists,
                "this attempt was registered before; a new execution needs a higher attempt number",
            )
            .job(job)
            .partition(id));
        }
        Ok(())
    }

    /// Registers an admitted attempt and hands out who waited for it; they look again.
    pub(crate) fn register(&mut self, job: JobId, id: PartitionId, no: PartitionNo) -> BTreeSet<OutletNo> {
        let place = self.place(job, id.key());
        assert!(place.live.is_none(), "the older attempt was to be superseded first");
        place.live = Some((id.attempt, no));
        place.fence = place.fence.max(id.attempt);
        std::mem::take(&mut place.waiting)
    }

    /// Refuses every attempt below `attempt` from now on. Gives the live older attempt, if there is one, and
    /// everyone who waits, to look again.
    pub(crate) fn fence(
        &mut self,
        job: JobId,
        key: PartitionKey,
        attempt: u32,
        now: Instant,
    ) -> (Option<PartitionNo>, BTreeSet<OutletNo>) {
        let place = self.place(job, key);
        place.touched = Some(now);
        if attempt <= place.fence {
            return (None, BTreeSet::new());
        }
        place.fence = attempt;
        let older = place.live.filter(|(live, _)| *live < attempt).map(|(_, no)| no);
        (older, std::mem::take(&mut place.waiting))
    }

    /// What there is for a reader of this attempt.
    pub(crate) fn lookup(&mut self, job: JobId, id: PartitionId) -> Lookup {
        let place = self.place(job, id.key());
        if let Some((attempt, no)) = place.live
            && attempt == id.attempt
        {
            return Lookup::Live(no);
        }
        let newest = place.fence.max(place.newest().unwrap_or(0));
        if id.attempt < newest {
            return Lookup::Refused(superseded(job, id, newest));
        }
        match &place.ended {
            Some((attempt, end)) if *attempt == id.attempt => Lookup::Refused(end.answer(job, id)),
            _ => Lookup::Wait,
        }
    }

    /// Remembers a reader until the partition comes. True: a timer is to be set for `deadline`; all who wait for
    /// one partition share one.
    pub(crate) fn wait(&mut self, job: JobId, key: PartitionKey, reader: OutletNo, deadline: Instant) -> bool {
        let place = self.place(job, key);
        place.waiting.insert(reader);
        let sooner = place.look_at.is_none_or(|at| deadline < at);
        if sooner {
            place.look_at = Some(deadline);
        }
        sooner
    }

    /// The timer of those who wait has fired; it is set again for `next`.
    pub(crate) fn handle_looked(&mut self, job: JobId, key: PartitionKey, next: Option<Instant>) {
        if let Some(place) = self.jobs.get_mut(&job).and_then(|places| places.get_mut(&key)) {
            place.look_at = next;
        }
    }

    /// Forgets a reader that waits no longer.
    pub(crate) fn forget_waiting(&mut self, job: JobId, key: PartitionKey, reader: OutletNo) {
        if let Some(places) = self.jobs.get_mut(&job)
            && let Some(place) = places.get_mut(&key)
        {
            place.waiting.remove(&reader);
            if place.is_blank() {
                places.remove(&key);
            }
        }
    }

    /// Who waits for this partition.
    pub(crate) fn waiting(&self, job: JobId, key: PartitionKey) -> impl Iterator<Item = OutletNo> {
        self.jobs
            .get(&job)
            .and_then(|places| places.get(&key))
            .into_iter()
            .flat_map(|place| place.waiting.iter().copied())
    }

    /// A live partition has ended.
    pub(crate) fn end(&mut self, job: JobId, id: PartitionId, how: Tombstone, now: Instant) {
        let place = self.place(job, id.key());
        assert!(
            place.live.is_some_and(|(attempt, _)| attempt == id.attempt),
            "only what is registered can end"
        );
        place.live = None;
        place.ended = Some((id.attempt, how));
        place.touched = Some(now);
    }

    /// Forgets how partitions ended whose end lies longer back than `keep`. True: others are still remembered.
    pub(crate) fn sweep(&mut self, now: Instant, keep: Duration) -> bool {
        self.jobs.retain(|_, places| {
            places.retain(|_, place| {
                place.live.is_some()
                    || !place.waiting.is_empty()
                    || place.touched.is_some_and(|at| now.saturating_duration_since(at) < keep)
            });
            !places.is_empty()
        });
        self.jobs
            .values()
            .flat_map(BTreeMap::values)
            .any(|place| place.touched.is_some())
    }
}

impl Place {
    fn newest(&self) -> Option<u32> {
        let live = self.live.map(|(attempt, _)| attempt);
        let ended = self.ended.as_ref().map(|(attempt, _)| *attempt);
        live.max(ended)
    }

    fn is_blank(&self) -> bool {
        self.live.is_none() && self.ended.is_none() && self.waiting.is_empty() && self.fence == 0
    }
}

impl Tombstone {
    fn answer(&self, job: JobId, id: PartitionId) -> ShuffleError {
        let error = match self {
            Self::Released => ShuffleError::new(
                ErrorKind::Released,
                "the partition was read to its end, or given up, and its buffers are gone",
            ),
            Self::Expired => ShuffleError::new(ErrorKind::Expired, "nobody came to read the partition in time"),
            Self::Failed(cause) => {
                ShuffleError::new(ErrorKind::PartitionFailed, "the producer did not finish").because(cause.clone())
            }
        };
        error.job(job).partition(id)
    }
}

fn superseded(job: JobId, id: PartitionId, by_attempt: u32) -> ShuffleError {
    ShuffleError::new(
        ErrorKind::Superseded { by_attempt },
        "a newer attempt of this partition is known",
    )
    .job(job)
    .partition(id)
}
