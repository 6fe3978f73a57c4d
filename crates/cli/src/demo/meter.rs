//! Measurement of a slice: the counted work, its duration and its CPU time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Duration and seed of a slice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    /// Warm-up before the measurement, in which congestion windows grow and caches fill.
    pub(super) warmup: Duration,
    /// Duration of the measurement.
    pub(super) measure: Duration,
    /// Seed of the content.
    pub(super) seed: u64,
}

/// Counts work between the end of the warm-up and the end of the slice, by the clock of the thread
/// that sees the work complete.
#[derive(Debug)]
pub(super) struct Meter {
    start: Mark,
    begin: Instant,
    end: Instant,
    /// Work counted so far, including the warm-up.
    work: u64,
    first: Option<Mark>,
    last: Option<Mark>,
}

/// State at one moment of a measurement.
#[derive(Debug, Clone, Copy)]
struct Mark {
    time: Instant,
    work: u64,
    cpu_seconds: f64,
}

/// Difference of two marks.
#[derive(Debug)]
pub(super) struct Measured {
    /// Completed work.
    pub(super) work: u64,
    /// Wall time.
    pub(super) seconds: f64,
    /// CPU seconds of the process per second.
    pub(super) cores: f64,
}

impl Meter {
    /// Starts the slice.
    pub(super) fn start(slice: Slice) -> Self {
        let start = Mark::new(Instant::now(), 0);
        let begin = start.time + slice.warmup;
        Self { start, begin, end: begin + slice.measure, work: 0, first: None, last: None }
    }

    /// Returns the end of the slice, after which no work needs to start.
    pub(super) fn end(&self) -> Instant {
        self.end
    }

    /// Whether the last `add` was after the warm-up and before the end.
    pub(super) fn is_measuring(&self) -> bool {
        self.first.is_some() && self.last.is_none()
    }

    /// Counts completed work; `false` once the slice is over.
    pub(super) fn add(&mut self, work: u64) -> bool {
        let before = self.work;
        self.work += work;
        if self.last.is_some() {
            return false;
        }
        let now = Instant::now();
        if self.first.is_none() && now >= self.begin {
            // The time is `begin` and not the present, so that a stall that spans `begin` is part
            // of the measurement.
            self.first = Some(Mark { time: self.begin, ..Mark::new(now, before) });
        }
        if now >= self.end {
            self.last = Some(Mark::new(now, self.work));
            return false;
        }
        true
    }

    /// Returns the result. If no work was counted after `begin`, the measurement lasts until this
    /// call and has no work.
    pub(super) fn finish(self) -> Measured {
        let last = self.last.unwrap_or_else(|| Mark::new(Instant::now(), self.work));
        let first = self.first.unwrap_or(Mark { time: self.begin, ..last });
        Measured::between(first, last)
    }

    /// Returns the result from the start to this call, including the warm-up.
    pub(super) fn finish_whole(self) -> Measured {
        Measured::between(self.start, Mark::new(Instant::now(), self.work))
    }
}

impl Mark {
    fn new(time: Instant, work: u64) -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(
            clippy::cast_precision_loss,
            reason = "CPU time of a process, in f64 to the microsecond"
        )]
        let cpu_seconds = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
        Self { time, work, cpu_seconds }
    }
}

impl Measured {
    fn between(first: Mark, last: Mark) -> Self {
        let seconds = last.time.saturating_duration_since(first.time).as_secs_f64().max(1e-9);
        let cores = (last.cpu_seconds - first.cpu_seconds) / seconds;
        Self { work: last.work - first.work, seconds, cores }
    }

    /// Returns work in bytes as bits per second.
    pub(super) fn bits_per_second(&self) -> f64 {
        self.per_second() * 8.0
    }

    /// Returns work per second.
    pub(super) fn per_second(&self) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a slice has far fewer than 2^52 transactions"
        )]
        let work = self.work as f64;
        work / self.seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_during_the_warm_up_is_not_counted() {
        let (warmup, measure) = (Duration::from_millis(5), Duration::from_millis(20));
        let mut meter = Meter::start(Slice { warmup, measure, seed: 0 });
        let mut measured = 0;
        while meter.add(1) {
            measured += u64::from(meter.is_measuring());
            std::thread::sleep(Duration::from_millis(1));
        }
        let result = meter.finish();
        // The loop does not count the last call of `add`.
        assert_eq!(result.work, measured + 1);
        assert!(result.seconds >= 0.020 && result.cores >= 0.0, "{result:?}");
        assert!(result.work <= 22 && result.per_second() <= 1100.0, "{result:?}");
    }

    #[test]
    fn a_stall_over_the_whole_slice_is_measured() {
        let (warmup, measure) = (Duration::from_millis(1), Duration::from_millis(2));
        let mut meter = Meter::start(Slice { warmup, measure, seed: 0 });
        assert!(meter.add(100));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!meter.add(7));
        let result = meter.finish();
        assert_eq!(result.work, 7);
        assert!(result.seconds >= 0.048, "{result:?}");
    }
}
