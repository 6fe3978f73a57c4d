//! Packet memory runs out: everything waits and nothing is lost.

use pkt::DomainConfig;

use super::net::{Impairment, Net, Side};
use super::stress::transfer;
use crate::{Rng, State};

/// Two slabs of descriptors (93 each) and two of pages: each end may get none of one kind.
const LITTLE: DomainConfig = DomainConfig { max_bytes: 2 * 64 * 1024 + 2 * 256 * 1024 };

#[test]
fn transfers_survive_exhaustion() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut net = Net::with_memory(seed, LITTLE);
        for side in [Side::A, Side::B] {
            let host = net.host(side);
            host.path.gso_bytes_max = [0, 65_536][rng.below(2) as usize];
            host.options.sndbuf = Some(2_000_000);
            host.options.rcvbuf = Some(2_000_000);
        }
        net.host(Side::B).listening = true;
        net.connect(Side::A);
        net.run_until(|net| {
            net.state(Side::A) == State::Established && net.state(Side::B) == State::Established
        });
        net.impairment = Impairment { loss: rng.below(30), reorder: 50, ..Impairment::default() };
        transfer(&mut net, seed, 1_000_000, u64::from(rng.below(2)) * 200_000);
        net.finish_clean();
    }
}
