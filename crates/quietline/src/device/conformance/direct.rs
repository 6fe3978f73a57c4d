//! Checks that call a device directly, as a core does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant as Clock},
};

use pkt::{GsoKind, PacketList, PacketOwner};
use stack::Cx;

use super::{
    Check, Outcome, Pair, Unmet,
    bench::{Arrival, Bench, TIMEOUT},
    ensure, fail,
    frames::{FRAME_MIN, IP_LEN, TCP, TCP_LEN, UDP, UDP_LEN, checksum_fault, number_of, pattern},
};
use crate::{
    clock,
    device::{BIG_TCP_BYTES_MAX, Batch, Capabilities, Completed, LinkType, QueueId, WEIGHT},
    entropy,
};

pub(super) static CHECKS: [Check; 12] = [
    ("capabilities_are_valid", capabilities_are_valid),
    ("an_idle_queue_gives_no_frame", an_idle_queue_gives_no_frame),
    ("frames_arrive_whole_and_in_order", frames_arrive_whole_and_in_order),
    ("a_poll_keeps_to_its_budget", a_poll_keeps_to_its_budget),
    ("a_full_device_leaves_packets_in_the_list", a_full_device_leaves_packets_in_the_list),
    ("every_packet_is_completed_once", every_packet_is_completed_once),
    ("partial_checksums_are_completed", partial_checksums_are_completed),
    ("superframes_arrive_whole", superframes_arrive_whole),
    ("every_queue_carries_frames", every_queue_carries_frames),
    ("threads_transmit_at_the_same_time", threads_transmit_at_the_same_time),
    ("a_device_that_was_down_carries_frames_again", a_device_that_was_down_carries_frames_again),
    ("a_dropped_device_frees_its_packets", a_dropped_device_frees_its_packets),
];

/// Bytes of IP packet of frames whose size does not matter.
const SMALL: usize = 128;

fn capabilities_are_valid(pair: Pair) -> Outcome {
    let bench = Bench::new(pair);
    for device in [&bench.left, &bench.right] {
        let caps = device.caps();
        let Capabilities { name, mtu, queues, gso_max_bytes, .. } = caps;
        ensure!(!name.is_empty() && name != "lo" || bench.is_looped(), "the name is {name:?}");
        ensure!(*mtu >= 88, "the MTU is {mtu}: less than 88 bytes hold no segment");
        ensure!(*queues >= 1, "it has no queue");
        ensure!(
            (1..=BIG_TCP_BYTES_MAX).contains(gso_max_bytes),
            "gso_max_bytes is {gso_max_bytes}: 1 to {BIG_TCP_BYTES_MAX} are allowed"
        );
        if let LinkType::Ethernet { mac } = caps.link {
            ensure!(mac.0[0] & 1 == 0 && mac.0 != [0; 6], "{mac} is no unicast address");
        }
        ensure!(caps.tx_checksum || !caps.tso4 && !caps.tso6, "tso4 and tso6 need tx_checksum");
        let weight = device.weight();
        ensure!(
            (1..=WEIGHT).contains(&weight),
            "the weight is {weight}: 1 to {WEIGHT} are allowed"
        );
        let (largest, limit) = (device.superframe_max(), *gso_max_bytes);
        ensure!(largest <= limit, "superframe_max is {largest}, above gso_max_bytes, {limit}");
        let again = device.caps();
        ensure!(format!("{caps:?}") == format!("{again:?}"), "caps() differ between two calls");
    }
    if let (LinkType::Ethernet { mac: left }, LinkType::Ethernet { mac: right }, false) =
        (bench.left.caps().link, bench.right.caps().link, bench.is_looped())
    {
        ensure!(left != right, "both devices have the link address {left}");
    }
    bench.finish()
}

fn an_idle_queue_gives_no_frame(pair: Pair) -> Outcome {
    let mut bench = Bench::new(pair);
    bench.cx.now = clock::now();
    for queue in (0..bench.right.caps().queues).map(QueueId) {
        let mut batch = Batch::new();
        let taken = bench.right.receive(queue, &mut bench.cx, WEIGHT, &mut batch);
        let got = batch.len();
        ensure!(got <= taken && taken <= WEIGHT, "receive returned {taken} for {got} packets");
        for packet in batch {
            // A kernel may have sent frames of its own.
            let number = bench.look_at(&packet);
            ensure!(number.is_none(), "a frame arrived that was not sent: {packet:?}");
            bench.cx.pool.free(packet);
        }
        let done = bench.right.complete(queue, &mut bench.cx);
        ensure!(done == Completed::NONE, "complete counts {done:?}, and nothing was sent");
    }
    bench.finish()
}

fn frames_arrive_whole_and_in_order(pair: Pair) -> Outcome {
    let mut bench = Bench::new(pair);
    let mtu = bench.mtu();
    let sizes = [FRAME_MIN, FRAME_MIN + 1, 64, 200, 576, mtu - 1, mtu];
    let sizes: Vec<usize> = sizes.into_iter().filter(|size| *size <= mtu).collect();
    let mut list = PacketList::new();
    for (number, size) in (0..).zip(&sizes) {
        list.push_back(bench.numbered(number, *size)?);
    }
    let arrived = bench.transmit_all(0, &mut list)?;
    let arrived = bench.receive_all(arrived, sizes.len())?;
    let expected: Vec<Arrival> =
        (0..).zip(sizes).map(|(number, ip_len)| Arrival { number, ip_len }).collect();
    ensure!(arrived == expected, "sent {expected:?}, received {arrived:?}");
    no_more_arrives(&mut bench)?;
    bench.finish()
}

/// A frame must not arrive twice.
fn no_more_arrives(bench: &mut Bench) -> Outcome {
    thread::sleep(Duration::from_millis(2));
    let more = bench.receive_some()?;
    ensure!(more.is_empty(), "frames arrived twice: {more:?}");
    Ok(())
}

fn a_poll_keeps_to_its_budget(pair: Pair) -> Outcome {
    const FRAMES: u32 = 20;
    const BUDGET: usize = 3;
    let mut bench = Bench::new(pair);
    let mut list = bench.list(0..FRAMES, SMALL)?;
    let arrived = bench.transmit_all(0, &mut list)?;
    let mut numbers: Vec<u32> = arrived.iter().map(|arrival| arrival.number).collect();
    let deadline = Clock::now() + TIMEOUT;
    while numbers.len() < FRAMES as usize {
        ensure!(Clock::now() < deadline, "{} of {FRAMES} frames arrived", numbers.len());
        bench.complete();
        // `poll` checks each answer against the budget.
        for packet in bench.poll(BUDGET)? {
            numbers.extend(bench.look_at(&packet).transpose()?.map(|arrival| arrival.number));
            bench.cx.pool.free(packet);
        }
    }
    ensure!(numbers.iter().copied().eq(0..FRAMES), "the order of arrival was {numbers:?}");
    bench.finish()
}

fn a_full_device_leaves_packets_in_the_list(pair: Pair) -> Outcome {
    /// More frames than any queue of a device is expected to hold.
    const FRAMES: u32 = 4096;
    let mut bench = Bench::new(pair);
    let mut list = bench.list(0..FRAMES, SMALL)?;
    bench.transmit(0, &mut list);
    let taken = FRAMES - u32::try_from(list.len()).unwrap_or(u32::MAX);
    ensure!(list.len() <= FRAMES as usize, "transmit added packets to the list");
    let mut expected = taken;
    let mut kept = PacketList::new();
    while let Some(packet) = list.pop_front() {
        let bytes = packet.to_vec();
        let number = number_of(&bytes[bytes.len() - SMALL..]).and_then(Result::ok);
        let (number, _) = number.ok_or_else(|| fail("a packet that was left has changed"))?;
        ensure!(number == expected, "{taken} packets were taken, and packet {number} was left");
        expected += 1;
        kept.push_back(packet);
    }
    ensure!(expected == FRAMES, "{taken} packets were taken, and {} left", expected - taken);
    // What was left is taken once there is room again.
    let _ = bench.transmit_all(0, &mut kept)?;
    bench.finish()
}

/// Counts the packets that were charged to it and have ended.
#[derive(Default)]
struct Charges(AtomicUsize);

impl PacketOwner for Charges {
    fn on_complete(&self, _truesize: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn every_packet_is_completed_once(pair: Pair) -> Outcome {
    const FRAMES: u32 = 50;
    let mut bench = Bench::new(pair);
    let is_async = bench.left.caps().async_completion;
    let charges = Arc::new(Charges::default());
    let mut list = PacketList::new();
    for number in 0..FRAMES {
        let mut packet = bench.numbered(number, SMALL)?;
        packet.set_owner(Arc::clone(&charges) as Arc<dyn PacketOwner>);
        list.push_back(packet);
    }
    let bytes = list.bytes();
    let arrived = bench.transmit_all(0, &mut list)?;
    let frames = FRAMES as usize;
    let ended = || charges.0.load(Ordering::Relaxed);
    if !is_async {
        let now = ended();
        ensure!(
            now == frames,
            "without async_completion the charges of all {frames} packets end in transmit: {now} did"
        );
    }
    let _ = bench.receive_all(arrived, frames)?;
    let deadline = Clock::now() + TIMEOUT;
    while is_async && bench.completed.packets < frames {
        let now = bench.completed.packets;
        ensure!(Clock::now() < deadline, "{now} of {frames} packets were completed");
        thread::sleep(Duration::from_micros(200));
        bench.complete();
    }
    thread::sleep(Duration::from_millis(2));
    bench.complete();
    let expected = if is_async { Completed { packets: frames, bytes } } else { Completed::NONE };
    let completed = bench.completed;
    ensure!(completed == expected, "complete counted {completed:?} instead of {expected:?}");
    let now = ended();
    ensure!(now == frames, "the charges of {now} of {frames} packets have ended");
    bench.finish()
}

fn partial_checksums_are_completed(pair: Pair) -> Outcome {
    let mut bench = Bench::new(pair);
    if !bench.left.caps().tx_checksum {
        return Err(Unmet::NotApplicable("the device has no tx_checksum"));
    }
    let sizes = [IP_LEN + UDP_LEN + 8, 77, 78, bench.mtu()];
    let mut list = PacketList::new();
    for (number, size) in (0..).zip(sizes) {
        let packet = bench.maker.partial(&mut bench.cx.pool, number, size);
        list.push_back(packet.ok_or_else(|| fail("the suite has no packet memory"))?);
    }
    bench.transmit(0, &mut list);
    ensure!(list.is_empty(), "{} of {} packets were not taken", list.len(), sizes.len());
    let deadline = Clock::now() + TIMEOUT;
    let mut arrived = 0;
    while arrived < sizes.len() {
        ensure!(Clock::now() < deadline, "{arrived} of {} datagrams arrived", sizes.len());
        for packet in bench.poll(WEIGHT)? {
            if let Some(ip) = bench.ip_of(&packet).filter(|ip| ip[9] == UDP) {
                arrived += 1;
                let fault = checksum_fault(&ip, packet.meta().rx_checksum, 6);
                ensure!(fault.is_none(), "a datagram of {} bytes: {}", ip.len(), fault.unwrap());
            }
            bench.cx.pool.free(packet);
        }
    }
    bench.finish()
}

fn superframes_arrive_whole(pair: Pair) -> Outcome {
    const SIZE: u16 = 1000;
    let mut bench = Bench::new(pair);
    if !bench.left.caps().tso4 {
        return Err(Unmet::NotApplicable("the device has no tso4"));
    }
    let most = bench.left.superframe_max().min(60_000) as usize;
    let bytes: Vec<u8> = (0..most - IP_LEN - TCP_LEN).map(|at| pattern(7, at)).collect();
    let packet = bench.maker.superframe(&mut bench.cx.pool, &bytes, SIZE);
    let mut list: PacketList =
        [packet.ok_or_else(|| fail("the suite has no packet memory"))?].into_iter().collect();
    bench.transmit(0, &mut list);
    ensure!(list.is_empty(), "a superframe of {most} bytes was not taken");
    let mut got = vec![None; bytes.len()];
    let deadline = Clock::now() + TIMEOUT;
    while got.contains(&None) {
        let missing = got.iter().filter(|byte| byte.is_none()).count();
        ensure!(Clock::now() < deadline, "{missing} bytes of {} never arrived", bytes.len());
        for packet in bench.poll(WEIGHT)? {
            let (gso, known) = (packet.meta().gso, packet.meta().rx_checksum);
            let ip = bench.ip_of(&packet).filter(|ip| ip[9] == TCP);
            bench.cx.pool.free(packet);
            let Some(ip) = ip else { continue };
            let at = u32::from_be_bytes([ip[24], ip[25], ip[26], ip[27]]) as usize;
            let header = IP_LEN + usize::from(ip[32] >> 4) * 4;
            let payload = &ip[header..];
            if payload.len() > usize::from(SIZE) {
                ensure!(
                    gso.kind == GsoKind::TcpV4 && gso.size == SIZE,
                    "a superframe of {} bytes arrived with {gso:?}",
                    payload.len()
                );
            } else if gso.kind == GsoKind::None {
                let fault = checksum_fault(&ip, known, 16);
                ensure!(fault.is_none(), "a segment at {at}: {}", fault.unwrap());
            }
            let place = got.get_mut(at..at + payload.len());
            let place = place.ok_or_else(|| fail(format!("a segment beyond the end, at {at}")))?;
            for (slot, byte) in place.iter_mut().zip(payload) {
                *slot = Some(*byte);
            }
        }
    }
    let differs = got.iter().zip(&bytes).position(|(got, sent)| *got != Some(*sent));
    ensure!(differs.is_none(), "byte {} of the payload has changed", differs.unwrap());
    bench.finish()
}

fn every_queue_carries_frames(pair: Pair) -> Outcome {
    let mut bench = Bench::new(pair);
    let queues = bench.left.caps().queues;
    for queue in 0..queues {
        let mut list = bench.list([u32::from(queue)], SMALL)?;
        let arrived = bench.transmit_all(queue, &mut list)?;
        let arrived = bench.receive_all(arrived, 1)?;
        ensure!(arrived[0].number == u32::from(queue), "queue {queue} delivered {arrived:?}");
    }
    bench.finish()
}

fn threads_transmit_at_the_same_time(pair: Pair) -> Outcome {
    const THREADS: u32 = 4;
    const FRAMES: u32 = 50;
    let mut bench = Bench::new(pair);
    let (device, maker, memory) =
        (Arc::clone(&bench.left), bench.maker.clone(), bench.memory.clone());
    let send = |thread: u32| -> Outcome {
        let mut cx = Cx::new(&memory, entropy::rng()).with_clock(clock::now);
        let deadline = Clock::now() + TIMEOUT;
        for number in 0..FRAMES {
            let packet = maker.numbered(&mut cx.pool, thread * FRAMES + number, SMALL);
            let packet = packet.ok_or_else(|| fail("the suite has no packet memory"))?;
            let mut list: PacketList = [packet].into_iter().collect();
            while !list.is_empty() {
                ensure!(Clock::now() < deadline, "a packet of thread {thread} is never taken");
                cx.now = clock::now();
                device.transmit(QueueId(0), &mut cx, &mut list);
                thread::yield_now();
            }
        }
        Ok(())
    };
    let arrived = thread::scope(|scope| {
        let senders: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || send(thread))).collect();
        let arrived = bench.receive_all(Vec::new(), (THREADS * FRAMES) as usize);
        for sender in senders {
            sender.join().map_err(|panic| fail(super::panic_text(&*panic)))??;
        }
        arrived
    })?;
    let mut numbers: Vec<u32> = arrived.iter().map(|arrival| arrival.number).collect();
    numbers.sort_unstable();
    ensure!(numbers.iter().copied().eq(0..THREADS * FRAMES), "frames were lost or doubled");
    drop((device, memory));
    bench.finish()
}

fn a_device_that_was_down_carries_frames_again(pair: Pair) -> Outcome {
    const BEFORE: u32 = 10;
    let mut bench = Bench::new(pair);
    let mut list = bench.list(0..BEFORE, SMALL)?;
    let _ = bench.transmit_all(0, &mut list)?;
    let queues = bench.right.caps().queues;
    for queue in (0..queues).map(QueueId) {
        bench.right.stop(queue, &mut bench.cx);
    }
    for queue in (0..queues).map(QueueId) {
        bench.right.start(queue);
    }
    // As a core does when a device comes up, frames that came while it was down are dropped.
    for _ in 0..100 {
        bench.receive_some()?;
    }
    thread::sleep(Duration::from_millis(2));
    bench.receive_some()?;
    let mut list = bench.list(BEFORE..BEFORE + 1, SMALL)?;
    let arrived = bench.transmit_all(0, &mut list)?;
    let arrived = bench.receive_all(arrived, 1)?;
    ensure!(arrived[0].number == BEFORE, "after it was down {arrived:?} arrived");
    // The other end goes down with packets in flight.
    let mut list = bench.list(0..BEFORE, SMALL)?;
    bench.transmit(0, &mut list);
    let left = Arc::clone(&bench.left);
    left.stop(QueueId(0), &mut bench.cx);
    left.start(QueueId(0));
    drop((left, list));
    bench.finish()
}

fn a_dropped_device_frees_its_packets(pair: Pair) -> Outcome {
    let mut bench = Bench::new(pair);
    let mut list = bench.list(0..100, SMALL)?;
    bench.transmit(0, &mut list);
    drop(list);
    // Neither received nor completed.
    bench.finish()
}
