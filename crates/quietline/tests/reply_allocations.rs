//! Checks that answers without a socket, resets and SYN cookies, allocate no memory, each to
//! another address.

#[cfg(test)]
#[path = "support/allocations.rs"]
mod allocations;

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        sync::{
            Arc, OnceLock,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use pkt::{Batch, Instant, PacketList, RxChecksum};
    use stack::{
        Capabilities, Cx, Device, Memory,
        device::{Doorbell, LinkType, QueueId},
        header::ip::{Fragment, IPV4_HEADER_LEN, IpHeader, protocol},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        route::fib::RouteSpec,
        socket::Listener,
        sysctl::Sysctls,
    };
    use tcp::{Counter as TcpCounter, Flags, Options, SegmentHeader, SeqNum};

    use super::allocations;

    const START: Instant = Instant::from_secs(1000);
    const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    /// A device that delivers the delivered frames, a few at a time, and frees the packets that it
    /// transmits.
    #[derive(Debug)]
    struct Replay {
        caps: Capabilities,
        frames: Vec<Vec<u8>>,
        /// Number of frames delivered.
        delivered: AtomicUsize,
        /// Number of frames that may be delivered.
        limit: AtomicUsize,
        sent: AtomicUsize,
        doorbell: OnceLock<Doorbell>,
    }

    impl Device for Replay {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            let delivered = self.delivered.load(Ordering::Relaxed);
            let count = budget.min(self.limit.load(Ordering::Relaxed) - delivered);
            for frame in &self.frames[delivered..delivered + count] {
                let mut packet = cx.pool.alloc_from(frame).expect("memory");
                packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
                out.push(packet).expect("room");
            }
            self.delivered.store(delivered + count, Ordering::Relaxed);
            count
        }

        fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            while let Some(packet) = list.pop_front() {
                self.sent.fetch_add(1, Ordering::Relaxed);
                cx.pool.free(packet);
            }
        }

        fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
            let _ = self.doorbell.set(doorbell);
        }
    }

    /// Returns, in turn, a SYN to a full listener, and a SYN and an ACK to a closed port, each from
    /// another address.
    fn frame(index: u32) -> Vec<u8> {
        let source = Ipv4Addr::from_bits(Ipv4Addr::new(100, 0, 0, 0).to_bits() + index);
        let (dst_port, flags) = match index % 3 {
            0 => (80, Flags::SYN),
            1 => (81, Flags::SYN),
            _ => (81, Flags::ACK),
        };
        let header = SegmentHeader {
            src_port: 2000,
            dst_port,
            seq: SeqNum(index),
            flags,
            window: 1000,
            options: Options { timestamps: Some((index, 0)), ..Options::default() },
            ..SegmentHeader::default()
        };
        let tcp_len = header.header_bytes();
        let ip = IpHeader {
            src: source.into(),
            dst: HOST.into(),
            protocol: protocol::TCP,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            id: 0,
            fragment: Fragment::default(),
            header_len: u16::try_from(IPV4_HEADER_LEN).expect("20"),
            payload_len: u32::try_from(tcp_len).expect("at most 60"),
        };
        let mut bytes = vec![0; IPV4_HEADER_LEN + tcp_len];
        ip.emit::<true>(&mut bytes[..IPV4_HEADER_LEN]);
        header.emit(&mut bytes[IPV4_HEADER_LEN..]);
        bytes
    }

    #[test]
    fn replies_without_a_socket_allocate_no_memory() {
        let caps = Capabilities::plain("replay", 1500, LinkType::Ip);
        let device = Arc::new(Replay {
            caps,
            frames: (0..30_000).map(frame).collect(),
            delivered: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            doorbell: OnceLock::new(),
        });
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.tcp_syncookies", "2").expect("a setting");
        let memory = Memory::new(16 << 20);
        let mut cx = Cx::replay(&memory, 1);
        cx.now = START;
        let everywhere = "0.0.0.0/0".parse().expect("a prefix");
        let config = HostConfig {
            devices: vec![DeviceConfig {
                device: Arc::clone(&device) as _,
                addresses: vec![format!("{HOST}/24").parse().expect("a prefix")],
            }],
            routes: vec![RouteSpec::via(everywhere, Ipv4Addr::new(192, 0, 2, 254).into())],
            cores: 1,
            sysctls,
            ..HostConfig::replay(0)
        };
        let host = Host::new(&memory, config).expect("a valid configuration");
        let local = SocketAddr::new(HOST.into(), 80);
        let listener = Listener::listen(&host, &mut cx, local, 8).expect("a free port");
        let mut play = |frames: usize| {
            device.limit.fetch_add(frames, Ordering::Relaxed);
            let before = allocations::of_this_thread();
            while host.poll(&mut cx).is_some_and(|next| next <= START) {}
            allocations::of_this_thread() - before
        };
        // Warm up: packet memory, the counters' page, the route of the answers.
        play(3000);
        assert_eq!(play(27_000), 0, "allocations for 27,000 answers");
        assert_eq!(device.sent.load(Ordering::Relaxed), 30_000);
        assert_eq!(host.counters().tcp(TcpCounter::TcpExtSyncookiesSent), 10_000);
        assert_eq!(host.counters().tcp(TcpCounter::TcpOutRsts), 20_000);
        listener.close(&host, &mut cx);
    }
}
