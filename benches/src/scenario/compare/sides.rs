//! Who is compared: the service on both paths, and what people would use instead, each in the variants
//! that may be its best.

use std::time::Duration;

use crate::cli::{CompareArgs, NodePath};
use crate::console::Console;
use crate::error::BenchError;
use crate::load::Flush;
use crate::peers::Way;
use crate::scenario::measure::{Between, Delivery, Load, Pairs};

/// One way to do the work.
#[derive(Debug, Clone)]
pub(super) struct Contender {
    /// The side it belongs to; the best of a side's contenders stands for it.
    pub(super) side: &'static str,
    pub(super) variant: String,
    how: How,
}

#[derive(Debug, Clone)]
enum How {
    Ours(Box<Load>),
    Pairs(Pairs),
}

/// The sides, in the order of the report.
pub(super) const SIDES: [&str; 8] = [
    "local",
    "ring",
    "relay",
    "unix_stream",
    "remote",
    "remote_relay",
    "tcp",
    "flight",
];

impl Contender {
    /// Does the work once.
    pub(super) async fn deliver(&self, checksums: bool, console: &mut Console) -> Result<Delivery, BenchError> {
        match &self.how {
            How::Ours(load) => {
                let load = Load {
                    checksums,
                    ..(**load).clone()
                };
                load.deliver(console).await
            }
            How::Pairs(pairs) => {
                let pairs = Pairs {
                    checksums,
                    ..pairs.clone()
                };
                pairs.deliver(console).await
            }
        }
    }
}

/// Everyone who takes part.
pub(super) fn contenders(args: &CompareArgs) -> Vec<Contender> {
    let piece = args.measure.buffer_size;
    let mut all = ours(args, "local", NodePath::Local);
    all.push(pairs(args, "ring", "ring in shared memory", Way::Ring, piece));
    for batch in [8, 16, 32] {
        let variant = format!("SOCK_SEQPACKET, {batch} a message");
        all.push(pairs(args, "ring", variant, Way::Packets { batch }, piece));
    }
    all.extend(relays(args));
    all.extend(streams(args, "unix_stream", Way::Unix));
    all.extend(ours(args, "remote", NodePath::Remote));
    all.extend(remote_relays(args));
    all.extend(streams(args, "tcp", Way::Tcp));
    all.extend(flights(args));
    all
}

/// Flight counts rows: 8 bytes each.
#[cfg(feature = "peers")]
fn flights(args: &CompareArgs) -> Vec<Contender> {
    let batch = |bytes| {
        pairs(
            args,
            "flight",
            format!("do_get, batches of {} KiB", bytes >> 10),
            Way::Flight,
            bytes,
        )
    };
    FLIGHT_BATCHES.map(batch).to_vec()
}

#[cfg(not(feature = "peers"))]
fn flights(_args: &CompareArgs) -> Vec<Contender> {
    Vec::new()
}

fn streams(args: &CompareArgs, side: &'static str, way: Way) -> Vec<Contender> {
    let stream = |bytes| pairs(args, side, format!("pieces of {} KiB", bytes >> 10), way, bytes);
    STREAM_PIECES.map(stream).to_vec()
}

/// One for each number of buffers that a process takes in one go.
fn ours(args: &CompareArgs, side: &'static str, path: NodePath) -> Vec<Contender> {
    let measure = &args.measure;
    let turns = measure.turn.map_or_else(|| TURNS.to_vec(), |turn| vec![turn]);
    let (buffers, kibibytes) = (measure.buffers, measure.buffer_size >> 10);
    let contender = |turn| Contender {
        side,
        variant: match turn {
            NO_TURNS => format!("{buffers} buffers of {kibibytes} KiB"),
            turn => format!("{buffers} buffers of {kibibytes} KiB, turns of {turn}"),
        },
        how: How::Ours(Box::new(Load {
            producers: args.streams,
            consumers: args.streams,
            subpartitions: args.streams,
            active: args.streams,
            flush: Flush::WhenFull,
            turn,
            ..Load::new(path, measure)
        })),
    };
    turns.into_iter().map(contender).collect()
}

fn pairs(args: &CompareArgs, side: &'static str, variant: impl Into<String>, way: Way, piece_bytes: u32) -> Contender {
    chain(args, side, variant, way, Between::Nobody, piece_bytes)
}

fn chain(
    args: &CompareArgs,
    side: &'static str,
    variant: impl Into<String>,
    way: Way,
    between: Between,
    piece_bytes: u32,
) -> Contender {
    let measure = &args.measure;
    Contender {
        side,
        variant: variant.into(),
        how: How::Pairs(Pairs {
            way,
            between,
            pairs: args.streams,
            piece_bytes,
            bytes: measure.bytes,
            buffers: measure.buffers,
            checksums: true,
            stall_timeout: Duration::from_secs(measure.output.stall_timeout),
            verbose: measure.output.verbose,
        }),
    }
}

/// One relay between giver and taker.
fn relays(args: &CompareArgs) -> Vec<Contender> {
    let relay = |batch| {
        let (variant, way) = (format!("{batch} a message"), Way::Packets { batch });
        chain(args, "relay", variant, way, Between::Relay, args.measure.buffer_size)
    };
    RELAY_BATCHES.map(relay).to_vec()
}

/// Two relays and TCP between giver and taker.
fn remote_relays(args: &CompareArgs) -> Vec<Contender> {
    let relays = |(batch, gather_bytes): (usize, u32)| {
        let variant = format!("{batch} a message, gathers of {} KiB", gather_bytes >> 10);
        let between = Between::Nodes { gather_bytes, batch };
        let way = Way::Packets { batch };
        chain(args, "remote_relay", variant, way, between, args.measure.buffer_size)
    };
    REMOTE_RELAYS.map(relays).to_vec()
}

/// Buffers that a producer fills, or a consumer reads, before its process does anything else: it never yields, or after so many.
const TURNS: [u32; 3] = [NO_TURNS, 8, 32];
const NO_TURNS: u32 = u32::MAX;
const RELAY_BATCHES: [usize; 3] = [8, 16, 32];
/// Pieces in a message of giver and taker, and bytes in a gather.
const REMOTE_RELAYS: [(usize, u32); 3] = [(8, 256 << 10), (16, 512 << 10), (32, 1 << 20)];
const STREAM_PIECES: [u32; 3] = [32 << 10, 256 << 10, 1 << 20];
#[cfg(feature = "peers")]
const FLIGHT_BATCHES: [u32; 3] = [64 << 10, 256 << 10, 1 << 20];
