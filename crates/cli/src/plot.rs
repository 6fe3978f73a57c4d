//! The parts that all plots share: colors, letters, ticks and SVG text.
//!
//! Plots have no colors of their own: text and axes take the color of the page's text, data one of
//! its colors `--c0` to `--c6`. So a plot is readable on a light and on a dark page.

use anyhow::{Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::{DrawingArea, IntoDrawingArea as _, RGBColor, SVGBackend},
    style::{BLACK, ShapeStyle, TRANSPARENT},
};

/// Colors that are distinguishable with every kind of color vision (Okabe and Ito).
pub(crate) const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Color of lines that are not data.
pub(crate) const GRAY: RGBColor = RGBColor(150, 150, 150);

/// Letters of a plot. A plot of 360 pixels is shown without reduction on a phone of 420.
pub(crate) const FONT: (&str, u32) = ("sans-serif", 13);

/// Color of an arm or a side by its place. With more arms than colors, colors repeat.
pub(crate) fn color(place: usize) -> RGBColor {
    PALETTE[place % PALETTE.len()]
}

/// The same color as the page names it.
pub(crate) fn css(place: usize) -> String {
    format!("var(--c{})", place % PALETTE.len())
}

/// Lines between the labeled ones, which are not drawn.
pub(crate) fn no_line() -> ShapeStyle {
    TRANSPARENT.into()
}

/// Formats the label of an axis.
pub(crate) fn compact(value: f64) -> String {
    let short = |value: f64, digits: usize, unit: &str| {
        let text = format!("{value:.digits$}");
        let text =
            if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        format!("{text}{unit}")
    };
    match value.abs() {
        v if v >= 1e9 => short(value / 1e9, 1, "G"),
        v if v >= 1e6 => short(value / 1e6, 1, "M"),
        v if v >= 1e4 => short(value / 1e3, 0, "k"),
        v if v >= 1e3 => short(value / 1e3, 1, "k"),
        v if v >= 10.0 || v == 0.0 => short(value, 0, ""),
        v if v >= 1.0 => short(value, 1, ""),
        _ => short(value, 3, ""),
    }
}

/// Formats the label of an axis whose labels lie `step` apart, with as many digits as tell them
/// apart.
pub(crate) fn label(value: f64, step: f64) -> String {
    // Where the short form has its last digit: 1,500 is 1.5k, 15,000 is 15k.
    let coarse = compact(value) == compact(value + step);
    if !coarse || step <= 0.0 {
        return compact(value);
    }
    let digits = (0..9).find(|&digits| step * 10_f64.powi(digits) >= 0.999).unwrap_or(9);
    format!("{value:.*}", usize::try_from(digits).unwrap_or(0))
}

/// Labels of a logarithmic axis: round numbers, at most about `most`.
pub(crate) fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    if !(low > 0.0 && high > low && high.is_finite()) {
        return Vec::new();
    }
    let most = most.max(2);
    if high / low < 5.0 {
        // A short axis is nearly even.
        let step = nice_step((high - low) / index(most));
        let ticks = (0..1000).map(|place| ((low / step).ceil() + f64::from(place)) * step);
        return ticks.take_while(|tick| *tick <= high).collect();
    }
    for digits in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
        let decades = -12..=12;
        let all = decades.flat_map(|power| digits.iter().map(move |d| d * 10_f64.powi(power)));
        let ticks: Vec<f64> = all.filter(|tick| (low..=high).contains(tick)).collect();
        if ticks.len() <= most || digits.len() == 1 {
            // More decades than labels: every second, every third.
            let every = ticks.len().div_ceil(most).max(1);
            return ticks.into_iter().step_by(every).collect();
        }
    }
    Vec::new()
}

/// The round number (1, 2 or 5 times a power of ten) that is `least` or the next above it.
fn nice_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= least * 0.999);
    digit.unwrap_or(10.0) * power
}

/// A place in a series as a coordinate.
pub(crate) fn index(number: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few dozen slices")]
    let index = number as f64;
    index
}

/// Draws into SVG text. `label` says what the plot shows to readers who do not see it.
pub(crate) fn svg(
    label: &str,
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area)
            .and_then(|()| Ok(area.present()?))
            .map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    for (place, color) in PALETTE.into_iter().enumerate() {
        text = text.replace(&hex(color), &css(place));
    }
    text = text.replace(&hex(GRAY), "var(--gray)").replace(&hex(BLACK), "currentColor");
    let label = crate::page::escape(label);
    Ok(text.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1))
}

/// A color as the backend writes it.
fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_no_needless_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (1.0, "1"),
            (2.5, "2.5"),
            (10.0, "10"),
            (1000.0, "1k"),
            (1500.0, "1.5k"),
            (20_000.0, "20k"),
            (1e6, "1M"),
            (2.5e9, "2.5G"),
        ] {
            assert_eq!(compact(value), text);
        }
    }

    #[test]
    fn labels_that_lie_close_have_the_digits_that_tell_them_apart() {
        assert_eq!([99.5, 99.6].map(|value| label(value, 0.1)), ["99.5", "99.6"]);
        assert_eq!([10_100.0, 10_200.0].map(|value| label(value, 100.0)), ["10100", "10200"]);
        assert_eq!([0.0, 20.0].map(|value| label(value, 20.0)), ["0", "20"]);
        assert_eq!(label(5.0, 0.0), "5");
    }

    #[test]
    fn ticks_of_a_logarithmic_axis_are_round_and_few() {
        assert_eq!(log_ticks(0.4, 3.0, 6), [0.5, 1.0, 2.0]);
        assert!(matches!(log_ticks(0.9, 1.1, 4).len(), 4 | 5));
        assert_eq!(log_ticks(0.001, 1e6, 5), [0.001, 0.1, 10.0, 1000.0, 100_000.0]);
        assert!(log_ticks(0.0, 1.0, 5).is_empty());
        for (low, high) in [(0.5, 2.0), (0.02, 4.0), (3.0, 3.1), (1.0, 1e9)] {
            let ticks = log_ticks(low, high, 6);
            assert!((2..=8).contains(&ticks.len()), "{low} {high} {ticks:?}");
            assert!(ticks.iter().all(|tick| (low..=high).contains(tick)), "{ticks:?}");
        }
    }

    #[test]
    fn a_plot_takes_its_colors_from_the_page() {
        let text = svg("<a>", (10, 10), |area| {
            for (place, color) in (0..).zip([color(0), GRAY, BLACK]) {
                area.draw_pixel((place, 0), &color)?;
            }
            Ok(())
        });
        let text = text.expect("a plot");
        for part in ["var(--c0)", "var(--gray)", "currentColor", "aria-label=\"&lt;a&gt;\""] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains('#'), "{text}");
    }
}
