//! `UdpSocket` between threads, and compared with that of `std::net`.

#[cfg(test)]
mod tests {
    use std::{
        io::{self, ErrorKind},
        net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
        thread,
        time::{Duration, Instant},
    };

    use quietline::{
        PingSocket, Readiness, ReceiveMessage, SendControl, SendMessage, SocketOption,
        SocketSettings, Stack, UdpSocket, Wire, WireConfig,
    };

    const LIMIT: Duration = Duration::from_secs(10);

    fn stack() -> Stack {
        Stack::builder().build().expect("a stack with loopback alone")
    }

    /// Two stacks joined by a wire.
    fn pair(config: &WireConfig) -> (Stack, Stack) {
        let (left, right) = Wire::pair(config).expect("a valid wire");
        let stack = |device, address: &str| {
            let address = address.parse().expect("an address");
            Stack::builder().device(device).address(address).build().expect("a stack")
        };
        (stack(left, "10.0.0.1/24"), stack(right, "10.0.0.2/24"))
    }

    fn outcome<T: std::fmt::Debug>(result: io::Result<T>) -> String {
        match result {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("{:?}", error.kind()),
        }
    }

    /// The calls of one program, for any pair of sockets with the interface of `std::net`.
    macro_rules! program {
        ($name:ident, $socket:ty) => {
            fn $name(a: &$socket, b: &$socket) -> Vec<String> {
                let to_b = b.local_addr().expect("bound");
                let to_a = a.local_addr().expect("bound");
                let mut buf = [0; 8];
                let mut outcomes = Vec::new();
                let mut note = |outcome: String| outcomes.push(outcome);
                for socket in [a, b] {
                    socket.set_read_timeout(Some(LIMIT)).expect("a timeout");
                }
                note(outcome(a.read_timeout()));
                note(outcome(a.set_write_timeout(Some(Duration::ZERO))));
                note(outcome(a.write_timeout()));
                note(outcome(a.peer_addr().map(|_| ())));
                note(outcome(a.send(b"no peer")));
                note(outcome(a.send_to(b"datagram", to_b)));
                note(outcome(b.peek_from(&mut buf[..3]).map(|(len, from)| (len, from == to_a))));
                note(outcome(b.recv_from(&mut buf[..3]).map(|(len, from)| (len, from == to_a))));
                note(outcome(a.send_to(b"", to_b)));
                note(outcome(b.recv(&mut buf)));
                note(outcome(b.connect(to_a)));
                note(outcome(b.peer_addr().map(|peer| peer == to_a)));
                note(outcome(b.send(b"to the peer")));
                note(outcome(a.peek(&mut buf)));
                note(outcome(a.recv(&mut buf)));
                note(outcome(a.set_nonblocking(true)));
                note(outcome(a.recv(&mut buf)));
                note(outcome(a.set_nonblocking(false)));
                note(outcome(a.set_read_timeout(Some(Duration::from_millis(5)))));
                note(outcome(a.recv(&mut buf)));
                note(outcome(a.send_to(&[0; 65_528], to_b)));
                note(outcome(a.set_ttl(7)));
                note(outcome(a.ttl()));
                note(outcome(a.set_broadcast(true)));
                note(outcome(a.broadcast()));
                note(outcome(a.multicast_ttl_v4()));
                note(outcome(a.set_multicast_ttl_v4(256)));
                note(outcome(a.multicast_loop_v4()));
                note(outcome(a.take_error().map(|error| error.is_none())));
                note(outcome(a.try_clone().map(|clone| clone.local_addr().ok() == Some(to_a))));
                outcomes
            }
        };
    }

    program!(on_kernel, std::net::UdpSocket);
    program!(on_quietline, UdpSocket);

    #[test]
    fn calls_answer_as_those_of_the_kernel() {
        let stack = stack();
        for local in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(kernel) = std::net::UdpSocket::bind(local) else {
                assert_ne!(local, "127.0.0.1:0");
                continue;
            };
            let other = std::net::UdpSocket::bind(local).expect("a free port");
            let ours = || UdpSocket::bind(&stack, local).expect("a free port");
            assert_eq!(on_quietline(&ours(), &ours()), on_kernel(&kernel, &other), "{local}");
        }
    }

    #[test]
    fn a_dual_stack_socket_serves_clients_of_both_families() {
        let stack = stack();
        let server = UdpSocket::bind(&stack, "[::]:7").unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        assert!(!server.only_v6().unwrap());
        for (local, to) in [("127.0.0.1:0", "127.0.0.1:7"), ("[::1]:0", "[::1]:7")] {
            let client = UdpSocket::bind(&stack, local).unwrap();
            client.set_read_timeout(Some(LIMIT)).unwrap();
            client.connect(to).unwrap();
            client.send(b"request").unwrap();
            let mut buf = [0; 16];
            let (len, from) = server.recv_from(&mut buf).unwrap();
            assert_eq!(from.ip().to_canonical(), client.local_addr().unwrap().ip());
            assert!(from.is_ipv6(), "{from}");
            server.send_to(&buf[..len], from).unwrap();
            assert_eq!(client.recv(&mut buf).unwrap(), 7);
        }
        let counters = stack.counters();
        assert_eq!(counters.get("UdpInDatagrams"), Some(2));
        assert_eq!(counters.get("Udp6InDatagrams"), Some(2));
    }

    #[test]
    fn a_closed_port_over_ipv6_refuses_a_connected_socket() {
        let stack = stack();
        let socket = UdpSocket::bind(&stack, "[::]:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.connect("[::1]:9").unwrap();
        socket.send(b"is this port open?").unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_multicast_over_ipv6_reaches_a_member_on_another_host() {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a valid wire");
        let stack = |device, address: &str| {
            let address = address.parse().expect("an address");
            Stack::builder().device(device).address(address).build().expect("a stack")
        };
        let (left, right) = (stack(left, "fd00::1/64"), stack(right, "fd00::2/64"));
        let group = "ff05::8102".parse().unwrap();
        let member = UdpSocket::bind(&right, "[::]:7").unwrap();
        member.set_read_timeout(Some(LIMIT)).unwrap();
        member.join_multicast_v6(&group, 0).unwrap();
        let sender = UdpSocket::bind(&left, "[::]:0").unwrap();
        sender.set_multicast_hops_v6(3).unwrap();
        sender.send_to(b"to the group", (group, 7)).unwrap();
        let mut buf = [0; 16];
        let received = member.recv_message(&mut buf).unwrap();
        assert_eq!(&buf[..received.len], b"to the group");
        assert_eq!((received.ttl, received.destination), (3, group.into()));
        member.leave_multicast_v6(&group, 0).unwrap();
        sender.send_to(b"late", (group, 7)).unwrap();
        member.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(member.recv(&mut buf).is_err());
    }

    #[test]
    fn a_ping_socket_measures_both_families() {
        let (client, _server) = pair(&WireConfig::default());
        for (stack, to) in [(client, "10.0.0.2"), (stack(), "::1")] {
            let to: IpAddr = to.parse().unwrap();
            let any: IpAddr = match to {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = PingSocket::open(&stack, any).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            for sequence in 1..4_u16 {
                assert_eq!(socket.send_echo(to, sequence, b"data").unwrap(), 12);
                let mut buf = [0; 64];
                let (len, from) = socket.recv_from(&mut buf).unwrap();
                assert_eq!((&buf[8..len], from), (&b"data"[..], to));
                assert_eq!(buf[4..6], socket.identifier().unwrap().to_be_bytes());
                assert_eq!(buf[6..8], sequence.to_be_bytes());
            }
        }
    }

    #[test]
    fn a_closed_port_refuses_a_connected_socket() {
        let (client, _server) = pair(&WireConfig::default());
        let socket = UdpSocket::bind(&client, "0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.connect("10.0.0.2:9").unwrap();
        assert_eq!(socket.local_addr().unwrap().ip().to_string(), "10.0.0.1");
        socket.send(b"is this port open?").unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    /// The report remains in the error queue, so the socket stays in the condition ERROR.
    #[test]
    fn a_receive_call_waits_although_a_report_is_queued() {
        let (client, _server) = pair(&WireConfig::default());
        let socket = UdpSocket::bind(&client, "0.0.0.0:0").unwrap();
        socket.set_option(SocketOption::ReceiveError, 1).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket.connect("10.0.0.2:9").unwrap();
        socket.send(b"is this port open?").unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = socket.recv(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(socket.take_report().is_some() && socket.take_report().is_none());
    }

    #[test]
    fn datagrams_of_every_size_cross_every_kind_of_wire() {
        for (tso, checksums) in [(true, false), (false, false), (false, true)] {
            let (client, server) = pair(&WireConfig { tso, checksums, ..WireConfig::default() });
            let server = UdpSocket::bind(&server, "10.0.0.2:7").unwrap();
            let client = UdpSocket::bind(&client, "10.0.0.1:0").unwrap();
            for socket in [&client, &server] {
                socket.set_read_timeout(Some(LIMIT)).unwrap();
            }
            for len in (0..1472).step_by(97).chain([1471, 1472]) {
                let payload: Vec<u8> = (0..=255).cycle().take(len).collect();
                assert_eq!(client.send_to(&payload, "10.0.0.2:7").unwrap(), len);
                let mut buf = [0; 2000];
                let (got, from) = server.recv_from(&mut buf).unwrap();
                assert_eq!(&buf[..got], payload, "{len} bytes, checksums {checksums}");
                assert_eq!(from, client.local_addr().unwrap());
            }
        }
    }

    #[test]
    fn a_waiting_reader_is_woken_and_a_drop_frees_the_port() {
        let stack = stack();
        let server = UdpSocket::bind(&stack, "127.0.0.1:7").unwrap();
        let reader = thread::spawn(move || {
            let mut buf = [0; 16];
            let (len, from) = server.recv_from(&mut buf).unwrap();
            server.send_to(&buf[..len], from).unwrap();
        });
        let client = UdpSocket::bind(&stack, "127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        thread::sleep(Duration::from_millis(20));
        client.send_to(b"wake up", "127.0.0.1:7").unwrap();
        assert_eq!(client.recv(&mut [0; 16]).unwrap(), 7);
        reader.join().unwrap();
        drop(UdpSocket::bind(&stack, "127.0.0.1:7").unwrap());
        assert_eq!(stack.counters().get("UdpOutDatagrams"), Some(2));
    }

    #[test]
    fn threads_that_share_a_port_receive_every_datagram_once() {
        const SENDERS: u32 = 4;
        const EACH: u32 = 500;
        let (client, server) = pair(&WireConfig::default());
        let settings = SocketSettings::default().reuse_port(true);
        let sockets: Vec<_> = (0..3)
            .map(|_| UdpSocket::bind_with(&server, "10.0.0.2:7", &settings).unwrap())
            .collect();
        let received: u32 = thread::scope(|scope| {
            let receivers: Vec<_> = sockets
                .iter()
                .map(|socket| {
                    scope.spawn(move || {
                        socket.set_receive_buffer_size(4 << 20).unwrap();
                        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                        let mut count = 0;
                        while socket.recv(&mut [0; 64]).is_ok() {
                            count += 1;
                        }
                        count
                    })
                })
                .collect();
            for sender in 0..SENDERS {
                let client = &client;
                scope.spawn(move || {
                    let socket = UdpSocket::bind(client, "10.0.0.1:0").unwrap();
                    socket.connect("10.0.0.2:7").unwrap();
                    for number in 0..EACH {
                        socket.send(&(sender * EACH + number).to_be_bytes()).unwrap();
                        if number % 50 == 0 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
            }
            receivers.into_iter().map(|receiver| receiver.join().unwrap()).sum()
        });
        let count = |stack: &Stack, name| stack.counters().get(name).unwrap_or(0);
        assert_eq!(count(&client, "UdpOutDatagrams"), u64::from(SENDERS * EACH));
        let lost = count(&server, "UdpRcvbufErrors");
        assert_eq!(u64::from(received) + lost, u64::from(SENDERS * EACH));
        assert_eq!(count(&server, "UdpInDatagrams"), u64::from(received));
    }

    #[test]
    fn batches_segments_and_joined_datagrams() {
        let stack = stack();
        let server = UdpSocket::bind(&stack, "127.0.0.1:7").unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        let client = UdpSocket::bind(&stack, "127.0.0.1:0").unwrap();
        let to: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let messages = [b"one", b"two", b"six"].map(|text| SendMessage::to(text, to));
        assert_eq!(client.send_batch(&messages).unwrap(), 3);
        let mut bufs = [[0; 8]; 4];
        let mut messages = bufs.each_mut().map(|buf| ReceiveMessage::new(buf));
        let mut count = 0;
        let begin = Instant::now();
        while count < 3 && begin.elapsed() < LIMIT {
            count += server.recv_batch(&mut messages[count..]).unwrap();
        }
        assert_eq!(count, 3);
        assert_eq!(messages.map(|message| message.received.map(|it| it.len))[..3], [Some(3); 3]);
        assert_eq!(&bufs.map(|buf| buf[0])[..3], b"ots");
        server.set_gro(true).unwrap();
        let control = SendControl { segment: Some(100), ..SendControl::default() };
        let payload = [7; 950];
        client.send_message(&SendMessage { control, ..SendMessage::to(&payload, to) }).unwrap();
        let mut buf = [0; 2000];
        let mut bytes = 0;
        while bytes < 950 {
            let received = server.recv_message(&mut buf).unwrap();
            assert!(received.segment.is_none_or(|size| size == 100));
            bytes += received.len;
        }
        assert_eq!(bytes, 950);
    }

    #[test]
    fn options_apply_to_datagrams() {
        let stack = stack();
        let (a, b) = (
            UdpSocket::bind(&stack, "127.0.0.1:0").unwrap(),
            UdpSocket::bind(&stack, "127.0.0.1:0").unwrap(),
        );
        a.set_tos(0x2d).unwrap();
        a.set_ttl(3).unwrap();
        a.send_to(b"x", b.local_addr().unwrap()).unwrap();
        let received = b.recv_message(&mut [0; 4]).unwrap();
        assert_eq!((received.tos, received.ttl, received.device.0), (0x2d, 3, 0));
        assert_eq!(received.destination, b.local_addr().unwrap().ip());
        a.set_receive_buffer_size(100_000).unwrap();
        assert_eq!(a.receive_buffer_size().unwrap(), 200_000);
        let kind = a.option(SocketOption::Type).unwrap().as_int();
        assert_eq!((kind, a.option(SocketOption::Protocol).unwrap().as_int()), (Some(2), Some(17)));
        let of_tcp = a.set_option(SocketOption::NoDelay, true).unwrap_err();
        assert_eq!(of_tcp.raw_os_error(), Some(92), "ENOPROTOOPT");
        assert!(a.readiness().contains(Readiness::WRITE));
    }
}
