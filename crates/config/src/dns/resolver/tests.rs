use std::{collections::VecDeque, io, net::SocketAddr};

use hickory_proto::op::{Message, ResponseCode};

use super::*;
use crate::dns::message::tests::{answer, record};

/// Behavior of a scripted server: the answers to a query, with their delays in milliseconds.
type Serve = Box<dyn FnMut(&Message, &[u8]) -> Vec<(u64, Vec<u8>)>>;

/// A network in virtual time, with one script for each server.
struct Scripted {
    now: Duration,
    next: u16,
    servers: Vec<(SocketAddr, Serve)>,
    /// Datagrams on their way to the open socket, with their times.
    coming: VecDeque<(Duration, Vec<u8>)>,
    /// Servers in the order in which they were asked, with the transport.
    asked: Vec<(u8, &'static str)>,
    tcp: Option<Vec<u8>>,
}

const PORT: u16 = 53;

fn server(last: u8) -> SocketAddr {
    ([10, 0, 0, last], PORT).into()
}

impl Scripted {
    fn new() -> Self {
        let (coming, asked) = (VecDeque::new(), Vec::new());
        Self { now: Duration::ZERO, next: 0, servers: Vec::new(), coming, asked, tcp: None }
    }

    fn with(
        mut self,
        last: u8,
        serve: impl FnMut(&Message, &[u8]) -> Vec<(u64, Vec<u8>)> + 'static,
    ) -> Self {
        self.servers.push((server(last), Box::new(serve)));
        self
    }
}

impl Network for Scripted {
    type Socket = SocketAddr;

    fn now(&self) -> Duration {
        self.now
    }

    fn random(&mut self) -> u16 {
        self.next = self.next.wrapping_add(40_503);
        self.next
    }

    fn open(&mut self, server: SocketAddr) -> io::Result<SocketAddr> {
        // A new socket does not receive the late answers to an earlier one.
        self.coming.clear();
        let SocketAddr::V4(v4) = server else { return Err(io::ErrorKind::Unsupported.into()) };
        self.asked.push((v4.ip().octets()[3], "udp"));
        Ok(server)
    }

    fn send(&mut self, socket: &SocketAddr, bytes: &[u8]) -> io::Result<()> {
        let query = Message::from_vec(bytes).expect("a query");
        let found = self.servers.iter_mut().find(|(address, _)| address == socket);
        let Some((_, serve)) = found else { return Err(io::ErrorKind::ConnectionRefused.into()) };
        for (millis, bytes) in serve(&query, bytes) {
            self.coming.push_back((self.now + Duration::from_millis(millis), bytes));
        }
        self.coming.make_contiguous().sort_by_key(|(at, _)| *at);
        Ok(())
    }

    fn receive(
        &mut self,
        _: &SocketAddr,
        buffer: &mut [u8],
        limit: Duration,
    ) -> io::Result<Option<usize>> {
        let end = self.now + limit;
        match self.coming.front() {
            Some((at, _)) if *at <= end => {
                let (at, bytes) = self.coming.pop_front().expect("the front");
                self.now = self.now.max(at);
                let len = bytes.len().min(buffer.len());
                buffer[..len].copy_from_slice(&bytes[..len]);
                Ok(Some(len))
            }
            _ => {
                self.now = end;
                Ok(None)
            }
        }
    }

    fn exchange(&mut self, server: SocketAddr, query: &[u8], _: Duration) -> io::Result<Vec<u8>> {
        let SocketAddr::V4(v4) = server else { return Err(io::ErrorKind::Unsupported.into()) };
        self.asked.push((v4.ip().octets()[3], "tcp"));
        match &self.tcp {
            Some(address) => Ok(answer(query, &[record("big.example", text(address))], |_| {})),
            None => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("a text")
}

/// Answers every question of `name` by the address of its family, and no other question.
fn knows(
    name: &'static str,
    v4: &'static str,
    v6: &'static str,
) -> impl FnMut(&Message, &[u8]) -> Vec<(u64, Vec<u8>)> {
    move |query, bytes| {
        let asked = query.queries[0].name().to_string();
        let is_v4 = query.queries[0].query_type() == hickory_proto::rr::RecordType::A;
        let address = if is_v4 { v4 } else { v6 };
        let reply = if asked.trim_end_matches('.') != name {
            answer(bytes, &[], |message| message.metadata.response_code = ResponseCode::NXDomain)
        } else if address.is_empty() {
            answer(bytes, &[], |_| {})
        } else {
            answer(bytes, &[record(name, address)], |_| {})
        };
        vec![(10, reply)]
    }
}

fn resolver(servers: &[u8]) -> Resolver {
    Resolver::new(Config {
        servers: servers.iter().map(|last| server(*last)).collect(),
        search: vec!["corp.example".to_owned()],
        hosts: BTreeMap::from([("printer".to_owned(), vec![[10, 0, 0, 9].into()])]),
        ..Config::default()
    })
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

#[test]
fn both_families_are_asked_for_and_ipv6_comes_first() {
    let mut network = Scripted::new().with(1, knows("www.example", "192.0.2.1", "2001:db8::1"));
    let found = resolver(&[1]).lookup_by(&mut network, "www.example").expect("addresses");
    assert_eq!(found, addresses(&["2001:db8::1", "192.0.2.1"]));
    assert_eq!(network.asked, [(1, "udp")]);
    let mut network = Scripted::new().with(1, knows("www.example", "192.0.2.1", ""));
    let found = resolver(&[1]).lookup_by(&mut network, "www.example").expect("addresses");
    assert_eq!(found, addresses(&["192.0.2.1"]));
}

#[test]
fn a_name_of_the_configuration_is_not_asked_for() {
    let mut network = Scripted::new();
    for name in ["printer", "Printer", "printer."] {
        let found = resolver(&[1]).lookup_by(&mut network, name).expect("an address");
        assert_eq!(found, addresses(&["10.0.0.9"]));
    }
    assert!(network.asked.is_empty());
}

#[test]
fn search_domains_complete_a_name() {
    let serve = || knows("db.corp.example", "192.0.2.7", "");
    let mut network = Scripted::new().with(1, serve());
    let found = resolver(&[1]).lookup_by(&mut network, "db").expect("an address");
    assert_eq!((found, network.asked.len()), (addresses(&["192.0.2.7"]), 1));
    let mut network = Scripted::new().with(1, serve());
    let error = resolver(&[1]).lookup_by(&mut network, "db.").expect_err("a final dot");
    assert_eq!(error.to_string(), "db. does not exist, says the name server 10.0.0.1:53");
    let mut network = Scripted::new().with(1, serve());
    let error = resolver(&[1]).lookup_by(&mut network, "other").expect_err("unknown");
    assert_eq!(error.to_string(), "other does not exist, says the name server 10.0.0.1:53");
}

#[test]
fn a_silent_server_is_followed_by_the_next_and_all_are_asked_twice() {
    let mut network =
        Scripted::new().with(1, |_, _| Vec::new()).with(2, knows("www.example", "192.0.2.1", ""));
    let found = resolver(&[1, 2]).lookup_by(&mut network, "www.example").expect("addresses");
    assert_eq!((found, network.now), (addresses(&["192.0.2.1"]), Duration::from_millis(5010)));
    let mut network = Scripted::new().with(1, |_, _| Vec::new());
    let error = resolver(&[1, 3]).lookup_by(&mut network, "www.example").expect_err("silence");
    let text =
        "cannot look up www.example: 10.0.0.1:53: no answer; 10.0.0.3:53: connection refused";
    assert_eq!(error.to_string(), text);
    assert_eq!(network.asked, [(1, "udp"), (3, "udp"), (1, "udp"), (3, "udp")]);
    assert_eq!(network.now, Duration::from_secs(10));
}

#[test]
fn a_failing_server_is_followed_by_the_next() {
    let fails = |_: &Message, bytes: &[u8]| {
        let reply =
            answer(bytes, &[], |message| message.metadata.response_code = ResponseCode::ServFail);
        vec![(1, reply)]
    };
    let mut network = Scripted::new().with(1, fails).with(2, knows("www.example", "192.0.2.1", ""));
    let found = resolver(&[1, 2]).lookup_by(&mut network, "www.example").expect("addresses");
    assert_eq!(found, addresses(&["192.0.2.1"]));
}

/// RFC 5452 §4: an attacker that cannot see the query guesses its id.
#[test]
fn guessed_answers_do_not_count_and_many_end_the_attempt() {
    for (forged, expected) in [(5, true), (100, false)] {
        let mut good = knows("www.example", "192.0.2.1", "");
        let mut network = Scripted::new().with(1, move |query, bytes| {
            let forge = |guess: u16| {
                let records = [record("www.example", "203.0.113.66")];
                let id = query.metadata.id.wrapping_add(2 * guess + 1);
                (1, answer(bytes, &records, |message| message.metadata.id = id))
            };
            (0..forged).map(forge).chain(good(query, bytes)).collect()
        });
        let found = resolver(&[1]).lookup_by(&mut network, "www.example");
        match expected {
            true => assert_eq!(found.expect("addresses"), addresses(&["192.0.2.1"])),
            false => assert!(found.expect_err("a flood").to_string().contains("other questions")),
        }
    }
}

#[test]
fn an_answer_to_another_name_does_not_count() {
    let mut good = knows("www.example", "192.0.2.1", "");
    let mut network = Scripted::new().with(1, move |query, bytes| {
        let mut other = query.clone();
        let name = hickory_proto::rr::Name::from_ascii("evil.example.").expect("a name");
        other.queries[0].set_name(name);
        let other = other.to_vec().expect("encodable");
        let forged = answer(&other, &[record("www.example", "203.0.113.66")], |_| {});
        let mut replies = vec![(1, forged)];
        replies.extend(good(query, bytes));
        replies
    });
    let found = resolver(&[1]).lookup_by(&mut network, "www.example").expect("addresses");
    assert_eq!(found, addresses(&["192.0.2.1"]));
}

#[test]
fn a_truncated_answer_is_asked_for_over_tcp() {
    let cut = |_: &Message, bytes: &[u8]| {
        vec![(1, answer(bytes, &[], |message| message.metadata.truncation = true))]
    };
    let mut network = Scripted::new().with(1, cut);
    network.tcp = Some(b"192.0.2.44".to_vec());
    let found = resolver(&[1]).lookup_by(&mut network, "big.example").expect("addresses");
    assert_eq!(found, addresses(&["192.0.2.44"]));
    assert_eq!(network.asked, [(1, "udp"), (1, "tcp"), (1, "tcp")]);
    let mut network = Scripted::new().with(1, cut);
    let error = resolver(&[1]).lookup_by(&mut network, "big.example").expect_err("no TCP");
    assert!(error.to_string().contains("over TCP: connection refused"), "{error}");
}

#[test]
fn a_name_without_addresses_is_told_from_one_that_does_not_exist() {
    let mut network = Scripted::new().with(1, knows("mail.example", "", ""));
    let error = resolver(&[1]).lookup_by(&mut network, "mail.example").expect_err("no address");
    assert_eq!(
        error.to_string(),
        "mail.example has no IP address, says the name server 10.0.0.1:53"
    );
    for name in ["", "a..b", "."] {
        let error = resolver(&[1]).lookup_by(&mut network, name).expect_err("no name");
        assert!(matches!(error, LookupError::BadName { .. }), "{error}");
    }
    let error = resolver(&[]).lookup_by(&mut network, "www.example").expect_err("no server");
    assert_eq!(error.to_string(), "cannot look up www.example: no name server is known");
}
