//! `scale`: how throughput between two nodes changes with what there is of something.

mod chart;
mod sweeps;

use std::fs;

use sweeps::{Setting, settings};

use super::measure::{Delivery, Spread, rounded, until_interrupted};
use crate::cli::ScaleArgs;
use crate::console::Console;
use crate::error::{Attempt, BenchError};
use crate::report::{Point, ScaleReport, publish};

/// Runs the sweeps; whether they were verified.
///
/// # Errors
/// They did not come to their end.
pub(crate) async fn scale(args: &ScaleArgs, console: &mut Console) -> Result<bool, BenchError> {
    fs::create_dir_all(&args.output).attempt(|| args.output.display().to_string())?;
    let settings = settings(args);
    let deliveries = until_interrupted(deliver_all(args, &settings, console)).await?;
    console.finish();
    for (setting, delivery) in settings.iter().zip(&deliveries) {
        for problem in delivery.iter().flat_map(|delivery| &delivery.problems) {
            console.say(format!("not verified: {} {}: {problem}", setting.sweep, setting.label));
        }
    }
    let points: Vec<Point> = settings
        .iter()
        .zip(&deliveries)
        .map(|(setting, own)| point(setting, own))
        .collect();
    let mut charts = Vec::new();
    for (sweep, title) in sweeps::TITLES {
        let own: Vec<&Point> = points.iter().filter(|point| point.sweep == sweep).collect();
        if !own.is_empty() {
            let path = args.output.join(format!("{sweep}.svg"));
            chart::draw(&path, title, &own)
                .map_err(|problem| BenchError::Input(format!("cannot draw {}: {problem}", path.display())))?;
            charts.push(path.display().to_string());
        }
    }
    let report = ScaleReport {
        scenario: "scale",
        verified: deliveries.iter().flatten().all(|delivery| delivery.problems.is_empty()),
        bytes: args.measure.bytes,
        rounds: args.measure.rounds,
        channels_10000_vs_16: ratio(&points, "16 active", "10000", "16"),
        all_channels_10000_vs_16: ratio(&points, "all active", "10000", "16"),
        flush_1ms_vs_100ms: ratio(&points, "flush", "1", "100"),
        points,
        charts,
    };
    publish(&report, &report.text(), args.measure.output.json.as_ref())?;
    Ok(report.verified)
}

/// Every setting once in every round.
async fn deliver_all(
    args: &ScaleArgs,
    settings: &[Setting],
    console: &mut Console,
) -> Result<Vec<Vec<Delivery>>, BenchError> {
    let rounds = args.measure.rounds;
    let count = u64::try_from(settings.len()).expect("invariant: a few");
    console.start(Some(u64::from(rounds) * count));
    let mut deliveries = vec![Vec::new(); settings.len()];
    let mut step = 0;
    for round in 0..rounds {
        for (setting, own) in settings.iter().zip(&mut deliveries) {
            let what = format!("round {} of {rounds}: {} {}", round + 1, setting.sweep, setting.label);
            console.step(step, what);
            step += 1;
            own.push(setting.load.deliver(console).await?);
        }
    }
    Ok(deliveries)
}

fn point(setting: &Setting, deliveries: &[Delivery]) -> Point {
    let spread = |value: fn(&Delivery) -> f64| Spread::of(&deliveries.iter().map(value).collect::<Vec<_>>());
    let speed = spread(Delivery::gb_per_s);
    Point {
        sweep: setting.sweep,
        series: setting.series,
        x: setting.label.clone(),
        gb_per_s_median: rounded(speed.median),
        gb_per_s_min: speed.min,
        gb_per_s_max: speed.max,
        cpu_s_per_gb: rounded(spread(Delivery::cpu_s_per_gb).median),
    }
}

/// Of two points of a series, if both were measured.
fn ratio(points: &[Point], series: &str, above: &str, below: &str) -> Option<f64> {
    let find = |x: &str| points.iter().find(|point| point.series == series && point.x == x);
    Some(rounded(find(above)?.gb_per_s_median / find(below)?.gb_per_s_median))
}

#[cfg(test)]
mod tests {
    use super::ratio;
    use crate::report::Point;

    #[test]
    fn a_ratio_is_of_two_points_of_one_series() {
        let point = |series, x: &str, gb_per_s_median| Point {
            sweep: "channels",
            series,
            x: x.to_owned(),
            gb_per_s_median,
            gb_per_s_min: 0.0,
            gb_per_s_max: 0.0,
            cpu_s_per_gb: 0.0,
        };
        let points = [
            point("16 active", "16", 2.0),
            point("all active", "10000", 9.0),
            point("16 active", "10000", 1.5),
        ];
        assert_eq!(ratio(&points, "16 active", "10000", "16"), Some(0.75));
        assert_eq!(ratio(&points, "all active", "10000", "16"), None);
    }
}
