//! A flow whose application moves to another core comes by that core's queue of the tap.
//!
//! RFS hands what comes to the new core, which sends by its own queue (XPS), and the kernel's tap delivers a flow on the queue on
//! which it was last sent.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream as KernelStream;
use std::thread;
use std::time::Instant as Clock;

use stack::{
    base::ids::CoreId,
    socket::options::{OptionValue, SocketOption},
};

use super::super::{Tun, TunConfig};
use super::end::{PATIENCE, US, in_namespace};
use crate::clock::with_cx;
use crate::{Stack, TcpListener, TcpStream};

const PORT: u16 = 7;

/// Questions asked while nothing moves.
const ROUNDS: u64 = 200;

/// Answers in a row from one core after which the flow has moved.
const SETTLED: u32 = 16;

/// Packets that may go astray meanwhile: the kernel forgets a flow that was quiet for seconds, as it may be on a busy machine.
const ASTRAY: u64 = ROUNDS / 10;

/// A connection between the kernel, which asks, and us.
struct Pair {
    near: TcpStream,
    far: KernelStream,
}

impl Pair {
    fn open(listener: &TcpListener) -> Self {
        let far = KernelStream::connect((US, PORT)).expect("a connection");
        let (near, _) = listener.accept().expect("its other end");
        far.set_nodelay(true).expect("an option");
        far.set_read_timeout(Some(PATIENCE)).expect("an option");
        near.set_read_timeout(Some(PATIENCE)).expect("an option");
        Self { near, far }
    }

    /// Where its packets went up last.
    fn core(&self) -> u16 {
        match self.near.option(SocketOption::IncomingCpu) {
            Ok(OptionValue::Int(core)) => u16::try_from(core).expect("a core"),
            other => panic!("SO_INCOMING_CPU: {other:?}"),
        }
    }

    /// The kernel asks, we answer.
    fn ask(&mut self) {
        self.far.write_all(b"where are you?").expect("sent");
        let mut question = [0; 14];
        self.near.read_exact(&mut question).expect("a question");
        self.answer(question);
    }

    /// As `ask`, but by a thread that has come here from another core: it looks, and does not wait, which it would do on the core
    /// of the packets.
    fn ask_a_visitor(&mut self) {
        self.far.write_all(b"where are you?").expect("sent");
        let (mut question, mut got) = ([0; 14], 0);
        let end = Clock::now() + PATIENCE;
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

/// This thread polls a core once: it is at home there.
fn move_to(stack: &Stack, core: u16) {
    let host = stack.host();
    let target = &host.cores()[usize::from(core)];
    with_cx(|cx| {
        target.busy_poll(host, cx, 8, |_| true);
        target.stop_polling(cx, host, false);
        assert_eq!(cx.home(host), Some(CoreId(core)));
    });
}

/// Packets that went up on each core, and those that were handed from one to the other.
fn counts(stack: &Stack) -> [u64; 3] {
    let stat = stack.softnet_stat();
    let handed = stack.counters().iter().find(|(name, _)| *name == "RpsPackets");
    [stat[0].processed, stat[1].processed, handed.expect("a counter").1]
}

/// Asks until nothing moves any more, then sees that everything comes by the queue of `core` and goes up there.
fn expect_at(stack: &Stack, pair: &mut Pair, core: u16) {
    for _ in 0..8 {
        pair.ask();
    }
    let before = counts(stack);
    for _ in 0..ROUNDS {
        pair.ask();
    }
    let after = counts(stack);
    let [first, second, handed] = [0, 1, 2].map(|index| after[index] - before[index]);
    let (here, elsewhere) = if core == 0 { (first, second) } else { (second, first) };
    assert!(
        here >= ROUNDS && elsewhere <= ASTRAY && handed <= ASTRAY,
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
        // The handshake came by the queue that the kernel chose; the first reads may take the flow to the reader's core.
        for _ in 0..SETTLED {
            pair.ask();
        }
        let home = pair.core();
        expect_at(&stack, &mut pair, home);
        // There and back.
        for target in [1 - home, home] {
            move_to(&stack, target);
            let end = Clock::now() + PATIENCE;
            // A packet that was on its way may still come by the old queue, and takes the next reader back with it.
            let mut in_a_row = 0;
            while in_a_row < SETTLED {
                assert!(Clock::now() < end, "the flow stays on core {}", pair.core());
                pair.ask_a_visitor();
                in_a_row = if pair.core() == target { in_a_row + 1 } else { 0 };
            }
            expect_at(&stack, &mut pair, target);
        }
    });
}
