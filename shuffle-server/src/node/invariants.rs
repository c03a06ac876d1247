//! The books of the core, checked whole.

use std::collections::{HashMap, HashSet};

use buffer_pool::{ArenaKind, Backing};

use super::{ChannelNo, Holder, Node, Timer};
use crate::executor::{GateNo, Session};

/// In debug builds every n-th step checks everything.
const EVERY: u64 = 64;

impl<B: Backing> Node<B> {
    pub(crate) fn check_some_invariants(&mut self) {
        if cfg!(debug_assertions) {
            self.steps = self.steps.wrapping_add(1);
            if self.steps.is_multiple_of(EVERY) {
                self.check_invariants();
            }
        }
    }

    /// Panics where the core contradicts itself: a broken invariant stops the process, it is never clamped away.
    pub fn check_invariants(&self) {
        self.pool.check_invariants();
        self.check_partitions();
        self.check_gates();
        self.check_holders();
        self.pending.check_invariants();
        self.notices.check_invariants();
        self.registry.check_invariants();
        self.check_timers();
        self.check_groups();
    }

    /// A path knows the groups for which it is watched, and no others.
    fn check_groups(&self) {
        let mut watches: HashSet<_> = self.groups.watches().collect();
        for (id, path) in &self.paths {
            for (job, group) in path.groups.keys() {
                assert!(
                    watches.remove(&(*job, *group, id)),
                    "a path is watched for a group that does not need it"
                );
            }
        }
        assert!(watches.is_empty(), "a group relies on paths that do not know of it");
    }

    /// No timer is armed for what is gone, so there are never more than things that may need one.
    fn check_timers(&self) {
        for timer in self.timers.armed() {
            let matters = match timer {
                Timer::Waiting(job, key) => self.registry.waiting(job, key).next().is_some(),
                Timer::Path(path) => self.paths.contains_key(path),
                Timer::Link(link) => self.links.contains_key(link),
                Timer::Session(session) => self.sessions.get(session).is_some_and(Session::is_open),
                Timer::Unconfirmed(path) => self.paths.get(path).is_some_and(|path| path.link.is_some()),
                Timer::Verdict(job, group) => self.groups.verdict(job, group).is_none(),
                Timer::Unread(partition) | Timer::Straggler(partition) => self.partitions.contains_key(partition),
                Timer::Reading(outlet) => self.without_pool.contains_key(&outlet),
                Timer::Notices(session) => self.notices.is_subscribed(session),
                Timer::Tracing(inlet) => self.inlets.get(inlet).is_some_and(|inlet| inlet.trace.is_some()),
                Timer::Pending | Timer::Sweep => true,
            };
            assert!(matters, "a timer is armed for what is gone: {timer:?}");
        }
    }

    fn check_partitions(&self) {
        for (no, partition) in &self.partitions {
            partition.check_invariants();
            for reader in partition.readers() {
                assert_eq!(
                    self.partition_of(reader),
                    Some(no),
                    "a reader and its partition disagree"
                );
            }
        }
        for outlet in self.outlets.values() {
            outlet.sender.check_invariants();
        }
        for (job, of) in &self.jobs {
            let partitions = self
                .partitions
                .values()
                .filter(|partition| partition.job == *job)
                .count();
            assert_eq!(of.partitions as usize, partitions);
            let spools = self.partitions.values().filter(|partition| partition.job == *job);
            let held: u64 = spools.filter_map(|of| Some(of.spool.as_ref()?.held)).sum();
            assert_eq!(of.disk_bytes, held, "payload of job {job} on disk");
            let sessions = self
                .sessions
                .values()
                .filter(|session| session.info.job == *job)
                .count();
            assert_eq!(of.sessions as usize, sessions);
            let channels: usize = self
                .sessions
                .values()
                .filter(|session| session.info.job == *job)
                .map(|session| session.channels.len())
                .sum();
            assert_eq!(of.channels as usize, channels, "channels of job {job}");
        }
    }

    fn check_gates(&self) {
        for (no, gate) in &self.gates {
            gate.credit.check_invariants();
            let outstanding: u64 = gate
                .remote
                .iter()
                .filter_map(|inlet| self.inlets.get(*inlet))
                .filter(|inlet| inlet.is_open())
                .map(|inlet| inlet.receiver.outstanding_credit() - u64::from(inlet.receiving))
                .sum();
            assert_eq!(
                gate.reserved.len() as u64,
                outstanding,
                "gate {no:?}: reserved slots are credits outstanding"
            );
        }
        for inlet in self.inlets.values() {
            inlet.receiver.check_invariants();
        }
    }

    fn check_holders(&self) {
        let mut reserved: HashMap<GateNo, usize> = HashMap::new();
        let mut viewed: HashMap<ChannelNo, u32> = HashMap::new();
        let mut shared = 0;
        for of in self.jobs.values() {
            for (arena, _, holder) in of.holders.held() {
                match holder {
                    Holder::Writer(no) | Holder::Queue(no) => {
                        assert!(
                            self.partitions.contains_key(no),
                            "a slot is held by a partition that is gone"
                        );
                        assert_eq!(arena, ArenaKind::Write);
                    }
                    Holder::Reading(no) => {
                        assert!(
                            self.outlets.contains_key(no),
                            "a slot is loaded for a reader that is gone"
                        );
                        assert_eq!(arena, ArenaKind::Read);
                    }
                    Holder::Gate(no) => *reserved.entry(no).or_default() += 1,
                    Holder::View(session, channel) => {
                        assert!(
                            self.sessions.contains_key(session),
                            "a slot is viewed by a session that is gone"
                        );
                        *viewed.entry(channel).or_default() += 1;
                    }
                    Holder::Quarantine(session) => {
                        assert!(
                            self.sessions.contains_key(session),
                            "a slot is quarantined for a session that is gone"
                        );
                    }
                    Holder::Shared(no) => {
                        let share = self.shares.get(no).expect("a shared slot has its books");
                        share.check_invariants(self.pool.state(share.slot));
                        shared += 1;
                        if let Some(partition) = share.handed_over_by() {
                            assert!(
                                self.partitions.contains_key(partition),
                                "slices of a partition that is gone"
                            );
                        }
                        if let Some(inlet) = share.received_by() {
                            *viewed.entry(ChannelNo::Remote(inlet)).or_default() += 1;
                        }
                        for view in share.views() {
                            assert!(
                                self.sessions.contains_key(view.session),
                                "a share of a session that is gone"
                            );
                            // What came from another node is one slot to its channel.
                            if matches!(view.channel, ChannelNo::Local(_)) {
                                *viewed.entry(view.channel).or_default() += 1;
                            }
                        }
                    }
                    Holder::Nobody => {}
                }
            }
        }
        assert_eq!(shared, self.shares.len(), "a share whose slot says otherwise");
        for (no, gate) in &self.gates {
            assert!(reserved.get(&no).copied().unwrap_or(0) >= gate.reserved.len());
        }
        for (no, inlet) in &self.inlets {
            assert_eq!(
                viewed.get(&ChannelNo::Remote(no)).copied().unwrap_or(0),
                inlet.viewed,
                "views of a remote channel"
            );
        }
    }
}
