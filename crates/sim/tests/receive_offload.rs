//! Receive offload in a whole host: the effect of its modes on TCP, packets that must not be held,
//! and headers that must not recurse.
//!
//! Not here: the numbered scenarios inside receive offload (`stack::receive::gro::tests`), trains
//! of frames (`offload.rs`).

#[cfg(test)]
mod tests {
    use std::{net::Ipv6Addr, sync::Arc};

    use pkt::EtherType;
    use sim::{
        Peer, Rig, RigConfig,
        frame::{self, Ipv4},
        rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC},
    };
    use stack::{base::counters::Counter, socket::Connection, sysctl::Sysctls};
    use tcp::{Counter as TcpCounter, Flags, Options};

    const PSH_ACK: Flags = Flags::PSH.union(Flags::ACK);

    /// A host with a connection.
    struct Bench {
        rig: Rig,
        peer: Peer,
        socket: Arc<Connection>,
    }

    impl Bench {
        fn new(cores: u16, settings: &[(&str, &str)]) -> Self {
            let mut sysctls = Sysctls::default();
            for (name, value) in settings {
                sysctls.set(name, value).expect("a setting");
            }
            let second_link = true;
            let mut rig =
                Rig::new(RigConfig { sysctls, cores, second_link, ..RigConfig::default() });
            let listener = rig.listen(80, 8);
            let peer = Peer::open(&mut rig, 80, 2000, Options::default());
            let socket = listener.accept().expect("an established connection");
            let host = rig.host();
            listener.close(&host, &mut rig.world.cx);
            rig.take();
            Self { rig, peer, socket }
        }

        /// Delivers the next segment to the device, which the host has not polled yet.
        fn reaches_device(&mut self, flags: Flags, payload: &[u8]) {
            let frame = self.next_frame(flags, payload);
            self.rig.queue(&frame);
        }

        fn next_frame(&mut self, flags: Flags, payload: &[u8]) -> Vec<u8> {
            let header = self.peer.header(flags);
            let frame = self.rig.framed(&self.peer.packet(&header, payload));
            self.peer.snd_nxt += u32::try_from(payload.len()).expect("a segment");
            frame
        }

        fn read(&mut self) -> Vec<u8> {
            let host = self.rig.host();
            let mut buf = vec![0; 10_000];
            let read = self.socket.recv(&host, &mut self.rig.world.cx, &mut buf, false);
            buf.truncate(read.expect("data"));
            buf
        }

        fn finish(self) {
            let Self { mut rig, socket, .. } = self;
            let host = rig.host();
            socket.abort(&host, &mut rig.world.cx);
            drop((socket, host));
            rig.finish();
        }
    }

    /// In a whole host: p0 with PSH waits in the list, p1 is held, p2 with PSH completes it. TCP
    /// sees reordering with the first version of the list, where held packets bypass it, and none
    /// where all packets take one exit.
    #[test]
    fn tcp_sees_reordering_only_with_two_exits_of_gro() {
        for (exit, out_of_order) in [
            ("immediate", 0),
            ("normal_only_list", 1),
            ("unified_list_packets", 0),
            ("unified_list_segments", 0),
        ] {
            let mut bench = Bench::new(1, &[("net.quietline.gro_exit", exit)]);
            bench.reaches_device(PSH_ACK, &[0; 500]);
            bench.reaches_device(Flags::ACK, &[1; 500]);
            bench.reaches_device(PSH_ACK, &[2; 500]);
            bench.rig.settle();
            let merged = Counter::GroMergedFree;
            let merged = bench.rig.count(Counter::GroMerged) + bench.rig.count(merged);
            assert_eq!(merged, 1, "{exit}: p1 and p2 are one");
            let queued = bench.rig.count_tcp(TcpCounter::TcpExtTCPOFOQueue);
            assert_eq!(queued, out_of_order, "{exit}");
            assert_eq!(bench.read(), [[0; 500], [1; 500], [2; 500]].concat(), "{exit}");
            bench.finish();
        }
    }

    /// Packets that arrive through another core, not through the poll of a device. Their list is
    /// flushed at the end of that work, too, at any batch size.
    #[test]
    fn packets_from_another_core_do_not_wait_in_a_list() {
        for exit in ["normal_only_list", "unified_list_packets", "unified_list_segments"] {
            for mask in ["1", "2"] {
                let mut bench = Bench::new(
                    2,
                    &[
                        ("net.quietline.gro_exit", exit),
                        ("net.core.gro_normal_batch", "1000"),
                        ("net.quietline.dev.default.rps_cpus", mask),
                    ],
                );
                let steered = bench.rig.count(Counter::RpsPackets);
                assert_eq!(steered > 0, mask == "2", "the handshake was steered");
                for (count, flags) in [(1, PSH_ACK), (3, Flags::ACK), (2, PSH_ACK)] {
                    for number in 0..count {
                        bench.reaches_device(flags, &[number; 100]);
                    }
                    // No time passes: packets must not wait for a timer or for the next packet.
                    bench.rig.settle();
                    assert_eq!(
                        bench.read().len(),
                        usize::from(count) * 100,
                        "{exit}, cores {mask}"
                    );
                }
                bench.finish();
            }
        }
    }

    /// One lookup for a superframe, with early demux: a superframe is one packet for the routes,
    /// and its input interface is that of its segments. If the interface has changed, the
    /// connection's input route is dropped once, and the superframe's route is cached.
    #[test]
    fn a_superframe_needs_one_route_look_up() {
        let names = ["IpInReceives", "RxRouteLookups", "RxDstInvalidated", "RxDstSet"];
        for (early_demux, known) in [("1", 0), ("0", 1)] {
            let mut bench = Bench::new(1, &[("net.ipv4.tcp_early_demux", early_demux)]);
            bench.reaches_device(PSH_ACK, &[9; 500]);
            bench.rig.settle();
            assert_eq!(bench.read(), [9; 500]);
            let elsewhere = Arc::clone(bench.rig.other.as_ref().expect("a second link"));
            for (moves, expected) in [
                (false, [1, known, 0, 0]),
                (true, [1, 1, 1, 1]),
                (true, [1, known, 0, 0]),
                (false, [1, 1, 1, 1]),
            ] {
                let before = bench.rig.host().counters();
                for (number, flags) in [(0, Flags::ACK), (1, Flags::ACK), (2, PSH_ACK)] {
                    let frame = bench.next_frame(flags, &[number; 500]);
                    let link = if moves { &elsewhere } else { &bench.rig.link };
                    assert!(link.deliver(&mut bench.rig.world.cx, &frame));
                }
                bench.rig.settle();
                assert_eq!(bench.read(), [[0; 500], [1; 500], [2; 500]].concat());
                let change = bench.rig.host().counters().since(&before);
                let change = names.map(|name| change.get(name).expect("a counter"));
                assert_eq!(change, expected, "early demux {early_demux}, moves: {moves}");
            }
            bench.finish();
        }
    }

    /// Deeply nested headers. Receive offload parses one link header, one IP header and one TCP
    /// header, so that nothing recurses and nothing is held.
    #[test]
    fn nested_headers_are_not_parsed() {
        let mut bench = Bench::new(1, &[]);
        let header = bench.peer.header(Flags::ACK);
        let inner = bench.peer.packet(&header, &[7; 100]);
        let held = bench.rig.count(Counter::GroHeld);
        for depth in [1, 2, 8, 60, 300] {
            let mut tags = Vec::new();
            let (mut v4, mut v6, mut chain) =
                (inner.clone(), vec![0; 8], vec![59, 0, 1, 4, 0, 0, 0, 0]);
            for _ in 0..depth {
                tags.extend([0, 7, 0x81, 0]);
                // IPv4 in IPv4 (RFC 2003) and IPv6 in IPv6 (RFC 2473), up to the largest length.
                if v4.len() < 9000 {
                    v4 = Ipv4::new(PEER_IP, HOST_IP, 4).with(&v4);
                    v6 = ipv6(41, &v6);
                }
                chain = [&[0, 0, 1, 4, 0, 0, 0, 0], &chain[..]].concat();
            }
            tags.truncate(tags.len() - 2);
            tags.extend([8, 0]);
            let tagged = [&tags[..], &inner].concat();
            let frames = [
                frame::ethernet(HOST_MAC, PEER_MAC, EtherType(0x8100), &tagged),
                frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV4, &v4),
                frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV6, &v6),
                frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV6, &ipv6(0, &chain)),
            ];
            for bytes in frames {
                let before = bench.rig.host().counters().dropped();
                bench.rig.give_frame(&bytes);
                let dropped = bench.rig.host().counters().dropped() - before;
                assert_eq!(dropped, 1, "{depth} headers: dropped with a reason");
            }
        }
        assert_eq!(bench.rig.count(Counter::GroHeld), held, "none of them was held");
        bench.finish();
    }

    /// Builds an IPv6 packet.
    fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let [src, dst] = [2, 1].map(|last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last));
        frame::ipv6(src, dst, next_header, payload)
    }
}
