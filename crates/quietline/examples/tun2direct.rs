//! Every flow that a tun brings goes out by the kernel's sockets of this process. It needs root.
//!
//! The clients run in a network namespace that has nothing but the tun. Their TCP and UDP flows go
//! on outside of it, and pings are answered here. The address of the stack, 10.0.2.2, stands for
//! the loopback address outside, where this example has its servers.
//!
//! Run it with `sudo -E cargo run -p quietline --example tun2direct`. It prints:
//!
//! ```text
//! udp: the server has received "hello"
//! tcp: the server has received "hello"
//! refused: Connection refused
//! ping: 1 received
//! ```

use std::{
    error::Error,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::Duration,
};

use quietline::{
    Flow, Intercept, RelayLimits, Stack, TcpRequest, UdpSession, Unreachable,
    device::{Tun, TunConfig},
    relay,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The stack's own address, which stands for the loopback address of the program.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let _ = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?);
    let ports = [tcp.local_addr()?.port(), udp.local_addr()?.port()];
    thread::spawn(move || serve(&tcp, &udp));

    let (pass_tun, tun) = std::sync::mpsc::channel();
    let clients = thread::spawn(move || {
        // SAFETY: only the network namespace of this thread changes, no descriptor table.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        let everywhere = vec!["0.0.0.0/0".parse().expect("a prefix")];
        let host_address = Some("10.0.2.15/24".parse().expect("an address"));
        let config = TunConfig { host_address, host_routes: everywhere, ..TunConfig::tun("ql0") };
        let tun = Tun::create(&config).map_err(io::Error::from)?;
        pass_tun.send(tun).map_err(io::Error::other)?;
        try_out(ports)
    });
    let Ok(tun) = tun.recv() else {
        return Err(clients.join().expect("the thread of the clients").unwrap_err().into());
    };
    let stack = Stack::builder()
        .device(tun)
        .address(format!("{GATEWAY}/24").parse()?)
        .intercept(Intercept::all())
        .build()?;
    let flows = stack.flows()?;
    thread::spawn(move || flows.incoming().for_each(go_out));
    Ok(clients.join().expect("the thread of the clients")?)
}

/// Continues a flow outside.
fn go_out(flow: Flow) {
    match flow {
        Flow::Tcp(request) => drop(thread::spawn(|| connect(request))),
        Flow::Udp(session) => drop(thread::spawn(move || exchange(&session))),
        Flow::Echo(ping) => ping.reply(),
        Flow::Other(packet) => packet.unreachable(Unreachable::Protocol),
        _ => {}
    }
}

/// Dials first, so that the client gets the error of the dial.
fn connect(request: TcpRequest) {
    match TcpStream::connect(outside(request.destination())) {
        Ok(out) => {
            let inside = request.accept();
            let _ = inside.map(|inside| relay(&inside, &out, &RelayLimits::default()));
        }
        Err(error) => request.refuse(&error),
    }
}

/// One socket outside for all datagrams of a client: endpoint-independent mapping (RFC 4787).
fn exchange(session: &UdpSession) -> io::Result<()> {
    let any = if session.source().is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let out = UdpSocket::bind(any)?;
    let (answers, back) = (out.try_clone()?, session.clone());
    out.set_read_timeout(Some(Duration::from_secs(1)))?;
    thread::spawn(move || {
        let mut buf = vec![0; 65_536];
        // The end of the session ends the thread, when a second has passed without an answer.
        while !back.readiness().contains(quietline::Readiness::HUP) {
            if let Ok((len, from)) = answers.recv_from(&mut buf) {
                let _ = back.send(&buf[..len], inside(from));
            }
        }
    });
    let mut buf = vec![0; 65_536];
    loop {
        let (len, to) = session.recv(&mut buf)?;
        let _ = out.send_to(&buf[..len], outside(to));
    }
}

fn outside(to: SocketAddr) -> SocketAddr {
    let is_gateway = to.ip() == IpAddr::V4(GATEWAY);
    if is_gateway { SocketAddr::new(Ipv4Addr::LOCALHOST.into(), to.port()) } else { to }
}

fn inside(from: SocketAddr) -> SocketAddr {
    if from.ip().is_loopback() { SocketAddr::new(GATEWAY.into(), from.port()) } else { from }
}

/// The servers outside: they answer with what they have received.
fn serve(tcp: &TcpListener, udp: &UdpSocket) -> io::Result<()> {
    let mut buf = [0; 100];
    let (len, client) = udp.recv_from(&mut buf)?;
    udp.send_to(format!("{:?}", String::from_utf8_lossy(&buf[..len])).as_bytes(), client)?;
    let mut received = String::new();
    let (mut stream, _) = tcp.accept()?;
    stream.read_to_string(&mut received)?;
    write!(stream, "{received:?}")
}

/// The clients in the namespace of the tun.
fn try_out([tcp, udp]: [u16; 2]) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.send_to(b"hello", (GATEWAY, udp))?;
    let mut buf = [0; 100];
    let (len, _) = socket.recv_from(&mut buf)?;
    println!("udp: the server has received {}", String::from_utf8_lossy(&buf[..len]));
    let mut stream = TcpStream::connect((GATEWAY, tcp))?;
    stream.write_all(b"hello")?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("tcp: the server has received {answer}");
    let error = TcpStream::connect((GATEWAY, 1)).expect_err("the port has no server");
    println!("refused: {}", error.to_string().split(" (").next().unwrap_or_default());
    let output = Command::new("ping").args(["-c1", "-W5", "192.0.2.1"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let received = text.split(", ").find(|part| part.ends_with("received")).unwrap_or("nothing");
    println!("ping: {received}");
    Ok(())
}
