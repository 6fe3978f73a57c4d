//! The plots of the report, as SVG text.

use anyhow::Result;
use plotters::{
    prelude::{
        ChartBuilder, Circle, ErrorBar, IntoLogRange as _, IntoSegmentedCoord as _, LineSeries,
        PathElement, Rectangle, SegmentValue, WHITE,
    },
    style::{Color as _, RGBColor},
};
use quietline_lab::{
    experiment::{ArmRecord, ComparisonRecord, Series},
    statistics::Summary,
};

use crate::plot::{GRAY, PALETTE, compact, svg};

/// Widths of plots with a row for each name: for a page, and for a phone.
const WIDTHS: [u32; 2] = [760, 360];
/// Width of the names of rows in each.
const NAME_WIDTHS: [u32; 2] = [230, 110];
/// Characters of a name that fit these widths.
const NAME_CHARS: [usize; 2] = [34, 15];
/// Heights: of a row, and of everything around the rows.
const ROW: u32 = 30;
const FRAME: u32 = 74;

/// Color of an arm by its place in the experiment. With more arms than colors, colors repeat and
/// the names of rows tell them apart.
pub(super) fn color(arm: usize) -> RGBColor {
    PALETTE[arm % PALETTE.len()]
}

/// The same as a color of CSS.
pub(super) fn css(arm: usize) -> String {
    let RGBColor(red, green, blue) = color(arm);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Plots the ratio of each comparison with its interval on a logarithmic axis, in each width. Rows
/// have the numbers of the table.
pub(super) fn ratios(comparisons: &[ComparisonRecord]) -> Result<Option<[String; 2]>> {
    let ratios: Vec<_> = comparisons
        .iter()
        .enumerate()
        .filter_map(|(place, record)| Some((format!("{}", place + 1), record.ratio?)))
        .filter(|(_, ratio)| ratio.low > 0.0 && ratio.high.is_finite())
        // The vertical axis starts at the bottom.
        .rev()
        .collect();
    if ratios.is_empty() {
        return Ok(None);
    }
    let low = ratios.iter().map(|(_, ratio)| ratio.low).fold(0.9, f64::min) / 1.05;
    let high = ratios.iter().map(|(_, ratio)| ratio.high).fold(1.1, f64::max) * 1.05;
    let names: Vec<String> = ratios.iter().map(|(name, _)| name.clone()).collect();
    let plot = |width: u32| {
        svg((width, height(names.len(), ROW)), |area| {
            let mut chart = ChartBuilder::on(area)
                .margin(10)
                .margin_right(24)
                .x_label_area_size(44)
                .y_label_area_size(40)
                .build_cartesian_2d((low..high).log_scale(), names.as_slice().into_segmented())?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .light_line_style(WHITE)
                .x_labels(6)
                .x_desc("arm / baseline")
                .y_labels(names.len())
                .y_label_formatter(&|name| segment(name, usize::MAX))
                .x_label_formatter(&|value| format!("{}", (value * 1000.0).round() / 1000.0))
                .draw()?;
            let ends = [SegmentValue::Exact(&names[0]), SegmentValue::Last];
            let line = ends.map(|y| (1.0, y)).to_vec();
            chart.draw_series([PathElement::new(line, GRAY.stroke_width(2))])?;
            chart.draw_series(ratios.iter().zip(&names).map(|((_, ratio), name)| {
                let y = SegmentValue::CenterOf(name);
                let style = PALETTE[0].filled();
                ErrorBar::new_horizontal(y, ratio.low, ratio.estimate, ratio.high, style, 10)
            }))?;
            Ok(())
        })
    };
    let [wide, narrow] = WIDTHS.map(plot);
    Ok(Some([wide?, narrow?]))
}

/// Plots every run of each arm of a condition with median and quartiles, in each width.
pub(super) fn runs(arms: &[ArmRecord], metric: usize, label: &str) -> Result<Option<[String; 2]>> {
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
        svg((WIDTHS[place], height(names.len(), ROW)), |area| {
            let range = lowest - margin..highest + margin;
            let mut chart = ChartBuilder::on(area)
                .margin(10)
                .margin_right(24)
                .x_label_area_size(44)
                .y_label_area_size(NAME_WIDTHS[place])
                .build_cartesian_2d(range, names.as_slice().into_segmented())?;
            chart
                .configure_mesh()
                .disable_y_mesh()
                .light_line_style(WHITE)
                .x_labels(if place == 0 { 8 } else { 4 })
                .x_desc(label)
                .y_labels(names.len())
                .y_label_formatter(&|name| segment(name, NAME_CHARS[place]))
                .x_label_formatter(&|value| compact(*value))
                .draw()?;
            for ((arm, _, summary, values), name) in rows.iter().zip(&names) {
                let (y, color) = (SegmentValue::CenterOf(name), color(*arm));
                let quartiles = [(summary.q1, SegmentValue::Exact(name)), (summary.q3, y.clone())];
                chart.draw_series([Rectangle::new(quartiles, color.mix(0.2).filled())])?;
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

/// Plots a quantity over time, or a distribution, of several arms.
pub(super) fn series(arms: &[(usize, &Series)]) -> Result<Option<String>> {
    let points = || arms.iter().flat_map(|(_, series)| &series.points);
    let Some((_, first)) = arms.first() else { return Ok(None) };
    if points().next().is_none() {
        return Ok(None);
    }
    let bound = |axis: usize, start: f64, choose: fn(f64, f64) -> f64| {
        points().map(|point| point[axis]).fold(start, choose)
    };
    let (left, right) = (bound(0, f64::INFINITY, f64::min), bound(0, f64::NEG_INFINITY, f64::max));
    let top = bound(1, 0.0, f64::max) * 1.05;
    let unit = if first.x_unit == "s" { "time, s" } else { first.x_unit.as_str() };
    svg((370, 240), |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .margin_right(24)
            .x_label_area_size(30)
            .y_label_area_size(64)
            .build_cartesian_2d(left..right.max(left + 1e-9), 0.0..top.max(1e-9))?;
        chart
            .configure_mesh()
            .x_labels(5)
            .x_label_formatter(&|x| format!("{}", (x * 1000.0).round() / 1000.0))
            .x_desc(unit)
            .y_desc(&first.y_unit)
            .y_label_formatter(&|value| compact(*value))
            .light_line_style(WHITE)
            .draw()?;
        for (arm, series) in arms {
            let points = series.points.iter().map(|point| (point[0], point[1]));
            chart.draw_series(LineSeries::new(points, color(*arm).stroke_width(1)))?;
        }
        Ok(())
    })
    .map(Some)
}

fn height(rows: usize, row: u32) -> u32 {
    u32::try_from(rows).unwrap_or(1) * row + FRAME
}

/// The label of a row, shortened to `chars`.
fn segment(name: &SegmentValue<&String>, chars: usize) -> String {
    match name {
        SegmentValue::Exact(name) | SegmentValue::CenterOf(name) => {
            let short: String = name.chars().take(chars).collect();
            if short.len() < name.len() { format!("{short}…") } else { short }
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
