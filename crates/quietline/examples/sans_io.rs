//! The stack as a state machine: no thread, no clock, no file descriptor. The caller gives the time
//! and moves the frames.
//!
//! Two hosts are joined by a wire that takes 5 ms each way. The program never waits: it sets the
//! clock to the next deadline of either host, so that a handshake and an exchange over a path of 10
//! ms take microseconds of real time and give the same numbers in every run. Tests of protocols,
//! and programs with an event loop of their own, use it like this.
//!
//! Run it with `cargo run -p quietline --example sans_io`. It prints:
//!
//! ```text
//! 20 ms: connected
//! 30 ms: the answer is "hello"
//! ```

use std::{error::Error, io::IoSlice, sync::Arc, time::Duration};

use quietline::sans_io::{
    Connection, Cx, DeviceConfig, Errno, Host, HostConfig, Instant, Listener, Memory, Readiness,
    Wire, WireConfig, rng, secrets,
};

/// Two hosts, and the clock that both are run by.
struct Network {
    hosts: [Arc<Host>; 2],
    cx: Cx,
}

impl Network {
    /// Runs both hosts until `ready` returns a value. When it returns none, the clock moves to the
    /// next deadline.
    fn until<T>(&mut self, mut ready: impl FnMut(&mut Cx) -> Option<T>) -> T {
        loop {
            for host in &self.hosts {
                let _ = host.poll(&mut self.cx);
            }
            if let Some(value) = ready(&mut self.cx) {
                return value;
            }
            // Computed after both hosts have run: a packet of one host may be the next deadline of
            // the other.
            let next = self.hosts.iter().filter_map(|host| host.next_deadline()).min();
            self.cx.now = self.cx.now.max(next.expect("a frame or a timer"));
        }
    }
}

/// Returns the bytes that have arrived; `None` without any. The call never waits.
fn receive(host: &Host, socket: &Connection, cx: &mut Cx) -> Option<Result<Vec<u8>, Errno>> {
    let mut buffer = vec![0; 64];
    match socket.recv(host, cx, &mut buffer, false) {
        Err(Errno::EAGAIN) => None,
        result => Some(result.map(|count| buffer[..count].to_vec())),
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let memory = Memory::new(16 << 20);
    let mut cx = Cx::new(&memory, rng());
    let begin = Instant::from_secs(1);
    cx.now = begin;

    let mut config = WireConfig::default();
    config.forward.delay = Duration::from_millis(5);
    config.backward.delay = Duration::from_millis(5);
    let (left, right) = Wire::pair(&config)?;
    let host = |device: Arc<Wire>, address: &str| -> Result<_, Box<dyn Error>> {
        let devices = vec![DeviceConfig { device, addresses: vec![address.parse()?] }];
        Ok(Host::new(&memory, HostConfig { devices, ..HostConfig::new(secrets()) })?)
    };
    let (client, server) = (host(left, "10.0.0.1/24")?, host(right, "10.0.0.2/24")?);
    let mut network = Network { hosts: [Arc::clone(&client), Arc::clone(&server)], cx };

    let listener = Listener::listen(&server, &mut network.cx, "10.0.0.2:7".parse()?, 16)?;
    let stream = Connection::connect(&client, &mut network.cx, None, "10.0.0.2:7".parse()?)?;
    network.until(|_| stream.readiness().contains(Readiness::WRITE).then_some(()));
    // Two round trips: ARP and its answer, SYN and SYN-ACK.
    println!("{} ms: connected", (network.cx.now - begin).as_millis());

    stream.send(&client, &mut network.cx, &[IoSlice::new(b"hello")])?;
    let accepted = network.until(|_| listener.accept().ok());
    let request = network.until(|cx| receive(&server, &accepted, cx))?;
    accepted.send(&server, &mut network.cx, &[IoSlice::new(&request)])?;
    let answer = String::from_utf8(network.until(|cx| receive(&client, &stream, cx))?)?;
    println!("{} ms: the answer is {answer:?}", (network.cx.now - begin).as_millis());
    for host in &network.hosts {
        host.shut_down(&mut network.cx);
    }
    Ok(())
}
