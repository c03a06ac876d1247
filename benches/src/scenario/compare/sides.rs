//! Who is compared: the service on both paths, and what people would use instead, each in the variants
//! that may be its best.

use std::time::Duration;

use crate::cli::{CompareArgs, NodePath};
use crate::console::Console;
use crate::error::BenchError;
use crate::load::Flush;
use crate::peers::Way;
use crate::scenario::measure::{Delivery, Load, Pairs};

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
pub(super) const SIDES: [&str; 6] = ["local", "ring", "unix_stream", "remote", "tcp", "flight"];

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
    let mut all = vec![
        ours(args, "local", NodePath::Local),
        pairs(args, "ring", "ring in shared memory", Way::Ring, piece),
    ];
    for batch in [8, 16] {
        let variant = format!("SOCK_SEQPACKET, {batch} a message");
        all.push(pairs(args, "ring", variant, Way::Packets { batch }, piece));
    }
    for (side, way) in [("unix_stream", Way::Unix), ("tcp", Way::Tcp)] {
        if side == "tcp" {
            all.push(ours(args, "remote", NodePath::Remote));
        }
        for bytes in STREAM_PIECES {
            all.push(pairs(args, side, pieces(bytes), way, bytes));
        }
    }
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

fn pieces(bytes: u32) -> String {
    format!("pieces of {} KiB", bytes >> 10)
}

fn ours(args: &CompareArgs, side: &'static str, path: NodePath) -> Contender {
    let measure = &args.measure;
    Contender {
        side,
        variant: format!("{} buffers of {} KiB", measure.buffers, measure.buffer_size >> 10),
        how: How::Ours(Box::new(Load {
            path,
            producers: args.streams,
            consumers: args.streams,
            subpartitions: args.streams,
            active: args.streams,
            burst: 1,
            channel_width: None,
            buffer_bytes: measure.buffer_size,
            record_bytes: 0,
            bytes: measure.bytes,
            buffers: measure.buffers,
            exclusive: 2,
            flush: Flush::WhenFull,
            checksums: true,
            send: measure.send,
            turn: measure.turn,
            server_options: measure.server_options.clone(),
            stall_timeout: Duration::from_secs(measure.output.stall_timeout),
            verbose: measure.output.verbose,
        })),
    }
}

fn pairs(args: &CompareArgs, side: &'static str, variant: impl Into<String>, way: Way, piece_bytes: u32) -> Contender {
    let measure = &args.measure;
    Contender {
        side,
        variant: variant.into(),
        how: How::Pairs(Pairs {
            way,
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

const STREAM_PIECES: [u32; 3] = [32 << 10, 256 << 10, 1 << 20];
#[cfg(feature = "peers")]
const FLIGHT_BATCHES: [u32; 3] = [64 << 10, 256 << 10, 1 << 20];
