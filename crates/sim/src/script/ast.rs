//! A script as values.
//!
//! Not here: reading a script (`parse`), playing it (`run`).

use std::time::Duration;

/// One event with its time: an action, or an expectation.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) line: u32,
    pub(super) time: Time,
    pub(super) what: What,
}

/// When an event is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    /// At any time: `*`, or no time in front of a command.
    Any,
    /// From the start of the script, or from the previous event.
    At {
        /// Counted from the previous event.
        relative: bool,
        /// Earliest.
        from: Duration,
        /// Latest, of `a~b`.
        to: Duration,
        /// Return of a call that blocks, of `a...b`.
        ends: Option<Duration>,
    },
}

#[derive(Clone, Debug)]
pub(super) enum What {
    /// The peer sends a packet.
    In(Spec),
    /// The host has to send a packet.
    Out(Spec),
    Call(Call),
    Code(String),
    /// Values of settings, by their names.
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

/// Fields of the IP header that a line names.
#[derive(Clone, Debug, Default)]
pub(super) struct IpSpec {
    /// DSCP and ECN; an outbound `None` is not compared.
    pub(super) tos: Option<u8>,
    /// Only the ECN bits were named.
    pub(super) ecn_only: bool,
    pub(super) ttl: Option<u8>,
    /// Inbound: a checksum that is wrong by one.
    pub(super) bad_checksum: bool,
    /// Source address, if it is not the peer's.
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
    /// Bytes that need not be a valid option.
    Raw(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cookie {
    Bytes(Vec<u8>),
    /// `$name`: the cookie that the host has sent under this name.
    Named(String),
}

#[derive(Clone, Debug)]
pub(super) struct IcmpSpec {
    pub(super) kind: u8,
    pub(super) code: u8,
    pub(super) mtu: u16,
    /// Ports of the connection, as in a packet of the host.
    pub(super) ports: Option<(u16, u16)>,
    /// First sequence number of the quoted segment.
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
    /// `...`: the default of the interpreter.
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

impl Arg {
    /// The number of an argument: the number itself, or that of its names joined by `|`.
    pub(super) fn number(&self) -> Result<i64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Names(names) => names.iter().try_fold(0, |bits, name| {
                let known = posix::abi::number_of(name);
                known.map(|value| bits | value).ok_or_else(|| format!("{name}: no such name"))
            }),
            Self::List(list) if list.len() == 1 => list[0].number(),
            other => Err(format!("{other:?} is not a number")),
        }
    }

    /// One name.
    pub(super) fn name(&self) -> Result<&str, String> {
        match self {
            Self::Names(names) if names.len() == 1 => Ok(&names[0]),
            other => Err(format!("{other:?} is not a name")),
        }
    }

    /// A field of a structure.
    pub(super) fn field(&self, name: &str) -> Result<&Self, String> {
        let Self::Fields(fields) = self else { return Err(format!("{self:?} has no fields")) };
        let found = fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).ok_or_else(|| format!("the field {name} is missing"))
    }
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
