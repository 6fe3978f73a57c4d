//! Transfers through a path with loss and delay, between the kernel and quietline, and between two
//! kernels: the bytes arrive unchanged, and both paths lost packets.
//!
//! Not here: throughput. `bin/grid` measures it, by hand.

use std::path::Path;
use std::time::Duration;

use netns_tests::WirePath;

/// The relay program of this crate.
const RELAY: &str = env!("CARGO_BIN_EXE_relay");

fn relay() -> &'static Path {
    Path::new(RELAY)
}

/// Makes a path of some milliseconds with a queue of a few dozen packets.
fn path(rtt_ms: u64, loss: f64) -> WirePath {
    let rtt = Duration::from_millis(rtt_ms);
    WirePath { rtt, loss, rate_bps: 20_000_000, queue: 60, seed: 7 }
}

#[cfg(test)]
mod tests {
    use anyhow::{Result, ensure};
    use netns_tests::{Content, FAR, Impaired, Lab, Link, STACK, sha256};

    use super::*;

    const BYTES: usize = 1 << 20;

    /// Transfers from quietline and to it.
    fn both_ways(test: &str, path: &WirePath) -> Result<()> {
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let impaired = Impaired::open(relay(), &lab.namespace, path)?;
        let content = Content::create(lab.directory(), "bulk", BYTES, 1)?;
        let directory = lab.directory().display().to_string();
        let words = ["http", "--dir", &directory, "--upload", "--gateway=10.77.0.1"];
        let server = lab.serve(&Link::default(), &words)?;
        let curl = |words: &str| impaired.near.tool("curl", &format!("-sSf --max-time 55 {words}"));
        curl(&format!("-o {directory}/down http://{STACK}/bulk"))?;
        ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
        curl(&format!("-T {directory}/bulk http://{STACK}/up"))?;
        ensure!(sha256(&lab.file("up"))? == content.sha256, "the upload differs");
        server.interrupt()?;
        for direction in impaired.close()? {
            ensure!(direction.lost > 0, "nothing was lost: {direction:?}");
        }
        Ok(())
    }

    #[test]
    fn transfers_pass_one_percent_loss_at_20_ms() -> Result<()> {
        both_ways("transfers_pass_one_percent_loss_at_20_ms", &path(20, 0.01))
    }

    #[test]
    fn transfers_pass_five_percent_loss_at_10_ms() -> Result<()> {
        both_ways("transfers_pass_five_percent_loss_at_10_ms", &path(10, 0.05))
    }

    #[test]
    fn transfers_pass_half_a_percent_loss_at_100_ms() -> Result<()> {
        both_ways("transfers_pass_half_a_percent_loss_at_100_ms", &path(100, 0.005))
    }

    /// The kernels of the comparison use the same path.
    #[test]
    fn transfers_between_two_kernels_pass() -> Result<()> {
        let Some(lab) = Lab::open("transfers_between_two_kernels_pass", &["socat"])? else {
            return Ok(());
        };
        let impaired = Impaired::open(relay(), &lab.namespace, &path(10, 0.02))?;
        let content = Content::create(lab.directory(), "bulk", BYTES, 2)?;
        let directory = lab.directory().display().to_string();
        let mut listener = lab.namespace.command("socat");
        listener.args(["-u", &format!("FILE:{directory}/bulk"), "TCP-LISTEN:5000,reuseaddr"]);
        let listener = netns_tests::Running::start(&mut listener)?;
        lab.wait_for_listener(5000)?;
        let words = format!("-u TCP:{FAR}:5000 CREATE:{directory}/down");
        impaired.near.tool("socat", &words)?;
        listener.wait(Duration::from_secs(10))?.success()?;
        ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
        let [_, back] = impaired.close()?;
        ensure!(back.lost > 0 && back.delivered > BYTES as u64 / 1460, "{back:?}");
        Ok(())
    }
}
