//! dnsmasq on the kernel's end of the link, as a DHCP server and as a name server.
//!
//! It listens on the unspecified addresses of the namespace, so that it may start before the link
//! exists.
//!
//! Not here: quietline's end.

use std::time::Duration;

use anyhow::Result;

use crate::lab::Lab;
use crate::process::Running;

/// Time limit of its start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// A running dnsmasq.
#[derive(Debug)]
pub struct Dnsmasq {
    running: Running,
}

impl Dnsmasq {
    /// Starts a DHCP server for 10.77.0.50 to 10.77.0.60, without DNS.
    ///
    /// # Errors
    /// When it does not start.
    pub fn dhcp(lab: &Lab, words: &[&str]) -> Result<Self> {
        let range = "--dhcp-range=10.77.0.50,10.77.0.60,255.255.255.0,120";
        let leases = format!("--dhcp-leasefile={}", lab.file("leases").display());
        let own = [range, &leases, "--port=0", "--dhcp-sequential-ip", "--log-dhcp"];
        Self::start(lab, &[&own, words].concat(), "IP range")
    }

    /// Starts a name server.
    ///
    /// # Errors
    /// When it does not start.
    pub fn dns(lab: &Lab, words: &[&str]) -> Result<Self> {
        Self::start(lab, words, "started")
    }

    fn start(lab: &Lab, words: &[&str], expected: &str) -> Result<Self> {
        let mut command = lab.namespace.command("dnsmasq");
        // Nothing of the machine's own configuration, and no other user or file.
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv"]);
        command.args(["--no-hosts", "--user=root", "--group=root", "--pid-file="]);
        command.args(["--log-facility=-", "--no-ping"]).args(words);
        let mut running = Running::start(&mut command)?;
        running.wait_for_stderr(expected, START_LIMIT)?;
        Ok(Self { running })
    }

    /// Returns its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.running.stderr_so_far()
    }

    /// Waits until its log contains `text`.
    ///
    /// # Errors
    /// At the limit.
    pub fn wait_for_log(&mut self, text: &str, limit: Duration) -> Result<()> {
        self.running.wait_for_stderr(text, limit)
    }
}
