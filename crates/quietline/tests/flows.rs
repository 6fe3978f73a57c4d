//! Intercepted flows by the calls of an application: blocking, with a poller, and with tokio.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read as _, Write as _},
        net::SocketAddr,
        thread,
        time::Duration,
    };

    use quietline::{
        Errno, Flow, Intercept, PingSocket, Stack, StackBuilder, TcpRequest, TcpStream, UdpSocket,
        Unreachable, Wire, WireConfig,
        poll::{Events, Interest, Poller, Token, Trigger},
        tokio as asynchronous,
    };

    const TARGET: &str = "192.0.2.80:443";
    const TARGET_V6: &str = "[2001:db8::80]:443";

    /// Every flow may be passed to another thread.
    const _: () = {
        const fn is_send<T: Send>() {}
        is_send::<Flow>();
        is_send::<asynchronous::Flow>();
    };

    /// A client whose default route leads to a stack that intercepts.
    fn stacks_with(intercept: Intercept) -> (Stack, Stack) {
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        let at = |builder: StackBuilder, v4: &str, v6: &str| {
            let builder = builder.address(v4.parse().unwrap()).address(v6.parse().unwrap());
            builder.sysctl("net.ipv6.conf.all.dad_transmits", "0")
        };
        let client = at(Stack::builder().device(left), "10.0.0.1/24", "fd00::1/64")
            .gateway("10.0.0.2".parse().unwrap())
            .gateway("fd00::2".parse().unwrap());
        let gate = at(Stack::builder().device(right), "10.0.0.2/24", "fd00::2/64");
        (client.build().unwrap(), gate.intercept(intercept).build().unwrap())
    }

    fn stacks() -> (Stack, Stack) {
        stacks_with(Intercept::all())
    }

    fn tcp(flow: Flow) -> TcpRequest {
        let Flow::Tcp(request) = flow else { panic!("{flow:?} is no TCP connection") };
        request
    }

    #[test]
    fn a_connection_is_accepted_with_both_of_its_ends() {
        for target in [TARGET, TARGET_V6] {
            let (client, gate) = stacks();
            let flows = gate.flows().unwrap();
            let dial = thread::spawn(move || TcpStream::connect(&client, target).unwrap());
            let request = tcp(flows.next().unwrap());
            assert_eq!(request.destination(), target.parse().unwrap());
            let (source, mut inside) = (request.source(), request.accept().unwrap());
            let mut outside = dial.join().unwrap();
            assert_eq!(outside.local_addr().unwrap(), source);
            assert_eq!(inside.peer_addr().unwrap(), source);
            assert_eq!(inside.local_addr().unwrap(), target.parse().unwrap());
            outside.write_all(b"hello").unwrap();
            let mut hello = [0; 5];
            inside.read_exact(&mut hello).unwrap();
            inside.write_all(b"world").unwrap();
            outside.read_exact(&mut hello).unwrap();
            assert_eq!(&hello, b"world");
        }
    }

    #[test]
    fn the_client_gets_the_error_with_which_it_is_refused() {
        for target in [TARGET, TARGET_V6] {
            let (client, gate) = stacks();
            let flows = gate.flows().unwrap();
            for (errno, seen) in [
                (Errno::ECONNREFUSED, ErrorKind::ConnectionRefused),
                (Errno::ENETUNREACH, ErrorKind::NetworkUnreachable),
                (Errno::EHOSTUNREACH, ErrorKind::HostUnreachable),
                (Errno::ETIMEDOUT, ErrorKind::ConnectionRefused),
            ] {
                let client = client.clone();
                let dial = thread::spawn(move || TcpStream::connect(&client, target).unwrap_err());
                tcp(flows.next().unwrap()).refuse(&errno.into());
                assert_eq!(dial.join().unwrap().kind(), seen, "{errno:?}");
                // The rate limit of ICMP errors to one destination.
                gate.set_sysctl("net.ipv4.icmp_ratelimit", "0").unwrap();
            }
        }
    }

    #[test]
    fn a_dropped_request_and_the_last_handle_refuse() {
        let (client, gate) = stacks();
        let flows = gate.flows().unwrap();
        let again = client.clone();
        let dial = thread::spawn(move || TcpStream::connect(&again, TARGET).unwrap_err());
        drop(flows.next().unwrap());
        assert_eq!(dial.join().unwrap().kind(), ErrorKind::ConnectionRefused);
        let dial = thread::spawn(move || TcpStream::connect(&client, TARGET).unwrap_err());
        while flows.readiness().is_empty() {
            thread::yield_now();
        }
        drop(flows);
        assert_eq!(dial.join().unwrap().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(gate.connections(), 0);
    }

    #[test]
    fn a_stack_that_intercepts_nothing_has_no_flows() {
        let stack = Stack::builder().build().unwrap();
        assert_eq!(stack.flows().unwrap_err().kind(), ErrorKind::InvalidInput);
        let error = Stack::builder().intercept(Intercept::all()).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("after its device"), "{error}");
    }

    #[test]
    fn the_end_of_the_stack_ends_the_wait_for_flows() {
        let (_client, gate) = stacks();
        let flows = gate.flows().unwrap();
        let waiter = thread::spawn(move || flows.incoming().count());
        gate.shutdown();
        assert_eq!(waiter.join().unwrap(), 0);
    }

    #[test]
    fn a_poller_reports_flows_and_the_end_of_handshakes() {
        let (client, gate) = stacks();
        let flows = gate.flows().unwrap();
        assert_eq!(flows.try_next().unwrap_err().kind(), ErrorKind::WouldBlock);
        let poller = Poller::new();
        poller.register(&flows, Token(1), Interest::READABLE, Trigger::Edge).unwrap();
        let outside = TcpStream::connect_nonblocking(&client, TARGET.parse().unwrap()).unwrap();
        let mut events = Events::with_capacity(4);
        let mut wait = |token| {
            poller.poll(&mut events, Some(Duration::from_secs(60)));
            let event = events.iter().next().expect("an event");
            assert!(event.token() == Token(token) && event.is_readable());
        };
        wait(1);
        let request = tcp(flows.try_next().unwrap());
        poller.register(&request, Token(2), Interest::READABLE, Trigger::Edge).unwrap();
        let inside = match request.try_accept() {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                wait(2);
                request.try_accept().unwrap()
            }
            // The client has answered at once.
            Ok(inside) => inside,
        };
        assert_eq!(inside.peer_addr().unwrap(), outside.local_addr().unwrap());
    }

    #[test]
    fn datagrams_of_one_source_have_one_session_and_any_destination() {
        for (own, near, far) in [
            ("10.0.0.1:5000", "192.0.2.1:53", "198.51.100.2:4433"),
            ("[fd00::1]:5000", "[2001:db8::1]:53", "[2001:db8::2]:4433"),
        ] {
            let (client, gate) = stacks();
            let flows = gate.flows().unwrap();
            let socket = UdpSocket::bind(&client, own).unwrap();
            socket.send_to(b"one", near).unwrap();
            let Flow::Udp(session) = flows.next().unwrap() else { panic!("no session") };
            assert_eq!(session.source(), own.parse().unwrap());
            let mut buf = [0; 2000];
            assert_eq!(session.recv(&mut buf).unwrap(), (3, near.parse().unwrap()));
            socket.send_to(b"three", far).unwrap();
            assert_eq!(session.recv(&mut buf).unwrap(), (5, far.parse().unwrap()));
            // Any source may answer, and datagrams may be longer than a packet.
            let third: SocketAddr = near.replace("53", "99").parse().unwrap();
            for (from, len) in
                [(near.parse().unwrap(), 4), (third, 1400), (far.parse().unwrap(), 1900)]
            {
                assert_eq!(session.send(&vec![7; len], from).unwrap(), len);
                let (received, sender) = socket.recv_from(&mut buf).unwrap();
                assert_eq!((received, sender), (len, from));
            }
            assert_eq!(flows.try_next().unwrap_err().kind(), ErrorKind::WouldBlock);
            let timeout = Duration::from_millis(1);
            let error = session.recv_timeout(&mut buf, timeout).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            // After the end of the session, the next datagram opens another one.
            drop(session);
            socket.send_to(b"four", near).unwrap();
            let Flow::Udp(session) = flows.next().unwrap() else { panic!("no session") };
            assert_eq!(session.recv(&mut buf).unwrap().0, 4);
        }
    }

    #[test]
    fn an_address_that_cannot_be_a_source_is_refused() {
        let (client, gate) = stacks();
        let flows = gate.flows().unwrap();
        let socket = UdpSocket::bind(&client, "10.0.0.1:5000").unwrap();
        socket.send_to(b"one", "192.0.2.1:53").unwrap();
        let Flow::Udp(session) = flows.next().unwrap() else { panic!("no session") };
        for from in ["0.0.0.0:1", "224.0.0.1:1", "127.0.0.1:1", "255.255.255.255:1", "192.0.2.1:0"]
        {
            let error = session.send(b"", from.parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{from}");
        }
        let error = session.send(b"", "[2001:db8::1]:1".parse().unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EAFNOSUPPORT.raw()));
        let error = session.send(&[0; 65_508], "192.0.2.1:53".parse().unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::EMSGSIZE.raw()));
    }

    #[test]
    fn a_ping_is_answered_by_the_application() {
        let (client, gate) = stacks();
        let flows = gate.flows().unwrap();
        let message = [8, 0, 0, 0, 0, 0, 0, 1, b'h', b'i'];
        let socket = PingSocket::open(&client, "10.0.0.1".parse().unwrap()).unwrap();
        socket.send_to(&message, "192.0.2.1".parse().unwrap()).unwrap();
        let Flow::Echo(ping) = flows.next().unwrap() else { panic!("no ping") };
        assert_eq!(ping.destination().to_string(), "192.0.2.1");
        assert_eq!(ping.message()[8..], *b"hi");
        ping.reply();
        let mut buf = [0; 100];
        let (len, from) = socket.recv_from(&mut buf).unwrap();
        assert_eq!((len, from.to_string()), (10, String::from("192.0.2.1")));
        // A ping of an own address is no flow.
        socket.send_to(&message, "10.0.0.2".parse().unwrap()).unwrap();
        assert_eq!(socket.recv_from(&mut buf).unwrap().0, 10);
        // An ignored ping is counted.
        socket.send_to(&message, "192.0.2.1".parse().unwrap()).unwrap();
        let Flow::Echo(ping) = flows.next().unwrap() else { panic!("no ping") };
        drop(ping);
        assert_eq!(gate.counters().get("FLOW_IGNORED"), Some(1));
        // Only a connected socket learns of errors, and only of permanent ones.
        socket.connect("192.0.2.1".parse().unwrap()).unwrap();
        socket.send(&message).unwrap();
        let Flow::Echo(ping) = flows.next().unwrap() else { panic!("no ping") };
        ping.unreachable(Unreachable::Prohibited);
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(socket.recv_from(&mut buf).unwrap_err().kind(), ErrorKind::HostUnreachable);
    }

    #[test]
    fn tasks_take_flows_and_learn_that_a_client_has_given_up() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let (client, gate) = stacks();
        runtime.block_on(async {
            let flows = asynchronous::Flows::new(&gate).unwrap();
            let dialed = client.clone();
            let dial = tokio::spawn(async move {
                asynchronous::TcpStream::connect(&dialed, TARGET.parse().unwrap()).await
            });
            let Some(asynchronous::Flow::Tcp(request)) = flows.next().await else {
                panic!("no connection")
            };
            let pending = tokio::time::timeout(Duration::from_millis(1), request.cancelled());
            assert!(pending.await.is_err() && !request.is_cancelled());
            let inside = request.accept().await.unwrap();
            let outside = dial.await.unwrap().unwrap();
            assert_eq!(inside.peer_addr().unwrap(), outside.local_addr().unwrap());
            drop((inside, outside));
            let socket = asynchronous::UdpSocket::bind(&client, "10.0.0.1:5000").unwrap();
            socket.send_to(b"one", "192.0.2.1:53".parse().unwrap()).await.unwrap();
            let Some(asynchronous::Flow::Udp(session)) = flows.next().await else {
                panic!("no session")
            };
            let mut buf = [0; 100];
            let (len, to) = session.recv(&mut buf).await.unwrap();
            session.send(&buf[..len], to).unwrap();
            assert_eq!(socket.recv_from(&mut buf).await.unwrap(), (3, to));
            // The device, and with it the client, is gone.
            let dialed = client.clone();
            let dial = tokio::spawn(async move {
                asynchronous::TcpStream::connect(&dialed, TARGET.parse().unwrap()).await.map(drop)
            });
            let Some(asynchronous::Flow::Tcp(request)) = flows.next().await else {
                panic!("no connection")
            };
            gate.shutdown();
            request.cancelled().await;
            assert!(request.is_cancelled() && request.accept().await.is_err());
            assert!(flows.next().await.is_none());
            dial.abort();
        });
    }
}
