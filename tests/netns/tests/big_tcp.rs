//! BIG TCP towards the kernel: superframes longer than the length field of IPv4 can say, through a tap.
//!
//! The kernel's tap takes them since 6.6. Not here: superframes from the kernel, which its tap keeps below 64 KB.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Lab, Link, STACK, SUPERFRAMES};

const LIMIT: Duration = Duration::from_secs(20);

/// Bytes to read: enough that the windows open.
const BYTES: usize = 32 << 20;

/// Characters that chargen sends (RFC 864), and how many of them are on a line.
const CHARACTERS: usize = 95;
const LINE: usize = 72;

/// The period of chargen's stream: as many lines as there are characters, each one further.
fn period() -> Vec<u8> {
    let character = |index: usize| b' ' + u8::try_from(index % CHARACTERS).unwrap_or(0);
    (0..CHARACTERS).flat_map(|first| (first..first + LINE).map(character).chain(*b"\r\n")).collect()
}

/// Reads so much of chargen's stream and fails at the first byte that is another.
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

/// Bytes of the largest frame that a chargen server with this size has sent to the kernel, which took everything.
fn largest(test: &str, size: u32) -> Result<Option<u32>> {
    let Some(lab) = Lab::open(test, &["tshark"])? else { return Ok(None) };
    let size = format!("--sysctl=net.quietline.dev.default.gso_ipv4_max_size={size}");
    let pcap = format!("--pcap={}", lab.file("run.pcapng").display());
    // Some limits below TCP are smaller than such a frame.
    let limit = "--sysctl=net.quietline.tsq_limit=v619";
    let words = ["chargen", "--port", "19", &pcap, &size, limit];
    let server = lab.serve(&Link::default(), &[&words[..], &SUPERFRAMES].concat())?;
    let address: SocketAddr = format!("{STACK}:19").parse()?;
    lab.namespace.enter(|| read_pattern(address))?;
    server.interrupt()?;
    let printed = lab.shell("tshark -n -r run.pcapng -T fields -e frame.len 2>tshark.err")?;
    let lengths: Result<Vec<u32>, _> = printed.lines().map(str::parse).collect();
    Ok(Some(lengths?.into_iter().max().context("an empty capture")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Length of an Ethernet header, which the settings do not count.
    const ETHERNET: u32 = 14;

    #[test]
    fn the_kernel_takes_superframes_above_64_kb() -> Result<()> {
        let test = "the_kernel_takes_superframes_above_64_kb";
        let Some(largest) = largest(test, 196_608)? else { return Ok(()) };
        ensure!(largest > 65_536 + ETHERNET, "the largest frame has {largest} bytes");
        ensure!(largest <= 196_608 + ETHERNET, "the largest frame has {largest} bytes");
        Ok(())
    }

    #[test]
    fn without_the_setting_none_is_larger() -> Result<()> {
        let test = "without_the_setting_none_is_larger";
        let Some(largest) = largest(test, 65_536)? else { return Ok(()) };
        ensure!(largest <= 65_536 + ETHERNET, "the largest frame has {largest} bytes");
        Ok(())
    }
}
