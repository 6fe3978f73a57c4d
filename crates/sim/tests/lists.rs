//! Lists of packets through IP: lists of up to 64 packets have the same effect as single packets,
//! for any packets, and save lookups.
//!
//! `SEED=n cargo test -p quietline-sim --test lists` replays one seed; `SEEDS=n` runs that many.

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc};

    use sim::{
        frame::{self, Ipv4, Seen},
        peer::Peer,
        rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC, Rig, RigConfig, arp_frame},
    };
    use stack::{
        base::counters::Snapshot,
        header::{
            arp::ArpPacket,
            icmp::IcmpMessage,
            ip::{Fragment, protocol},
        },
        socket::{Connection, Listener},
    };
    use tcp::{Flags, Options, SegmentHeader};

    /// Prefixes of the counters that may depend on the size of lists: they count lists and the
    /// lookups saved by them.
    const OF_LISTS: [&str; 5] = ["RxList", "RxSublists", "RxRoute", "Dst", "RxDst"];

    fn rig(batch: &str, settings: &[(&str, &str)]) -> Rig {
        let mut config = RigConfig::default();
        for (name, value) in
            [("net.core.gro_normal_batch", batch), ("net.quietline.dev.bytes.gro", "0")]
                .iter()
                .chain(settings)
        {
            config.sysctls.set(name, value).expect("a setting");
        }
        Rig::new(config)
    }

    /// A host with three connections, and the peer's ends of them.
    struct Bench {
        rig: Rig,
        listener: Arc<Listener>,
        peers: Vec<Peer>,
        sockets: Vec<Arc<Connection>>,
    }

    impl Bench {
        fn new(batch: &str, settings: &[(&str, &str)]) -> Self {
            let mut rig = rig(batch, settings);
            let listener = rig.listen(80, 16);
            let open = |port| Peer::open(&mut rig, 80, port, Options::default());
            let peers: Vec<_> = (5001..5004).map(open).collect();
            let sockets = peers.iter().map(|_| listener.accept().expect("established")).collect();
            Self { rig, listener, peers, sockets }
        }

        /// Queues one frame of `peer`'s connection, in order.
        fn queue(&mut self, peer: usize, payload: &[u8]) {
            let header = self.peers[peer].header(Flags::ACK);
            let packet = self.peers[peer].packet(&header, payload);
            self.peers[peer].snd_nxt += u32::try_from(payload.len()).expect("a segment");
            let frame = self.rig.framed(&packet);
            self.rig.queue(&frame);
        }

        fn counts(&self, before: &Snapshot, names: &[&str]) -> Vec<u64> {
            let change = self.rig.host().counters().since(before);
            names.iter().map(|name| change.get(name).expect("a counter")).collect()
        }

        fn received(&mut self, socket: usize) -> Vec<u8> {
            let host = self.rig.host();
            let mut buf = vec![0; 100_000];
            let cx = &mut self.rig.world.cx;
            let read = self.sockets[socket].recv(&host, cx, &mut buf, false).unwrap_or(0);
            buf.truncate(read);
            buf
        }

        fn finish(self) {
            let Self { rig, listener, sockets, .. } = self;
            drop((listener, sockets));
            rig.finish();
        }
    }

    /// Draws a frame, valid or not, from or for one of the connections or for none.
    fn any_frame(bench: &mut Bench, rng: &mut tcp::Rng) -> Vec<u8> {
        let kind = rng.below(20);
        let number = rng.below(3) as usize;
        let len = [0, 1, 64, 500][rng.below(4) as usize];
        let payload: Vec<u8> = (0..len).map(|_| rng.next_u32().to_le_bytes()[0]).collect();
        let Bench { rig, peers, .. } = bench;
        let peer = &mut peers[number];
        let ack = peer.header(Flags::ACK);
        let plain = |packet: &[u8], rig: &Rig| rig.framed(packet);
        match kind {
            0..8 => {
                let packet = peer.packet(&ack, &payload);
                peer.snd_nxt += u32::try_from(len).expect("small");
                plain(&packet, rig)
            }
            8 => plain(&peer.packet(&SegmentHeader { seq: ack.seq + 700, ..ack }, &payload), rig),
            9 => plain(&peer.packet(&SegmentHeader { dst_port: 81, ..ack }, b""), rig),
            10 => {
                let src_port = 6000 + u16::try_from(rng.below(4)).expect("small");
                let syn = SegmentHeader { src_port, ..peer.header(Flags::SYN) };
                plain(&peer.packet(&syn, b""), rig)
            }
            11 => {
                let echo = IcmpMessage::EchoRequest { id: 1, seq: 2 };
                let message = frame::icmp(&echo, &payload);
                plain(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message), rig)
            }
            12 => {
                let fragment = Fragment { more: true, ..Fragment::default() };
                let piece = Ipv4 { fragment, ..Ipv4::new(PEER_IP, HOST_IP, protocol::TCP) };
                plain(&piece.with(&payload), rig)
            }
            13 => {
                let src = [HOST_IP, Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 255)];
                let segment = frame::tcp(src[number], HOST_IP, &ack, &payload);
                plain(&Ipv4::new(src[number], HOST_IP, protocol::TCP).with(&segment), rig)
            }
            14 => {
                let dst = [Ipv4Addr::new(10, 0, 0, 255), Ipv4Addr::BROADCAST, PEER_IP];
                plain(&Ipv4::new(PEER_IP, dst[number], protocol::UDP).with(&payload), rig)
            }
            15 => {
                let mut packet = peer.packet(&ack, &payload);
                let place = rng.below(u32::try_from(packet.len()).expect("small")) as usize;
                packet[place] ^= 1 << rng.below(8);
                plain(&packet, rig)
            }
            16 => {
                let mut frame = plain(&peer.packet(&ack, &payload), rig);
                frame.truncate(rng.below(u32::try_from(frame.len()).expect("small")) as usize);
                frame
            }
            17 => arp_frame(HOST_MAC, &ArpPacket::request(PEER_MAC, PEER_IP, HOST_IP)),
            18 => {
                let options = vec![1, 1, 1, 0];
                let carrier = Ipv4 { options, ..Ipv4::new(PEER_IP, HOST_IP, protocol::TCP) };
                let segment = frame::tcp(PEER_IP, HOST_IP, &ack, &payload);
                plain(&carrier.with(&segment), rig)
            }
            _ => {
                let stranger = Ipv4Addr::new(10, 0, 0, 77);
                let segment = frame::tcp(stranger, HOST_IP, &ack, &payload);
                plain(&Ipv4::new(stranger, HOST_IP, protocol::TCP).with(&segment), rig)
            }
        }
    }

    /// All observable results of a run.
    struct Outcome {
        sent: Vec<Seen>,
        read: Vec<Vec<u8>>,
        counted: Vec<(String, u64)>,
    }

    /// Plays `polls` polls of up to `most` frames.
    fn play(
        seed: u64,
        batch: &str,
        settings: &[(&str, &str)],
        (polls, most): (u32, u32),
    ) -> Outcome {
        let mut rng = tcp::Rng::new(seed);
        let mut bench = Bench::new(batch, settings);
        let mut seen = bench.rig.take();
        for _ in 0..polls {
            for _ in 0..rng.below(most + 1) {
                let frame = any_frame(&mut bench, &mut rng);
                bench.rig.queue(&frame);
            }
            seen.extend(bench.rig.take());
        }
        let read = (0..3).map(|socket| bench.received(socket)).collect();
        let counters = bench.rig.host().counters();
        let counted = counters
            .iter()
            .filter(|(name, _)| !OF_LISTS.iter().any(|prefix| name.starts_with(prefix)))
            .map(|(name, value)| (name.to_string(), value))
            .collect();
        bench.finish();
        Outcome { sent: seen, read, counted }
    }

    /// GRO10 for IP: a list has the effect of its packets one by one.
    #[test]
    fn a_list_has_the_effect_of_its_packets() {
        let only = std::env::var("SEED").ok().and_then(|text| text.parse().ok());
        let count = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
        for seed in only.map_or(0..count, |seed: u64| seed..seed + 1) {
            for demux in ["1", "0"] {
                let settings = [("net.ipv4.ip_early_demux", demux)];
                let single = play(seed, "1", &settings, (12, 59));
                for batch in ["5", "8", "64"] {
                    let list = play(seed, batch, &settings, (12, 59));
                    assert_eq!(single.read, list.read, "seed {seed}, lists of {batch}: bytes");
                    assert_eq!(
                        single.counted, list.counted,
                        "seed {seed}, lists of {batch}: counters"
                    );
                    let [one, other] = [&single.sent, &list.sent].map(|seen| format!("{seen:?}"));
                    assert_eq!(one, other, "seed {seed}, lists of {batch}: frames");
                }
            }
        }
    }

    /// Polls of at most one frame, on the fast path and on the slow path. RPS to the only core
    /// moves no packet, and keeps every frame off the fast path (`may_bypass_gro`).
    #[test]
    fn the_fast_path_of_single_frames_has_the_effect_of_the_slow_path() {
        const STEERED: (&str, &str) = ("net.quietline.dev.bytes.rps_cpus", "1");
        for seed in 0..60 {
            for gro in ["1", "0"] {
                let gro = ("net.quietline.dev.bytes.gro", gro);
                let short = play(seed, "8", &[gro], (300, 1));
                let long = play(seed, "8", &[gro, STEERED], (300, 1));
                assert_eq!(short.read, long.read, "seed {seed}, {gro:?}: bytes");
                assert_eq!(short.counted, long.counted, "seed {seed}, {gro:?}: counters");
                let [one, other] = [&short.sent, &long.sent].map(|seen| format!("{seen:?}"));
                assert_eq!(one, other, "seed {seed}, {gro:?}: frames");
            }
        }
    }

    /// Consecutive packets of one connection form a sublist, and each change of connection begins
    /// another.
    #[test]
    fn consecutive_packets_of_one_connection_form_a_sublist() {
        let mut bench = Bench::new("64", &[]);
        // The first packet of a connection caches its route.
        for peer in 0..3 {
            bench.queue(peer, b"data");
            bench.rig.settle();
        }
        for (peers, sublists) in [(vec![0; 12], 1), (vec![0, 0, 1, 1, 0, 2], 4), (vec![0, 1], 2)] {
            let before = bench.rig.host().counters();
            for peer in &peers {
                bench.queue(*peer, b"data");
            }
            bench.rig.settle();
            let names = ["RxListFlushes", "RxSublists", "RxRouteLookups", "IpInDelivers"];
            let expected = [1, sublists, 0, peers.len() as u64];
            assert_eq!(bench.counts(&before, &names), expected, "{peers:?}");
        }
        let bytes: usize = (0..3).map(|socket| bench.received(socket).len()).sum();
        assert_eq!(bytes, 23 * 4);
        bench.finish();
    }

    /// The route hint: of a list whose packets early demux cannot assign, only the first packet is
    /// looked up, until destination or type of service change.
    #[test]
    fn packets_without_a_connection_reuse_the_route_of_the_previous_packet() {
        let mut bench = Bench::new("64", &[("net.ipv4.tcp_early_demux", "0")]);
        let names = ["RxRouteLookups", "RxRouteHints", "RxSublists"];
        let before = bench.rig.host().counters();
        for peer in [0, 1, 0, 2, 2, 1, 0, 0] {
            bench.queue(peer, b"data");
        }
        bench.rig.settle();
        assert_eq!(bench.counts(&before, &names), [1, 7, 1], "one route for all connections");
        let before = bench.rig.host().counters();
        for tos in [0, 0, 0x10, 0x10, 0] {
            let header = bench.peers[0].header(Flags::ACK);
            let mut packet = bench.peers[0].packet(&header, b"");
            packet[1] = tos;
            frame::fix_ipv4_checksum(&mut packet);
            let frame = bench.rig.framed(&packet);
            bench.rig.queue(&frame);
        }
        bench.rig.settle();
        assert_eq!(
            bench.counts(&before, &names[..2]),
            [3, 2],
            "another type of service needs a lookup"
        );
        let before = bench.rig.host().counters();
        for src in [PEER_IP, Ipv4Addr::new(10, 0, 0, 9), HOST_IP, PEER_IP] {
            let segment = frame::tcp(src, HOST_IP, &bench.peers[0].header(Flags::ACK), b"");
            let packet = Ipv4::new(src, HOST_IP, protocol::TCP).with(&segment);
            let frame = bench.rig.framed(&packet);
            bench.rig.queue(&frame);
        }
        bench.rig.settle();
        let names = ["RxRouteLookups", "RxRouteHints", "IpInAddrErrors"];
        assert_eq!(bench.counts(&before, &names), [1, 2, 1], "a new source needs a lookup");
        bench.finish();
    }

    /// One connection is opened and one ends in the middle of a list: later packets of the list see
    /// the new state.
    #[test]
    fn state_changes_of_a_packet_apply_to_later_packets_of_the_list() {
        let mut bench = Bench::new("64", &[]);
        let mut peer = Peer::new(80, 7000);
        let syn = peer.header(Flags::SYN);
        peer.send(&mut bench.rig, &syn, b"");
        let heard = bench.rig.take();
        assert_eq!(peer.hear(&heard), [Flags::SYN | Flags::ACK]);
        // The third segment of the handshake and the first data in one list.
        for payload in [&b""[..], b"early", b"bird"] {
            let packet = peer.packet(&peer.header(Flags::ACK), payload);
            peer.snd_nxt += u32::try_from(payload.len()).expect("small");
            let frame = bench.rig.framed(&packet);
            bench.rig.queue(&frame);
        }
        let reset = bench.peers[1].header(Flags::RST);
        let late = bench.peers[1].header(Flags::ACK);
        for header in [reset, late] {
            let frame = bench.rig.framed(&bench.peers[1].packet(&header, b""));
            bench.rig.queue(&frame);
        }
        bench.rig.settle();
        bench.sockets[0] = bench.listener.accept().expect("established");
        assert_eq!(bench.received(0), b"earlybird");
        bench.finish();
    }
}
