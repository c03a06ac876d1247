//! The service under measurement: workers that deliver through one server or two.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use shuffle_protocol::partition::PartitionKind;

use super::delivery::Delivery;
use super::stage::{Performance, Stage};
use crate::cli::{MeasureArgs, NodePath, SendStrategy};
use crate::cluster::{Server, ServerOptions};
use crate::console::Console;
use crate::error::BenchError;
use crate::load::{Channel, ConsumeLoad, Desk, Flush, Kind, ProduceLoad, Task};
use crate::scenario::plan::divide;
use crate::scenario::run::ask;

/// A shuffle of made bytes. Producers are on one node, consumers on the same or on another.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) path: NodePath,
    pub(crate) producers: u32,
    pub(crate) consumers: u32,
    pub(crate) subpartitions: u32,
    /// Subpartitions that are written to at a time, and for how many pieces each.
    pub(crate) active: u32,
    pub(crate) burst: u64,
    /// Subpartitions in one channel, or all of a consumer's in one.
    pub(crate) channel_width: Option<u32>,
    pub(crate) buffer_bytes: u32,
    /// 0: the layer of buffers.
    pub(crate) record_bytes: u32,
    /// Of all producers together; rounded up to whole pieces.
    pub(crate) bytes: u64,
    /// In circulation for each writer, and for each gate.
    pub(crate) buffers: u32,
    /// Of these, for each channel of a gate; the others float.
    pub(crate) exclusive: u32,
    pub(crate) flush: Flush,
    pub(crate) checksums: bool,
    pub(crate) send: SendStrategy,
    pub(crate) turn: u32,
    pub(crate) kind: Kind,
    /// Producers and consumers are on both nodes, by turns.
    pub(crate) mixed: bool,
    /// How often all of it is read, each time by all consumers.
    pub(crate) readings: u32,
    pub(crate) server_options: Vec<String>,
    pub(crate) stall_timeout: Duration,
    pub(crate) verbose: bool,
}

impl Load {
    /// What every measurement starts from: one producer, one consumer, whole buffers with checksums.
    pub(crate) fn new(path: NodePath, measure: &MeasureArgs) -> Self {
        Self {
            path,
            producers: 1,
            consumers: 1,
            subpartitions: 1,
            active: 1,
            burst: 1,
            channel_width: None,
            buffer_bytes: measure.buffer_size,
            record_bytes: 0,
            bytes: measure.bytes,
            buffers: measure.buffers,
            exclusive: 2,
            flush: Flush::Every { milliseconds: 100 },
            checksums: true,
            send: measure.send,
            turn: measure.turn.unwrap_or(TURN),
            kind: Kind::default(),
            mixed: false,
            readings: 1,
            server_options: measure.server_options.clone(),
            stall_timeout: Duration::from_secs(measure.output.stall_timeout),
            verbose: measure.output.verbose,
        }
    }

    /// Delivers once.
    pub(crate) async fn deliver(&self, console: &mut Console) -> Result<Delivery, BenchError> {
        let mut stage = Stage::open(self.stall_timeout, self.verbose)?;
        let nodes = if self.path == NodePath::Local { 1 } else { 2 };
        let options = self.server_options();
        for _ in 0..nodes {
            stage.start_server(&options, console).await?;
        }
        self.start_workers(&mut stage, console).await?;
        let performance = stage.perform(console).await?;
        let mut counters = Vec::new();
        for server in stage.servers() {
            counters.push(ask(server).await?);
        }
        stage.close().await?;
        Ok(self.judge(performance, counters))
    }

    /// Producers first: a gate finds its partitions.
    async fn start_workers(&self, stage: &mut Stage, console: &Console) -> Result<(), BenchError> {
        let home = |server: &Server| (server.socket.clone(), server.address.to_string());
        let servers = stage.servers();
        let homes: Vec<(PathBuf, String)> = servers.iter().map(home).collect();
        let (Some(first), Some(last)) = (homes.first(), homes.last()) else {
            return Ok(());
        };
        let turn = |index: u32| &homes[index as usize % homes.len()];
        let produces = |partition: u32| if self.mixed { turn(partition) } else { first };
        let consumes = |index: u32| if self.mixed { turn(index) } else { last };
        for partition in 0..self.producers {
            let (producing, _) = produces(partition);
            let load = ProduceLoad {
                desk: Desk {
                    socket: producing.clone(),
                    job: JOB,
                },
                partition,
                subpartitions: self.subpartitions,
                active: self.active,
                burst: self.burst,
                buffers: self.buffers,
                record_bytes: self.record_bytes,
                pieces: self.pieces(),
                flush: self.flush,
                checksums: self.checksums,
                turn: self.turn,
                kind: self.kind,
                audience: None,
            };
            stage
                .start_worker(&format!("producer-{partition}"), Task::Produce(load), console)
                .await?;
        }
        let shares = divide(self.subpartitions, self.consumers);
        let shares = shares.iter().cycle().take(shares.len() * self.readings as usize);
        for (index, &(first, count)) in (0..).zip(shares) {
            let (consuming, _) = consumes(index);
            let channels = (0..self.producers).map(|partition| Channel {
                node: produces(partition).1.clone(),
                partition,
                first,
                count,
                width: self.channel_width.unwrap_or(count),
                told_of: None,
            });
            let load = ConsumeLoad {
                desk: Desk {
                    socket: consuming.clone(),
                    job: JOB,
                },
                gates: 1,
                channels: channels.collect(),
                exclusive: self.exclusive,
                floating: self.floating(count),
                records: self.record_bytes > 0,
                counts_only: false,
                turn: self.turn,
            };
            stage
                .start_worker(&format!("consumer-{index}"), Task::Consume(load), console)
                .await?;
        }
        Ok(())
    }

    pub(crate) fn server_options(&self) -> ServerOptions {
        let writers = self.producers * self.buffers;
        let gates =
            self.readings * self.consumers * (self.buffers + self.exclusive * self.channels(self.subpartitions));
        ServerOptions {
            // Writers may have three quarters of it; memory moves by extents.
            pool_buffers: (2 * (writers + gates) + 64).next_multiple_of(EXTENT),
            buffer_bytes: self.buffer_bytes,
            verbose: self.verbose,
            send: self.send,
            has_disk: PartitionKind::from(self.kind).may_use_disk(),
            more: self.server_options.clone(),
        }
    }

    /// Channels of a gate that reads `count` subpartitions of each partition.
    fn channels(&self, count: u32) -> u32 {
        self.producers * self.channel_width.map_or(1, |width| count.div_ceil(width))
    }

    fn floating(&self, count: u32) -> u32 {
        let exclusive = self.exclusive * self.channels(count);
        self.buffers
            .saturating_sub(exclusive)
            .max(u32::from(self.exclusive == 0))
    }

    /// Of one producer.
    fn pieces(&self) -> u64 {
        let piece = if self.record_bytes == 0 {
            self.buffer_bytes
        } else {
            self.record_bytes
        };
        self.bytes
            .div_ceil(u64::from(self.producers))
            .div_ceil(u64::from(piece))
    }

    /// Holds what was read against what was filled.
    fn judge(&self, performance: Performance, counters: Vec<BTreeMap<String, u64>>) -> Delivery {
        let producers = usize::try_from(self.producers).expect("invariant: a count fits an address");
        let done = performance.done.clone();
        let (filled, read) = done.split_at(producers.min(done.len()));
        let mut delivery = Delivery::new(performance, filled, read, self.readings);
        let strayed: u64 = match self.path {
            _ if self.mixed => 0,
            NodePath::Local => read.iter().map(|done| done.remote_bytes).sum(),
            NodePath::Remote => read.iter().map(|done| done.local_bytes).sum(),
        };
        if strayed > 0 {
            delivery
                .problems
                .push(format!("{strayed} bytes came by the other path"));
        }
        delivery.counters = counters;
        let taken = delivery.strategy();
        if let Some(forced) = self.send.forced().filter(|_| self.path == NodePath::Remote)
            && (taken != Some(forced) || delivery.counter("send_fallbacks") > 0)
        {
            let taken = taken.unwrap_or("nobody knows what");
            let problem = format!("sent by {taken}, though {forced} was asked for");
            delivery.problems.push(problem);
        }
        delivery
    }
}

const JOB: u64 = 1;
/// Buffers that a worker takes in one go unless it is told otherwise.
const TURN: u32 = 8;
/// Buffers that move at a time.
const EXTENT: u32 = 8;
