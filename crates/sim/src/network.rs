//! A network of hosts, made of bytes: every frame is parsed when it is sent, passes through the
//! faults of its path, and is received as from the ring of a network card.
//!
//! Above: the hosts of one world, each with one [`Port`] and the address that [`address`] gives it.
//! Frames of a port pass through its [`PathConfig`] (rate, queue, delay, loss, …) to the port of
//! their destination. The network is a router in between: it reports packets above the MTU by ICMP,
//! and cuts IPv4 packets without DF into fragments.
//! Paths change while time passes ([`Change`]).
//!
//! [`Network::check`] asserts that every frame sent was delivered, is in flight, or was counted
//! with the reason for its loss.
//!
//! Not here: link addresses (frames begin with the IP header), the behavior of hosts, the times of
//! changes (`scenario`).

mod capture;
pub(crate) mod edit;
mod path;
mod port;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use pkt::{Gso, GsoKind, Instant};
use stack::{
    Capabilities,
    base::limits::{BIG_TCP_BYTES_MAX, GSO_BYTES_MAX},
    device::{Doorbell, LinkType},
    header::{
        icmp::IcmpMessage,
        ip::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, protocol},
    },
};

pub use capture::Capture;
pub use path::{Burst, Change, Fate, PathConfig};
pub use port::{Port, PortConfig};

pub use crate::suite::{Version, address};

use self::path::Path;
use crate::frame::{self, Ipv4};

/// Source address of the network's ICMP errors.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 254);

/// Source address of the network's ICMPv6 errors.
pub const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 254);

/// Offloads of a network's devices, and the treatment of superframes in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Devices without offloads: every frame carries its checksum and fits the MTU.
    None,
    /// TSO as in a network card: superframes are cut where they enter the network.
    Cut,
    /// Superframes travel whole, and are lost or delivered whole, as between virtual devices.
    Whole,
}

/// Frames by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent by hosts. Segments of a superframe that was cut, and fragments, count one by one.
    pub sent: u64,
    /// Packets that the network cut into fragments.
    pub cut: u64,
    /// Copies that the network made.
    pub duplicated: u64,
    /// ICMP errors that the network sent.
    pub icmp: u64,
    /// Received by hosts.
    pub delivered: u64,
    /// Lost, by [`Fate`].
    pub lost: [u64; Fate::COUNT],
    /// Frames delivered with a bit flipped, a part of those sent.
    pub corrupted: u64,
    /// Frames marked Congestion Experienced, a part of those sent.
    pub marked: u64,
    /// Sent frames longer than a length field can express (BIG TCP).
    pub big: u64,
}

/// A frame in flight.
#[derive(Clone, Debug)]
struct Frame {
    bytes: Vec<u8>,
    gso: Gso,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    doorbells: Vec<OnceLock<Doorbell>>,
}

struct State {
    offload: Offload,
    paths: Vec<Path>,
    /// Frames in flight to each port, by arrival time and sending order.
    inboxes: Vec<BTreeMap<(Instant, u64), Frame>>,
    order: u64,
    counts: Counts,
    /// Frames delivered, per port.
    delivered: Vec<u64>,
    capture: Option<Capture>,
    /// A deliberate fault of the network, to test the checks.
    sabotage: Option<Sabotage>,
}

/// A deliberate fault, which the checks of a run must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A payload byte of the n-th frame with data is changed and its checksum made to fit.
    Forge(u64),
    /// The n-th frame is dropped without being counted.
    Vanish(u64),
    /// From the n-th frame on, nothing is delivered.
    Silence(u64),
    /// From the n-th frame on, every frame arrives twice.
    Repeat(u64),
}

/// Network of hosts, made of bytes.
#[derive(Clone, Debug)]
pub struct Network {
    shared: Arc<Shared>,
    ports: Vec<Arc<Port>>,
}

impl Network {
    /// Makes a network with one port for each of `paths`, whose devices have the MTU of `config`.
    /// The times of [`Change`]s count from `start`; random numbers come from `seed`.
    #[must_use]
    pub fn new(paths: &[PathConfig], config: PortConfig, seed: u64, start: Instant) -> Self {
        let PortConfig { mtu, offload, completes_after, .. } = config;
        let mut rng = tcp::Rng::new(seed);
        let paths: Vec<Path> =
            paths.iter().map(|config| Path::new(config.clone(), rng.next_u64(), start)).collect();
        let count = paths.len();
        let state = State {
            offload,
            paths,
            inboxes: vec![BTreeMap::new(); count],
            order: 0,
            counts: Counts::default(),
            delivered: vec![0; count],
            capture: None,
            sabotage: None,
        };
        let doorbells = (0..count).map(|_| OnceLock::new()).collect();
        let shared = Arc::new(Shared { state: Mutex::new(state), doorbells });
        let tso = offload != Offload::None;
        let port = |index| {
            let caps = Capabilities {
                tx_checksum: tso,
                tso4: tso,
                tso6: tso,
                gso_max_bytes: BIG_TCP_BYTES_MAX,
                async_completion: completes_after.is_some(),
                ..Capabilities::plain(format!("port{index}"), mtu, LinkType::Ip)
            };
            let shared = Arc::clone(&shared);
            Arc::new(Port { caps, index, config, sent: Mutex::default(), shared })
        };
        let ports = (0..count).map(port).collect();
        Self { shared, ports }
    }

    /// Returns the device of the host with this index.
    #[must_use]
    pub fn port(&self, index: usize) -> Arc<Port> {
        Arc::clone(&self.ports[index])
    }

    /// Records every frame from now on.
    pub fn capture(&self, capture: Capture) {
        lock(&self.shared).capture = Some(capture);
    }

    /// Puts a deliberate fault into the network.
    pub fn sabotage(&self, sabotage: Sabotage) {
        lock(&self.shared).sabotage = Some(sabotage);
    }

    /// Returns the counts of frames by outcome.
    #[must_use]
    pub fn counts(&self) -> Counts {
        lock(&self.shared).counts
    }

    /// Returns the number of frames that the host at port `index` has received.
    #[must_use]
    pub fn delivered(&self, index: usize) -> u64 {
        lock(&self.shared).delivered[index]
    }

    /// Returns the bytes charged to senders for packets that port `index` has sent and not
    /// completed.
    #[must_use]
    pub fn charged(&self, index: usize) -> u64 {
        self.ports[index].sent().charged
    }

    /// Returns the number of frames lost by chance so far: individually, in bursts, or because of a
    /// flipped bit.
    #[must_use]
    pub fn lost_by_chance(&self) -> u64 {
        let Counts { lost, corrupted, .. } = lock(&self.shared).counts;
        lost[Fate::Loss as usize] + lost[Fate::Burst as usize] + corrupted
    }

    /// Asserts that every frame is accounted for. Returns the number of frames in flight.
    ///
    /// # Panics
    /// When a frame is missing.
    pub fn check(&self) -> usize {
        let state = lock(&self.shared);
        let on_the_way: usize = state.inboxes.iter().map(BTreeMap::len).sum();
        let Counts { sent, duplicated, icmp, delivered, lost, .. } = state.counts;
        let ended = delivered + lost.iter().sum::<u64>() + on_the_way as u64;
        assert_eq!(
            sent + duplicated + icmp,
            ended,
            "frames in and out of the network: {:?}",
            state.counts
        );
        on_the_way
    }
}

impl State {
    /// Sends a frame of the host at port `from`.
    fn send(&mut self, from: usize, now: Instant, frame: Frame) {
        self.record(from, now, true, &frame.bytes);
        self.counts.big += u64::from(frame.bytes.len() > GSO_BYTES_MAX as usize);
        if self.offload == Offload::Cut && frame.gso.kind != GsoKind::None {
            for bytes in edit::segments(&frame.bytes, frame.gso) {
                self.travel(from, now, Frame { bytes, gso: Gso::default() });
            }
        } else {
            self.travel(from, now, frame);
        }
    }

    /// Sends one frame through its path.
    fn travel(&mut self, from: usize, now: Instant, mut frame: Frame) {
        let path = &mut self.paths[from];
        path.advance(now);
        let mtu = path.config.mtu as usize;
        if frame.gso.kind == GsoKind::None
            && frame.bytes.len() > mtu
            && let Some(fragments) = edit::fragments(&frame.bytes, mtu)
        {
            self.counts.cut += 1;
            for bytes in fragments {
                self.travel(from, now, Frame { bytes, gso: Gso::default() });
            }
            return;
        }
        self.counts.sent += 1;
        if self.is_sabotaged(&mut frame) {
            return;
        }
        let Some(to) = edit::destination(&frame.bytes).filter(|to| *to < self.paths.len()) else {
            return self.lose(Fate::Unroutable);
        };
        let path = &mut self.paths[from];
        let size = edit::packet_bytes(&frame.bytes, frame.gso);
        if path.is_dark() {
            return self.lose(Fate::Blackout);
        }
        if size > path.config.mtu as usize {
            let (mtu, tells) = (path.config.mtu, path.config.tells_mtu);
            let delay = path.config.delay;
            self.lose(Fate::TooBig);
            if tells {
                self.too_big(from, now + delay, mtu, &frame.bytes);
            }
            return;
        }
        let due = match path.pass(now, frame.bytes.len()) {
            Ok(due) => due,
            Err(fate) => return self.lose(fate),
        };
        if path.wants_mark(now) && edit::mark_congestion(&mut frame.bytes) {
            self.counts.marked += 1;
        }
        let path = &mut self.paths[from];
        if self.offload != Offload::Whole && path.corrupts() {
            path.flip_one_bit(&mut frame.bytes);
            self.counts.corrupted += 1;
        }
        let repeats = matches!(self.sabotage, Some(Sabotage::Repeat(n)) if self.counts.sent >= n);
        if path.duplicates() || repeats {
            let again = due + path.copy_delay();
            self.counts.duplicated += 1;
            self.put(to, again, frame.clone());
        }
        self.put(to, due, frame);
    }

    fn put(&mut self, to: usize, due: Instant, frame: Frame) {
        self.order += 1;
        self.inboxes[to].insert((due, self.order), frame);
    }

    fn lose(&mut self, fate: Fate) {
        self.counts.lost[fate as usize] += 1;
    }

    /// RFC 1191 §4, RFC 8201 §4: the router reports the MTU that would have fitted.
    fn too_big(&mut self, to: usize, due: Instant, mtu: u32, packet: &[u8]) {
        // The IP header, the ports and the sequence number: every router quotes at least these.
        let v6 = edit::is_v6(packet);
        let header_len = if v6 { IPV6_HEADER_LEN } else { IPV4_HEADER_LEN };
        let quoted = &packet[..packet.len().min(header_len + 8)];
        let message = IcmpMessage::PacketTooBig { mtu };
        let bytes = match Version::V6.address(to) {
            IpAddr::V6(host) if v6 => {
                let message = frame::icmpv6(ROUTER_V6, host, &message, quoted);
                frame::ipv6(ROUTER_V6, host, protocol::ICMPV6, &message)
            }
            _ => {
                Ipv4::new(ROUTER, address(to), protocol::ICMP).with(&frame::icmp(&message, quoted))
            }
        };
        self.counts.icmp += 1;
        self.put(to, due, Frame { bytes, gso: Gso::default() });
    }

    fn is_sabotaged(&mut self, frame: &mut Frame) -> bool {
        match self.sabotage {
            Some(Sabotage::Forge(n)) if self.counts.sent >= n => {
                if edit::forge(&mut frame.bytes) {
                    self.sabotage = None;
                }
                false
            }
            Some(Sabotage::Vanish(n)) if self.counts.sent >= n => {
                self.sabotage = None;
                true
            }
            Some(Sabotage::Silence(n)) if self.counts.sent >= n => {
                self.lose(Fate::Blackout);
                true
            }
            _ => false,
        }
    }

    fn record(&self, port: usize, now: Instant, outbound: bool, bytes: &[u8]) {
        if let Some(capture) = &self.capture {
            capture.record(port, now, outbound, bytes);
        }
    }

    /// Takes the next frame for `port` that is due.
    fn take(&mut self, port: usize, now: Instant) -> Option<Frame> {
        let first = self.inboxes[port].first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let frame = first.remove();
        self.record(port, now, false, &frame.bytes);
        Some(frame)
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns how long a frame of `bytes` occupies a link of `rate_bps`, framing included.
fn transmission_time(rate_bps: u64, bytes: usize) -> Duration {
    /// Ethernet header and FCS, preamble, gap.
    const FRAMING_BYTES: u64 = 38;
    Duration::from_nanos((bytes as u64 + FRAMING_BYTES) * 8 * 1_000_000_000 / rate_bps.max(1))
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("counts", &self.counts).finish_non_exhaustive()
    }
}
