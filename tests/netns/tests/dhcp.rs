//! The DHCPv4 client against dnsmasq: a lease on each kind of link, its routes, its renewal, a
//! conflict, and its return.
//!
//! Not here: lost messages, hostile servers and lifetimes (virtual time, crate `quietline-config`).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{
    Dnsmasq, KERNEL, Lab, Namespace, Quietline, Report, Running, Veth, binary, modes, talk,
};
use rustix::process::Signal;

/// Time limit of one step.
const LIMIT: Duration = Duration::from_secs(20);

/// First address that the server gives.
const LEASED: &str = "10.77.0.50";

/// Gets a lease over a link, talks over it, and returns it.
fn lease_on(lab: &Lab, namespace: &Namespace, words: &[&str]) -> Result<()> {
    let mut server = Dnsmasq::dhcp(lab, &["--dhcp-option=3,10.77.0.1"])?;
    let echo = ["echo", "--port=7", "--address=dhcp", "--stats", "--json"];
    let mut quietline = Quietline::serve_with(namespace, &[&echo, words].concat())?;
    let expected = format!("quietline: dhcp: ql0: address {LEASED}/24 from {KERNEL} for 120 s");
    quietline.wait_for_stderr(&expected, LIMIT)?;
    let to = format!("{LEASED}:7").parse().context("an address")?;
    lab.namespace.enter(|| talk(to, 4, 10))?;
    quietline.assert_alive()?;
    let ended = quietline.interrupt()?;
    ensure!(ended.status.success(), "{}", ended.stderr);
    ensure!(ended.stderr.contains("the lease of 10.77.0.50/24 was released"), "{}", ended.stderr);
    server.wait_for_log("DHCPRELEASE", LIMIT)?;
    let log = server.log();
    for message in ["DHCPDISCOVER", "DHCPOFFER", "DHCPREQUEST", "DHCPACK"] {
        ensure!(log.contains(message), "no {message} in {log}");
    }
    let report = Report::of(&ended)?;
    ensure!(report.counter("UdpInDatagrams")? >= 2, "an offer and an acknowledgment");
    ensure!(report.counter("IpExtOutBcastPkts")? >= 2, "a DISCOVER and a REQUEST");
    Ok(())
}

/// Starts the echo service on a tap without waiting for its start.
fn start_on_tap(lab: &Lab, words: &[&str]) -> Result<Running> {
    let mut command = lab.namespace.command(binary()?);
    let peer = format!("--peer={KERNEL}/24");
    command.args(["serve", "echo", "--port=7", "--link=tap:ql0", "--address=dhcp", &peer]);
    Running::start(command.args(modes()).args(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_gets_its_address_from_dnsmasq() -> Result<()> {
        let test = "a_tap_gets_its_address_from_dnsmasq";
        let Some(lab) = Lab::open(test, &["dnsmasq"])? else { return Ok(()) };
        let peer = format!("--peer={KERNEL}/24");
        lease_on(&lab, &lab.namespace, &["--link=tap:ql0", &peer])
    }

    #[test]
    fn packet_sockets_get_their_address_from_dnsmasq() -> Result<()> {
        let test = "packet_sockets_get_their_address_from_dnsmasq";
        let Some(lab) = Lab::open(test, &["dnsmasq"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        lease_on(&lab, &veth.ours, &["--link=af_packet:ql0"])
    }

    #[test]
    fn taken_queues_get_their_address_from_dnsmasq() -> Result<()> {
        let test = "taken_queues_get_their_address_from_dnsmasq";
        let Some(lab) = Lab::open(test, &["dnsmasq", "ethtool"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        // AF_XDP does not report unfinished checksums.
        lab.namespace.tool("ethtool", &format!("-K {} tx off", Veth::PEER))?;
        lease_on(&lab, &veth.ours, &["--link=af_xdp:ql0"])
    }

    /// A route of the lease leads to an address that the kernel has on its loopback device.
    #[test]
    fn routes_of_the_lease_lead_out() -> Result<()> {
        let test = "routes_of_the_lease_lead_out";
        let Some(lab) = Lab::open(test, &["dnsmasq", "nc"])? else { return Ok(()) };
        lab.namespace.ip("address add 10.99.0.1/32 dev lo")?;
        let routes = "--dhcp-option=121,10.99.0.0/16,10.77.0.1";
        let _server = Dnsmasq::dhcp(&lab, &[routes, "--dhcp-option=option:mtu,1400"])?;
        let _listener =
            Running::start(lab.namespace.command("nc").args(["-l", "-k", "10.99.0.1", "5000"]))?;
        lab.wait_for_listener(5000)?;
        let mut command = lab.namespace.command(binary()?);
        let peer = format!("--peer={KERNEL}/24");
        command.args(["connect", "10.99.0.1:5000", "--link=tap:ql0", "--address=dhcp", &peer]);
        // The end of its input would end the connection.
        let mut connect =
            Running::start_with_input(command.args(modes()).stdin(std::process::Stdio::piped()))?;
        lab.shell("for i in $(seq 500); do ss -Htn state established 'sport = :5000' | grep -q . && exit 0; sleep 0.02; done; exit 1")?;
        // MTU of the lease less 40 bytes of headers and 12 of timestamps.
        let shown = lab.shell("ss -Htni state established 'sport = :5000'")?;
        ensure!(shown.contains(" mss:1348 "), "{shown}");
        connect.signal(Signal::INT)?;
        connect.wait_for_stderr("was released", LIMIT)?;
        Ok(())
    }

    #[test]
    fn a_lease_is_renewed_at_t1() -> Result<()> {
        let test = "a_lease_is_renewed_at_t1";
        let Some(lab) = Lab::open(test, &["dnsmasq"])? else { return Ok(()) };
        let times = ["--dhcp-option=option:T1,5", "--dhcp-option=option:T2,90"];
        let mut server = Dnsmasq::dhcp(&lab, &times)?;
        let mut quietline = start_on_tap(&lab, &[])?;
        quietline.wait_for_stderr("listening", LIMIT)?;
        let acks = server.log().matches("DHCPACK(").count();
        ensure!(acks == 1, "{}", server.log());
        // A REQUEST by unicast names no address in an option.
        let deadline = std::time::Instant::now() + LIMIT;
        while server.log().matches("DHCPACK(").count() < 2 {
            ensure!(std::time::Instant::now() < deadline, "never renewed: {}", server.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        let to = format!("{LEASED}:7").parse().context("an address")?;
        lab.namespace.enter(|| talk(to, 1, 3))?;
        quietline.signal(Signal::INT)?;
        server.wait_for_log("DHCPRELEASE", LIMIT)?;
        Ok(())
    }

    /// The kernel answers the ARP probe for the first address of the range, which it has on its
    /// loopback device.
    #[test]
    fn an_address_in_use_is_declined() -> Result<()> {
        let test = "an_address_in_use_is_declined";
        let Some(lab) = Lab::open(test, &["dnsmasq"])? else { return Ok(()) };
        lab.namespace.ip(&format!("address add {LEASED}/32 dev lo"))?;
        let mut server = Dnsmasq::dhcp(&lab, &[])?;
        let mut quietline = start_on_tap(&lab, &[])?;
        let conflict = "another station has the offered address 10.77.0.50/24";
        quietline.wait_for_stderr(conflict, LIMIT)?;
        server.wait_for_log("DHCPDECLINE", LIMIT)?;
        // The pause after a DECLINE is 10 s.
        quietline.wait_for_stderr("listening", LIMIT)?;
        let log = quietline.stderr_so_far();
        ensure!(log.contains("address 10.77.0.51/24"), "{log}");
        Ok(())
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_server() -> Result<()> {
        let test = "a_signal_ends_the_wait_for_a_server";
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        let quietline = start_on_tap(&lab, &[])?;
        lab.shell("for i in $(seq 500); do ip link show ql0 up >/dev/null 2>&1 && exit 0; sleep 0.02; done; exit 1")?;
        std::thread::sleep(Duration::from_millis(300));
        quietline.signal(Signal::INT)?;
        let ended = quietline.wait(Duration::from_secs(10))?;
        ensure!(ended.status.code() == Some(130), "{}: {}", ended.status, ended.stderr);
        Ok(())
    }
}
