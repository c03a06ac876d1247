//! Which partitions a job has on this node, which it had, and who waits for one to come.
//!
//! To a reader "not yet", "unknown", "released", "expired", "superseded" and "failed" are different
//! answers; what a partition ended as, and which attempts are fenced, is remembered for a while after it has gone: for a
//! time, and of each job so many at most, the latest.
//!
//! ```text
//! places of a job = live + waited for + remembered        remembered <= MAX_REMEMBERED
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuffle_protocol::{JobId, PartitionId, PartitionKey, ShuffleError, error::ErrorKind};

use super::{OutletNo, PartitionNo};

/// Partitions of one job that are remembered after they have gone: 150 bytes each, and up to 600 for the error
/// of one that failed. Readers of one that was forgotten
/// hear that it is not registered, after the time that one may wait for it.
const MAX_REMEMBERED: usize = 4096;

/// How a partition ended.
#[derive(Debug, Clone)]
pub(crate) enum Tombstone {
    Released,
    Expired,
    /// It was to survive a restart of the server, and did not.
    Lost(Arc<ShuffleError>),
    /// Shared with all who failed for the same reason.
    Failed(Arc<ShuffleError>),
}

#[derive(Debug, Default)]
struct Place {
    /// Attempts below this are fenced.
    fence: u32,
    live: Option<(u32, PartitionNo)>,
    ended: Option<(u32, Tombstone)>,
    waiting: BTreeSet<OutletNo>,
    /// Its entry in the job's list of what is remembered.
    remembered: Option<u64>,
}

/// What a node knows of one job's partitions.
#[derive(Debug, Default)]
struct Places {
    places: BTreeMap<PartitionKey, Place>,
    /// What has ended or was fenced and since when, the oldest first.
    remembered: BTreeMap<u64, (Instant, PartitionKey)>,
    count: u64,
}

/// What a reader who names an attempt is told.
#[derive(Debug)]
pub(crate) enum Lookup {
    Live(PartitionNo),
    /// Not there yet, and may still come.
    Wait,
    Refused(ShuffleError),
}

/// A place, what has ended there, and what is there.
pub(crate) type Known<'a> = (PartitionKey, Option<(PartitionId, &'a Tombstone)>, Option<PartitionId>);

/// The registry of one node.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    jobs: HashMap<JobId, Places>,
}

impl Registry {
    fn place(&mut self, job: JobId, key: PartitionKey) -> &mut Place {
        self.jobs.entry(job).or_default().places.entry(key).or_default()
    }

    fn find(&self, job: JobId, key: PartitionKey) -> Option<&Place> {
        self.jobs.get(&job)?.places.get(&key)
    }

    /// Whether this attempt may be registered now.
    ///
    /// # Errors
    /// `Superseded` by a newer attempt or fence; `AlreadyExists` for an attempt that is or was there.
    pub(crate) fn admit(&self, job: JobId, id: PartitionId) -> Result<(), ShuffleError> {
        let Some(place) = self.find(job, id.key()) else {
            return Ok(());
        };
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
        if attempt <= self.find(job, key).map_or(0, |place| place.fence) {
            return (None, BTreeSet::new());
        }
        let place = self.place(job, key);
        place.fence = attempt;
        let older = place.live.filter(|(live, _)| *live < attempt).map(|(_, no)| no);
        let waiting = std::mem::take(&mut place.waiting);
        self.remember(job, key, now);
        (older, waiting)
    }

    /// What there is for a reader of this attempt.
    pub(crate) fn lookup(&self, job: JobId, id: PartitionId) -> Lookup {
        let Some(place) = self.find(job, id.key()) else {
            return Lookup::Wait;
        };
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

    /// This attempt, if it is there.
    pub(crate) fn live(&self, job: JobId, id: PartitionId) -> Option<PartitionNo> {
        let (attempt, no) = self.find(job, id.key())?.live?;
        (attempt == id.attempt).then_some(no)
    }

    /// Everything of a job from that place on: what has ended there, and what is there.
    pub(crate) fn known(&self, job: JobId, from: Option<PartitionKey>) -> impl Iterator<Item = Known<'_>> {
        let places = self.jobs.get(&job).into_iter();
        let start = from.map_or(Bound::Unbounded, Bound::Included);
        let places = places.flat_map(move |of| of.places.range((start, Bound::Unbounded)));
        places.map(|(key, place)| {
            let id = |attempt| PartitionId {
                result: key.result,
                index: key.index,
                attempt,
            };
            let ended = place.ended.as_ref().map(|(attempt, how)| (id(*attempt), how));
            (*key, ended, place.live.map(|(attempt, _)| id(attempt)))
        })
    }

    /// Remembers a reader until the partition comes.
    pub(crate) fn wait(&mut self, job: JobId, key: PartitionKey, reader: OutletNo) {
        self.place(job, key).waiting.insert(reader);
    }

    /// Forgets a reader that waits no longer. True: nobody waits for the partition any more.
    pub(crate) fn forget_waiting(&mut self, job: JobId, key: PartitionKey, reader: OutletNo) -> bool {
        let Some(places) = self.jobs.get_mut(&job) else {
            return true;
        };
        let Some(place) = places.places.get_mut(&key) else {
            return true;
        };
        place.waiting.remove(&reader);
        let nobody = place.waiting.is_empty();
        if place.is_blank() {
            places.places.remove(&key);
            if places.places.is_empty() {
                self.jobs.remove(&job);
            }
        }
        nobody
    }

    /// Who waits for this partition.
    pub(crate) fn waiting(&self, job: JobId, key: PartitionKey) -> impl Iterator<Item = OutletNo> {
        self.find(job, key)
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
        if place.ended.as_ref().is_none_or(|(attempt, _)| *attempt <= id.attempt) {
            place.ended = Some((id.attempt, how));
        }
        self.remember(job, id.key(), now);
    }

    /// A partition of an earlier start that cannot be served again.
    pub(crate) fn remember_lost(&mut self, job: JobId, id: PartitionId, error: ShuffleError, now: Instant) {
        let place = self.place(job, id.key());
        if place.newest().is_none_or(|newest| newest < id.attempt) {
            place.ended = Some((id.attempt, Tombstone::Lost(Arc::new(error))));
        }
        self.remember(job, id.key(), now);
    }

    /// Puts a place behind all that are remembered; of too many the oldest goes.
    fn remember(&mut self, job: JobId, key: PartitionKey, now: Instant) {
        let Some(places) = self.jobs.get_mut(&job) else { return };
        let Some(place) = places.places.get_mut(&key) else {
            return;
        };
        places.count += 1;
        if let Some(before) = place.remembered.replace(places.count) {
            places.remembered.remove(&before);
        }
        places.remembered.insert(places.count, (now, key));
        if places.remembered.len() > MAX_REMEMBERED {
            places.forget_oldest();
        }
    }

    /// Forgets what has been remembered for longer than `keep`. True: others are still remembered.
    pub(crate) fn sweep(&mut self, now: Instant, keep: Duration) -> bool {
        self.jobs.retain(|_, places| {
            while let Some((since, _)) = places.remembered.values().next()
                && now.saturating_duration_since(*since) >= keep
            {
                places.forget_oldest();
            }
            !places.places.is_empty()
        });
        self.jobs.values().any(|places| !places.remembered.is_empty())
    }

    pub(crate) fn check_invariants(&self) {
        for places in self.jobs.values() {
            assert!(places.remembered.len() <= MAX_REMEMBERED);
            for (key, place) in &places.places {
                let listed = place
                    .remembered
                    .is_none_or(|at| places.remembered.get(&at).is_some_and(|(_, of)| of == key));
                assert!(
                    listed,
                    "a place is remembered without being on the list of what is to be forgotten"
                );
                assert!(
                    place.live.is_some() || !place.waiting.is_empty() || place.remembered.is_some(),
                    "a place that nothing will remove"
                );
            }
        }
    }
}

impl Places {
    fn forget_oldest(&mut self) {
        let Some((_, (_, key))) = self.remembered.pop_first() else {
            return;
        };
        let Some(place) = self.places.get_mut(&key) else { return };
        place.remembered = None;
        if place.live.is_none() && place.waiting.is_empty() {
            self.places.remove(&key);
        }
    }
}

impl Place {
    fn newest(&self) -> Option<u32> {
        let live = self.live.map(|(attempt, _)| attempt);
        let ended = self.ended.as_ref().map(|(attempt, _)| *attempt);
        live.max(ended)
    }

    fn is_blank(&self) -> bool {
        self.live.is_none() && self.waiting.is_empty() && self.remembered.is_none()
    }
}

impl Tombstone {
    pub(super) fn answer(&self, job: JobId, id: PartitionId) -> ShuffleError {
        let error = match self {
            Self::Released => ShuffleError::new(
                ErrorKind::Released,
                "the partition was read to its end, or given up, and its buffers are gone",
            ),
            Self::Lost(error) => error.as_ref().clone(),
            Self::Expired => ShuffleError::new(ErrorKind::Expired, "nobody came to read the partition in time"),
            Self::Failed(cause) => ShuffleError::new(ErrorKind::PartitionFailed, "the producer did not finish")
                .because(cause.as_ref().clone()),
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

#[cfg(test)]
mod tests {
    use shuffle_protocol::ResultId;

    use super::*;

    const JOB: JobId = JobId::new(7);

    fn partition(index: u32, attempt: u32) -> PartitionId {
        let result = ResultId::new(11);
        PartitionId { result, index, attempt }
    }

    #[test]
    fn of_too_many_that_are_remembered_the_oldest_go() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        let all = u32::try_from(MAX_REMEMBERED).unwrap() + 100;
        for index in 0..all {
            registry.fence(JOB, partition(index, 0).key(), 3, now);
        }
        registry.check_invariants();
        assert_eq!(registry.jobs[&JOB].places.len(), MAX_REMEMBERED);
        registry.admit(JOB, partition(99, 2)).expect("its fence is forgotten");
        registry.admit(JOB, partition(100, 2)).expect_err("this one is not");
        let later = now + Duration::from_secs(600);
        assert!(!registry.sweep(later, Duration::from_secs(600)), "nothing is left");
        assert!(registry.jobs.is_empty());
    }

    #[test]
    fn asking_leaves_nothing_behind() {
        let (mut registry, now) = (Registry::default(), Instant::now());
        for index in 0..100 {
            let id = partition(index, 0);
            assert!(matches!(registry.lookup(JOB, id), Lookup::Wait));
            registry.admit(JOB, id).expect("nobody has it");
            registry.fence(JOB, id.key(), 0, now);
            registry.wait(JOB, id.key(), OutletNo::default());
            assert!(registry.forget_waiting(JOB, id.key(), OutletNo::default()));
        }
        assert!(registry.jobs.is_empty());
    }
}
