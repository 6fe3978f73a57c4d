//! Messages of DNS: queries for addresses, and the answers that fit them.
//!
//! Below: crate `hickory-proto`. An answer fits if its id and its question are those of the query
//! (RFC 5452 §9); the socket has checked its sender already. Anything else is ignored.

use std::net::IpAddr;

use hickory_proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{DNSClass, Name, RData, RecordType},
};

/// Maximum number of aliases (CNAME) that lead from a name to its addresses.
const ALIASES_MAX: usize = 16;

/// Maximum number of addresses taken from one answer.
const ADDRESSES_MAX: usize = 32;

/// A question for the addresses of one family.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) id: u16,
    name: Name,
    kind: RecordType,
}

/// Content of an answer that fits its question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Addresses of the name; empty if it has none of this family.
    Addresses(Vec<IpAddr>),
    /// The name does not exist (NXDOMAIN).
    NoSuchName,
    /// The answer did not fit into a datagram (TC): the question is repeated over TCP.
    Truncated,
    /// The server has no answer. The text names its response code.
    Failure(String),
}

impl Question {
    /// Returns the question for IPv4 or IPv6 addresses of a name; `None` for a text that is no
    /// domain name.
    pub(super) fn new(id: u16, name: &str, is_v4: bool) -> Option<Self> {
        let plain = name.strip_suffix('.').unwrap_or(name);
        if plain.split('.').any(str::is_empty) {
            return None;
        }
        let mut name = Name::from_str_relaxed(name).ok()?;
        name.set_fqdn(true);
        let kind = if is_v4 { RecordType::A } else { RecordType::AAAA };
        Some(Self { id, name, kind })
    }

    /// Returns the bytes of the query.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut message = Message::new(self.id, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind));
        // Fails only for a message that is too long; a name has at most 255 bytes.
        message.to_vec().unwrap_or_default()
    }

    /// Reads a message. `None` if it is no answer to this question.
    pub(super) fn read(&self, bytes: &[u8]) -> Option<Answer> {
        let message = Message::from_vec(bytes).ok()?;
        let metadata = &message.metadata;
        let [query] = &message.queries[..] else { return None };
        let fits = metadata.id == self.id
            && metadata.message_type == MessageType::Response
            && metadata.op_code == OpCode::Query
            && query.name() == &self.name
            && query.query_type() == self.kind
            && query.query_class() == DNSClass::IN;
        if !fits {
            return None;
        }
        Some(match metadata.response_code {
            _ if metadata.truncation => Answer::Truncated,
            ResponseCode::NoError => Answer::Addresses(self.addresses(&message)),
            ResponseCode::NXDomain => Answer::NoSuchName,
            code => Answer::Failure(code.to_string()),
        })
    }

    /// Follows the aliases of an answer, and returns the addresses at their end. Records of other
    /// names do not count.
    fn addresses(&self, message: &Message) -> Vec<IpAddr> {
        let records: Vec<_> =
            message.answers.iter().filter(|record| record.dns_class == DNSClass::IN).collect();
        let mut name = &self.name;
        for _ in 0..=ALIASES_MAX {
            let wanted = name;
            let of_name = records.iter().filter(|record| record.name == *wanted);
            let addresses = of_name.clone().filter_map(|record| match &record.data {
                RData::A(ip) if self.kind == RecordType::A => Some(IpAddr::V4(ip.0)),
                RData::AAAA(ip) if self.kind == RecordType::AAAA => Some(IpAddr::V6(ip.0)),
                _ => None,
            });
            let addresses: Vec<_> = addresses.take(ADDRESSES_MAX).collect();
            if !addresses.is_empty() {
                return addresses;
            }
            let mut aliases = of_name.filter_map(|record| match &record.data {
                RData::CNAME(alias) => Some(&alias.0),
                _ => None,
            });
            match aliases.next() {
                Some(alias) => name = alias,
                None => break,
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use hickory_proto::rr::{
        Record,
        rdata::{A, AAAA, CNAME},
    };
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        let mut name = Name::from_ascii(text).expect("a name");
        name.set_fqdn(true);
        name
    }

    /// Returns the record of an address, or of an alias.
    pub(crate) fn record(owner: &str, value: &str) -> Record {
        let data = match value.parse() {
            Ok(IpAddr::V4(ip)) => RData::A(A(ip)),
            Ok(IpAddr::V6(ip)) => RData::AAAA(AAAA(ip)),
            Err(_) => RData::CNAME(CNAME(name(value))),
        };
        Record::from_rdata(name(owner), 60, data)
    }

    /// Returns an answer to the query in `bytes`, changed by `change`.
    pub(crate) fn answer(
        bytes: &[u8],
        records: &[Record],
        change: impl FnOnce(&mut Message),
    ) -> Vec<u8> {
        let mut message = Message::from_vec(bytes).expect("a query");
        message.metadata.message_type = MessageType::Response;
        message.add_answers(records.to_vec());
        change(&mut message);
        message.to_vec().expect("an encodable message")
    }

    fn question() -> Question {
        Question::new(7, "www.example", true).expect("a name")
    }

    fn read(records: &[Record], change: impl FnOnce(&mut Message)) -> Option<Answer> {
        question().read(&answer(&question().bytes(), records, change))
    }

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[test]
    fn addresses_are_those_of_the_name_and_of_its_aliases() {
        let direct = [record("www.example", "192.0.2.1"), record("WWW.Example", "192.0.2.2")];
        assert_eq!(read(&direct, |_| {}), Some(Answer::Addresses(vec![v4(1), v4(2)])));
        let aliased = [
            record("b.example", "192.0.2.3"),
            record("www.example", "a.example"),
            record("a.example", "b.example"),
            record("other.example", "192.0.2.9"),
        ];
        assert_eq!(read(&aliased, |_| {}), Some(Answer::Addresses(vec![v4(3)])));
        let v6 = [record("www.example", "2001:db8::1")];
        assert_eq!(read(&v6, |_| {}), Some(Answer::Addresses(Vec::new())));
    }

    #[test]
    fn a_loop_of_aliases_ends_without_addresses() {
        let round = [record("www.example", "a.example"), record("a.example", "www.example")];
        assert_eq!(read(&round, |_| {}), Some(Answer::Addresses(Vec::new())));
        let own = [record("www.example", "www.example")];
        assert_eq!(read(&own, |_| {}), Some(Answer::Addresses(Vec::new())));
    }

    #[test]
    fn an_answer_to_another_question_does_not_fit() {
        let good = [record("www.example", "192.0.2.1")];
        assert!(read(&good, |_| {}).is_some());
        assert_eq!(read(&good, |message| message.metadata.id = 8), None);
        assert_eq!(read(&good, |message| message.metadata.message_type = MessageType::Query), None);
        assert_eq!(read(&good, |message| message.metadata.op_code = OpCode::Notify), None);
        assert_eq!(read(&good, |message| message.queries.clear()), None);
        let ask = |name_of: &str, kind| Query::query(name(name_of), kind);
        let other = ask("evil.example", RecordType::A);
        assert_eq!(read(&good, |message| message.queries = vec![other.clone()]), None);
        let v6 = ask("www.example", RecordType::AAAA);
        assert_eq!(read(&good, |message| message.queries = vec![v6]), None);
        assert_eq!(read(&good, |message| message.queries.push(other)), None);
    }

    #[test]
    fn response_codes_are_told_apart() {
        let code = |code| read(&[], move |message| message.metadata.response_code = code);
        assert_eq!(code(ResponseCode::NXDomain), Some(Answer::NoSuchName));
        assert!(matches!(code(ResponseCode::ServFail), Some(Answer::Failure(_))));
        assert!(matches!(code(ResponseCode::Refused), Some(Answer::Failure(_))));
        assert_eq!(
            read(&[], |message| message.metadata.truncation = true),
            Some(Answer::Truncated)
        );
    }

    #[test]
    fn texts_that_are_no_names_make_no_question() {
        let long = format!("{}.example", "a".repeat(64));
        for text in ["", ".", "a..b", &long, &"a.".repeat(200)] {
            assert!(Question::new(1, text, true).is_none(), "{text}");
        }
        assert!(Question::new(1, "bücher.example", false).is_some());
        let v6 = Question::new(1, "www.example", false).expect("a name");
        let record = record("www.example", "2001:db8::1");
        let bytes = answer(&v6.bytes(), &[record], |_| {});
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        assert_eq!(v6.read(&bytes), Some(Answer::Addresses(vec![address.into()])));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            tail in prop::collection::vec(any::<u8>(), 0..300),
            flips in prop::collection::vec((0_usize..200, any::<u8>()), 0..6),
        ) {
            let _ = question().read(&tail);
            let records = [record("www.example", "a.example"), record("a.example", "192.0.2.1")];
            let mut bytes = answer(&question().bytes(), &records, |_| {});
            for (at, value) in flips {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            bytes.extend(tail);
            if let Some(Answer::Addresses(addresses)) = question().read(&bytes) {
                prop_assert!(addresses.len() <= ADDRESSES_MAX);
            }
        }
    }
}
