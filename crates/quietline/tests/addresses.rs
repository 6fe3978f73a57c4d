//! Addresses that are added to a running stack and deleted from it.

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, net::IpAddr};

    use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

    /// Two stacks joined by a wire, which probe added addresses.
    fn pair() -> (Stack, Stack) {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
        let stack = |device, address: &str| {
            let builder = Stack::builder().device(device);
            builder
                .address(address.parse().expect("an address"))
                .sysctl("net.quietline.acd_probes", "2")
                .sysctl("net.quietline.acd_interval_ms", "5")
                .build()
                .expect("a stack")
        };
        (stack(left, "10.0.0.1/24"), stack(right, "10.0.0.2/24"))
    }

    fn add(stack: &Stack, address: &str) -> Result<(), ErrorKind> {
        let name = stack.devices()[0].name.clone();
        let added = stack.add_address(&name, address.parse().expect("an address"));
        added.map_err(|error| error.kind())
    }

    #[test]
    fn an_added_address_is_used_and_a_deleted_one_is_not() {
        let (client, server) = pair();
        add(&client, "192.0.2.1/24").expect("a free address");
        add(&server, "192.0.2.2/24").expect("a free address");
        let listener = TcpListener::bind(&server, "192.0.2.2:80").expect("an own address");
        let stream = TcpStream::connect(&client, "192.0.2.2:80").expect("a route");
        let own: IpAddr = "192.0.2.1".parse().expect("an address");
        assert_eq!(listener.accept().expect("a connection").1.ip(), own);
        drop(stream);
        let name = client.devices()[0].name.clone();
        client.delete_address(&name, own).expect("an own address");
        assert_eq!(client.devices()[0].addresses.len(), 1);
        assert!(!client.routes().iter().any(|route| route.src == Some(own)));
        let error = TcpStream::connect(&client, "192.0.2.2:80").expect_err("no route");
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable);
        let error = client.delete_address(&name, own).expect_err("deleted already");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn an_address_in_use_is_refused_and_not_kept() {
        let (client, server) = pair();
        assert_eq!(add(&client, "10.0.0.2/24"), Err(ErrorKind::AddrInUse));
        assert_eq!(add(&client, "10.0.0.1/24"), Err(ErrorKind::AlreadyExists));
        assert_eq!(add(&client, "10.0.0.255/24"), Err(ErrorKind::InvalidInput));
        let unknown = client.add_address("nothing", "10.0.0.9/24".parse().expect("an address"));
        assert_eq!(unknown.expect_err("no such device").kind(), ErrorKind::NotFound);
        let down = server.devices()[0].name.clone();
        server.set_device_up(&down, false).expect("a device");
        assert_eq!(add(&server, "10.0.0.9/24"), Err(ErrorKind::NotFound));
        assert_eq!(client.devices()[0].addresses.len(), 1);
    }
}
