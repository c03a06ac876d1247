//! Groups whose members have no channel between them: who notices that a server is gone.

use std::time::Duration;

use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::partition::Totals;
use shuffle_protocol::{GroupRef, ShuffleError};

use super::harness::Scene;
use super::parts::{JOB, group, partition};
use crate::node::SessionId;

const HOME: usize = 1;

/// One member on each of three nodes, no two of which exchange anything.
fn apart() -> (Scene, GroupRef, [SessionId; 3]) {
    let mut scene = Scene::new(3, 32);
    let group = group(3, HOME);
    let sessions = [0, 1, 2].map(|node| scene.attach(node));
    for (node, attempt) in [(0, 5), (1, 6), (2, 7)] {
        scene.create(node, sessions[node], partition(attempt), 1, 1, Some(&group));
    }
    scene.exchange();
    (scene, group, sessions)
}

fn wait(scene: &mut Scene, tenths: u32) {
    for _ in 0..tenths {
        scene.pass(Duration::from_millis(100));
        scene.exchange();
    }
}

fn wait_long(scene: &mut Scene) {
    wait(scene, 200);
}

/// The one error of each of these, which is that their group has failed; gives the first causes.
fn causes(scene: &mut Scene, members: &[(usize, SessionId)]) -> Vec<ShuffleError> {
    let cause = |(node, session): &(usize, SessionId)| {
        let (_, _, errors) = scene.received(*node, *session);
        assert_eq!(errors.len(), 1, "node {node}: {errors:?}");
        assert_eq!(errors[0].kind(), &ErrorKind::GroupFailed);
        errors[0].first_cause().clone()
    };
    members.iter().map(cause).collect()
}

#[test]
fn a_dead_home_server_is_noticed_by_members_without_a_channel_to_it() {
    let (mut scene, _, [first, _, last]) = apart();
    scene.kill(HOME);
    wait_long(&mut scene);
    let causes = causes(&mut scene, &[(0, first), (2, last)]);
    assert_eq!(
        causes[0].location().node.as_ref(),
        Some(&group(3, HOME).home),
        "{causes:?}"
    );
    assert_eq!(causes[0], causes[1]);
    scene.assert_all_home(&[(0, first), (2, last)]);
}

#[test]
fn a_dead_server_with_members_is_noticed_by_those_without_a_channel_to_it() {
    let (mut scene, _, [first, home, _]) = apart();
    scene.kill(2);
    wait_long(&mut scene);
    let causes = causes(&mut scene, &[(0, first), (HOME, home)]);
    assert_eq!(
        causes[0].location().node.as_ref(),
        group(3, HOME).nodes.get(2),
        "{causes:?}"
    );
    assert_eq!(causes[0], causes[1]);
    scene.assert_all_home(&[(0, first), (HOME, home)]);
}

#[test]
fn a_restarted_server_is_a_lost_member() {
    for at in [HOME, 2] {
        let (mut scene, _, sessions) = apart();
        scene.restart(at);
        wait_long(&mut scene);
        let others: Vec<_> = sessions
            .into_iter()
            .enumerate()
            .filter(|(node, _)| *node != at)
            .collect();
        let causes = causes(&mut scene, &others);
        assert_eq!(causes[0].kind(), &ErrorKind::PeerRestarted);
        assert_eq!(causes[0], causes[1]);
    }
}

/// The member that joins after the verdict, at a server that has forgotten it.
#[test]
fn who_joins_at_a_restarted_server_is_told_the_verdict() {
    for at in [HOME, 2] {
        let (mut scene, group, [first, ..]) = apart();
        scene.nodes[0].handle_session_closed(scene.now, first, false);
        scene.exchange();
        scene.restart(at);
        let session = scene.attach(at);
        scene.create(at, session, partition(9), 1, 1, Some(&group));
        scene.exchange();
        let causes = causes(&mut scene, &[(at, session)]);
        assert_eq!(
            causes[0].kind(),
            &ErrorKind::ExecutorDied,
            "joined at node {at}: {causes:?}"
        );
        scene.assert_all_home(&[(at, session)]);
    }
}

#[test]
fn a_group_without_members_is_watched_by_nobody() {
    let (mut scene, group, sessions) = apart();
    for (node, (session, attempt)) in sessions.into_iter().zip(5..).enumerate() {
        scene.finish(node, session, partition(attempt), &Totals::default());
        scene.open(node, session, node, partition(attempt), Some(&group));
        scene.close_gate(node, session, partition(attempt));
    }
    scene.exchange();
    for (at, node) in scene.nodes.iter_mut().enumerate() {
        assert!(
            node.groups.get_mut(JOB, group.id).is_none(),
            "node {at} still knows the group"
        );
        assert!(
            node.paths
                .values()
                .all(|path| path.groups.is_empty() && path.is_quiet())
        );
    }
    scene.kill(HOME);
    wait_long(&mut scene);
    assert_eq!(
        scene.received(0, sessions[0]).2,
        [],
        "its home server is lost to nobody"
    );
}

/// The home server was lost and is back, before the group was begun.
#[test]
fn a_group_is_not_failed_by_a_restart_before_it() {
    let mut scene = Scene::new(3, 32);
    let (reader, session) = (scene.attach(0), scene.attach(0));
    scene.open(0, reader, HOME, partition(1), None);
    scene.exchange();
    scene.kill(HOME);
    wait(&mut scene, 40);
    assert_eq!(scene.received(0, reader).2.len(), 1, "it was given up");
    scene.restart(HOME);
    scene.create(0, session, partition(5), 1, 1, Some(&group(3, HOME)));
    scene.exchange();
    wait_long(&mut scene);
    assert_eq!(scene.received(0, session).2, []);
    let member = scene.attach(HOME);
    scene.create(HOME, member, partition(6), 1, 1, Some(&group(3, HOME)));
    scene.nodes[0].handle_session_closed(scene.now, session, false);
    scene.exchange();
    assert_eq!(
        causes(&mut scene, &[(HOME, member)])[0].kind(),
        &ErrorKind::ExecutorDied,
        "and it is watched"
    );
}

/// A deputy that is still to be started is asked in vain, and is no lost peer for that.
#[test]
fn a_question_makes_no_suspect() {
    let mut scene = Scene::new(3, 32);
    scene.kill(2);
    let (home, reader) = (scene.attach(HOME), scene.attach(HOME));
    scene.create(HOME, home, partition(5), 1, 1, Some(&group(3, HOME)));
    wait(&mut scene, 40);
    scene.restart(2);
    let producer = scene.attach(2);
    scene.create(2, producer, partition(6), 1, 1, Some(&group(3, HOME)));
    scene.open(HOME, reader, 2, partition(6), Some(&group(3, HOME)));
    scene.exchange();
    wait_long(&mut scene);
    assert_eq!(scene.received(HOME, reader).2, [], "it is asked for its partition");
}

/// The member ends before its home server is there again: who was told of the join is told of the leave.
#[test]
fn a_join_is_always_taken_back() {
    let mut scene = Scene::new(3, 32);
    let reader = scene.attach(0);
    scene.open(0, reader, HOME, partition(1), None);
    scene.exchange();
    scene.kill(HOME);
    wait(&mut scene, 25);
    let session = scene.attach(0);
    scene.create(0, session, partition(5), 1, 1, Some(&group(3, HOME)));
    scene.finish(0, session, partition(5), &Totals::default());
    scene.open(0, session, 0, partition(5), Some(&group(3, HOME)));
    scene.close_gate(0, session, partition(5));
    scene.restart(HOME);
    scene.exchange();
    wait_long(&mut scene);
    assert!(!scene.nodes[HOME].groups.are_joined());
    scene.nodes[HOME].start_drain(scene.now);
    scene.exchange();
    assert!(scene.nodes[HOME].is_drained());
}
