//! The model against the figures that were published with the changes.
//!
//! Above: docs/model.md, and the tests below, which hold each error to a tolerance. Below:
//! [`machine`](super::machine).
//!
//! Two costs come from published figures themselves ([`Costs::PUBLISHED`]): the transfer of the
//! counted line, from 6 million packets per second with two counts each, and the repetition of a
//! compare-and-swap, from 8 repetitions with 112 CPUs. The work of a packet in the prequeue comes
//! from the load of 35 %. So these three figures confirm nothing, and the table says so
//! ([`Figure::is_input`]). What the change of the load, the gain by a separate line, the gain by
//! unconditional counting, and the gain by fewer remote frees are, the model predicts.

use serde::Serialize;

use super::{
    machine::{Costs, Machine, Totals},
    program::{Layout, Program, Step},
};

/// Length of a run in the model's time: 5 ms.
const RUN_NS: f64 = 5e6;
const SEED: u64 = 1;

/// A published figure and the model's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What was measured.
    pub what: &'static str,
    /// Unit of all numbers.
    pub unit: &'static str,
    /// The published range; a single number is both ends.
    pub published: [f64; 2],
    /// The model's range over the parameters that were not published.
    pub model: [f64; 2],
    /// Whether a parameter of the model was derived from this figure.
    pub is_input: bool,
}

impl Figure {
    /// Error of the model: the greater relative distance of an end of its range from the published
    /// range; 0 within it.
    #[must_use]
    pub fn error(&self) -> f64 {
        let [low, high] = self.published;
        let beyond = |value: f64| match value {
            _ if value < low => value / low - 1.0,
            _ if value > high => value / high - 1.0,
            _ => 0.0,
        };
        let [first, last] = self.model.map(beyond);
        if first.abs() > last.abs() { first } else { last }
    }
}

/// All figures.
#[must_use]
pub fn figures() -> Vec<Figure> {
    let mut figures = prequeue();
    figures.push(false_sharing());
    figures.extend(rcuref());
    figures.push(remote_frees());
    figures
}

/// Smallest and greatest value.
fn range(values: impl IntoIterator<Item = f64>) -> [f64; 2] {
    let ends = |[low, high]: [f64; 2], value: f64| [low.min(value), high.max(value)];
    values.into_iter().fold([f64::INFINITY, f64::NEG_INFINITY], ends)
}

fn run(costs: Costs, layout: &Layout, program: &Program, cpus: usize) -> Totals {
    Machine::new(costs, layout, vec![program.clone(); cpus]).run(RUN_NS, SEED)
}

/// Linux 3.18: 144 streams of 64-byte packets to 48 hardware threads. The senders offer 9 million
/// packets per second.
fn prequeue() -> Vec<Figure> {
    const CPUS: usize = 48;
    const OFFERED: f64 = 9e6;
    /// 35 % of 48 CPUs for 9 million packets.
    const WORK_NS: f64 = 0.35 * CPUS as f64 / OFFERED * 1e9;
    let mut layout = Layout::new();
    let count = layout.line("count of the route entry");
    let arrival = Step::Arrival(CPUS as f64 * 1e9 / OFFERED);
    let half = |program: Program| program.think(WORK_NS / 2.0);
    let before = half(half(Program::new().step(arrival)).rmw(count)).rmw(count);
    let after = half(half(Program::new().step(arrival)));
    let [before, after] =
        [before, after].map(|program| run(Costs::PUBLISHED, &layout, &program, CPUS));
    let figure = |what, unit, published, model, is_input| Figure {
        what,
        unit,
        published: [published; 2],
        model: [model; 2],
        is_input,
    };
    let rate = |totals: &Totals| totals.rounds_per_second() / 1e6;
    let load = |totals: &Totals| totals.load() * 100.0;
    vec![
        figure("prequeue, two counts per packet: rate", "Mpps", 6.0, rate(&before), true),
        figure("prequeue, two counts per packet: CPU", "%", 95.0, load(&before), false),
        figure("prequeue without counts: rate", "Mpps", 9.0, rate(&after), false),
        figure("prequeue without counts: CPU", "%", 35.0, load(&after), true),
    ]
}

/// A packet of the sender of a route entry with a count: get, reads of the entry's fields, put.
/// With `is_packed` the fields share the line of the count.
fn counted(layout: &mut Layout, work_ns: f64, reads: u32, is_packed: bool) -> Program {
    let count = layout.line("count");
    let fields = if is_packed { count } else { layout.line("fields") };
    // A third of the work before the get, the rest between the reads and the put.
    let mut program =
        Program::new().think(work_ns / 3.0).step(Step::CompareAndSwap(count));
    let part = work_ns * 2.0 / 3.0 / f64::from(reads + 1);
    for _ in 0..reads {
        program = program.think(part).read(fields);
    }
    program.think(part).rmw(count)
}

/// Ratio of the packet rates of a separate line for the count and of a shared one.
fn layout_gain(cpus: usize, work_ns: f64, reads: u32) -> f64 {
    let costs = Costs::PUBLISHED.sockets_of(56);
    let rate = |is_packed| {
        let mut layout = Layout::new();
        let program = counted(&mut layout, work_ns, reads, is_packed);
        run(costs, &layout, &program, cpus).rounds_per_second()
    };
    rate(false) / rate(true)
}

/// Linux 6.4, first part: the count on a line apart from the fields. memcached over loopback, on
/// processors and numbers of CPUs that were not published.
fn false_sharing() -> Figure {
    let gains = [16, 32, 56, 112].into_iter().flat_map(|cpus| {
        [2, 3, 5].map(|reads| (layout_gain(cpus, LOOPBACK_NS, reads) - 1.0) * 100.0)
    });
    Figure {
        what: "count apart from the fields, 16 to 112 CPUs, 2 to 5 reads: gain",
        unit: "%",
        published: [20.0, 120.0],
        model: range(gains),
        is_input: false,
    }
}

/// Work of a packet over loopback with its part of a request of memcached.
const LOOPBACK_NS: f64 = 5000.0;

/// Linux 6.4, second part: `rcuref` instead of a conditional increment, in a loop of get and put.
fn rcuref() -> Vec<Figure> {
    let totals = |cpus, is_conditional| {
        let mut layout = Layout::new();
        let count = layout.line("count");
        let get = if is_conditional {
            Program::new().step(Step::CompareAndSwap(count))
        } else {
            Program::new().rmw(count)
        };
        let program = get.think(5.0).rmw(count).think(5.0);
        run(Costs::PUBLISHED.sockets_of(56), &layout, &program, cpus)
    };
    let gains = [8, 16, 32, 56, 112].map(|cpus| {
        totals(cpus, false).rounds_per_second() / totals(cpus, true).rounds_per_second()
    });
    vec![
        Figure {
            what: "conditional increment on 112 CPUs: repetitions",
            unit: "",
            published: [8.0, 8.0],
            model: [totals(112, true).retries(); 2],
            is_input: true,
        },
        Figure {
            what: "rcuref instead of a conditional increment, 8 to 112 CPUs: gain",
            unit: "times",
            published: [2.0, 8.0],
            model: range(gains),
            is_input: false,
        },
    ]
}

/// Linux 5.2: caches of a packet in each socket, on 112 hardware threads of two nodes. Before, each
/// request frees two packets of another CPU: a CPU collects a batch and moves it under the lock of
/// a node's slabs, and the allocating CPUs take batches under the same lock.
fn remote_frees() -> Figure {
    const CPUS: usize = 112;
    const REQUEST_NS: f64 = 20_000.0;
    /// Batches of the two kinds of objects: descriptors, and pairs of descriptors.
    const BATCHES: [f64; 2] = [60.0, 27.0];
    let costs = Costs::PUBLISHED.sockets_of(56);
    let rate = |object_ns: Option<f64>| {
        let mut layout = Layout::new();
        // Two lines for the locks of two nodes.
        let locks = [layout.line("first node"), layout.line("second node")];
        let programs = (0..CPUS).map(|cpu| {
            let mut program = Program::new();
            // One repetition is 60 requests: the batches of both kinds, for frees and allocations.
            for _ in 0..2 {
                for batch in BATCHES {
                    for _ in 0..(BATCHES[0] / batch).round() as u32 {
                        let part = BATCHES[0] / (2.0 * (1.0 + (BATCHES[0] / BATCHES[1]).round()));
                        program = program.think(REQUEST_NS * part);
                        if let Some(object_ns) = object_ns {
                            let lock = locks[cpu / 56];
                            program = program.step(Step::Critical(lock, batch * object_ns));
                        }
                    }
                }
            }
            program
        });
        let programs = programs.collect();
        Machine::new(costs, &layout, programs).run(20.0 * RUN_NS, SEED).rounds_per_second()
    };
    // An object is touched once under the lock: a hit in a shared cache, or a transfer.
    let gains = [20.0, 50.0, 77.0].map(|object_ns| (rate(None) / rate(Some(object_ns)) - 1.0) * 100.0);
    Figure {
        what: "frees and allocations of packets on one CPU, 112 CPUs: gain",
        unit: "%",
        published: [10.0, 10.0],
        model: range(gains),
        is_input: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn print_all() {
        for figure in figures() {
            println!("{figure:?} error {:+.1} %", figure.error() * 100.0);
        }
    }
}
