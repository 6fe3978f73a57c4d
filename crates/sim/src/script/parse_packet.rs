//! Parses packets.
//!
//! ```text
//! [ect0] 5001 > 8080 P. 1:1001(1000) ack 1 win 257 urg 10 <nop,nop,TS val 100 ecr 200>
//! icmp unreachable frag_needed mtu 1200 [1:1461(1460)]
//! ```
//!
//! Not here: the direction sign, the time.

use super::{
    ScriptError,
    ast::{Cookie, IcmpSpec, IpSpec, Opt, TcpSpec, flag},
    lex::Word,
    parse::Words,
};

/// `[ect0]`, `[ce, ttl 1]`, or nothing.
pub(super) fn ip(words: &mut Words) -> Result<IpSpec, ScriptError> {
    let mut spec = IpSpec::default();
    if !words.take('[') {
        return Ok(spec);
    }
    loop {
        let name = words.name()?;
        match name.as_str() {
            "noecn" | "ect1" | "ect0" | "ce" => {
                let ecn = match name.as_str() {
                    "noecn" => 0,
                    "ect1" => 1,
                    "ect0" => 2,
                    _ => 3,
                };
                spec.ecn_only = spec.tos.is_none();
                spec.tos = Some(spec.tos.unwrap_or(0) & !3 | ecn);
            }
            "tos" => {
                spec.tos = Some(words.number()?);
                spec.ecn_only = false;
            }
            "ttl" => spec.ttl = Some(words.number()?),
            "bad_checksum" => spec.bad_checksum = true,
            "src" => spec.src = Some(address(words)?),
            _ => return Err(words.error(format!("`{name}`: not a property of an IP header"))),
        }
        if words.take(']') {
            return Ok(spec);
        }
        words.expect(',')?;
    }
}

/// An IPv4 address: two numbers with a point, joined by a point.
fn address(words: &mut Words) -> Result<std::net::Ipv4Addr, ScriptError> {
    let mut text = String::new();
    while let Some(Word::Number(_) | Word::Sign('.')) = words.peek() {
        text.push_str(&words.peek().map(Word::show).unwrap_or_default());
        words.skip();
    }
    text.parse().map_err(|_| words.error(format!("`{text}`: not an address")))
}

/// `5001 > 8080`, or nothing.
fn ports(words: &mut Words) -> Result<Option<(u16, u16)>, ScriptError> {
    if words.peek_at(1) != Some(&Word::Sign('>')) {
        return Ok(None);
    }
    let src = words.number()?;
    words.expect('>')?;
    Ok(Some((src, words.number()?)))
}

pub(super) fn tcp(words: &mut Words) -> Result<TcpSpec, ScriptError> {
    let ports = ports(words)?;
    let flags = flags(words)?;
    let (seq, len) = range(words)?;
    let mut spec = TcpSpec {
        ports,
        flags,
        seq,
        len,
        ack: None,
        window: None,
        urgent: 0,
        options: Some(Vec::new()),
    };
    // An event begins with its time, so that the next word may belong to the next line.
    loop {
        if words.take_name("ack") {
            spec.ack = Some(words.number()?);
        } else if words.take_name("win") {
            spec.window = Some(words.number()?);
        } else if words.take_name("urg") {
            spec.urgent = words.number()?;
        } else if words.take('<') {
            spec.options = options(words)?;
        } else {
            break;
        }
    }
    if spec.ack.is_some() != (flags & flag::ACK != 0) {
        return Err(words.error("the flag `.` and `ack` go together"));
    }
    Ok(spec)
}

/// `S.`, `P.`, `.`, or `-` for none.
fn flags(words: &mut Words) -> Result<u16, ScriptError> {
    if words.take('-') {
        return Ok(0);
    }
    let mut bits = 0;
    if let Some(Word::Name(letters)) = words.peek() {
        for letter in letters.chars() {
            let Some((_, bit)) = flag::LETTERS.iter().find(|(known, _)| *known == letter) else {
                return Err(words.error(format!("`{letters}`: not a flag of TCP")));
            };
            bits |= bit;
        }
        words.skip();
    }
    if words.take('.') {
        bits |= flag::ACK;
    }
    if bits == 0 { Err(words.unexpected("flags")) } else { Ok(bits) }
}

/// `1:1001(1000)`: first and last sequence number and their difference.
fn range(words: &mut Words) -> Result<(u32, u32), ScriptError> {
    let seq: u32 = words.number()?;
    words.expect(':')?;
    let end: u32 = words.number()?;
    words.expect('(')?;
    let len: u32 = words.number()?;
    words.expect(')')?;
    if end.wrapping_sub(seq) == len {
        Ok((seq, len))
    } else {
        Err(words.error(format!("{seq}:{end} is not {len} bytes")))
    }
}

/// Up to `>`; `None` for `<...>`.
fn options(words: &mut Words) -> Result<Option<Vec<Opt>>, ScriptError> {
    if words.take_word(&Word::Ellipsis) {
        words.expect('>')?;
        return Ok(None);
    }
    let mut list = Vec::new();
    loop {
        list.push(option(words)?);
        if words.take('>') {
            return Ok(Some(list));
        }
        words.expect(',')?;
    }
}

fn option(words: &mut Words) -> Result<Opt, ScriptError> {
    let name = words.name()?;
    Ok(match name.as_str() {
        "nop" => Opt::Nop,
        "eol" => Opt::Eol,
        "mss" => Opt::Mss(words.number()?),
        "wscale" => Opt::WindowScale(words.number()?),
        "sackOK" => Opt::SackOk,
        "TS" => {
            let mut pair = [0, 0];
            for (name, value) in ["val", "ecr"].into_iter().zip(&mut pair) {
                if !words.take_name(name) {
                    return Err(words.unexpected(name));
                }
                *value = words.number()?;
            }
            Opt::Timestamps(pair[0], pair[1])
        }
        "sack" => {
            let mut blocks = Vec::new();
            while matches!(words.peek(), Some(Word::Number(_))) {
                let left = words.number()?;
                words.expect(':')?;
                blocks.push((left, words.number()?));
            }
            Opt::Sack(blocks)
        }
        "FO" | "FOEXP" => Opt::Cookie { experimental: name == "FOEXP", cookie: cookie(words)? },
        "opt" => Opt::Other(words.number()?, hex(words)?),
        "bytes" => Opt::Raw(hex(words)?),
        _ => return Err(words.error(format!("`{name}`: not an option of TCP"))),
    })
}

fn cookie(words: &mut Words) -> Result<Cookie, ScriptError> {
    if words.take('$') {
        return Ok(Cookie::Named(words.name()?));
    }
    Ok(Cookie::Bytes(hex(words)?))
}

/// Bytes in hexadecimal, with or without `0x`; none if the next word is a sign.
fn hex(words: &mut Words) -> Result<Vec<u8>, ScriptError> {
    let (Some(Word::Name(text)) | Some(Word::Number(text))) = words.peek() else {
        return Ok(Vec::new());
    };
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let pairs = (0..digits.len()).step_by(2);
    let bytes =
        pairs.map(|at| digits.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()));
    let Some(bytes) = bytes.collect() else {
        return Err(words.unexpected("bytes in hexadecimal"));
    };
    words.skip();
    Ok(bytes)
}

/// Codes of one type by their names.
type Codes = &'static [(&'static str, u8)];

/// Type and code of an ICMP message by the names of a script.
const ICMP: &[(&str, u8, Codes)] = &[
    (
        "unreachable",
        3,
        &[
            ("net_unreachable", 0),
            ("host_unreachable", 1),
            ("protocol_unreachable", 2),
            ("port_unreachable", 3),
            ("frag_needed", 4),
            ("source_route_failed", 5),
            ("net_unknown", 6),
            ("host_unknown", 7),
            ("source_host_isolated", 8),
            ("net_prohibited", 9),
            ("host_prohibited", 10),
            ("packet_filtered", 13),
        ],
    ),
    ("source_quench", 4, &[("", 0)]),
    ("time_exceeded", 11, &[("exc_ttl", 0), ("exc_fragtime", 1)]),
    ("parameter_problem", 12, &[("", 0)]),
];

/// Parses the words after `icmp`.
pub(super) fn icmp(words: &mut Words) -> Result<IcmpSpec, ScriptError> {
    let name = words.name()?;
    let Some((_, kind, codes)) = ICMP.iter().find(|(known, _, _)| *known == name) else {
        return Err(words.error(format!("`{name}`: not a type of ICMP")));
    };
    let mut code = codes[0].1;
    if let Some(Word::Name(text)) = words.peek()
        && text != "mtu"
    {
        let Some((_, number)) = codes.iter().find(|(known, _)| known == text) else {
            return Err(words.error(format!("`{text}`: not a code of {name}")));
        };
        code = *number;
        words.skip();
    }
    let mtu = if words.take_name("mtu") { words.number()? } else { 0 };
    words.expect('[')?;
    let ports = ports(words)?;
    let (seq, _) = range(words)?;
    words.expect(']')?;
    Ok(IcmpSpec { kind: *kind, code, mtu, ports, seq })
}
