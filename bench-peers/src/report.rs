//! Samples of several arms per workload: medians, range, and the ratio of each arm to the first.
//!
//! Not here: tests of significance. With a handful of samples, the range is more informative than a
//! p-value.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// The samples of one arm in one workload, in the workload's unit.
#[derive(Debug, Clone)]
pub struct Arm {
    /// Name, such as `quietline` or `smoltcp`.
    pub name: String,
    /// One number per measurement.
    pub samples: Vec<f64>,
    /// CPU seconds of the stack per second of wall time, if the stack has its own process.
    pub cores: Vec<f64>,
}

impl Arm {
    /// Creates an arm without samples.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), samples: Vec::new(), cores: Vec::new() }
    }
}

/// One workload with its arms. The first arm is the reference of the comparison.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name of the work.
    pub name: String,
    /// Unit of the samples.
    pub unit: &'static str,
    /// Whether a lower value is better.
    pub lower_is_better: bool,
    /// Arms, one for each program or stack.
    pub arms: Vec<Arm>,
}

/// Returns the median of the samples: the middle one, or the mean of the two middle ones if their
/// number is even. NaN without samples.
pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn range(samples: &[f64]) -> (f64, f64) {
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    let most = samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

/// Prints the workloads as one JSON object or as a table.
pub fn print(title: &str, workloads: &[Workload], as_json: bool) {
    if as_json {
        let rows: Map<String, Value> =
            workloads.iter().map(|workload| (workload.name.clone(), to_json(workload))).collect();
        println!("{}", json!({ "bench": title, "workloads": rows }));
    } else {
        print!("{}", to_table(title, workloads));
    }
}

fn to_json(workload: &Workload) -> Value {
    let reference = workload.arms.first().map_or(f64::NAN, |arm| median(&arm.samples));
    let mut row = Map::new();
    row.insert("unit".to_owned(), json!(workload.unit));
    row.insert("lower_is_better".to_owned(), json!(workload.lower_is_better));
    for arm in &workload.arms {
        let value = median(&arm.samples);
        let mut entry = json!({ "median": value, "samples": arm.samples });
        if !arm.cores.is_empty() {
            entry["cores"] = json!(median(&arm.cores));
        }
        entry["ratio_to_first"] = json!(value / reference);
        row.insert(arm.name.clone(), entry);
    }
    Value::Object(row)
}

fn to_table(title: &str, workloads: &[Workload]) -> String {
    let mut text = format!("{title}\n");
    let widths = "workload                                     arm                          median      least       most  cores  ×first";
    // Writing to a string cannot fail.
    let _ok = writeln!(text, "{widths}");
    for workload in workloads {
        let reference = workload.arms.first().map_or(f64::NAN, |arm| median(&arm.samples));
        for arm in &workload.arms {
            let (least, most) = range(&arm.samples);
            let value = median(&arm.samples);
            let cores = if arm.cores.is_empty() {
                "-".to_owned()
            } else {
                format!("{:.2}", median(&arm.cores))
            };
            let ratio = value / reference;
            let name = format!("{} [{}]", workload.name, workload.unit);
            let _ok = writeln!(
                text,
                "{name:<44} {:<25}{value:>9.2}  {least:>9.2}  {most:>9.2}  {cores:>5}  {ratio:>6.2}",
                arm.name
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_defined_for_odd_even_and_no_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn json_has_a_ratio_to_the_first_arm() {
        let arm = |name: &str, value| Arm { samples: vec![value], ..Arm::new(name) };
        let arms = vec![arm("a", 2.0), arm("b", 3.0)];
        let workload =
            Workload { name: "w".to_owned(), unit: "Gbit/s", lower_is_better: false, arms };
        assert_eq!(to_json(&workload)["b"]["ratio_to_first"], json!(1.5));
    }
}
