//! A simulated path between two kernels, with quietline behind the second: loss, delay and rate are
//! the same for all transfers, so that only the TCPs differ.
//!
//! ```text
//!    near (kernel)          relay          far (kernel)            quietline
//!    10.78.0.2  imp0 ── rate, delay, loss ── imp0  10.78.0.1 ── ql0 ── 10.77.0.2
//! ```
//!
//! A kernel peer is 10.78.0.1 itself. To reach quietline that namespace is a router, one more hop
//! of microseconds.
//!
//! Not here: the effects of the path (`bin/relay`), the transfers.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use crate::namespace::Namespace;
use crate::process::Running;

/// The kernel peer's address, as `near` sees it.
pub const FAR: &str = "10.78.0.1";

/// The address of `near`.
pub const NEAR: &str = "10.78.0.2";

/// The IPv6 address of `near`.
pub const NEAR_V6: &str = "fd78::2";

/// The IPv6 address of `far` on the path.
const FAR_V6: &str = "fd78::1";

/// Time limit for the relay's start, and for its end.
const LIMIT: Duration = Duration::from_secs(10);

/// Properties of a path, the same in both directions.
#[derive(Debug, Clone, Copy)]
pub struct WirePath {
    /// Round-trip time without queues.
    pub rtt: Duration,
    /// Fraction of packets lost in each direction.
    pub loss: f64,
    /// Bits per second.
    pub rate_bps: u64,
    /// Packets that may be queued in front of the link.
    pub queue: usize,
    /// Seed of the random loss.
    pub seed: u64,
}

/// Packets of one direction by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    /// Read from the device.
    pub received: u64,
    /// Lost at random.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub overflowed: u64,
    /// Written to the other device.
    pub delivered: u64,
}

/// Simulated path between two kernels, with quietline behind the second.
#[derive(Debug)]
pub struct Impaired {
    relay: Running,
    /// Namespace of the clients.
    pub near: Namespace,
}

impl Impaired {
    /// Joins a new namespace to `far` by `relay`, the program of `bin/relay`.
    ///
    /// # Errors
    /// When a device cannot be made.
    pub fn open(relay: &Path, far: &Namespace, path: &WirePath) -> Result<Self> {
        let near = Namespace::create()?;
        let mut command = Command::new(relay);
        command.args([near.name(), far.name()]).args([
            format!("delay_us={}", path.rtt.as_micros() / 2),
            format!("loss={}", path.loss),
            format!("rate_bps={}", path.rate_bps),
            format!("queue={}", path.queue),
            format!("seed={}", path.seed),
        ]);
        let mut relay = Running::start(&mut command)?;
        let deadline = Instant::now() + LIMIT;
        while !relay.stderr_so_far().contains("ready") {
            if relay.has_ended()? || Instant::now() >= deadline {
                bail!("the relay does not start: {}", relay.stderr_so_far());
            }
            thread::sleep(Duration::from_millis(5));
        }
        near.ip(&format!("address add {NEAR}/24 dev imp0"))?;
        near.ip("link set imp0 up")?;
        near.ip(&format!("route add default via {FAR}"))?;
        far.ip(&format!("address add {FAR}/24 dev imp0"))?;
        far.ip("link set imp0 up")?;
        far.shell("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
        for namespace in [&near, far] {
            // Metrics of one transfer must not influence the next.
            namespace.shell("echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save")?;
        }
        Ok(Self { relay, near })
    }

    /// Gives both ends IPv6 addresses, and lets `far`, whose kernel speaks IPv6 already, route.
    ///
    /// # Errors
    /// When the kernel refuses them.
    pub fn add_ipv6(&self, far: &Namespace) -> Result<()> {
        let conf = "/proc/sys/net/ipv6/conf";
        self.near.shell(&format!("echo 0 >{conf}/all/disable_ipv6"))?;
        self.near.ip(&format!("address add {NEAR_V6}/64 dev imp0 nodad"))?;
        far.ip(&format!("address add {FAR_V6}/64 dev imp0 nodad"))?;
        far.shell(&format!("echo 1 >{conf}/all/forwarding"))?;
        self.near.ip(&format!("-6 route add default via {FAR_V6}"))?;
        Ok(())
    }

    /// Restarts the random sequence: called before each of two transfers, it gives both the same
    /// losses.
    ///
    /// # Errors
    /// When the relay has ended.
    pub fn restart_loss(&self) -> Result<()> {
        self.relay.signal(Signal::USR1)?;
        thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    /// Ends the path and returns its packet counts, from `near` and to it.
    ///
    /// # Errors
    /// When the relay has failed.
    pub fn close(self) -> Result<[Passed; 2]> {
        self.relay.signal(Signal::INT)?;
        let printed = self.relay.wait(LIMIT)?.success()?;
        let mut lines = printed.lines().map(passed);
        let mut next = || lines.next().context("a line for each direction")?;
        Ok([next()?, next()?])
    }
}

fn passed(line: &str) -> Result<Passed> {
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().with_context(|| format!("the relay printed {line}")))
        .collect::<Result<_>>()?;
    let [received, lost, overflowed, delivered] = numbers[..] else {
        bail!("the relay printed {line}");
    };
    ensure!(delivered <= received, "more delivered than received: {line}");
    Ok(Passed { received, lost, overflowed, delivered })
}
