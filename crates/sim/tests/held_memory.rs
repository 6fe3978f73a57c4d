//! Memory that attackers can hold: memory in use stays near the charges of the connections, and
//! near the limit it is released.
//!
//! A small segment is held, out of order or unread, while other frames fill the rest of the page
//! that it was received into, so that each small segment keeps a whole page in use. Virtual time;
//! HELD_MEMORY_CONNECTIONS sets the number of attacking connections (100,000 by default), and
//! `--nocapture` prints the figures.

#[cfg(test)]
mod tests {
    use std::{
        net::{Ipv4Addr, SocketAddr},
        sync::Arc,
        time::Duration,
    };

    use sim::{
        World,
        byte_link::ByteLink,
        frame::{self, Ipv4, Seen},
    };
    use stack::{
        Capabilities,
        device::LinkType,
        header::ip::protocol,
        host::config::{DeviceConfig, HostConfig},
        route::fib::RouteSpec,
        socket::{Connection, Listener},
    };
    use tcp::{Counter, Flags, Options, SegmentHeader, SeqNum};

    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    /// Connections that open, or send, at one moment.
    const AT_ONCE: u32 = 64;
    /// A frame of one page less the room of a small segment: it fills the rest of a page, and is
    /// not a valid packet.
    static FILLER: [u8; 31_000] = [0; 31_000];

    /// One connection of the attacker: its next sequence number, and the server's.
    struct Attacker {
        address: Ipv4Addr,
        next: SeqNum,
        ack: SeqNum,
    }

    struct Attack {
        world: World,
        link: Arc<ByteLink>,
        listener: Arc<Listener>,
        attackers: Vec<Attacker>,
        /// The server's ends, which are never read.
        sockets: Vec<Arc<Connection>>,
    }

    impl Attack {
        fn new(memory_bytes: usize) -> Self {
            let mut world = World::with_memory(1, memory_bytes);
            let caps = Capabilities::plain("attack", 9000, LinkType::Ip);
            let link = Arc::new(ByteLink::new(caps));
            let everywhere = "0.0.0.0/0".parse().expect("a prefix");
            let device = DeviceConfig {
                device: Arc::clone(&link) as _,
                addresses: vec![format!("{SERVER}/24").parse().expect("a prefix")],
            };
            world
                .add_host(HostConfig {
                    devices: vec![device],
                    routes: vec![RouteSpec::via(everywhere, Ipv4Addr::new(192, 0, 2, 254).into())],
                    cores: 1,
                    ..HostConfig::replay(0)
                })
                .expect("a server");
            let host = Arc::clone(&world.hosts[0]);
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80);
            let listener = Listener::listen(&host, &mut world.cx, any, AT_ONCE).expect("a port");
            Self { world, link, listener, attackers: Vec::new(), sockets: Vec::new() }
        }

        /// Opens `count` more connections, and accepts them.
        fn open(&mut self, count: u32) {
            let first = u32::try_from(self.attackers.len()).expect("fewer than 2^32");
            for begin in (first..first + count).step_by(AT_ONCE as usize) {
                let some = begin..(begin + AT_ONCE).min(first + count);
                for number in some.clone() {
                    let address = Ipv4Addr::from_bits(0x6400_0000 + number);
                    let next = SeqNum(number.wrapping_mul(0x9e37_79b9));
                    self.attackers.push(Attacker { address, next, ack: SeqNum(0) });
                    assert!(self.send(number, Flags::SYN, 0, b""), "memory for a SYN");
                }
                self.world.settle();
                for number in some {
                    let answer = self.link.take().expect("a SYN-ACK");
                    let answer = frame::judge_ipv4(&answer.bytes, 9000).expect("a valid packet");
                    let Seen::Tcp(ip, header, _) = answer else { panic!("{answer:?}") };
                    let attacker = &mut self.attackers[number as usize];
                    assert_eq!(ip.dst, attacker.address, "answers arrive in order");
                    attacker.next += 1;
                    attacker.ack = header.seq + 1;
                    assert!(self.send(number, Flags::ACK, 0, b""), "memory for an ACK");
                }
                self.pass();
                while let Ok(socket) = self.listener.accept() {
                    self.sockets.push(socket);
                }
            }
            assert_eq!(self.sockets.len(), self.attackers.len());
        }

        /// Every attacker sends `payload`, `skip` bytes beyond its next byte, and other frames fill
        /// the pages in between. Calls `look` for every batch.
        fn all_send(&mut self, skip: u32, payload: &[u8], mut look: impl FnMut(&Self)) {
            let count = u32::try_from(self.attackers.len()).expect("fewer than 2^32");
            for number in 0..count {
                assert!(
                    self.send(number, Flags::ACK, skip, payload),
                    "memory for segment {number}"
                );
                if skip == 0 {
                    let len = u32::try_from(payload.len()).expect("short");
                    self.attackers[number as usize].next += len;
                }
                assert!(self.link.deliver(&mut self.world.cx, &FILLER), "memory for a filler");
                if number % AT_ONCE == AT_ONCE - 1 || number == count - 1 {
                    self.pass();
                    look(self);
                }
            }
        }

        /// Delivers a segment. Returns false if there was no memory to receive it.
        fn send(&mut self, number: u32, flags: Flags, skip: u32, payload: &[u8]) -> bool {
            let attacker = &self.attackers[number as usize];
            let syn = flags.contains(Flags::SYN);
            let header = SegmentHeader {
                src_port: 1024,
                dst_port: 80,
                seq: attacker.next + skip,
                ack: attacker.ack,
                flags,
                window: 64_240,
                options: Options { mss: syn.then_some(8960), ..Options::default() },
                ..SegmentHeader::default()
            };
            let segment = frame::tcp(attacker.address, SERVER, &header, payload);
            let packet = Ipv4::new(attacker.address, SERVER, protocol::TCP).with(&segment);
            self.link.deliver(&mut self.world.cx, &packet)
        }

        /// Lets ten milliseconds pass, and discards the server's frames.
        fn pass(&mut self) {
            self.world.pass(Duration::from_millis(10));
            while self.link.take().is_some() {}
        }

        /// Reads the available data of a connection.
        fn read(&mut self, number: usize) -> Vec<u8> {
            let mut bytes = vec![0; 2000];
            let (socket, host) = (&self.sockets[number], &self.world.hosts[0]);
            let count = socket.recv(host, &mut self.world.cx, &mut bytes, false);
            bytes.truncate(count.expect("something to read"));
            bytes
        }

        fn used_bytes(&self) -> usize {
            self.world.memory().packets.used_bytes()
        }

        /// Returns the bytes that connections are charged.
        fn charged_bytes(&self) -> usize {
            let pages = self.world.hosts[0].tcp_memory_pages();
            usize::try_from(pages).expect("pages are charged before they are released") * 4096
        }

        fn count(&self, counter: Counter) -> u64 {
            self.world.hosts[0].counters().tcp(counter)
        }

        /// All attackers reset their connections and the server closes them: no memory may be held.
        fn end(mut self) {
            let count = u32::try_from(self.attackers.len()).expect("fewer than 2^32");
            for number in 0..count {
                assert!(self.send(number, Flags::RST, 0, b""), "memory for a reset");
                if number % AT_ONCE == 0 {
                    self.pass();
                }
            }
            self.pass();
            let host = Arc::clone(&self.world.hosts[0]);
            assert_eq!((host.established_len(), self.charged_bytes()), (0, 0));
            for socket in self.sockets.drain(..) {
                socket.abort(&host, &mut self.world.cx);
            }
            assert_eq!(self.world.packets_alive(), 0);
            // The pages in use for new allocations, for payload and by the device.
            let left = self.used_bytes();
            assert!(left <= 8 * 32 * 1024, "{left} bytes are in use without an owner");
            self.listener.close(&host, &mut self.world.cx);
        }
    }

    fn connections() -> u32 {
        let set = std::env::var("HELD_MEMORY_CONNECTIONS").ok();
        set.map_or(100_000, |text| text.parse().expect("HELD_MEMORY_CONNECTIONS is a number"))
    }

    /// Out of order and unread, by a hundred thousand connections: 3.2 GB of pages each time if
    /// every segment kept its own.
    #[test]
    fn memory_in_use_stays_near_the_charges_of_connections() {
        const MEMORY_BYTES: usize = 1 << 30;
        let mut attack = Attack::new(MEMORY_BYTES);
        attack.open(connections());
        let mut most = 0;
        attack.all_send(1, &[1; 700], |attack| {
            let (used, charged) = (attack.used_bytes(), attack.charged_bytes());
            assert!(used <= charged + (2 << 20), "{used} bytes in use, {charged} charged");
            most = most.max(used);
        });
        println!("out of order: {most} bytes in use, {} charged", attack.charged_bytes());
        let out_of_order = attack.count(Counter::TcpExtTCPOFOQueue);
        assert_eq!(out_of_order, u64::from(connections()), "each is held");
        // The gap is filled, and one more segment follows: three segments wait to be read.
        attack.all_send(0, &[0; 1], |_| ());
        attack.attackers.iter_mut().for_each(|attacker| attacker.next += 700);
        most = 0;
        attack.all_send(0, &[2; 700], |attack| most = most.max(attack.used_bytes()));
        let (used, charged) = (attack.used_bytes(), attack.charged_bytes());
        println!("unread: at most {most} bytes in use, {used} at the end, {charged} charged");
        assert!(most <= MEMORY_BYTES / 4 * 3, "{most} bytes in use");
        assert!(used <= charged + (2 << 20) || used <= MEMORY_BYTES / 2, "{used} bytes, {charged}");
        for number in 0..attack.sockets.len() {
            let mut expected = vec![1; 1401];
            expected[0] = 0;
            expected[701..].fill(2);
            assert!(attack.read(number) == expected, "acknowledged data is readable");
        }
        assert_eq!(attack.count(Counter::TcpExtOfoPruned), 0, "copying was enough");
        attack.end();
    }

    /// Segments that are too large to be copied, each in pages of its own, by peers that stay
    /// silent afterwards. On exhaustion out-of-order data of all connections is dropped, and the
    /// device continues to receive.
    #[test]
    fn exhausted_memory_is_taken_from_silent_peers() {
        const MEMORY_BYTES: usize = 48 << 20;
        let mut attack = Attack::new(MEMORY_BYTES);
        attack.open(4000);
        attack.all_send(1, &[3; 5000], |attack| {
            let used = attack.used_bytes();
            assert!(used <= MEMORY_BYTES / 8 * 7, "{used} bytes in use");
        });
        assert!(
            attack.count(Counter::TcpExtOfoPruned) > 500,
            "{}",
            attack.count(Counter::TcpExtOfoPruned)
        );
        assert!(attack.count(Counter::TcpExtTCPMemoryPressures) > 0);
        // An honest client is served at the same time.
        attack.open(1);
        assert!(attack.send(4000, Flags::ACK, 0, &[4; 1000]), "memory for a segment");
        attack.attackers[4000].next += 1000;
        attack.pass();
        assert_eq!(attack.read(4000), [4; 1000]);
        attack.end();
    }
}
