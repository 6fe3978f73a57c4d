//! Two stacks in one process, joined by a wire: one echoes the datagrams of the other, a batch at a
//! time. No root, no network.
//!
//! Run it with `cargo run -p quietline --example udp_echo`. It prints:
//!
//! ```text
//! the server waits on 10.0.0.2:7
//! 4 datagrams of 1000 bytes sent with one call
//! 4 datagrams echoed to 10.0.0.1
//! 3500 bytes came back
//! ```

use std::{io, thread};

use quietline::{ReceiveMessage, SendControl, SendMessage, Stack, UdpSocket, Wire, WireConfig};

/// Echoes `count` datagrams; returns the address of their sender.
fn echo(socket: &UdpSocket, count: usize) -> io::Result<std::net::IpAddr> {
    let mut buffers = vec![[0; 1500]; 16];
    let mut echoed = 0;
    loop {
        let mut messages: Vec<_> =
            buffers.iter_mut().map(|buffer| ReceiveMessage::new(buffer)).collect();
        let received = socket.recv_batch(&mut messages)?;
        let answers: Vec<_> = messages[..received]
            .iter()
            .filter_map(|message| {
                let received = message.received?;
                Some(SendMessage::to(&message.buf[..received.len], received.source))
            })
            .collect();
        echoed += socket.send_batch(&answers)?;
        if let (true, Some(last)) = (echoed >= count, messages[received - 1].received) {
            return Ok(last.source.ip());
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse()?).build()?;

    let server = UdpSocket::bind(&server, "10.0.0.2:7")?;
    println!("the server waits on {}", server.local_addr()?);
    let client = UdpSocket::bind(&client, "0.0.0.0:0")?;
    client.connect("10.0.0.2:7")?;

    // `UDP_SEGMENT`: one call sends several datagrams.
    let control = SendControl { segment: Some(1000), ..SendControl::default() };
    let payload = vec![b'q'; 3500];
    client.send_message(&SendMessage { control, ..SendMessage::new(&payload) })?;
    println!("4 datagrams of 1000 bytes sent with one call");
    let server = thread::spawn(move || echo(&server, 4));
    let peer = server.join().expect("the server's thread")?;
    println!("4 datagrams echoed to {peer}");

    let mut buffer = [0; 1500];
    let mut bytes = 0;
    while bytes < payload.len() {
        bytes += client.recv(&mut buffer)?;
    }
    println!("{bytes} bytes came back");
    Ok(())
}
