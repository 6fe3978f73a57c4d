//! Every TCP connection that a device brings goes to a SOCKS5 proxy (RFC 1928).
//!
//! With arguments, the device is a tun (root): `tun2socks ql0 127.0.0.1:1080` serves until it is
//! stopped, and the kernel reaches 198.18.0.0/15 through it. Without arguments, a client stack on a
//! wire stands for the tun, and a thread for the proxy.
//!
//! Run it with `cargo run -p quietline --example tun2socks`. It prints:
//!
//! ```text
//! the proxy is asked for 192.0.2.80:443
//! the client reads "hello"
//! the proxy is asked for 192.0.2.81:443
//! the client is told: Connection refused
//! ```

use std::{
    error::Error,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
};

use quietline::{
    Flow, Intercept, RelayLimits, Stack, TcpRequest, Unreachable, Wire, WireConfig,
    device::{Tun, TunConfig},
    relay,
};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, proxy] = &arguments[..]
        && let Ok(proxy) = proxy.parse()
    {
        let config =
            TunConfig { host_address: Some("198.18.0.1/15".parse()?), ..TunConfig::tun(name) };
        let gate = Stack::builder().device(Tun::create(&config)?).intercept(Intercept::all());
        return Ok(serve(&gate.build()?, proxy)?);
    }
    let (near, far) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(near).address("10.0.0.1/24".parse()?);
    let client = client.gateway("10.0.0.2".parse()?).build()?;
    let gate = Stack::builder().device(far).address("10.0.0.2/24".parse()?);
    let gate = gate.intercept(Intercept::all()).build()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || listener.incoming().try_for_each(|client| answer(client?)));
    thread::spawn(move || serve(&gate, address));

    let mut stream = quietline::TcpStream::connect(&client, "192.0.2.80:443")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    println!("the client reads {text:?}");
    let error = quietline::TcpStream::connect(&client, "192.0.2.81:443").expect_err("refused");
    println!("the client is told: {}", error.to_string().split(" (").next().unwrap_or_default());
    Ok(())
}

/// Passes every connection on to the proxy. Other flows have no way through it.
fn serve(gate: &Stack, proxy: SocketAddr) -> io::Result<()> {
    for flow in gate.flows()?.incoming() {
        match flow {
            Flow::Tcp(request) => drop(thread::spawn(move || pass_on(request, proxy))),
            Flow::Echo(ping) => ping.unreachable(Unreachable::Prohibited),
            Flow::Other(packet) => packet.unreachable(Unreachable::Protocol),
            // Dropping a session ignores its datagrams.
            _ => {}
        }
    }
    Ok(())
}

fn pass_on(request: TcpRequest, proxy: SocketAddr) -> io::Result<()> {
    match connect(proxy, request.destination()) {
        Ok(out) => relay(&request.accept()?, &out, &RelayLimits::default()).map(drop),
        Err(error) => {
            request.refuse(&error);
            Ok(())
        }
    }
}

/// Connects to `to` through the proxy: CONNECT without authentication.
fn connect(proxy: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy)?;
    // Version 5; one method: no authentication.
    stream.write_all(&[5, 1, 0])?;
    let mut method = [0; 2];
    stream.read_exact(&mut method)?;
    if method != [5, 0] {
        return Err(io::Error::other("the proxy demands an authentication"));
    }
    let mut request = vec![5, 1, 0];
    match to.ip() {
        IpAddr::V4(ip) => request.extend([1].into_iter().chain(ip.octets())),
        IpAddr::V6(ip) => request.extend([4].into_iter().chain(ip.octets())),
    }
    request.extend(to.port().to_be_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 4];
    stream.read_exact(&mut reply)?;
    // The errors become those of the client's connect.
    let kind = match reply[1] {
        0 => {
            let bound = if reply[3] == 4 { 16 } else { 4 };
            stream.read_exact(&mut vec![0; bound + 2])?;
            return Ok(stream);
        }
        2 => io::ErrorKind::PermissionDenied,
        3 => io::ErrorKind::NetworkUnreachable,
        4 => io::ErrorKind::HostUnreachable,
        _ => io::ErrorKind::ConnectionRefused,
    };
    Err(kind.into())
}

/// The proxy of the demonstration: it says hello for 192.0.2.80, and refuses all others.
fn answer(mut client: TcpStream) -> io::Result<()> {
    client.read_exact(&mut [0; 3])?;
    client.write_all(&[5, 0])?;
    let mut request = [0; 10];
    client.read_exact(&mut request)?;
    let ip = Ipv4Addr::new(request[4], request[5], request[6], request[7]);
    println!("the proxy is asked for {ip}:{}", u16::from_be_bytes([request[8], request[9]]));
    let code = if ip == Ipv4Addr::new(192, 0, 2, 80) { 0 } else { 5 };
    client.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0])?;
    client.write_all(if code == 0 { b"hello" } else { b"" })
}
