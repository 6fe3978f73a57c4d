//! A minimal TCP that the kernel accepts, on a tap with vnet_hdr: it measures the throughput that a
//! stack without any cost would have.
//!
//! It serves one connection at a time. When reading, it takes one superframe per read and
//! acknowledges the received bytes. When writing, it sends one superframe after the other, up to
//! the kernel's window, from one buffer that it never reads. It has one timer, and its only loss
//! recovery restarts from the last acknowledgment. It has no congestion control, and no options
//! except the segment size and the window scale.
//!
//! Not here: any other mechanism of a real connection.

use std::io::{IoSlice, IoSliceMut};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use pkt::Sum;
use quietline::device::tun::{Tun, TunConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, writev};

/// Arguments of the hidden command `bound-serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Service for each connection.
    #[arg(value_enum)]
    service: Service,
    /// Name of the tap to create.
    #[arg(long)]
    tap: String,
    /// Address and prefix of the kernel's side.
    #[arg(long)]
    peer: String,
    /// Address of this program.
    #[arg(long)]
    address: Ipv4Addr,
    /// Port of this program.
    #[arg(long)]
    port: u16,
    /// MTU of the tap.
    #[arg(long, default_value_t = 1500)]
    mtu: u16,
}

/// Direction of the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// Reads to the end, then closes.
    Read,
    /// Sends until the peer closes.
    Write,
}

const MAC: [u8; 6] = [0x02, 0x51, 0x4c, 0, 0, 1];
const VNET: usize = 12;
const ETHERNET: usize = 14;
const IP: usize = 20;
const TCP: usize = 20;
/// Start of each header in a frame, as frames are read and written.
const AT_IP: usize = VNET + ETHERNET;
const AT_TCP: usize = AT_IP + IP;
const HEADERS: usize = AT_TCP + TCP;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Window scale of the advertised window: 64 MB, more than the kernel fills.
const WINDOW_SCALE: u8 = 10;

/// Received bytes after which an acknowledgment is sent, even if more bytes wait to be read.
const ACK_EVERY: u32 = 256 << 10;

/// Time to poll the tap before sleeping: about the cost of a wake.
const SPIN: Duration = Duration::from_micros(20);

/// Time without progress after which outstanding bytes are considered lost.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// State of the connection.
#[derive(Debug, Clone, Copy, Default)]
struct Connection {
    peer_mac: [u8; 6],
    peer: [u8; 4],
    peer_port: [u8; 2],
    established: bool,
    rcv_nxt: u32,
    /// Bytes that are received and not yet acknowledged.
    unacked: u32,
    snd_una: u32,
    snd_nxt: u32,
    snd_wnd: u32,
    peer_scale: u8,
    finished: bool,
}

struct Bound<'a> {
    fd: BorrowedFd<'a>,
    service: Service,
    address: [u8; 4],
    port: [u8; 2],
    mss: u16,
    connection: Connection,
    /// Payload of one superframe; all bytes are equal.
    payload: Vec<u8>,
    moved: Instant,
}

/// Serves until killed.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let mut config = TunConfig::tap(&args.tap);
    config.mac = Some(MAC);
    config.mtu = args.mtu.into();
    config.host_address = Some(
        args.peer.parse().context("invalid --peer: expected an address and its prefix length")?,
    );
    let tun = Tun::create(&config)?;
    let mss = args.mtu - (IP + TCP) as u16;
    let segments = (65_535 - IP - TCP) / usize::from(mss);
    let mut bound = Bound {
        fd: tun.poll_fd(0),
        service: args.service,
        address: args.address.octets(),
        port: args.port.to_be_bytes(),
        mss,
        connection: Connection::default(),
        payload: vec![0x5a; segments * usize::from(mss)],
        moved: Instant::now(),
    };
    eprintln!("listening on {}:{}", args.address, args.port);
    bound.run()
}

impl Bound<'_> {
    fn run(&mut self) -> Result<()> {
        let mut frame = vec![0; VNET + ETHERNET + 4 + 65_536];
        let mut idle_since: Option<Instant> = None;
        loop {
            // A read has a cost: while the window is open, one read after several writes is often
            // enough.
            let wrote = self.write_what_fits()?;
            match readv(self.fd, &mut [IoSliceMut::new(&mut frame)]) {
                Ok(length) => {
                    idle_since = None;
                    self.handle(&mut frame[..length])?;
                }
                Err(Errno::AGAIN) => {
                    self.acknowledge()?;
                    if wrote {
                        continue;
                    }
                    let now = Instant::now();
                    self.start_again_if_lost(now);
                    let since = *idle_since.get_or_insert(now);
                    if now - since > SPIN {
                        self.sleep()?;
                        idle_since = None;
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot read the tap"),
            }
        }
    }

    fn sleep(&self) -> Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOST_AFTER.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait on the tap"),
        }
    }

    fn start_again_if_lost(&mut self, now: Instant) {
        let Connection { snd_una, snd_nxt, .. } = self.connection;
        if self.service == Service::Write && snd_una != snd_nxt && now - self.moved > LOST_AFTER {
            eprintln!("retransmitting {} lost bytes", snd_nxt.wrapping_sub(snd_una));
            self.connection.snd_nxt = snd_una;
            self.moved = now;
        }
    }

    /// Writes up to eight superframes within the window. Returns true if there was room for at
    /// least one.
    fn write_what_fits(&mut self) -> Result<bool> {
        if self.service != Service::Write || !self.connection.established {
            return Ok(false);
        }
        let payload = std::mem::take(&mut self.payload);
        let mut wrote = false;
        for _ in 0..8 {
            let Connection { snd_una, snd_nxt, snd_wnd, .. } = self.connection;
            let room = snd_wnd.saturating_sub(snd_nxt.wrapping_sub(snd_una)) as usize;
            // A superframe, or the rest of a small window if no byte is in flight.
            let length = if room >= payload.len() {
                payload.len()
            } else if snd_una == snd_nxt {
                room
            } else {
                0
            };
            if length == 0 {
                break;
            }
            self.segment(ACK, &[], &payload[..length])?;
            self.connection.snd_nxt = snd_nxt.wrapping_add(length as u32);
            wrote = true;
        }
        self.payload = payload;
        Ok(wrote)
    }

    fn acknowledge(&mut self) -> Result<()> {
        if self.connection.unacked == 0 {
            return Ok(());
        }
        self.segment(ACK, &[], &[])
    }

    fn handle(&mut self, frame: &mut [u8]) -> Result<()> {
        match frame.get(VNET + 12..VNET + 14) {
            Some([0x08, 0x06]) => self.answer_arp(frame),
            Some([0x08, 0x00]) if frame.len() >= HEADERS && frame[AT_IP + 9] == 6 => {
                self.input(frame)
            }
            _ => Ok(()),
        }
    }

    /// Answers an ARP request (RFC 826) for this program's address.
    fn answer_arp(&self, frame: &mut [u8]) -> Result<()> {
        let Some(arp) = frame.get_mut(AT_IP..AT_IP + 28) else { return Ok(()) };
        if arp[7] != 1 || arp[24..28] != self.address {
            return Ok(());
        }
        arp[7] = 2;
        let (ours, theirs) = arp[8..].split_at_mut(10);
        theirs.copy_from_slice(ours);
        ours[..6].copy_from_slice(&MAC);
        ours[6..].copy_from_slice(&self.address);
        let peer_mac: [u8; 6] = theirs[..6].try_into()?;
        frame[VNET..VNET + 6].copy_from_slice(&peer_mac);
        frame[VNET + 6..VNET + 12].copy_from_slice(&MAC);
        frame[..VNET].fill(0);
        self.write(&[IoSlice::new(&frame[..AT_IP + 28])])
    }

    fn input(&mut self, frame: &[u8]) -> Result<()> {
        let tcp = &frame[AT_TCP..];
        if tcp[2..4] != self.port {
            return Ok(());
        }
        let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let (seq, ack, flags) = (word(4), word(8), tcp[13]);
        let header_length = usize::from(tcp[12] >> 4) * 4;
        let window = u16::from_be_bytes([tcp[14], tcp[15]]);
        if flags & SYN != 0 {
            self.connection = Connection {
                peer_mac: frame[VNET + 6..VNET + 12].try_into()?,
                peer: frame[AT_IP + 12..AT_IP + 16].try_into()?,
                peer_port: tcp[0..2].try_into()?,
                rcv_nxt: seq.wrapping_add(1),
                peer_scale: window_scale(tcp.get(20..header_length).unwrap_or_default()),
                ..Connection::default()
            };
            let [high, low] = self.mss.to_be_bytes();
            self.segment(SYN | ACK, &[2, 4, high, low, 3, 3, WINDOW_SCALE, 0], &[])?;
            self.connection.snd_nxt = 1;
            return Ok(());
        }
        if tcp[0..2] != self.connection.peer_port || self.connection.finished {
            return Ok(());
        }
        if flags & RST != 0 {
            self.connection = Connection::default();
            return Ok(());
        }
        let connection = &mut self.connection;
        connection.established = true;
        if ack != connection.snd_una {
            connection.snd_una = ack;
            self.moved = Instant::now();
        }
        connection.snd_wnd = u32::from(window) << connection.peer_scale;
        let ip_length = usize::from(u16::from_be_bytes([frame[AT_IP + 2], frame[AT_IP + 3]]));
        let payload = (ip_length - IP - header_length) as u32;
        if seq != connection.rcv_nxt {
            // A segment is missing, or has arrived twice.
            connection.unacked += 1;
            return self.acknowledge();
        }
        connection.rcv_nxt = connection.rcv_nxt.wrapping_add(payload);
        connection.unacked += payload;
        if flags & FIN != 0 {
            connection.rcv_nxt = connection.rcv_nxt.wrapping_add(1);
            self.segment(FIN | ACK, &[], &[])?;
            self.connection.finished = true;
            self.connection.established = false;
        } else if connection.unacked >= ACK_EVERY {
            self.acknowledge()?;
        }
        Ok(())
    }

    /// Sends a segment that acknowledges all bytes received so far. The kernel completes the
    /// checksum, and accepts it unverified.
    fn segment(&mut self, flags: u8, options: &[u8], payload: &[u8]) -> Result<()> {
        let connection = &mut self.connection;
        connection.unacked = 0;
        let tcp_length = TCP + options.len() + payload.len();
        let mut head = [0; HEADERS + 8];
        // virtio_net_hdr: a partial checksum, and a segment size if there is more than one segment.
        head[0] = 1;
        if payload.len() > usize::from(self.mss) {
            head[1] = 1;
            head[2..4].copy_from_slice(&((ETHERNET + IP + TCP) as u16).to_ne_bytes());
            head[4..6].copy_from_slice(&self.mss.to_ne_bytes());
        }
        head[6..8].copy_from_slice(&((ETHERNET + IP) as u16).to_ne_bytes());
        head[8..10].copy_from_slice(&16u16.to_ne_bytes());
        head[VNET..VNET + 6].copy_from_slice(&connection.peer_mac);
        head[VNET + 6..VNET + 12].copy_from_slice(&MAC);
        head[VNET + 12..AT_IP].copy_from_slice(&[0x08, 0x00]);
        let ip = &mut head[AT_IP..AT_TCP];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&((IP + tcp_length) as u16).to_be_bytes());
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = 6;
        ip[12..16].copy_from_slice(&self.address);
        ip[16..20].copy_from_slice(&connection.peer);
        let checksum = Sum::of(ip).finish();
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let tcp = &mut head[AT_TCP..];
        tcp[0..2].copy_from_slice(&self.port);
        tcp[2..4].copy_from_slice(&connection.peer_port);
        tcp[4..8].copy_from_slice(&connection.snd_nxt.to_be_bytes());
        tcp[8..12].copy_from_slice(&connection.rcv_nxt.to_be_bytes());
        tcp[12] = ((TCP + options.len()) << 2) as u8;
        tcp[13] = flags;
        tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        let (us, them) = (Ipv4Addr::from(self.address), Ipv4Addr::from(connection.peer));
        let pseudo = pkt::checksum::pseudo_header(us.into(), them.into(), 6, tcp_length as u32);
        tcp[16..18].copy_from_slice(&pseudo.fold().to_be_bytes());
        tcp[TCP..][..options.len()].copy_from_slice(options);
        let head = &head[..HEADERS + options.len()];
        if payload.is_empty() {
            self.write(&[IoSlice::new(head)])
        } else {
            self.write(&[IoSlice::new(head), IoSlice::new(payload)])
        }
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<()> {
        loop {
            match writev(self.fd, pieces) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot write to the tap"),
            }
        }
    }
}

/// Returns the shift of the peer's window scale option, 0 without one.
fn window_scale(mut options: &[u8]) -> u8 {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [3, 3, shift, ..] => return *shift,
            [kind, length, ..] if *kind != 0 && *length >= 2 => {
                options = options.get(usize::from(*length)..).unwrap_or_default();
            }
            _ => return 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_scale_is_found_among_other_options() {
        let linux = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(window_scale(&linux), 7);
        assert_eq!(window_scale(&[]), 0);
        assert_eq!(window_scale(&[2, 4, 5]), 0);
    }
}
