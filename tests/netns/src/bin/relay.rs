//! Two namespaces joined by a simulated path: a packet that enters one tun device leaves the other
//! late, or is lost.
//!
//! The kernel of a test machine may have no netem. The relay is the part of it that a comparison of
//! TCPs needs: for each direction a rate with a queue in front, a delay, and random loss from a
//! seed. Packets are never reordered, changed or merged: neither device offers an offload.
//!
//!     relay LEFT RIGHT [delay_us=N] [rate_bps=N] [queue=PACKETS] [loss=FRACTION] [seed=N]
//!
//! LEFT and RIGHT are namespaces as ip-netns(8) names them; each gets a device `imp0`, which is
//! removed when the relay ends. The relay prints `ready` on stderr, ends at SIGINT, and prints the
//! packet counts, a line for each direction. SIGUSR1 restarts the random sequence: transfers that
//! begin after it lose the same packets, by their numbers, as long as they send alike.
//!
//! Not here: addresses and routes (`netns_tests::Impaired`), TCP.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The device in each namespace.
const DEVICE: &str = "imp0";

/// Bytes that a frame occupies on a real link besides its IP packet: Ethernet header and FCS,
/// preamble, gap.
const FRAMING_BYTES: u64 = 38;

/// Longest sleep, so that a stop request is noticed.
const NAP: Duration = Duration::from_millis(50);

/// Effects of both directions on packets.
#[derive(Clone, Copy, Debug)]
struct Impairment {
    delay: Duration,
    rate_bps: u64,
    queue: usize,
    loss: f64,
    seed: u64,
}

/// Packets of one direction by outcome.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    received: u64,
    lost: u64,
    overflowed: u64,
    delivered: u64,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (ends, settings) = words.split_at_checked(2).context("relay LEFT RIGHT [NAME=VALUE …]")?;
    let impairment = parse(settings)?;
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    let again = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&again))?;
    let left = open(&ends[0])?;
    let right = open(&ends[1])?;
    eprintln!("ready");
    let forward = Direction::new(impairment, impairment.seed);
    let backward = Direction::new(impairment, !impairment.seed);
    let epoch = AtomicU64::new(0);
    let (there, back) = thread::scope(|scope| {
        let there = scope.spawn(|| forward.run(&left, &right, (&stop, &epoch)));
        let back = scope.spawn(|| backward.run(&right, &left, (&stop, &epoch)));
        while !stop.load(Ordering::Relaxed) {
            if again.swap(false, Ordering::Relaxed) {
                epoch.fetch_add(1, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(2));
        }
        (there.join(), back.join())
    });
    for (name, counts) in [("there", there), ("back", back)] {
        let Ok(counts) = counts else { bail!("the thread of {name} panicked") };
        let Counts { received, lost, overflowed, delivered } = counts?;
        println!("{name} {received} {lost} {overflowed} {delivered}");
    }
    Ok(())
}

fn parse(settings: &[String]) -> Result<Impairment> {
    let mut impairment =
        Impairment { delay: Duration::ZERO, rate_bps: 20_000_000, queue: 100, loss: 0.0, seed: 1 };
    for setting in settings {
        let (name, value) = setting.split_once('=').context("NAME=VALUE")?;
        match name {
            "delay_us" => impairment.delay = Duration::from_micros(value.parse()?),
            "rate_bps" => impairment.rate_bps = value.parse()?,
            "queue" => impairment.queue = value.parse()?,
            "loss" => impairment.loss = value.parse()?,
            "seed" => impairment.seed = value.parse()?,
            _ => bail!("{name}: no such setting"),
        }
    }
    ensure!(impairment.rate_bps > 0 && impairment.queue > 0, "a rate and a queue above 0");
    ensure!((0.0..=1.0).contains(&impairment.loss), "loss: a fraction between 0 and 1");
    Ok(impairment)
}

/// Makes a tun device in `namespace`, which exists as long as its descriptor.
fn open(namespace: &str) -> Result<OwnedFd> {
    let path = format!("/run/netns/{namespace}");
    let inside = File::open(&path).with_context(|| format!("opening {path}"))?;
    // A thread of its own, because it cannot leave the namespace again.
    let made = thread::spawn(move || -> Result<OwnedFd> {
        move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
        attach(&tun)?;
        Ok(tun)
    });
    made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Creates the device: layer 3, without a header in front of packets.
fn attach(tun: &OwnedFd) -> Result<()> {
    let mut request = [0_u8; size_of::<libc::ifreq>()];
    request[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    let flags = i16::try_from(libc::IFF_TUN | libc::IFF_NO_PI).context("the flags fit")?;
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 2].copy_from_slice(&flags.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes one `ifreq` at the given address; `request` has its size
    // and outlives the call, and bytes need no alignment because the kernel copies them.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    ensure!(result == 0, "TUNSETIFF: {}", std::io::Error::last_os_error());
    Ok(())
}

/// One direction.
struct Direction {
    impairment: Impairment,
    /// When the link becomes idle.
    idle_at: Instant,
    /// When each packet has left the queue in front of the link.
    departures: VecDeque<Instant>,
    /// Packets in flight, in order.
    flying: VecDeque<(Instant, Vec<u8>)>,
    chance: u64,
    /// Seed of the random sequence.
    seed: u64,
    epoch: u64,
    counts: Counts,
}

impl Direction {
    fn new(impairment: Impairment, seed: u64) -> Self {
        Self {
            impairment,
            idle_at: Instant::now(),
            departures: VecDeque::new(),
            flying: VecDeque::new(),
            chance: seed,
            seed,
            epoch: 0,
            counts: Counts::default(),
        }
    }

    /// Relays packets until `stop` is set.
    fn run(
        mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        (stop, epoch): (&AtomicBool, &AtomicU64),
    ) -> Result<Counts> {
        let mut buffer = vec![0; 65_536];
        while !stop.load(Ordering::Relaxed) {
            self.wait(from)?;
            let now = epoch.load(Ordering::Relaxed);
            if now != self.epoch {
                // Two transfers begin with each number: the pair that is compared.
                self.epoch = now;
                self.chance = self.seed.wrapping_add((now.saturating_sub(1) / 2) << 32);
            }
            loop {
                match rustix::io::read(from, &mut buffer) {
                    Ok(length) => self.enter(Instant::now(), &buffer[..length]),
                    Err(Errno::AGAIN) => break,
                    // The device is not up yet.
                    Err(Errno::IO) => {
                        thread::sleep(Duration::from_millis(1));
                        break;
                    }
                    Err(error) => return Err(error).context("reading the device"),
                }
            }
            self.leave(to)?;
        }
        Ok(self.counts)
    }

    /// Waits until a packet arrives at the device, or the next one in flight is due.
    fn wait(&self, from: &OwnedFd) -> Result<()> {
        let now = Instant::now();
        let next = self.flying.front().map_or(NAP, |(due, _)| due.saturating_duration_since(now));
        let timeout = Timespec::try_from(next.min(NAP)).context("a short time")?;
        let mut fds = [PollFd::new(from, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("waiting for a packet"),
        }
    }

    /// Passes a packet through the queue, the link and random loss.
    fn enter(&mut self, now: Instant, packet: &[u8]) {
        self.counts.received += 1;
        while self.departures.front().is_some_and(|left| *left <= now) {
            self.departures.pop_front();
        }
        if self.departures.len() >= self.impairment.queue {
            self.counts.overflowed += 1;
            return;
        }
        let bits = (packet.len() as u64 + FRAMING_BYTES) * 8;
        let takes = Duration::from_nanos(bits * 1_000_000_000 / self.impairment.rate_bps);
        self.idle_at = self.idle_at.max(now) + takes;
        self.departures.push_back(self.idle_at);
        if self.draw() < self.impairment.loss {
            self.counts.lost += 1;
            return;
        }
        self.flying.push_back((self.idle_at + self.impairment.delay, packet.to_vec()));
    }

    /// Delivers the packets that are due.
    fn leave(&mut self, to: &OwnedFd) -> Result<()> {
        let now = Instant::now();
        while self.flying.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, packet)) = self.flying.pop_front() else { break };
            match rustix::io::write(to, &packet) {
                Ok(_) => self.counts.delivered += 1,
                // The other device is down.
                Err(Errno::IO | Errno::NOBUFS | Errno::AGAIN) => self.counts.lost += 1,
                Err(error) => return Err(error).context("writing to the device"),
            }
        }
        Ok(())
    }

    /// Draws a number between 0 and 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.chance;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let high = u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or(u32::MAX);
        f64::from(high) / 4_294_967_296.0
    }
}
