//! The final report of quietline: the JSON of `--stats --json`.

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::process::Finished;

/// Counters by Linux names, and softnet_stat.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Parses the output.
    pub fn of(ended: &Finished) -> Result<Self> {
        let text = &ended.stdout;
        serde_json::from_str(text).map(Self).with_context(|| format!("not JSON: {text}"))
    }

    /// Returns a counter or drop reason, which must exist even if it is zero.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let count = self.0["counters"][name].as_u64();
        count.with_context(|| format!("no {name} in {}", self.0["counters"]))
    }

    /// Returns the sum over all drop reasons: names in capitals.
    #[must_use]
    pub fn drops(&self) -> u64 {
        let counters = self.0["counters"].as_object().into_iter().flatten();
        let is_reason = |name: &str| !name.contains(|c: char| c.is_ascii_lowercase());
        counters.filter(|(name, _)| is_reason(name)).filter_map(|(_, value)| value.as_u64()).sum()
    }

    /// Returns a column of softnet_stat, with a row for each core.
    pub fn softnet(&self, column: &str) -> Result<Vec<u64>> {
        let rows = self.0["softnet_stat"].as_array().context("no softnet_stat")?;
        rows.iter()
            .map(|row| row[column].as_u64().with_context(|| format!("no {column}")))
            .collect()
    }
}
