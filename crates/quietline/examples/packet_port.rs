//! Packets in, packets out: two stacks whose IP packets travel as datagrams on a socket pair. In
//! place of the socket pair may be a tunnel, which encrypts each packet, or a virtual machine.
//!
//! Run it with `cargo run -p quietline --example packet_port`. It prints:
//!
//! ```text
//! the server reads "through two ports"
//! ```

use std::{
    error::Error,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixDatagram,
    thread,
};

use quietline::device::{PacketPort, PortConfig};
use quietline::{Stack, TcpListener, TcpStream};

/// Sends the packets of a stack, until the stack has ended.
fn send(port: &PacketPort, socket: &UnixDatagram) -> io::Result<()> {
    let mut packet = [0; 1420];
    while !port.is_closed() {
        // Sleeps until the stack has sent a packet.
        port.wait(None)?;
        // `frame.slices()` lends the bytes without a copy, for a tunnel that encrypts them.
        port.drain(64, |frame| {
            let len = frame.copy_to(&mut packet);
            socket.send(&packet[..len])
        })?;
    }
    socket.shutdown(Shutdown::Both)
}

/// Gives the packets that arrive to a stack, until the socket is shut down.
fn receive(port: &PacketPort, socket: &UnixDatagram) -> io::Result<()> {
    let mut packet = [0; 1420];
    loop {
        match socket.recv(&mut packet)? {
            0 => return Ok(()),
            // A port without room answers 0, and the packet is lost, as in a router.
            len => port.inject(&[&packet[..len]])?,
        };
    }
}

fn stack(number: u8) -> Result<(Stack, PacketPort), Box<dyn Error>> {
    let (device, port) = PacketPort::ip(&PortConfig { mtu: 1420, ..PortConfig::default() })?;
    let address = format!("10.0.0.{number}/24").parse()?;
    Ok((Stack::builder().device(device).address(address).build()?, port))
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let ((client, left), (server, right)) = (stack(1)?, stack(2)?);
    let (left_socket, right_socket) = UnixDatagram::pair()?;
    thread::scope(|scope| {
        for (port, socket) in [(&left, &left_socket), (&right, &right_socket)] {
            scope.spawn(move || send(port, socket));
            scope.spawn(move || receive(port, socket));
        }
        let listener = TcpListener::bind(&server, "10.0.0.2:7")?;
        let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
        let (mut accepted, _) = listener.accept()?;
        stream.write_all(b"through two ports")?;
        drop(stream);
        let mut text = String::new();
        accepted.read_to_string(&mut text)?;
        println!("the server reads {text:?}");
        drop((client, server, listener, accepted));
        Ok(())
    })
}
