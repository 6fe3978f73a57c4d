//! `UdpSocket` between threads, and compared with that of `std::net`.

#[cfg(test)]
mod tests {
    use std::{
        io::{self, ErrorKind},
        net::SocketAddr,
        thread,
        time::{Duration, Instant},
    };

    use quietline::{
        Readiness, ReceiveMessage, SendControl, SendMessage, SocketOption, SocketSettings, Stack,
        UdpSocket, Wire, WireConfig,
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
                note(outcome(a.send_to(&[0; 65_508], to_b)));
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
        let kernel = || std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let stack = stack();
        let ours = || UdpSocket::bind(&stack, "127.0.0.1:0").expect("a free port");
        assert_eq!(on_quietline(&ours(), &ours()), on_kernel(&kernel(), &kernel()));
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
