//! The scaling curves of the report: what the coherence model says about more CPUs.

use std::fmt::Write as _;

use anyhow::Result;
use quietline_lab::{
    coherence::curves::{Curve, DEFAULT_PATH, EXPERIMENTS, SOCKET_CPUS, curves_of},
    experiment::{LabRecord, Series},
};

use super::{plot, report};
use crate::page::escape;

/// Appends a plot for each experiment of the record that has curves. The costs are those that the
/// run has measured.
pub(super) fn section(page: &mut String, record: &LabRecord) -> Result<()> {
    let is_run = |name: &str| record.experiments.iter().any(|own| own.name == name);
    if !EXPERIMENTS.into_iter().any(is_run) {
        return Ok(());
    }
    let calibration = record.machine.calibration.as_ref();
    let costs = if calibration.is_some() { "measured on this machine" } else { "published" };
    let _ = writeln!(
        page,
        "<h2 id=\"scaling\">More CPUs, by the coherence model</h2>\n<p>Rates of the paths of this stack on \
         a machine with two sockets of {SOCKET_CPUS} CPUs, whose costs of cache lines are {costs}. \
         <code>docs/model.md</code> says how the model was made and how far it is from measurements.</p>\n\
         <div class=\"plots\">"
    );
    let curves = curves_of(calibration, |name| name == DEFAULT_PATH || is_run(name));
    for group in curves.chunk_by(|first, second| first.title == second.title) {
        group_plot(page, group)?;
    }
    page.push_str("</div>\n");
    Ok(())
}

fn group_plot(page: &mut String, group: &[Curve]) -> Result<()> {
    let series: Vec<Series> = group.iter().map(series).collect();
    let arms: Vec<_> = series.iter().enumerate().collect();
    let Some(plot) = plot::series(&arms)? else { return Ok(()) };
    let _ = write!(page, "<figure>{plot}<figcaption>{}", escape(&group[0].title));
    for (place, curve) in group.iter().enumerate() {
        let last = |values: &[f64]| values.last().copied().unwrap_or_default();
        let _ = write!(
            page,
            "<br>{}{}: {:.1} million/s with {} CPUs, which wait for lines {:.0} % of the time",
            report::dot(place),
            escape(&curve.name),
            last(&curve.values),
            curve.cpus.last().copied().unwrap_or_default(),
            last(&curve.stalled) * 100.0,
        );
    }
    page.push_str("</figcaption></figure>\n");
    Ok(())
}

fn series(curve: &Curve) -> Series {
    let points =
        curve.cpus.iter().zip(&curve.values).map(|(cpus, value)| [f64::from(*cpus), *value]);
    Series {
        name: curve.title.clone(),
        x_unit: "CPUs".to_owned(),
        y_unit: curve.unit.clone(),
        points: points.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_experiment_with_curves_gets_its_plot_and_that_of_the_default_path() {
        let mut record = super::super::tests::record();
        let mut page = String::new();
        section(&mut page, &record).expect("a section");
        assert_eq!(page, "", "small queues have no curve");
        "skb-cache".clone_into(&mut record.experiments[0].name);
        section(&mut page, &record).expect("a section");
        assert_eq!(page.matches("<figure>").count(), 2, "{page}");
        assert!(page.contains("recycle none"), "{page}");
    }
}
