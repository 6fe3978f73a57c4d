//! Delivery rates of flights with known times of sending and arrival.

use core::time::Duration;

use pkt::Instant;

use super::{DeliveryRate, RateSample};
use crate::{
    tcb::acked::{Acked, Rated, Transmission},
    tests::net::{Net, Side},
    wire::seq::SeqNum,
};

const MIN_RTT_US: u32 = 20_000;
const MIN_RTT: Duration = Duration::from_micros(MIN_RTT_US as u64);

fn at(ms: u64) -> Instant {
    Instant::from_millis(10_000 + ms)
}

/// A flight of a thousand bytes per entry, with the snapshots that the send queue would keep.
struct Flight {
    rate: DeliveryRate,
    sent: std::vec::Vec<Rated>,
}

impl Flight {
    fn new() -> Self {
        Self { rate: DeliveryRate::default(), sent: std::vec::Vec::new() }
    }

    fn send(&mut self, ms: u64) {
        let in_flight = u32::try_from(self.sent.len() * 1000 + 1000).unwrap();
        let snapshot = self.rate.on_transmit(at(ms), self.sent.is_empty(), in_flight, 0);
        let end_seq = self.sent.last().map_or(SeqNum(0), |rated| rated.transmission.end_seq) + 1000;
        self.sent.push(Rated {
            transmission: Transmission { sent_at: at(ms), end_seq },
            snapshot,
            app_limited: self.rate.is_app_limited(),
            retransmission: false,
        });
    }

    /// Delivers the oldest `count` entries together.
    fn deliver(&mut self, ms: u64, count: usize) -> RateSample {
        let mut acked = Acked::new(at(ms), Some(MIN_RTT));
        acked.delivered = u32::try_from(count * 1000).unwrap();
        acked.rated = self.sent.drain(..count).next_back();
        self.rate.on_ack(at(ms), &acked, 0, Some(MIN_RTT_US))
    }
}

#[test]
fn a_paced_flight_shows_its_sending_rate() {
    let mut flight = Flight::new();
    for ms in 0..60 {
        flight.send(ms);
        if ms >= 20 {
            let sample = flight.deliver(ms, 1);
            if ms > 40 {
                // A thousand bytes per millisecond, for any interval of the sample.
                assert_eq!(sample.rate(), Some(1_000_000), "at {ms}");
            }
        }
    }
    assert_eq!(flight.rate.best(), Some((1_000_000, false)));
    assert_eq!(flight.rate.delivered(), 40_000);
}

#[test]
fn compressed_acks_show_no_more_than_the_sending_rate() {
    let mut flight = Flight::new();
    for ms in 0..20 {
        flight.send(ms);
    }
    flight.deliver(20, 1);
    // The other nineteen arrive at once: the send interval is the longer one.
    let sample = flight.deliver(40, 19);
    assert!(sample.rate().unwrap() <= 1_000_000, "the rate is too high: {sample:?}");
}

#[test]
fn a_burst_shows_no_more_than_the_rate_of_arrival() {
    let mut flight = Flight::new();
    for _ in 0..10 {
        flight.send(0);
    }
    let mut last = RateSample::default();
    for ms in 0..10 {
        last = flight.deliver(20 + 2 * ms, 1);
    }
    // Ten thousand bytes in 38 ms from the first transmission.
    assert_eq!(last.rate(), Some(10_000 * 1000 / 38));
}

#[test]
fn an_interval_below_the_minimum_round_trip_time_gives_no_rate() {
    let mut flight = Flight::new();
    flight.send(0);
    let sample = flight.deliver(10, 1);
    assert_eq!((sample.rate(), sample.newly_acked), (None, 1000));
}

#[test]
fn application_limited_samples_are_marked_until_their_flight_is_delivered() {
    let mut flight = Flight::new();
    flight.send(0);
    flight.rate.mark_app_limited(1000);
    flight.send(1);
    flight.send(2);
    assert!(
        !flight.deliver(20, 1).is_app_limited,
        "the first packet, sent before the application limit, counts as limited"
    );
    assert!(flight.deliver(21, 1).is_app_limited);
    flight.send(22);
    // More bytes were delivered than were in flight at the mark, so the mark is cleared.
    assert!(!flight.rate.is_app_limited());
    assert!(flight.deliver(23, 1).is_app_limited);
    assert!(!flight.deliver(43, 1).is_app_limited);
}

#[test]
fn a_slow_application_limited_sample_does_not_replace_a_better_one() {
    let mut flight = Flight::new();
    for _ in 0..10 {
        flight.send(0);
    }
    flight.deliver(20, 10);
    let best = flight.rate.best();
    flight.rate.mark_app_limited(0);
    flight.send(100);
    let sample = flight.deliver(120, 1);
    assert!(sample.is_app_limited);
    assert_eq!(flight.rate.best(), best);
}

#[test]
fn a_bulk_transfer_reports_its_rate_and_a_short_one_its_application_limit() {
    let mut net = Net::established(1);
    net.send(Side::A, b"ping");
    net.run_for(Duration::from_secs(1));
    let info = net.tcb(Side::A).info();
    assert!(info.delivery_rate_app_limited);
    assert_eq!(info.bytes_delivered, 4);
    for _ in 0..8 {
        let _ = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&[7; 100_000][..]], false));
        net.run_for(Duration::from_millis(40));
        net.recv(Side::B);
    }
    let info = net.tcb(Side::A).info();
    // At least a window of ten segments per round-trip time of 20 ms.
    assert!(
        info.delivery_rate.is_some_and(|rate| rate >= 10 * 1448 * 50),
        "the rate is too low: {info:?}"
    );
    net.finish_clean();
}
