//! Every number of every run as comma-separated values.

use std::fmt::Write as _;

use quietline_lab::experiment::LabRecord;

/// Returns the table: a line for each metric and each counter of each run.
pub(super) fn runs(record: &LabRecord) -> String {
    let mut text = String::from("experiment,condition,arm,run,order,seed,kind,name,unit,value\r\n");
    for experiment in &record.experiments {
        for condition in &experiment.conditions {
            for arm in &condition.arms {
                for (index, run) in arm.runs.iter().enumerate() {
                    let start = [
                        field(&experiment.name),
                        field(&condition.name),
                        field(&arm.name),
                        index.to_string(),
                        run.order.to_string(),
                        run.seed.to_string(),
                    ]
                    .join(",");
                    for (metric, value) in experiment.metrics.iter().zip(&run.metrics) {
                        let (name, unit) = (field(&metric.name), field(&metric.unit));
                        let _ = write!(text, "{start},metric,{name},{unit},{value}\r\n");
                    }
                    for (name, value) in &run.counters {
                        let name = field(name);
                        let _ = write!(text, "{start},counter,{name},per operation,{value}\r\n");
                    }
                }
            }
        }
    }
    text
}

/// Quotes a field where it has to be.
fn field(text: &str) -> String {
    if text.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("10G, 1 \"sender\""), "\"10G, 1 \"\"sender\"\"\"");
    }

    #[test]
    fn every_line_has_as_many_fields_as_the_first() {
        let text = runs(&super::super::tests::record());
        for line in text.lines() {
            let mut quoted = false;
            let commas = line.chars().filter(|&c| {
                quoted ^= c == '"';
                c == ',' && !quoted
            });
            assert_eq!(commas.count(), 9, "{line}");
        }
    }
}
