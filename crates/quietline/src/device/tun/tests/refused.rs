//! A kernel without memory for a large superframe, simulated by a datagram socket with a small send
//! buffer.

use std::os::unix::net::UnixDatagram;
use std::thread;
use std::time::Instant as Clock;

use pkt::{Packet, PacketList};
use rustix::net::sockopt::set_socket_send_buffer_size;
use stack::{Cx, Memory, base::limits::GSO_BYTES_MAX};

use super::*;
use crate::{Stack, TcpStream};

/// Half of the send buffer, which the kernel doubles. A superframe of 64 KB fits, and one that is
/// half as large again does not.
const SEND_BUFFER_BYTES: usize = 40_000;

/// As above, for 65,568 bytes: the largest frame that the other end can read fits, and no longer
/// one, which would be truncated.
const SEND_BUFFER_OF_A_STREAM: usize = 32_800;

/// Returns two tuns that are connected without a kernel in between: each reads the frames that the
/// other writes.
fn pair(send_buffer_bytes: usize) -> [Arc<Tun>; 2] {
    let (left, right) = UnixDatagram::pair().expect("sockets");
    [left, right].map(|socket| {
        socket.set_nonblocking(true).expect("an option");
        set_socket_send_buffer_size(&socket, send_buffer_bytes).expect("an option");
        tun_of(socket.into())
    })
}

/// Returns a tun with this descriptor as its only queue.
fn tun_of(queue: OwnedFd) -> Arc<Tun> {
    let caps = Capabilities {
        tx_checksum: true,
        tso4: true,
        tso6: true,
        uso: false,
        gso_max_bytes: BIG_TCP_BYTES_MAX,
        jumbo6: false,
        ..Capabilities::plain("ql0", 1500, LinkType::Ip)
    };
    let link = Link {
        index: 1,
        mtu: 1500,
        up: true,
        mac: None,
        tx_queue_len: 1000,
        ethernet: false,
        rx_queues: 1,
        tx_queues: 1,
        gso_max_bytes: 0,
    };
    Arc::new(Tun {
        kind: TunKind::Tun,
        vnet_hdr: true,
        superframe_max: AtomicU32::new(caps.gso_max_bytes),
        caps,
        link: Some(link),
        queues: Box::new([queue]),
        gone: AtomicBool::new(false),
        silence: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("eventfd"),
        doorbell: OnceLock::new(),
    })
}

/// Returns a TCP superframe over IPv4 with an IP packet of `bytes` bytes.
fn superframe(cx: &mut Cx, bytes: u32) -> Packet {
    let payload = bytes as usize - 40;
    let segment = Segment {
        src: (US, 1),
        dst: (HOST, 2),
        seq: 1,
        ack: 1,
        flags: TCP_ACK,
        mss: None,
        data: &[],
    };
    let headers = ipv4(US, HOST, IPPROTO_TCP, &segment.bytes());
    let frame = [headers, vec![7; payload]].concat();
    let mut packet = cx.pool.alloc().expect("memory");
    assert_eq!(packet.append(&mut cx.pool, &frame), frame.len());
    let segs = u16::try_from(payload.div_ceil(1000)).expect("a few");
    let meta = packet.meta_mut();
    meta.gso = Gso { kind: GsoKind::TcpV4, ecn: false, fixed_id: false, size: 1000, segs };
    meta.tx_checksum = pkt::TxChecksum::Partial { start: 20, offset: 16 };
    packet
}

/// Transmits superframes of these sizes. Returns the number of packets left in the list, and of
/// those dropped.
fn transmit(tun: &Tun, cx: &mut Cx, sizes: &[u32]) -> (usize, u64) {
    let mut list: PacketList = sizes.iter().map(|&bytes| superframe(cx, bytes)).collect();
    let dropped = |cx: &Cx| DropReason::ALL.iter().map(|&why| cx.counters().drops.value(why)).sum();
    let before: u64 = dropped(cx);
    tun.transmit(QueueId(0), cx, &mut list);
    let left = list.len();
    list.free_all(&mut cx.pool);
    (left, dropped(cx) - before)
}

#[test]
fn a_superframe_without_kernel_memory_is_returned_and_is_the_last_of_its_size() {
    const LARGE: u32 = 196_607;
    let [tun, other] = pair(SEND_BUFFER_BYTES);
    let memory = Memory::new(64 << 20);
    let mut cx = Cx::replay(&memory, 1);
    assert_eq!(tun.superframe_max(), BIG_TCP_BYTES_MAX);
    assert_eq!(
        transmit(&tun, &mut cx, &[LARGE, 3000]),
        (2, 0),
        "the list stops at the refused superframe"
    );
    assert_eq!(tun.superframe_max(), GSO_BYTES_MAX);
    assert_eq!(transmit(&tun, &mut cx, &[GSO_BYTES_MAX, 3000]), (0, 0));
    let mut batch = pkt::Batch::new();
    assert_eq!(other.receive(QueueId(0), &mut cx, 64, &mut batch), 2);
    let lens: Vec<_> = batch.drain().map(|packet| packet.len()).collect();
    assert_eq!(lens, [GSO_BYTES_MAX as usize, 3000]);
    tun.start(QueueId(0));
    assert_eq!(
        tun.superframe_max(),
        BIG_TCP_BYTES_MAX,
        "the size is tried again after the device was taken up"
    );
}

/// A datagram socket whose peer is closed replaces the driver: one read fails with ECONNREFUSED,
/// and later reads find nothing.
#[test]
fn an_error_about_one_frame_loses_the_frame_and_keeps_the_interface() {
    let closed = {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
        socket.local_addr().expect("its address")
    };
    let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("a port");
    socket.set_nonblocking(true).expect("an option");
    socket.connect(closed).expect("connected");
    socket.send(b"?").expect("sent");
    let tun = tun_of(socket.into());
    let mut fds = [PollFd::from_borrowed_fd(tun.queue_fd(0), PollFlags::IN)];
    let timeout = Timespec { tv_sec: 10, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "the refusal has arrived");
    let memory = Memory::new(64 << 20);
    let mut cx = Cx::replay(&memory, 1);
    let mut batch = pkt::Batch::new();
    let _ = tun.receive(QueueId(0), &mut cx, 64, &mut batch);
    assert!(!tun.is_gone(), "the interface still exists");
    assert_eq!(cx.counters().drops.value(DropReason::DeviceRxError), 1);
}

#[test]
fn a_refused_frame_of_64_kb_is_dropped_and_changes_no_limit() {
    let [tun, _other] = pair(10_000);
    let memory = Memory::new(64 << 20);
    let mut cx = Cx::replay(&memory, 1);
    assert_eq!(transmit(&tun, &mut cx, &[GSO_BYTES_MAX, 3000]), (0, 1));
    assert_eq!(tun.superframe_max(), BIG_TCP_BYTES_MAX);
}

/// Bytes that one connection sends at a time.
const CHUNK: usize = 1_000_000;

/// Reads a connection to its end, and returns the number of chunks.
fn read_chunks(mut stream: TcpStream) -> usize {
    stream.set_read_timeout(Some(TIMEOUT)).expect("an option");
    let (mut bytes, mut chunks, expected) = (vec![0; CHUNK], 0, chunk());
    while stream.read_exact(&mut bytes).is_ok() {
        assert!(bytes == expected, "chunk {chunks} differs");
        chunks += 1;
    }
    chunks
}

fn chunk() -> Vec<u8> {
    (0..CHUNK).map(|at| at.to_le_bytes()[at % 2]).collect()
}

/// The data passes from the application through the stack and the device to the application at the
/// other end.
#[test]
fn a_stream_through_a_kernel_that_refuses_superframes_loses_nothing() {
    const CHUNKS: usize = 20;
    let [near, far] = pair(SEND_BUFFER_OF_A_STREAM);
    let stack = |device, address: &str| {
        Stack::builder()
            .device(device)
            .address(address.parse().expect("a network"))
            .sysctl("net.ipv4.tcp_rmem", "4096 8000000 16000000")
            .sysctl("net.ipv4.tcp_wmem", "4096 4000000 16000000")
            // Without these, pacing or a queue that grows the window would bound superframes.
            .sysctl("net.ipv4.tcp_tso_rtt_log", "31")
            .sysctl("net.quietline.hystart_detect", "off")
            // A descheduled thread does not count as a loss.
            .sysctl("net.ipv4.tcp_rto_min_us", "60000000")
            .sysctl("net.ipv4.tcp_early_retrans", "0")
            .build()
            .expect("a stack")
    };
    let (near, far) = (stack(near, "10.77.0.1/24"), stack(far, "10.77.0.2/24"));
    let at = (US, 7_u16);
    let listener = crate::TcpListener::bind(&far, at).expect("a listener");
    let (end, chunk) = (Clock::now() + TIMEOUT, chunk());
    let count = |name| near.counters().get(name).expect("a counter");
    while count("DeviceTxRefused") == 0 {
        assert!(Clock::now() < end, "no superframe of that size was sent");
        let mut stream = TcpStream::connect(&near, at).expect("a connection");
        stream.set_write_timeout(Some(TIMEOUT)).expect("an option");
        let (accepted, _) = listener.accept().expect("its other end");
        let reader = thread::spawn(move || read_chunks(accepted));
        for _ in 0..CHUNKS {
            stream.write_all(&chunk).expect("sent");
        }
        drop(stream);
        assert_eq!(reader.join().expect("no panic"), CHUNKS);
    }
    // At most one for each sending thread.
    let refused = count("DeviceTxRefused");
    assert!(refused <= 3, "{refused} superframes were refused");
    for reason in [DropReason::DeviceTxError, DropReason::NoMemory] {
        assert_eq!(count(reason.name()), 0, "{reason}");
    }
}
