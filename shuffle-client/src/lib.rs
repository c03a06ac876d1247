//! The library in the executor: write result partitions, read them through gates, on any node.
//!
//! An executor attaches to the shuffle server of its node ([`Session::attach`]). A producer task creates a result partition
//! and writes records to its subpartitions ([`Writer`]); a consumer task opens a gate over its inputs, wherever they are,
//! and reads ([`Gate`]). Data goes from the writer's buffer to the reader through shared memory, or through the two nodes'
//! servers; back-pressure is a writer that waits for a buffer.
//!
//! ```
//! use shuffle_client::protocol::ids::{JobId, PartitionId, ResultId, SubpartitionIndex, SubpartitionRange};
//! use shuffle_client::{AttachOptions, GateSpec, PartitionSpec, Session};
//!
//! # let folder = tempfile::tempdir()?;
//! # let socket = folder.path().join("shuffle.sock");
//! # let options = [("--socket", socket.to_str().ok_or("a path")?), ("--listen", "127.0.0.1:0"), ("--buffers", "64")];
//! # let flags: Vec<_> = std::iter::once("shuffle-server")
//! #     .chain(options.into_iter().flat_map(|(name, value)| [name, value]))
//! #     .map(std::ffi::OsString::from)
//! #     .collect();
//! # std::thread::spawn(move || shuffle_server::run_with_args(flags));
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! # while std::os::unix::net::UnixStream::connect(&socket).is_err() { std::thread::yield_now() }
//! // A server listens at `socket`: `shuffle-server --socket ...`
//! let session = Session::attach(AttachOptions::new(JobId::new(1)).socket(socket)).await?;
//!
//! // The producer: the first attempt of task 0 of result 7, for two consumers.
//! let partition = PartitionId { result: ResultId::new(7), index: 0, attempt: 0 };
//! let mut writer = session.create_partition(PartitionSpec::new(partition, 2)).await?;
//! for word in ["to", "be", "or", "not", "to", "be"] {
//!     writer.write(word.as_bytes(), word.as_bytes()).await?; // equal keys meet
//! }
//! let report = writer.finish().await?;
//! assert_eq!(report.records(), 6);
//!
//! // The consumers, here both in one gate: `None` is this node, else the address of the producer's.
//! let both = SubpartitionRange::new(0, 2)?;
//! let mut gate = session.open_gate(GateSpec::new().channel(None, partition, both)).await?;
//! let mut words = Vec::new();
//! while let Some(record) = gate.next_record().await? {
//!     words.push((record.subpartition, record.bytes)); // in place, in shared memory
//! }
//! assert_eq!(words.len(), 6);
//! let places: Vec<SubpartitionIndex> = words.iter().filter(|(_, word)| word == "to").map(|(place, _)| *place).collect();
//! assert_eq!(places[0], places[1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two layers
//!
//! | | in | out |
//! | --- | --- | --- |
//! | records | [`Writer::write`], [`Writer::write_to`] | [`Gate::next_record`] |
//! | buffers | [`Writer::reserve`], [`Writer::commit`] | [`Gate::next_buffer`] |
//!
//! Records are of any length from 0 up to the server's limit and may span buffers. Buffers are written in place and read in
//! place; what they hold is up to the engine. User events ([`Writer::write_event`]) travel in the order of the stream,
//! beside the data.
//!
//! # What can be relied on
//!
//! - A reader gets each record of its subpartitions once and in order, and the end only after all of them: every
//!   buffer is checked against its writer's checksum, every end against the writer's counts and digest.
//! - Everything that can go wrong is one [`ShuffleError`](protocol::error::ShuffleError): which kind, whose doing, whether
//!   to try again, where, and the first cause. An error is never an end, and an end never an error.
//! - A failure of a partition, a channel or the session is kept: later calls return the same error.
//! - Requests end in time: with the reply, or with an error shortly after the server's request timeout. What waits for
//!   data or for room waits as long as the other side lives.
//! - Every future can be dropped at any await, and every handle at any time. Nothing leaks; what that means for the stream
//!   is said at [`Writer`] and [`Gate`].
//! - Memory is the pool's: no queue in this library holds more than granted buffers and credit allow.
//!
//! # Runtime
//!
//! Any tokio runtime with I/O and time enabled, with one thread or many. One task per session owns the connection; a
//! writer with a flush interval has one more for its timer. Wherever a call can go on, it does so without yielding: a
//! producer that never waits for anything else is paced by the buffers it gets.
#![forbid(unsafe_code)]

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod attach;
mod codec;
mod consumer;
mod driver;
mod producer;

pub use attach::{AttachOptions, SOCKET_VARIABLE, Session};
pub use codec::Compression;
pub use consumer::{
    Buffer, BufferOrEvent, ChannelSpec, EndOfSubpartition, Event, Gate, GateSpec, GateStats, Record, RecordOrEvent,
    SharedValue,
};
pub use driver::{DriverEvent, JobDriver, JobDriverOptions, NodeTraffic};
pub use producer::{
    FinishReport, FlushInterval, PartitionSpec, RECORD_PREFIX_BYTES, SelectFn, Selector, WriteBuffer, Writer,
    encode_record, hash_key, subpartition_of,
};
pub use shuffle_protocol as protocol;
