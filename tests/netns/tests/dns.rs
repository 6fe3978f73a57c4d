//! The stub resolver against dnsmasq: `connect NAME:PORT` with a name server of the command line,
//! of a host file and of a lease; answers over TCP; names that do not exist.
//!
//! Not here: forged answers and silent servers (virtual time, crate `quietline-config`).

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Dnsmasq, Finished, KERNEL, Lab, Running, STACK, binary, modes};

/// Time limit of one transfer.
const LIMIT: Duration = Duration::from_secs(30);

/// A name with the kernel's address, in a domain without other names.
const RECORD: &str = "--host-record=www.example,10.77.0.1";
const LOCAL: &str = "--local=/example/";

/// Static address of the stack on a tap.
fn link() -> [String; 3] {
    let (address, peer) = (format!("--address={STACK}/24"), format!("--peer={KERNEL}/24"));
    ["--link=tap:ql0".to_owned(), address, peer]
}

/// Runs `quietline connect` with these arguments, and returns its end.
fn connect(lab: &Lab, words: &[String]) -> Result<Finished> {
    let mut command = lab.namespace.command(binary()?);
    command.arg("connect").args(words).args(modes()).stdin(Stdio::piped());
    let mut connect = Running::start_with_input(&mut command)?;
    let mut input = connect.stdin().context("an input")?;
    // Fails if the command has ended with an error already, which its end shows.
    let _ = input.write_all(b"by name\n");
    drop(input);
    connect.wait(LIMIT)
}

/// Starts a program of the kernel that answers each connection with what it receives.
fn listen(lab: &Lab) -> Result<Running> {
    let mut listener = lab.namespace.command("socat");
    let listener = Running::start(listener.args(["TCP-LISTEN:5000,fork,reuseaddr", "EXEC:cat"]))?;
    lab.wait_for_listener(5000)?;
    Ok(listener)
}

fn ensure_echoed(ended: &Finished) -> Result<()> {
    ensure!(ended.status.success() && ended.stdout == "by name\n", "{ended:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_looked_up_at_the_server_of_the_command_line() -> Result<()> {
        let test = "a_name_is_looked_up_at_the_server_of_the_command_line";
        let Some(lab) = Lab::open(test, &["dnsmasq", "socat"])? else { return Ok(()) };
        let _server = Dnsmasq::dns(&lab, &[RECORD, LOCAL])?;
        let _listener = listen(&lab)?;
        let own = ["www.example:5000".to_owned(), format!("--dns={KERNEL}")];
        ensure_echoed(&connect(&lab, &[&own[..], &link()].concat())?)
    }

    #[test]
    fn a_lease_names_the_server_and_the_domain() -> Result<()> {
        let test = "a_lease_names_the_server_and_the_domain";
        let Some(lab) = Lab::open(test, &["dnsmasq", "socat"])? else { return Ok(()) };
        let range = "--dhcp-range=10.77.0.50,10.77.0.60,255.255.255.0,120";
        let leases = format!("--dhcp-leasefile={}", lab.file("leases").display());
        let words = [RECORD, LOCAL, "--domain=example", range, &leases];
        let _server = Dnsmasq::dns(&lab, &words)?;
        let _listener = listen(&lab)?;
        let peer = format!("--peer={KERNEL}/24");
        let words = ["www:5000", "--link=tap:ql0", "--address=dhcp", &peer];
        ensure_echoed(&connect(&lab, &words.map(ToOwned::to_owned))?)
    }

    #[test]
    fn a_host_file_names_the_link_and_the_server() -> Result<()> {
        let test = "a_host_file_names_the_link_and_the_server";
        let Some(lab) = Lab::open(test, &["dnsmasq", "socat"])? else { return Ok(()) };
        let _server = Dnsmasq::dns(&lab, &[RECORD, LOCAL])?;
        let _listener = listen(&lab)?;
        let text = format!(
            "[[link]]\ndevice = \"tap:ql0\"\npeer = \"{KERNEL}/24\"\naddresses = [\"{STACK}/24\"]\n\
             [dns]\nservers = [\"{KERNEL}\"]\n[hosts]\nknown = [\"{KERNEL}\"]\n"
        );
        let file = lab.file("host.toml");
        fs::write(&file, text)?;
        for target in ["www.example:5000", "known:5000"] {
            let words = [target.to_owned(), format!("--config={}", file.display())];
            ensure_echoed(&connect(&lab, &words)?)?;
        }
        fs::write(&file, "[[link]]\ndevice = \"tap:ql0\"\nmtuu = 5\n")?;
        let ended =
            connect(&lab, &["known:5000".to_owned(), format!("--config={}", file.display())])?;
        ensure!(ended.status.code() == Some(2), "{ended:?}");
        ensure!(ended.stderr.contains("host.toml:3: link.mtuu: unknown field"), "{ended:?}");
        Ok(())
    }

    /// Forty addresses do not fit into 512 bytes.
    #[test]
    fn a_long_answer_comes_over_tcp() -> Result<()> {
        let test = "a_long_answer_comes_over_tcp";
        let Some(lab) = Lab::open(test, &["dnsmasq", "socat"])? else { return Ok(()) };
        let names = lab.file("names");
        let mut text = String::new();
        for last in 100..140 {
            lab.namespace.ip(&format!("address add 10.77.0.{last}/32 dev lo"))?;
            text += &format!("10.77.0.{last} big.example\n");
        }
        fs::write(&names, text)?;
        let addresses = format!("--addn-hosts={}", names.display());
        let _server = Dnsmasq::dns(&lab, &[LOCAL, &addresses])?;
        let _listener = listen(&lab)?;
        let own = ["big.example:5000", "--dns=10.77.0.1", "--stats", "--json"];
        let ended = connect(&lab, &[&own.map(ToOwned::to_owned)[..], &link()].concat())?;
        ensure_echoed(&ended)?;
        let opens = ended.stderr.contains("\"TcpActiveOpens\": 2");
        ensure!(opens, "one for the answer, one for the data: {}", ended.stderr);
        Ok(())
    }

    #[test]
    fn names_without_an_address_are_reported_in_one_line() -> Result<()> {
        let test = "names_without_an_address_are_reported_in_one_line";
        let Some(lab) = Lab::open(test, &["dnsmasq"])? else { return Ok(()) };
        let _server = Dnsmasq::dns(&lab, &[RECORD, LOCAL])?;
        for (name, server, expected) in [
            ("no.example", KERNEL, "no.example does not exist, says the name server 10.77.0.1:53"),
            ("www.elsewhere", KERNEL, "cannot look up www.elsewhere: 10.77.0.1:53: "),
            ("www.example", "10.77.0.1:54", "cannot look up www.example: 10.77.0.1:54: "),
            ("a..b", KERNEL, "a..b is not a host name"),
        ] {
            let own = [format!("{name}:5000"), format!("--dns={server}")];
            let ended = connect(&lab, &[&own[..], &link()].concat())?;
            ensure!(ended.status.code() == Some(1), "{name}: {ended:?}");
            ensure!(ended.stderr.contains(expected), "{name}: {}", ended.stderr);
        }
        Ok(())
    }
}
