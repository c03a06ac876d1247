//! Whatever happens to partitions, and whenever the driver listens, acknowledges or comes back: what it was told is what is.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use shuffle_protocol::PartitionId;
use shuffle_protocol::control::{self, control::Message};
use shuffle_protocol::notify::{PartitionChange, PartitionState};
use shuffle_protocol::partition::Totals;

use super::harness::Scene;
use super::telling::{create_blocking, other, release, seen, subscribe, told};
use crate::node::SessionId;

#[derive(Debug, Clone, Copy)]
enum Step {
    Create {
        index: u32,
        blocking: bool,
    },
    Fill(usize),
    Finish(usize),
    Abort(usize),
    Release(usize),
    Pass(u64),
    /// Takes in what there is; acknowledges it or not.
    Hear {
        acknowledges: bool,
    },
    ComeBack,
}

/// What has become of a partition.
#[derive(Debug, Clone, Default)]
struct Truth {
    totals: Totals,
    given_up: bool,
    finished: bool,
    released: bool,
    failed: bool,
}

impl Truth {
    fn produces(&self) -> bool {
        !self.finished && !self.failed
    }

    /// The states in order; the last is the present one.
    fn last(&self) -> u32 {
        match self {
            Self { failed: true, .. } | Self { released: true, .. } => 4,
            Self { finished: true, .. } => 3,
            _ if self.totals.buffers > 0 => 2,
            _ => 1,
        }
    }
}

fn phase(state: &PartitionState) -> u32 {
    match state {
        PartitionState::Registered => 1,
        PartitionState::FirstBuffer => 2,
        PartitionState::Finished { .. } => 3,
        PartitionState::Failed { .. } | PartitionState::Released => 4,
    }
}

struct World {
    scene: Scene,
    writer: SessionId,
    driver: SessionId,
    truths: BTreeMap<PartitionId, Truth>,
    /// Since the driver came.
    heard: BTreeMap<PartitionId, Vec<PartitionState>>,
    said: u64,
    seen: u64,
}

impl World {
    fn new() -> Self {
        let mut scene = Scene::new(1, 512);
        let writer = scene.attach(0);
        let driver = subscribe(&mut scene);
        Self {
            scene,
            writer,
            driver,
            truths: BTreeMap::new(),
            heard: BTreeMap::new(),
            said: 0,
            seen: 0,
        }
    }

    /// One of those that are still produced, or that are finished and still there.
    fn pick(&self, at: usize, wanted: impl Fn(&Truth) -> bool) -> Option<PartitionId> {
        let fitting: Vec<_> = self.truths.iter().filter(|(_, truth)| wanted(truth)).collect();
        (!fitting.is_empty()).then(|| *fitting[at % fitting.len()].0)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Create { index, blocking } => self.create(index, blocking),
            Step::Fill(at) => self.fill(at),
            Step::Finish(at) => self.finish(at),
            Step::Abort(at) => self.abort(at),
            Step::Release(at) => {
                if let Some(id) = self.pick(at, |truth| !truth.failed && !truth.released) {
                    release(&mut self.scene, self.writer, id);
                    let truth = self.truths.get_mut(&id).unwrap();
                    truth.given_up = true;
                    truth.released = truth.finished;
                }
            }
            Step::Pass(ms) => self.scene.pass(Duration::from_millis(ms)),
            Step::Hear { acknowledges } => self.hear(acknowledges),
            Step::ComeBack => self.come_back(),
        }
    }

    fn create(&mut self, index: u32, blocking: bool) {
        // Also the number of its writer, so it is unique.
        let id = other(index, 1 + u32::try_from(self.truths.len()).unwrap());
        if blocking {
            create_blocking(&mut self.scene, self.writer, id);
        } else {
            self.scene.create(0, self.writer, id, 2, 1, None);
        }
        for (older, truth) in &mut self.truths {
            // A newer attempt takes the place of one that is there.
            truth.failed |= older.key() == id.key() && !truth.released;
        }
        self.truths.insert(id, Truth::default());
    }

    fn fill(&mut self, at: usize) {
        let Some(id) = self.pick(at, |truth| truth.produces() && truth.totals.buffers < 3) else {
            return;
        };
        let ordinal = self.truths[&id].totals.buffers;
        // What the driver is told at the same time is not for this session.
        if let Some(slot) = self.scene.demand(0, self.writer, id, ordinal + 1).first() {
            let more = self.scene.hand_over(0, self.writer, id, ordinal, *slot);
            let totals = &mut self.truths.get_mut(&id).unwrap().totals;
            let entry = super::parts::filled(id, ordinal, *slot);
            totals.add_buffer(entry.length, entry.checksum, entry.records, entry.kind);
            assert_eq!(more.buffers, 1);
        }
    }

    fn finish(&mut self, at: usize) {
        if let Some(id) = self.pick(at, Truth::produces) {
            let totals = self.truths[&id].totals;
            self.scene.finish(0, self.writer, id, &totals);
            let truth = self.truths.get_mut(&id).unwrap();
            truth.finished = true;
            truth.released = truth.given_up;
        }
    }

    fn abort(&mut self, at: usize) {
        if let Some(id) = self.pick(at, Truth::produces) {
            let abort = control::AbortPartition {
                request: 9,
                writer: id.attempt,
                cause: None,
            };
            self.scene.ask(0, self.writer, Message::AbortPartition(abort));
            self.truths.get_mut(&id).unwrap().failed = true;
        }
    }

    fn hear(&mut self, acknowledges: bool) {
        let (messages, _) = told(&mut self.scene, self.driver);
        assert!(
            messages.is_empty() || self.said == self.seen,
            "more was said before what was said was seen"
        );
        self.said += messages.len() as u64;
        for PartitionChange { partition, state } in messages.into_iter().flatten() {
            let before = self.heard.entry(partition).or_default();
            if let Some(last) = before.last() {
                assert!(phase(last) < phase(&state), "{partition}: {state:?} after {before:?}");
            }
            if let (PartitionState::Finished { bytes }, Some(truth)) = (&state, self.truths.get(&partition)) {
                assert_eq!(bytes[..], [truth.totals.bytes, 0]);
            }
            before.push(state);
        }
        if acknowledges && self.seen < self.said {
            self.seen = self.said;
            seen(&mut self.scene, self.driver, self.seen);
        }
    }

    fn come_back(&mut self) {
        self.scene.nodes[0].handle_session_closed(self.scene.now, self.driver, false);
        self.driver = subscribe(&mut self.scene);
        (self.said, self.seen) = (0, 0);
        self.heard.clear();
    }

    /// In the end everything is told.
    fn check(mut self) {
        for _ in 0..4 {
            self.hear(true);
            self.scene.pass(Duration::from_secs(6));
        }
        for (id, truth) in &self.truths {
            let heard = self.heard.get(id).map_or(&[][..], Vec::as_slice);
            let superseded = self
                .truths
                .keys()
                .any(|other| other.key() == id.key() && other.attempt > id.attempt);
            let Some(last) = heard.last() else {
                assert!(superseded, "{id} was never told: {truth:?}");
                continue;
            };
            assert_eq!(phase(last), truth.last(), "{id}: {heard:?}, but {truth:?}");
            let sizes = heard.iter().any(|state| phase(state) == 3);
            assert_eq!(sizes || superseded, truth.finished || superseded, "{id}: {heard:?}");
            assert_eq!(
                matches!(last, PartitionState::Failed { .. }),
                truth.failed,
                "{id}: {heard:?}"
            );
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5_u32, any::<bool>()).prop_map(|(index, blocking)| Step::Create { index, blocking }),
        6 => any::<usize>().prop_map(Step::Fill),
        4 => any::<usize>().prop_map(Step::Finish),
        1 => any::<usize>().prop_map(Step::Abort),
        3 => any::<usize>().prop_map(Step::Release),
        3 => (1..150_u64).prop_map(Step::Pass),
        4 => any::<bool>().prop_map(|acknowledges| Step::Hear { acknowledges }),
        1 => Just(Step::ComeBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn what_a_driver_was_told_is_what_is(steps in proptest::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.check();
    }
}
