//! Buffers that do not have their checksum, where something is in the way of getting them once more.

use std::time::Duration;

use super::storing::FILE;
use super::tracing::{RIGHT, Stage, WRONG};

#[test]
fn a_cut_while_it_comes_once_more_repeats_the_question() {
    let mut stage = Stage::new(1);
    stage.report();
    // The question is lost with the connection, or the answer is, in the middle of its payload.
    let verify = stage.scene.nodes[1].poll_verify().unwrap();
    stage.scene.nodes[1].handle_verified(stage.scene.now, verify.ticket, Ok(WRONG));
    stage.scene.cut(1);
    stage.scene.pass(Duration::from_millis(100));
    stage.scene.exchange();
    let verify = stage.scene.nodes[0].poll_verify().expect("it was asked again");
    stage.scene.nodes[0].handle_verified(stage.scene.now, verify.ticket, Ok(RIGHT));
    stage.scene.cut(1);
    assert_eq!(stage.received(), [], "half of it is nothing");
    stage.scene.pass(Duration::from_millis(100));
    stage.scene.exchange();
    stage.look(0, RIGHT);
    stage.assert_again();
    assert_eq!(stage.counted(1), [1, 0, 0, 1]);
    stage.end();
}

#[test]
fn a_slot_that_the_kernel_still_sends_from_is_loaded_into_when_it_lets_go() {
    let mut stage = Stage::stored(1, FILE);
    stage.report();
    stage.look(1, WRONG);
    let verify = stage.scene.nodes[0].poll_verify().expect("a sum is wanted");
    stage.scene.nodes[0].pool_mut().pin(verify.slot);
    let reads = stage.scene.disks[0].reads;
    stage.scene.nodes[0].handle_verified(stage.scene.now, verify.ticket, Ok(WRONG));
    stage.scene.exchange();
    assert_eq!(stage.scene.disks[0].reads, reads);
    stage.scene.nodes[0].handle_written(stage.scene.now, verify.slot);
    stage.scene.exchange();
    assert_eq!(stage.scene.disks[0].reads, reads + 1);
    stage.look(0, RIGHT);
    stage.assert_again();
    stage.end();
}
