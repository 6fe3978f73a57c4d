//! The plots of the report, as SVG text.

use std::ops::Range;

use anyhow::Result;
use plotters::{
    coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter},
    prelude::{
        BindKeyPoints as _, ChartBuilder, Circle, ErrorBar, IntoLogRange as _,
        IntoSegmentedCoord as _, LineSeries, PathElement, SegmentValue,
    },
    style::Color as _,
};
use quietline_lab::{
    experiment::{ArmRecord, ComparisonRecord, Series},
    statistics::Summary,
};

use crate::plot::{FONT, GRAY, PALETTE, color, compact, index, label, log_ticks, no_line, svg};

/// Widths of plots with a row for each name: for a page, and for a phone.
const WIDTHS: [u32; 2] = [900, 370];
/// Width of a character in the names of rows, and of the space around a name. Letters of a plot are
/// 10 pixels high; a wide font has 6 pixels for each.
const CHAR_WIDTH: u32 = 6;
const NAME_FRAME: u32 = 16;
/// Characters of a name: more would leave too little of a phone to the data.
const NAME_CHARS: usize = 48;
/// Labels of the horizontal axis in each.
const LABELS: [usize; 2] = [8, 4];
/// Heights: of a row, and of everything around the rows.
const ROW: u32 = 30;
const FRAME: u32 = 74;
/// Height of the box between the quartiles.
const BOX: u32 = 14;
/// Size of a plot that stands beside another.
const SIZE: (u32, u32) = (384, 260);
/// Quantities with a larger ratio of the largest to the smallest value have a logarithmic axis.
const LOG_FROM: f64 = 40.0;

/// Plots the ratio of each comparison with its interval on a logarithmic axis, in each width. Rows
/// have the numbers of the table, on a page also the metric and the arm.
pub(super) fn ratios(comparisons: &[(usize, &ComparisonRecord)]) -> Result<Option<[String; 2]>> {
    let ratios: Vec<_> = comparisons
        .iter()
        .filter_map(|(number, record)| Some((*number, *record, record.ratio?)))
        .filter(|(.., ratio)| ratio.low > 0.0 && ratio.high.is_finite())
        // The vertical axis starts at the bottom.
        .rev()
        .collect();
    if ratios.is_empty() {
        return Ok(None);
    }
    let low = ratios.iter().map(|(.., ratio)| ratio.low).fold(0.9, f64::min) / 1.05;
    let high = ratios.iter().map(|(.., ratio)| ratio.high).fold(1.1, f64::max) * 1.05;
    let plot = |place: usize| {
        let name = |(number, record, _): &(usize, &ComparisonRecord, _)| match place {
            0 => format!("{number}  {}: {}", record.metric.replace('_', " "), record.arm),
            _ => number.to_string(),
        };
        let names: Vec<String> = ratios.iter().map(name).collect();
        let size = (WIDTHS[place], height(names.len(), ROW));
        let ticks = log_ticks(low, high, LABELS[place]);
        svg("Ratio of each comparison with its interval", size, |area| {
            let mut chart = ChartBuilder::on(area)
                .margin(10)
                .margin_right(24)
                .x_label_area_size(44)
                .y_label_area_size(name_width(&names))
                .build_cartesian_2d(
                    (low..high).log_scale().with_key_points(ticks),
                    names.as_slice().into_segmented(),
                )?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .light_line_style(no_line())
                .label_style(FONT)
                .axis_desc_style(FONT)
                .x_labels(6)
                .x_desc("arm / baseline")
                .y_labels(names.len())
                .y_label_formatter(&segment)
                .x_label_formatter(&|value| format!("{}", (value * 1000.0).round() / 1000.0))
                .draw()?;
            let ends = [SegmentValue::Exact(&names[0]), SegmentValue::Last];
            let line = ends.map(|y| (1.0, y)).to_vec();
            chart.draw_series([PathElement::new(line, GRAY.stroke_width(2))])?;
            chart.draw_series(ratios.iter().zip(&names).map(|((.., ratio), name)| {
                let y = SegmentValue::CenterOf(name);
                let style = PALETTE[0].filled();
                ErrorBar::new_horizontal(y, ratio.low, ratio.estimate, ratio.high, style, 10)
            }))?;
            Ok(())
        })
    };
    let [wide, narrow] = [0, 1].map(plot);
    Ok(Some([wide?, narrow?]))
}

/// Plots every run of each arm of a condition with median and quartiles, in each width.
pub(super) fn runs(arms: &[ArmRecord], metric: usize, name: &str) -> Result<Option<[String; 2]>> {
    let rows: Vec<_> = arms
        .iter()
        .enumerate()
        .filter_map(|(place, arm)| {
            let values = arm.values(metric);
            Some((place, arm.name.clone(), Summary::of(&values)?, values))
        })
        .rev()
        .collect();
    let lowest = rows.iter().map(|(_, _, own, _)| own.min).fold(f64::INFINITY, f64::min);
    let highest = rows.iter().map(|(_, _, own, _)| own.max).fold(f64::NEG_INFINITY, f64::max);
    if rows.is_empty() {
        return Ok(None);
    }
    // A spread of less than a thousandth would be drawn as if it were one.
    let margin = ((highest - lowest) * 0.06).max(highest.abs() * 5e-4).max(1e-9);
    let names: Vec<String> = rows.iter().map(|(_, name, _, _)| name.clone()).collect();
    let plot = |place: usize| {
        svg(name, (WIDTHS[place], height(names.len(), ROW)), |area| {
            let range = lowest - margin..highest + margin;
            // The library chooses the labels, at most so many of them.
            let step = (range.end - range.start) / index(LABELS[place]) / 2.0;
            let mut chart = ChartBuilder::on(area)
                .margin(10)
                .margin_right(24)
                .x_label_area_size(44)
                .y_label_area_size(name_width(&names))
                .build_cartesian_2d(range, names.as_slice().into_segmented())?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .light_line_style(no_line())
                .label_style(FONT)
                .axis_desc_style(FONT)
                .x_labels(LABELS[place])
                .x_desc(name)
                .y_labels(names.len())
                .y_label_formatter(&segment)
                .x_label_formatter(&|value| label(*value, step))
                .draw()?;
            for ((arm, _, summary, values), name) in rows.iter().zip(&names) {
                let (y, color) = (SegmentValue::CenterOf(name), color(*arm));
                // A thick line stands for the box between the quartiles.
                let quartiles = vec![(summary.q1, y.clone()), (summary.q3, y.clone())];
                let style = color.mix(0.25).stroke_width(BOX);
                chart.draw_series([PathElement::new(quartiles, style)])?;
                let bar = ErrorBar::new_horizontal(
                    y.clone(),
                    summary.q1,
                    summary.median,
                    summary.q3,
                    color.filled(),
                    12,
                );
                chart.draw_series([bar])?;
                let points = values
                    .iter()
                    .map(|value| Circle::new((*value, y.clone()), 2, color.mix(0.5).filled()));
                chart.draw_series(points)?;
            }
            Ok(())
        })
    };
    let [wide, narrow] = [0, 1].map(plot);
    Ok(Some([wide?, narrow?]))
}

/// Plots a quantity over time, by percentile or by the number of CPUs, of several arms.
pub(super) fn series(arms: &[(usize, &Series)]) -> Result<Option<String>> {
    let points = || arms.iter().flat_map(|(_, series)| &series.points);
    let Some((_, first)) = arms.first() else { return Ok(None) };
    let bound = |axis: usize, start: f64, choose: fn(f64, f64) -> f64| {
        points().map(|point| point[axis]).fold(start, choose)
    };
    let [left, low] = [0, 1].map(|axis| bound(axis, f64::INFINITY, f64::min));
    let [right, high] = [0, 1].map(|axis| bound(axis, f64::NEG_INFINITY, f64::max));
    if !(left.is_finite() && high.is_finite()) {
        return Ok(None);
    }
    let x = left..right.max(left + 1e-9);
    if low > 0.0 && high / low > LOG_FROM {
        let (low, high) = (low / 1.2, high * 1.2);
        let y = (low..high).log_scale().with_key_points(log_ticks(low, high, 6));
        return curves(arms, first, x, y).map(Some);
    }
    curves(arms, first, x, 0.0..(high * 1.05).max(1e-9)).map(Some)
}

fn curves<Y>(
    arms: &[(usize, &Series)],
    first: &Series,
    x: Range<f64>,
    y: impl AsRangedCoord<CoordDescType = Y, Value = f64>,
) -> Result<String>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let unit = if first.x_unit == "s" { "time, s" } else { first.x_unit.as_str() };
    let label = format!("{}, {}", first.name, first.y_unit);
    svg(&label, SIZE, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_labels(5)
            .y_labels(6)
            .x_label_formatter(&|x| format!("{}", (x * 1000.0).round() / 1000.0))
            .x_desc(unit)
            .y_desc(&first.y_unit)
            .y_label_formatter(&|value| compact(*value))
            .light_line_style(no_line())
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()?;
        for (arm, series) in arms {
            let points = series.points.iter().map(|point| (point[0], point[1]));
            chart.draw_series(LineSeries::new(points, color(*arm).stroke_width(2)))?;
        }
        Ok(())
    })
}

fn height(rows: usize, row: u32) -> u32 {
    u32::try_from(rows).unwrap_or(1) * row + FRAME
}

/// Width of the longest of these names, and at least of a number.
fn name_width(names: &[String]) -> u32 {
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    NAME_FRAME + CHAR_WIDTH * u32::try_from(longest.clamp(4, NAME_CHARS)).unwrap_or(0)
}

/// The label of a row.
fn segment(name: &SegmentValue<&String>) -> String {
    match name {
        SegmentValue::Exact(name) | SegmentValue::CenterOf(name) => {
            let short: String = name.chars().take(NAME_CHARS).collect();
            if short.len() < name.len() { format!("{}…", short.trim_end()) } else { short }
        }
        SegmentValue::Last => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_runs_and_empty_series_are_no_error() {
        let mut record = super::super::tests::record();
        let condition = &mut record.experiments[0].conditions[0];
        for arm in &mut condition.arms {
            arm.runs.iter_mut().for_each(|run| run.metrics[0] = 0.0);
        }
        assert!(runs(&condition.arms, 0, "ms").expect("a plot").is_some());
        condition.arms[0].series[0].points.clear();
        let empty = &condition.arms[0].series[0];
        assert_eq!(series(&[(0, empty)]).expect("no error"), None);
        assert_eq!(series(&[]).expect("no error"), None);
        assert_eq!(ratios(&[]).expect("no error"), None);
    }
}
