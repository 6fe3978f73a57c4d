//! Parts of the interface of `std::net` besides reading and writing: addresses as text, iterators,
//! getters, marker traits, and errors that `connect` returns at once.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Ipv4Addr, SocketAddr},
        panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind},
        time::Duration,
    };

    use quietline::{
        ConnectOptions, Incoming, IntoIncoming, ListenOptions, OptionValue, SendBuffer,
        SocketOption, Stack, StackBuilder, TcpListener, TcpSocket, TcpStream,
    };

    const ENETUNREACH: i32 = 101;

    fn stack() -> Stack {
        Stack::builder().build().expect("a stack with loopback alone")
    }

    fn pair(stack: &Stack, port: u16) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(stack, ("127.0.0.1", port)).expect("a free port");
        let client = TcpStream::connect(stack, ("127.0.0.1", port)).expect("a listener");
        (client, listener.accept().expect("a connection").0)
    }

    #[test]
    fn addresses_have_all_types_that_std_accepts() {
        let stack = stack();
        let listener = TcpListener::bind(&stack, "127.0.0.1:80").unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let unused = SocketAddr::from(([127, 0, 0, 1], 81));
        drop(TcpStream::connect(&stack, "127.0.0.1:80").unwrap());
        drop(TcpStream::connect(&stack, ("127.0.0.1", 80)).unwrap());
        drop(TcpStream::connect(&stack, (Ipv4Addr::LOCALHOST, 80)).unwrap());
        drop(TcpStream::connect(&stack, address).unwrap());
        // As the signature of std requires.
        let by_reference: &SocketAddr = &address;
        let limit = Duration::from_secs(10);
        drop(TcpStream::connect_timeout(&stack, by_reference, limit).unwrap());
        // Several addresses are tried in turn; the last error is returned if all fail.
        drop(TcpStream::connect(&stack, &[unused, address][..]).unwrap());
        let error = TcpStream::connect(&stack, &[unused, unused][..]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let other = TcpListener::bind(&stack, &[address, unused][..]).unwrap();
        assert_eq!(other.local_addr().unwrap(), unused, "the first address is in use");
        let error = TcpListener::bind(&stack, "127.0.0.1").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "the port is missing");
        drop(listener);
    }

    #[test]
    fn one_timeout_covers_all_addresses() {
        let (left, _right) = quietline::Wire::pair(&quietline::WireConfig::default()).unwrap();
        let stack =
            Stack::builder().device(left).address("10.0.0.1/24".parse().unwrap()).build().unwrap();
        // No host has these addresses. The first one uses up the time.
        let silent = ["10.0.0.2:80", "10.0.0.3:80"].map(|text| text.parse::<SocketAddr>().unwrap());
        let limit = Duration::from_millis(50);
        let error = TcpStream::connect_timeout(&stack, &silent[..], limit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    /// Returns the errno of the kernel for the same call, which sends nothing.
    fn kernels_errno(to: SocketAddr) -> Option<i32> {
        std::net::TcpStream::connect_timeout(&to, Duration::from_secs(5))
            .expect_err("no host has this address")
            .raw_os_error()
    }

    #[test]
    fn broadcast_and_multicast_are_unreachable_as_for_the_kernel() {
        let (left, _right) = quietline::Wire::pair(&quietline::WireConfig::default()).unwrap();
        let stack = Stack::builder()
            .device(left)
            .address("10.0.0.1/24".parse().unwrap())
            .gateway("10.0.0.9".parse().unwrap())
            .build()
            .unwrap();
        let everywhere =
            ["255.255.255.255:80", "224.0.0.1:80", "239.1.2.3:80", "127.255.255.255:80"];
        for to in everywhere.map(|text| text.parse().unwrap()) {
            assert_eq!(kernels_errno(to), Some(ENETUNREACH), "{to}");
            let error = TcpStream::connect(&stack, to).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(ENETUNREACH), "{to}: {error}");
        }
        let subnet: SocketAddr = "10.0.0.255:80".parse().unwrap();
        let errors = [
            TcpStream::connect_nonblocking(&stack, subnet).unwrap_err(),
            TcpSocket::new_v4(&stack).connect(subnet).unwrap_err(),
            TcpStream::connect_from(&stack, "10.0.0.1:0".parse().unwrap(), subnet).unwrap_err(),
            // `sendto` with `MSG_FASTOPEN`: a send on an unconnected socket.
            TcpStream::connect_with_data(&stack, subnet, &ConnectOptions::default(), b"x")
                .unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.raw_os_error(), Some(ENETUNREACH), "{error}");
        }
        assert_eq!(stack.counters().tcp(tcp::Counter::TcpOutSegs), 0, "no SYN");
    }

    #[test]
    fn a_listener_is_an_iterator() {
        let stack = stack();
        let listener = TcpListener::bind(&stack, "127.0.0.1:80").unwrap();
        for byte in 0..3 {
            let mut client = TcpStream::connect(&stack, "127.0.0.1:80").unwrap();
            client.write_all(&[byte]).unwrap();
        }
        let read = |stream: std::io::Result<TcpStream>| {
            let mut byte = [0];
            stream.unwrap().read_exact(&mut byte).unwrap();
            byte[0]
        };
        let mut seen = Vec::new();
        for (_, stream) in std::iter::zip(0..1, &listener) {
            seen.push(read(stream));
        }
        seen.extend(listener.incoming().take(1).map(read));
        seen.extend(listener.into_incoming().take(1).map(read));
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        let gone = TcpStream::connect(&stack, "127.0.0.1:80").unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::ConnectionRefused, "the iterator owned the listener");
    }

    #[test]
    fn a_listener_has_the_getters_of_a_stream() {
        let stack = stack();
        let listener = TcpListener::bind(&stack, "127.0.0.1:80").unwrap();
        assert!(listener.take_error().unwrap().is_none());
        assert!(!listener.nonblocking());
        listener.set_nonblocking(true).unwrap();
        assert!(listener.nonblocking());
        assert_eq!(listener.ttl().unwrap(), 64);
        listener.set_ttl(9).unwrap();
        assert_eq!(listener.ttl().unwrap(), 9);
        assert!(listener.set_ttl(0).is_err());
        assert!(listener.set_ttl(256).is_err());
        let _client = TcpStream::connect(&stack, "127.0.0.1:80").unwrap();
        listener.set_nonblocking(false).unwrap();
        assert_eq!(listener.accept().unwrap().0.ttl().unwrap(), 9, "the TTL is inherited");
    }

    /// `IP_TTL` and `IP_TOS` are fields of IPv4 packets, so the methods use the options of IPv6.
    #[test]
    fn the_ttl_and_tos_of_an_ipv6_stream_are_its_hop_limit_and_traffic_class() {
        let stack = stack();
        let listener = TcpListener::bind(&stack, "[::1]:80").unwrap();
        listener.set_ttl(9).unwrap();
        let stream = TcpStream::connect(&stack, "[::1]:80").unwrap();
        let accepted = listener.accept().unwrap().0;
        assert_eq!((accepted.ttl().unwrap(), stream.ttl().unwrap()), (9, 64));
        stream.set_ttl(33).unwrap();
        stream.set_tos(0xb8).unwrap();
        let number = |option| stream.option(option).unwrap().as_int().unwrap();
        assert_eq!((number(SocketOption::UnicastHops), number(SocketOption::TimeToLive)), (33, 64));
        let classes = [SocketOption::TrafficClass, SocketOption::TypeOfService].map(number);
        assert_eq!(classes, [0xb8, 0]);
        assert!(stream.set_ttl(0).is_err());
    }

    #[test]
    fn getters_return_the_values_that_were_set() {
        let stack = stack();
        let (stream, _peer) = pair(&stack, 80);
        let seconds = Duration::from_secs;
        assert_eq!(stream.ttl().unwrap(), 64);
        stream.set_ttl(33).unwrap();
        assert_eq!(stream.ttl().unwrap(), 33);
        for wrong in [0, 256, u32::MAX] {
            assert_eq!(stream.set_ttl(wrong).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(stream.linger().unwrap(), None);
        stream.set_linger(Some(seconds(2))).unwrap();
        assert_eq!(stream.linger().unwrap(), Some(seconds(2)));
        stream.set_linger(None).unwrap();
        assert_eq!(stream.linger().unwrap(), None);
        assert!(!stream.keepalive().unwrap());
        stream.set_keepalive(true).unwrap();
        assert!(stream.keepalive().unwrap());
        stream.set_keepalive_time(seconds(11)).unwrap();
        stream.set_keepalive_interval(seconds(12)).unwrap();
        stream.set_keepalive_probes(13).unwrap();
        assert_eq!(stream.keepalive_time().unwrap(), seconds(11));
        assert_eq!(stream.keepalive_interval().unwrap(), seconds(12));
        assert_eq!(stream.keepalive_probes().unwrap(), 13);
        assert_eq!(stream.user_timeout().unwrap(), None);
        stream.set_user_timeout(Some(Duration::from_micros(500))).unwrap();
        assert_eq!(
            stream.user_timeout().unwrap(),
            Some(Duration::from_millis(1)),
            "the timeout is rounded up"
        );
        stream.set_cork(true).unwrap();
        assert!(stream.cork().unwrap());
        stream.set_quickack(false).unwrap();
        assert!(!stream.quickack().unwrap());
        stream.set_notsent_lowat(16_384).unwrap();
        assert_eq!(stream.notsent_lowat().unwrap(), 16_384);
        stream.set_oob_inline(true).unwrap();
        assert!(stream.oob_inline().unwrap());
        stream.set_tos(0xb8).unwrap();
        assert_eq!(stream.tos().unwrap(), 0xb8);
        assert!(!stream.nonblocking());
        stream.set_nonblocking(true).unwrap();
        assert!(stream.nonblocking());
        let clone = stream.try_clone().unwrap();
        assert!(
            clone.nonblocking(),
            "the mode belongs to the connection, as O_NONBLOCK to an open file"
        );
    }

    #[test]
    fn options_accept_types_of_std() {
        let stack = stack();
        let (stream, _peer) = pair(&stack, 80);
        stream.set_option(SocketOption::KeepIdle, Duration::from_secs(30)).unwrap();
        assert_eq!(stream.option(SocketOption::KeepIdle).unwrap(), OptionValue::Int(30));
        stream.set_option(SocketOption::ReceiveTimeout, Duration::from_millis(20)).unwrap();
        assert_eq!(stream.read_timeout().unwrap(), Some(Duration::from_millis(20)));
        stream.set_option(SocketOption::ReceiveTimeout, None::<Duration>).unwrap();
        assert_eq!(stream.read_timeout().unwrap(), None);
        stream.set_option(SocketOption::SendBuffer, 65_536_usize).unwrap();
        assert_eq!(stream.send_buffer_size().unwrap(), 131_072);
        stream.set_option(SocketOption::MaxPacingRate, 3_000_000_000_u32).unwrap();
        let rate = stream.option(SocketOption::MaxPacingRate).unwrap();
        assert_eq!(rate, OptionValue::Long(3_000_000_000));
        stream.set_option(SocketOption::Congestion, String::from("reno")).unwrap();
        assert_eq!(stream.congestion().unwrap(), "reno");
    }

    #[test]
    fn sockets_are_usable_after_a_panic_of_the_application() {
        fn has_the_markers<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}
        has_the_markers::<Stack>();
        has_the_markers::<StackBuilder>();
        has_the_markers::<TcpStream>();
        has_the_markers::<TcpListener>();
        has_the_markers::<TcpSocket>();
        has_the_markers::<SendBuffer>();
        has_the_markers::<Incoming<'_>>();
        has_the_markers::<IntoIncoming>();
        has_the_markers::<ListenOptions>();
        has_the_markers::<ConnectOptions>();
        has_the_markers::<quietline::device::Tun>();

        let stack = stack();
        let (mut stream, mut peer) = pair(&stack, 80);
        let panicked = catch_unwind(|| {
            (&stream).write_all(b"he").unwrap();
            std::panic::resume_unwind(Box::new("of the application"));
        });
        assert!(panicked.is_err());
        stream.write_all(b"llo").unwrap();
        let mut bytes = [0; 5];
        peer.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        let read = catch_unwind(AssertUnwindSafe(|| peer.read_exact(&mut bytes[..0])));
        assert!(read.is_ok());
    }
}
