//! A worker that panics is noticed, and the stack goes on in the threads of the application.

use std::{
    io::{Read, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use pkt::{Batch, PacketList};
use stack::{
    Capabilities, Cx, Device,
    device::{LinkType, QueueId, RxSignal},
    host::Event,
};

use crate::{Stack, TcpListener, TcpStream, builder::Attachment};

const LIMIT: Duration = Duration::from_secs(10);

/// A device with a bug: it panics when a worker looks for frames.
#[derive(Debug)]
struct Faulty(Capabilities);

impl Device for Faulty {
    fn caps(&self) -> &Capabilities {
        &self.0
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
        let name = thread::current().name().unwrap_or_default().to_owned();
        assert!(!name.starts_with("ql/"), "a bug of the device");
        0
    }

    fn transmit(&self, _queue: QueueId, _cx: &mut Cx, list: &mut PacketList) {
        drop(core::mem::take(list));
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::None
    }
}

fn stack() -> Stack {
    let caps = Capabilities::plain("faulty", 1500, LinkType::Ip);
    let device = Attachment { device: Arc::new(Faulty(caps)), fds: None };
    let address = "192.0.2.1/24".parse().expect("an address");
    Stack::builder().name("panics").device(device).address(address).build().expect("valid")
}

#[test]
fn a_worker_that_panics_is_an_event() {
    let stack = stack();
    let event = stack.events().next_timeout(LIMIT).expect("an event");
    assert_eq!(event, Event::WorkerPanicked { core: 0 });
    let text = event.to_string();
    assert!(text.starts_with("the worker of core 0 has panicked"), "{text}");
    stack.shutdown();
    assert_eq!(stack.events().last(), Some(Event::WorkerPanicked { core: 0 }), "once");
}

/// Segments and timers are the callers' from then on: nothing is left to a thread that is gone.
#[test]
fn connections_go_on_without_the_worker() {
    let stack = stack();
    stack.events().next_timeout(LIMIT).expect("an event");
    let listener = TcpListener::bind(&stack, "192.0.2.1:80").expect("a free port");
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).expect("all of it");
            stream.write_all(&bytes).expect("written");
        });
        let mut stream = TcpStream::connect(&stack, "192.0.2.1:80").expect("a listener");
        let sent = vec![7; 1 << 20];
        stream.write_all(&sent).expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("open");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("all of it");
        assert!(received == sent);
    });
}
