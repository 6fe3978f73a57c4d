//! The socket API with two stacks in one process, joined by a wire, used like `std::net`.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, IoSlice, Read, Write},
        net::{Shutdown, SocketAddr},
        sync::mpsc::{self, TryRecvError},
        thread,
        time::{Duration, Instant},
    };

    use quietline::{Impairment, SocketOptions, Stack, TcpListener, TcpStream, Wire, WireConfig};

    const SERVER: &str = "10.0.0.2";

    fn pair(config: &WireConfig) -> (Stack, Stack) {
        let (left, right) = Wire::pair(config).unwrap();
        let client =
            Stack::builder().name("client").device(left).address("10.0.0.1/24".parse().unwrap());
        let server = Stack::builder()
            .name("server")
            .device(right)
            .address(format!("{SERVER}/24").parse().unwrap());
        (client.build().unwrap(), server.build().unwrap())
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::new(SERVER.parse().unwrap(), port)
    }

    fn connected(client: &Stack, server: &Stack) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(server, at(0)).unwrap();
        let to = listener.local_addr().unwrap();
        let stream = TcpStream::connect(client, to).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, stream.local_addr().unwrap());
        assert_eq!(accepted.local_addr().unwrap(), to);
        (stream, accepted)
    }

    #[test]
    fn bytes_cross_the_wire_both_ways() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        a.write_all(b"request").unwrap();
        let mut buf = [0; 7];
        b.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"request");
        b.write_all(b"answer").unwrap();
        let mut buf = [0; 6];
        a.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"answer");
    }

    /// Every thread accepts on its own listener. Together the threads accept every connection, each
    /// with its options.
    #[test]
    fn listeners_share_a_port() {
        let (client, server) = pair(&WireConfig::default());
        let group = TcpListener::options()
            .reuse_port(true)
            .backlog(64)
            .socket_options(SocketOptions { nodelay: true, ..SocketOptions::default() });
        let listeners: Vec<_> =
            (0..3).map(|_| group.listen(&server, at(80)).expect("a group")).collect();
        let alone =
            TcpListener::bind(&server, at(80)).expect_err("the listener is not in the group");
        assert_eq!(alone.kind(), ErrorKind::AddrInUse);
        let threads: Vec<_> = listeners
            .iter()
            .map(|listener| {
                let listener = listener.try_clone().unwrap();
                thread::spawn(move || {
                    let mut accepted = 0;
                    while let Ok((mut stream, _)) = listener.accept() {
                        assert!(stream.nodelay().unwrap());
                        stream.write_all(b"x").unwrap();
                        accepted += 1;
                    }
                    accepted
                })
            })
            .collect();
        for _ in 0..60 {
            let mut stream = TcpStream::connect(&client, at(80)).unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
        listeners.iter().for_each(TcpListener::close);
        let accepted: Vec<usize> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(accepted.iter().sum::<usize>(), 60);
        assert!(accepted.iter().all(|&count| count > 3), "{accepted:?}");
    }

    /// The first connection requests the cookie, the second sends its request in the SYN.
    #[test]
    fn a_request_is_sent_in_the_syn() {
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        let build = |device, address: &str| {
            let builder = Stack::builder().device(device).address(address.parse().unwrap());
            builder.sysctl("net.ipv4.tcp_fastopen", "3").build().unwrap()
        };
        let (client, server) = (build(left, "10.0.0.1/24"), build(right, "10.0.0.2/24"));
        let listener = TcpListener::options().fast_open(16).listen(&server, at(80)).unwrap();
        let echo = thread::spawn(move || {
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 7];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(&request).unwrap();
            }
        });
        for _ in 0..3 {
            let options = TcpStream::options();
            let (mut stream, sent) =
                options.connect_with_data(&client, at(80), b"request").unwrap();
            assert_eq!(sent, 7);
            let mut answer = [0; 7];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"request");
        }
        echo.join().unwrap();
        let get = |stack: &Stack, name| stack.counters().get(name);
        assert_eq!(get(&client, "TcpExtTCPFastOpenActive"), Some(2));
        assert_eq!(get(&server, "TcpExtTCPFastOpenPassive"), Some(2));
        assert_eq!(get(&server, "TcpExtTCPFastOpenCookieReqd"), Some(1));
    }

    #[test]
    fn a_bound_port_is_shared_by_sockets_with_the_option() {
        let (client, server) = pair(&WireConfig::default());
        let first = TcpListener::bind(&server, at(81)).unwrap();
        let second = TcpListener::bind(&server, at(82)).unwrap();
        let local: SocketAddr = "10.0.0.1:4000".parse().unwrap();
        let shared = TcpStream::options().bind(local).reuse_address(true);
        let one = shared.connect(&client, first.local_addr().unwrap()).unwrap();
        assert_eq!(one.local_addr().unwrap(), local);
        let refused = TcpStream::connect_from(&client, local, at(82)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let other = shared.connect(&client, second.local_addr().unwrap()).unwrap();
        assert_eq!(other.local_addr().unwrap(), local);
        let taken = shared.connect(&client, at(82)).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn a_read_waits_for_the_low_water_mark_but_not_beyond_its_buffer() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        b.set_rcvlowat(1000).unwrap();
        assert_eq!(b.rcvlowat().unwrap(), 1000);
        let (enough, is_enough) = mpsc::channel();
        // Write continuously: as in Linux, a read that has taken a part of its data waits for the
        // whole low-water mark again.
        let writer = thread::spawn(move || {
            let mut sent = 0;
            while is_enough.try_recv() == Err(TryRecvError::Empty) {
                a.write_all(&[7; 100]).unwrap();
                sent += 100;
                thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        let mut buf = [0; 4096];
        let mut got = b.read(&mut buf).unwrap();
        assert!(got >= 1000, "{got} bytes are less than the mark");
        assert_eq!(b.read(&mut buf[..50]).unwrap(), 50, "a short buffer lowers the mark");
        enough.send(()).unwrap();
        // The end of the stream ends the wait.
        while let more @ 1.. = b.read(&mut buf).unwrap() {
            got += more;
        }
        assert_eq!(got + 50, writer.join().unwrap());
    }

    /// As in Linux, the low-water mark decides when a sleeping thread is woken, not which data can
    /// be read.
    #[test]
    fn a_short_read_takes_data_below_the_low_water_mark() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        b.set_rcvlowat(20).unwrap();
        a.write_all(b"early").unwrap();
        let start = Instant::now();
        b.set_nonblocking(true).unwrap();
        while !b.peek(&mut [0; 5]).is_ok_and(|bytes| bytes == 5) {
            assert!(start.elapsed() < Duration::from_secs(10));
            thread::yield_now();
        }
        b.set_nonblocking(false).unwrap();
        let mut buf = [0; 5];
        assert_eq!(b.read(&mut buf).unwrap(), 5);
        assert_eq!(&buf, b"early");
    }

    #[test]
    fn an_urgent_byte_is_marked_and_read_separately() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        assert_eq!(b.recv_oob(&mut [0]).unwrap_err().kind(), ErrorKind::InvalidInput);
        a.write_all(b"before").unwrap();
        assert_eq!(a.send_oob(b"!").unwrap(), 1);
        a.write_all(b"after").unwrap();
        let start = Instant::now();
        while !b.readiness().contains(quietline::Readiness::PRI) {
            assert!(start.elapsed() < Duration::from_secs(10));
            thread::yield_now();
        }
        assert!(!b.sockatmark().unwrap());
        let mut buf = [0; 64];
        b.set_rcvlowat(20).unwrap();
        assert_eq!(
            b.read(&mut buf).unwrap(),
            6,
            "a read stops at the mark despite the low-water mark"
        );
        assert!(b.sockatmark().unwrap());
        b.set_rcvlowat(1).unwrap();
        assert_eq!(b.recv_oob(&mut buf).unwrap(), 1);
        assert_eq!(buf[0], b'!');
        b.read_exact(&mut buf[..5]).unwrap();
        assert_eq!(&buf[..5], b"after");
        assert!(!b.sockatmark().unwrap());
    }

    #[test]
    fn loopback_connects_a_stack_to_itself() {
        let (client, _server) = pair(&WireConfig::default());
        let listener = TcpListener::bind(&client, "127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut stream = TcpStream::connect(&client, to).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        stream.write_all(&[7; 300_000]).unwrap_or_else(|error| panic!("{error}"));
        drop(stream);
        let mut all = Vec::new();
        accepted.read_to_end(&mut all).unwrap();
        assert_eq!(all, vec![7; 300_000]);
    }

    #[test]
    fn a_megabyte_survives_loss_and_reordering() {
        let bad = Impairment {
            delay: Duration::from_micros(200),
            loss: 0.01,
            reorder: 0.05,
            reorder_delay: Duration::from_micros(300),
            ..Impairment::default()
        };
        let (client, server) =
            pair(&WireConfig { forward: bad, backward: bad, seed: 5, ..WireConfig::default() });
        let (mut a, mut b) = connected(&client, &server);
        let sent: Vec<u8> =
            (0..1_000_000u32).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0]).collect();
        let expected = sent.clone();
        let writer = thread::spawn(move || {
            a.write_all(&sent).unwrap();
            a.shutdown(Shutdown::Write).unwrap();
            a
        });
        let mut received = Vec::new();
        b.read_to_end(&mut received).unwrap();
        assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
        drop(writer.join().unwrap());
    }

    #[test]
    fn one_stream_is_read_and_written_by_two_threads() {
        let (client, server) = pair(&WireConfig::default());
        let (a, mut b) = connected(&client, &server);
        let echo = thread::spawn(move || {
            let mut buf = vec![0; 65_536];
            loop {
                match b.read(&mut buf).unwrap() {
                    0 => return,
                    n => b.write_all(&buf[..n]).unwrap(),
                }
            }
        });
        let mut writer = a.try_clone().unwrap();
        let sender = thread::spawn(move || {
            for round in 0..200u8 {
                writer.write_all(&[round; 10_000]).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        (&a).read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 2_000_000);
        for (round, chunk) in (0u8..).zip(received.chunks(10_000)) {
            assert!(chunk.iter().all(|byte| *byte == round), "round {round}");
        }
        sender.join().unwrap();
        echo.join().unwrap();
    }

    #[test]
    fn a_port_without_a_listener_refuses_connections() {
        let (client, _server) = pair(&WireConfig::default());
        let error = TcpStream::connect(&client, at(9)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn an_address_without_a_route_is_unreachable() {
        let (client, _server) = pair(&WireConfig::default());
        let error = TcpStream::connect(&client, "192.0.2.1:80").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
    }

    #[test]
    fn a_neighbor_that_never_answers_is_unreachable() {
        let (client, _server) = pair(&WireConfig::default());
        let error = TcpStream::connect(&client, "10.0.0.77:80").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
    }

    #[test]
    fn timeouts_and_nonblocking_calls_return_would_block() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, _b) = connected(&client, &server);
        a.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
        let begin = Instant::now();
        assert_eq!(a.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(begin.elapsed() >= Duration::from_millis(30));
        a.set_nonblocking(true).unwrap();
        assert_eq!(a.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        let chunk = vec![1; 1 << 20];
        let mut written = 0;
        let error = loop {
            match a.write(&chunk) {
                Ok(n) => written += n,
                Err(error) => break error,
            }
            assert!(written < 1 << 30, "the send buffer is unbounded");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn half_close_ends_one_direction_only() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        a.write_all(b"last words").unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(a.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut all = String::new();
        b.read_to_string(&mut all).unwrap();
        assert_eq!(all, "last words");
        b.write_all(b"goodbye").unwrap();
        drop(b);
        let mut all = String::new();
        a.read_to_string(&mut all).unwrap();
        assert_eq!(all, "goodbye");
    }

    #[test]
    fn dropping_unread_data_resets_the_peer() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, b) = connected(&client, &server);
        a.write_all(b"unread").unwrap();
        while !b.readiness().contains(quietline::Readiness::READ) {
            thread::yield_now();
        }
        drop(b);
        a.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(a.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn linger_zero_resets_at_once() {
        let (client, server) = pair(&WireConfig::default());
        let (a, mut b) = connected(&client, &server);
        a.set_linger(Some(Duration::ZERO)).unwrap();
        drop(a);
        b.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(b.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn peek_leaves_the_data_in_the_queue() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        a.write_all(b"once").unwrap();
        let mut buf = [0; 4];
        assert_eq!(b.peek(&mut buf).unwrap(), 4);
        buf = [0; 4];
        b.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"once");
    }

    #[test]
    fn vectored_writes_arrive_in_order() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, mut b) = connected(&client, &server);
        let parts = [IoSlice::new(b"one "), IoSlice::new(b"two "), IoSlice::new(b"three")];
        assert_eq!(a.write_vectored(&parts).unwrap(), 13);
        let mut buf = [0; 13];
        b.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"one two three");
    }

    #[test]
    fn a_port_has_one_listener() {
        let (_client, server) = pair(&WireConfig::default());
        let first = TcpListener::bind(&server, at(80)).unwrap();
        let error = TcpListener::bind(&server, at(80)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(first);
        TcpListener::bind(&server, at(80)).unwrap();
        let error = TcpListener::bind(&server, "10.9.9.9:80").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn three_hundred_connections_are_open_at_once() {
        let (client, server) = pair(&WireConfig::default());
        let listener = TcpListener::bind_with_backlog(&server, at(80), 512).unwrap();
        let server_thread = thread::spawn(move || {
            let mut streams: Vec<TcpStream> =
                (0..300).map(|_| listener.accept().unwrap().0).collect();
            for stream in &mut streams {
                let mut buf = [0; 4];
                stream.read_exact(&mut buf).unwrap();
                stream.write_all(&buf).unwrap();
            }
        });
        let mut streams: Vec<TcpStream> =
            (0..300).map(|_| TcpStream::connect(&client, at(80)).unwrap()).collect();
        for (index, stream) in (0u32..).zip(&mut streams) {
            stream.write_all(&index.to_be_bytes()).unwrap();
        }
        for (index, stream) in (0u32..).zip(&mut streams) {
            let mut buf = [0; 4];
            stream.read_exact(&mut buf).unwrap();
            assert_eq!(u32::from_be_bytes(buf), index);
        }
        server_thread.join().unwrap();
        assert!(client.counters().get("TcpActiveOpens") == Some(300));
        assert!(server.counters().get("TcpPassiveOpens") == Some(300));
    }

    #[test]
    fn a_stack_that_is_shut_down_ends_its_connections() {
        let (client, server) = pair(&WireConfig::default());
        let (mut a, b) = connected(&client, &server);
        server.shutdown();
        a.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(a.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        drop(b);
    }

    #[test]
    fn a_manual_stack_runs_in_its_callers() {
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        let build = |device: std::sync::Arc<Wire>, address: &str| {
            let builder = Stack::builder().device(device).address(address.parse().unwrap());
            builder.manual().build().unwrap()
        };
        let client = build(left, "10.0.0.1/24");
        let server = build(right, "10.0.0.2/24");
        let (mut a, mut b) = connected(&client, &server);
        a.write_all(b"no worker").unwrap();
        let mut buf = [0; 9];
        b.read_exact(&mut buf).unwrap();
        assert_eq!(&buf, b"no worker");
    }

    /// The SYN waits for the neighbor, and must still be sent from the core of the connection:
    /// otherwise the server's end would always be on core 0.
    #[test]
    fn the_first_connection_to_a_neighbor_is_on_the_same_core_at_both_ends() {
        let mut seen = [0; 2];
        while seen.iter().sum::<i32>() < 8 || seen.contains(&0) {
            assert!(seen.iter().sum::<i32>() < 64, "all connections are on one core: {seen:?}");
            let config = WireConfig { queues: 2, ..WireConfig::default() };
            let (left, right) = Wire::pair(&config).unwrap();
            let build = |device: std::sync::Arc<Wire>, address: &str| {
                let builder = Stack::builder().device(device).address(address.parse().unwrap());
                builder.cores(2).manual().build().unwrap()
            };
            let client = build(left, "10.0.0.1/24");
            let server = build(right, "10.0.0.2/24");
            let (mut a, mut b) = connected(&client, &server);
            for _ in 0..8 {
                a.write_all(b"there").unwrap();
                b.read_exact(&mut [0; 5]).unwrap();
                b.write_all(b"back").unwrap();
                a.read_exact(&mut [0; 4]).unwrap();
            }
            for stack in [&client, &server] {
                assert_eq!(stack.counters().get("ForeignCorePackets"), Some(0));
            }
            let cores = server.softnet_stat();
            seen[usize::from(cores[1].processed > cores[0].processed)] += 1;
        }
    }

    #[test]
    fn bad_configurations_are_refused_in_one_line() {
        let wire = || Wire::pair(&WireConfig::default()).unwrap().0;
        let address = || "10.0.0.1/24".parse().unwrap();
        let cases = [
            (Stack::builder().cores(0).build(), ErrorKind::InvalidInput),
            (Stack::builder().address(address()).build(), ErrorKind::InvalidInput),
            (Stack::builder().sysctl("net.ipv4.no_such_thing", "1").build(), ErrorKind::NotFound),
            (Stack::builder().sysctl("net.ipv4.tcp_rmem", "many").build(), ErrorKind::InvalidInput),
            (
                Stack::builder().device(wire()).gateway("10.0.0.9".parse().unwrap()).build(),
                ErrorKind::InvalidInput,
            ),
            (
                Stack::builder().device(wire()).address(address()).address(address()).build(),
                ErrorKind::AlreadyExists,
            ),
        ];
        for (result, kind) in cases {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
