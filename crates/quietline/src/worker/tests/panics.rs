//! A panic of a worker is reported as an event, and threads that wait for the stack return.

use std::{
    io::ErrorKind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pkt::{Batch, PacketList};
use stack::{
    Capabilities, Cx, Device,
    cx::event::Event,
    device::{LinkType, QueueId, RxSignal},
};

use crate::{Attachment, Stack, TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_secs(10);

/// A faulty device: once `panics` is set, it panics when a worker polls it.
#[derive(Debug)]
struct Faulty {
    caps: Capabilities,
    panics: AtomicBool,
}

impl Device for Faulty {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
        let name = thread::current().name().unwrap_or_default().to_owned();
        let panics = self.panics.load(Ordering::SeqCst) && name.starts_with("ql/");
        assert!(!panics, "a bug of the device");
        0
    }

    fn transmit(&self, _queue: QueueId, _cx: &mut Cx, list: &mut PacketList) {
        drop(core::mem::take(list));
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::None
    }
}

fn stack(panics: bool) -> (Stack, Arc<Faulty>) {
    let caps = Capabilities::plain("faulty", 1500, LinkType::Ip);
    let device = Arc::new(Faulty { caps, panics: AtomicBool::new(panics) });
    let attachment = Attachment::new(Arc::clone(&device));
    let address = "192.0.2.1/24".parse().expect("an address");
    let builder = Stack::builder().name("panics").device(attachment).address(address);
    (builder.build().expect("valid"), device)
}

#[test]
fn a_panic_of_a_worker_is_an_event_and_shuts_its_stack_down() {
    let (stack, _device) = stack(true);
    let event = stack.events().next_timeout(LIMIT).expect("an event");
    assert_eq!(event, Event::WorkerPanicked { core: 0 });
    assert_eq!(event.to_string(), "the worker of core 0 has panicked, and the stack is shut down");
    while !stack.host().is_down() {
        thread::yield_now();
    }
    let refused = TcpListener::bind(&stack, "192.0.2.1:80").expect_err("the stack is down");
    assert_eq!(refused.kind(), ErrorKind::NetworkDown);
    stack.shutdown();
    assert_eq!(
        stack.events().last(),
        Some(Event::WorkerPanicked { core: 0 }),
        "the event is reported once"
    );
}

#[test]
fn a_panic_of_a_worker_ends_the_waits_of_other_threads() {
    let (stack, device) = stack(false);
    let listener = TcpListener::bind(&stack, "192.0.2.1:80").expect("a free port");
    thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().expect_err("no connection arrives"));
        // No host has this address, so the worker fires a timer after a second and polls the
        // device.
        let connecting =
            scope.spawn(|| TcpStream::connect(&stack, "192.0.2.2:80").expect_err("no answer"));
        device.panics.store(true, Ordering::SeqCst);
        let (accepting, connecting) = (accepting.join(), connecting.join());
        for error in [accepting.expect("no panic"), connecting.expect("no panic")] {
            assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
    });
    assert_eq!(stack.events().try_next(), Some(Event::WorkerPanicked { core: 0 }));
}
