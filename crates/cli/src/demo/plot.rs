//! The plots of the report, as SVG text.

use anyhow::Result;
use plotters::{
    prelude::{
        BindKeyPoints as _, ChartBuilder, Circle, ErrorBar, IntoLogRange as _,
        IntoSegmentedCoord as _, LineSeries, PathElement, RGBColor, Rectangle, SegmentValue,
    },
    style::Color as _,
};

use super::run::{DemoResult, Outcome, Series};
use crate::{
    plot::{FONT, GRAY, PALETTE, compact, index, log_ticks, no_line, svg},
    stats::Ratio,
};

/// Color of quietline.
const QUIETLINE: RGBColor = PALETTE[0];
/// Color of the kernel.
const KERNEL: RGBColor = PALETTE[1];

/// Widths of the ratio plot: for a page, and for a phone. The labels have the same size in both.
const RATIO_WIDTHS: [u32; 2] = [900, 370];

/// Size of a plot that stands beside another.
const SIZE: (u32, u32) = (384, 260);

/// Heights in the ratio plot: of one row, and of everything around the rows.
const RATIO_ROW: u32 = 40;
const RATIO_FRAME: u32 = 84;

/// Plots every ratio with its interval on a logarithmic axis, on which twice as fast and half as
/// fast are equally far from 1. Returns the plot in each width.
pub(super) fn ratios(result: &DemoResult) -> Result<Option<[String; 2]>> {
    let ratios: Vec<_> = result
        .outcomes
        .iter()
        .filter_map(|outcome| Some((outcome.workload.name(), outcome.ratio(result.plan.seed)?)))
        // The vertical axis starts at the bottom.
        .rev()
        .collect();
    if ratios.is_empty() {
        return Ok(None);
    }
    let [wide, narrow] = RATIO_WIDTHS.map(|width| ratio_plot(&ratios, width));
    Ok(Some([wide?, narrow?]))
}

fn ratio_plot(ratios: &[(&'static str, Ratio)], width: u32) -> Result<String> {
    let low = ratios.iter().map(|(_, ratio)| ratio.low.max(1e-3)).fold(0.5, f64::min) / 1.2;
    let high = ratios.iter().map(|(_, ratio)| ratio.high).fold(2.0, f64::max) * 1.2;
    let names: Vec<_> = ratios.iter().map(|(name, _)| *name).collect();
    let rows = u32::try_from(ratios.len()).unwrap_or(1);
    let label = "Ratio of quietline to the kernel for each workload";
    svg(label, (width, rows * RATIO_ROW + RATIO_FRAME), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(120)
            .build_cartesian_2d(
                (low..high).log_scale().with_key_points(log_ticks(low, high, 8)),
                names.as_slice().into_segmented(),
            )?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .light_line_style(no_line())
            .label_style(FONT)
            .axis_desc_style(FONT)
            .x_labels(6)
            .x_desc("quietline / kernel")
            .y_label_formatter(&|name| match name {
                SegmentValue::Exact(name) | SegmentValue::CenterOf(name) => (*name).to_string(),
                SegmentValue::Last => String::new(),
            })
            .x_label_formatter(&|value| compact(*value))
            .draw()?;
        let ends = [SegmentValue::Exact(&names[0]), SegmentValue::Last];
        chart.draw_series([PathElement::new(
            ends.map(|y| (1.0, y)).to_vec(),
            GRAY.stroke_width(2),
        )])?;
        chart.draw_series(ratios.iter().zip(&names).map(|((_, ratio), name)| {
            let (y, low) = (SegmentValue::CenterOf(name), ratio.low.max(1e-3));
            ErrorBar::new_horizontal(y, low, ratio.value, ratio.high, QUIETLINE.filled(), 12)
        }))?;
        Ok(())
    })
}

/// Plots every slice of both sides in the order of measurement, with median and quartiles.
pub(super) fn slices(outcome: &Outcome) -> Result<Option<String>> {
    let sides: Vec<_> = [(Some(&outcome.quietline), QUIETLINE), (outcome.kernel.as_ref(), KERNEL)]
        .into_iter()
        .filter_map(|(series, color)| Some((series?, series?.summary()?, color)))
        .collect();
    let Some(count) = sides.iter().map(|(_, summary, _)| summary.n).max() else {
        return Ok(None);
    };
    let highest = sides.iter().map(|(_, summary, _)| summary.max).fold(0.0, f64::max);
    let end = index(count) - 0.5;
    svg("Rate of each slice", SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.5..end, 0.0..(highest * 1.08).max(1e-9))?;
        chart
            .configure_mesh()
            .x_labels(count.min(8))
            .x_label_formatter(&|x| format!("{:.0}", x + 1.0))
            .x_desc("slice")
            .y_desc(outcome.workload.unit())
            .y_label_formatter(&|value| compact(*value))
            .light_line_style(no_line())
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()?;
        for (series, summary, color) in &sides {
            let quartiles = [(-0.5, summary.q1), (end, summary.q3)];
            chart.draw_series([Rectangle::new(quartiles, color.mix(0.15).filled())])?;
            let median = vec![(-0.5, summary.median), (end, summary.median)];
            chart.draw_series([PathElement::new(median, color.stroke_width(2))])?;
            let points = series.rates.iter().enumerate();
            chart.draw_series(
                points.map(|(i, rate)| Circle::new((index(i), *rate), 3, color.filled())),
            )?;
        }
        Ok(())
    })
    .map(Some)
}

/// Plots latency by percentile; each step to the right is ten times rarer.
pub(super) fn latency(outcome: &Outcome) -> Result<Option<String>> {
    let curves: Vec<_> = [(Some(&outcome.quietline), QUIETLINE), (outcome.kernel.as_ref(), KERNEL)]
        .into_iter()
        .filter_map(|(series, color)| Some((curve(series?)?, color)))
        .collect();
    let values = || curves.iter().flat_map(|(curve, _)| curve.iter().map(|(_, value)| *value));
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    if curves.is_empty() || low <= 0.0 {
        return Ok(None);
    }
    let (low, high) = (low / 1.3, high * 1.3);
    svg("Latency by percentile", SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(
                0.0..4.0,
                (low..high).log_scale().with_key_points(log_ticks(low, high, 6)),
            )?;
        chart
            .configure_mesh()
            .x_labels(5)
            .x_label_formatter(&|nines| percentile_label(*nines))
            .x_desc("percentile")
            .y_desc("latency, µs")
            .y_label_formatter(&|value| compact(*value))
            .light_line_style(no_line())
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()?;
        for (curve, color) in &curves {
            chart.draw_series(LineSeries::new(curve.iter().copied(), color.stroke_width(2)))?;
        }
        Ok(())
    })
    .map(Some)
}

/// Returns the points from the 0th to the 99.99th percentile. The horizontal axis counts nines.
fn curve(series: &Series) -> Option<Vec<(f64, f64)>> {
    let steps = 0..=40;
    let point = |step: i32| {
        let nines = f64::from(step) / 10.0;
        let percentile = 100.0 * (1.0 - 10_f64.powf(-nines));
        Some((nines, series.latency_us(percentile)?))
    };
    steps.map(point).collect()
}

fn percentile_label(nines: f64) -> String {
    let percentile = 100.0 * (1.0 - 10_f64.powf(-nines));
    if nines.fract() > 0.01 {
        String::new()
    } else {
        format!("{}", (percentile * 100.0).round() / 100.0)
    }
}
