//! What one job may take from the others.

use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::{PartitionId, ResultId};

use super::harness::Scene;
use super::parts::{JOB, partition};
use super::storing::{BATCH, FILE, create, write};

/// As the scenes write it, a buffer has 1000 bytes and a few more.
const BUFFERS: u64 = 40;

#[test]
fn a_job_that_fills_the_disk_fails_by_its_limit_and_goes_on_when_it_has_released_something() {
    let mut scene = Scene::new(1, 64);
    scene.nodes[0].config.quotas.disk_bytes_per_job = Some(60_000);
    let session = scene.attach(0);
    let kept = partition(5);
    create(&mut scene, 0, session, kept, FILE);
    let (written, totals) = write(&mut scene, 0, session, kept, BUFFERS, BUFFERS);
    assert_eq!(written, BUFFERS);
    scene.finish(0, session, kept, &totals);
    scene.exchange();
    let (_, _, errors) = scene.received(0, session);
    assert!(errors.is_empty(), "{errors:?}");
    let on_disk = scene.nodes[0].jobs[&JOB].disk_bytes;
    assert_eq!(on_disk, totals.bytes);

    let other = |attempt| PartitionId {
        result: ResultId::new(12),
        ..partition(attempt)
    };
    create(&mut scene, 0, session, other(6), BATCH);
    let (_, totals) = write(&mut scene, 0, session, other(6), BUFFERS, BUFFERS);
    scene.exchange();
    assert_eq!(scene.nodes[0].counters().partitions_failed, 1);
    scene.finish(0, session, other(6), &totals);
    let (_, _, errors) = scene.received(0, session);
    let refused =
        |kind: &ErrorKind| matches!(kind, ErrorKind::LimitExceeded { limit: 60_000, asked, .. } if *asked > 60_000);
    assert!(errors.iter().any(|error| refused(error.kind())), "{errors:?}");
    assert_eq!(
        scene.nodes[0].jobs[&JOB].disk_bytes, on_disk,
        "what it had is given back"
    );

    let release = shuffle_protocol::control::ReleaseJob { request: 5 };
    scene.ask(
        0,
        session,
        shuffle_protocol::control::control::Message::ReleaseJob(release),
    );
    scene.exchange();
    assert_eq!(scene.nodes[0].jobs[&JOB].disk_bytes, 0);
    create(&mut scene, 0, session, other(7), BATCH);
    let (written, totals) = write(&mut scene, 0, session, other(7), BUFFERS, BUFFERS);
    assert_eq!((written, totals.buffers), (BUFFERS, BUFFERS), "there is room again");
    scene.assert_all_home(&[(0, session)]);
}
