//! The writer against a server that does only what the test says.

use std::time::Duration;

use crate::fake::{BUFFER_BYTES, Fake, attach, error_of, partition, soon, sub};
use crate::feed::encoded;
use shuffle_client::{FlushInterval, PartitionSpec, Selector};
use shuffle_protocol::control::control::Message;
use shuffle_protocol::control::{self};
use shuffle_protocol::error::ErrorKind;
use shuffle_protocol::frame::SlotEntry;
use shuffle_protocol::partition::{BufferKind, Totals};
use tokio::time::timeout;

const CAPACITY: usize = BUFFER_BYTES as usize;
const MOMENT: Duration = Duration::from_millis(50);

pub(crate) fn spec(subpartitions: u32) -> PartitionSpec {
    PartitionSpec::new(partition(), subpartitions).flush_interval(FlushInterval::WhenFull)
}

/// Answers a finish and gives what it said.
pub(crate) async fn accept_finish(fake: &mut Fake) -> control::FinishPartition {
    let Message::FinishPartition(finish) = fake.next_message().await else {
        panic!("a finish")
    };
    fake.reply(finish.request, None).await;
    finish
}

fn check(fake: &Fake, entry: &SlotEntry, payload: &[u8]) {
    assert_eq!(fake.bytes_of(entry), payload);
    assert_eq!(entry.checksum, crc32fast::hash(payload));
}

#[tokio::test]
async fn records_leave_in_granted_buffers_and_finish_counts_them() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(3)).await;
    fake.grant(id, [4, 5]).await;
    writer.write_to(sub(1), b"one").await.unwrap();
    writer.write_to(sub(1), b"").await.unwrap();
    writer.write_to(sub(2), b"two").await.unwrap();
    let (report, (slots, finish)) = tokio::join!(writer.finish(), async {
        let slots = fake.take_slots(2).await;
        (slots, accept_finish(&mut fake).await)
    });
    let report = report.unwrap();
    let payloads = [encoded(&[b"one", b""]), encoded(&[b"two"])];
    for ((entry, payload), (index, records)) in slots.iter().zip(&payloads).zip([(1, 2), (2, 1)]) {
        check(&fake, entry, payload);
        assert_eq!(
            (entry.stream.value(), entry.subpartition, entry.records),
            (id, sub(index), records)
        );
        assert_eq!(
            (entry.sequence.value(), entry.partial_start, entry.kind),
            (0, false, BufferKind::Data)
        );
        let totals = report.subpartitions[index as usize];
        assert_eq!(
            (totals.buffers, totals.records, totals.bytes),
            (1, records.into(), payload.len() as u64)
        );
    }
    assert_eq!(report.subpartitions[0], Totals::default());
    assert_eq!((report.records(), report.bytes()), (3, 11 + 7));
    let named: Vec<u32> = finish.totals.iter().map(|totals| totals.subpartition).collect();
    assert_eq!(named, [1, 2], "subpartitions that hold nothing are not named");
    assert_eq!(finish.totals[0].parts().1, report.subpartitions[1]);
}

#[tokio::test]
async fn without_checksums_none_is_made() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1).checksums(false)).await;
    fake.grant(id, [4]).await;
    writer.write_to(sub(0), b"one").await.unwrap();
    let (report, slots) = tokio::join!(writer.finish(), async {
        let slots = fake.take_slots(1).await;
        accept_finish(&mut fake).await;
        slots
    });
    assert_eq!((slots[0].unchecked, slots[0].checksum), (true, 0));
    let mut totals = Totals::default();
    totals.add_buffer(7, 0, 1, BufferKind::Data);
    assert_eq!(report.unwrap().subpartitions, [totals]);
}

#[tokio::test]
async fn records_of_every_length_span_buffers() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1)).await;
    let lengths = [
        0,
        1,
        CAPACITY - 4,
        CAPACITY - 1,
        CAPACITY,
        CAPACITY + 1,
        3 * 16 * CAPACITY,
    ];
    let records: Vec<Vec<u8>> = (1..).zip(lengths).map(|(stamp, length)| vec![stamp; length]).collect();
    let refs: Vec<&[u8]> = records.iter().map(|record| &record[..]).collect();
    let stream = encoded(&refs);
    let write = async {
        for record in &records {
            writer.write_to(sub(0), record).await.unwrap();
        }
        let too_long = vec![0; (1 << 20) + 1];
        let error = error_of(writer.write_to(sub(0), &too_long).await);
        assert!(
            matches!(
                error.kind(),
                ErrorKind::RecordTooLarge {
                    bytes: 1_048_577,
                    max_bytes: 1_048_576
                }
            ),
            "{error}"
        );
        assert_eq!(error.location().partition, Some(partition()));
        writer.finish().await.unwrap()
    };
    let serve = async {
        let (mut came, mut started, mut limit) = (Vec::new(), 0, 10);
        fake.grant(id, 0..4).await;
        while came.len() < stream.len() {
            for entry in fake.slots().await {
                let bytes = fake.bytes_of(&entry);
                assert_eq!(entry.sequence.value(), limit - 10);
                came.extend(bytes);
                started += entry.records;
                limit += 1;
                fake.limit(id, 0, limit).await;
                fake.grant(id, [entry.slot]).await;
            }
        }
        assert!(came == stream, "the bytes are the records, one after the other");
        assert_eq!(started as usize, lengths.len());
        accept_finish(&mut fake).await
    };
    soon("everything", async { tokio::join!(write, serve) }).await;
}

#[tokio::test]
async fn the_demand_runs_a_little_ahead() {
    let (session, mut fake) = attach().await;
    let (writer, (create, first)) = tokio::join!(session.create_partition(spec(1).buffers(3, 6)), fake.accept_writer());
    let mut writer = writer.unwrap();
    assert_eq!(
        (
            create.min_buffers,
            create.max_buffers,
            create.max_queued_per_subpartition
        ),
        (3, 6, 0)
    );
    assert!((2..=8).contains(&first));
    fake.grant(create.writer, [0, 1]).await;
    writer.write_to(sub(0), &[1; CAPACITY - 4]).await.unwrap();
    assert!(fake.demand().await.number > first, "absolute, and growing with use");
}

#[tokio::test]
async fn a_partial_buffer_leaves_while_the_producer_is_idle() {
    let (session, mut fake) = attach().await;
    let interval = Duration::from_millis(30);
    let (mut writer, id) = fake
        .writer(&session, spec(2).flush_interval(FlushInterval::Every(interval)))
        .await;
    fake.grant(id, [0, 1]).await;
    let start = std::time::Instant::now();
    writer.write_to(sub(0), b"lonely").await.unwrap();
    let slots = fake.take_slots(1).await;
    check(&fake, &slots[0], &encoded(&[b"lonely"]));
    assert!(start.elapsed() >= interval);
    // And again, after it slept.
    writer.write_to(sub(1), b"again").await.unwrap();
    let slots = fake.take_slots(1).await;
    check(&fake, &slots[0], &encoded(&[b"again"]));
}

#[tokio::test]
async fn a_flush_interval_of_zero_means_each_record() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake
        .writer(&session, spec(1).flush_interval(FlushInterval::AfterEachRecord))
        .await;
    fake.grant(id, [0, 1]).await;
    writer.write_to(sub(0), b"a").await.unwrap();
    writer.write_to(sub(0), b"b").await.unwrap();
    let slots = fake.take_slots(2).await;
    check(&fake, &slots[0], &encoded(&[b"a"]));
    check(&fake, &slots[1], &encoded(&[b"b"]));
}

#[tokio::test]
async fn flush_hands_over_and_waits_for_room() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1).max_queued(1)).await;
    fake.grant(id, [0, 1, 2]).await;
    writer.write_to(sub(0), b"a").await.unwrap();
    writer.flush().await.unwrap();
    writer.write_to(sub(0), b"b").await.unwrap();
    assert!(timeout(MOMENT, writer.flush()).await.is_err(), "the queue is full");
    assert_eq!(fake.take_slots(1).await[0].sequence.value(), 0);
    fake.limit(id, 0, 2).await;
    soon("the flush", writer.flush()).await.unwrap();
    assert_eq!(fake.take_slots(1).await[0].sequence.value(), 1);
}

#[tokio::test]
async fn a_blocked_subpartition_waits_and_round_robin_goes_round_it() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake
        .writer(&session, spec(2).max_queued(1).selector(Selector::RoundRobin))
        .await;
    fake.grant(id, 0..6).await;
    let full = [7; CAPACITY - 4];
    // One is queued and one is full and waits for room.
    writer.write_to(sub(0), &full).await.unwrap();
    writer.write_to(sub(0), &full).await.unwrap();
    assert!(timeout(MOMENT, writer.write_to(sub(0), b"x")).await.is_err(), "blocked");
    for _ in 0..3 {
        soon("round-robin", writer.write(b"", b"y")).await.unwrap();
    }
    soon("a flush of what can leave", timeout(MOMENT, writer.flush()))
        .await
        .unwrap_err();
    let slots = fake.take_slots(2).await;
    assert_eq!(
        slots.iter().map(|slot| slot.subpartition.value()).collect::<Vec<_>>(),
        [0, 1]
    );
    check(&fake, &slots[1], &encoded(&[b"y", b"y", b"y"]));
    // Both full: it waits until any has room.
    writer.write_to(sub(1), &full).await.unwrap();
    assert!(timeout(MOMENT, writer.write(b"", b"z")).await.is_err(), "all blocked");
    // The full buffer leaves, and there is room for one more.
    fake.limit(id, 1, 3).await;
    soon("room", writer.write(b"", b"z")).await.unwrap();
    assert_eq!(fake.take_slots(1).await[0].subpartition, sub(1));
}

#[tokio::test]
async fn keys_choose_and_custom_selectors_are_checked() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(4)).await;
    fake.grant(id, 0..4).await;
    for key in 0u32..20 {
        writer.write(&key.to_le_bytes(), &key.to_le_bytes()).await.unwrap();
    }
    let (_, slots) = tokio::join!(writer.flush(), fake.take_slots(4));
    for entry in slots {
        for record in fake.bytes_of(&entry).chunks(8) {
            assert_eq!(shuffle_client::subpartition_of(&record[4..], 4), entry.subpartition);
        }
    }
    let custom = Selector::custom(|_, n| n);
    let (mut writer, _) = fake.writer(&session, spec(2).selector(custom)).await;
    assert!(matches!(
        error_of(writer.write(b"", b"").await).kind(),
        ErrorKind::InvalidRequest
    ));
    assert!(matches!(
        error_of(writer.write_to(sub(2), b"").await).kind(),
        ErrorKind::InvalidRequest
    ));
    assert!(matches!(
        error_of(writer.reserve(sub(2)).await).kind(),
        ErrorKind::InvalidRequest
    ));
    assert!(matches!(
        error_of(writer.write_event(Some(sub(2)), b"").await).kind(),
        ErrorKind::InvalidRequest
    ));
}

#[tokio::test]
async fn buffers_are_written_in_place_behind_what_was_written() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1)).await;
    fake.grant(id, [8, 9, 10]).await;
    writer.write_to(sub(0), b"first").await.unwrap();
    let mut buffer = writer.reserve(sub(0)).await.unwrap();
    assert_eq!((buffer.len(), buffer.subpartition()), (CAPACITY, sub(0)));
    let used = shuffle_client::encode_record(&mut buffer, b"second").unwrap();
    writer.commit(buffer, used, 1).await.unwrap();
    let slots = fake.take_slots(2).await;
    check(&fake, &slots[0], &encoded(&[b"first"]));
    check(&fake, &slots[1], &encoded(&[b"second"]));
    assert_eq!(slots[1].sequence.value(), 1);
    // One that is dropped, and one of no bytes, can be had again.
    drop(writer.reserve(sub(0)).await.unwrap());
    let again = writer.reserve(sub(0)).await.unwrap();
    writer.commit(again, 0, 0).await.unwrap();
    drop(soon("the same buffer", writer.reserve(sub(0))).await.unwrap());
}

#[tokio::test]
async fn events_travel_in_order_and_in_any_size() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(2)).await;
    fake.grant(id, 0..8).await;
    writer.write_to(sub(0), b"before").await.unwrap();
    writer.write_event(None, b"").await.unwrap();
    let long = vec![3; CAPACITY + 1];
    writer.write_event(Some(sub(1)), &long).await.unwrap();
    writer.write_to(sub(0), b"after").await.unwrap();
    writer.flush().await.unwrap();
    let slots = fake.take_slots(6).await;
    let shape = |entry: &SlotEntry| {
        (
            entry.subpartition.value(),
            entry.kind,
            entry.length as usize,
            entry.continues,
        )
    };
    assert_eq!(
        slots.iter().map(shape).collect::<Vec<_>>(),
        [
            (0, BufferKind::Data, 10, false),
            (0, BufferKind::Event, 0, false),
            (1, BufferKind::Event, 0, false),
            (1, BufferKind::Event, CAPACITY, true),
            (1, BufferKind::Event, 1, false),
            (0, BufferKind::Data, 9, false),
        ]
    );
    let too_long = vec![0; (1 << 20) + 1];
    let error = error_of(writer.write_event(None, &too_long).await);
    assert!(matches!(error.kind(), ErrorKind::RecordTooLarge { .. }));
}

#[tokio::test]
async fn a_starved_writer_gives_partial_buffers_away() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(3)).await;
    fake.grant(id, [0, 1]).await;
    writer.write_to(sub(0), b"a").await.unwrap();
    writer.write_to(sub(1), b"b").await.unwrap();
    let (written, ()) = soon("a buffer", async {
        tokio::join!(writer.write_to(sub(2), b"c"), async {
            let entry = fake.take_slots(1).await[0];
            fake.limit(id, entry.subpartition.value(), 11).await;
            fake.grant(id, [entry.slot]).await;
        })
    })
    .await;
    written.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_writer_moves_between_tasks_on_one_worker() {
    let (session, mut fake) = attach().await;
    let (mut writer, id) = fake.writer(&session, spec(1)).await;
    let task = tokio::spawn(async move {
        writer.write_to(sub(0), b"from a task").await.unwrap();
        writer.flush().await.unwrap();
        writer
    });
    fake.grant(id, [0]).await;
    assert_eq!(fake.take_slots(1).await.len(), 1);
    drop(soon("the task", task).await.unwrap());
}
