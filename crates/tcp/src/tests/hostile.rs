//! Segments that no conforming peer sends, in many states of a connection: they cause no panic, and
//! the invariants hold after each of them.

use core::time::Duration;

use super::net::{Impairment, Net, Side};
use crate::{Flags, Rng, SegmentHeader, SeqNum};

/// Returns a number that is usually near `base`.
fn near(rng: &mut Rng, base: SeqNum, window: u32) -> SeqNum {
    match rng.below(6) {
        0 => base,
        1 => base + rng.below(window + 2),
        2 => base - rng.below(3000),
        3 => base + window - rng.below(3),
        4 => base + rng.below(3),
        _ => SeqNum(rng.next_u32()),
    }
}

/// Returns a segment to `to` whose fields are partly random.
fn segment(rng: &mut Rng, net: &mut Net, to: Side) -> SegmentHeader {
    let mut header = net.forge(to);
    let info = net.tcb(to).info();
    let snd_una = net.tcb(to).snd_una;
    header.seq = near(rng, header.seq, info.rcv_wnd);
    header.ack = near(rng, snd_una, info.in_flight);
    if rng.below(3) == 0 {
        header.flags = Flags::from_bits_retain(rng.next_u32().to_be_bytes()[0]);
    }
    if rng.below(20) != 0 {
        header.flags -= Flags::RST;
    }
    if rng.below(3) == 0 {
        header.window = u16::try_from(rng.below(65_536)).unwrap();
    }
    if rng.below(4) == 0 {
        header.options.timestamps =
            [None, Some((rng.next_u32(), rng.next_u32()))][rng.below(2) as usize];
    }
    if rng.below(8) == 0 {
        header.options.mss = Some(u16::try_from(rng.below(65_536)).unwrap());
        header.options.window_scale = Some(u8::try_from(rng.below(15)).unwrap());
    }
    header
}

/// Performs a random application call.
fn act(rng: &mut Rng, net: &mut Net, side: Side) {
    let mut buf = [0; 3000];
    let len = rng.below(3000) as usize;
    let even = rng.below(2) == 0;
    match rng.below(12) {
        0..=3 => drop(net.call(side, |tcb, cx| tcb.send(cx, &[&buf[..len]], even))),
        4..=7 => drop(net.call(side, |tcb, cx| tcb.recv(cx, &mut buf[..len], even))),
        8 => net.call(side, |tcb, _| tcb.set_nodelay(even)),
        9 => net.call(side, |tcb, _| tcb.set_cork(even)),
        10 if len < 200 => net.call(side, |tcb, cx| tcb.shutdown_write(cx)),
        11 if len < 60 => net.call(side, |tcb, cx| tcb.close(cx)),
        _ => {}
    }
}

#[test]
fn arbitrary_segments_in_any_state_keep_the_invariants() {
    for seed in 0..3_000 {
        let mut rng = Rng::new(seed);
        let mut net = Net::new(seed);
        net.host(Side::B).listening = true;
        for side in [Side::A, Side::B] {
            net.host(side).path.gso_bytes_max = [0, 65_536][rng.below(2) as usize];
            net.host(side).options.rcvbuf = [None, Some(5000)][rng.below(2) as usize];
        }
        net.connect(Side::A);
        if rng.below(4) == 0 {
            net.host(Side::B).listening = false;
            net.connect(Side::B);
        }
        net.impairment =
            Impairment { loss: 50, duplicate: 50, reorder: 100, split: rng.below(2) == 0 };
        for _ in 0..150 {
            let side = [Side::A, Side::B][rng.below(2) as usize];
            if net.host(side).tcb.is_some() {
                if rng.below(3) == 0 {
                    act(&mut rng, &mut net, side);
                }
                let header = segment(&mut rng, &mut net, side);
                let payload = [1; 2000];
                let len = [0, 1, 1000, 2000][rng.below(4) as usize];
                net.inject(side, &header, &payload[..len]);
            }
            let pause = [0, 1, 10, 300, 5000][rng.below(5) as usize];
            net.run_for(Duration::from_millis(pause));
        }
        net.finish_clean();
    }
}
