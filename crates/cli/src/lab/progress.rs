//! Progress of a run with the time that is left: a bar on a terminal, else a line now and then,
//! which ends up in the log of a scheduler.

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use quietline_lab::experiment::{Clock, Experiment, Method, Progress};

use crate::output;

/// Pause between two lines.
const LINE_PERIOD: Duration = Duration::from_secs(10);

/// Estimate of a run in virtual time: it takes a few milliseconds, whatever time it simulates.
const VIRTUAL_RUN: Duration = Duration::from_millis(10);

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
    /// Starts with these parts: experiments with the number of their conditions that run.
    pub(super) fn new<'e>(
        parts: impl Iterator<Item = (&'e Experiment, usize)>,
        method: &Method,
    ) -> Self {
        let total = parts.map(|(own, conditions)| estimate(own, conditions, method)).sum();
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
    pub(super) fn next_run(&mut self, experiment: &Experiment, at: Progress<'_>, method: &Method) {
        let runs = run_millis(experiment, method) * at.done as u64;
        let done = self.finished + runs;
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
    pub(super) fn finish(&mut self, experiment: &Experiment, conditions: usize, method: &Method) {
        self.finished += estimate(experiment, conditions, method);
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

/// Estimated milliseconds of an experiment.
fn estimate(experiment: &Experiment, conditions: usize, method: &Method) -> u64 {
    let runs = conditions * experiment.arms.len() * (method.runs + 1);
    run_millis(experiment, method) * runs as u64
}

fn run_millis(experiment: &Experiment, method: &Method) -> u64 {
    let run = match experiment.clock {
        Clock::Wall => method.warm_up + method.measure,
        Clock::Virtual => VIRTUAL_RUN,
    };
    u64::try_from(run.as_millis()).unwrap_or(1).max(1)
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
