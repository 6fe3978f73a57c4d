//! TCP Small Queues on a real queue: what a bulk sender keeps in the kernel's `tbf`, by the kernel's count, and what that does to
//! the flow beside it.
//!
//! Not here: figures. `bin/queue` takes them, by hand.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::{Result, ensure};
    use netns_tests::bottleneck::{Seen, Sender, limit, share};
    use netns_tests::{Lab, Veth};

    const TIME: Duration = Duration::from_secs(2);

    /// `tcp_limit_output_bytes` of the first TCP Small Queues, which counts packet memory.
    const LIMIT_BYTES: u64 = 131_072;

    /// Payload of a segment, MTU 1500 and timestamps; and what each carries around it: Ethernet, IPv4 and TCP headers.
    const SEGMENT_BYTES: u64 = 1448;
    const HEADER_BYTES: u64 = 14 + 20 + 32;

    /// Payload of the largest packet: whole segments in half of the limit.
    const PACKET_BYTES: u64 = LIMIT_BYTES / 2 / SEGMENT_BYTES * SEGMENT_BYTES;

    /// What is not of the bulk flow: answers and acknowledgments of the other, ARP; and a tail loss probe, which is a segment.
    const OTHER_BYTES: u64 = 4_096;

    /// The limit and the packet that goes over it, as `tc` counts them. Our memory is what the limit counts: for each packet its
    /// payload and a descriptor of some hundred bytes, hence less than the limit when the last packet comes. `tc` counts what leaves:
    /// the payload, and headers for each segment. A packet of n segments, the last perhaps short, has at most one header more
    /// than its payload pays for, and a descriptor is more than a header.
    const fn most_queued() -> u64 {
        let payload = LIMIT_BYTES - 1 + PACKET_BYTES;
        let headers = payload.div_ceil(SEGMENT_BYTES) * HEADER_BYTES;
        payload + headers + OTHER_BYTES
    }
    // One superframe more does not fit: the bound tells when the limit is broken.
    const _: () = assert!(
        most_queued() < 4 * (PACKET_BYTES / SEGMENT_BYTES) * (SEGMENT_BYTES + HEADER_BYTES)
    );

    /// Runs of which one must be as it should: others may keep the processes that send, ask and answer from their CPUs. The queue must be
    /// short in all.
    const ROUNDS: usize = 4;

    /// The first run that is `good`, or the last.
    fn seen(
        test: &str,
        rate: &str,
        mode: &str,
        good: impl Fn(&Seen) -> bool,
    ) -> Result<Option<Seen>> {
        let Some(lab) = Lab::open(test, &["tc"])? else { return Ok(None) };
        let veth = Veth::open(&lab.namespace)?;
        limit(&veth, rate)?;
        // A train of acknowledgments would end slow start at a window that leaves a small queue nothing to do for seconds.
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
    fn without_small_queues_the_flow_beside_waits() -> Result<()> {
        let test = "without_small_queues_the_flow_beside_waits";
        let waits = |seen: &Seen| seen.median() > Duration::from_millis(100);
        let Some(seen) = seen(test, "100mbit", "off", waits)? else { return Ok(()) };
        ensure!(waits(&seen), "only {:?}", seen.median());
        ensure!(seen.backlog_max() > 1_000_000, "only {} bytes", seen.backlog_max());
        Ok(())
    }
}
