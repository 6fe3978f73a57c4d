//! A script as values.
//!
//! Not here: reading it (`parse`), doing it (`run`).

use std::time::Duration;

/// One event: what happens or has to happen, and when.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) line: u32,
    pub(super) time: Time,
    pub(super) what: What,
}

/// When an event is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// Whenever it happens: `*`, or nothing in front of a command.
    Any,
    /// From the start of the script, or from the event before.
    At {
        /// Counted from the event before.
        relative: bool,
        /// Earliest.
        from: Duration,
        /// Latest, of `a~b`.
        to: Duration,
        /// When a call that blocks returns, of `a...b`.
        ends: Option<Duration>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// The peer says something.
    In(Spec),
    /// The host has to say something.
    Out(Spec),
    Call(Call),
    Code(String),
    /// Settings by their names.
    Sysctls(Vec<(String, String)>),
}

/// A packet as written.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) ip: IpSpec,
    pub(super) payload: Payload,
}

#[derive(Clone, Debug)]
pub(super) enum Payload {
    Tcp(TcpSpec),
    Icmp(IcmpSpec),
}

/// What a line says of the IP header.
#[derive(Clone, Debug, Default)]
pub(super) struct IpSpec {
    /// DSCP and ECN; outbound `None` is not compared.
    pub(super) tos: Option<u8>,
    /// Only the ECN bits were named.
    pub(super) ecn_only: bool,
    pub(super) ttl: Option<u8>,
    /// Inbound: a checksum that is wrong by one.
    pub(super) bad_checksum: bool,
    /// The packet comes from another address than the peer's.
    pub(super) src: Option<std::net::Ipv4Addr>,
}

#[derive(Clone, Debug)]
pub(super) struct TcpSpec {
    /// Source and destination port, when the line names its connection.
    pub(super) ports: Option<(u16, u16)>,
    pub(super) flags: u16,
    pub(super) seq: u32,
    pub(super) len: u32,
    pub(super) ack: Option<u32>,
    pub(super) window: Option<u16>,
    pub(super) urgent: u16,
    /// `None` is `<...>`: not compared.
    pub(super) options: Option<Vec<Opt>>,
}

/// One TCP option, in the order written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opt {
    Nop,
    Eol,
    Mss(u16),
    WindowScale(u8),
    SackOk,
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
    /// Fast Open (RFC 7413), kind 34, or kind 254 with its number.
    Cookie {
        experimental: bool,
        cookie: Cookie,
    },
    /// Kind and value.
    Other(u8, Vec<u8>),
    /// Bytes that need not be an option at all.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cookie {
    Bytes(Vec<u8>),
    /// `$name`: what the host has sent under this name.
    Named(String),
}

#[derive(Clone, Debug)]
pub(super) struct IcmpSpec {
    pub(super) kind: u8,
    pub(super) code: u8,
    pub(super) mtu: u16,
    /// Ports of the connection, as a packet of the host would carry them.
    pub(super) ports: Option<(u16, u16)>,
    /// The segment it quotes: first sequence number.
    pub(super) seq: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) args: Vec<Arg>,
    pub(super) result: Expected,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arg {
    /// `...`: whatever the interpreter takes.
    Any,
    Number(i64),
    /// Names joined by `|`, or one.
    Names(Vec<String>),
    Text(String),
    List(Vec<Self>),
    Fields(Vec<(String, Self)>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// `?`
    Any,
    Value(i64),
    /// -1 and the name of the error.
    Fails(String),
}

/// Bits of the flags word, as in bytes 12 and 13 of the header.
pub(super) mod flag {
    pub(in super::super) const FIN: u16 = 0x01;
    pub(in super::super) const SYN: u16 = 0x02;
    pub(in super::super) const RST: u16 = 0x04;
    pub(in super::super) const PSH: u16 = 0x08;
    pub(in super::super) const ACK: u16 = 0x10;
    pub(in super::super) const URG: u16 = 0x20;
    pub(in super::super) const ECE: u16 = 0x40;
    pub(in super::super) const CWR: u16 = 0x80;
    pub(in super::super) const AE: u16 = 0x100;
    /// Letters in the order they are printed.
    pub(in super::super) const LETTERS: [(char, u16); 9] = [
        ('S', SYN),
        ('F', FIN),
        ('R', RST),
        ('P', PSH),
        ('U', URG),
        ('E', ECE),
        ('W', CWR),
        ('A', AE),
        ('.', ACK),
    ];
}
