//! What a shared dst entry costs two threads: each layout of the entry with each way to count.
//!
//! `cargo bench -p quietline-sync --bench dst_entry [-- --smoke]`. A packet is a get, reads of the entry that the next step waits
//! for, and a put; without the dependent reads out-of-order execution hides the false sharing. The arms run in turn, 20 times each;
//! printed are medians and quartiles in nanoseconds per packet and thread, with one thread and with two.

use std::{hint::black_box, sync::Barrier, thread, time::Instant};

use sync::{
    Counting, Handle, Ref, Section,
    counted::{Entry, Layout, Parts},
    epoch::Domain,
};

/// Repetitions of each arm.
const RUNS: usize = 20;

/// Packets of one run and thread.
const PACKETS: u32 = 500_000;

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
    /// `None`: no packet counts.
    counting: Option<Counting>,
}

const fn arm(name: &'static str, layout: Layout, counting: Option<Counting>) -> Arm {
    Arm { name, layout, counting }
}

const ARMS: [Arm; 9] = [
    arm("packed cas_inc_not_zero", Layout::Packed, Some(Counting::CasIncNotZero)),
    arm("padded cas_inc_not_zero", Layout::Padded, Some(Counting::CasIncNotZero)),
    arm("filled cas_inc_not_zero", Layout::Filled, Some(Counting::CasIncNotZero)),
    arm("packed rcuref", Layout::Packed, Some(Counting::Rcuref)),
    arm("padded rcuref", Layout::Padded, Some(Counting::Rcuref)),
    arm("filled rcuref", Layout::Filled, Some(Counting::Rcuref)),
    arm("packed noref", Layout::Packed, None),
    arm("padded noref", Layout::Padded, None),
    arm("filled noref", Layout::Filled, None),
];

/// One packet; answers what the next one waits for.
fn packet(dst: Handle<'_, Dst>, counts: bool, section: &Section<'_>, seen: u32) -> u32 {
    let held = if counts { dst.try_get() } else { None };
    // Generation, then type, then MTU: each index comes from the read before, with work in between.
    let mut index = work(seen) as usize % 4;
    for _ in 0..2 {
        index = work(dst.tail()[index]) as usize % 4;
    }
    let mtu = dst.head()[index];
    if let Some(held) = held {
        held.release(section);
    }
    mtu
}

/// About 25 ns of a packet's other work, as a chain that begins with `seed`.
fn work(seed: u32) -> u32 {
    (0..25).fold(seed, |value, step| black_box(value.wrapping_mul(0x9e37_79b9) ^ step))
}

/// Nanoseconds per packet.
fn run(arm: &Arm, threads: usize, packets: u32) -> f64 {
    let domain = Domain::new();
    let entry = Entry { head: [1; 16], tail: [1, 2, 3, 0], cold: [0; 2], stats: 0 };
    let dst = Ref::<Dst>::new(&domain, arm.layout, arm.counting.unwrap_or_default(), entry);
    let (dst, domain, barrier) = (&dst, &domain, &Barrier::new(threads));
    let each = thread::scope(|scope| {
        let work = move || {
            let reader = domain.reader();
            reader.stay_online();
            let section = reader.pin();
            barrier.wait();
            let start = Instant::now();
            let mut seen = 0;
            for _ in 0..packets {
                seen = packet(dst.handle(), arm.counting.is_some(), &section, black_box(seen));
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
    for _ in 0..runs {
        for (arm, result) in ARMS.iter().zip(&mut results) {
            for threads in [1, 2] {
                result[threads - 1].push(run(arm, threads, packets));
            }
        }
    }
    println!("{:<26}{:>10}{:>12}{:>16}", "ns per packet", "1 thread", "2 threads", "quartiles");
    for (arm, [one, two]) in ARMS.iter().zip(results) {
        let ([_, one, _], [low, two, high]) = (quartiles(one), quartiles(two));
        println!("{:<26}{one:>10.1}{two:>12.1}{low:>9.1} – {high:.1}", arm.name);
    }
}
