//! Checks that run stacks on the devices.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr},
    sync::Arc,
    thread,
    time::{Duration, Instant as Clock},
};

use ipnet::{IpNet, Ipv4Net};

use super::{Check, Outcome, Pair, Unmet, bench::TIMEOUT, ensure, fail};
use crate::{Attachment, Event, Route, Stack, StackBuilder, TcpListener, TcpStream};

pub(super) static CHECKS: [Check; 5] = [
    ("a_stack_has_its_device_alone", a_stack_has_its_device_alone),
    ("an_arrival_wakes_a_sleeping_worker", an_arrival_wakes_a_sleeping_worker),
    ("streams_carry_bytes_both_ways", streams_carry_bytes_both_ways),
    ("a_removed_device_is_released", a_removed_device_is_released),
    ("a_device_that_is_gone_is_removed", a_device_that_is_gone_is_removed),
];

const PORT: u16 = 7;

/// The two stacks of a pair.
struct Stacks {
    left: Stack,
    right: Stack,
    /// Where the right stack listens.
    to: SocketAddr,
    /// The rest of the pair.
    pair: Pair,
}

impl Stacks {
    /// Both are built without polling: a thread that waits sleeps, so that only workers find what arrives.
    fn new(pair: Pair) -> Result<Self, Unmet> {
        let Some(right) = &pair.right else {
            return Err(Unmet::NotApplicable("a device that receives its own frames has no peer"));
        };
        let [left_at, right_at] = pair.addresses;
        let build = |device: &Attachment, own, peer| {
            let stack = builder(device.clone(), own, peer).build();
            stack.map_err(|error| fail(format!("no stack can be built: {error}")))
        };
        let left = build(&pair.left, left_at, right_at)?;
        let right = build(right, right_at, left_at)?;
        Ok(Self { left, right, to: (right_at, PORT).into(), pair })
    }

    fn listen(&self) -> Result<TcpListener, Unmet> {
        TcpListener::bind(&self.right, self.to).map_err(|error| fail(format!("listen: {error}")))
    }
}

fn builder(device: Attachment, own: Ipv4Addr, peer: Ipv4Addr) -> StackBuilder {
    let host = |address| IpNet::V4(Ipv4Net::from(address));
    let name = device.device.caps().name.clone();
    let route = Route::to(host(peer)).dev(name).src(IpAddr::V4(own));
    let stack = Stack::builder().name("conformance").busy_poll(Duration::ZERO);
    stack.device(device).address(host(own)).add_route(route)
}

fn a_stack_has_its_device_alone(pair: Pair) -> Outcome {
    let stacks = Stacks::new(pair)?;
    let device = &stacks.pair.left;
    ensure!(device.device.is_attached(), "a stack has the device, and is_attached is false");
    let [own, peer] = stacks.pair.addresses;
    let second = builder(device.clone(), own, peer).build();
    ensure!(second.is_err(), "a second stack was built with the device");
    Ok(())
}

fn an_arrival_wakes_a_sleeping_worker(pair: Pair) -> Outcome {
    /// Below the first retransmission, of a SYN or an ARP request, after a second.
    const PROMPT: Duration = Duration::from_millis(900);
    const TRIES: usize = 3;
    let stacks = Stacks::new(pair)?;
    let listener = stacks.listen()?;
    let mut took = Vec::new();
    // A busy machine may run a worker late, though not each time.
    for _ in 0..TRIES {
        thread::sleep(Duration::from_millis(20));
        let begin = Clock::now();
        let stream = TcpStream::connect_timeout(&stacks.left, stacks.to, TIMEOUT)
            .map_err(|error| fail(format!("no connection: {error}")))?;
        took.push(begin.elapsed());
        let _ = listener.accept().map_err(|error| fail(format!("accept: {error}")))?;
        drop(stream);
        if took.iter().any(|took| *took < PROMPT) {
            return Ok(());
        }
    }
    Err(fail(format!("connections took {took:?}: frames wait until a timer wakes the worker")))
}

fn streams_carry_bytes_both_ways(pair: Pair) -> Outcome {
    const BYTES: usize = 1 << 20;
    let stacks = Stacks::new(pair)?;
    let listener = stacks.listen()?;
    let io = |result: io::Result<()>| result.map_err(|error| fail(error.to_string()));
    let stream = TcpStream::connect_timeout(&stacks.left, stacks.to, TIMEOUT)
        .map_err(|error| fail(format!("no connection: {error}")))?;
    let (accepted, _) = listener.accept().map_err(|error| fail(format!("accept: {error}")))?;
    for end in [&stream, &accepted] {
        io(end.set_read_timeout(Some(TIMEOUT)))?;
        io(end.set_write_timeout(Some(TIMEOUT)))?;
    }
    let sent: Vec<u8> = (0..BYTES).map(|at| super::frames::pattern(3, at / 7)).collect();
    let write = |mut end: &TcpStream| {
        end.write_all(&sent)?;
        end.shutdown(Shutdown::Write)
    };
    let read = |mut end: &TcpStream| {
        let mut got = Vec::new();
        end.read_to_end(&mut got)?;
        if got == sent { Ok(()) } else { Err(io::Error::other("the bytes have changed")) }
    };
    thread::scope(|scope| {
        let ends = [&stream, &accepted];
        let writers = ends.map(|end| scope.spawn(move || write(end)));
        let readers = ends.map(|end| scope.spawn(move || read(end)));
        for (what, thread) in [("write", writers), ("read", readers)]
            .into_iter()
            .flat_map(|(what, threads)| threads.into_iter().map(move |thread| (what, thread)))
        {
            let result = thread.join().map_err(|panic| fail(super::panic_text(&*panic)))?;
            result.map_err(|error| fail(format!("{what}: {error}")))?;
        }
        Ok(())
    })
}

fn a_removed_device_is_released(pair: Pair) -> Outcome {
    let Stacks { left, right, pair, .. } = Stacks::new(pair)?;
    // What joins the devices stays until the end.
    let Pair { left: attachment, right: peer, _kept, .. } = pair;
    let name = attachment.device.caps().name.clone();
    let device = Arc::downgrade(&attachment.device);
    drop((attachment, peer));
    left.remove_device(&name).map_err(|error| fail(format!("remove_device: {error}")))?;
    let deadline = Clock::now() + TIMEOUT;
    while device.strong_count() > 0 {
        let count = device.strong_count();
        ensure!(Clock::now() < deadline, "{count} references to the removed device are left");
        thread::sleep(Duration::from_millis(1));
    }
    drop((left, right));
    Ok(())
}

fn a_device_that_is_gone_is_removed(mut pair: Pair) -> Outcome {
    let Some(unplug) = pair.unplug.take() else {
        return Err(Unmet::NotApplicable("the pair has no way to unplug the device"));
    };
    let stacks = Stacks::new(pair)?;
    let mut events = stacks.left.events();
    let device = stacks.pair.left.device.caps().name.clone();
    unplug();
    let deadline = Clock::now() + TIMEOUT;
    loop {
        match events.next_timeout(Duration::from_millis(100)) {
            Some(Event::DeviceGone { device: gone }) if gone == device => return Ok(()),
            _ => {}
        }
        ensure!(Clock::now() < deadline, "no event DeviceGone of {device}");
    }
}
