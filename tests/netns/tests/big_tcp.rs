//! BIG TCP to the kernel: superframes longer than the length field of IPv4 can express, through a
//! tap.
//!
//! The kernel's tap accepts them since 6.6, and they are the default there: a kernel that forwards
//! them cuts them up. Not here: superframes from the kernel, which its tap keeps below 64 KB.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Lab, Namespace, Quietline, STACK, SUPERFRAMES, modes};

const LIMIT: Duration = Duration::from_secs(20);

/// Bytes to read: enough that the windows open.
const BYTES: usize = 32 << 20;

/// Number of characters that chargen sends (RFC 864), and the length of a line.
const CHARACTERS: usize = 95;
const LINE: usize = 72;

/// Returns the period of chargen's stream: as many lines as there are characters, each shifted by
/// one.
fn period() -> Vec<u8> {
    let character = |index: usize| b' ' + u8::try_from(index % CHARACTERS).unwrap_or(0);
    (0..CHARACTERS).flat_map(|first| (first..first + LINE).map(character).chain(*b"\r\n")).collect()
}

/// Reads `BYTES` of chargen's stream and fails at the first wrong byte.
fn read_pattern(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let period = period();
    let mut block = vec![0; period.len() * 64];
    let expected = period.repeat(64);
    for number in 0..BYTES / block.len() {
        stream.read_exact(&mut block).with_context(|| format!("block {number}"))?;
        ensure!(block == expected, "block {number} is not the pattern");
    }
    Ok(())
}

/// Serves chargen, with a capture in a file. Some limits below TCP are smaller than such a frame.
fn serve(lab: &Lab, words: &[&str]) -> Result<Quietline> {
    let pcap = format!("--pcap={}", lab.file("run.pcapng").display());
    let limit = "--sysctl=net.quietline.tsq_limit=v619";
    let own = ["chargen", "--port", "19", &pcap, limit];
    Quietline::serve_with(&lab.namespace, &[&own[..], &SUPERFRAMES, words].concat())
}

/// Stops the server, and reads the largest value of a field in its capture.
fn largest(lab: &Lab, server: Quietline, field: &str) -> Result<u32> {
    server.interrupt()?;
    let printed =
        lab.shell(&format!("tshark -n -r run.pcapng -T fields -e {field} 2>tshark.err"))?;
    let values: Result<Vec<u32>, _> =
        printed.lines().filter(|line| !line.is_empty()).map(str::parse).collect();
    values?.into_iter().max().with_context(|| format!("no {field} in the capture"))
}

/// Makes a namespace behind the kernel's, on a link where every frame is one segment.
fn beyond(kernel: &Namespace) -> Result<Namespace> {
    let beyond = Namespace::create()?;
    kernel.ip("link add out0 type veth peer name in0")?;
    kernel.ip(&format!("link set in0 netns {}", beyond.name()))?;
    for (namespace, end, last) in [(kernel, "out0", 1), (&beyond, "in0", 2)] {
        namespace.ip(&format!("address add 10.78.0.{last}/24 dev {end}"))?;
        namespace.ip(&format!("link set {end} up"))?;
        namespace.tool("ethtool", &format!("-K {end} tso off gso off gro off"))?;
    }
    beyond.ip("route add default via 10.78.0.1")?;
    kernel.shell("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
    Ok(beyond)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length of an Ethernet header, which the settings do not include.
    const ETHERNET: u32 = 14;

    /// Default limit of superframes over IPv4.
    const DEFAULT: u32 = 196_608;

    /// Arguments with the stack's address on the link, and the setting's name.
    const TAP: [&str; 3] = ["--link=tap:ql0", "--address=10.77.0.2/24", "--peer=10.77.0.1/24"];
    const SIZE: &str = "--sysctl=net.quietline.dev.default.gso_ipv4_max_size";

    /// Returns the limit of superframes: that of the mode, or the default.
    fn bound() -> u32 {
        let settings = modes();
        let size =
            settings.iter().find_map(|setting| setting.strip_prefix(SIZE)?.strip_prefix('='));
        size.map_or(DEFAULT, |size| size.parse().expect("the stack takes it for a number"))
    }

    /// Returns the length of the largest frame, after the kernel has read everything.
    fn largest_frame(test: &str, words: &[&str]) -> Result<Option<u32>> {
        let Some(lab) = Lab::open(test, &["tshark"])? else { return Ok(None) };
        let server = serve(&lab, &[&TAP[..], words].concat())?;
        lab.namespace.enter(|| read_pattern(SocketAddr::new(STACK.parse()?, 19)))?;
        largest(&lab, server, "frame.len").map(Some)
    }

    #[test]
    fn the_kernel_takes_superframes_above_64_kb() -> Result<()> {
        let test = "the_kernel_takes_superframes_above_64_kb";
        let Some(largest) = largest_frame(test, &[])? else { return Ok(()) };
        ensure!(largest > 65_536 + ETHERNET, "the largest frame has {largest} bytes");
        ensure!(largest <= bound() + ETHERNET, "the largest frame has {largest} bytes");
        Ok(())
    }

    #[test]
    fn a_setting_limits_superframes_to_64_kb() -> Result<()> {
        let size = format!("{SIZE}=65536");
        let Some(largest) = largest_frame("a_setting_limits_superframes_to_64_kb", &[&size])?
        else {
            return Ok(());
        };
        ensure!(largest <= 65_536 + ETHERNET, "the largest frame has {largest} bytes");
        Ok(())
    }

    #[test]
    fn zero_copy_sends_the_same_bytes() -> Result<()> {
        let test = "zero_copy_sends_the_same_bytes";
        let Some(largest) = largest_frame(test, &["--zerocopy"])? else { return Ok(()) };
        ensure!(largest > 65_536 + ETHERNET, "the largest frame has {largest} bytes");
        Ok(())
    }

    /// Across the kernel to a network of MTU 1500 whose frames are one segment each.
    #[test]
    fn a_forwarding_kernel_cuts_superframes_up() -> Result<()> {
        let test = "a_forwarding_kernel_cuts_superframes_up";
        let Some(lab) = Lab::open(test, &["tshark", "ethtool"])? else { return Ok(()) };
        let beyond = beyond(&lab.namespace)?;
        let server = serve(&lab, &[&TAP[..], &["--gateway=10.77.0.1"]].concat())?;
        beyond.enter(|| read_pattern(SocketAddr::new(STACK.parse()?, 19)))?;
        let received = beyond.shell("cat /sys/class/net/in0/statistics/rx_packets")?;
        let segments: usize = received.trim().parse()?;
        ensure!(segments > BYTES / 1500, "{segments} segments for {BYTES} bytes");
        // tshark derives the length although the header does not contain it.
        let largest = largest(&lab, server, "tcp.len")?;
        ensure!(largest > 65_536 && largest < bound(), "the largest segment has {largest} bytes");
        Ok(())
    }
}
