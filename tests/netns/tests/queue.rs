//! TCP Small Queues on a real queue: the bytes that a bulk sender keeps in the kernel's `tbf`, by
//! the kernel's count, and the effect on a concurrent flow.
//!
//! Not here: figures. `bin/queue` measures them, by hand.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::{Result, ensure};
    use netns_tests::bottleneck::{Seen, Sender, limit, share};
    use netns_tests::{Lab, Veth};

    const TIME: Duration = Duration::from_secs(2);

    /// `tcp_limit_output_bytes` of the first TCP Small Queues, which counts packet memory.
    const LIMIT_BYTES: u64 = 131_072;

    /// Payload of a segment at MTU 1500 with timestamps, and the headers of each: Ethernet, IPv4
    /// and TCP.
    const SEGMENT_BYTES: u64 = 1448;
    const HEADER_BYTES: u64 = 14 + 20 + 32;

    /// Payload of the largest packet: whole segments in half of the limit.
    const PACKET_BYTES: u64 = LIMIT_BYTES / 2 / SEGMENT_BYTES * SEGMENT_BYTES;

    /// Other packets in the queue: responses and acknowledgments of the other flow, ARP, and a tail
    /// loss probe, which is a segment.
    const OTHER_BYTES: u64 = 4_096;

    /// Upper bound of the queue as `tc` counts it: the limit and the packet that exceeds it. The
    /// limit counts packet memory: for each packet its payload and a descriptor of some hundred
    /// bytes, hence less than the limit when the last packet is added. `tc` counts transmitted
    /// bytes: the payload, and headers for each segment. A packet of n segments, the last perhaps
    /// short, has at most one header more than its payload pays for, and a descriptor is larger
    /// than a header.
    const fn most_queued() -> u64 {
        let payload = LIMIT_BYTES - 1 + PACKET_BYTES;
        let headers = payload.div_ceil(SEGMENT_BYTES) * HEADER_BYTES;
        payload + headers + OTHER_BYTES
    }
    // One more superframe exceeds the bound, so that a broken limit is detected.
    const _: () = assert!(
        most_queued() < 4 * (PACKET_BYTES / SEGMENT_BYTES) * (SEGMENT_BYTES + HEADER_BYTES)
    );

    /// Number of runs of which one must be good: in the others the machine may keep the sending,
    /// asking or answering process from running. The queue must be short in all.
    const ROUNDS: usize = 4;

    /// Returns the first run that is `good`, or the last.
    fn seen(
        test: &str,
        rate: &str,
        mode: &str,
        good: impl Fn(&Seen) -> bool,
    ) -> Result<Option<Seen>> {
        let Some(lab) = Lab::open(test, &["tc"])? else { return Ok(None) };
        let veth = Veth::open(&lab.namespace)?;
        limit(&veth, rate)?;
        // An ACK train would end slow start at a window that does not fill a small queue for
        // seconds.
        let sender = Sender::Quietline(mode, "delay");
        let mut round = 1;
        loop {
            let seen = share(&lab.namespace, &veth, sender, TIME)?;
            println!(
                "{rate}, {mode}: {:.1} Mbit/s, queue {} at most {}, round trip {:?}",
                seen.bits_per_second / 1e6,
                seen.backlog_median(),
                seen.backlog_max(),
                seen.median()
            );
            let long = mode != "off" && seen.backlog_max() > most_queued();
            if round == ROUNDS || long || good(&seen) {
                return Ok(Some(seen));
            }
            round += 1;
        }
    }

    fn is_quick(seen: &Seen) -> bool {
        seen.median() < Duration::from_millis(10)
    }

    fn ensure_short(seen: &Seen) -> Result<()> {
        let most = seen.backlog_max();
        ensure!(most <= most_queued(), "{most} bytes were queued, {} are the bound", most_queued());
        ensure!(is_quick(seen), "{:?} a round trip", seen.median());
        Ok(())
    }

    #[test]
    fn a_bulk_sender_keeps_two_superframes_queued_at_100_mbit() -> Result<()> {
        let test = "a_bulk_sender_keeps_two_superframes_queued_at_100_mbit";
        let good = |seen: &Seen| is_quick(seen) && seen.bits_per_second > 60e6;
        let Some(seen) = seen(test, "100mbit", "static131072_ge", good)? else { return Ok(()) };
        ensure_short(&seen)?;
        ensure!(seen.bits_per_second > 60e6, "only {} bit/s", seen.bits_per_second);
        Ok(())
    }

    #[test]
    fn a_bulk_sender_keeps_two_superframes_queued_at_1_gbit() -> Result<()> {
        let test = "a_bulk_sender_keeps_two_superframes_queued_at_1_gbit";
        let Some(seen) = seen(test, "1gbit", "static131072_ge", is_quick)? else { return Ok(()) };
        ensure_short(&seen)
    }

    #[test]
    fn without_small_queues_a_concurrent_flow_waits() -> Result<()> {
        let test = "without_small_queues_a_concurrent_flow_waits";
        let waits = |seen: &Seen| seen.median() > Duration::from_millis(100);
        let Some(seen) = seen(test, "100mbit", "off", waits)? else { return Ok(()) };
        ensure!(waits(&seen), "only {:?}", seen.median());
        ensure!(seen.backlog_max() > 1_000_000, "only {} bytes", seen.backlog_max());
        Ok(())
    }
}
