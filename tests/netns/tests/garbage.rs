//! Invalid frames, put on the link by the kernel's side: truncated, malformed, spoofed, with bad
//! checksums.
//!
//! socat turns each datagram of a local socket into one raw frame. All of them must be dropped with
//! a counted reason, and the stack must serve the next honest client as before.
//!
//! Not here: coverage. The fuzz targets reach further; these frames pass through a real device.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Content, Lab, Link, Report, Running, STACK};

/// Mutated frames sent after the hand-written ones.
const MUTANTS: u64 = 20_000;

/// Time limit of a step.
const LIMIT: Duration = Duration::from_secs(20);

/// A neighbor that does not exist: packets with its spoofed address affect no honest client.
const NOBODY: [u8; 4] = [10, 77, 0, 99];
const OURS: [u8; 4] = [10, 77, 0, 2];

/// Returns the complemented ones-complement sum of RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let folded = u16::try_from(sum).unwrap_or(u16::MAX);
    (!folded).to_be_bytes()
}

/// Builds an Ethernet frame to the stack.
fn ethernet(mac: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = mac.to_vec();
    frame.extend([2, 0, 0, 0, 0, 99]);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Builds an IPv4 packet with a correct header checksum.
fn ipv4(source: [u8; 4], target: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 1, 0x40, 0, 64, protocol, 0, 0];
    packet.extend(source);
    packet.extend(target);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend(payload);
    packet
}

/// Builds a TCP segment to the echo port with a correct checksum.
fn tcp(source: [u8; 4], flags: u8) -> Vec<u8> {
    let mut segment =
        vec![0x30, 0x39, 0, 7, 0, 0, 0, 1, 0, 0, 0, 1, 0x60, flags, 0xff, 0xff, 0, 0, 0, 0];
    segment.extend([2, 4, 5, 0xb4]);
    let mut pseudo = source.to_vec();
    pseudo.extend(OURS);
    pseudo.extend([0, 6, 0, 24]);
    pseudo.extend(&segment);
    let sum = checksum(&pseudo);
    segment[16..18].copy_from_slice(&sum);
    ipv4(source, OURS, 6, &segment)
}

fn echo_request() -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    ipv4(NOBODY, OURS, 1, &message)
}

fn arp_request() -> Vec<u8> {
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 99];
    request.extend(NOBODY);
    request.extend([0; 6]);
    request.extend(OURS);
    request
}

/// Returns frames with one fault each, and the counter that must increase.
fn wrong_frames(mac: [u8; 6]) -> Vec<(&'static str, Vec<u8>)> {
    let ip = |packet: Vec<u8>| ethernet(mac, 0x0800, &packet);
    let changed = |mut packet: Vec<u8>, at: usize, value: u8| {
        packet[at] = value;
        packet
    };
    let syn = || tcp(NOBODY, 0x02);
    vec![
        ("UNHANDLED_PROTO", ethernet(mac, 0x88cc, &[0; 46])),
        ("OTHERHOST", ethernet([2, 9, 9, 9, 9, 9], 0x0800, &syn())),
        ("ARP_MALFORMED", ethernet(mac, 0x0806, &arp_request()[..20])),
        ("ARP_MALFORMED", ethernet(mac, 0x0806, &changed(arp_request(), 4, 9))),
        ("PKT_TOO_SMALL", ip(syn()[..12].to_vec())),
        ("IP_VERSION", ip(changed(syn(), 0, 0x65))),
        ("IP_INHDR", ip(changed(syn(), 0, 0x41))),
        ("PKT_TOO_SMALL", ip(syn()[..30].to_vec())),
        ("IP_LENGTH", ip(shortened(syn()))),
        ("IP_CSUM", ip(changed(syn(), 10, 0x55))),
        ("IP_INVALID_SOURCE", ip(tcp([127, 0, 0, 1], 0x02))),
        ("IP_INVALID_SOURCE", ip(tcp(OURS, 0x02))),
        ("IP_NOPROTO", ip(ipv4(NOBODY, OURS, 200, b"what is this"))),
        ("ICMP_CSUM", ip(changed(echo_request(), 22, 0x55))),
        ("TCP_CSUM", ip(changed(syn(), 36, 0x55))),
        ("NO_SOCKET", ip(changed_port(tcp(NOBODY, 0x02)))),
    ]
}

/// Shortens the packet's length field below its header; the checksum is adjusted.
fn shortened(mut packet: Vec<u8>) -> Vec<u8> {
    let sum = u16::from_be_bytes([packet[10], packet[11]]) + u16::from(packet[3] - 10);
    packet[3] = 10;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Changes the segment's port to one without a listener; the checksum is adjusted.
fn changed_port(mut packet: Vec<u8>) -> Vec<u8> {
    packet[23] = 8;
    let sum = u16::from_be_bytes([packet[36], packet[37]]) - 1;
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns a valid frame with a few bytes changed, or truncated, by a seed.
fn mutant(mac: [u8; 6], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap_or(0) % below.max(1)
    };
    let mut frame = match next(4) {
        0 => {
            ethernet(mac, 0x0800, &tcp(NOBODY, [0x02, 0x10, 0x12, 0x04, 0x11, 0x00, 0xff][next(7)]))
        }
        1 => ethernet(mac, 0x0800, &echo_request()),
        2 => ethernet(mac, 0x0806, &arp_request()),
        _ => ethernet(mac, 0x86dd, &[0x60; 48]),
    };
    for _ in 0..=next(4) {
        // The link header stays: a frame for another station tests nothing.
        let at = 12 + next(frame.len() - 12);
        frame[at] = u8::try_from(next(256)).unwrap_or(0);
    }
    if next(4) == 0 {
        frame.truncate(14 + next(frame.len() - 14));
    }
    frame
}

/// Returns the stack's link address, from the kernel's neighbor table.
fn mac_of_the_stack(lab: &Lab) -> Result<[u8; 6]> {
    lab.namespace.tool("ping", &format!("-n -q -c 1 -W 2 {STACK}"))?;
    let neighbours = lab.namespace.ip(&format!("neigh show {STACK}"))?;
    let mut words = neighbours.split_whitespace().skip_while(|word| *word != "lladdr");
    let text = words.nth(1).context("the kernel knows no hardware address")?;
    let bytes: Result<Vec<u8>, _> =
        text.split(':').map(|part| u8::from_str_radix(part, 16)).collect();
    bytes?.try_into().ok().context("six bytes")
}

/// Sends each frame as one datagram, in bursts that fit the tap's queue of 1,000 frames. The next
/// burst follows when the stack has read the last.
fn send_all(lab: &Lab, path: &Path, frames: &[Vec<u8>]) -> Result<()> {
    let socket = UnixDatagram::unbound()?;
    let mut expected = taken(lab)?;
    for burst in frames.chunks(200) {
        for frame in burst {
            socket.send_to(frame, path).context("sending a frame to socat")?;
        }
        expected += burst.len() as u64;
        let begin = Instant::now();
        while taken(lab)? < expected {
            ensure!(begin.elapsed() < LIMIT, "{} of {expected} frames were taken", taken(lab)?);
        }
    }
    Ok(())
}

/// Returns the number of frames that the stack has read from the tap, by the kernel's count.
fn taken(lab: &Lab) -> Result<u64> {
    let text = lab.namespace.shell("cat /sys/class/net/ql0/statistics/tx_packets")?;
    text.trim().parse().with_context(|| format!("a number of packets: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_counted_and_harms_nothing() -> Result<()> {
        let name = "garbage_is_counted_and_harms_nothing";
        let Some(lab) = Lab::open(name, &["socat", "ping"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", 1 << 20, 1)?;
        // Without vnet_hdr the stack verifies every checksum itself.
        let link = Link { vnet_hdr: false, ..Link::default() };
        let mut server = lab.serve(&link, &["echo", "--port", "7", "--stats", "--json"])?;
        let mac = mac_of_the_stack(&lab)?;
        let path = lab.file("frames");
        let mut socat = lab.namespace.command("socat");
        socat.args(["-u", &format!("UNIX-RECV:{}", path.display()), "INTERFACE:ql0"]);
        let injector = Running::start(&mut socat)?;
        let deadline = Instant::now() + LIMIT;
        while !path.exists() {
            ensure!(Instant::now() < deadline, "socat: {}", injector.stderr_so_far());
            sleep(Duration::from_millis(5));
        }
        let wrong = wrong_frames(mac);
        let frames = wrong.iter().map(|(_, frame)| frame.clone());
        let frames: Vec<_> = frames.chain((0..MUTANTS).map(|seed| mutant(mac, seed))).collect();
        send_all(&lab, &path, &frames)?;

        let line = format!("socat -t30 - TCP:{STACK}:7 <in | sha256sum");
        ensure!(lab.shell(&line)?.starts_with(&content.sha256), "an honest client got garbage");
        server.assert_alive()?;
        let ended = server.interrupt()?;
        ensure!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        let report = Report::of(&ended)?;
        for (reason, _) in &wrong {
            ensure!(report.counter(reason)? > 0, "nothing was dropped as {reason}");
        }
        let (received, dropped) = (report.counter("SoftnetProcessed")?, report.drops());
        println!("{dropped} of {received} frames dropped with a reason");
        ensure!(received > frames.len() as u64, "only {received} frames arrived");
        ensure!(dropped > MUTANTS / 4, "only {dropped} frames were dropped");
        Ok(())
    }
}
