//! IPv6 with two stacks joined by a wire: the socket API over both families.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Ipv6Addr, SocketAddr, SocketAddrV6},
        thread,
    };

    use quietline::{
        ConnectOptions, ListenOptions, Stack, TcpListener, TcpStream, Wire, WireConfig,
    };

    const SERVER: &str = "fd00::2";

    /// Two stacks with addresses of both families, and no probes that would delay their start.
    fn pair() -> (Stack, Stack) {
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        let build = |device, last: u8| {
            Stack::builder()
                .device(device)
                .address(format!("10.0.0.{last}/24").parse().unwrap())
                .address(format!("fd00::{last}/64").parse().unwrap())
                .address(format!("fe80::{last}/64").parse().unwrap())
                .sysctl("net.ipv6.conf.all.dad_transmits", "0")
                .build()
                .unwrap()
        };
        (build(left, 1), build(right, 2))
    }

    fn echo(client: &mut TcpStream, server: &mut TcpStream, bytes: usize) {
        let sent: Vec<u8> = (0..=255).cycle().take(bytes).collect();
        thread::scope(|scope| {
            scope.spawn(|| client.write_all(&sent).unwrap());
            let mut got = vec![0; bytes];
            server.read_exact(&mut got).unwrap();
            assert_eq!(got, sent);
        });
    }

    fn accept_from(
        stack: &Stack,
        listener: &TcpListener,
        to: SocketAddr,
    ) -> (TcpStream, TcpStream) {
        let stream = TcpStream::connect(stack, to).unwrap();
        let (accepted, peer) = listener.accept().unwrap();
        assert_eq!(peer, accepted.peer_addr().unwrap());
        (stream, accepted)
    }

    #[test]
    fn a_megabyte_crosses_the_wire_over_ipv6() {
        let (client, server) = pair();
        let listener = TcpListener::bind(&server, (SERVER, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let (mut stream, mut accepted) = accept_from(&client, &listener, to);
        assert_eq!(accepted.local_addr().unwrap(), to);
        assert_eq!(stream.local_addr().unwrap(), accepted.peer_addr().unwrap());
        assert!(stream.local_addr().unwrap().is_ipv6());
        echo(&mut stream, &mut accepted, 1 << 20);
        echo(&mut accepted, &mut stream, 1 << 20);
    }

    #[test]
    fn loopback_is_reached_by_its_ipv6_address() {
        let stack = Stack::builder().build().unwrap();
        let listener = TcpListener::bind(&stack, "[::1]:0").unwrap();
        let to = listener.local_addr().unwrap();
        let (mut stream, mut accepted) = accept_from(&stack, &listener, to);
        echo(&mut stream, &mut accepted, 100_000);
        // The unspecified address stands for this host.
        let to = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), to.port());
        let (stream, _accepted) = accept_from(&stack, &listener, to);
        assert_eq!(stream.peer_addr().unwrap().ip(), Ipv6Addr::LOCALHOST);
    }

    #[test]
    fn a_listener_on_any_address_accepts_both_families() {
        let (client, server) = pair();
        let listener = TcpListener::bind(&server, "[::]:80").unwrap();
        let (stream, accepted) = accept_from(&client, &listener, "10.0.0.2:80".parse().unwrap());
        let port = stream.local_addr().unwrap().port();
        let mapped = format!("[::ffff:10.0.0.1]:{port}").parse().unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), mapped);
        let (_stream, accepted) = accept_from(&client, &listener, "[fd00::2]:80".parse().unwrap());
        assert_eq!(accepted.peer_addr().unwrap().ip(), "fd00::1".parse::<Ipv6Addr>().unwrap());
        // IPv4 connections belong to the listener, too: nothing else may listen there.
        let taken = TcpListener::bind(&server, "0.0.0.0:80").expect_err("the port is owned");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_listener_for_ipv6_only_shares_its_port_with_ipv4() {
        let (client, server) = pair();
        let only = ListenOptions::default().v6_only(true);
        let v6 = TcpListener::listen_with(&server, "[::]:80", &only).unwrap();
        let refused = TcpStream::connect(&client, "10.0.0.2:80").expect_err("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let v4 = TcpListener::bind(&server, "0.0.0.0:80").unwrap();
        let _ = accept_from(&client, &v4, "10.0.0.2:80".parse().unwrap());
        let _ = accept_from(&client, &v6, "[fd00::2]:80".parse().unwrap());
    }

    #[test]
    fn a_mapped_address_reaches_an_ipv4_listener() {
        let (client, server) = pair();
        let listener = TcpListener::bind(&server, "10.0.0.2:80").unwrap();
        let to: SocketAddr = "[::ffff:10.0.0.2]:80".parse().unwrap();
        let (mut stream, mut accepted) = accept_from(&client, &listener, to);
        assert_eq!(stream.peer_addr().unwrap(), to);
        assert!(accepted.peer_addr().unwrap().is_ipv4());
        echo(&mut stream, &mut accepted, 10_000);
        let only = ConnectOptions::default().v6_only(true);
        let refused = TcpStream::connect_with(&client, to, &only).expect_err("IPv6 only");
        assert_eq!(refused.kind(), ErrorKind::NetworkUnreachable);
    }

    #[test]
    fn a_link_local_address_needs_its_device() {
        let (client, server) = pair();
        let listener = TcpListener::bind(&server, "[::]:80").unwrap();
        let ip: Ipv6Addr = "fe80::2".parse().unwrap();
        let end = |scope| SocketAddr::V6(SocketAddrV6::new(ip, 80, 0, scope));
        let refused = TcpStream::connect(&client, end(0)).expect_err("no scope");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let (mut stream, mut accepted) = accept_from(&client, &listener, end(1));
        assert_eq!(stream.peer_addr().unwrap(), end(1));
        let SocketAddr::V6(local) = stream.local_addr().unwrap() else { panic!("IPv6") };
        assert_eq!((*local.ip(), local.scope_id()), ("fe80::1".parse().unwrap(), 1));
        echo(&mut stream, &mut accepted, 10_000);
    }

    #[test]
    fn a_closed_port_and_a_missing_route_are_reported() {
        let (client, _server) = pair();
        let refused = TcpStream::connect(&client, (SERVER, 81)).expect_err("no listener");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let lost = TcpStream::connect(&client, "[2001:db8::1]:80").expect_err("no route");
        assert_eq!(lost.kind(), ErrorKind::NetworkUnreachable);
        let foreign = TcpListener::bind(&client, "[fd00::9]:80").expect_err("not our address");
        assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable);
    }
}
