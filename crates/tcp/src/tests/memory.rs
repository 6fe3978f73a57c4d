//! Temporary exhaustion of packet memory: transfers pause, no data is lost, and no connection ends.

use std::vec::Vec;

use pkt::{DomainConfig, Packet};

use super::net::{Impairment, Net, Side};
use super::stress::transfer;
use crate::{Counter, Rng, State};

/// Twelve slabs of descriptors (64 KB each) and six of pages (256 KB each): a test can allocate all
/// of them.
const LITTLE: DomainConfig = DomainConfig { max_bytes: 12 * 64 * 1024 + 6 * 256 * 1024 };

#[test]
fn transfers_complete_despite_memory_exhaustion() {
    let mut failures = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut net = Net::with_memory(seed, LITTLE);
        for side in [Side::A, Side::B] {
            net.host(side).path.gso_bytes_max = [0, 65_536][rng.below(2) as usize];
            net.host(side).options.sndbuf = Some(40_000);
        }
        net.host(Side::B).listening = true;
        net.connect(Side::A);
        net.run_until(|net| {
            net.state(Side::A) == State::Established && net.state(Side::B) == State::Established
        });
        net.impairment = Impairment { loss: rng.below(30), reorder: 50, ..Impairment::default() };
        let amounts = (1_000_000, u64::from(rng.below(2)) * 200_000);
        let mut taken: Vec<Packet> = Vec::new();
        transfer(&mut net, seed, amounts, |net| {
            if rng.below(50) != 0 {
                return;
            }
            if taken.is_empty() {
                let side = [Side::A, Side::B][rng.below(2) as usize];
                taken.extend(core::iter::from_fn(|| net.host(side).pool.alloc()));
            } else {
                taken.clear();
            }
        });
        drop(taken);
        failures += net.count(Side::A, Counter::TcpExtTCPRetransFail);
        net.finish_clean();
    }
    assert!(failures > 0, "memory never ran out");
}
