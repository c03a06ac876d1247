//! The settings of all sweeps. Everything that a sweep does not vary is as in `throughput --path remote`.

use crate::cli::{NodePath, ScaleArgs, Sweep};
use crate::load::Flush;
use crate::scenario::measure::Load;

/// One point to measure.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) sweep: &'static str,
    pub(super) series: &'static str,
    pub(super) label: String,
    pub(super) load: Load,
}

/// Sweeps and what their curves are called.
pub(super) const TITLES: [(&str, &str); 4] = [
    ("channels", "channels open between two nodes, no exclusive buffers"),
    ("producers", "producer processes, one consumer"),
    ("buffers", "KiB in a buffer, the same bytes in circulation"),
    ("flush", "flush interval in ms, 16 subpartitions, small records"),
];

/// All points, sweep by sweep.
pub(super) fn settings(args: &ScaleArgs) -> Vec<Setting> {
    let mut all = Vec::new();
    for (sweep, settings) in [
        (Sweep::Channels, channels as fn(&ScaleArgs) -> Vec<Setting>),
        (Sweep::Producers, producers),
        (Sweep::Buffers, buffers),
        (Sweep::Flush, flush),
    ] {
        if args.only.contains(&sweep) {
            all.extend(settings(args));
        }
    }
    all
}

/// What every point starts from.
fn base(args: &ScaleArgs) -> Load {
    Load::new(NodePath::Remote, &args.measure)
}

fn channels(args: &ScaleArgs) -> Vec<Setting> {
    let counts = [1, 4, 16, 64, 256, 1_000, 4_000, 10_000];
    let setting = |series, channels: u32, active: u32| Setting {
        sweep: "channels",
        series,
        label: channels.to_string(),
        load: Load {
            subpartitions: channels,
            active: active.min(channels),
            burst: args.burst,
            channel_width: Some(1),
            exclusive: 0,
            ..base(args)
        },
    };
    let counts = || counts.into_iter().filter(|count| *count <= args.most_channels);
    let some = counts().map(|channels| setting("16 active", channels, 16));
    let all = counts().map(|channels| setting("all active", channels, channels));
    some.chain(all).collect()
}

fn producers(args: &ScaleArgs) -> Vec<Setting> {
    let counts = [1, 2, 4, 8, 16, 32, 64]
        .into_iter()
        .filter(|count| *count <= args.most_producers);
    let setting = |producers: u32| Setting {
        sweep: "producers",
        series: "producers",
        label: producers.to_string(),
        load: Load {
            producers,
            // What circulates is the same for all together.
            buffers: (args.measure.buffers / producers).max(8),
            ..base(args)
        },
    };
    counts.map(setting).collect()
}

fn buffers(args: &ScaleArgs) -> Vec<Setting> {
    let in_circulation = args.measure.buffer_size.saturating_mul(args.measure.buffers);
    let setting = |kibibytes: u32| Setting {
        sweep: "buffers",
        series: "buffers",
        label: kibibytes.to_string(),
        load: Load {
            buffer_bytes: kibibytes << 10,
            buffers: (in_circulation / (kibibytes << 10)).clamp(4, 4096),
            ..base(args)
        },
    };
    [4, 8, 16, 32, 64, 128, 256].map(setting).to_vec()
}

fn flush(args: &ScaleArgs) -> Vec<Setting> {
    let setting = |(milliseconds, bytes): (u64, u64)| Setting {
        sweep: "flush",
        series: "flush",
        label: milliseconds.to_string(),
        load: Load {
            subpartitions: FLUSHED_SUBPARTITIONS,
            active: FLUSHED_SUBPARTITIONS,
            record_bytes: SMALL_RECORD,
            bytes,
            flush: match milliseconds {
                0 => Flush::AfterEachRecord,
                milliseconds => Flush::Every { milliseconds },
            },
            ..base(args)
        },
    };
    // Each record a buffer of its own takes a hundred times as long.
    let all = args.measure.bytes;
    [(0, (all / 64).max(1)), (1, all), (10, all), (100, all)]
        .map(setting)
        .to_vec()
}

const FLUSHED_SUBPARTITIONS: u32 = 16;
const SMALL_RECORD: u32 = 256;
