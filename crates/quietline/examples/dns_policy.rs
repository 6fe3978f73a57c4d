//! A filter for name servers: DNS queries to any server are answered by policy. Names below
//! `blocked.example` do not exist; all other queries go to one resolver.
//!
//! A client stack on a wire stands for a guest or a container, and a thread for the resolver.
//!
//! Run it with `cargo run -p quietline --example dns_policy`. It prints:
//!
//! ```text
//! the resolver is asked for good.example
//! good.example: answered
//! ads.blocked.example: no such name
//! ```

use std::{error::Error, io, net::SocketAddr, thread, time::Duration};

use quietline::{Flow, Intercept, Stack, UdpSession, UdpSocket, Unreachable, Wire, WireConfig};

/// Bytes of the header of a DNS message (RFC 1035 §4.1.1).
const HEADER_LEN: usize = 12;
/// Response code 3: the name does not exist.
const NO_SUCH_NAME: u8 = 3;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (near, far) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(near).address("10.0.0.1/24".parse()?);
    let client = client.gateway("10.0.0.2".parse()?).build()?;
    let gate = Stack::builder().device(far).address("10.0.0.2/24".parse()?);
    let gate = gate.intercept(Intercept::all()).build()?;
    let resolver = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let address = resolver.local_addr()?;
    thread::spawn(move || resolve(&resolver));
    thread::spawn(move || filter(&gate, address));

    let socket = UdpSocket::bind(&client, "10.0.0.1:5353")?;
    for name in ["good.example", "ads.blocked.example"] {
        socket.send_to(&query(name), "192.0.2.53:53")?;
        let mut answer = [0; 512];
        let (len, server) = socket.recv_from(&mut answer)?;
        // The client sees the server that it has asked.
        assert!(len >= HEADER_LEN && server == "192.0.2.53:53".parse()?);
        let is_known = answer[3] & 0x0f != NO_SUCH_NAME;
        println!("{name}: {}", if is_known { "answered" } else { "no such name" });
    }
    Ok(())
}

fn filter(gate: &Stack, resolver: SocketAddr) -> io::Result<()> {
    for flow in gate.flows()?.incoming() {
        match flow {
            Flow::Udp(session) => drop(thread::spawn(move || answer(&session, resolver))),
            Flow::Tcp(request) => request.refuse(&io::ErrorKind::PermissionDenied.into()),
            Flow::Echo(ping) => ping.unreachable(Unreachable::Prohibited),
            Flow::Other(packet) => packet.unreachable(Unreachable::Prohibited),
            _ => {}
        }
    }
    Ok(())
}

/// Answers the queries of one client, one after the other.
fn answer(session: &UdpSession, resolver: SocketAddr) -> io::Result<()> {
    let out = std::net::UdpSocket::bind("127.0.0.1:0")?;
    out.connect(resolver)?;
    out.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut message = vec![0; 65_535];
    loop {
        let (len, server) = session.recv(&mut message)?;
        let Some(name) = name_of(&message[..len]).filter(|_| server.port() == 53) else { continue };
        let len = if name.ends_with("blocked.example") {
            message[2] |= 0x80;
            message[3] = message[3] & 0xf0 | NO_SUCH_NAME;
            len
        } else {
            out.send(&message[..len])?;
            let Ok(len) = out.recv(&mut message) else { continue };
            len
        };
        session.send(&message[..len], server)?;
    }
}

/// Returns the name of the first question; `None` for anything that is not a query.
fn name_of(message: &[u8]) -> Option<String> {
    let (header, mut rest) = message.split_at_checked(HEADER_LEN)?;
    let is_query = header[2] & 0x80 == 0 && u16::from_be_bytes([header[4], header[5]]) > 0;
    if !is_query {
        return None;
    }
    let mut name = String::new();
    loop {
        let (&len, after) = rest.split_first()?;
        if len == 0 {
            return Some(name);
        }
        let (label, after) = after.split_at_checked(usize::from(len))?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(label).to_lowercase());
        rest = after;
    }
}

/// Returns a query for the address of a name.
fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).expect("a label has at most 63 bytes"));
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// The resolver of the demonstration: it answers every query without records.
fn resolve(socket: &std::net::UdpSocket) -> io::Result<()> {
    let mut message = [0; 512];
    loop {
        let (len, from) = socket.recv_from(&mut message)?;
        println!("the resolver is asked for {}", name_of(&message[..len]).unwrap_or_default());
        message[2] |= 0x80;
        socket.send_to(&message[..len], from)?;
    }
}
