//! The hosts and connections of a subject.
//!
//! Above: [`Subject`]. Below: [`CopyLink`], `quietline::sans_io`.

use std::{cell::Cell, io::IoSlice, sync::Arc, time::Duration};

use quietline::sans_io::{
    Connection, Cx, DeviceConfig, Errno, Host, HostConfig, Instant, Listener, Memory, Region,
};

use super::{OWN, Step, Subject, Work};
use crate::{copy_link::CopyLink, experiment::Error};

/// Two hosts, or one for loopback, and their connections.
pub(super) struct World {
    memory: Memory,
    /// The host that is traced.
    pub(super) host: Arc<Host>,
    peer: Arc<Host>,
    /// Ends of each connection: that of the peer (over loopback: of CPU 0), and the traced one.
    pub(super) ends: Vec<(Arc<Connection>, Arc<Connection>)>,
    /// Whether both ends of a connection are ends of the traced host.
    is_loopback: bool,
    /// The traced host's device.
    link: Arc<CopyLink>,
}

const START: Instant = Instant::from_secs(1000);
pub(super) const MESSAGE: [u8; 64] = [7; 64];
/// Connections that are opened until two cores have one.
const CONNECTIONS_MAX: usize = 32;

impl World {
    pub(super) fn new(subject: &Subject) -> Result<Self, Error> {
        let memory = Memory::new(64 << 20);
        let (left, right) = CopyLink::pair(2);
        let host = |device: Arc<CopyLink>, last: u64, settings: &[(&str, &str)]| {
            let addresses = vec![format!("10.0.0.{last}/24").parse().expect("an address")];
            let devices = vec![DeviceConfig { device, addresses }];
            let mut config = HostConfig { devices, cores: 2, ..HostConfig::replay(last) };
            for (name, value) in settings {
                config.sysctls.set(name, value)?;
            }
            Ok::<_, Error>(Host::new(&memory, config)?)
        };
        let link = Arc::clone(&right);
        let (peer, host) = (host(left, 1, &[])?, host(right, 2, subject.settings)?);
        let is_loopback = subject.work == Work::Loopback;
        let mut world = Self { memory, host, peer, ends: Vec::new(), is_loopback, link };
        let mut cx = world.context(9);
        world.open(subject.work, &mut cx)?;
        Ok(world)
    }

    /// Opens connections: one, or one of each core.
    fn open(&mut self, work: Work, cx: &mut Cx) -> Result<(), Error> {
        let local = "10.0.0.2:80".parse().expect("an address");
        let listener = Listener::listen(&self.host, cx, local, 64)?;
        let from = if work == Work::Loopback { &self.host } else { &self.peer };
        let wanted = if work == Work::Cores { 2 } else { 1 };
        for _ in 0..CONNECTIONS_MAX {
            let near = Connection::connect(from, cx, None, local)?;
            let far = loop {
                let next = self.settle(cx);
                match (listener.accept(), next) {
                    (Ok(far), _) => break far,
                    (Err(_), Some(next)) => cx.now = cx.now.max(next),
                    (Err(_), None) => return Err("no connection".into()),
                }
            };
            self.settle(cx);
            near.with_tcb(from, cx, |tcb, _| tcb.set_nodelay(true));
            far.with_tcb(&self.host, cx, |tcb, _| tcb.set_nodelay(true));
            let core = far.incoming_core();
            if usize::from(core.0) == self.ends.len() || work == Work::Loopback {
                self.ends.push((near, far));
            }
            if self.ends.len() == wanted {
                return Ok(());
            }
        }
        Err("no connection of each core".into())
    }

    /// Runs both hosts until neither has work at this moment; returns the time of the next work.
    fn settle(&self, cx: &mut Cx) -> Option<Instant> {
        loop {
            let hosts = [&self.peer, &self.host];
            match hosts.into_iter().filter_map(|host| host.poll(cx)).min() {
                Some(next) if next <= cx.now => {}
                next => return next,
            }
        }
    }

    pub(super) fn context(&self, seed: u64) -> Cx {
        let mut cx = Cx::replay(&self.memory, seed);
        cx.now = START;
        cx
    }

    /// Time of a round. The handshakes end within the second before the first one.
    pub(super) fn time(round: u32) -> Instant {
        START + Duration::from_secs(1) + Duration::from_millis(u64::from(round))
    }

    pub(super) fn regions(&self, cx: &mut Cx) -> Vec<Region> {
        let mut regions = self.host.memory_map();
        regions.extend(own_regions());
        regions.extend(self.link.memory_map());
        for (near, far) in &self.ends {
            regions.extend(far.memory_map(&self.host, cx));
            if self.is_loopback {
                regions.extend(near.memory_map(&self.host, cx));
            }
        }
        regions
    }

    /// The peer's part of a step: it sends a request, or takes the response.
    pub(super) fn peer(&self, work: Work, step: Step, cx: &mut Cx) {
        if work == Work::Loopback {
            return;
        }
        for (near, _) in &self.ends {
            if step == Step::Request {
                near.send(&self.peer, cx, &[IoSlice::new(&MESSAGE)]).expect("room");
            }
        }
        let _ = self.peer.poll(cx);
        let mut buffer = [0; MESSAGE.len()];
        for (near, _) in &self.ends {
            match near.recv(&self.peer, cx, &mut buffer, false) {
                Ok(_) | Err(Errno::EAGAIN) => {}
                Err(error) => panic!("response: {error}"),
            }
        }
    }
}

/// Memory of the calling thread: a part of its stack, and its thread-local memory.
fn own_regions() -> [Region; 2] {
    const STACK_BYTES: usize = 1 << 20;
    const THREAD_BYTES: usize = 16 << 10;
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    let around = |address: usize, bytes: usize| Region {
        name: OWN.to_owned(),
        address: address.saturating_sub(bytes / 2),
        bytes,
    };
    let local = Cell::new(0_u8);
    let stack = std::ptr::from_ref(&local).addr();
    let thread = HERE.with(|here| std::ptr::from_ref(here).addr());
    [around(stack, STACK_BYTES), around(thread, THREAD_BYTES)]
}
