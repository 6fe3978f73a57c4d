//! Does programs on real CPUs.
//!
//! An access is an operation on an atomic word. Computing time is a chain of operations in
//! registers, each of which needs the result of the one before: its time does not depend on where
//! the code or the stack lies, and it begins with the value of the last read or atomic operation,
//! so that the CPU waits for that value as the model's does. A loop of independent instructions
//! would run on meanwhile and hide the transfer, and one that stores to memory would fill the
//! store buffer behind a store that waits. Where a program says that its computing time has stores
//! ([`Program::own_stores`]), the chain makes them, to a line of the CPU's own.

use std::{
    hint::black_box,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::coherence::{
    calibrate::Word,
    directory::Access,
    program::{Layout, Program, Step},
};
use crate::experiments::threads::{self, Pinned};

/// Part of a run for which all threads must have their CPUs, and run at the same time.
const UNDISTURBED: f64 = 0.98;

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Time of a round of the slower CPU, in nanoseconds.
    pub(super) round_ns: f64,
    /// Whether no other program had one of the CPUs meanwhile.
    pub(super) is_undisturbed: bool,
}

/// Speed of the computing time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spin {
    /// Time of a link of the chain, in nanoseconds.
    pub(super) ns: f64,
}

impl Spin {
    /// Measures the shortest of many times, because nothing makes a chain faster.
    pub(super) fn measure() -> Self {
        const COUNT: u32 = 20_000;
        let own = Word::default();
        let times = (0..101).map(|_| {
            let begin = Instant::now();
            black_box(spin(COUNT, 0, 1, &own.0));
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(COUNT)
        });
        Self { ns: times.fold(f64::INFINITY, f64::min) }
    }
}

/// A chain of `count` links that begins with `value`; each time `every` links have passed it stores
/// to `own`, never with 0.
#[inline(never)]
fn spin(count: u32, every: u32, value: usize, own: &AtomicUsize) -> usize {
    let link = |value: usize| (value ^ value >> 7).wrapping_add(0x9e37_79b9);
    if every == 0 {
        return (0..count).fold(value, |value, _| link(value));
    }
    (0..count).fold(value, |value, number| {
        if number % every == 0 {
            own.store(value, Ordering::Relaxed);
        }
        link(value)
    })
}

/// Does programs on real CPUs, each with the number of its CPU.
pub(super) fn execute(
    layout: &Layout,
    programs: &[(usize, &Program)],
    spin: Spin,
    each: Duration,
) -> Run {
    let lines: Vec<Word> = (0..layout.len()).map(|_| Word::default()).collect();
    let (start, stop) = (Barrier::new(programs.len() + 1), AtomicBool::new(false));
    let parts: Vec<Part> = thread::scope(|scope| {
        let threads: Vec<_> = programs
            .iter()
            .map(|&(cpu, program)| {
                let (lines, start, stop) = (&lines, &start, &stop);
                scope.spawn(move || {
                    let _pinned = Pinned::to(cpu);
                    let actions = actions(program, spin.ns);
                    start.wait();
                    Part::run(&actions, lines, stop)
                })
            })
            .collect();
        start.wait();
        thread::sleep(each);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().expect("a round")).collect()
    });
    Run {
        round_ns: parts.iter().map(Part::round_ns).fold(0.0, f64::max),
        is_undisturbed: is_undisturbed(&parts),
    }
}

/// Run of one thread.
struct Part {
    begin: Instant,
    end: Instant,
    cpu_s: f64,
    rounds: u32,
}

impl Part {
    fn run(actions: &[Action], lines: &[Word], stop: &AtomicBool) -> Self {
        let own = Word::default();
        let (begin, cpu_s, mut rounds, mut value) = (Instant::now(), threads::thread_cpu_s(), 0, 1);
        // Relaxed: the loop ends a little later than asked.
        while !stop.load(Ordering::Relaxed) {
            value = actions.iter().fold(value, |value, action| action.run(value, lines, &own.0));
            rounds += 1;
        }
        black_box(value);
        Self { begin, end: Instant::now(), cpu_s: threads::thread_cpu_s() - cpu_s, rounds }
    }

    fn seconds(&self) -> f64 {
        (self.end - self.begin).as_secs_f64()
    }

    fn round_ns(&self) -> f64 {
        self.seconds() * 1e9 / f64::from(self.rounds.max(1))
    }
}

/// Whether all threads ran on their CPUs, and at the same time.
fn is_undisturbed(parts: &[Part]) -> bool {
    let begin = parts.iter().map(|part| part.begin).max();
    let end = parts.iter().map(|part| part.end).min();
    let (Some(begin), Some(end)) = (begin, end) else { return false };
    let common = end.saturating_duration_since(begin).as_secs_f64();
    parts.iter().all(|part| part.cpu_s.min(common) >= UNDISTURBED * part.seconds())
}

/// A step on a real CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// Links of the chain, and links between two stores.
    Spin(u32, u32),
    Read(usize),
    Write(usize),
    Rmw(usize),
    CompareAndSwap(usize),
    Fence,
}

/// The steps of a program. Computing times are rounded to links of the chain so that their sum is
/// right.
#[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "positive, and small")]
fn actions(program: &Program, spin_ns: f64) -> Vec<Action> {
    let every = match program.own_store_ns() / spin_ns {
        links if links.is_finite() => links.round().max(1.0) as u32,
        _ => 0,
    };
    let (mut wanted_ns, mut links) = (0.0, 0);
    let action = |step: &Step| match *step {
        Step::Think(ns) => {
            wanted_ns += ns;
            let until = (wanted_ns / spin_ns).round() as u64;
            let count = until - links;
            links = until;
            Action::Spin(count as u32, every)
        }
        Step::Line(line, Access::Read) => Action::Read(line.index()),
        Step::Line(line, Access::Write) => Action::Write(line.index()),
        Step::Line(line, Access::Rmw) => Action::Rmw(line.index()),
        Step::CompareAndSwap(line) => Action::CompareAndSwap(line.index()),
        Step::Fence => Action::Fence,
        Step::Critical(..) | Step::Arrival(_) => unreachable!("no path has one"),
    };
    program.steps().iter().map(action).collect()
}

impl Action {
    /// Does the step after `value` is known, and returns the value that the next step waits for.
    fn run(self, value: usize, lines: &[Word], own: &AtomicUsize) -> usize {
        // Relaxed: the programs exchange no data.
        match self {
            Self::Spin(count, every) => spin(count, every, value, own),
            Self::Read(line) => value ^ lines[line].0.load(Ordering::Relaxed),
            Self::Write(line) => {
                lines[line].0.store(value, Ordering::Relaxed);
                value
            }
            Self::Rmw(line) => value ^ lines[line].0.fetch_add(1, Ordering::Relaxed),
            Self::CompareAndSwap(line) => {
                let add = |value: usize| Some(value.wrapping_add(1));
                let old = lines[line].0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
                value ^ old.unwrap_or_default()
            }
            Self::Fence => value ^ own.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computing_times_are_rounded_so_that_their_sum_is_right() {
        let program = Program::new().think(3.4).think(3.4).think(3.4).own_stores(5.0);
        let spins = actions(&program, 2.0);
        assert_eq!(spins, [Action::Spin(2, 3), Action::Spin(1, 3), Action::Spin(2, 3)]);
        let program = Program::new().think(8.0);
        assert_eq!(actions(&program, 2.0), [Action::Spin(4, 0)]);
    }

    #[test]
    fn a_thread_that_had_no_cpu_for_a_part_of_the_run_disturbs_it() {
        let begin = Instant::now();
        let after = |ms| begin + Duration::from_millis(ms);
        let part = |from, to, cpu_s| Part { begin: after(from), end: after(to), cpu_s, rounds: 1 };
        assert!(is_undisturbed(&[part(0, 100, 0.099), part(0, 100, 0.1)]));
        assert!(!is_undisturbed(&[part(0, 100, 0.08), part(0, 100, 0.1)]));
        // The second thread began late: the first one was alone meanwhile.
        assert!(!is_undisturbed(&[part(0, 100, 0.1), part(50, 100, 0.05)]));
    }
}
