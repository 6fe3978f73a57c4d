//! Cost of a shared dst entry for two threads: each layout of the entry with each method of
//! counting.
//!
//! `cargo bench -p quietline-sync --bench dst_entry [-- --smoke]`. A packet is a get, two reads of
//! the part of the entry that is checked for every packet, with some 50 ns of other work, and a
//! put. **The reads are in the dependency chain**: the field to read depends on the work before,
//! and the work after it depends on the value read. A thread then waits for the line of that field,
//! as in a stack that branches on it, and not for the count, whose result no later instruction
//! needs. Without the chain, out-of-order execution hides a contended count, and false sharing is
//! hardly measurable. The work stays in registers, because a locked instruction delays every later
//! load.
//!
//! The arms run in turn, each round beginning with another one. No other process may run on the two
//! cores meanwhile, or the threads share one core (`chrt -f 5` prevents that for the ten seconds it
//! takes). The output has medians and quartiles in nanoseconds per packet and thread, and for two
//! threads the ratio to *packed* with the same count, round by round.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use sync::{
    Counting, Handle, Owner, Section,
    counted::{Entry, Layout, Parts},
    epoch::Domain,
};

/// Repetitions of each arm.
const RUNS: usize = 40;

/// Packets per run and thread: about 25 ms.
const PACKETS: u32 = 250_000;

struct Dst;

impl Parts for Dst {
    type Head = [u32; 16];
    type Tail = [u32; 4];
    type Cold = [u64; 2];
    type Stats = u64;
}

struct Arm {
    name: &'static str,
    layout: Layout,
    /// Method of counting; `None` takes no reference.
    counting: Option<Counting>,
}

const fn arm(name: &'static str, layout: Layout, counting: Option<Counting>) -> Arm {
    Arm { name, layout, counting }
}

const ARMS: [Arm; 12] = [
    arm("packed cas_inc_not_zero", Layout::Packed, Some(Counting::CasIncNotZero)),
    arm("padded cas_inc_not_zero", Layout::Padded, Some(Counting::CasIncNotZero)),
    arm("filled cas_inc_not_zero", Layout::Filled, Some(Counting::CasIncNotZero)),
    arm("packed rcuref", Layout::Packed, Some(Counting::Rcuref)),
    arm("padded rcuref", Layout::Padded, Some(Counting::Rcuref)),
    arm("filled rcuref", Layout::Filled, Some(Counting::Rcuref)),
    arm("packed sharded", Layout::Packed, Some(Counting::Sharded)),
    arm("padded sharded", Layout::Padded, Some(Counting::Sharded)),
    arm("filled sharded", Layout::Filled, Some(Counting::Sharded)),
    arm("packed noref", Layout::Packed, None),
    arm("padded noref", Layout::Padded, None),
    arm("filled noref", Layout::Filled, None),
];

/// Processes one packet; returns the value that the next one depends on.
#[inline]
fn packet(dst: Handle<'_, Dst>, counts: bool, section: &Section<'_>, seen: u32) -> u32 {
    let held = if counts { dst.try_get() } else { None };
    // The generation is read first, and the kind of the entry half way through.
    let generation = dst.tail()[seen as usize % 4];
    let half = work(seen ^ generation);
    let kind = dst.tail()[half as usize % 4];
    let done = work(half ^ kind);
    if let Some(held) = held {
        held.release(section);
    }
    done
}

/// About 25 ns of a packet's other work: a chain of multiplications in registers, which no compiler
/// shortens.
#[inline]
fn work(seed: u32) -> u32 {
    (0..20).fold(seed, |value, _| (value ^ (value >> 15)).wrapping_mul(0x9e37_79b9))
}

/// Returns nanoseconds per packet.
fn run(arm: &Arm, threads: usize, packets: u32) -> f64 {
    let domain = Domain::new();
    let entry = Entry { head: [1; 16], tail: [1, 2, 3, 0], cold: [0; 2], stats: 0 };
    let dst = Owner::<Dst>::new(&domain, arm.layout, arm.counting.unwrap_or_default(), entry);
    let (dst, domain, barrier) = (&dst, &domain, &Barrier::new(threads));
    let each = thread::scope(|scope| {
        let work = move || {
            let reader = domain.reader();
            reader.stay_online();
            let section = reader.pin();
            barrier.wait();
            let start = Instant::now();
            let mut seen = black_box(0);
            for _ in 0..packets {
                seen = packet(dst.handle(), arm.counting.is_some(), &section, seen);
            }
            black_box(seen);
            start.elapsed().as_nanos() as f64 / f64::from(packets)
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).sum::<f64>()
    });
    each / threads as f64
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--smoke" || arg == "--test");
    let (runs, packets) = if smoke { (1, 100) } else { (RUNS, PACKETS) };
    let mut results = ARMS.map(|_| [const { Vec::new() }; 2]);
    for round in 0..runs {
        for turn in 0..ARMS.len() {
            let index = (round + turn) % ARMS.len();
            for threads in [1, 2] {
                results[index][threads - 1].push(run(&ARMS[index], threads, packets));
            }
        }
    }
    println!(
        "{:<26}{:>10}{:>11}{:>16}{:>19}",
        "ns per packet", "1 thread", "2 threads", "quartiles", "packed / this"
    );
    for (index, arm) in ARMS.iter().enumerate() {
        let [one, two] = &results[index];
        // Every third arm, the first with its method of counting, has the packed layout.
        let packed = &results[index / 3 * 3][1];
        let ratios = packed.iter().zip(two).map(|(packed, own)| packed / own).collect();
        let ([_, one, _], [low, two, high]) = (quartiles(one.clone()), quartiles(two.clone()));
        let [worse, ratio, better] = quartiles(ratios);
        println!(
            "{:<26}{one:>10.1}{two:>11.1}{low:>8.1} – {high:<6.1}{ratio:>8.2} ({worse:.2} – {better:.2})",
            arm.name
        );
    }
}
