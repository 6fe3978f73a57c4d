//! Goodput across wires that lose and reorder frames, in virtual time: the effect of loss recovery
//! and congestion control.
//!
//! The asserted floors are well below the measured figures: they catch a defect of the mechanism,
//! not a change of some percent. `cargo test -p quietline-sim --test goodput -- --nocapture` prints
//! the figures.

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
    };
    use stack::{
        base::counters::Snapshot,
        device::{Impairment, WireConfig},
    };

    /// 100 Mbit/s, 20 ms round trip, segments of 1,500 bytes, a bottleneck queue of one
    /// bandwidth-delay product.
    fn path(forward: Impairment) -> WireConfig {
        let delay = Duration::from_millis(10);
        let rate_bps = Some(100_000_000);
        WireConfig {
            tso: false,
            forward: Impairment { rate_bps, delay, queue_packets: 330, ..forward },
            backward: Impairment { rate_bps, delay, ..Impairment::default() },
            ..WireConfig::default()
        }
    }

    /// A completed transfer.
    struct Transfer {
        /// Bits per second of payload from the first byte read to the end of the stream, without
        /// the handshake.
        goodput: f64,
        /// The sender's counters.
        counters: Snapshot,
    }

    fn transfer(seed: u64, wire: &WireConfig, length: u64) -> Transfer {
        let mut world = World::pair(seed, &WireConfig { seed, ..wire.clone() }).expect("a wire");
        let listener = listen(&mut world, 80);
        let (client, server) = connect(&mut world, &listener);
        let mut sender = Sender::new(0, Arc::clone(&client), Pattern(seed), length);
        let mut receiver = Receiver::new(1, Arc::clone(&server), Pattern(seed), 1 << 20);
        let mut start = None;
        let done = world.run(Duration::from_secs(3600), |world| {
            let sent = sender.step(world);
            let ended = receiver.step(world);
            if receiver.received() > 0 {
                start.get_or_insert_with(|| world.elapsed());
            }
            ended && sent
        });
        done.unwrap_or_else(|stalled| panic!("seed {seed}: {stalled:?}"));
        let took = world.elapsed() - start.expect("bytes were read");
        let hosts = world.hosts.clone();
        client.close(&hosts[0], &mut world.cx);
        server.close(&hosts[1], &mut world.cx);
        listener.close(&hosts[1], &mut world.cx);
        #[expect(clippy::cast_precision_loss, reason = "a stream is far below 2^53 bits")]
        let bits = (length * 8) as f64;
        Transfer { goodput: bits / took.as_secs_f64(), counters: hosts[0].counters() }
    }

    /// Median over seeds, in Mbit/s.
    fn median(name: &str, forward: Impairment, length: u64) -> f64 {
        let wire = path(forward);
        let mut figures: Vec<f64> =
            (1..=9).map(|seed| transfer(seed, &wire, length).goodput / 1e6).collect();
        figures.sort_by(f64::total_cmp);
        println!(
            "{name}: median {:.2} Mbit/s, from {:.2} to {:.2}",
            figures[4], figures[0], figures[8]
        );
        figures[4]
    }

    #[test]
    fn a_clean_path_is_filled() {
        assert!(median("clean", Impairment::default(), 20_000_000) > 70.0);
    }

    #[test]
    fn one_percent_loss_keeps_a_minimum_goodput() {
        let loss = Impairment { loss: 0.01, ..Impairment::default() };
        assert!(median("1% loss", loss, 4_000_000) > 3.0);
    }

    #[test]
    fn loss_with_reordering_keeps_a_minimum_goodput() {
        let loss = Impairment {
            loss: 0.005,
            reorder: 0.02,
            reorder_delay: Duration::from_millis(4),
            ..Impairment::default()
        };
        assert!(median("0.5% loss, 2% reordered by 4 ms", loss, 4_000_000) > 3.0);
    }

    #[test]
    fn reordering_alone_keeps_a_minimum_goodput() {
        let reorder = Impairment {
            reorder: 0.02,
            reorder_delay: Duration::from_millis(4),
            ..Impairment::default()
        };
        assert!(median("2% reordered by 4 ms", reorder, 4_000_000) > 6.0);
    }

    /// A wire without delay that loses 1 % of the frames and delays 1 % for a hundred round trips,
    /// in both directions: nearly every congestion reduction is undone. Timeouts occur only for a
    /// lost retransmission without a later segment.
    ///
    /// Regression: undoing a reduction discarded the arrival times that RACK had recorded, so that
    /// a hole below segments that had all arrived was repaired by a timeout only.
    #[test]
    fn rack_finds_holes_after_an_undone_reduction() {
        let impairment = Impairment {
            loss: 0.01,
            reorder: 0.01,
            reorder_delay: Duration::from_micros(100),
            ..Impairment::default()
        };
        let wire = WireConfig {
            tso: false,
            forward: impairment,
            backward: impairment,
            ..WireConfig::default()
        };
        let (mut timeouts, mut retransmitted) = (0, 0);
        for seed in 1..=6 {
            let counters = transfer(seed, &wire, 20_000_000).counters;
            timeouts += counters.get("TcpExtTCPTimeouts").unwrap_or(0);
            retransmitted += counters.get("TcpRetransSegs").unwrap_or(0);
        }
        println!("no delay: {timeouts} timeouts for {retransmitted} retransmissions");
        assert!(retransmitted > 500 && timeouts * 50 < retransmitted);
    }
}
