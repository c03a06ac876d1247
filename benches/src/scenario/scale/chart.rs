//! A sweep as a curve: medians as a line, the range of each point as a bar.

use std::error::Error;
use std::path::Path;

use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, IntoDrawingArea, LineSeries, Palette, Palette99, PathElement, SVGBackend, WHITE,
};

use crate::report::Point;

/// Draws the series of one sweep into an SVG file. Points lie side by side, whatever their distance.
pub(super) fn draw(path: &Path, title: &str, points: &[&Point]) -> Result<(), Box<dyn Error>> {
    let mut labels: Vec<&str> = Vec::new();
    let mut series: Vec<&str> = Vec::new();
    for point in points {
        if !labels.contains(&point.x.as_str()) {
            labels.push(&point.x);
        }
        if !series.contains(&point.series) {
            series.push(point.series);
        }
    }
    let place = |x: &str| {
        labels
            .iter()
            .position(|label| *label == x)
            .map_or(0.0, |place| place as f64)
    };
    let highest = points.iter().map(|point| point.gb_per_s_max).fold(0.1, f64::max);
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let last = labels.len().saturating_sub(1) as f64;
    let mut chart = ChartBuilder::on(&root)
        .caption(format!("GB/s by {title}"), ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(-0.25..last + 0.25, 0.0..highest * 1.1)?;
    let label = |x: &f64| {
        let near = x.round();
        let found = labels
            .iter()
            .enumerate()
            .find(|(place, _)| (*place as f64 - x).abs() < 1e-6 && near >= 0.0);
        found.map_or_else(String::new, |(_, label)| (*label).to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * labels.len() + 1)
        .x_label_formatter(&label)
        .y_desc("GB/s")
        .draw()?;
    for (number, name) in series.iter().enumerate() {
        let own: Vec<&&Point> = points.iter().filter(|point| point.series == *name).collect();
        let colour = Palette99::pick(number).to_rgba();
        let line = own.iter().map(|point| (place(&point.x), point.gb_per_s_median));
        chart
            .draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(line.map(|at| Circle::new(at, 3, colour.filled())))?;
        chart.draw_series(own.iter().map(|point| {
            let x = place(&point.x);
            PathElement::new(
                [(x, point.gb_per_s_min), (x, point.gb_per_s_max)],
                colour.stroke_width(1),
            )
        }))?;
    }
    chart
        .configure_series_labels()
        .border_style(BLACK.mix(0.3))
        .background_style(WHITE.mix(0.8))
        .draw()?;
    root.present()?;
    Ok(())
}

const SIZE: (u32, u32) = (760, 420);

#[cfg(test)]
mod tests {
    use super::draw;
    use crate::report::Point;

    #[test]
    fn a_curve_is_drawn_with_its_labels() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("channels.svg");
        let points = [("1", 1.0), ("16", 2.0), ("10000", 1.5)].map(|(x, gb_per_s_median)| Point {
            sweep: "channels",
            series: "16 active",
            x: x.to_owned(),
            gb_per_s_median,
            gb_per_s_min: gb_per_s_median - 0.2,
            gb_per_s_max: gb_per_s_median + 0.2,
            cpu_s_per_gb: 0.5,
        });
        draw(&path, "channels", &points.each_ref()).expect("drawn");
        let text = std::fs::read_to_string(&path).expect("written");
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"), "{text}");
        for part in ["polyline", "10000", "16 active", "GB/s by channels"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }
}
