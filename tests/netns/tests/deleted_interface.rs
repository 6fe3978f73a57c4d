//! Interfaces that are deleted under a running quietline: it reports this and ends with exit code
//! 1, on every kind of link.
//!
//! Not here: interfaces that go down and up (`af_xdp.rs`), the library's side (crate `quietline`,
//! `tests/devices.rs`).

use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use netns_tests::{Finished, Lab, Link, Quietline, Running, STACK, Veth, binary};

/// Time limit of an end.
const LIMIT: Duration = Duration::from_secs(10);

/// Fails unless a command has reported its deleted interface, in one line, and ended with exit code
/// 1.
fn ensure_reported(ended: &Finished) -> Result<()> {
    let Finished { status, stderr, .. } = ended;
    ensure!(status.code() == Some(1), "{status}: {stderr}");
    let told = stderr.lines().filter(|line| line.contains("its interface was deleted")).count();
    ensure!(told == 1 && stderr.contains("ql0"), "{stderr}");
    ensure!(!stderr.contains("panicked"), "{stderr}");
    Ok(())
}

/// Deletes the interface of a server on a link of this kind to the kernel.
fn lose_interface_of_server(kind: &'static str, test: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &["socat"])? else { return Ok(()) };
    let link = Link { kind, ..Link::default() };
    let server = lab.serve(&link, &["echo", "--port=7", "--stats", "--json"])?;
    // A connection that is idle when the interface is deleted.
    let mut peer = lab.namespace.command("socat");
    let mut peer = Running::start_with_input(
        peer.args(["-", &format!("TCP:{STACK}:7")]).stdin(Stdio::piped()),
    )?;
    sleep(Duration::from_millis(300));
    lab.namespace.ip(&format!("link delete {}", Link::NAME))?;
    let ended = server.wait(LIMIT)?;
    peer.kill();
    ensure_reported(&ended)?;
    ensure!(ended.stdout.contains("TcpPassiveOpens"), "no statistics: {}", ended.stdout);
    Ok(())
}

/// Deletes the interface of an idle server on one end of a veth pair. `link` is without its name.
fn lose_veth_of_server(link: &str, test: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
    let veth = Veth::open(&lab.namespace)?;
    let words = [
        "echo".to_owned(),
        "--port=7".to_owned(),
        format!("--link={link}"),
        format!("--address={STACK}/24"),
    ];
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let server = Quietline::serve_with(&veth.ours, &words)?;
    sleep(Duration::from_millis(300));
    lab.namespace.ip(&format!("link delete {}", Veth::PEER))?;
    ensure_reported(&server.wait(LIMIT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_ends_when_its_tap_is_deleted() -> Result<()> {
        lose_interface_of_server("tap", "a_server_ends_when_its_tap_is_deleted")
    }

    #[test]
    fn a_server_ends_when_its_tun_is_deleted() -> Result<()> {
        lose_interface_of_server("tun", "a_server_ends_when_its_tun_is_deleted")
    }

    #[test]
    fn a_server_ends_when_its_interface_with_a_ring_is_deleted() -> Result<()> {
        let test = "a_server_ends_when_its_interface_with_a_ring_is_deleted";
        lose_veth_of_server("af_packet:ql0,rx=v2,tx=ring", test)
    }

    #[test]
    fn a_server_ends_when_its_interface_with_calls_is_deleted() -> Result<()> {
        let test = "a_server_ends_when_its_interface_with_calls_is_deleted";
        lose_veth_of_server("af_packet:ql0,rx=calls,tx=calls", test)
    }

    #[test]
    fn a_server_ends_when_its_interface_in_generic_mode_is_deleted() -> Result<()> {
        let test = "a_server_ends_when_its_interface_in_generic_mode_is_deleted";
        lose_veth_of_server("af_xdp:ql0,mode=generic", test)
    }

    #[test]
    fn a_server_ends_when_its_interface_in_native_mode_is_deleted() -> Result<()> {
        let test = "a_server_ends_when_its_interface_in_native_mode_is_deleted";
        lose_veth_of_server("af_xdp:ql0,mode=native", test)
    }

    #[test]
    fn connect_ends_when_its_tap_is_deleted() -> Result<()> {
        let Some(lab) = Lab::open("connect_ends_when_its_tap_is_deleted", &["nc"])? else {
            return Ok(());
        };
        let mut listener = Running::start(lab.namespace.command("nc").args(["-l", "-d", "5000"]))?;
        lab.wait_for_listener(5000)?;
        // Standard input stays open and empty, so that the connection is idle.
        let link = Link::default();
        let connect = Quietline::connect(&lab.namespace, &link, 5000, Stdio::piped())?;
        lab.shell("for i in $(seq 200); do ss -Htn state established 'sport = :5000' | grep -q . && exit 0; sleep 0.02; done; exit 1")?;
        lab.namespace.ip(&format!("link delete {}", Link::NAME))?;
        let ended = connect.wait(LIMIT)?;
        listener.kill();
        ensure_reported(&ended)
    }

    /// Returns the error message of a `quietline serve` whose address is in use.
    fn refusal(lab: &Lab, link: &str, address: &str) -> Result<String> {
        let mut command = lab.namespace.command(binary()?);
        command.args(["serve", "echo", "--port=7", link, &format!("--address={address}/24")]);
        let ended = Finished::of(&mut command)?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stderr.trim().lines().count() == 1, "more than one line: {}", ended.stderr);
        Ok(ended.stderr)
    }

    #[test]
    fn an_address_that_the_kernel_has_is_refused() -> Result<()> {
        let test = "an_address_that_the_kernel_has_is_refused";
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        lab.namespace.ip("address add 10.99.0.7/32 dev lo")?;
        for link in ["--link=tap:ql0", "--link=tun:ql0"] {
            let text = refusal(&lab, link, "10.99.0.7")?;
            ensure!(text.contains("10.99.0.7") && text.contains("\"lo\""), "{text}");
        }
        Ok(())
    }

    #[test]
    fn an_address_that_a_neighbor_has_is_refused() -> Result<()> {
        let test = "an_address_that_a_neighbor_has_is_refused";
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let mut command = veth.ours.command(binary()?);
        command.args(["serve", "echo", "--port=7", "--link=af_packet:ql0"]);
        let ended = Finished::of(command.arg("--address=10.77.0.1/24"))?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stderr.contains("in use by another station"), "{}", ended.stderr);
        Ok(())
    }

    #[test]
    fn a_later_conflict_of_addresses_is_warned_of() -> Result<()> {
        let test = "a_later_conflict_of_addresses_is_warned_of";
        let Some(lab) = Lab::open(test, &["ping"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let mut server = veth.serve("", &["echo", "--port=7"])?;
        lab.namespace.ip(&format!("address add {STACK}/24 dev {}", Veth::PEER))?;
        // The kernel sends a request for a third station with the stack's address as its own.
        lab.namespace.shell(&format!("ping -q -c 1 -W 1 -I {STACK} 10.77.0.99 || true"))?;
        sleep(Duration::from_millis(500));
        let said = server.stderr_so_far();
        ensure!(said.contains("warning") && said.contains("another station"), "{said}");
        server.assert_alive()
    }

    #[test]
    fn unfinished_checksums_are_warned_of() -> Result<()> {
        let test = "unfinished_checksums_are_warned_of";
        let Some(lab) = Lab::open(test, &["socat"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let words =
            ["echo", "--port=7", "--link=af_xdp:ql0,mode=generic", "--address=10.77.0.2/24"];
        let server = Quietline::serve_with(&veth.ours, &words)?;
        lab.shell(&format!("timeout 2 socat -u /dev/null TCP:{STACK}:7 || true"))?;
        let said = server.stderr_so_far();
        ensure!(said.contains("tx off") && said.contains("ql0"), "{said}");
        ensure!(said.matches("unfinished checksums").count() == 1, "reported once: {said}");
        server.interrupt()?;
        // If they are trusted, unfinished checksums are accepted, but superframes are longer than a
        // chunk.
        let words = [
            "discard",
            "--port=9",
            "--link=af_xdp:ql0,mode=generic,trust-checksums",
            "--address=10.77.0.2/24",
        ];
        let server = Quietline::serve_with(&veth.ours, &words)?;
        lab.shell(&format!("timeout 3 socat -u /dev/zero TCP:{STACK}:9 || true"))?;
        let said = server.stderr_so_far();
        ensure!(said.contains("longer than the MTU"), "{said}");
        server.interrupt()?;
        Ok(())
    }
}
