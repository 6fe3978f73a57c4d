//! Two threads that prepare the state of lines for each other, and the time of an access in each
//! state.
//!
//! Above: [`Calibration`](super::Calibration).

use std::{
    hint::{black_box, spin_loop},
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
    thread,
    time::Instant,
};

use fastrand::Rng;

use super::Measured;

/// Lines that are accessed per repetition: a power of two, so that a word of a line holds an index
/// and a count that wraps around.
const LINES: usize = 256;
/// Bytes that are read in order to evict the lines from the caches of one CPU: beyond the second
/// level of present processors.
const EVICT_BYTES: usize = 8 << 20;

/// A word on a pair of lines of its own: processors prefetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(in crate::coherence) struct Word(pub(in crate::coherence) AtomicUsize);

/// Next work of the second thread.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Order {
    /// Write every line.
    Write = 1,
    /// Read every line.
    Read,
    /// Increment one line in turn with the first thread, so many times as there are lines.
    PingPong,
    /// End.
    End,
}

/// Lines of both threads.
pub(super) struct Pair {
    /// A cycle through all lines: the value of each is the index of the next.
    chain: Vec<Word>,
    order: Word,
    done: Word,
    ball: Word,
    evict: Vec<AtomicU32>,
    /// Whether both threads share one CPU.
    alone: bool,
}

impl Pair {
    pub(super) fn new(alone: bool) -> Self {
        let mut order: Vec<usize> = (0..LINES).collect();
        Rng::with_seed(1).shuffle(&mut order);
        let chain: Vec<Word> = (0..LINES).map(|_| Word::default()).collect();
        for (place, &line) in order.iter().enumerate() {
            chain[line].0.store(order[(place + 1) % LINES], Ordering::Relaxed);
        }
        let evict = (0..EVICT_BYTES / 4).map(|_| AtomicU32::new(1)).collect();
        let [order, done, ball] = [(); 3].map(|()| Word::default());
        Self { chain, order, done, ball, evict, alone }
    }

    /// The second thread.
    pub(super) fn serve(&self) {
        let mut number = 0;
        loop {
            number += 1;
            let order = loop {
                // Acquire: the first thread has done its part.
                let word = self.order.0.load(Ordering::Acquire);
                if word >> 3 == number {
                    break word & 7;
                }
                self.wait();
            };
            match order {
                _ if order == Order::Write as usize => self.write(),
                _ if order == Order::Read as usize => self.read(),
                _ if order == Order::PingPong as usize => self.play(1),
                _ if order == Order::End as usize => return,
                _ => {}
            }
            self.done.0.store(number, Ordering::Release);
        }
    }

    /// Gives an order to the second thread, without waiting for its end.
    fn begin(&self, order: Order) -> usize {
        let number = (self.order.0.load(Ordering::Relaxed) >> 3) + 1;
        self.order.0.store(number << 3 | order as usize, Ordering::Release);
        number
    }

    pub(super) fn order(&self, order: Order) {
        let number = self.begin(order);
        while order != Order::End && self.done.0.load(Ordering::Acquire) != number {
            self.wait();
        }
    }

    /// Waits a moment for the other thread.
    fn wait(&self) {
        if self.alone {
            thread::yield_now();
        } else {
            spin_loop();
        }
    }

    /// Follows the chain; the last value keeps the compiler from removing it.
    fn read(&self) {
        let mut line = 0;
        for _ in 0..LINES {
            line = self.chain[line].0.load(Ordering::Relaxed) % LINES;
        }
        black_box(line);
    }

    /// Modifies every line and keeps the index in it. Adding nothing would be compiled to a fence
    /// and a load.
    fn write(&self) {
        let mut line = 0;
        for _ in 0..LINES {
            line = self.chain[line].0.fetch_add(LINES, Ordering::Relaxed) % LINES;
        }
        black_box(line);
    }

    /// Increments the ball each time it has the own parity.
    fn play(&self, parity: usize) {
        for _ in 0..LINES / 2 {
            while self.ball.0.load(Ordering::Acquire) & 1 != parity {
                self.wait();
            }
            self.ball.0.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Replaces the contents of the own caches.
    fn evict(&self) {
        let words = self.evict.iter().step_by(16);
        black_box(words.map(|word| word.load(Ordering::Relaxed)).fold(0, u32::wrapping_add));
    }

    /// Local read, local addition, clean read, upgrade, dirty read, dirty addition, ping-pong.
    pub(super) fn costs(&self, repetitions: usize) -> [Measured; 7] {
        let sample = |prepare: &dyn Fn(), access: &dyn Fn()| {
            let times = (0..repetitions).map(|_| {
                prepare();
                let begin = Instant::now();
                access();
                begin.elapsed().as_secs_f64() * 1e9 / LINES as f64
            });
            Measured::of(times.collect())
        };
        let (read, write) = (|| self.read(), || self.write());
        [
            sample(&read, &read),
            sample(&write, &write),
            sample(
                &|| {
                    self.order(Order::Read);
                    self.read();
                    self.evict();
                },
                &read,
            ),
            sample(
                &|| {
                    self.order(Order::Read);
                    self.read();
                },
                &write,
            ),
            sample(&|| self.order(Order::Write), &read),
            sample(&|| self.order(Order::Write), &write),
            sample(
                &|| {
                    let _ = self.begin(Order::PingPong);
                },
                &|| self.play(0),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_line() {
        let pair = Pair::new(true);
        let (mut line, mut visited) = (0, 0);
        loop {
            line = pair.chain[line].0.load(Ordering::Relaxed) % LINES;
            visited += 1;
            if line == 0 {
                break;
            }
        }
        assert_eq!(visited, LINES);
        pair.write();
        assert_eq!(pair.chain[0].0.load(Ordering::Relaxed) / LINES, 1);
    }
}
