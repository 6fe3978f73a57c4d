//! A device of the application's own: what carries the frames of a microVM, a fuzzer or a ring in shared memory.
//!
//! A `Cable` is a queue of byte strings in each direction. The stack owns a packet again when `complete` has freed it, so that a
//! sender whose device falls behind waits. Both hosts are driven as in the example `sans_io`.
//!
//! Run it with `cargo run -p quietline --example custom_device`. It prints:
//!
//! ```text
//! the server reads "by a cable of my own"
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::{error::Error, io::IoSlice};

use quietline::sans_io::{
    Batch, Capabilities, Completed, Cx, Device, DeviceConfig, Host, HostConfig, Instant, LinkType,
    Listener, Memory, Packet, PacketList, QueueId, RxSignal, TcpSocket, rng, secrets,
};

/// Frames of one direction. A frame waits there while packet memory is used up.
type Lane = Arc<Mutex<VecDeque<Vec<u8>>>>;

#[derive(Debug)]
struct Cable {
    caps: Capabilities,
    incoming: Lane,
    outgoing: Lane,
    /// Packets sent and not freed yet.
    sent: Mutex<Vec<Packet>>,
}

impl Device for Cable {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut frames = self.incoming.lock().unwrap();
        out.take_while_room(budget, || {
            let packet = cx.pool.alloc_from(frames.front()?)?;
            frames.pop_front();
            Some(packet)
        })
    }

    fn transmit(&self, _queue: QueueId, _cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            self.outgoing.lock().unwrap().push_back(packet.to_vec());
            self.sent.lock().unwrap().push(packet);
        }
    }

    fn complete(&self, _queue: QueueId, cx: &mut Cx) -> Completed {
        let mut completed = Completed::NONE;
        for packet in self.sent.lock().unwrap().drain(..) {
            completed.add(packet.len());
            cx.pool.free(packet);
        }
        completed
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        // No signal: every turn of the core looks.
        RxSignal::None
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let memory = Memory::new(16 << 20);
    let mut cx = Cx::new(&memory, rng());
    cx.now = Instant::from_secs(1);
    let lanes = [Lane::default(), Lane::default()];
    let host = |incoming: usize, address: &str| -> Result<_, Box<dyn Error>> {
        let plain = Capabilities::plain("cable", 1500, LinkType::Ip);
        let caps = Capabilities { async_completion: true, ..plain };
        let [incoming, outgoing] = [incoming, 1 - incoming].map(|lane| Arc::clone(&lanes[lane]));
        let device = Arc::new(Cable { caps, incoming, outgoing, sent: Mutex::default() });
        let devices = vec![DeviceConfig { device, addresses: vec![address.parse()?] }];
        Ok(Host::new(&memory, HostConfig { devices, ..HostConfig::new(secrets()) })?)
    };
    let (client, server) = (host(0, "10.0.0.1/24")?, host(1, "10.0.0.2/24")?);

    let listener = Listener::listen(&server, &mut cx, "10.0.0.2:7".parse()?, 16)?;
    let stream = TcpSocket::connect(&client, &mut cx, None, "10.0.0.2:7".parse()?)?;
    let run = |cx: &mut Cx| {
        while lanes.iter().any(|lane| !lane.lock().unwrap().is_empty()) {
            let _ = (client.poll(cx), server.poll(cx));
        }
    };
    run(&mut cx);
    let accepted = listener.accept()?;
    stream.send(&client, &mut cx, &[IoSlice::new(b"by a cable of my own")])?;
    run(&mut cx);
    let mut buffer = [0; 64];
    let count = accepted.recv(&server, &mut cx, &mut buffer, false)?;
    println!("the server reads {:?}", str::from_utf8(&buffer[..count])?);
    Ok(())
}
