//! Datagrams across impaired wires: what arrives is what was sent, every loss is counted, and a
//! full send buffer is writable again when packets complete.

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc, time::Duration};

    use sim::{World, apps::Pattern, suite::Version};
    use stack::{
        Errno, Readiness,
        base::counters::Counter,
        device::{Impairment, WireConfig},
        socket::{
            DatagramSocket,
            datagram::{ReceiveMessage, SendControl, SendMessage},
            options::{OptionValue, SocketOption, SocketSettings},
        },
    };

    const PORT: u16 = 7;

    /// Largest payload that fits the MTU over both IP versions.
    const PAYLOAD_MAX: u32 = 1452;

    fn world_of(version: Version, seed: u64, wire: &WireConfig) -> World {
        let mut world = World::new(seed);
        world.join_with(version, wire).expect("a valid wire");
        world
    }

    /// Address of a port of host 1 or 2.
    fn address_of(version: Version, host: usize, port: u16) -> SocketAddr {
        SocketAddr::new(version.address(host - 1), port)
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
        let at = |host, port| address_of(version, host, port);
        let mut world = world_of(version, seed, &impaired(seed));
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
        let at = |host, port| address_of(Version::V4, host, port);
        let mut world = world_of(Version::V4, 5, &wire);
        let client = bind(&mut world, 0, at(1, 1000));
        let server = bind(&mut world, 1, at(2, PORT));
        let hosts = world.hosts.clone();
        let mut received = 0;
        let mut buf = vec![0; 65_536];
        for number in 0..COUNT {
            let bytes = payload(number, 8000);
            let message = SendMessage::to(&bytes, at(2, PORT));
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

    /// Sends datagrams of these sizes with one call over a wire that takes superframes; returns the
    /// number of packets that left.
    fn send_sizes(world: &mut World, client: &DatagramSocket, sizes: &[usize]) -> u64 {
        let host = Arc::clone(&world.hosts[0]);
        let of = |host: &stack::host::Host| {
            let counters = host.counters();
            counters.stack(Counter::IpOutRequests) + counters.stack(Counter::Ip6OutRequests)
        };
        let before = of(&host);
        let payloads: Vec<_> =
            (0..).zip(sizes).map(|(number, len)| payload(number, *len)).collect();
        let messages: Vec<_> = payloads.iter().map(|bytes| SendMessage::new(bytes)).collect();
        assert_eq!(client.send_batch(&host, world.app(0), &messages), Ok(sizes.len()));
        world.pass(Duration::from_millis(1));
        of(&host) - before
    }

    /// Opens two connected sockets over a wire without impairments, whose neighbor is resolved.
    fn connected_pair(version: Version) -> (World, [Arc<DatagramSocket>; 2]) {
        let mut world = world_of(version, 1, &WireConfig::default());
        let ends = [address_of(version, 1, 1000), address_of(version, 2, PORT)];
        let sockets = [0, 1].map(|host| bind(&mut world, host, ends[host]));
        for (host, socket) in sockets.iter().enumerate() {
            let of = Arc::clone(&world.hosts[host]);
            socket.connect(&of, world.app(host), ends[1 - host]).expect("a route");
        }
        // Over IPv6 the neighbor solicitation counts, too.
        let packets = if version == Version::V6 { 2 } else { 1 };
        assert_eq!(send_sizes(&mut world, &sockets[0], &[1]), packets);
        let host = Arc::clone(&world.hosts[1]);
        sockets[1].recv(&host, world.app(1), &mut [0; 9], false).expect("the first datagram");
        (world, sockets)
    }

    #[test]
    fn datagrams_of_one_call_and_size_leave_as_one_packet_and_arrive_one_by_one() {
        for version in [Version::V4, Version::V6] {
            let (mut world, [client, server]) = connected_pair(version);
            let host = Arc::clone(&world.hosts[1]);
            // Four equal ones and a shorter one; a longer one; an empty one cannot be joined.
            let sizes = [500, 500, 500, 500, 300, 600, 600, 0, 0, 1000];
            let packets = send_sizes(&mut world, &client, &sizes);
            assert_eq!(packets, 4, "with the numbers: 504 to 304, 604 to 4, 4, and 1004 bytes");
            let mut buf = [0; 2000];
            let peeked = server.recv(&host, world.app(1), &mut buf, true).expect("a datagram");
            assert_eq!((peeked.len, peeked.segment), (504, None));
            assert_eq!(buf[..504], payload(0, 500));
            // Three of the first packet in a batch, then one alone, then the rest.
            let mut bufs = [[0; 2000]; 16];
            let mut received = Vec::new();
            for room in [3, 1, 16] {
                let mut messages = bufs.each_mut().map(|buf| ReceiveMessage::new(&mut buf[..]));
                let got = server.recv_batch(&host, world.app(1), &mut messages[..room]);
                for message in &messages[..got.expect("datagrams")] {
                    let of = message.received.expect("a description");
                    assert_eq!((of.len, of.segment), (of.datagram_len, None));
                    assert_eq!(of.source, address_of(version, 1, 1000));
                    received.push(message.buf[..of.len].to_vec());
                }
            }
            let expected: Vec<_> =
                (0..).zip(sizes).map(|(number, len)| payload(number, len)).collect();
            assert_eq!(received, expected);
            // A buffer that is too short loses the rest of its datagram, not of the others.
            send_sizes(&mut world, &client, &[100, 100]);
            let cut = server.recv(&host, world.app(1), &mut buf[..50], false).expect("a datagram");
            assert_eq!((cut.len, cut.datagram_len), (50, 104));
            let next = server.recv(&host, world.app(1), &mut buf, false).expect("a datagram");
            assert_eq!((next.len, &buf[..104]), (104, &payload(1, 100)[..]));
            let is_v4 = matches!(version, Version::V4);
            let of = |counter: Counter| host.counters().stack(counter.of_version(is_v4));
            assert_eq!(of(Counter::UdpInDatagrams), 1 + 10 + 2);
            assert_eq!(server.memory_info(&host, world.app(1)).rmem_alloc, 0);
            drop(host);
            close(world, [client, server]);
        }
    }

    #[test]
    fn udp_gro_receives_the_datagrams_of_one_packet_together() {
        for version in [Version::V4, Version::V6] {
            let (mut world, [client, server]) = connected_pair(version);
            let [sender, host] = [0, 1].map(|host| Arc::clone(&world.hosts[host]));
            let option = SocketOption::ReceiveOffload;
            server.set_option(&host, world.app(1), option, &OptionValue::Int(1)).expect("valid");
            let bytes = payload(0, 6396);
            let control = SendControl { segment: Some(64), ..SendControl::default() };
            let message = SendMessage { control, ..SendMessage::new(&bytes) };
            client.send(&sender, world.app(0), &message).expect("room");
            world.pass(Duration::from_millis(1));
            let mut buf = vec![0; 65_536];
            let got = server.recv(&host, world.app(1), &mut buf, false).expect("datagrams");
            assert_eq!((got.len, got.segment), (6400, Some(64)));
            assert_eq!(buf[..6400], bytes);
            let is_v4 = matches!(version, Version::V4);
            let count = |of: &stack::host::Host, counter: Counter| {
                of.counters().stack(counter.of_version(is_v4))
            };
            assert_eq!(count(&sender, Counter::UdpOutDatagrams), 1 + 100);
            assert_eq!(count(&host, Counter::UdpInDatagrams), 1 + 100);
            // Without the option from now on: the rest of a packet is received one by one.
            client.send(&sender, world.app(0), &message).expect("room");
            world.pass(Duration::from_millis(1));
            server.set_option(&host, world.app(1), option, &OptionValue::Int(0)).expect("valid");
            for part in bytes.chunks(64) {
                let got = server.recv(&host, world.app(1), &mut buf, false).expect("a datagram");
                assert_eq!((&buf[..got.len], got.segment), (part, None));
            }
            drop((sender, host));
            close(world, [client, server]);
        }
    }

    #[test]
    fn a_full_send_buffer_is_writable_when_packets_complete() {
        let forward = Impairment {
            rate_bps: Some(10_000_000),
            completion_delay: Duration::from_millis(1),
            ..Impairment::default()
        };
        let wire = WireConfig { forward, ..WireConfig::default() };
        let at = |host, port| address_of(Version::V4, host, port);
        let mut world = world_of(Version::V4, 1, &wire);
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
