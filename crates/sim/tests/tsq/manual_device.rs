//! Two hosts joined without delay. Packets of the first stay charged to their senders until the
//! test completes them.

use std::{
    collections::VecDeque,
    io::IoSlice,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pkt::{Batch, Packet, PacketList, PacketOwner};
use sim::{World, apps};
use stack::{
    Capabilities, Cx, Device, Errno,
    base::counters::Counter,
    device::{Doorbell, LinkType, QueueId},
    header::ethernet::MacAddr,
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    socket::{Connection, Listener},
};

/// One end: the packets that arrive at it, and its doorbell.
#[derive(Debug, Default)]
struct Inbox {
    packets: Mutex<VecDeque<Packet>>,
    doorbell: OnceLock<Doorbell>,
}

/// The owner of an uncompleted packet, and the bytes charged to it.
type Charge = (Arc<dyn PacketOwner>, u32);

/// Device of one of two hosts that are joined without delay.
pub(crate) struct ManualDevice {
    caps: Capabilities,
    own: Arc<Inbox>,
    peer: Arc<Inbox>,
    charges: Mutex<VecDeque<Charge>>,
    /// Payload lengths of the packets taken while mute.
    payloads: Mutex<Vec<usize>>,
    /// Whether packets complete at once.
    prompt: AtomicBool,
    /// Whether packets are discarded instead of delivered.
    mute: AtomicBool,
}

impl ManualDevice {
    fn pair() -> [Arc<Self>; 2] {
        let ends = [Arc::new(Inbox::default()), Arc::new(Inbox::default())];
        [0u8, 1].map(|end| {
            let index = usize::from(end);
            let link = LinkType::Ethernet { mac: MacAddr([0x52, 0x51, 0, 0, 0, end + 1]) };
            Arc::new(Self {
                caps: Capabilities {
                    tx_checksum: true,
                    tso4: true,
                    tso6: true,
                    uso: false,
                    async_completion: end == 0,
                    ..Capabilities::plain(format!("manual{end}"), 1500, link)
                },
                own: Arc::clone(&ends[index]),
                peer: Arc::clone(&ends[1 - index]),
                charges: Mutex::default(),
                payloads: Mutex::default(),
                prompt: AtomicBool::new(true),
                mute: AtomicBool::new(false),
            })
        })
    }

    /// Returns the number of uncompleted packets.
    pub(crate) fn len(&self) -> usize {
        lock(&self.charges).len()
    }

    /// Completes the `count` oldest packets.
    pub(crate) fn complete(&self, count: usize) {
        let done: Vec<Charge> = lock(&self.charges).drain(..count).collect();
        for (owner, truesize) in done {
            owner.on_complete(truesize);
        }
    }

    /// Returns the payload lengths of the packets taken while mute.
    pub(crate) fn payloads(&self) -> Vec<usize> {
        lock(&self.payloads).clone()
    }

    /// Returns the charge of the oldest packet, and a weak reference to its owner.
    pub(crate) fn oldest(&self) -> (u32, Weak<dyn PacketOwner>) {
        let charges = lock(&self.charges);
        let (owner, truesize) = charges.front().expect("an uncompleted packet");
        (*truesize, Arc::downgrade(owner))
    }

    pub(crate) fn set_prompt(&self, prompt: bool) {
        self.prompt.store(prompt, Ordering::Relaxed);
    }

    pub(crate) fn set_mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
    }
}

impl Device for ManualDevice {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        out.take_from(&mut lock(&self.own.packets), budget)
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(mut packet) = list.pop_front() {
            if let Some(charge) = packet.take_owner() {
                lock(&self.charges).push_back(charge);
            }
            if self.mute.load(Ordering::Relaxed) {
                // Ethernet, IPv4, TCP with timestamps.
                lock(&self.payloads).push(packet.len() - 14 - 20 - 32);
                cx.pool.free(packet);
                continue;
            }
            packet.meta_mut().rx_checksum = pkt::RxChecksum::Unnecessary;
            lock(&self.peer.packets).push_back(packet);
        }
        if self.prompt.load(Ordering::Relaxed) {
            self.complete(self.len());
        }
        if let Some(doorbell) = self.peer.doorbell.get() {
            doorbell.ring(cx);
        }
    }

    fn needs_qdisc(&self) -> bool {
        false
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.own.doorbell.set(doorbell);
    }
}

impl std::fmt::Debug for ManualDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManualDevice").field("charges", &self.len()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The two hosts, and a connection over which the first may send without a window limit.
pub(crate) struct Lab {
    pub(crate) world: World,
    pub(crate) device: Arc<ManualDevice>,
    pub(crate) host: Arc<Host>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) client: Arc<Connection>,
    pub(crate) server: Arc<Connection>,
}

impl Lab {
    /// Makes a lab with single segments, the limits of the first version and without autocorking;
    /// then applies `settings`.
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        Self::with_cores(1, settings)
    }

    /// As [`new`](Self::new), on hosts of `cores` cores.
    pub(crate) fn with_cores(cores: u16, settings: &[(&str, &str)]) -> Self {
        let mut world = World::new(1);
        let [near, far] = ManualDevice::pair();
        for (index, end) in [Arc::clone(&near), far].into_iter().enumerate() {
            let addresses = vec![format!("10.0.0.{}/24", index + 1).parse().expect("an address")];
            let devices = vec![DeviceConfig { device: end, addresses }];
            world.add_host(HostConfig { devices, cores, ..HostConfig::replay(0) }).expect("valid");
        }
        let host = Arc::clone(&world.hosts[0]);
        let common = [
            ("net.quietline.tsq_limit", "static131072_ge"),
            ("net.ipv4.tcp_autocorking", "0"),
            ("net.ipv4.tcp_slow_start_after_idle", "0"),
            ("net.quietline.dev.default.gso", "0"),
        ];
        world.set(0, &common);
        world.set(0, settings);
        // A window that never limits the sender.
        world.set(1, &[("net.ipv4.tcp_rmem", "4096 16777216 33554432")]);
        let listener = apps::listen(&mut world, 80);
        let (client, server) = apps::connect(&mut world, &listener);
        let mut lab = Self { world, device: near, host, listener, client, server };
        lab.warm_up();
        lab
    }

    /// Grows the congestion window to some hundred segments.
    fn warm_up(&mut self) {
        self.client.with_tcb(&self.host, &mut self.world.cx, |tcb, _| tcb.set_sndbuf(16 << 20));
        for _ in 0..40 {
            self.write(600_000);
            self.world.pass(Duration::from_millis(1));
            self.read();
        }
        let cwnd = self.client.with_tcb(&self.host, &mut self.world.cx, |tcb, _| tcb.info().cwnd);
        assert!(cwnd > 400_000, "{cwnd} bytes");
        assert_eq!(self.client.wmem_alloc(), 0);
        self.device.set_prompt(false);
    }

    /// Writes `bytes`, which must fit.
    pub(crate) fn write(&mut self, bytes: usize) {
        let data = vec![7; bytes];
        let sent = self.client.send(&self.host, &mut self.world.cx, &[IoSlice::new(&data)]);
        assert_eq!(sent, Ok(bytes));
    }

    /// Reads at the other end, and returns the number of bytes.
    pub(crate) fn read(&mut self) -> usize {
        let peer = Arc::clone(&self.world.hosts[1]);
        let (mut buffer, mut total) = (vec![0; 1 << 16], 0);
        loop {
            match self.server.recv(&peer, &mut self.world.cx, &mut buffer, false) {
                Ok(read @ 1..) => total += read,
                Ok(_) | Err(Errno::EAGAIN) => return total,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Writes `bytes` at the other end, which acknowledge the data it has read.
    pub(crate) fn answer(&mut self, bytes: usize) {
        let peer = Arc::clone(&self.world.hosts[1]);
        let data = vec![7; bytes];
        let sent = self.server.send(&peer, &mut self.world.cx, &[IoSlice::new(&data)]);
        assert_eq!(sent, Ok(bytes));
        self.world.settle();
    }

    /// Completes `count` packets and runs the work that is due at this moment.
    pub(crate) fn complete(&mut self, count: usize) {
        self.device.complete(count);
        self.world.settle();
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.host.counters().stack(counter)
    }

    pub(crate) fn tcp(&self, counter: tcp::Counter) -> u64 {
        self.host.counters().tcp(counter)
    }

    /// Closes everything and asserts that nothing is left.
    pub(crate) fn finish(self) {
        let Self { mut world, device, host, listener, client, server } = self;
        device.set_mute(false);
        let peer = Arc::clone(&world.hosts[1]);
        client.abort(&host, &mut world.cx);
        server.abort(&peer, &mut world.cx);
        listener.close(&peer, &mut world.cx);
        drop((client, server, listener));
        device.complete(device.len());
        world.pass(Duration::from_secs(1));
        assert_eq!(device.len(), 0);
        assert_eq!((host.established_len(), peer.established_len()), (0, 0));
        assert_eq!(world.packets_alive(), 0, "packets leaked");
    }
}
