//! Progress of a run with the time that is left: a bar on a terminal, else a line now and then,
//! which ends up in the log of a scheduler.

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use quietline_lab::experiment::{Experiment, Method, Progress, estimate_condition};

use crate::output;

/// Pause between two lines.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// Progress over all experiments of a command. Its unit is an estimated millisecond.
#[derive(Debug)]
pub(super) struct Report {
    bar: Option<ProgressBar>,
    start: Instant,
    line: Instant,
    /// Estimates of the finished experiments, and of all.
    finished: u64,
    total: u64,
}

impl Report {
    /// Starts with these parts: experiments with the places of their conditions that run.
    pub(super) fn new(parts: &[(Experiment, Vec<usize>)], method: &Method) -> Self {
        let total = parts.iter().map(|(own, places)| estimate(own, places, method)).sum();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let template = "{bar:20} {percent:>3} % {elapsed:>4}, {eta} left  {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar
        });
        let now = Instant::now();
        Self { bar, start: now, line: now, finished: 0, total }
    }

    /// Shows the next run of an experiment.
    pub(super) fn next_run(
        &mut self,
        (experiment, places): (&Experiment, &[usize]),
        at: Progress<'_>,
        method: &Method,
    ) {
        let own = estimate(experiment, places, method);
        let done = self.finished + own * at.done as u64 / (at.total as u64).max(1);
        let Progress { condition, arm, .. } = at;
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(format!("{}: {condition}; {arm}", experiment.name));
        } else if self.line.elapsed() >= LINE_PERIOD {
            self.line = Instant::now();
            let left = left(self.start.elapsed(), done, self.total);
            let left = left.map_or_else(String::new, |left| format!(", about {left} s left"));
            output::remark(&format!(
                "lab: {}, {condition}: run {} of {} after {} s{left}",
                experiment.name,
                at.done + 1,
                at.total,
                self.start.elapsed().as_secs(),
            ));
        }
    }

    /// Counts an experiment as finished.
    pub(super) fn finish(&mut self, experiment: &Experiment, places: &[usize], method: &Method) {
        self.finished += estimate(experiment, places, method);
        if let Some(bar) = self.bar.as_ref().filter(|_| self.finished >= self.total) {
            bar.finish_and_clear();
        }
    }
}

/// Seconds that are left if the rest is as fast as the beginning.
fn left(elapsed: Duration, done: u64, total: u64) -> Option<u64> {
    let millis = u64::try_from(elapsed.as_millis()).ok()?;
    let rest = millis.checked_mul(total.saturating_sub(done))?.checked_div(done)?;
    Some(rest.div_ceil(1000))
}

/// Estimated milliseconds of some conditions of an experiment.
fn estimate(experiment: &Experiment, places: &[usize], method: &Method) -> u64 {
    let conditions = places.iter().filter_map(|&place| experiment.conditions.get(place));
    let times = conditions.map(|own| estimate_condition(experiment, own, method));
    u64::try_from(times.sum::<Duration>().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_the_beginning_did() {
        assert_eq!(left(Duration::from_secs(10), 25, 100), Some(30));
        assert_eq!(left(Duration::from_secs(10), 100, 100), Some(0));
        assert_eq!(left(Duration::from_secs(10), 0, 100), None);
    }
}
