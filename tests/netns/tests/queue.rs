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

    /// `tcp_limit_output_bytes` of the first TCP Small Queues, which counts memory; and the packet that met it.
    const LIMIT_BYTES: u64 = 131_072;
    const PACKET_BYTES: u64 = 65_536;

    /// What is not of the bulk flow: answers and acknowledgments of the other, ARP.
    const OTHER_BYTES: u64 = 4_096;

    fn seen(test: &str, rate: &str, mode: &str) -> Result<Option<Seen>> {
        let Some(lab) = Lab::open(test, &["tc"])? else { return Ok(None) };
        let veth = Veth::open(&lab.namespace)?;
        limit(&veth, rate)?;
        let seen = share(&lab.namespace, &veth, Sender::Quietline(mode, None), TIME)?;
        println!(
            "{rate}, {mode}: {:.1} Mbit/s, queue {} at most {}, round trip {:?}",
            seen.bits_per_second / 1e6,
            seen.backlog_median(),
            seen.backlog_max(),
            seen.median()
        );
        Ok(Some(seen))
    }

    fn ensure_short(seen: &Seen) -> Result<()> {
        let most = seen.backlog_max();
        ensure!(most <= LIMIT_BYTES + PACKET_BYTES + OTHER_BYTES, "{most} bytes were queued");
        ensure!(seen.median() < Duration::from_millis(10), "{:?} a round trip", seen.median());
        Ok(())
    }

    #[test]
    fn a_bulk_sender_keeps_two_superframes_queued_at_100_mbit() -> Result<()> {
        let test = "a_bulk_sender_keeps_two_superframes_queued_at_100_mbit";
        let Some(seen) = seen(test, "100mbit", "static131072_ge")? else { return Ok(()) };
        ensure_short(&seen)?;
        ensure!(seen.bits_per_second > 60e6, "only {} bit/s", seen.bits_per_second);
        Ok(())
    }

    #[test]
    fn a_bulk_sender_keeps_two_superframes_queued_at_1_gbit() -> Result<()> {
        let test = "a_bulk_sender_keeps_two_superframes_queued_at_1_gbit";
        let Some(seen) = seen(test, "1gbit", "static131072_ge")? else { return Ok(()) };
        ensure_short(&seen)
    }

    #[test]
    fn without_small_queues_the_flow_beside_waits() -> Result<()> {
        let test = "without_small_queues_the_flow_beside_waits";
        let Some(seen) = seen(test, "100mbit", "off")? else { return Ok(()) };
        ensure!(seen.median() > Duration::from_millis(100), "only {:?}", seen.median());
        ensure!(seen.backlog_max() > 1_000_000, "only {} bytes", seen.backlog_max());
        Ok(())
    }
}
