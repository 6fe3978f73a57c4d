//! Loss, reordering and duplication in random mixtures: the bytes read equal the bytes written.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Algorithm, RecvError, Rng, SendError, State};

/// One direction of a transfer. The position of a byte in the stream determines its value.
struct Flow {
    from: Side,
    total: u64,
    written: u64,
    read: u64,
    ended: bool,
}

/// Returns the value of the byte at `position` of the stream that `from` sends.
fn byte_at(from: Side, position: u64) -> u8 {
    let mixed = (position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_be_bytes()[0] ^ if from == Side::A { 0 } else { 0x55 }
}

impl Flow {
    fn new(from: Side, total: u64) -> Self {
        Self { from, total, written: 0, read: 0, ended: false }
    }

    /// Writes until the buffer is full, and queues the FIN after the last byte.
    fn write(&mut self, net: &mut Net, rng: &mut Rng) {
        let mut buf = [0; 70_000];
        while self.written < self.total {
            let most = if rng.below(3) == 0 { 200 } else { buf.len() as u64 };
            let len = most.min(self.total - self.written);
            let len = 1 + rng.below(u32::try_from(len).unwrap()) as usize;
            for (position, byte) in (self.written..).zip(&mut buf[..len]) {
                *byte = byte_at(self.from, position);
            }
            match net.call(self.from, |tcb, cx| tcb.send(cx, &[&buf[..len]], false)) {
                Ok(n) => self.written += n as u64,
                Err(SendError::WouldBlock | SendError::NoMemory) => return,
                Err(error) => panic!("send: {error:?}"),
            }
            if self.written == self.total {
                net.call(self.from, |tcb, cx| tcb.shutdown_write(cx));
            }
        }
    }

    /// Reads the available data, sometimes in small pieces, sometimes not at all.
    fn read(&mut self, net: &mut Net, rng: &mut Rng) {
        if rng.below(4) == 0 {
            return;
        }
        let mut buf = [0; 70_000];
        let most = if rng.below(3) == 0 { 100 } else { buf.len() };
        loop {
            let to = self.from.other();
            match net.call(to, |tcb, cx| tcb.recv(cx, &mut buf[..most], false)) {
                Ok(0) => {
                    assert_eq!(self.read, self.total, "the stream did not end after its last byte");
                    self.ended = true;
                    return;
                }
                Ok(n) => {
                    for (position, &byte) in (self.read..).zip(&buf[..n]) {
                        assert_eq!(byte, byte_at(self.from, position), "byte {position}");
                    }
                    self.read += n as u64;
                }
                Err(RecvError::WouldBlock) => return,
                Err(error) => panic!("recv: {error:?}"),
            }
        }
    }
}

/// Transfers these numbers of bytes in both directions, until both ends are closed. Calls `disturb`
/// between the steps.
pub(super) fn transfer(
    net: &mut Net,
    seed: u64,
    (a_to_b, b_to_a): (u64, u64),
    mut disturb: impl FnMut(&mut Net),
) {
    let start = net.now;
    let mut rng = Rng::new(seed ^ 0xabcd);
    let mut flows = [Flow::new(Side::A, a_to_b), Flow::new(Side::B, b_to_a)];
    for flow in &mut flows {
        if flow.total == 0 {
            net.call(flow.from, |tcb, cx| tcb.shutdown_write(cx));
        }
    }
    let mut steps = 0u32;
    while !flows.iter().all(|flow| flow.ended) {
        for flow in &mut flows {
            flow.write(net, &mut rng);
        }
        for flow in &mut flows {
            flow.read(net, &mut rng);
        }
        disturb(net);
        // The application reads periodically even if the network is idle.
        let soon = net.now + Duration::from_millis(5);
        if net.next_event().is_some_and(|at| at <= soon) {
            net.step();
        } else {
            net.now = soon;
        }
        steps += 1;
        assert!(steps < 1_000_000, "seed {seed}: no progress");
        assert!(net.now - start < Duration::from_secs(3600), "seed {seed}: too slow");
    }
    net.run_until(|net| net.state(Side::A) == State::Close && net.state(Side::B) == State::Close);
}

/// Transfers data in both directions between hosts with random settings.
fn run(seed: u64, impairment: Impairment, gso_bytes_max: u32) {
    let mut rng = Rng::new(seed);
    let mut net = Net::new(seed);
    for side in [Side::A, Side::B] {
        let host = net.host(side);
        host.path.gso_bytes_max = gso_bytes_max;
        host.config.tcp_timestamps = rng.below(4) != 0;
        host.config.tcp_window_scaling = rng.below(4) != 0;
        host.options.nodelay = rng.below(2) == 0;
        host.options.congestion = Some(Algorithm::ALL[rng.below(4) as usize]);
        host.config.tcp_ecn = u8::try_from(rng.below(3)).unwrap();
        if rng.below(8) == 0 {
            host.options.max_pacing_rate = Some(100_000 + u64::from(rng.below(1 << 20)));
        }
        if rng.below(4) == 0 {
            host.options.rcvbuf = Some(4096 + rng.below(40_000));
        }
    }
    net.impairment = impairment;
    net.ecn.mark = [0, 20, 300][rng.below(3) as usize];
    net.ecn.echo = rng.below(20) == 0;
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    net.run_until(|net| {
        net.state(Side::A) == State::Established && net.state(Side::B) == State::Established
    });
    let (a, b) = (u64::from(rng.below(300_000)), u64::from(rng.below(100_000)));
    transfer(&mut net, seed, (a, b), |_| {});
    net.finish_clean();
}

#[test]
fn a_clean_network_delivers_all_data() {
    for seed in 0..40 {
        run(seed, Impairment::default(), 0);
        run(seed, Impairment::default(), 65_536);
    }
}

#[test]
fn all_data_arrives_despite_loss_reordering_and_duplication() {
    for seed in 0..800 {
        let mut rng = Rng::new(seed ^ 0x1234);
        let impairment = Impairment {
            loss: rng.below(100),
            duplicate: rng.below(60),
            reorder: rng.below(200),
            split: rng.below(2) == 0,
        };
        let gso = [0, 16_000, 65_536][rng.below(3) as usize];
        run(seed, impairment, gso);
    }
}
