//! Neighbors of a stack, set, deleted and listed as with `ip neigh`.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::IpAddr,
    };

    use quietline::{
        Device as _, MacAddr, NudState, Stack, StackBuilder, TcpListener, TcpStream, Wire,
        WireConfig, sans_io::LinkType,
    };

    const UNUSED: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Returns builders of two stacks joined by a wire, 10.0.0.1 on `red0` and 10.0.0.2 on `red1`,
    /// with their link addresses.
    fn builders() -> [(StackBuilder, MacAddr); 2] {
        let config = WireConfig { name: "red".to_owned(), ..WireConfig::default() };
        let (left, right) = Wire::pair(&config).expect("a wire");
        [(left, "10.0.0.1/24"), (right, "10.0.0.2/24")].map(|(end, address)| {
            let LinkType::Ethernet { mac } = end.caps().link else { panic!("{end:?}") };
            (Stack::builder().device(end).address(address.parse().expect("a prefix")), mac)
        })
    }

    fn talk(client: &Stack, server: &Stack) {
        let listener = TcpListener::bind(server, "10.0.0.2:80").expect("free");
        let mut stream = TcpStream::connect(client, "10.0.0.2:80").expect("reached");
        let (mut accepted, _) = listener.accept().expect("established");
        stream.write_all(b"hello").expect("open");
        let mut read = [0; 5];
        accepted.read_exact(&mut read).expect("open");
        assert_eq!(&read, b"hello");
    }

    #[test]
    fn stacks_with_static_neighbors_send_no_arp() {
        let [(left, left_mac), (right, right_mac)] = builders();
        let client = left.neighbor(ip("10.0.0.2"), right_mac).build().expect("valid");
        let server = right.neighbor(ip("10.0.0.1"), left_mac).build().expect("valid");
        talk(&client, &server);
        for (stack, line) in [
            (&client, format!("10.0.0.2 dev red0 lladdr {right_mac} PERMANENT")),
            (&server, format!("10.0.0.1 dev red1 lladdr {left_mac} PERMANENT")),
        ] {
            let listed: Vec<_> = stack.neighbors().iter().map(ToString::to_string).collect();
            assert_eq!(listed, [line]);
            assert_eq!(stack.counters().get("ArpInPackets"), Some(0));
            assert_eq!(stack.counters().get("ArpOutPackets"), Some(0));
        }
    }

    #[test]
    fn neighbors_are_set_and_deleted_while_the_stack_runs() {
        let [(left, _), (right, right_mac)] = builders();
        let (client, server) = (left.build().expect("valid"), right.build().expect("valid"));
        client.set_neighbor("red0", ip("10.0.0.2"), UNUSED).expect("a neighbor");
        assert_eq!(client.neighbors()[0].state, NudState::Permanent);
        client.delete_neighbor("red0", ip("10.0.0.2")).expect("the entry exists");
        assert_eq!(client.neighbors(), []);
        talk(&client, &server);
        assert_eq!(
            client.neighbors()[0].mac,
            Some(right_mac),
            "the link address is learned by ARP"
        );
    }

    #[test]
    fn a_refused_neighbor_names_the_cause() {
        let [(left, _), (right, _)] = builders();
        let client = left.build().expect("valid");
        let refused = |name, address: &str| {
            let error = client.set_neighbor(name, ip(address), UNUSED).expect_err("refused");
            (error.kind(), error.to_string())
        };
        let missing = (ErrorKind::NotFound, "device green0: no such device".to_owned());
        assert_eq!(refused("green0", "10.0.0.2"), missing);
        assert_eq!(refused("lo", "10.0.0.2").0, ErrorKind::InvalidInput);
        let own =
            (ErrorKind::InvalidInput, "neighbor 10.0.0.1: an address of this host".to_owned());
        assert_eq!(refused("red0", "10.0.0.1"), own);
        assert_eq!(refused("red0", "10.0.0.255").0, ErrorKind::InvalidInput);
        let unknown = client.delete_neighbor("red0", ip("10.0.0.2")).expect_err("no entry");
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        client.remove_device("red0").expect("the device exists");
        assert_eq!(refused("red0", "10.0.0.2").0, ErrorKind::NotFound);

        let built = |builder: StackBuilder| builder.build().expect_err("refused").to_string();
        let early = Stack::builder().neighbor(ip("10.0.0.2"), UNUSED);
        assert_eq!(built(early), "neighbor 10.0.0.2: expected a neighbor after its device");
        let own = right.neighbor(ip("10.0.0.2"), UNUSED);
        assert_eq!(built(own), "neighbor 10.0.0.2: an address of this host");
    }
}
