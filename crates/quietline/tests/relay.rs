//! A relay between two connections of a stack (feature `tokio`): all bytes, in real time;
//! half-closes, resets and limits, in virtual time.

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        future::{Future, poll_fn},
        io::{self, ErrorKind, IoSlice},
        net::SocketAddr,
        pin::{Pin, pin},
        rc::Rc,
        sync::Arc,
        task::{Context, Poll, Waker},
        time::Duration,
    };

    use quietline::{
        RelayLimits, Stack, Wire, WireConfig,
        sans_io::{
            Connection, Cx, DeviceConfig, DeviceIndex, Errno, Host, HostConfig, Instant, Intercept,
            Listener, Memory, NewFlow, RouteSpec, ShutdownHow,
        },
        tokio::{RelayEnd, TcpListener, TcpStream, relay},
    };
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

    /// Bytes of the longest test. The matrix sets 10 GB.
    fn bytes_to_relay() -> usize {
        match std::env::var("QUIETLINE_RELAY_BYTES") {
            Ok(text) => text.parse().expect("QUIETLINE_RELAY_BYTES is a number"),
            Err(_) => 1_000_000_000,
        }
    }

    /// Returns a generator of numbers (xorshift).
    fn random(seed: u64) -> impl FnMut(usize) -> usize {
        let mut state = seed;
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        }
    }

    /// Returns bytes whose period is a prime number, so that no cut is repeated at the same place.
    fn pattern() -> Arc<[u8]> {
        let mut random = random(1);
        (0..1_000_003).map(|_| u8::try_from(random(256)).unwrap()).collect()
    }

    async fn write_pattern(to: &mut (impl AsyncWrite + Unpin), pattern: &[u8], total: usize) {
        let (mut random, mut sent) = (random(2), 0);
        while sent < total {
            let rest = &pattern[sent % pattern.len()..];
            let longest = if random(4) == 0 { 100 } else { 100_000 };
            let len = (1 + random(longest)).min(rest.len()).min(total - sent);
            to.write_all(&rest[..len]).await.unwrap();
            sent += len;
        }
        to.shutdown().await.unwrap();
    }

    async fn check_pattern(from: &mut (impl AsyncRead + Unpin), pattern: &[u8]) -> usize {
        let (mut random, mut read, mut buf) = (random(3), 0, vec![0; 100_000]);
        loop {
            let rest = &pattern[read % pattern.len()..];
            let len = (1 + random(buf.len())).min(rest.len());
            let count = from.read(&mut buf[..len]).await.unwrap();
            if count == 0 {
                return read;
            }
            assert!(buf[..count] == rest[..count], "wrong bytes behind {read}");
            read += count;
        }
    }

    /// Returns a client, a server, and between them a stack with a leg to each.
    fn stacks() -> [Stack; 3] {
        let (near, near_middle) = Wire::pair(&WireConfig::default()).unwrap();
        let (far_middle, far) = Wire::pair(&WireConfig::default()).unwrap();
        let at = |text: &str| text.parse().unwrap();
        let client = Stack::builder().device(near).address(at("10.0.0.1/24"));
        let middle = Stack::builder().device(near_middle).address(at("10.0.0.2/24"));
        let middle = middle.device(far_middle).address(at("10.0.1.2/24"));
        let server = Stack::builder().device(far).address(at("10.0.1.1/24"));
        [client, middle, server].map(|builder| builder.build().unwrap())
    }

    #[test]
    fn bytes_cut_at_random_compare_equal() {
        let total = bytes_to_relay();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_time().build().unwrap();
        runtime.block_on(async {
            let [client, middle, server] = stacks();
            let listener = TcpListener::bind(&server, "10.0.1.1:80").unwrap();
            let inside = TcpListener::bind(&middle, "10.0.0.2:80").unwrap();
            let relayed = tokio::spawn(async move {
                let (mut a, _) = inside.accept().await.unwrap();
                let to = "10.0.1.1:80".parse().unwrap();
                let mut b = TcpStream::connect(&middle, to).await.unwrap();
                let limits = RelayLimits::default().with_buffer_bytes(60_013);
                relay(&mut a, &mut b, &limits).await
            });
            let to = "10.0.0.2:80".parse().unwrap();
            let mut near = TcpStream::connect(&client, to).await.unwrap();
            let (mut far, _) = listener.accept().await.unwrap();
            let pattern = pattern();
            let expected = Arc::clone(&pattern);
            let serves = tokio::spawn(async move {
                let (mut from, mut to) = far.split();
                let read = check_pattern(&mut from, &expected);
                let write = write_pattern(&mut to, &expected, total / 10);
                tokio::join!(read, write).0
            });
            let (mut from, mut to) = near.split();
            let read = check_pattern(&mut from, &pattern);
            let (answered, ()) = tokio::join!(read, write_pattern(&mut to, &pattern, total));
            assert_eq!((answered, serves.await.unwrap()), (total / 10, total));
            let relayed = relayed.await.unwrap().unwrap();
            assert_eq!(relayed.a_to_b, total as u64);
            assert_eq!(relayed.b_to_a, total as u64 / 10);
        });
    }

    /// A connection of a host without an operating system. Its tasks are polled in every step, so
    /// it registers no waker.
    #[derive(Clone)]
    struct End {
        cx: Rc<RefCell<Box<Cx>>>,
        host: Arc<Host>,
        socket: Arc<Connection>,
    }

    impl End {
        fn try_read(&self, buf: &mut [u8]) -> Result<usize, Errno> {
            self.socket.recv(&self.host, &mut self.cx.borrow_mut(), buf, false)
        }

        fn try_write(&self, buf: &[u8]) -> Result<usize, Errno> {
            self.socket.send(&self.host, &mut self.cx.borrow_mut(), &[IoSlice::new(buf)])
        }

        fn finish(&self) {
            let mut cx = self.cx.borrow_mut();
            self.socket.shutdown(&self.host, &mut cx, ShutdownHow::Write).unwrap();
        }

        fn reset(&self) {
            self.socket.abort(&self.host, &mut self.cx.borrow_mut());
        }
    }

    fn polled<R>(result: Result<R, Errno>) -> Poll<io::Result<R>> {
        match result {
            Err(Errno::EAGAIN) => Poll::Pending,
            result => Poll::Ready(result.map_err(io::Error::from)),
        }
    }

    impl AsyncRead for End {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let result = self.try_read(buf.initialize_unfilled());
            polled(result.map(|count| buf.advance(count)))
        }
    }

    impl AsyncWrite for End {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &[u8],
        ) -> Poll<io::Result<usize>> {
            polled(self.try_write(buf))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.finish();
            Poll::Ready(Ok(()))
        }
    }

    impl RelayEnd for End {
        fn abort(&mut self) {
            self.reset();
        }
    }

    /// Three hosts in virtual time, and the relay of the host in the middle.
    struct Net<'a> {
        cx: Rc<RefCell<Box<Cx>>>,
        hosts: [Arc<Host>; 3],
        client: End,
        server: End,
        relay: Pin<&'a mut dyn Future<Output = io::Result<()>>>,
        result: Option<io::Result<()>>,
    }

    impl Net<'_> {
        /// Lets `time` pass, for the hosts and for the clock of the runtime.
        async fn run(&mut self, time: Duration) {
            let end = self.cx.borrow().now + time;
            loop {
                for host in &self.hosts {
                    let _ = host.poll(&mut self.cx.borrow_mut());
                }
                if self.result.is_none() {
                    let relay = self.relay.as_mut();
                    self.result = poll_once(relay).await;
                }
                let now = self.cx.borrow().now;
                let next = self.hosts.iter().filter_map(|host| host.next_deadline()).min();
                let next = next.map_or(end, |next| next.max(now)).min(end);
                let next = next.min(now + Duration::from_secs(1));
                if now == end {
                    return;
                }
                self.cx.borrow_mut().now = next.max(now + Duration::from_micros(100)).min(end);
                let passed = self.cx.borrow().now - now;
                tokio::time::advance(passed).await;
            }
        }

        /// Sends bytes from one end, and returns those that arrive at the other one.
        async fn pass(&mut self, from: &End, to: &End, bytes: &[u8]) -> Vec<u8> {
            assert_eq!(from.try_write(bytes), Ok(bytes.len()));
            self.run(Duration::from_millis(100)).await;
            let mut buf = [0; 100];
            let count = to.try_read(&mut buf).unwrap();
            buf[..count].to_vec()
        }
    }

    async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
        let noop = &mut Context::from_waker(Waker::noop());
        poll_fn(|_| {
            Poll::Ready(match future.as_mut().poll(noop) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        })
        .await
    }

    fn connect(
        cx: &Rc<RefCell<Box<Cx>>>,
        (from, to): (&Arc<Host>, &Arc<Host>),
        at: &str,
    ) -> (End, End) {
        let at: SocketAddr = at.parse().unwrap();
        let mut running = cx.borrow_mut();
        let listener = Listener::listen(to, &mut running, at, 16).unwrap();
        let socket = Connection::connect(from, &mut running, None, at).unwrap();
        let accepted = loop {
            let _ = (from.poll(&mut running), to.poll(&mut running));
            match listener.accept() {
                Ok(accepted) => break accepted,
                Err(_) => {
                    let now = running.now;
                    running.now = now + Duration::from_micros(100);
                }
            }
        };
        let end =
            |host: &Arc<Host>, socket| End { cx: Rc::clone(cx), host: Arc::clone(host), socket };
        (end(from, socket), end(to, accepted))
    }

    /// Connects from a client to an address that no host has. The host in the middle intercepts the
    /// connection, and accepts it.
    fn connect_through(
        cx: &Rc<RefCell<Box<Cx>>>,
        (from, middle): (&Arc<Host>, &Arc<Host>),
        at: &str,
    ) -> (End, End) {
        let mut running = cx.borrow_mut();
        let at: SocketAddr = at.parse().unwrap();
        let socket = Connection::connect(from, &mut running, None, at).unwrap();
        let queue = middle.flow_queue().expect("the host intercepts");
        let mut request = None;
        let accepted = loop {
            let _ = (from.poll(&mut running), middle.poll(&mut running));
            if let Ok(NewFlow::Tcp(new)) = queue.try_next() {
                new.answer(middle, &mut running).unwrap();
                request = Some(new);
            }
            match request.as_ref().map(|request| request.take()) {
                Some(Ok(accepted)) => break accepted,
                _ => {
                    let now = running.now;
                    running.now = now + Duration::from_micros(100);
                }
            }
        };
        assert_eq!(accepted.local(), at);
        let end =
            |host: &Arc<Host>, socket| End { cx: Rc::clone(cx), host: Arc::clone(host), socket };
        (end(from, socket), end(middle, accepted))
    }

    /// Runs a test with a relay between a client and a server, in virtual time. The client connects
    /// to the host in the middle, or to an address whose flows that host intercepts.
    fn in_virtual_time(limits: &RelayLimits, test: impl AsyncFn(&mut Net<'_>)) {
        for intercepted in [false, true] {
            relayed_in_virtual_time(limits, intercepted, &test);
        }
    }

    fn relayed_in_virtual_time(
        limits: &RelayLimits,
        intercepted: bool,
        test: &impl AsyncFn(&mut Net<'_>),
    ) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let memory = Memory::new(128 << 20);
            let mut cx = Cx::replay(&memory, 1);
            cx.now = Instant::from_secs(1);
            let cx = Rc::new(RefCell::new(Box::new(cx)));
            let wire = || Wire::pair(&WireConfig::default()).unwrap();
            let ((near, near_middle), (far_middle, far)) = (wire(), wire());
            let device = |device: Arc<Wire>, address: &str| DeviceConfig {
                device,
                addresses: vec![address.parse().unwrap()],
            };
            let host = |devices, routes, intercepts| {
                let config = HostConfig { devices, routes, intercepts, ..HostConfig::replay(1) };
                Host::new(&memory, config).unwrap()
            };
            let gateway = RouteSpec::via("0.0.0.0/0".parse().unwrap(), "10.0.0.2".parse().unwrap());
            let client = host(vec![device(near, "10.0.0.1/24")], vec![gateway], vec![]);
            let intercepts = match intercepted {
                true => vec![(DeviceIndex(1), Intercept::all())],
                false => vec![],
            };
            let devices =
                vec![device(near_middle, "10.0.0.2/24"), device(far_middle, "10.0.1.2/24")];
            let middle = host(devices, vec![], intercepts);
            let server = host(vec![device(far, "10.0.1.1/24")], vec![], vec![]);
            let (client_end, mut a) = match intercepted {
                true => connect_through(&cx, (&client, &middle), "192.0.2.80:80"),
                false => connect(&cx, (&client, &middle), "10.0.0.2:80"),
            };
            let (mut b, server_end) = connect(&cx, (&middle, &server), "10.0.1.1:80");
            let relay = pin!(async { relay(&mut a, &mut b, limits).await.map(drop) });
            let mut net = Net {
                cx: Rc::clone(&cx),
                hosts: [client, middle, server],
                client: client_end,
                server: server_end,
                relay,
                result: None,
            };
            test(&mut net).await;
            for host in &net.hosts {
                host.shut_down(&mut cx.borrow_mut());
            }
        });
    }

    const MINUTES: Duration = Duration::from_secs(60);

    #[test]
    fn a_half_closed_flow_goes_on_for_ten_minutes() {
        for client_first in [true, false] {
            in_virtual_time(&RelayLimits::default(), async |net| {
                let (first, second) = match client_first {
                    true => (net.client.clone(), net.server.clone()),
                    false => (net.server.clone(), net.client.clone()),
                };
                assert_eq!(net.pass(&first, &second, b"request").await, b"request");
                first.finish();
                net.run(Duration::from_secs(1)).await;
                assert_eq!(second.try_read(&mut [0; 8]), Ok(0), "the end of the stream");
                for _ in 0..5 {
                    net.run(MINUTES).await;
                    assert_eq!(net.pass(&second, &first, b"part").await, b"part");
                }
                net.run(5 * MINUTES).await;
                assert_eq!(net.pass(&second, &first, b"late").await, b"late");
                assert!(net.result.is_none(), "the relay goes on");
                second.finish();
                net.run(Duration::from_secs(1)).await;
                assert_eq!(first.try_read(&mut [0; 8]), Ok(0));
                assert!(net.result.take().expect("the relay has ended").is_ok());
            });
        }
    }

    #[test]
    fn a_reset_passes_as_a_reset_within_a_second() {
        for by_client in [true, false] {
            in_virtual_time(&RelayLimits::default(), async |net| {
                let (first, second) = match by_client {
                    true => (net.client.clone(), net.server.clone()),
                    false => (net.server.clone(), net.client.clone()),
                };
                assert_eq!(net.pass(&first, &second, b"x").await, b"x");
                first.reset();
                net.run(Duration::from_secs(1)).await;
                assert_eq!(second.try_read(&mut [0; 8]), Err(Errno::ECONNRESET));
                let error = net.result.take().expect("the relay has ended").unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            });
        }
    }

    #[test]
    fn a_flow_without_progress_is_reset_after_the_limit() {
        let limits = RelayLimits::default().with_idle(Some(10 * MINUTES));
        in_virtual_time(&limits, async |net| {
            let (client, server) = (net.client.clone(), net.server.clone());
            assert_eq!(net.pass(&client, &server, b"x").await, b"x");
            net.run(9 * MINUTES).await;
            assert!(net.result.is_none());
            net.run(2 * MINUTES).await;
            let error = net.result.take().expect("the relay has ended").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            for end in [client, server] {
                assert_eq!(end.try_read(&mut [0; 8]), Err(Errno::ECONNRESET));
            }
        });
    }

    /// A window of the server that stays closed stops the client: what is in flight is bounded by
    /// the buffers.
    #[test]
    fn a_server_that_does_not_read_stops_the_client() {
        in_virtual_time(&RelayLimits::default(), async |net| {
            let (client, server) = (net.client.clone(), net.server.clone());
            let mut sent = 0;
            for _ in 0..100 {
                while let Ok(count) = client.try_write(&[1; 64 * 1024]) {
                    sent += count;
                }
                net.run(Duration::from_millis(100)).await;
            }
            assert_eq!(client.try_write(&[1; 100]), Err(Errno::EAGAIN));
            assert!(sent < 64 << 20, "{sent} bytes without a reader");
            client.finish();
            let (mut read, mut buf) = (0, vec![0; 1 << 20]);
            for _ in 0..10_000 {
                match server.try_read(&mut buf) {
                    Ok(0) => break,
                    Ok(count) => read += count,
                    Err(_) => net.run(Duration::from_millis(10)).await,
                }
            }
            assert_eq!(read, sent);
        });
    }
}
