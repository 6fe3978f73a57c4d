//! Routes of a running stack, changed and listed as with `ip route`.

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use quietline::{Route, Stack, TcpListener, TcpStream, Wire, WireConfig};

    fn route(text: &str) -> Route {
        text.parse().expect("a route")
    }

    /// Returns two stacks with two wires between them; the second one also has 192.0.2.9.
    fn stacks() -> (Stack, Stack) {
        let wire = |name: &str| {
            Wire::pair(&WireConfig { name: name.to_owned(), ..WireConfig::default() })
                .expect("a wire")
        };
        let ((left0, right0), (left1, right1)) = (wire("red"), wire("blue"));
        let address = |text: &str| text.parse().expect("an address");
        let client = Stack::builder()
            .device(left0)
            .address(address("10.0.0.1/24"))
            .device(left1)
            .address(address("10.1.0.1/24"))
            .add_route(route("192.0.2.0/24 via 10.0.0.2 dev red0 src 10.0.0.1"))
            .build()
            .expect("valid");
        let server = Stack::builder()
            .device(right0)
            .address(address("10.0.0.2/24"))
            .address(address("192.0.2.9/32"))
            .device(right1)
            .address(address("10.1.0.2/24"))
            .build()
            .expect("valid");
        (client, server)
    }

    #[test]
    fn a_stream_continues_after_its_first_route_is_replaced() {
        let (client, server) = stacks();
        let listener = TcpListener::bind(&server, "192.0.2.9:80").expect("free");
        let at = listener.local_addr().expect("bound");
        let mut stream = TcpStream::connect(&client, at).expect("a route");
        let (mut accepted, _) = listener.accept().expect("established");
        let mut echo = |text: &[u8]| {
            stream.write_all(text).expect("open");
            let mut read = vec![0; text.len()];
            accepted.read_exact(&mut read).expect("open");
            assert_eq!(read, text);
        };
        echo(b"by red");
        client.replace_route(&route("192.0.2.0/24 via 10.1.0.2")).expect("a neighbor");
        echo(b"by blue");
        client.add_route(&route("192.0.2.9 via 10.0.0.2 mtu 1000")).expect("a longer prefix");
        echo(&[9; 10_000]);
        client.delete_route(&route("192.0.2.0/24")).expect("the route exists");
        echo(b"by red still");
    }

    #[test]
    fn routes_are_listed_with_the_names_of_devices() {
        let (client, _server) = stacks();
        client.add_route(&route("blackhole 198.51.100.0/24 metric 5")).expect("valid");
        let two = "203.0.113.0/24 mtu lock 1400 rtt 30ms congctl reno \
            nexthop via 10.0.0.2 dev red0 weight 3 nexthop via 10.1.0.2 dev blue0 weight 1";
        client.add_route(&route(two)).expect("valid");
        let listed: Vec<_> = client.routes().iter().map(ToString::to_string).collect();
        for line in [
            "local 127.0.0.0/8 dev lo src 127.0.0.1",
            "10.1.0.0/24 dev blue0 src 10.1.0.1",
            "192.0.2.0/24 via 10.0.0.2 dev red0 src 10.0.0.1",
            "blackhole 198.51.100.0/24 metric 5",
            two,
        ] {
            assert!(listed.iter().any(|listed| listed == line), "{line}: {listed:#?}");
        }
    }

    #[test]
    fn a_refused_route_names_the_cause() {
        let (client, _server) = stacks();
        let refused = |text: &str| client.add_route(&route(text)).unwrap_err().to_string();
        assert_eq!(refused("10.9.0.0/16 dev green0"), "route dev green0: no such device");
        assert!(refused("192.0.2.0/24 via 10.1.0.2").contains("there is a route with this prefix"));
        assert!(refused("10.9.0.0/16 via 172.16.0.1").contains("a neighbor"));
        for text in [
            "",
            "via 10.0.0.1",
            "default via",
            "default via x",
            "10.0.0.0/8 metric -1",
            "default nexthop mtu 1000",
            "default congctl fast",
            "default window x",
        ] {
            assert!(text.parse::<Route>().is_err(), "{text}");
        }
    }
}
