//! The queue that a bulk sender keeps in the kernel's `tbf`, and the latency of concurrent 1-byte
//! requests: quietline on `af_packet` with TCP Small Queues and without, and the kernel.
//!
//! By hand, as root: `cargo build --release -p netns-tests && target/release/queue [repeats
//! [seconds]]`. The senders take turns, three seconds each by default; a row has the medians over
//! the repeats.
//!
//! Not here: a verdict (`tests/queue.rs`).

use std::time::Duration;

use anyhow::{Context, Result};
use netns_tests::bottleneck::{Seen, Sender, limit, share};
use netns_tests::{Namespace, Veth};

const RATES: [&str; 2] = ["100mbit", "1gbit"];
const REPEATS: u64 = 3;
const SECONDS: u64 = 3;

/// Without a limit the queue is the result of slow start, plus the growth of CUBIC over seconds and
/// minutes.
const SENDERS: [(&str, Sender<'_>); 7] = [
    ("quietline, `static131072_ge`", Sender::Quietline("static131072_ge", "both")),
    ("quietline, `v619` (default)", Sender::Quietline("v619", "both")),
    ("quietline, `v619`, `hystart_detect=delay`", Sender::Quietline("v619", "delay")),
    ("quietline, `off`", Sender::Quietline("off", "both")),
    ("quietline, `off`, `hystart_detect=delay`", Sender::Quietline("off", "delay")),
    ("kernel, `tcp_limit_output_bytes` 131072", Sender::Kernel(Some(131_072))),
    ("kernel, 4 MB (its default)", Sender::Kernel(None)),
];

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mut number =
        |what, default| words.next().map_or(Ok(default), |text| text.parse::<u64>().context(what));
    let repeats = number("repeats", REPEATS)?;
    let time = Duration::from_secs(number("seconds", SECONDS)?);
    let kernel = Namespace::create()?;
    let veth = Veth::open(&kernel)?;
    println!("| link | sender | Mbit/s | queue, median (most) | round trip |");
    println!("|---|---|---|---|---|");
    for rate in RATES {
        limit(&veth, rate)?;
        let mut all: [Vec<Seen>; SENDERS.len()] = Default::default();
        for _ in 0..repeats {
            for (seen, (_, sender)) in all.iter_mut().zip(SENDERS) {
                seen.push(share(&kernel, &veth, sender, time)?);
            }
        }
        for (seen, (name, _)) in all.iter().zip(SENDERS) {
            let most = seen.iter().map(Seen::backlog_max).max().unwrap_or(0);
            println!(
                "| {rate} | {name} | {:.1} | {:.0} kB ({:.0}) | {:.2} ms |",
                median(seen.iter().map(|seen| seen.bits_per_second / 1e6)),
                median(seen.iter().map(|seen| kilobytes(seen.backlog_median()))),
                kilobytes(most),
                median(seen.iter().map(|seen| seen.median().as_secs_f64() * 1e3)),
            );
        }
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a queue fits into memory")]
fn kilobytes(bytes: u64) -> f64 {
    bytes as f64 / 1e3
}

fn median(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = numbers.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
