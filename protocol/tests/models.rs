//! The models of `model/` on random operations, and on the corpora of the fuzz targets.

mod model;

use std::path::Path;

use proptest::prelude::*;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn deframer_agrees_with_itself(how: u8, data in random_bytes(600)) {
        model::deframer::run(&[&[how], &data[..]].concat());
    }

    #[test]
    fn control_messages_never_panic(data in random_bytes(300)) {
        model::control::run(&data);
    }

    #[test]
    fn machines_survive_any_peer(data in random_bytes(600)) {
        model::machine::run(&data);
    }

    #[test]
    fn gate_credit_balances(data in random_bytes(600)) {
        model::gate::run(&data);
    }

    #[test]
    fn items_cross_a_lossy_link_exactly_once(data in random_bytes(1200)) {
        model::world::run(&data);
    }
}

fn config() -> ProptestConfig {
    // A failing case prints its bytes: it becomes a file in the corpus rather than a seed here.
    ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

fn random_bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..most)
}

/// What the fuzzers start from, and what they have found, stays tested.
#[test]
fn corpora_replay() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, model) in model::ALL {
        let corpus = corpora.join(name);
        let files = std::fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
        let mut replayed = 0;
        for file in files {
            let path = file.expect("a directory entry").path();
            println!("{}", path.display());
            model(&std::fs::read(&path).expect("a readable file"));
            replayed += 1;
        }
        assert!(replayed > 0, "{} is empty", corpus.display());
    }
}

/// The models do reach what they are for: a run that only opens and cuts would prove nothing.
#[test]
fn the_world_completes_channels() {
    use model::world::{Op, World};

    let mut world = World::new(0, 0);
    for _ in 0..3 {
        world.step(Op::Open);
        world.step(Op::Produce(0, 7));
        world.step(Op::ArriveUp(8));
        world.step(Op::Pump(0));
        world.step(Op::ArriveDown(8));
        world.step(Op::Assign);
        world.step(Op::Tell(0));
        world.step(Op::ArriveUp(8));
        world.step(Op::Pump(0));
        world.step(Op::Cut);
        world.end();
    }
    assert_eq!(world.completed, 3);
}
