//! The client against a real server in this process: over shared memory and over TCP, on every kind of runtime.

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use shuffle_client::{
        AttachOptions, BufferOrEvent, FlushInterval, Gate, GateSpec, PartitionSpec, RecordOrEvent, Selector, Session,
    };
    use shuffle_protocol::error::{ErrorKind, Result, ShuffleError};
    use shuffle_protocol::ids::{JobId, PartitionId, ResultId, SubpartitionIndex, SubpartitionRange};

    const BUFFER_BYTES: usize = 4096;
    const SOON: Duration = Duration::from_secs(60);

    /// A server of its own, for as long as this process lives.
    fn start_server() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let options = [
            ("--socket", socket.to_str().unwrap()),
            ("--listen", "127.0.0.1:0"),
            ("--buffers", "128"),
            ("--buffer-size", "4096"),
            ("--executor-tcp", "true"),
        ];
        let options = options.into_iter().flat_map(|(name, value)| [name, value]);
        let flags: Vec<OsString> = std::iter::once("server").chain(options).map(Into::into).collect();
        std::thread::spawn(move || shuffle_server::run_with_args(flags));
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        (folder, socket)
    }

    /// The server that most tests share; each of them is a job of its own.
    fn socket() -> PathBuf {
        static SERVER: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
        SERVER.get_or_init(start_server).1.clone()
    }

    fn next_job() -> JobId {
        static JOB: AtomicU64 = AtomicU64::new(1);
        JobId::new(JOB.fetch_add(1, Ordering::Relaxed))
    }

    async fn attach(job: JobId) -> Session {
        attach_at(job, socket()).await
    }

    async fn attach_at(job: JobId, socket: PathBuf) -> Session {
        Session::attach(AttachOptions::new(job).socket(socket)).await.unwrap()
    }

    /// The same server over TCP, where payload travels inline.
    async fn attach_tcp(job: JobId) -> Session {
        let node = attach(job).await.node();
        Session::attach(AttachOptions::new(job).tcp(node.to_string()))
            .await
            .unwrap()
    }

    fn partition(index: u32) -> PartitionId {
        PartitionId {
            result: ResultId::new(7),
            index,
            attempt: 5,
        }
    }

    fn sub(index: u32) -> SubpartitionIndex {
        SubpartitionIndex::new(index)
    }

    fn range(first: u32, count: u32) -> SubpartitionRange {
        SubpartitionRange::new(first, count).unwrap()
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(SOON, future).await.expect("it hangs")
    }

    async fn read_all(gate: &mut Gate) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut records = Vec::new();
        while let Some(record) = gate.next_record().await? {
            records.push((record.subpartition.value(), record.bytes.to_vec()));
        }
        Ok(records)
    }

    /// Records of every awkward length, stamped.
    fn records() -> Vec<Vec<u8>> {
        let lengths = [
            0,
            1,
            BUFFER_BYTES - 4,
            BUFFER_BYTES - 1,
            BUFFER_BYTES,
            BUFFER_BYTES + 1,
            3 * 128 * BUFFER_BYTES,
        ];
        (1..).zip(lengths).map(|(stamp, length)| vec![stamp; length]).collect()
    }

    async fn every_length(producer: Session, consumer: Session) {
        let mut writer = producer
            .create_partition(PartitionSpec::new(partition(0), 2))
            .await
            .unwrap();
        let mut gate = consumer
            .open_gate(GateSpec::new().channel(None, partition(0), range(0, 2)))
            .await
            .unwrap();
        let write = async {
            for record in records() {
                writer.write_to(sub(0), &record).await.unwrap();
                writer.write_to(sub(1), &record).await.unwrap();
            }
            writer.finish().await.unwrap()
        };
        let (report, came) = soon(async { tokio::join!(write, read_all(&mut gate)) }).await;
        let came = came.unwrap();
        for index in 0..2 {
            let of_one: Vec<_> = came
                .iter()
                .filter(|(of, _)| *of == index)
                .map(|(_, record)| record.clone())
                .collect();
            assert!(of_one == records(), "subpartition {index}");
        }
        assert_eq!(report.records(), 14);
        let stats = gate.stats();
        assert_eq!(stats.local_bytes + stats.remote_bytes, report.bytes());
    }

    #[tokio::test]
    async fn records_of_every_length_arrive() {
        let job = next_job();
        every_length(attach(job).await, attach(job).await).await;
        let one = attach(next_job()).await;
        every_length(one.clone(), one).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn records_of_every_length_arrive_on_one_worker() {
        let job = next_job();
        let (producer, consumer) = (attach(job).await, attach(job).await);
        soon(tokio::spawn(every_length(producer, consumer))).await.unwrap();
    }

    #[tokio::test]
    async fn records_of_every_length_arrive_over_tcp() {
        let job = next_job();
        every_length(attach_tcp(job).await, attach(job).await).await;
        let job = next_job();
        every_length(attach(job).await, attach_tcp(job).await).await;
        let job = next_job();
        every_length(attach_tcp(job).await, attach_tcp(job).await).await;
    }

    /// Several writers, keyed and balanced, with few buffers, against readers of one subpartition each.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_writers_and_readers_share_a_small_pool() {
        const PRODUCERS: u32 = 4;
        const CONSUMERS: u32 = 8;
        const RECORDS: u64 = 5_000;
        let job = next_job();
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..PRODUCERS {
            let session = attach(job).await;
            tasks.spawn(async move {
                let selector = if index % 2 == 0 {
                    Selector::HashKey
                } else {
                    Selector::RoundRobin
                };
                let spec = PartitionSpec::new(partition(index), CONSUMERS)
                    .buffers(3, 6)
                    .selector(selector);
                let mut writer = session.create_partition(spec).await.unwrap();
                for number in 0..RECORDS {
                    let mut record = vec![0; 8 + usize::try_from(number % 150).unwrap()];
                    record[..8].copy_from_slice(&number.to_le_bytes());
                    writer.write(&number.to_le_bytes(), &record).await.unwrap();
                }
                let report = writer.finish().await.unwrap();
                assert_eq!(report.records(), RECORDS);
                0
            });
        }
        for consumer in 0..CONSUMERS {
            let session = attach(job).await;
            tasks.spawn(async move {
                let all = (0..PRODUCERS).fold(GateSpec::new(), |spec, producer| {
                    spec.channel(None, partition(producer), range(consumer, 1))
                });
                let mut gate = session.open_gate(all).await.unwrap();
                let mut last = vec![None; usize::try_from(PRODUCERS).unwrap()];
                let mut count = 0;
                while let Some(record) = gate.next_record().await.unwrap() {
                    let number = u64::from_le_bytes(*record.bytes.first_chunk().unwrap());
                    let before = last[usize::try_from(record.channel).unwrap()].replace(number);
                    assert!(before < Some(number), "in order within a channel");
                    count += 1;
                }
                count
            });
        }
        let counts = soon(tasks.join_all()).await;
        assert_eq!(counts.iter().sum::<u64>(), RECORDS * u64::from(PRODUCERS));
    }

    #[tokio::test]
    async fn events_and_empty_subpartitions_arrive_in_order() {
        for tcp in [false, true] {
            let job = next_job();
            let session = if tcp { attach_tcp(job).await } else { attach(job).await };
            let spec = PartitionSpec::new(partition(1), 3).flush_interval(FlushInterval::WhenFull);
            let mut writer = session.create_partition(spec).await.unwrap();
            let mut gate = session
                .open_gate(GateSpec::new().channel(None, partition(1), range(0, 3)))
                .await
                .unwrap();
            let long = vec![8; 3 * BUFFER_BYTES + 1];
            let write = async {
                writer.write_to(sub(0), b"before").await.unwrap();
                writer.write_event(Some(sub(0)), b"").await.unwrap();
                writer.write_event(Some(sub(0)), &long).await.unwrap();
                writer.write_to(sub(0), b"after").await.unwrap();
                writer.finish().await.unwrap();
            };
            let read = async {
                let mut seen = Vec::new();
                while let Some(item) = gate.next_record_or_event().await.unwrap() {
                    seen.push(match item {
                        RecordOrEvent::Record(record) => format!("record {}", record.bytes.len()),
                        RecordOrEvent::Event(event) => format!("event {}", event.bytes.len()),
                        RecordOrEvent::EndOfSubpartition(end) => format!("end {}", end.subpartition),
                        RecordOrEvent::EndOfChannel { channel } => format!("end of channel {channel}"),
                    });
                }
                seen
            };
            let ((), seen) = soon(async { tokio::join!(write, read) }).await;
            let expected = [
                "record 6",
                "event 0",
                "event 12289",
                "record 5",
                "end 0",
                "end 1",
                "end 2",
                "end of channel 0",
            ];
            assert_eq!(seen, expected);
        }
    }

    #[tokio::test]
    async fn a_partial_buffer_arrives_while_its_producer_is_idle() {
        let session = attach(next_job()).await;
        let mut writer = session
            .create_partition(PartitionSpec::new(partition(0), 1))
            .await
            .unwrap();
        let mut gate = session
            .open_gate(GateSpec::new().channel(None, partition(0), range(0, 1)))
            .await
            .unwrap();
        writer.write_to(sub(0), b"only one").await.unwrap();
        let Some(BufferOrEvent::Buffer(buffer)) = soon(gate.next_buffer()).await.unwrap() else {
            panic!("a buffer")
        };
        assert_eq!(&buffer.bytes[4..], b"only one");
        drop(writer);
        let error = soon(gate.next_buffer()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PartitionFailed), "{error}");
        assert!(matches!(error.first_cause().kind(), ErrorKind::Cancelled), "{error}");
        assert_eq!(error.location().partition, Some(partition(0)));
    }

    #[tokio::test]
    async fn a_cause_reaches_the_reader() {
        for tcp in [false, true] {
            let job = next_job();
            let session = if tcp { attach_tcp(job).await } else { attach(job).await };
            let writer = session
                .create_partition(PartitionSpec::new(partition(0), 1))
                .await
                .unwrap();
            let mut gate = session
                .open_gate(GateSpec::new().channel(None, partition(0), range(0, 1)))
                .await
                .unwrap();
            writer
                .abort(ShuffleError::new(ErrorKind::Io, "the input is broken"))
                .await
                .unwrap();
            let error = soon(gate.next_record()).await.unwrap_err();
            assert_eq!(error.first_cause().message(), "the input is broken", "{error}");
            assert_eq!(gate.next_record().await.unwrap_err(), error);
        }
    }

    #[tokio::test]
    async fn a_newer_attempt_fences_the_older() {
        let session = attach(next_job()).await;
        let mut old = session
            .create_partition(PartitionSpec::new(partition(0), 1))
            .await
            .unwrap();
        let newer = PartitionId {
            attempt: 6,
            ..partition(0)
        };
        let _new = session.create_partition(PartitionSpec::new(newer, 1)).await.unwrap();
        let fenced = async {
            loop {
                if let Err(error) = old.write_to(sub(0), &[0; BUFFER_BYTES]).await {
                    return error;
                }
            }
        };
        let error = soon(fenced).await;
        assert!(
            matches!(error.kind(), ErrorKind::Superseded { by_attempt: 6 }),
            "{error}"
        );
        let error = session
            .create_partition(PartitionSpec::new(partition(0), 1))
            .await
            .unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Superseded { .. }), "{error}");
    }

    /// Futures dropped everywhere, and then the pool is as it was.
    #[tokio::test]
    async fn nothing_leaks_when_futures_and_handles_are_dropped() {
        // What another test leaves behind in this process would be held here until the process ends.
        let (_folder, socket) = start_server();
        let job = next_job();
        let session = attach_at(job, socket.clone()).await;
        let moment = Duration::from_micros(300);
        for round in 0..200u32 {
            let spec = || PartitionSpec::new(partition(round), 2).buffers(2, 4).max_queued(1);
            let gates = || GateSpec::new().channel(None, partition(round), range(0, 2));
            if round % 3 == 0 {
                let _ = tokio::time::timeout(moment, session.create_partition(spec())).await;
                let _ = tokio::time::timeout(moment, session.open_gate(gates())).await;
                continue;
            }
            let mut writer = session.create_partition(spec()).await.unwrap();
            let mut gate = session.open_gate(gates()).await.unwrap();
            let kept = writer.reserve(sub(0)).await.unwrap();
            for length in [10, 2 * BUFFER_BYTES] {
                let _ = tokio::time::timeout(moment, writer.write_to(sub(1), &vec![1; length])).await;
                let _ = tokio::time::timeout(moment, gate.next_record()).await;
                let _ = tokio::time::timeout(moment, writer.flush()).await;
            }
            let record = tokio::time::timeout(moment, gate.next_record()).await;
            match round % 4 {
                0 => drop(gate),
                1 => drop(tokio::time::timeout(moment, writer.finish()).await),
                _ => {}
            }
            drop((kept, record));
        }
        // Whoever still holds something would keep the session open.
        soon(session.detach()).await.unwrap();
        let other = attach_at(job, socket).await;
        let home = async {
            loop {
                let status = other.status().await.unwrap();
                let held: u64 = ["granted", "queued", "reserved", "receiving", "viewed", "quarantined"]
                    .iter()
                    .map(|state| status.get(&format!("buffers_{state}")).copied().unwrap_or(0))
                    .sum();
                if held == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon(home).await;
    }
}
