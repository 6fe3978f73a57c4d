//! Two hosts in virtual time, joined by a link whose transmitter is metered.
//!
//! Above: the experiments in virtual time. Below: `quietline::sans_io`.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use quietline::sans_io::{
    Connection, Cx, Device, DeviceConfig, Host, HostConfig, Impairment, Instant, Listener, Memory,
    Readiness, Wire, WireConfig,
};

use super::link_meter::LinkMeter;
use crate::experiment::Error;

/// Packet memory of one run.
const MEMORY_BYTES: usize = 256 << 20;

/// Start of virtual time.
const START: Instant = Instant::from_secs(1000);

/// Longest virtual time in which a handshake must end.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Address of the server.
const SERVER: [u8; 4] = [10, 0, 0, 2];

/// A client and a server.
#[derive(Debug)]
pub(super) struct Simulation {
    /// The one thread, whose `now` is virtual time.
    pub(super) cx: Cx,
    pub(super) client: Arc<Host>,
    pub(super) server: Arc<Host>,
    /// The client's end of the link.
    pub(super) link: Arc<LinkMeter>,
    listener: Arc<Listener>,
}

impl Simulation {
    /// Joins the hosts. `forward` is what happens to packets of the client; the way back is free.
    pub(super) fn new(
        seed: u64,
        forward: Impairment,
        superframes: bool,
        client_settings: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let memory = Memory::new(MEMORY_BYTES);
        let config = WireConfig { tso: superframes, forward, seed, ..WireConfig::default() };
        let (left, right) = Wire::pair(&config)?;
        let link = Arc::new(LinkMeter::new(left, forward.rate_bps.unwrap_or(u64::MAX)));
        let host = |device: Arc<dyn Device>, last: u8| -> Result<_, Error> {
            let addresses = vec![format!("10.0.0.{last}/24").parse()?];
            let devices = vec![DeviceConfig { device, addresses }];
            let seed = seed.wrapping_add(u64::from(last));
            Ok(Host::new(&memory, HostConfig { devices, ..HostConfig::replay(seed) })?)
        };
        let client = host(Arc::clone(&link) as Arc<dyn Device>, 1)?;
        let server = host(right, 2)?;
        for (name, value) in client_settings {
            client.set_sysctl(name, value)?;
        }
        let mut cx = Cx::replay(&memory, seed);
        cx.now = START;
        let listener = Listener::listen(&server, &mut cx, SocketAddr::from((SERVER, 80)), 64)?;
        Ok(Self { cx, client, server, link, listener })
    }

    /// Virtual time since the start.
    pub(super) fn elapsed(&self) -> Duration {
        self.cx.now - START
    }

    /// Opens a connection; returns the client's and the server's end.
    pub(super) fn connect(&mut self) -> Result<(Arc<Connection>, Arc<Connection>), Error> {
        let to = SocketAddr::from((SERVER, 80));
        let client = Connection::connect(&self.client, &mut self.cx, None, to)?;
        let end = self.cx.now + HANDSHAKE_MAX;
        loop {
            let next = self.settle();
            if client.readiness().contains(Readiness::WRITE)
                && let Ok(server) = self.listener.accept()
            {
                return Ok((client, server));
            }
            match next {
                Some(next) if next <= end => self.cx.now = self.cx.now.max(next),
                _ => return Err("no connection".into()),
            }
        }
    }

    /// Runs both hosts until none has work at this moment; returns the time of the next work.
    fn settle(&mut self) -> Option<Instant> {
        loop {
            for host in [&self.client, &self.server] {
                let _ = host.poll(&mut self.cx);
            }
            let hosts = [&self.client, &self.server];
            match hosts.into_iter().filter_map(|host| host.next_deadline()).min() {
                Some(next) if next <= self.cx.now => {}
                next => return next,
            }
        }
    }

    /// Calls `applications` at every event until virtual time has passed by `time`. They
    /// return the next moment at which they want to be called, if there is one.
    pub(super) fn run(
        &mut self,
        time: Duration,
        mut applications: impl FnMut(&mut Self) -> Result<Option<Instant>, Error>,
    ) -> Result<(), Error> {
        let end = self.cx.now + time;
        while self.cx.now < end {
            let wanted = applications(self)?;
            let next = self.settle();
            // An application may wait for an event that the hosts have just caused.
            let again = applications(self)?;
            let after = self.settle();
            let next = [wanted, again, next, after].into_iter().flatten();
            let next = next.filter(|&at| at > self.cx.now).min();
            self.cx.now = next.map_or(end, |next| next.min(end));
        }
        Ok(())
    }
}
