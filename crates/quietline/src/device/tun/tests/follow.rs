//! Moves the application of a flow to another core, and checks that the flow arrives on that core's
//! queue of the tap.
//!
//! RFS hands received packets to the new core, which sends on its own queue (XPS), and the kernel's
//! tap delivers a flow on the queue on which it was last sent.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream as KernelStream;
use std::thread;
use std::time::Instant as Clock;

use stack::{
    base::ids::CoreId,
    socket::options::{OptionValue, SocketOption},
};

use super::super::{Tun, TunConfig};
use super::end::{TIMEOUT, US, in_namespace};
use crate::clock::with_cx;
use crate::{Stack, TcpListener, TcpStream};

const PORT: u16 = 7;

/// Number of requests while the flow does not move.
const ROUNDS: u64 = 200;

/// Number of consecutive answers on one core after which the flow counts as moved.
const SETTLED: u32 = 16;

/// Number of packets that may arrive elsewhere: the kernel forgets a flow that was idle for
/// seconds, as it may be on a busy machine.
const ELSEWHERE_MAX: u64 = ROUNDS / 10;

/// A connection between the kernel, which sends requests, and the stack.
struct Pair {
    near: TcpStream,
    far: KernelStream,
}

impl Pair {
    fn open(listener: &TcpListener) -> Self {
        let far = KernelStream::connect((US, PORT)).expect("a connection");
        let (near, _) = listener.accept().expect("the accepted end");
        far.set_nodelay(true).expect("an option");
        far.set_read_timeout(Some(TIMEOUT)).expect("an option");
        near.set_read_timeout(Some(TIMEOUT)).expect("an option");
        Self { near, far }
    }

    /// Returns the core that last processed packets of the connection.
    fn core(&self) -> u16 {
        match self.near.option(SocketOption::IncomingCpu) {
            Ok(OptionValue::Int(core)) => u16::try_from(core).expect("a core"),
            other => panic!("SO_INCOMING_CPU: {other:?}"),
        }
    }

    /// Sends a request from the kernel and answers it.
    fn request(&mut self) {
        self.far.write_all(b"where are you?").expect("sent");
        let mut question = [0; 14];
        self.near.read_exact(&mut question).expect("a question");
        self.answer(question);
    }

    /// As `request`, on a thread that has moved here from another core. The thread does not block,
    /// because a blocking read would poll the core of the packets.
    fn request_nonblocking(&mut self) {
        self.far.write_all(b"where are you?").expect("sent");
        let (mut question, mut got) = ([0; 14], 0);
        let end = Clock::now() + TIMEOUT;
        self.near.set_nonblocking(true).expect("an option");
        while got < question.len() {
            match self.near.read(&mut question[got..]) {
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
            assert!(Clock::now() < end, "no question");
        }
        self.near.set_nonblocking(false).expect("an option");
        self.answer(question);
    }

    fn answer(&mut self, mut question: [u8; 14]) {
        self.near.write_all(&question).expect("answered");
        self.far.read_exact(&mut question).expect("an answer");
        assert_eq!(&question, b"where are you?");
    }
}

/// Polls `core` once, which makes it the home core of this thread.
fn move_to(stack: &Stack, core: u16) {
    let host = stack.host();
    let target = &host.cores()[usize::from(core)];
    with_cx(|cx| {
        target.busy_poll(host, cx, 8, |_| true);
        target.stop_polling(cx, host, false);
        assert_eq!(cx.home(host), Some(CoreId(core)));
    });
}

/// Returns the number of packets processed by each core, and of those handed from one core to the
/// other.
fn counts(stack: &Stack) -> [u64; 3] {
    let stat = stack.softnet_stat();
    let handed = stack.counters().iter().find(|(name, _)| *name == "RpsPackets");
    [stat[0].processed, stat[1].processed, handed.expect("a counter").1]
}

/// Sends requests until the flow is stable, then checks that all packets arrive on the queue of
/// `core` and are processed there.
fn expect_at(stack: &Stack, pair: &mut Pair, core: u16) {
    for _ in 0..8 {
        pair.request();
    }
    let before = counts(stack);
    for _ in 0..ROUNDS {
        pair.request();
    }
    let after = counts(stack);
    let [first, second, handed] = [0, 1, 2].map(|index| after[index] - before[index]);
    let (here, elsewhere) = if core == 0 { (first, second) } else { (second, first) };
    assert!(
        here >= ROUNDS && elsewhere <= ELSEWHERE_MAX && handed <= ELSEWHERE_MAX,
        "{here} packets on core {core}, {elsewhere} elsewhere, {handed} handed over; {} is the last core",
        pair.core()
    );
    assert_eq!(pair.core(), core);
}

#[test]
fn the_queue_follows_an_application_that_moves() {
    in_namespace("tap", || {
        let host_address = Some("10.77.0.1/24".parse().expect("a network"));
        let tap = TunConfig { queues: 2, host_address, ..TunConfig::tap("ql0") };
        let stack = Stack::builder()
            .cores(2)
            .device(Tun::create(&tap).expect("a tap"))
            .address("10.77.0.2/24".parse().expect("a network"))
            .sysctl("net.core.rps_sock_flow_entries", "1024")
            .sysctl("net.quietline.dev.ql0.rps_flow_cnt", "256")
            .sysctl("net.quietline.dev.ql0.tx-0.xps_cpus", "1")
            .sysctl("net.quietline.dev.ql0.tx-1.xps_cpus", "2")
            .build()
            .expect("a stack");
        let listener = TcpListener::bind(&stack, (US, PORT)).expect("a listener");
        let mut pair = Pair::open(&listener);
        // The handshake arrived on the queue that the kernel chose; the first reads may move the
        // flow to the reader's core.
        for _ in 0..SETTLED {
            pair.request();
        }
        let home = pair.core();
        expect_at(&stack, &mut pair, home);
        // Move there and back.
        for target in [1 - home, home] {
            move_to(&stack, target);
            let end = Clock::now() + TIMEOUT;
            // A packet in flight may still arrive on the old queue, and moves the flow back with
            // the next reader.
            let mut in_a_row = 0;
            while in_a_row < SETTLED {
                assert!(Clock::now() < end, "the flow stays on core {}", pair.core());
                pair.request_nonblocking();
                in_a_row = if pair.core() == target { in_a_row + 1 } else { 0 };
            }
            expect_at(&stack, &mut pair, target);
        }
    });
}
