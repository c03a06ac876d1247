//! `throughput`: made bytes from producers to consumers, as fast as they go.

use super::measure::{Delivery, Load, Spread, copied_ratio, rounded, until_interrupted};
use crate::cli::ThroughputArgs;
use crate::console::Console;
use crate::error::BenchError;
use crate::report::{ThroughputReport, publish};

/// Runs the measurement; whether it was verified.
///
/// # Errors
/// It did not come to its end.
pub(crate) async fn throughput(args: &ThroughputArgs, console: &mut Console) -> Result<bool, BenchError> {
    let load = load(args)?;
    let deliveries = until_interrupted(deliver_all(args, &load, console)).await?;
    console.finish();
    for problem in deliveries.iter().flat_map(|delivery| &delivery.problems) {
        console.say(format!("not verified: {problem}"));
    }
    let report = report(args, &load, &deliveries);
    publish(&report, &report.table(), args.measure.output.json.as_ref())?;
    Ok(report.verified)
}

fn load(args: &ThroughputArgs) -> Result<Load, BenchError> {
    let subpartitions = args.subpartitions.unwrap_or(args.consumers);
    if subpartitions < args.consumers {
        return Err(BenchError::Usage(format!(
            "{subpartitions} subpartitions are too few for {} consumers: each reads at least one (--subpartitions)",
            args.consumers
        )));
    }
    Ok(Load {
        producers: args.producers,
        consumers: args.consumers,
        subpartitions,
        active: subpartitions,
        record_bytes: args.record_size,
        exclusive: args.exclusive,
        checksums: !args.no_checksums,
        ..Load::new(args.path, &args.measure)
    })
}

async fn deliver_all(args: &ThroughputArgs, load: &Load, console: &mut Console) -> Result<Vec<Delivery>, BenchError> {
    let rounds = args.measure.rounds;
    console.start(Some(u64::from(rounds)));
    let mut deliveries = Vec::new();
    for round in 0..rounds {
        console.step(u64::from(round), format!("round {} of {rounds}", round + 1));
        deliveries.push(load.deliver(console).await?);
    }
    Ok(deliveries)
}

fn report(args: &ThroughputArgs, load: &Load, deliveries: &[Delivery]) -> ThroughputReport {
    let spread = |value: &dyn Fn(&Delivery) -> f64| Spread::of(&deliveries.iter().map(value).collect::<Vec<_>>());
    let speed = spread(&Delivery::gb_per_s);
    let cpu = |index: usize| rounded(spread(&|delivery| delivery.per_gb(delivery.cpu[index])).median);
    ThroughputReport {
        scenario: "throughput",
        verified: deliveries.iter().all(|delivery| delivery.problems.is_empty()),
        path: args.path.name(),
        layer: if load.record_bytes == 0 { "buffers" } else { "records" },
        checksums: load.checksums,
        producers: load.producers,
        consumers: load.consumers,
        subpartitions: load.subpartitions,
        buffer_size: load.buffer_bytes,
        buffers: load.buffers,
        record_size: load.record_bytes,
        strategy: deliveries.iter().find_map(Delivery::strategy),
        copied_ratio: copied_ratio(deliveries.iter().map(Delivery::sent_bytes)),
        bytes: deliveries.first().map_or(0, |delivery| delivery.bytes),
        rounds: deliveries.len(),
        gb_per_s_median: speed.median,
        gb_per_s_min: speed.min,
        gb_per_s_max: speed.max,
        cpu_s_per_gb: rounded(spread(&Delivery::cpu_s_per_gb).median),
        producers_cpu_s_per_gb: cpu(0),
        consumers_cpu_s_per_gb: cpu(1),
        servers_cpu_s_per_gb: cpu(2),
    }
}
