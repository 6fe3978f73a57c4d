//! Calls on datagram sockets. The expected answers are those of Linux 6.18 over its loopback
//! device.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use stack::{
    Errno,
    socket::{
        datagram::SendControl,
        options::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, SocketOption},
    },
};

use super::net::{Net, answer, at};
use crate::{
    ControlMessage, Datagram, ReceivedDatagram, RecvDatagram, SendDatagram, Step,
    abi::{
        AF_INET, AF_INET6, IPPROTO_ICMP, IPPROTO_ICMPV6, MSG_ERRQUEUE, MSG_OOB, MSG_PEEK,
        MSG_TRUNC, POLLIN, POLLOUT, SHUT_RD, SHUT_WR, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM,
    },
};

/// Both families, with the loopback address of each.
const FAMILIES: [(i32, &str); 2] = [(AF_INET, "127.0.0.1:0"), (AF_INET6, "[::1]:0")];

fn open(domain: i32) -> Datagram {
    Datagram::open(domain, SOCK_DGRAM | SOCK_NONBLOCK, 0).expect("a socket")
}

fn done<T>(result: Result<T, Errno>) -> String {
    result.map_or_else(|errno| errno.name().to_owned(), |_| String::from("0"))
}

impl Net {
    fn send_datagram(&mut self, socket: &Datagram, bytes: &[u8], to: Option<SocketAddr>) -> String {
        self.send_datagram_with(socket, bytes, to, 0)
    }

    fn send_datagram_with(
        &mut self,
        socket: &Datagram,
        bytes: &[u8],
        to: Option<SocketAddr>,
        flags: i32,
    ) -> String {
        let call = SendDatagram::new(flags, to, SendControl::default());
        let step = call.step(socket, &self.host, &mut self.cx, &[IoSlice::new(bytes)]);
        self.poll();
        answer(step, |bytes| i64::try_from(bytes).expect("small"))
    }

    fn recv_datagram(
        &mut self,
        socket: &Datagram,
        room: usize,
        flags: i32,
    ) -> Result<(Vec<u8>, ReceivedDatagram), Errno> {
        let mut buf = vec![0; room];
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let step = RecvDatagram::new(flags).step(socket, &self.host, &mut self.cx, bufs)?;
        let Step::Ready(received) = step else { panic!("the socket is nonblocking") };
        buf.truncate(received.bytes);
        Ok((buf, received))
    }

    fn name(&mut self, socket: &Datagram) -> SocketAddr {
        socket.local_name(&self.host, &mut self.cx).expect("open")
    }

    fn set_number(
        &mut self,
        socket: &Datagram,
        number: (i32, i32),
        value: i32,
    ) -> Result<(), Errno> {
        socket.setsockopt(&self.host, &mut self.cx, number, &value.to_ne_bytes())
    }
}

#[test]
fn sockets_of_udp_and_of_icmp_are_opened_by_linuxs_numbers() {
    let open = |domain, kind, protocol| done(Datagram::open(domain, kind, protocol));
    assert_eq!(open(AF_INET, SOCK_DGRAM, 0), "0");
    assert_eq!(open(AF_INET6, SOCK_DGRAM, 17), "0");
    assert_eq!(open(AF_INET, SOCK_DGRAM, IPPROTO_ICMP), "0");
    assert_eq!(open(AF_INET6, SOCK_DGRAM, IPPROTO_ICMPV6), "0");
    assert_eq!(open(AF_INET6, SOCK_DGRAM, IPPROTO_ICMP), "EPROTONOSUPPORT");
    assert_eq!(open(AF_INET, SOCK_DGRAM, 6), "EPROTONOSUPPORT");
    assert_eq!(open(AF_INET, SOCK_STREAM, 0), "ESOCKTNOSUPPORT");
    assert_eq!(open(1, SOCK_DGRAM, 0), "EAFNOSUPPORT");
    assert_eq!(open(AF_INET, SOCK_DGRAM | 0x10, 0), "EINVAL");
}

#[test]
fn every_call_before_and_after_bind_answers_as_in_linux() {
    for (domain, local) in FAMILIES {
        let mut net = Net::new();
        let socket = open(domain);
        assert_eq!(net.name(&socket).port(), 0);
        assert_eq!(done(socket.peer_name(&net.host, &mut net.cx)), "ENOTCONN");
        assert_eq!(net.recv_datagram(&socket, 10, 0).unwrap_err(), Errno::EAGAIN);
        assert_eq!(done(socket.shutdown(SHUT_RD)), "ENOTCONN");
        assert_eq!(socket.poll_events() & (POLLIN | POLLOUT), POLLOUT);
        assert_eq!(done(socket.bind(&net.host, &mut net.cx, at(local))), "0");
        assert_eq!(done(socket.bind(&net.host, &mut net.cx, at(local))), "EINVAL");
        let own = net.name(&socket);
        assert_eq!(net.send_datagram(&socket, b"x", None), "EDESTADDRREQ");
        assert_eq!(net.send_datagram(&socket, b"x", Some(at(local))), "EINVAL", "port 0");
        assert_eq!(net.send_datagram(&socket, b"hello", Some(own)), "5");
        assert_eq!(socket.poll_events() & (POLLIN | POLLOUT), POLLIN | POLLOUT);
        let (bytes, received) = net.recv_datagram(&socket, 2, MSG_PEEK).expect("a datagram");
        assert_eq!(
            (&bytes[..], received.flags, received.source),
            (&b"he"[..], MSG_TRUNC, Some(own))
        );
        let peeked = net.recv_datagram(&socket, 2, MSG_PEEK | MSG_TRUNC).expect("a datagram").1;
        assert_eq!(peeked.bytes, 5);
        assert_eq!(net.recv_datagram(&socket, 2, 0).expect("a datagram").0, b"he");
        assert_eq!(
            net.recv_datagram(&socket, 10, 0).unwrap_err(),
            Errno::EAGAIN,
            "the rest is lost"
        );
        assert_eq!(net.recv_datagram(&socket, 10, MSG_OOB).unwrap_err(), Errno::EOPNOTSUPP);
        let urgent = net.send_datagram_with(&socket, b"x", Some(own), MSG_OOB);
        assert_eq!(urgent, if domain == AF_INET { "EOPNOTSUPP" } else { "1" });
        while net.recv_datagram(&socket, 10, 0).is_ok() {}
        assert_eq!(done(socket.connect(&net.host, &mut net.cx, own)), "0");
        assert_eq!(socket.peer_name(&net.host, &mut net.cx), Ok(own));
        assert_eq!(net.send_datagram(&socket, b"y", None), "1");
        assert_eq!(net.recv_datagram(&socket, 10, 0).expect("a datagram").0, b"y");
        assert_eq!(done(socket.shutdown(SHUT_RD)), "0");
        assert_eq!(net.recv_datagram(&socket, 10, 0).unwrap_err(), Errno::EAGAIN);
        assert_eq!(done(socket.shutdown(SHUT_WR)), "0");
        assert_eq!(net.send_datagram(&socket, b"z", None), "EPIPE");
        assert_eq!(net.recv_datagram(&socket, 10, MSG_ERRQUEUE).unwrap_err(), Errno::EAGAIN);
        assert_eq!(done(socket.disconnect(&net.host, &mut net.cx)), "0");
        assert_eq!(done(socket.peer_name(&net.host, &mut net.cx)), "ENOTCONN");
        assert_eq!(done(socket.close(&net.host, &mut net.cx)), "0");
        assert_eq!(done(socket.close(&net.host, &mut net.cx)), "EBADF");
        assert_eq!(net.send_datagram(&socket, b"z", Some(own)), "EBADF");
    }
}

#[test]
fn a_closed_port_is_the_error_of_the_next_call() {
    for (domain, closed) in [(AF_INET, "127.0.0.1:9"), (AF_INET6, "[::1]:9")] {
        let mut net = Net::new();
        let socket = open(domain);
        assert_eq!(done(socket.connect(&net.host, &mut net.cx, at(closed))), "0");
        assert_eq!(net.send_datagram(&socket, b"q", None), "1");
        assert_eq!(net.send_datagram(&socket, b"q", None), "ECONNREFUSED");
        assert_eq!(net.recv_datagram(&socket, 1, 0).unwrap_err(), Errno::EAGAIN);
        let option = if domain == AF_INET { (IPPROTO_IP, 11) } else { (IPPROTO_IPV6, 25) };
        net.set_number(&socket, option, 1).expect("an option");
        assert_eq!(net.send_datagram(&socket, b"q", None), "1");
        let report = net.recv_datagram(&socket, 10, MSG_ERRQUEUE).expect("a report").1;
        assert_eq!((report.flags, report.source), (MSG_ERRQUEUE, Some(at(closed))));
        let [ControlMessage::Error(error)] = &report.control[..] else { panic!("{report:?}") };
        assert_eq!(error.errno, Errno::ECONNREFUSED);
    }
}

#[test]
fn control_messages_are_those_of_the_family_of_the_datagram() {
    let mut net = Net::new();
    let socket = open(AF_INET6);
    for number in [8, 12, 13] {
        net.set_number(&socket, (IPPROTO_IP, number), 1).expect("an option");
    }
    let get = |net: &mut Net, socket: &Datagram, number: i32| {
        let mut room = [0; 4];
        let len = socket.getsockopt(&net.host, &mut net.cx, (IPPROTO_IPV6, number), &mut room)?;
        Ok((len, i32::from_ne_bytes(room)))
    };
    for number in [49, 51, 66] {
        assert_eq!(get(&mut net, &socket, number), Ok((4, 0)));
        net.set_number(&socket, (IPPROTO_IPV6, number), 1).expect("an option");
        assert_eq!(get(&mut net, &socket, number), Ok((4, 1)));
        let four = open(AF_INET);
        let refused = net.set_number(&four, (IPPROTO_IPV6, number), 1);
        assert_eq!(refused, Err(Errno::ENOPROTOOPT));
        assert_eq!(get(&mut net, &four, number), Err(Errno::EOPNOTSUPP));
    }
    socket.bind(&net.host, &mut net.cx, at("[::]:7")).expect("a free port");
    net.send_datagram(&socket, b"six", Some(at("[::1]:7")));
    let received = net.recv_datagram(&socket, 10, 0).expect("a datagram").1;
    let expected = [
        ControlMessage::PacketInfoV6(0, "::1".parse().expect("an address")),
        ControlMessage::HopLimit(64),
        ControlMessage::TrafficClass(0),
    ];
    assert_eq!(received.control, expected);
    net.send_datagram(&socket, b"four", Some(at("[::ffff:127.0.0.1]:7")));
    let received = net.recv_datagram(&socket, 10, 0).expect("a datagram").1;
    let expected = [
        ControlMessage::PacketInfoV6(0, Ipv4Addr::LOCALHOST.to_ipv6_mapped()),
        ControlMessage::PacketInfo(0, Ipv4Addr::LOCALHOST),
        ControlMessage::Ttl(64),
        ControlMessage::TypeOfService(0),
    ];
    assert_eq!(received.control, expected);
    assert_eq!(received.source, Some(at("[::ffff:127.0.0.1]:7")));
}

#[test]
fn options_and_memberships_may_come_before_bind() {
    let mut net = Net::new();
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let interface = Ipv4Addr::new(10, 0, 0, 1);
    let request = [group.octets(), interface.octets()].concat();
    let reuse = (SOL_SOCKET, SocketOption::ReuseAddress.number());
    let ttl = (IPPROTO_IP, SocketOption::MulticastTtl.number());
    let sockets: Vec<_> = (0..2)
        .map(|_| {
            let socket = open(AF_INET);
            net.set_number(&socket, ttl, 7).expect("an option");
            let joined = socket.setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, 35), &request);
            assert_eq!(joined, Ok(()));
            let again = socket.setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, 35), &request);
            assert_eq!(again, Err(Errno::EADDRINUSE));
            net.set_number(&socket, reuse, 1).expect("an option");
            assert_eq!(net.name(&socket).port(), 0, "it is not bound");
            socket.bind(&net.host, &mut net.cx, at("0.0.0.0:7")).expect("a shared port");
            socket
        })
        .collect();
    let mut room = [0; 4];
    let socket = &sockets[0];
    assert_eq!(socket.getsockopt(&net.host, &mut net.cx, ttl, &mut room), Ok(4));
    assert_eq!(i32::from_ne_bytes(room), 7);
    assert_eq!(net.send_datagram(socket, b"all", Some(SocketAddr::new(group.into(), 7))), "3");
    for socket in &sockets {
        let (bytes, received) = net.recv_datagram(socket, 10, 0).expect("a copy");
        assert_eq!(bytes, b"all");
        assert_eq!(received.source.map(|source| source.ip()), Some(IpAddr::V4(interface)));
    }
    let left = sockets[0].setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, 36), &request);
    assert_eq!(left, Ok(()));
    let again = sockets[0].setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, 36), &request);
    assert_eq!(again, Err(Errno::EADDRNOTAVAIL));
}

/// `struct group_source_req` for any device.
fn group_source(group: &str, source: &str) -> Vec<u8> {
    let mut request = vec![0; 8 + 2 * 128];
    for (at, ip) in [(8, group), (8 + 128, source)] {
        let (family, offset, octets) = match ip.parse().expect("an address") {
            IpAddr::V4(ip) => (AF_INET, 4, ip.octets().to_vec()),
            IpAddr::V6(ip) => (AF_INET6, 8, ip.octets().to_vec()),
        };
        let family = u16::try_from(family).expect("a small number");
        request[at..at + 2].copy_from_slice(&family.to_ne_bytes());
        request[at + offset..at + offset + octets.len()].copy_from_slice(&octets);
    }
    request
}

#[test]
fn source_filters_are_set_by_the_options_of_both_levels() {
    let mut net = Net::new();
    let socket = open(AF_INET);
    // IP_ADD_SOURCE_MEMBERSHIP with `struct ip_mreq_source`: group, interface, source.
    let request = |source: [u8; 4]| [[239, 1, 2, 3], [10, 0, 0, 1], source].concat();
    let mut set = |number, value: &[u8]| {
        socket.setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, number), value)
    };
    assert_eq!(set(39, &request([10, 0, 0, 1])), Ok(()));
    assert_eq!(set(39, &request([10, 0, 0, 2])), Ok(()));
    assert_eq!(set(40, &request([10, 0, 0, 2])), Ok(()));
    assert_eq!(set(40, &request([10, 0, 0, 2])), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(set(38, &request([10, 0, 0, 2])), Err(Errno::EINVAL), "the filter includes");
    assert_eq!(set(39, &request([10, 0, 0, 2])[..8]), Err(Errno::EINVAL), "too short");
    // MCAST_JOIN_SOURCE_GROUP and MCAST_LEAVE_SOURCE_GROUP.
    assert_eq!(set(46, &group_source("239.9.9.9", "10.0.0.1")), Ok(()));
    assert_eq!(set(46, &group_source("ff05::9", "fd00::1")), Err(Errno::EADDRNOTAVAIL));
    assert_eq!(set(47, &group_source("239.9.9.9", "10.0.0.1")), Ok(()));
    assert_eq!(set(47, &group_source("239.9.9.9", "10.0.0.1")), Err(Errno::EINVAL));
    // The filter outlives bind(2).
    socket.bind(&net.host, &mut net.cx, at("0.0.0.0:7")).expect("a port");
    let group = Some(at("239.1.2.3:7"));
    assert_eq!(net.send_datagram(&socket, b"own", group), "3");
    let (bytes, _) = net.recv_datagram(&socket, 10, 0).expect("the host is the source");
    assert_eq!(bytes, b"own");
    let mut set = |number, value: &[u8]| {
        socket.setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, number), value)
    };
    assert_eq!(set(40, &request([10, 0, 0, 1])), Ok(()), "the last source");
    // IP_ADD_MEMBERSHIP, IP_BLOCK_SOURCE, IP_UNBLOCK_SOURCE.
    let join = [[239, 1, 2, 3], [10, 0, 0, 1]].concat();
    assert_eq!(set(35, &join), Ok(()));
    assert_eq!(set(38, &request([10, 0, 0, 1])), Ok(()));
    assert_eq!(net.send_datagram(&socket, b"own", group), "3");
    assert!(net.recv_datagram(&socket, 10, 0).is_err(), "the source is blocked");
    let unblock = request([10, 0, 0, 1]);
    let set = socket.setsockopt(&net.host, &mut net.cx, (IPPROTO_IP, 37), &unblock);
    assert_eq!(set, Ok(()));
    assert_eq!(net.send_datagram(&socket, b"own", group), "3");
    assert!(net.recv_datagram(&socket, 10, 0).is_ok());
}

#[test]
fn a_ping_socket_receives_the_reply_to_its_request() {
    for (domain, protocol, to, kinds) in [
        (AF_INET, IPPROTO_ICMP, "127.0.0.1:0", (8, 0)),
        (AF_INET6, IPPROTO_ICMPV6, "[::1]:0", (128, 129)),
    ] {
        let mut net = Net::new();
        let socket =
            Datagram::open(domain, SOCK_DGRAM | SOCK_NONBLOCK, protocol).expect("a socket");
        let request = [kinds.0, 0, 0, 0, 0, 0, 0, 1, b'p'];
        assert_eq!(net.send_datagram(&socket, &request, Some(at(to))), "9");
        let (bytes, received) = net.recv_datagram(&socket, 100, 0).expect("a reply");
        assert_eq!(
            (bytes[0], &bytes[6..], received.source),
            (kinds.1, &[0, 1, b'p'][..], Some(at(to)))
        );
        assert_eq!(bytes[4..6], net.name(&socket).port().to_be_bytes());
        assert_eq!(net.send_datagram(&socket, b"nonsense", Some(at(to))), "EINVAL");
    }
}
