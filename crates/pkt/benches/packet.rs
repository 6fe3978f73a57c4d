//! Cost of packet memory in nanoseconds per operation, printed. `cargo bench -p quietline-pkt`.
//!
//! Each row is the best of several runs, so that a busy machine affects the spread of repetitions
//! and not the number. With `--test` every row runs once, for continuous integration.

use std::hint::black_box;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use pkt::checksum::{Kernel, Sum, copy_and_sum};
use pkt::{Domain, DomainConfig, Packet, Pool};

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--smoke" || arg == "--test");
    let bench = Bench { runs: if smoke { 1 } else { 15 } };
    let domain = Domain::new(DomainConfig::default());
    let mut pool = domain.pool();
    local(&bench, &mut pool);
    payload(&bench, &mut pool);
    remote(&bench, &domain);
    checksums(&bench);
    drop(pool);
    assert_eq!((domain.balance(), domain.stats().pages_live), (0, 0), "leak");
}

struct Bench {
    runs: usize,
}

impl Bench {
    /// Prints the best time of `operation`, called `count` times per run.
    fn row(&self, name: &str, count: u32, mut operation: impl FnMut()) -> f64 {
        let run = || {
            let start = Instant::now();
            for _ in 0..count {
                operation();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(count)
        };
        let best = std::iter::repeat_with(run).take(self.runs).fold(f64::MAX, f64::min);
        println!("{name:<44} {best:>10.2} ns");
        best
    }

    fn row_bytes(&self, name: &str, count: u32, bytes: u32, operation: impl FnMut()) {
        let nanos = self.row(name, count, operation);
        println!("{:<44} {:>10.1} GB/s", "", f64::from(bytes) / nanos);
    }
}

fn local(bench: &Bench, pool: &mut Pool) {
    println!("-- on one core");
    bench.row("alloc, free", 200_000, || {
        let packet = pool.alloc();
        pool.free(black_box(packet).expect("memory"));
    });
    bench.row("alloc, drop (return list)", 100_000, || drop(black_box(pool.alloc())));
    let mut held: Vec<Packet> = Vec::with_capacity(64);
    bench.row("alloc 64, free 64: per packet and pair", 2_000, || {
        held.extend((0..64).filter_map(|_| pool.alloc()));
        held.drain(..).for_each(|packet| pool.free(packet));
    });
    bench.row("alloc_fclone, clone, free both", 100_000, || {
        let packet = pool.alloc_fclone().expect("memory");
        let clone = packet.clone_in(pool).expect("memory");
        pool.free(black_box(clone));
        pool.free(black_box(packet));
    });
    for (name, len) in [("head only", 100), ("one frag", 1460), ("64 KiB", 65_536)] {
        let packet = pool.alloc_from(&vec![1; len]).expect("memory");
        bench.row(&format!("clone, free: {name}"), 100_000, || {
            let clone = packet.clone_in(pool).expect("memory");
            pool.free(black_box(clone));
        });
        // Another page is being carved now, so the count of the packet's page is atomic.
        let other = pool.alloc_from(&vec![1; 40_000]).expect("memory");
        bench.row(&format!("clone, free: {name}, retired page"), 100_000, || {
            let clone = packet.clone_in(pool).expect("memory");
            pool.free(black_box(clone));
        });
        pool.free(other);
        pool.free(packet);
    }
    bench.row("rx_slot, finish 60, free", 100_000, || {
        let slot = pool.rx_slot(1514).expect("memory");
        let packet = slot.finish(pool, 60);
        pool.free(black_box(packet));
    });
    bench.row("rx_slot, finish 1514, 66 linear, free", 100_000, || {
        let slot = pool.rx_slot(1514).expect("memory");
        let mut packet = slot.finish(pool, 1514);
        black_box(packet.require_linear(66));
        pool.free(black_box(packet));
    });
}

fn payload(bench: &Bench, pool: &mut Pool) {
    println!("-- payload");
    for len in [100_u32, 1460, 65_536] {
        let bytes = vec![7; len as usize];
        let count = 20_000_000 / (len + 2_000);
        bench.row_bytes(&format!("alloc, append {len}, free"), count, len, || {
            let mut packet = pool.alloc_fclone().expect("memory");
            black_box(packet.append(pool, black_box(&bytes)));
            pool.free(packet);
        });
        bench.row_bytes(&format!("alloc, append_and_sum {len}, free"), count, len, || {
            let mut packet = pool.alloc_fclone().expect("memory");
            black_box(packet.append_and_sum(pool, black_box(&bytes)));
            pool.free(packet);
        });
        let packet = pool.alloc_from(&bytes).expect("memory");
        let mut to = bytes.clone();
        bench.row_bytes(&format!("copy_to {len}"), count, len, || {
            black_box(packet.copy_to(0, black_box(&mut to)));
        });
        pool.free(packet);
    }
}

/// Two threads, one allocating and one freeing, first in turn and then at the same time.
fn remote(bench: &Bench, domain: &Domain) {
    // A burst that stays in the second-level cache, as between two turns of a core.
    const COUNT: usize = 512;
    println!("-- freed on another core");
    let (send, receive) = mpsc::sync_channel::<Vec<Packet>>(4);
    let (send_time, times) = mpsc::channel();
    let freer = {
        let domain = domain.clone();
        thread::spawn(move || {
            let mut pool = domain.pool();
            for packets in receive {
                let start = Instant::now();
                packets.into_iter().for_each(|packet| pool.free(packet));
                if send_time.send(start.elapsed()).is_err() {
                    break;
                }
            }
        })
    };
    let mut pool = domain.pool();
    let mut samples = [const { Vec::new() }; 3];
    let per_packet = |time: std::time::Duration| time.as_secs_f64() * 1e9 / COUNT as f64;
    let fill = |pool: &mut Pool| {
        let start = Instant::now();
        let packets: Vec<_> = (0..COUNT).map_while(|_| pool.alloc()).collect();
        (per_packet(start.elapsed()), packets)
    };
    for _ in 0..bench.runs * 40 {
        let (alloc, packets) = fill(&mut pool);
        send.send(packets).expect("freer");
        let free = per_packet(times.recv().expect("freer"));
        samples[0].push(alloc);
        samples[1].push(free);
    }
    for _ in 0..bench.runs {
        let start = Instant::now();
        for _ in 0..40 {
            let (_, packets) = fill(&mut pool);
            send.send(packets).expect("freer");
        }
        (0..40).for_each(|_| _ = times.recv());
        samples[2].push(per_packet(start.elapsed()) / 40.0);
    }
    drop(send);
    freer.join().expect("freer");
    // The median, because the best is a round in which both threads happened to share a core.
    let names = [
        "alloc of returned packets, drain included",
        "free of another pool's packets",
        "both at once, per packet",
    ];
    for (name, samples) in names.iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        println!("{name:<44} {:>10.2} ns (median)", samples[samples.len() / 2]);
    }
}

fn checksums(bench: &Bench) {
    println!("-- checksum");
    let bytes = vec![0x5a; 65_536 + 8];
    let mut to = bytes.clone();
    for len in [20_usize, 40, 60, 64, 96, 128, 256, 576, 1460, 65_536] {
        let count = u32::try_from(10_000_000 / (len + 200)).expect("small");
        for kernel in Kernel::available() {
            let name = format!("sum {len} {}", kernel.name());
            let row = || _ = black_box(kernel.sum(black_box(&bytes[2..2 + len])));
            if len > 1000 {
                bench.row_bytes(&name, count, u32::try_from(len).expect("small"), row)
            } else {
                _ = bench.row(&name, count, row)
            }
        }
        bench.row(&format!("sum {len} chosen"), count, || {
            _ = black_box(Sum::of(black_box(&bytes[2..2 + len])))
        });
    }
    for len in [40_usize, 1460, 65_536] {
        let count = u32::try_from(10_000_000 / (len + 200)).expect("small");
        for kernel in Kernel::available() {
            bench.row_bytes(
                &format!("copy_and_sum {len} {}", kernel.name()),
                count,
                u32::try_from(len).expect("small"),
                || {
                    _ = black_box(
                        kernel
                            .copy_and_sum(black_box(&mut to[..len]), black_box(&bytes[2..2 + len])),
                    );
                },
            );
        }
        bench.row(&format!("copy_and_sum {len} chosen"), count, || {
            _ = black_box(copy_and_sum(black_box(&mut to[..len]), black_box(&bytes[2..2 + len])));
        });
        bench.row(&format!("copy {len}"), count, || {
            black_box(&mut to[..len]).copy_from_slice(black_box(&bytes[2..2 + len]));
        });
    }
}
