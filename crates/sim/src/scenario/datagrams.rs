//! Datagrams of a scenario: each one that arrives was sent, is unchanged, and arrives once, unless
//! the network duplicates.
//!
//! A datagram begins with the number of its flow and its own; both decide its length and its bytes.
//! Sizes reach beyond the MTU, so that datagrams are also sent in fragments.
//!
//! Above: `play`. Not here: the plan of each flow (`draw`).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use pkt::Instant;
use stack::{
    Errno, Readiness,
    socket::{
        DatagramSocket,
        datagram::{ReceiveMessage, SendMessage},
        options::{OptionValue, SocketOption, SocketSettings},
    },
};
use tcp::Rng;

use super::Scenario;
use crate::{World, apps::Pattern};

/// Ports of the first flow's sender and receiver.
const PORTS: [u16; 2] = [2000, 3000];

/// Bytes of the two numbers at the front of a datagram.
const NUMBERS_BYTES: u32 = 8;

/// Time after which a send that found the send buffer full is repeated.
const RETRY: Duration = Duration::from_millis(1);

/// Largest number of reports of a path MTU that the sends of a flow return: a path changes its MTU
/// rarely.
const REPORTS_MAX: u32 = 8;

/// Datagrams from one host to another.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The host that sends.
    pub from: usize,
    /// The host that receives.
    pub to: usize,
    /// Start, as time since the start of the run.
    pub at: Duration,
    /// Number of datagrams.
    pub count: u32,
    /// Largest payload, at least eight bytes.
    pub size_max: u32,
    /// Every datagram has the largest payload.
    pub equal: bool,
    /// Upper bound of the pause between two sends.
    pub pause: Duration,
    /// Largest number of datagrams that one call sends.
    pub batch: u32,
    /// Both sockets are connected to each other.
    pub connected: bool,
    /// The receiver has `UDP_GRO`.
    pub joins: bool,
}

impl Flow {
    /// Returns the payload of the flow `flow` with this number.
    fn payload(&self, seed: u64, flow: u32, number: u32) -> Vec<u8> {
        let own = seed.wrapping_mul(1_000_003) ^ u64::from(flow) << 32 ^ u64::from(number);
        let spare = self.size_max - NUMBERS_BYTES;
        let len = if self.equal { spare } else { Rng::new(own).below(spare + 1) };
        let mut bytes = vec![0; (NUMBERS_BYTES + len) as usize];
        bytes[..4].copy_from_slice(&flow.to_be_bytes());
        bytes[4..8].copy_from_slice(&number.to_be_bytes());
        Pattern(own).fill(0, &mut bytes[NUMBERS_BYTES as usize..]);
        bytes
    }
}

/// The state of a flow.
#[derive(Debug)]
pub(super) struct Datagrams<'a> {
    plan: &'a Flow,
    seed: u64,
    flow: u32,
    sender: Arc<DatagramSocket>,
    receiver: Arc<DatagramSocket>,
    /// Number of datagrams sent.
    sent: u32,
    /// Reports of a path MTU that sends have returned.
    reports: u32,
    /// Time of the next send.
    due: Instant,
    /// Number of arrivals of each datagram.
    seen: Vec<u32>,
    rng: Rng,
    /// Whether the path of the flow duplicates.
    repeats: bool,
    /// Whether the path of the flow flips bits.
    corrupts: bool,
    buffers: Vec<Vec<u8>>,
}

impl<'a> Datagrams<'a> {
    /// Opens the sockets of flow `flow` of `scenario`.
    pub(super) fn new(world: &mut World, scenario: &'a Scenario, flow: usize) -> Self {
        let plan = &scenario.datagrams[flow];
        let ends = [(plan.from, PORTS[0]), (plan.to, PORTS[1])].map(|(host, port)| {
            let port = port + u16::try_from(flow).expect("few flows");
            SocketAddr::new(scenario.version.address(host), port)
        });
        let mut bind = |host: usize, local| {
            let of = Arc::clone(&world.hosts[host]);
            let settings = SocketSettings::default();
            DatagramSocket::bind(&of, world.app(host), local, &settings).expect("a free port")
        };
        let (sender, receiver) = (bind(plan.from, ends[0]), bind(plan.to, ends[1]));
        let [from, to] = [plan.from, plan.to].map(|host| Arc::clone(&world.hosts[host]));
        if plan.connected {
            sender.connect(&from, world.app(plan.from), ends[1]).expect("a route");
            receiver.connect(&to, world.app(plan.to), ends[0]).expect("a route");
        }
        let joins = OptionValue::Int(plan.joins.into());
        let option = SocketOption::ReceiveOffload;
        receiver.set_option(&to, world.app(plan.to), option, &joins).expect("an option");
        Self {
            plan,
            seed: scenario.seed,
            flow: u32::try_from(flow).expect("few flows"),
            sender,
            receiver,
            sent: 0,
            reports: 0,
            due: world.cx.now + plan.at,
            seen: vec![0; plan.count as usize],
            rng: Rng::new(scenario.seed ^ (flow as u64) << 48),
            repeats: scenario.paths[plan.from].duplicate > 0.0,
            corrupts: scenario.paths[plan.from].corrupt > 0.0,
            buffers: vec![vec![0; 1 << 16]; 4],
        }
    }

    /// Sends what is due and receives what has arrived. Returns true if a datagram was sent or
    /// received.
    pub(super) fn step(&mut self, world: &mut World) -> bool {
        let mut moved = false;
        if !self.is_sent() && world.cx.now >= self.due {
            moved |= self.send(world);
        }
        moved | self.receive(world)
    }

    fn send(&mut self, world: &mut World) -> bool {
        let Flow { from, count, batch, connected, pause, .. } = *self.plan;
        let some = self.sent..count.min(self.sent + 1 + self.rng.below(batch));
        let payloads: Vec<_> =
            some.map(|number| self.plan.payload(self.seed, self.flow, number)).collect();
        let of = Arc::clone(&world.hosts[from]);
        let to = self.receiver.local(&world.hosts[self.plan.to].clone(), world.app(self.plan.to));
        let message = |payload| match connected {
            true => SendMessage::new(payload),
            false => SendMessage::to(payload, to),
        };
        let messages: Vec<_> = payloads.iter().map(|payload| message(payload)).collect();
        let pause_micros = u32::try_from(pause.as_micros()).expect("a short pause");
        match self.sender.send_batch(&of, world.app(from), &messages) {
            Ok(sent) => {
                self.sent += u32::try_from(sent).expect("a batch");
                let pause = Duration::from_micros(self.rng.below(pause_micros + 1).into());
                self.due = world.cx.now + pause;
                true
            }
            Err(Errno::EAGAIN) => {
                self.due = world.cx.now + RETRY;
                false
            }
            // The report of a router about an earlier datagram (Linux: `__udp4_lib_err`).
            Err(Errno::EMSGSIZE) if connected && self.reports < REPORTS_MAX => {
                self.reports += 1;
                self.due = world.cx.now + RETRY;
                false
            }
            Err(error) => panic!("flow {}: send: {error}", self.flow),
        }
    }

    fn receive(&mut self, world: &mut World) -> bool {
        if !self.receiver.readiness().contains(Readiness::READ) {
            return false;
        }
        let of = Arc::clone(&world.hosts[self.plan.to]);
        let mut buffers = core::mem::take(&mut self.buffers);
        let mut messages: Vec<_> =
            buffers.iter_mut().map(|buffer| ReceiveMessage::new(buffer)).collect();
        let mut moved = false;
        loop {
            match self.receiver.recv_batch(&of, world.app(self.plan.to), &mut messages) {
                Ok(count) => {
                    moved = true;
                    for message in &mut messages[..count] {
                        let got = message.received.take().expect("a datagram");
                        assert_eq!(got.len, got.datagram_len, "the buffer has room for any");
                        let size = got.segment.map_or(got.len, usize::from).max(1);
                        message.buf[..got.len].chunks(size).for_each(|bytes| self.arrived(bytes));
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(error) => panic!("flow {}: receive: {error}", self.flow),
            }
        }
        drop(messages);
        self.buffers = buffers;
        moved
    }

    /// Checks one received datagram.
    fn arrived(&mut self, bytes: &[u8]) {
        let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        let numbers = (word(0).map(u32::from_be_bytes), word(4).map(u32::from_be_bytes));
        let (Some(flow), Some(number)) = numbers else { panic!("{bytes:?} was not sent") };
        assert_eq!(flow, self.flow, "a datagram of another flow");
        assert!(number < self.sent, "datagram {number} of flow {flow} was not sent yet");
        let expected = self.plan.payload(self.seed, flow, number);
        // Two bits of one position in their words, flipped in opposite directions in two fragments,
        // are invisible to the checksum.
        let is_invisible =
            || self.corrupts && bytes.len() == expected.len() && sum(bytes) == sum(&expected);
        let is_same = bytes == expected || is_invisible();
        assert!(is_same, "datagram {number} of flow {flow} has changed");
        let seen = &mut self.seen[number as usize];
        *seen += 1;
        assert!(self.repeats || *seen == 1, "datagram {number} of flow {flow} arrived twice");
    }

    /// Whether every datagram was sent.
    pub(super) fn is_sent(&self) -> bool {
        self.sent == self.plan.count
    }

    /// Returns the number of different datagrams that have arrived.
    pub(super) fn arrivals(&self) -> u64 {
        self.seen.iter().filter(|count| **count > 0).count() as u64
    }

    /// Returns the time of the next send.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        (!self.is_sent()).then_some(self.due)
    }

    /// Returns the bytes charged to the flow's sockets on host `host` for packets below them.
    pub(super) fn charged(&self, world: &mut World, host: usize) -> u64 {
        let of = Arc::clone(&world.hosts[host]);
        let ends = [(self.plan.from, &self.sender), (self.plan.to, &self.receiver)];
        let ours = ends.into_iter().filter(|(on, _)| *on == host);
        ours.map(|(_, socket)| u64::from(socket.memory_info(&of, &mut world.cx).wmem_alloc)).sum()
    }

    /// Closes the sockets.
    pub(super) fn close(&self, world: &mut World) {
        for (host, socket) in [(self.plan.from, &self.sender), (self.plan.to, &self.receiver)] {
            let of = Arc::clone(&world.hosts[host]);
            socket.close(&of, world.app(host));
        }
    }
}

/// Returns the Internet checksum of these bytes.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = pkt::Sum::default();
    sum.add_bytes(bytes);
    sum.finish()
}
