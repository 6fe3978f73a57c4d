//! Ends of listeners, streams and stacks: repeated close, shutdown under waiting threads, and
//! released resources.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, IoSliceMut, Read, Write},
        net::SocketAddr,
        sync::{Arc, Barrier, Weak, mpsc},
        thread,
        time::Duration,
    };

    use quietline::{Readiness, Stack, TcpListener, TcpStream, Wire, WireConfig};

    /// Far more time than any test here takes, and less than a test runner waits.
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn pair() -> (Stack, Stack) {
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"))
    }

    fn host(device: Arc<Wire>, address: &str) -> Stack {
        Stack::builder().device(device).address(address.parse().unwrap()).build().unwrap()
    }

    fn at(port: u16) -> SocketAddr {
        SocketAddr::new([10, 0, 0, 2].into(), port)
    }

    fn connected(client: &Stack, server: &Stack) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(server, at(0)).unwrap();
        let stream = TcpStream::connect(client, listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    /// Returns the result of `work`, run on another thread: a call that never returns fails the
    /// test instead of blocking it.
    fn within_timeout<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        started(work).recv_timeout(TIMEOUT).expect("the call returns")
    }

    fn started<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(work()));
        receiver
    }

    #[test]
    fn shutdown_wakes_a_thread_in_accept() {
        let (_client, server) = pair();
        let listener = TcpListener::bind(&server, at(80)).unwrap();
        let waiting = started(move || listener.accept().map(|_| ()));
        thread::sleep(Duration::from_millis(20));
        server.shutdown();
        let result = waiting.recv_timeout(TIMEOUT).expect("accept returns");
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn shutdown_wakes_a_thread_in_read_with_an_error() {
        let (client, server) = pair();
        let (_a, mut b) = connected(&client, &server);
        let waiting = started(move || b.read(&mut [0; 8]));
        thread::sleep(Duration::from_millis(20));
        server.shutdown();
        // An error, not the end of the stream: the reader must not take the received data for
        // complete.
        let result = waiting.recv_timeout(TIMEOUT).expect("read returns");
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    #[test]
    fn shutdown_fails_a_connect_under_way() {
        let (client, _server) = pair();
        let stack = client.clone();
        // No host has this address, so the SYN waits for ARP.
        let unreachable = SocketAddr::new([10, 0, 0, 77].into(), 80);
        let waiting = started(move || TcpStream::connect(&stack, unreachable).map(|_| ()));
        // Wait for the SYN: a connect after the shutdown would fail at once.
        while client.counters().get("TcpActiveOpens") == Some(0) {
            thread::yield_now();
        }
        client.shutdown();
        let result = waiting.recv_timeout(TIMEOUT).expect("connect returns");
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }

    #[test]
    fn a_stack_that_is_shut_down_opens_no_socket() {
        let (client, _server) = pair();
        client.shutdown();
        let stack = client.clone();
        let result = within_timeout(move || TcpStream::connect(&stack, at(80)).map(|_| ()));
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NetworkDown);
        let local = SocketAddr::new([10, 0, 0, 1].into(), 80);
        let result = TcpListener::bind(&client, local);
        assert_eq!(result.unwrap_err().kind(), ErrorKind::NetworkDown);
        assert_eq!(client.connections(), 0);
    }

    #[test]
    fn closing_a_listener_twice_does_not_close_its_successor() {
        let (_client, server) = pair();
        let first = TcpListener::bind(&server, at(80)).unwrap();
        first.close();
        let _second = TcpListener::bind(&server, at(80)).unwrap();
        drop(first);
        let error = TcpListener::bind(&server, at(80)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn an_error_in_the_middle_of_a_write_is_kept() {
        let (client, server) = pair();
        let (mut a, b) = connected(&client, &server);
        drop(b);
        while !a.readiness().contains(Readiness::RDHUP) {
            thread::yield_now();
        }
        // The peer's socket is closed: the first superframe is answered with a reset during the
        // write.
        match a.write(&[1; 1 << 20]) {
            Ok(taken) => {
                assert!(taken < 1 << 20, "the write ends at the reset");
                while !a.readiness().contains(Readiness::HUP) {
                    thread::yield_now();
                }
                let error = a.take_error().unwrap().expect("the reset was not reported yet");
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::BrokenPipe),
        }
    }

    #[test]
    fn a_vectored_read_returns_data_before_the_error() {
        let (client, server) = pair();
        let (mut a, mut b) = connected(&client, &server);
        b.write_all(b"hello").unwrap();
        a.write_all(b"unread").unwrap();
        while !b.readiness().contains(Readiness::READ) {
            thread::yield_now();
        }
        drop(b);
        while !a.readiness().contains(Readiness::HUP) {
            thread::yield_now();
        }
        let (mut first, mut second) = ([0; 5], [0; 5]);
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(a.read_vectored(&mut bufs).unwrap(), 5);
        assert_eq!(a.read(&mut [0; 5]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn listeners_on_any_port_get_different_ports() {
        let (left, _right) = Wire::pair(&WireConfig::default()).unwrap();
        let stack = Stack::builder()
            .device(left)
            .address("10.0.0.1/24".parse().unwrap())
            .sysctl("net.ipv4.ip_local_port_range", "40000 40063")
            .build()
            .unwrap();
        for round in 0..50 {
            let barrier = Barrier::new(4);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        barrier.wait();
                        let any = SocketAddr::new([10, 0, 0, 1].into(), 0);
                        let listeners: Vec<_> =
                            (0..16).map(|_| TcpListener::bind(&stack, any)).collect();
                        barrier.wait();
                        for listener in listeners {
                            listener.unwrap_or_else(|error| panic!("round {round}: {error}"));
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_dropped_stack_releases_its_device_and_descriptors() {
        fn one_round() -> Weak<Wire> {
            let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
            let device = Arc::downgrade(&left);
            let client = host(left, "10.0.0.1/24");
            let server = host(right, "10.0.0.2/24");
            let (mut a, mut b) = connected(&client, &server);
            a.write_all(b"something").unwrap();
            b.read_exact(&mut [0; 9]).unwrap();
            device
        }
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = descriptors();
        for _ in 0..40 {
            let device = one_round();
            assert!(device.upgrade().is_none(), "the device is still held");
        }
        // Other tests of this binary have a few stacks at the same time.
        assert!(descriptors() < before + 30, "{before} descriptors became {}", descriptors());
    }
}
