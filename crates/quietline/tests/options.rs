//! Socket options and settings through the public API.

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Shutdown, SocketAddr},
        time::Duration,
    };

    use quietline::{OptionValue, SocketOption, Stack, TcpListener, TcpSocket, TcpStream};

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn pair(stack: &Stack, port: u16) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(stack, address(port)).expect("a free port");
        let client = TcpStream::connect(stack, address(port)).expect("a listener");
        (client, listener.accept().expect("a connection").0)
    }

    #[test]
    fn typed_methods_set_the_same_as_the_option() {
        let stack = Stack::builder().build().expect("a stack");
        let (stream, _peer) = pair(&stack, 80);
        stream.set_keepalive_time(Duration::from_secs(11)).unwrap();
        stream.set_keepalive_interval(Duration::from_secs(12)).unwrap();
        stream.set_keepalive_probes(13).unwrap();
        stream.set_user_timeout(Some(Duration::from_millis(1400))).unwrap();
        stream.set_notsent_lowat(16_384).unwrap();
        stream.set_cork(true).unwrap();
        stream.set_option(SocketOption::MaxPacingRate, 3_000_000).unwrap();
        let expected = [
            (SocketOption::KeepIdle, 11),
            (SocketOption::KeepInterval, 12),
            (SocketOption::KeepCount, 13),
            (SocketOption::UserTimeout, 1400),
            (SocketOption::NotSentLowWater, 16_384),
            (SocketOption::Cork, 1),
        ];
        for (option, value) in expected {
            assert_eq!(
                stream.option(option).unwrap(),
                OptionValue::Int(value),
                "{}",
                option.name()
            );
        }
        let rate = stream.option(SocketOption::MaxPacingRate).unwrap();
        assert_eq!(rate, OptionValue::Long(3_000_000));
        assert_eq!(stream.congestion().unwrap(), "cubic");
        stream.set_congestion("reno").unwrap();
        assert_eq!(stream.congestion().unwrap(), "reno");
        assert!(
            stream.set_keepalive_time(Duration::from_millis(10)).is_err(),
            "less than a second"
        );
        stream.set_receive_buffer_size(50_000).unwrap();
        assert_eq!(stream.receive_buffer_size().unwrap(), 100_000);
    }

    #[test]
    fn options_set_before_connect_apply_to_the_handshake() {
        let stack = Stack::builder().build().expect("a stack");
        let mut server = TcpSocket::new_v4(&stack);
        server.bind(address(80));
        server.set_option(SocketOption::MaxSegment, 700).unwrap();
        let listener = server.listen(8).unwrap();
        let mut socket = TcpSocket::new_v4(&stack);
        socket.set_option(SocketOption::NoDelay, true).unwrap();
        let mut client = socket.connect(address(80)).unwrap();
        assert!(client.nodelay().unwrap());
        let (mut accepted, _) = listener.accept().unwrap();
        let mss = client.mss().unwrap();
        assert!(mss <= 700, "{mss}: the listener's SYN-ACK announced 700");
        client.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        accepted.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
    }

    #[test]
    fn a_read_timeout_ends_reads_and_accepts() {
        let stack = Stack::builder().build().expect("a stack");
        let (mut stream, _peer) = pair(&stack, 80);
        let limit = Duration::from_millis(20);
        stream.set_read_timeout(Some(limit)).unwrap();
        assert_eq!(stream.read_timeout().unwrap(), Some(limit));
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let listener = TcpListener::bind(&stack, address(81)).unwrap();
        listener.set_option(SocketOption::ReceiveTimeout, OptionValue::Time(Some(limit))).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn settings_change_while_the_stack_runs() {
        let stack = Stack::builder().sysctl("net.core.rmem_max", "10000").build().expect("a stack");
        let (stream, _peer) = pair(&stack, 80);
        stream.set_receive_buffer_size(1 << 20).unwrap();
        assert_eq!(stream.receive_buffer_size().unwrap(), 20_000);
        stack.set_sysctl("net.core.rmem_max", "30000").unwrap();
        assert_eq!(stack.sysctl("net.core.rmem_max").unwrap(), "30000");
        stream.set_receive_buffer_size(1 << 20).unwrap();
        assert_eq!(stream.receive_buffer_size().unwrap(), 60_000);
        assert!(stack.set_sysctl("net.core.rmem_max", "1").is_err());
        assert!(stack.set_sysctl("net.core.nonsense", "1").is_err());
        assert!(stack.sysctls().contains(&("net.core.rmem_max".into(), "30000".to_owned())));
    }

    #[test]
    fn a_listener_limits_the_connections_of_an_address_and_counts_closed_ones_off() {
        const MAX: u32 = 32;
        let stack = Stack::builder().cores(2).build().expect("a stack");
        let options = TcpListener::options().max_per_source(MAX);
        let listener = options.listen(&stack, address(80)).expect("a free port");
        let max = listener.option(SocketOption::MaxPerSource).unwrap();
        assert_eq!(max, OptionValue::Int(MAX.cast_signed()));
        let connect = |wait| TcpStream::connect_timeout(&stack, address(80), wait);
        let long = Duration::from_secs(20);
        // Connections begin and end on both cores, from four threads; each end waits for the
        // other's FIN.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for stream in listener.incoming().take(200) {
                    assert_eq!(stream.unwrap().read(&mut [0]).unwrap(), 0);
                }
            });
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let mut stream = connect(long).expect("a connection below the limit");
                        stream.shutdown(Shutdown::Write).unwrap();
                        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                    }
                });
            }
        });
        let held: Vec<_> =
            (0..MAX).map(|_| connect(long).expect("a connection below the limit")).collect();
        let refusals = || stack.counters().get("ListenSourceLimit");
        let before = refusals();
        let refused = connect(Duration::from_millis(50)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::TimedOut, "the SYN is not answered");
        assert_eq!(refusals(), before.map(|count| count + 1));
        listener.set_option(SocketOption::MaxPerSource, MAX + 1).unwrap();
        drop((connect(long).expect("a connection below the limit"), held));
    }

    #[test]
    fn a_reader_of_an_idle_connection_returns_with_an_error() {
        let stack = Stack::builder().build().expect("a stack");
        let (mut stream, mut peer) = pair(&stack, 80);
        stream.set_option(SocketOption::IdleTimeout, Duration::from_secs(1)).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        let error = peer.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}
