//! A test of a protocol over a bad network, in virtual time: lossy, reordering, seeded, and the
//! same in every run.
//!
//! The protocol is the application's own: the client sends a text, the server answers with its
//! length. Nothing here waits for real time. The clock is set to the next deadline of either host,
//! so that minutes of retransmissions pass in milliseconds. A seed that fails is replayed by its
//! number.
//!
//! Run it with `cargo run -p quietline --example sim_test`. It prints:
//!
//! ```text
//! 50 networks that lose a fifth of all frames: every answer is right
//! seed 7 again: the same to the nanosecond
//! ```

use std::{error::Error, io::IoSlice, sync::Arc, time::Duration};

use quietline::sans_io::{
    Connection, Cx, DeviceConfig, Errno, Host, HostConfig, Instant, Listener, Memory, Wire,
    WireConfig,
};

/// Two hosts on a wire, and their clock.
struct Network {
    hosts: [Arc<Host>; 2],
    cx: Cx,
}

impl Network {
    fn new(seed: u64) -> Result<Self, Box<dyn Error>> {
        let memory = Memory::new(16 << 20);
        let mut wire = WireConfig { seed, checksums: true, ..WireConfig::default() };
        for direction in [&mut wire.forward, &mut wire.backward] {
            direction.delay = Duration::from_millis(20);
            (direction.loss, direction.reorder, direction.corrupt) = (0.2, 0.1, 0.02);
            direction.reorder_delay = Duration::from_millis(15);
        }
        let (left, right) = Wire::pair(&wire)?;
        let host = |device: Arc<Wire>, address: &str| -> Result<_, Box<dyn Error>> {
            let devices = vec![DeviceConfig { device, addresses: vec![address.parse()?] }];
            Ok(Host::new(&memory, HostConfig { devices, ..HostConfig::replay(seed) })?)
        };
        let hosts = [host(left, "10.0.0.1/24")?, host(right, "10.0.0.2/24")?];
        let mut cx = Cx::replay(&memory, seed);
        cx.now = Instant::from_secs(1);
        Ok(Self { hosts, cx })
    }

    /// Runs both hosts until `call` no longer returns `EAGAIN`; in between the clock moves to the
    /// next deadline.
    fn wait<T>(
        &mut self,
        mut call: impl FnMut(&[Arc<Host>; 2], &mut Cx) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            for host in &self.hosts {
                let _ = host.poll(&mut self.cx);
            }
            match call(&self.hosts, &mut self.cx) {
                Err(Errno::EAGAIN) => {}
                result => return result,
            }
            let next = self.hosts.iter().filter_map(|host| host.next_deadline()).min();
            self.cx.now = self.cx.now.max(next.expect("a frame or a timer"));
        }
    }
}

/// Runs the protocol on the network of `seed`. Returns the time at which the answer had arrived.
fn play(seed: u64) -> Result<Instant, Box<dyn Error>> {
    const TEXT: &[u8] = b"as long as it takes";
    let mut network = Network::new(seed)?;
    let to = "10.0.0.2:7".parse()?;
    let listener = Listener::listen(&network.hosts[1], &mut network.cx, to, 16)?;
    let client = Connection::connect(&network.hosts[0], &mut network.cx, None, to)?;
    let sent = network.wait(|[host, _], cx| client.send(host, cx, &[IoSlice::new(TEXT)]))?;
    let server = network.wait(|_, _| listener.accept())?;
    let mut buffer = [0; 64];
    let mut got = 0;
    while got < sent {
        got += network.wait(|[_, host], cx| server.recv(host, cx, &mut buffer, false))?;
    }
    let answer = [u8::try_from(got)?];
    network.wait(|[_, host], cx| server.send(host, cx, &[IoSlice::new(&answer)]))?;
    network.wait(|[host, _], cx| client.recv(host, cx, &mut buffer, false))?;
    assert_eq!(usize::from(buffer[0]), TEXT.len(), "seed {seed}");
    Ok(network.cx.now)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    for seed in 0..50 {
        play(seed)?;
    }
    println!("50 networks that lose a fifth of all frames: every answer is right");
    assert_eq!(play(7)?, play(7)?);
    println!("seed 7 again: the same to the nanosecond");
    Ok(())
}
