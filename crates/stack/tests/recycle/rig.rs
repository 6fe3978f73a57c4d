//! Two hosts whose network cards copy frames, as real ones do, so that no packet crosses between
//! hosts.

use std::{
    collections::VecDeque,
    io::IoSlice,
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pkt::{Batch, Instant, PacketList, PoolStats};
use stack::{
    Capabilities, Cx, Device, Errno, Memory,
    base::counters::Snapshot,
    device::{Completed, LinkType, QueueId},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    socket::{Connection, Listener},
};

/// One end of a cable. It copies transmitted frames to the other end.
#[derive(Debug)]
pub(crate) struct Nic {
    caps: Capabilities,
    peer: Mutex<Weak<Self>>,
    arrived: Mutex<VecDeque<Vec<u8>>>,
    /// Packets sent and not yet completed.
    sent: Mutex<PacketList>,
    /// Whether completions are held back.
    pub(crate) holds: AtomicBool,
    /// Every frame received.
    pub(crate) seen: Mutex<Vec<Vec<u8>>>,
}

impl Nic {
    fn pair(async_completion: bool) -> [Arc<Self>; 2] {
        let new = || {
            Arc::new(Self {
                caps: Capabilities {
                    async_completion,
                    ..Capabilities::plain("nic0", 1500, LinkType::Ip)
                },
                peer: Mutex::default(),
                arrived: Mutex::default(),
                sent: Mutex::default(),
                holds: AtomicBool::new(false),
                seen: Mutex::default(),
            })
        };
        let (left, right) = (new(), new());
        *left.peer.lock().unwrap() = Arc::downgrade(&right);
        *right.peer.lock().unwrap() = Arc::downgrade(&left);
        [left, right]
    }
}

impl Nic {
    /// Discards frames that arrived and were not polled yet.
    pub(crate) fn lose(&self) {
        self.arrived.lock().unwrap().clear();
    }
}

impl Device for Nic {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut arrived = self.arrived.lock().unwrap();
        let count = arrived.len().min(budget);
        for frame in arrived.drain(..count) {
            out.push(cx.pool.alloc_from(&frame).expect("memory")).expect("room for the budget");
        }
        count
    }

    fn transmit(&self, _: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let peer = self.peer.lock().unwrap().upgrade();
        while let Some(packet) = list.pop_front() {
            if let Some(peer) = &peer {
                peer.seen.lock().unwrap().push(packet.to_vec());
                peer.arrived.lock().unwrap().push_back(packet.to_vec());
            }
            if self.caps.async_completion {
                self.sent.lock().unwrap().push_back(packet);
            } else {
                cx.pool.free(packet);
            }
        }
    }

    fn complete(&self, _: QueueId, cx: &mut Cx) -> Completed {
        let mut completed = Completed::NONE;
        while !self.holds.load(Ordering::Relaxed)
            && let Some(packet) = self.sent.lock().unwrap().pop_front()
        {
            completed.add(packet.len());
            cx.pool.free(packet);
        }
        completed
    }
}

/// One end: its host and the two contexts that run it.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) host: Arc<Host>,
    pub(crate) nic: Arc<Nic>,
    /// The context that polls the device (softirq).
    pub(crate) poll: Cx,
    /// The context that calls the sockets.
    pub(crate) app: Cx,
}

impl End {
    pub(crate) fn poll(&mut self) {
        let _ = self.host.poll(&mut self.poll);
    }

    /// Returns the pool statistics of both contexts.
    pub(crate) fn stats(&self) -> [PoolStats; 2] {
        [self.poll.pool.stats(), self.app.pool.stats()]
    }

    pub(crate) fn counters(&self) -> Snapshot {
        self.host.counters()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counters().get(name).unwrap_or_else(|| panic!("{name} is no counter"))
    }

    pub(crate) fn set(&self, name: &str, value: &str) {
        self.host.set_sysctl(name, value).expect("a setting");
    }
}

/// Two ends and their shared memory.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) memory: Memory,
    pub(crate) ends: [End; 2],
    pub(crate) listener: Arc<Listener>,
}

/// Indices of the client and the server in `ends`.
pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;

impl Rig {
    /// Applies `settings` to both ends.
    pub(crate) fn new(async_completion: bool, settings: &[(&str, &str)]) -> Self {
        let memory = Memory::new(256 << 20);
        let mut number = 0;
        let mut ends = Nic::pair(async_completion).map(|nic| {
            number += 1;
            let addresses = vec![format!("10.0.0.{number}/24").parse().expect("an address")];
            let devices = vec![DeviceConfig { device: Arc::clone(&nic) as _, addresses }];
            let config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
            let host = Host::new(&memory, config).expect("valid");
            for (name, value) in settings {
                host.set_sysctl(name, value).expect("a setting");
            }
            let [mut poll, mut app] = [Cx::replay(&memory, 1), Cx::replay(&memory, 2)];
            (poll.now, app.now) = (Instant::from_secs(1000), Instant::from_secs(1000));
            End { host, nic, poll, app }
        });
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let server = &mut ends[SERVER];
        let listener = Listener::listen(&server.host, &mut server.app, to, 1024).expect("a port");
        Self { memory, ends, listener }
    }

    pub(crate) fn with_mode(mode: &str) -> Self {
        Self::new(false, &[("net.quietline.skb_recycle", mode)])
    }

    pub(crate) fn connect(&mut self) -> [Arc<Connection>; 2] {
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let client = &mut self.ends[CLIENT];
        let socket = Connection::connect(&client.host, &mut client.app, None, to).expect("a route");
        self.settle();
        let sockets = [socket, self.listener.accept().expect("established")];
        for (end, socket) in self.ends.iter_mut().zip(&sockets) {
            socket.with_tcb(&end.host, &mut end.app, |tcb, _| tcb.set_nodelay(true));
        }
        sockets
    }

    /// Polls both ends until no packet is in flight.
    pub(crate) fn settle(&mut self) {
        for _ in 0..4 {
            self.ends.iter_mut().for_each(End::poll);
        }
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        for end in &mut self.ends {
            end.poll.now += time;
            end.app.now += time;
        }
    }

    pub(crate) fn send(
        &mut self,
        from: usize,
        socket: &Connection,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let End { host, app, .. } = &mut self.ends[from];
        socket.send(host, app, &[IoSlice::new(bytes)])
    }

    pub(crate) fn recv(
        &mut self,
        at: usize,
        socket: &Connection,
        len: usize,
    ) -> Result<Vec<u8>, Errno> {
        let End { host, app, .. } = &mut self.ends[at];
        let mut buf = vec![0; len];
        let count = socket.recv(host, app, &mut buf, false)?;
        buf.truncate(count);
        Ok(buf)
    }

    /// Exchanges a request and a response of `len` bytes each.
    pub(crate) fn exchange(&mut self, sockets: &[Arc<Connection>; 2], len: usize) {
        for from in [CLIENT, SERVER] {
            let to = 1 - from;
            let bytes = vec![[1, 2][from]; len];
            assert_eq!(self.send(from, &sockets[from], &bytes), Ok(len));
            self.pass(Duration::from_micros(10));
            self.ends[to].poll();
            assert_eq!(self.recv(to, &sockets[to], len).as_ref(), Ok(&bytes));
        }
    }

    /// Closes and drops everything, and checks that no packet is left.
    pub(crate) fn finish(mut self, sockets: impl IntoIterator<Item = [Arc<Connection>; 2]>) {
        for sockets in sockets {
            for (end, socket) in self.ends.iter_mut().zip(sockets) {
                socket.close(&end.host, &mut end.app);
            }
            self.settle();
        }
        for end in &mut self.ends {
            end.host.shut_down(&mut end.app);
            end.poll();
            assert_eq!(end.count("SkbSocketCacheBytes"), 0, "caches are empty after close");
        }
        let Self { memory, ends, .. } = self;
        drop(ends);
        assert_eq!(memory.packets.balance(), 0, "every packet is freed");
        assert_eq!(memory.packets.stats().packets_deferred, 0);
    }
}
