//! What every plot has in common: colors, labels and SVG text.

use anyhow::{Result, anyhow};
use plotters::{
    coord::Shift,
    prelude::{DrawingArea, IntoDrawingArea as _, RGBColor, SVGBackend, WHITE},
};

/// Colors that are distinguishable with every kind of color vision (Okabe and Ito).
pub(crate) const PALETTE: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];

/// Color of lines that are not data.
pub(crate) const GRAY: RGBColor = RGBColor(150, 150, 150);

/// Formats the label of an axis.
pub(crate) fn compact(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.1}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 1e3 => format!("{:.1}k", value / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A place in a series as a coordinate.
pub(crate) fn index(number: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few dozen slices")]
    let index = number as f64;
    index
}

/// Draws into SVG text.
pub(crate) fn svg(
    size: (u32, u32),
    draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
        drawn
            .and_then(|()| Ok(area.present()?))
            .map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    Ok(text)
}
