//! Source filters of multicast groups, over both IP versions: filtering of datagrams, and reports
//! of IGMPv3 and MLDv2 with their sources.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Rig, RigConfig,
    frame::{self, Ipv4, Seen},
    rig::{PEER_IP, PEER_LINK},
};
use stack::{
    Errno,
    base::ids::DeviceIndex,
    header::ip::protocol,
    socket::{
        DatagramSocket,
        datagram::SourceChange::{self, Block, Join, Leave, Unblock},
        options::{SocketOption, SocketSettings},
    },
};

use crate::{
    udp::{close, recv, set},
    udp6,
};

const DEVICE: Option<DeviceIndex> = Some(DeviceIndex(1));

/// Types of group records (RFC 3376 §4.2.12).
const IS_INCLUDE: u8 = 1;
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;
const ALLOW: u8 = 5;
const BLOCK: u8 = 6;

/// A host that filters by source, and a peer with any number of addresses.
struct Bench {
    rig: Rig,
    v6: bool,
}

/// Runs `test` over both IP versions.
fn each(test: impl Fn(&mut Bench)) {
    for v6 in [false, true] {
        let rig = if v6 { udp6::rig() } else { Rig::new(RigConfig::default()) };
        let mut bench = Bench { rig, v6 };
        test(&mut bench);
        bench.rig.finish();
    }
}

impl Bench {
    fn group(&self) -> IpAddr {
        match self.v6 {
            false => Ipv4Addr::new(239, 129, 2, 3).into(),
            true => Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0x81, 2).into(),
        }
    }

    /// Returns the address of the sender with this number.
    fn source(&self, number: u8) -> IpAddr {
        match self.v6 {
            false => Ipv4Addr::new(10, 0, 0, 100 + number).into(),
            true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 1, u16::from(number)).into(),
        }
    }

    fn open(&mut self) -> Arc<DatagramSocket> {
        let host = self.rig.host();
        let any: IpAddr =
            if self.v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let settings = SocketSettings::default().reuse_address(true);
        let local = SocketAddr::new(any, 53);
        DatagramSocket::bind(&host, &mut self.rig.world.cx, local, &settings).expect("shared")
    }

    fn change(
        &mut self,
        socket: &Arc<DatagramSocket>,
        change: SourceChange,
        number: u8,
    ) -> Result<(), Errno> {
        let (host, addresses) = (self.rig.host(), (self.group(), self.source(number)));
        socket.change_source(&host, &mut self.rig.world.cx, change, addresses, DEVICE)
    }

    fn join(&mut self, socket: &Arc<DatagramSocket>) -> Result<(), Errno> {
        let (host, group) = (self.rig.host(), self.group());
        socket.join(&host, &mut self.rig.world.cx, group, DEVICE)
    }

    /// Delivers a datagram of every sender from 1 to 4 to the group. Returns the senders whose
    /// datagrams `socket` has received.
    fn heard(&mut self, socket: &DatagramSocket) -> Vec<u8> {
        for number in 1..=4 {
            match (self.source(number), self.group()) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    let datagram = frame::udp(src, dst, (1000, 53), &[number]);
                    self.rig.give(&Ipv4::new(src, dst, protocol::UDP).with(&datagram));
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    let datagram = frame::udp(src, dst, (1000, 53), &[number]);
                    self.rig.give(&frame::ipv6(src, dst, protocol::UDP, &datagram));
                }
                other => panic!("{other:?}"),
            }
        }
        std::iter::from_fn(|| Some(recv(&mut self.rig, socket).ok()?.0[0])).collect()
    }

    /// Lets a report be repeated, and returns the records of all reports: type, and numbers of the
    /// sources.
    fn reports(&mut self) -> Vec<(u8, Vec<u8>)> {
        self.rig.pass(Duration::from_secs(2));
        let address = if self.v6 { 16 } else { 4 };
        let mut records = Vec::new();
        for seen in self.rig.take_ip() {
            let (Seen::Igmp(_, bytes) | Seen::Mld(_, bytes)) = seen else { panic!("{seen:?}") };
            assert_eq!(bytes[0], if self.v6 { 143 } else { 0x22 });
            let mut rest = &bytes[8..];
            for _ in 0..u16::from_be_bytes([bytes[6], bytes[7]]) {
                let count = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
                let (record, later) = rest.split_at(4 + address * (1 + count));
                let (group, sources) = record[4..].split_at(address);
                let is_ours = match self.group() {
                    IpAddr::V4(ip) => group == ip.octets(),
                    IpAddr::V6(ip) => group == ip.octets(),
                };
                // IPv6 also has the groups of the host's addresses.
                if is_ours {
                    let base = if self.v6 { 0 } else { 100 };
                    let numbers = sources.chunks(address).map(|ip| ip[address - 1] - base);
                    records.push((record[0], numbers.collect()));
                }
                rest = later;
            }
            assert!(rest.is_empty(), "bytes behind the last record");
        }
        records
    }

    /// Returns the records of a change, which is reported twice.
    fn change_reports(&mut self) -> Vec<(u8, Vec<u8>)> {
        let reports = self.reports();
        let (first, second) = reports.split_at(reports.len() / 2);
        assert_eq!(first, second, "a change is reported twice");
        first.to_vec()
    }

    /// Delivers a query about the group and these sources; the host answers within two seconds.
    fn query(&mut self, sources: &[u8]) {
        let sources: Vec<_> = sources.iter().map(|number| self.source(*number)).collect();
        let count = u16::try_from(sources.len()).expect("few").to_be_bytes();
        match self.group() {
            IpAddr::V4(group) => {
                let mut message = vec![0x11, 20, 0, 0];
                message.extend(group.octets());
                message.extend([0, 0]);
                message.extend(count);
                for source in sources {
                    let IpAddr::V4(source) = source else { panic!("{source}") };
                    message.extend(source.octets());
                }
                let sum = frame::checksum(&[&message]);
                message[2..4].copy_from_slice(&sum.to_be_bytes());
                let carrier = Ipv4 { ttl: 1, ..Ipv4::new(PEER_IP, group, protocol::IGMP) };
                self.rig.give(&carrier.with(&message));
            }
            IpAddr::V6(group) => {
                let mut message = vec![130, 0, 0, 0];
                message.extend(2000_u16.to_be_bytes());
                message.extend([0, 0]);
                message.extend(group.octets());
                message.extend([0, 0]);
                message.extend(count);
                for source in sources {
                    let IpAddr::V6(source) = source else { panic!("{source}") };
                    message.extend(source.octets());
                }
                let message = frame::with_icmpv6_checksum(PEER_LINK, group, message);
                let alert = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
                let payload = [&alert[..], &message].concat();
                let mut packet = frame::ipv6(PEER_LINK, group, protocol::HOP_BY_HOP, &payload);
                packet[7] = 1;
                self.rig.give(&packet);
            }
        }
    }
}

#[test]
fn a_source_specific_membership_receives_its_sources_and_reports_them() {
    each(|bench| {
        let socket = bench.open();
        assert_eq!(bench.change(&socket, Leave, 1), Err(Errno::EINVAL), "no member");
        bench.change(&socket, Join, 1).expect("a device");
        assert_eq!(bench.change_reports(), [(ALLOW, vec![1])]);
        assert_eq!(bench.heard(&socket), [1]);
        bench.change(&socket, Join, 3).expect("a second source");
        assert_eq!(bench.change_reports(), [(ALLOW, vec![3])]);
        assert_eq!(bench.heard(&socket), [1, 3]);
        assert_eq!(bench.change(&socket, Join, 3), Err(Errno::EADDRNOTAVAIL));
        assert_eq!(bench.change(&socket, Block, 2), Err(Errno::EINVAL), "mode INCLUDE");
        assert_eq!(bench.join(&socket), Err(Errno::EADDRINUSE));
        bench.change(&socket, Leave, 1).expect("a source");
        assert_eq!(bench.change_reports(), [(BLOCK, vec![1])]);
        assert_eq!(bench.change(&socket, Leave, 1), Err(Errno::EADDRNOTAVAIL));
        bench.change(&socket, Leave, 3).expect("the last source");
        assert_eq!(bench.change_reports(), [(BLOCK, vec![3])]);
        assert_eq!(bench.heard(&socket), [0; 0]);
        assert_eq!(bench.change(&socket, Leave, 3), Err(Errno::EINVAL), "no member");
        close(&mut bench.rig, socket);
    });
}

#[test]
fn blocked_sources_are_refused_until_they_are_unblocked() {
    each(|bench| {
        let socket = bench.open();
        assert_eq!(bench.change(&socket, Block, 2), Err(Errno::EINVAL), "no member");
        bench.join(&socket).expect("a device");
        assert_eq!(bench.change_reports(), [(TO_EXCLUDE, vec![])]);
        bench.change(&socket, Block, 2).expect("a member");
        bench.change(&socket, Block, 3).expect("a member");
        let reports = bench.reports();
        assert_eq!(
            reports,
            [(BLOCK, vec![2]), (BLOCK, vec![2, 3]), (BLOCK, vec![2, 3])],
            "changes in a row are repeated together"
        );
        assert_eq!(bench.heard(&socket), [1, 4]);
        bench.change(&socket, Unblock, 2).expect("a blocked source");
        assert_eq!(bench.change_reports(), [(ALLOW, vec![2])]);
        assert_eq!(bench.heard(&socket), [1, 2, 4]);
        assert_eq!(bench.change(&socket, Unblock, 2), Err(Errno::EADDRNOTAVAIL));
        // Closing the socket ends the membership with its filter.
        close(&mut bench.rig, socket);
        assert_eq!(bench.change_reports(), [(TO_INCLUDE, vec![])]);
    });
}

#[test]
fn each_socket_has_its_filter_and_the_host_reports_what_one_of_them_receives() {
    each(|bench| {
        let (some, all, other) = (bench.open(), bench.open(), bench.open());
        bench.change(&some, Join, 1).expect("a device");
        assert_eq!(bench.change_reports(), [(ALLOW, vec![1])]);
        // A socket without a membership receives what the host does.
        assert_eq!(bench.heard(&other), [1]);
        let option =
            if bench.v6 { SocketOption::MulticastAllV6 } else { SocketOption::MulticastAll };
        set(&mut bench.rig, &other, option, 0);
        assert_eq!(bench.heard(&other), [0; 0]);
        for socket in [&some, &all] {
            while recv(&mut bench.rig, socket).is_ok() {}
        }
        bench.join(&all).expect("a device");
        bench.change(&all, Block, 1).expect("a member");
        bench.change(&all, Block, 2).expect("a member");
        let reports = bench.reports();
        assert_eq!(reports[0], (TO_EXCLUDE, vec![]));
        assert_eq!(reports.last(), Some(&(TO_EXCLUDE, vec![2])), "the other receives source 1");
        assert_eq!(bench.heard(&all), [3, 4]);
        let got = std::iter::from_fn(|| recv(&mut bench.rig, &some).ok());
        assert_eq!(got.map(|(bytes, _)| bytes[0]).collect::<Vec<_>>(), [1]);
        close(&mut bench.rig, all);
        assert_eq!(bench.change_reports(), [(TO_INCLUDE, vec![1])]);
        for socket in [some, other] {
            close(&mut bench.rig, socket);
        }
    });
}

/// RFC 3376 §5.2, RFC 3810 §6.2.
#[test]
fn a_query_about_sources_is_answered_with_those_that_the_host_receives() {
    each(|bench| {
        let socket = bench.open();
        bench.change(&socket, Join, 1).expect("a device");
        bench.change(&socket, Join, 2).expect("a device");
        bench.reports();
        for (asked, answer) in [
            (&[][..], vec![(IS_INCLUDE, vec![1, 2])]),
            (&[2, 3], vec![(IS_INCLUDE, vec![2])]),
            (&[3, 4], vec![]),
        ] {
            bench.query(asked);
            assert_eq!(bench.reports(), answer, "{asked:?}");
        }
        // Sources of several queries are answered together, and a change does not end the answer.
        bench.query(&[1]);
        bench.query(&[2]);
        bench.change(&socket, Join, 3).expect("a device");
        let mut reports = bench.reports();
        reports.sort();
        let allow = (ALLOW, vec![3]);
        assert_eq!(reports, [(IS_INCLUDE, vec![1, 2]), allow.clone(), allow]);
        for number in 1..=3 {
            bench.change(&socket, Leave, number).expect("a source");
        }
        bench.join(&socket).expect("a device");
        bench.change(&socket, Block, 1).expect("a member");
        bench.reports();
        for (asked, answer) in [
            (&[][..], vec![(IS_EXCLUDE, vec![1])]),
            (&[1, 2], vec![(IS_INCLUDE, vec![2])]),
            (&[1], vec![]),
        ] {
            bench.query(asked);
            assert_eq!(bench.reports(), answer, "{asked:?}");
        }
        // More sources than are read: the whole filter answers.
        bench.query(&[1; 65]);
        assert_eq!(bench.reports(), [(IS_EXCLUDE, vec![1])]);
        close(&mut bench.rig, socket);
    });
}

#[test]
fn a_query_that_is_too_short_for_its_sources_is_dropped() {
    let mut bench = Bench { rig: Rig::new(RigConfig::default()), v6: false };
    let socket = bench.open();
    bench.join(&socket).expect("a device");
    bench.reports();
    let IpAddr::V4(group) = bench.group() else { panic!("IPv4") };
    let mut message = vec![0x11, 20, 0, 0];
    message.extend(group.octets());
    message.extend([0, 0, 0, 2, 10, 0, 0, 1]);
    let sum = frame::checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let carrier = Ipv4 { ttl: 1, ..Ipv4::new(PEER_IP, group, protocol::IGMP) };
    bench.rig.give(&carrier.with(&message));
    assert_eq!(bench.reports(), []);
    assert_eq!(bench.rig.drops(DropReason::IgmpMalformed), 1);
    close(&mut bench.rig, socket);
    bench.rig.finish();
}

#[test]
fn the_number_of_sources_is_limited() {
    each(|bench| {
        let (name, value) = match bench.v6 {
            false => ("net.ipv4.igmp_max_msf", "2"),
            true => ("net.ipv6.mld_max_msf", "2"),
        };
        bench.rig.host().set_sysctl(name, value).expect("a setting");
        let socket = bench.open();
        bench.change(&socket, Join, 1).expect("a device");
        bench.change(&socket, Join, 2).expect("room");
        assert_eq!(bench.change(&socket, Join, 3), Err(Errno::ENOBUFS));
        let (host, group) = (bench.rig.host(), bench.group());
        let other = if bench.v6 { IpAddr::V4(PEER_IP) } else { IpAddr::V6(PEER_LINK) };
        let cx = &mut bench.rig.world.cx;
        let mixed = socket.change_source(&host, cx, Join, (group, other), DEVICE);
        assert_eq!(mixed, Err(Errno::EINVAL), "a source of the other family");
        drop(host);
        close(&mut bench.rig, socket);
        bench.reports();
    });
}
