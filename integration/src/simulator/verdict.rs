//! Whether each end is one that what broke excuses, and whether groups failed as one.

use std::collections::BTreeMap;

use shuffle_protocol::{GroupId, JobId, ShuffleError, error::ErrorKind};

use super::channel::ChannelEnd;
use super::desk::Told;
use super::producer::WriterEnd;
use super::schedule::{MILLIS, Micros};
use super::workload::address;
use super::world::World;

/// A failure that somebody saw.
struct Seen<'a> {
    who: String,
    /// Its group; `None` where it never became a member.
    group: Option<(JobId, GroupId)>,
    error: &'a ShuffleError,
    /// When it was told; at the end where it was not told by a server.
    told: Micros,
}

/// What a server has sent before it was killed may still arrive.
const UNDER_WAY: Micros = 200 * MILLIS;

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
            let told = |who: Told| process.told.get(&who).copied().unwrap_or(Micros::MAX);
            for (index, producer) in process.producers.iter().enumerate() {
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
                    told: told(Told::Writer(index)),
                });
            }
            for (index, gate) in process.gates.iter().enumerate() {
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
                        told: told(Told::Channel(channel.stream)).min(told(Told::Gate(index))),
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
        let unreachable = may.disks
            || may.deaths
            || may.aborts
            || may.drains
            || may.starved
            || may.stops
            || may.fences
            || may.flips
            || lost;
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
            ErrorKind::Io => may.disks,
            kind @ ErrorKind::ChecksumMismatch { .. } => self.flips.excuse(kind),
            // The producing node has not said in time what became of a buffer that did not match.
            ErrorKind::TimedOut { .. } => may.flips && (lost || may.cuts),
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

    /// All members of a group that failed must have seen the same first cause, as far as that can be had: not where the
    /// network is torn, and where the home server was killed, only among those who were told while one judge could decide,
    /// see [`World::one_judge`].
    fn torn_group(&self, seen: &[Seen<'_>]) -> Option<String> {
        let may = self.plan.faults;
        // A verdict is remembered as long as an unread partition; who joins after that joins a new group.
        let forgotten = may.fences && self.plan.heal_at >= self.plan.unread_expiry;
        if may.holes || forgotten {
            return None;
        }
        let mut groups: BTreeMap<(JobId, GroupId), Vec<&Seen<'_>>> = BTreeMap::new();
        for failure in seen {
            if let Some(group) = failure.group {
                groups.entry(group).or_default().push(failure);
            }
        }
        groups.iter().find_map(|(group, members)| {
            let first_told = members.iter().map(|member| member.told).min()?;
            let until = self.one_judge(*group, first_told);
            let mut members = members.iter().filter(|member| member.told <= until);
            let first = members.next()?;
            let one = first.error.first_cause();
            members.find_map(|member| {
                let other = member.error.first_cause();
                let same = one.kind() == other.kind() && one.message() == other.message();
                (!same).then(|| {
                    format!(
                        "members of {group:?} saw different first causes: {} saw {one}, {} saw {other}",
                        first.who, member.who
                    )
                })
            })
        })
    }

    /// Until when all who are told must be told the same. For ever, where the home server lives on. A home server that is
    /// killed may have told some and not others, and forgets: so until it is killed, where some were told before; else, until
    /// it is back, but where it was killed with its answer under way, or another server too while it was down.
    fn one_judge(&self, group: (JobId, GroupId), first_told: Micros) -> Micros {
        let home = self
            .partitions
            .iter()
            .filter(|partition| partition.job == group.0)
            .find_map(|partition| partition.group.as_ref())
            .and_then(|group| (0..self.hosts.len()).find(|host| address(*host) == group.home));
        let Some(home) = home else { return Micros::MAX };
        let Some(&(killed, back)) = self.hosts[home].down.first() else {
            return Micros::MAX;
        };
        if first_told < killed {
            return killed;
        }
        let others = self.hosts.iter().enumerate().filter(|(host, _)| *host != home);
        let others_down = others
            .flat_map(|(_, host)| &host.down)
            .any(|(from, to)| *from < back && *to > killed);
        if first_told < killed + UNDER_WAY || others_down {
            return 0;
        }
        back
    }
}

fn is_group_failed(error: &ShuffleError) -> bool {
    matches!(error.kind(), ErrorKind::GroupFailed)
}

/// Whether this is what its group's members are told: not of a stale attempt, nor without a server that could tell.
fn is_told(error: &ShuffleError) -> bool {
    !matches!(error.kind(), ErrorKind::Superseded { .. } | ErrorKind::SessionClosed)
}
