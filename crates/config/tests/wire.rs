//! The DHCP service and the resolver over a wire (the in-process link between two stacks), whose
//! other end has a small server: the parts that need sockets and threads.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read as _, Write as _},
        net::{IpAddr, Ipv4Addr, SocketAddr},
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, Ordering},
        },
        thread::{self, JoinHandle},
        time::{Duration, Instant},
    };

    use dhcproto::{
        Decodable as _, Decoder, Encodable as _,
        v4::{DhcpOption, Message, MessageType, Opcode},
    };
    use hickory_proto::{
        op,
        rr::{RData, Record, RecordType, rdata},
    };
    use quietline::{
        DeviceInfo, SendControl, SendMessage, SocketOption, Stack, TcpListener, TcpStream,
        UdpSocket, Wire, WireConfig,
    };
    use quietline_config::{
        dhcp::{self, ClientConfig},
        dns::{self, Resolver},
    };

    const LIMIT: Duration = Duration::from_secs(20);
    const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const LEASED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);
    const MTU: u16 = 1400;

    /// Makes a stack with this address, or without one.
    fn stack(device: Arc<Wire>, address: Option<&str>) -> Stack {
        let probes = [("net.quietline.acd_probes", "2"), ("net.quietline.acd_interval_ms", "5")];
        let mut builder = Stack::builder().device(device);
        for (name, value) in probes {
            builder = builder.sysctl(name, value);
        }
        if let Some(address) = address {
            builder = builder.address(address.parse().expect("an address"));
        }
        builder.build().expect("a stack")
    }

    /// A client without an address, and a server.
    fn pair() -> (Stack, Stack) {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
        (stack(left, None), stack(right, Some("10.0.0.1/24")))
    }

    /// A DHCP server on port 67 that gives one address after the other, the first one 49 above its
    /// own.
    struct Server {
        stop: Arc<AtomicBool>,
        seen: Arc<Mutex<Vec<MessageType>>>,
        thread: Option<JoinHandle<()>>,
    }

    impl Server {
        fn start(stack: &Stack) -> Self {
            Self::start_at(stack, SERVER)
        }

        fn start_at(stack: &Stack, own: Ipv4Addr) -> Self {
            let socket = UdpSocket::bind(stack, (Ipv4Addr::UNSPECIFIED, 67)).expect("port 67");
            socket.set_option(SocketOption::Broadcast, true).expect("an option");
            socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
            let device = stack.devices()[0].index;
            let stop = Arc::new(AtomicBool::new(false));
            let seen: Arc<Mutex<Vec<MessageType>>> = Arc::default();
            let (ended, log) = (Arc::clone(&stop), Arc::clone(&seen));
            let thread = thread::spawn(move || {
                let (mut buffer, mut declined) = ([0; 1500], 0);
                while !ended.load(Ordering::Relaxed) {
                    let Ok(len) = socket.recv(&mut buffer) else { continue };
                    let request = Message::decode(&mut Decoder::new(&buffer[..len])).expect("DHCP");
                    let kind = request.opts().msg_type().expect("a type");
                    log.lock().expect("no panic").push(kind);
                    let reply = match kind {
                        MessageType::Discover => MessageType::Offer,
                        MessageType::Request => MessageType::Ack,
                        MessageType::Decline => {
                            declined += 1;
                            continue;
                        }
                        _ => continue,
                    };
                    let bytes = answer(own, &request, reply, declined);
                    let control = SendControl { device: Some(device), ..SendControl::default() };
                    let to = SocketAddr::from((Ipv4Addr::BROADCAST, 68));
                    let message = SendMessage { control, ..SendMessage::to(&bytes, to) };
                    socket.send_message(&message).expect("a device is named");
                }
            });
            Self { stop, seen, thread: Some(thread) }
        }

        fn saw(&self, kind: MessageType) -> bool {
            self.seen.lock().expect("no panic").contains(&kind)
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let joined = self.thread.take().map(JoinHandle::join);
            assert!(thread::panicking() || joined.is_some_and(|joined| joined.is_ok()));
        }
    }

    fn answer(own: Ipv4Addr, request: &Message, kind: MessageType, declined: u32) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let address = Ipv4Addr::from_bits(own.to_bits() + 49 + declined);
        let mac = request.chaddr();
        let mut reply = Message::new_with_id(request.xid(), none, address, none, none, mac);
        reply.set_opcode(Opcode::BootReply);
        for option in [
            DhcpOption::MessageType(kind),
            DhcpOption::ServerIdentifier(own),
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
            DhcpOption::AddressLeaseTime(3600),
            DhcpOption::Router(vec![own]),
            DhcpOption::DomainNameServer(vec![own]),
            DhcpOption::InterfaceMtu(MTU),
        ] {
            reply.opts_mut().insert(option);
        }
        reply.to_vec().expect("an encodable message")
    }

    /// Starts the service for the first device of a stack.
    fn start(client: &Stack) -> (dhcp::Service, Arc<Mutex<Vec<String>>>) {
        start_on(client, 1)
    }

    /// Starts the service for the first `count` devices of a stack.
    fn start_on(client: &Stack, count: usize) -> (dhcp::Service, Arc<Mutex<Vec<String>>>) {
        let named = |device: DeviceInfo| (device.name, ClientConfig::default());
        let clients: Vec<_> = client.devices().into_iter().map(named).take(count).collect();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        let note =
            move |change: &dhcp::Change| lines.lock().expect("no panic").push(change.to_string());
        (dhcp::Service::start(client, &clients, note).expect("a service"), log)
    }

    #[test]
    fn a_lease_gives_an_address_routes_and_an_mtu_and_takes_them_back() {
        let (client, server) = pair();
        let dhcp = Server::start(&server);
        let (service, log) = start(&client);
        assert!(service.wait(LIMIT), "{:?}", log.lock());
        let name = client.devices()[0].name.clone();
        let leases = service.leases();
        assert_eq!((&leases[0].0, leases[0].1.dns.clone()), (&name, vec![SERVER.into()]));
        let own: ipnet::IpNet = "10.0.0.50/24".parse().expect("a network");
        assert_eq!(client.devices()[0].addresses, [own]);
        let routes = listed(&client);
        for expected in [
            format!("10.0.0.0/24 dev {name} src {LEASED} mtu {MTU}"),
            format!("default via {SERVER} dev {name} src {LEASED} metric 1025 mtu {MTU}"),
        ] {
            assert!(routes.contains(&expected), "{expected} is not in {routes:?}");
        }
        let listener = TcpListener::bind(&server, (SERVER, 7)).expect("a port");
        let mut stream = TcpStream::connect(&client, (SERVER, 7)).expect("a route");
        let (accepted, peer) = listener.accept().expect("a connection");
        assert_eq!(peer.ip(), IpAddr::V4(LEASED));
        stream.write_all(b"by lease").expect("sent");
        drop((stream, accepted));
        service.stop();
        assert!(client.devices()[0].addresses.is_empty());
        assert!(!client.routes().iter().any(|route| route.dev.as_deref() == Some(&name)));
        let deadline = Instant::now() + LIMIT;
        while !dhcp.saw(MessageType::Release) {
            assert!(Instant::now() < deadline, "never released");
            thread::sleep(Duration::from_millis(5));
        }
        let log = log.lock().expect("no panic");
        assert_eq!(log[0], format!("{name}: address {own} from {SERVER} for 3600 s"));
        assert_eq!(log[1], format!("{name}: the lease of {own} was released"));
    }

    fn listed(stack: &Stack) -> Vec<String> {
        stack.routes().iter().map(ToString::to_string).collect()
    }

    fn wire(name: &str) -> (Arc<Wire>, Arc<Wire>) {
        let config = WireConfig { name: name.to_owned(), ..WireConfig::default() };
        Wire::pair(&config).expect("a wire")
    }

    /// Waits until a condition holds.
    fn wait_until(what: &str, is_true: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !is_true() {
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// A device that comes up has lost its routes.
    #[test]
    fn a_lease_is_asked_for_again_when_its_device_comes_up() {
        let (client, server) = pair();
        let dhcp = Server::start(&server);
        let (service, log) = start(&client);
        assert!(service.wait(LIMIT), "{:?}", log.lock());
        let name = client.devices()[0].name.clone();
        let expected = [
            format!("10.0.0.0/24 dev {name} src {LEASED} mtu {MTU}"),
            format!("default via {SERVER} dev {name} src {LEASED} metric 1025 mtu {MTU}"),
        ];
        let has_routes = || expected.iter().all(|route| listed(&client).contains(route));
        assert!(has_routes(), "{:?}", listed(&client));
        client.set_device_up(&name, false).expect("a device");
        assert!(!has_routes());
        dhcp.seen.lock().expect("no panic").clear();
        client.set_device_up(&name, true).expect("a device");
        wait_until("the routes are not added again", has_routes);
        assert_eq!(*dhcp.seen.lock().expect("no panic"), [MessageType::Request]);
        assert_eq!(log.lock().expect("no panic").len(), 1, "the lease has not changed");
        service.stop();
    }

    /// Another device of the stack has the offered address, until it is deleted.
    #[test]
    fn an_address_that_cannot_be_added_does_not_end_the_client() {
        let ((left, right), (other, _other_end)) = (wire("red"), wire("blue"));
        let taken = "10.0.0.50/24".parse().expect("an address");
        let client = Stack::builder().device(left).device(other).address(taken).build();
        let client = client.expect("a stack");
        let server = stack(right, Some("10.0.0.1/24"));
        let _dhcp = Server::start(&server);
        let (service, log) = start(&client);
        wait_until("no problem is reported", || !log.lock().expect("no panic").is_empty());
        let line = log.lock().expect("no panic")[0].clone();
        assert!(line.ends_with("an address is asked for again later"), "{line}");
        client.delete_address("blue0", taken.addr()).expect("an address");
        // The pause ends when the device comes up.
        client.set_device_up("red0", false).expect("a device");
        client.set_device_up("red0", true).expect("a device");
        assert!(service.wait(LIMIT), "{:?}", log.lock());
        service.stop();
    }

    /// Both leases are in one network, as of two links to one site.
    #[test]
    fn leases_of_two_links_have_a_default_route_each() {
        let ((left, right), (other_left, other_right)) = (wire("red"), wire("blue"));
        let client = Stack::builder().device(left).device(other_left).build().expect("a stack");
        let other = Ipv4Addr::new(10, 0, 0, 101);
        let servers = [
            (stack(right, Some("10.0.0.1/24")), SERVER),
            (stack(other_right, Some("10.0.0.101/24")), other),
        ];
        let _running = servers.each_ref().map(|(stack, own)| Server::start_at(stack, *own));
        let (service, log) = start_on(&client, 2);
        assert!(service.wait(LIMIT), "{:?}", log.lock());
        let expected = [
            format!("default via {SERVER} dev red0 src 10.0.0.50 metric 1025 mtu {MTU}"),
            format!("default via {other} dev blue0 src 10.0.0.150 metric 1026 mtu {MTU}"),
            format!("10.0.0.0/24 dev red0 src 10.0.0.50 mtu {MTU}"),
            format!("10.0.0.0/24 dev blue0 src 10.0.0.150 mtu {MTU}"),
        ];
        for route in &expected {
            assert!(listed(&client).contains(route), "{route} is not in {:?}", listed(&client));
        }
        client.set_device_up("red0", false).expect("a device");
        let left = listed(&client);
        assert!(left.contains(&expected[1]) && left.contains(&expected[3]), "{left:?}");
        service.stop();
    }

    #[test]
    fn an_address_that_the_server_itself_has_is_declined() {
        let (client, server) = pair();
        let name = server.devices()[0].name.clone();
        server.add_address(&name, "10.0.0.50/24".parse().expect("a network")).expect("free");
        let dhcp = Server::start(&server);
        let (service, log) = start(&client);
        let deadline = Instant::now() + LIMIT;
        while !dhcp.saw(MessageType::Decline) {
            assert!(Instant::now() < deadline, "never declined: {:?}", log.lock());
            thread::sleep(Duration::from_millis(5));
        }
        assert!(client.devices()[0].addresses.is_empty(), "the address was taken back");
        assert!(log.lock().expect("no panic")[0].contains("another station has"));
        service.stop();
    }

    #[test]
    fn a_service_ends_without_a_server_and_refuses_unknown_devices() {
        let (client, _server) = pair();
        let (service, _) = start(&client);
        assert!(!service.wait(Duration::from_millis(50)));
        assert!(service.leases().is_empty());
        service.stop();
        let unknown = [("nothing".to_owned(), ClientConfig::default())];
        let error = dhcp::Service::start(&client, &unknown, |_| {}).expect_err("no such device");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    /// Answers a query by one address for A, and by none for AAAA.
    fn reply(bytes: &[u8], cut: bool) -> Vec<u8> {
        let mut message = op::Message::from_vec(bytes).expect("a query");
        message.metadata.message_type = op::MessageType::Response;
        message.metadata.truncation = cut;
        let name = message.queries[0].name().clone();
        if message.queries[0].query_type() == RecordType::A && !cut {
            let data = RData::A(rdata::A(Ipv4Addr::new(192, 0, 2, 1)));
            message.add_answer(Record::from_rdata(name, 60, data));
        }
        message.to_vec().expect("an encodable message")
    }

    #[test]
    fn a_name_is_looked_up_by_udp_and_a_cut_answer_by_tcp() {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
        let client = stack(left, Some("10.0.0.2/24"));
        let server = stack(right, Some("10.0.0.1/24"));
        for cut in [false, true] {
            let socket = UdpSocket::bind(&server, (SERVER, 53)).expect("port 53");
            let listener = TcpListener::bind(&server, (SERVER, 53)).expect("port 53");
            let serve = thread::spawn(move || {
                let mut buffer = [0; 512];
                for _ in 0..2 {
                    let (len, from) = socket.recv_from(&mut buffer).expect("a query");
                    socket.send_to(&reply(&buffer[..len], cut), from).expect("a route");
                }
                for _ in 0..if cut { 2 } else { 0 } {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    let mut len = [0; 2];
                    stream.read_exact(&mut len).expect("a length");
                    let mut query = vec![0; u16::from_be_bytes(len).into()];
                    stream.read_exact(&mut query).expect("a query");
                    let answer = reply(&query, false);
                    let len = u16::try_from(answer.len()).expect("short").to_be_bytes();
                    stream.write_all(&[&len[..], &answer].concat()).expect("sent");
                }
            });
            let servers = vec![(SERVER, dns::PORT).into()];
            let resolver = Resolver::new(dns::Config { servers, ..dns::Config::default() });
            let found = resolver.lookup(&client, "www.example");
            assert_eq!(found, Ok(vec![Ipv4Addr::new(192, 0, 2, 1).into()]), "cut off: {cut}");
            serve.join().expect("no panic");
        }
        let servers = vec![(SERVER, 54).into()];
        let resolver = Resolver::new(dns::Config { servers, ..dns::Config::default() });
        let error = resolver.lookup(&client, "www.example").expect_err("a closed port");
        assert!(error.to_string().contains("10.0.0.1:54: Connection refused"), "{error}");
    }
}
