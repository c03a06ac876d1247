//! Whether each end is one that what broke excuses, and whether groups failed as one.

use std::collections::BTreeMap;

use shuffle_protocol::{GroupId, JobId, ShuffleError, error::ErrorKind};

use super::channel::ChannelEnd;
use super::producer::WriterEnd;
use super::world::World;

/// A failure that somebody saw.
struct Seen<'a> {
    who: String,
    /// Its group; `None` where it never became a member.
    group: Option<(JobId, GroupId)>,
    error: &'a ShuffleError,
}

impl World {
    /// Judges how everything ended.
    pub(super) fn check_outcomes(&mut self) {
        let mut accusation = None;
        let (mut complete, mut failed) = (0, 0);
        for process in &self.processes {
            let channels = process.gates.iter().flat_map(|gate| &gate.channels);
            complete += channels
                .filter(|channel| matches!(channel.end, Some(ChannelEnd::Complete)))
                .count();
        }
        let seen = self.failures();
        for failure in &seen {
            failed += 1;
            if accusation.is_none()
                && let Err(why) = self.excuse(failure.error)
            {
                accusation = Some(format!("{}: {why}: {}", failure.who, failure.error));
            }
        }
        let accusation = accusation.or_else(|| self.torn_group(&seen));
        self.report.complete_channels = complete;
        self.report.failures = failed;
        if let Some(accusation) = accusation {
            self.accuse(|| accusation);
        }
    }

    fn failures(&self) -> Vec<Seen<'_>> {
        let mut seen = Vec::new();
        for (at, process) in self.processes.iter().enumerate() {
            let job = process.spec.job;
            for producer in &process.producers {
                let (error, is_member) = match &producer.end {
                    // A stale attempt is no member any more, and whoever lies is told so.
                    Some(WriterEnd::Failed(error)) => (error, !producer.spec.lies && is_told(error)),
                    Some(WriterEnd::Refused(error)) => (error, is_group_failed(error)),
                    _ => continue,
                };
                let group = producer.partition.group.as_ref().filter(|_| is_member);
                seen.push(Seen {
                    who: format!("process {at}, the writer of {:?}", producer.partition.id),
                    group: group.map(|group| (job, group.id)),
                    error,
                });
            }
            for gate in &process.gates {
                for channel in &gate.channels {
                    let (error, is_member) = match &channel.end {
                        Some(ChannelEnd::Failed(error)) => (error, is_told(error)),
                        Some(ChannelEnd::Refused(error)) => (error, is_group_failed(error)),
                        _ => continue,
                    };
                    let group = gate.spec.group.as_ref().filter(|_| is_member);
                    seen.push(Seen {
                        who: format!("process {at}, the reader of {:?}", channel.spec),
                        group: group.map(|group| (job, group.id)),
                        error,
                    });
                }
            }
        }
        seen
    }

    /// Whether something broke that can lead to this.
    fn excuse(&self, error: &ShuffleError) -> Result<(), &'static str> {
        let may = self.plan.faults;
        let lost = may.holes || may.restarts;
        let unreachable = may.deaths || may.aborts || may.drains || may.starved || may.stops || may.fences || lost;
        let excused = match error.first_cause().kind() {
            ErrorKind::NotRegistered { .. } => may.strays || may.liars || may.cancels || unreachable,
            ErrorKind::Released | ErrorKind::Expired => self.released || may.unread || unreachable,
            ErrorKind::Superseded { .. } | ErrorKind::AlreadyExists => may.fences,
            ErrorKind::ExecutorDied => may.deaths || may.stops,
            ErrorKind::PeerLost { .. } => lost,
            ErrorKind::PeerRestarted => may.restarts,
            ErrorKind::ConnectionLost => lost || may.stops,
            ErrorKind::SessionClosed => may.restarts || may.stops,
            ErrorKind::InsufficientBuffers { .. } => may.starved || may.fences || may.deaths || may.cancels,
            ErrorKind::CountMismatch { .. } => may.liars,
            ErrorKind::Cancelled => may.aborts || may.cancels,
            ErrorKind::Draining => may.drains || may.restarts,
            _ => return Err("an error that nothing leads to"),
        };
        if !excused {
            return Err("nothing that broke excuses this");
        }
        let location = error.location();
        if location.job.is_none() && !matches!(error.kind(), ErrorKind::SessionClosed) {
            return Err("an error that does not say of which job");
        }
        Ok(())
    }

    /// All members of a group that failed must have seen the same first cause, where its home server could be reached.
    fn torn_group(&self, seen: &[Seen<'_>]) -> Option<String> {
        let may = self.plan.faults;
        // A verdict is remembered as long as an unread partition; who joins after that joins a new group.
        let forgotten = may.fences && self.plan.heal_at >= self.plan.unread_expiry;
        if may.holes || may.restarts || forgotten {
            return None;
        }
        let mut causes: BTreeMap<(JobId, GroupId), &Seen<'_>> = BTreeMap::new();
        for failure in seen {
            let Some(group) = failure.group else { continue };
            let first = causes.entry(group).or_insert(failure);
            let (one, other) = (first.error.first_cause(), failure.error.first_cause());
            if one.kind() != other.kind() || one.message() != other.message() {
                return Some(format!(
                    "members of {group:?} saw different first causes: {} saw {one}, {} saw {other}",
                    first.who, failure.who
                ));
            }
        }
        None
    }
}

fn is_group_failed(error: &ShuffleError) -> bool {
    matches!(error.kind(), ErrorKind::GroupFailed)
}

/// Whether this is what its group's members are told: not of a stale attempt, nor without a server that could tell.
fn is_told(error: &ShuffleError) -> bool {
    !matches!(error.kind(), ErrorKind::Superseded { .. } | ErrorKind::SessionClosed)
}
