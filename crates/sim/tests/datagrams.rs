//! Datagrams across impaired wires: what arrives is what was sent, every loss is counted, and a
//! full send buffer is writable again when packets complete.

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc, time::Duration};

    use sim::{World, apps::Pattern};
    use stack::{
        Errno, Readiness,
        base::counters::Counter,
        device::{Impairment, WireConfig},
        socket::{
            DatagramSocket,
            datagram::{ReceiveMessage, SendMessage},
            options::{OptionValue, SocketOption, SocketSettings},
        },
    };

    const PORT: u16 = 7;

    /// Largest payload that fits the MTU over both IP versions.
    const PAYLOAD_MAX: u32 = 1452;

    /// IP version of a test.
    #[derive(Clone, Copy, Debug)]
    enum Version {
        V4,
        V6,
    }

    impl Version {
        fn world(self, seed: u64, wire: &WireConfig) -> World {
            let mut world = World::new(seed);
            let joined = match self {
                Self::V4 => world.join(wire),
                Self::V6 => world.join_v6(wire),
            };
            joined.expect("a valid wire");
            world
        }

        fn at(self, host: u8, port: u16) -> SocketAddr {
            match self {
                Self::V4 => SocketAddr::from(([10, 0, 0, host], port)),
                Self::V6 => SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, host.into()], port)),
            }
        }
    }

    fn bind(world: &mut World, host: usize, local: SocketAddr) -> Arc<DatagramSocket> {
        let this = Arc::clone(&world.hosts[host]);
        let settings = SocketSettings::default();
        DatagramSocket::bind(&this, world.app(host), local, &settings).expect("a free port")
    }

    /// The payload of datagram `number`: the number, then bytes that follow from it.
    fn payload(number: u32, len: usize) -> Vec<u8> {
        let pattern = Pattern(u64::from(number));
        let bytes = (0..len as u64).map(|at| pattern.byte(at));
        number.to_be_bytes().into_iter().chain(bytes).collect()
    }

    fn close(mut world: World, sockets: [Arc<DatagramSocket>; 2]) {
        for (host, socket) in sockets.into_iter().enumerate() {
            let this = Arc::clone(&world.hosts[host]);
            socket.close(&this, world.app(host));
            assert_eq!(this.udp_memory_pages(), 0);
        }
        world.pass(Duration::from_secs(60));
        for host in world.hosts.clone() {
            host.shut_down(&mut world.cx);
        }
        world.pass(Duration::from_secs(60));
        world.hosts.clear();
        assert_eq!(world.packets_alive(), 0, "packets leaked");
    }

    fn impaired(seed: u64) -> WireConfig {
        let mut rng = tcp::Rng::new(seed);
        let checksums = rng.below(2) == 0;
        let mut fraction = |max: f64| f64::from(rng.below(1000)) / 1000.0 * max;
        let impairment = Impairment {
            delay: Duration::from_micros(500),
            loss: fraction(0.1),
            reorder: fraction(0.2),
            reorder_delay: Duration::from_millis(2),
            duplicate: fraction(0.1),
            corrupt: if checksums { fraction(0.1) } else { 0.0 },
            ..Impairment::default()
        };
        let tso = rng.below(2) == 0;
        WireConfig {
            tso,
            checksums,
            forward: impairment,
            backward: impairment,
            seed,
            ..WireConfig::default()
        }
    }

    /// Sends numbered datagrams of any size in batches, and checks all that arrive.
    fn exchange(version: Version, seed: u64, early_demux: bool) {
        const COUNT: u32 = 400;
        let at = |host, port| version.at(host, port);
        let mut world = version.world(seed, &impaired(seed));
        world.set(1, &[("net.ipv4.udp_early_demux", if early_demux { "1" } else { "0" })]);
        let client = bind(&mut world, 0, at(1, 1000));
        let server = bind(&mut world, 1, at(2, PORT));
        let hosts = world.hosts.clone();
        if early_demux {
            server.connect(&hosts[1], world.app(1), at(1, 1000)).expect("a route");
        }
        let mut rng = tcp::Rng::new(seed);
        let (mut next, mut seen, mut received) = (0, vec![0_u32; COUNT as usize], 0_u64);
        let mut bufs = vec![vec![0; PAYLOAD_MAX as usize]; 8];
        let mut drain = |world: &mut World| {
            let mut messages: Vec<_> =
                bufs.iter_mut().map(|buf| ReceiveMessage::new(buf)).collect();
            while let Ok(count) = server.recv_batch(&hosts[1], world.app(1), &mut messages) {
                for message in &mut messages[..count] {
                    let got = message.received.take().expect("a datagram");
                    let bytes = &message.buf[..got.len];
                    let number = u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"));
                    assert_eq!(bytes, payload(number, bytes.len() - 4), "seed {seed}: {number}");
                    assert_eq!(got.source, at(1, 1000));
                    seen[number as usize] += 1;
                    received += 1;
                }
            }
        };
        while next < COUNT {
            let batch: Vec<_> = (next..COUNT.min(next + 1 + rng.below(8)))
                .map(|number| payload(number, rng.below(PAYLOAD_MAX - 3) as usize))
                .collect();
            let messages: Vec<_> =
                batch.iter().map(|bytes| SendMessage::to(bytes, at(2, PORT))).collect();
            let sent = client.send_batch(&hosts[0], world.app(0), &messages).expect("room");
            next += u32::try_from(sent).expect("a batch");
            world.pass(Duration::from_micros(u64::from(rng.below(1000))));
            drain(&mut world);
        }
        world.pass(Duration::from_secs(5));
        drain(&mut world);
        let different = seen.iter().filter(|count| **count > 0).count();
        assert!(different > COUNT as usize / 2, "seed {seed}: {different} arrived");
        let counters = hosts[1].counters();
        let is_v4 = matches!(version, Version::V4);
        let of = |counter: Counter| counters.stack(counter.of_version(is_v4));
        assert_eq!(of(Counter::UdpInDatagrams), received);
        let errors = [Counter::UdpInCsumErrors, Counter::UdpRcvbufErrors, Counter::UdpMemErrors];
        let named: u64 = errors.iter().map(|counter| of(*counter)).sum();
        assert!(of(Counter::UdpInErrors) >= named);
        let sent = hosts[0].counters().stack(Counter::UdpOutDatagrams.of_version(is_v4));
        assert_eq!(sent, u64::from(COUNT));
        drop(hosts);
        close(world, [client, server]);
    }

    #[test]
    fn datagrams_cross_impaired_wires_unchanged() {
        for seed in 1..=12 {
            for version in [Version::V4, Version::V6] {
                exchange(version, seed, seed % 2 == 0);
            }
        }
    }

    /// A datagram of six fragments arrives if none of them is lost. The others end after
    /// `ipfrag_time`.
    #[test]
    fn long_datagrams_cross_a_wire_that_loses_a_tenth_of_the_fragments() {
        const COUNT: u32 = 300;
        let loss = Impairment {
            delay: Duration::from_micros(500),
            loss: 0.1,
            reorder: 0.2,
            reorder_delay: Duration::from_millis(2),
            duplicate: 0.1,
            ..Impairment::default()
        };
        let wire = WireConfig { forward: loss, backward: loss, seed: 5, ..WireConfig::default() };
        let mut world = World::pair(5, &wire).expect("a valid wire");
        let client = bind(&mut world, 0, Version::V4.at(1, 1000));
        let server = bind(&mut world, 1, Version::V4.at(2, PORT));
        let hosts = world.hosts.clone();
        let mut received = 0;
        let mut buf = vec![0; 65_536];
        for number in 0..COUNT {
            let bytes = payload(number, 8000);
            let message = SendMessage::to(&bytes, Version::V4.at(2, PORT));
            client.send(&hosts[0], world.app(0), &message).expect("room");
            world.pass(Duration::from_millis(5));
            while let Ok(got) = server.recv(&hosts[1], world.app(1), &mut buf, false) {
                let number = u32::from_be_bytes(buf[..4].try_into().expect("four bytes"));
                assert_eq!(buf[..got.len], payload(number, 8000));
                received += 1;
            }
        }
        assert!((COUNT / 4..COUNT * 3 / 4).contains(&received), "{received}: 0.9^6 is 0.53");
        world.pass(Duration::from_secs(31));
        let count = |counter| hosts[1].counters().stack(counter);
        assert_eq!(count(Counter::IpReasmOKs), u64::from(received));
        assert!(count(Counter::IpReasmTimeout) > 0);
        assert_eq!(count(Counter::IpReasmFails), count(Counter::IpReasmTimeout));
        assert_eq!(hosts[0].counters().stack(Counter::IpFragCreates), u64::from(COUNT) * 6);
        drop(hosts);
        close(world, [client, server]);
    }

    #[test]
    fn a_full_send_buffer_is_writable_when_packets_complete() {
        let forward = Impairment {
            rate_bps: Some(10_000_000),
            completion_delay: Duration::from_millis(1),
            ..Impairment::default()
        };
        let wire = WireConfig { forward, ..WireConfig::default() };
        let at = |host, port| Version::V4.at(host, port);
        let mut world = Version::V4.world(1, &wire);
        let client = bind(&mut world, 0, at(1, 1000));
        let server = bind(&mut world, 1, at(2, PORT));
        let hosts = world.hosts.clone();
        client.connect(&hosts[0], world.app(0), at(2, PORT)).expect("a route");
        // Resolves the neighbor.
        client.send(&hosts[0], world.app(0), &SendMessage::new(b"first")).expect("room");
        world.pass(Duration::from_secs(1));
        let size = OptionValue::Int(20_000);
        client.set_option(&hosts[0], world.app(0), SocketOption::SendBuffer, &size).expect("valid");
        let message = [7; 1000];
        let mut sent = 0;
        let refused = loop {
            match client.send(&hosts[0], world.app(0), &SendMessage::new(&message)) {
                Ok(()) => sent += 1,
                Err(errno) => break errno,
            }
            assert!(sent < 1000, "the buffer is never full");
        };
        assert_eq!(refused, Errno::EAGAIN);
        assert_eq!(hosts[0].counters().stack(Counter::UdpSndbufErrors), 1);
        assert!(!client.readiness().contains(Readiness::WRITE));
        world.pass(Duration::from_secs(1));
        assert!(client.readiness().contains(Readiness::WRITE), "the packets have completed");
        client.send(&hosts[0], world.app(0), &SendMessage::new(&message)).expect("room");
        world.pass(Duration::from_secs(1));
        assert_eq!(client.memory_info(&hosts[0], world.app(0)).wmem_alloc, 0);
        drop(hosts);
        close(world, [client, server]);
    }
}
