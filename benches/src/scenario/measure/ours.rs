//! The service under measurement: workers that deliver through one server or two.

use std::collections::BTreeMap;
use std::time::Duration;

use super::stage::{Performance, Stage};
use super::stats::rounded;
use crate::cli::{NodePath, SendStrategy};
use crate::cluster::{Server, ServerOptions};
use crate::console::Console;
use crate::error::BenchError;
use crate::load::{Channel, ConsumeLoad, Desk, Flush, ProduceLoad, Task, Totals};
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
    pub(crate) server_options: Vec<String>,
    pub(crate) stall_timeout: Duration,
    pub(crate) verbose: bool,
}

/// What one round of a load gave.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) performance: Performance,
    pub(crate) bytes: u64,
    /// What keeps it from being verified.
    pub(crate) problems: Vec<String>,
    /// Processor time of all producers, all consumers, all servers.
    pub(crate) cpu: [f64; 3],
    /// The counters of each server at the end.
    pub(crate) counters: Vec<BTreeMap<String, u64>>,
}

impl Delivery {
    /// 10^9 bytes a second.
    pub(crate) fn gb_per_s(&self) -> f64 {
        rounded(self.bytes as f64 / 1e9 / self.performance.seconds.max(1e-9))
    }

    /// Processor seconds of all processes for 10^9 bytes.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        self.per_gb(self.performance.cpu_seconds())
    }

    pub(crate) fn per_gb(&self, seconds: f64) -> f64 {
        rounded(seconds / (self.bytes as f64 / 1e9).max(1e-9))
    }
}

impl Load {
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
        let Some(((producing, node), (consuming, _))) = servers.first().map(home).zip(servers.last().map(home)) else {
            return Ok(());
        };
        for partition in 0..self.producers {
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
            };
            stage
                .start_worker(&format!("producer-{partition}@a"), Task::Produce(load), console)
                .await?;
        }
        for (index, (first, count)) in divide(self.subpartitions, self.consumers).into_iter().enumerate() {
            let channels = (0..self.producers).map(|partition| Channel {
                node: node.clone(),
                partition,
                first,
                count,
                width: self.channel_width.unwrap_or(count),
            });
            let load = ConsumeLoad {
                desk: Desk {
                    socket: consuming.clone(),
                    job: JOB,
                },
                channels: channels.collect(),
                exclusive: self.exclusive,
                floating: self.floating(count),
                records: self.record_bytes > 0,
                turn: self.turn,
            };
            let node = if self.path == NodePath::Local { 'a' } else { 'b' };
            stage
                .start_worker(&format!("consumer-{index}@{node}"), Task::Consume(load), console)
                .await?;
        }
        Ok(())
    }

    fn server_options(&self) -> ServerOptions {
        let writers = self.producers * self.buffers;
        let gates = self.consumers * (self.buffers + self.exclusive * self.channels(self.subpartitions));
        ServerOptions {
            // Writers may have three quarters of it; memory moves by extents.
            pool_buffers: (2 * (writers + gates) + 64).next_multiple_of(EXTENT),
            buffer_bytes: self.buffer_bytes,
            verbose: self.verbose,
            send: self.send,
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
        let (filled, read) = performance.done.split_at(producers.min(performance.done.len()));
        let sum = |done: &[crate::load::Done]| {
            let mut totals = Totals::default();
            done.iter().for_each(|done| totals.merge(done.totals));
            totals
        };
        let mut problems = Vec::new();
        let (made, arrived) = (sum(filled), sum(read));
        if made != arrived {
            problems.push(format!("filled {made:?}, read {arrived:?}"));
        }
        let (local, remote) = read.iter().fold((0, 0), |(local, remote), done| {
            (local + done.local_bytes, remote + done.remote_bytes)
        });
        let strayed = if self.path == NodePath::Local { remote } else { local };
        if strayed > 0 {
            problems.push(format!("{strayed} bytes came by the other path"));
        }
        let seconds = |done: &[crate::load::Done]| done.iter().map(|done| done.cpu_seconds).sum();
        Delivery {
            bytes: arrived.bytes,
            problems,
            cpu: [seconds(filled), seconds(read), performance.server_cpu.iter().sum()],
            performance,
            counters,
        }
    }
}

const JOB: u64 = 1;
/// Buffers that move at a time.
const EXTENT: u32 = 8;
