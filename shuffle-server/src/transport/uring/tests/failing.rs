//! F96: submitting fails, with and without effect, again and again; connections end in the middle of it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::death::{PATIENCE, stuck};
use super::failpoint::{self, Struck};
use super::memory::{Memory, settings};
use super::sockets::few_buffers_go_through_a_narrow_socket;
use crate::transport::uring::engine::Engine;

fn failing_engine(seed: u64) -> (Rc<Engine>, Arc<Struck>) {
    let engine = Rc::new(Engine::start(settings()).unwrap());
    let struck = Arc::default();
    let of = Arc::clone(&struck);
    engine.make(move || {
        failpoint::start(seed, &of);
        Ok(())
    });
    (engine, struck)
}

fn assert_has_struck(struck: &Struck) {
    let [untaken, taken] = [&struck.untaken, &struck.taken].map(|count| count.load(Ordering::Relaxed));
    assert!(untaken > 10 && taken > 10, "{struck:?}");
}

#[tokio::test]
async fn a_submit_that_fails_with_or_without_effect_loses_and_repeats_nothing() {
    for seed in 1..=3 {
        let (engine, struck) = failing_engine(seed);
        few_buffers_go_through_a_narrow_socket(&engine, &Memory::new(), 100).await;
        assert_has_struck(&struck);
    }
}

/// The numbers of operations that are over are used again at once: what completes late must not meet those who have them now.
#[tokio::test]
async fn connections_that_end_while_submits_fail_get_each_buffer_back_once_and_not_early() {
    let (engine, struck) = failing_engine(9);
    let memory = Memory::new();
    for _ in 0..60 {
        let (mut line, here, there) = stuck(&engine, &memory);
        assert!((0..8).all(|slot| !memory.is_free(slot)), "nobody reads: all is held");
        socket2::SockRef::from(&here).set_linger(Some(Duration::ZERO)).unwrap();
        drop(here);
        let mut done = Vec::new();
        let finished = tokio::time::timeout(PATIENCE, line.finish(&mut done)).await;
        finished.expect("finished in time");
        let mut slots: Vec<u32> = done.iter().map(|slot| slot.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..8).collect::<Vec<_>>(), "each buffer comes back once");
        assert!((0..8).all(|slot| memory.is_free(slot)), "and nobody reads it any more");
        drop(there);
    }
    few_buffers_go_through_a_narrow_socket(&engine, &memory, 50).await;
    assert_has_struck(&struck);
}
