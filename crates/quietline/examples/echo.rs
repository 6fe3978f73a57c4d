//! Two stacks in one process, joined by a wire: one echoes the bytes that the other writes. No
//! root, no network.
//!
//! Run it with `cargo run -p quietline --example echo`. It prints:
//!
//! ```text
//! the server listens on 10.0.0.2:7
//! the client comes from 10.0.0.1
//! the echo: "hello, quietline"
//! 16 bytes echoed
//! ```

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    thread,
};

use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

/// Echoes one connection to its end; returns the bytes echoed.
fn echo(mut stream: TcpStream) -> io::Result<usize> {
    let mut buffer = [0; 4096];
    let mut echoed = 0;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(echoed);
        }
        stream.write_all(&buffer[..count])?;
        echoed += count;
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse()?).build()?;

    let listener = TcpListener::bind(&server, "10.0.0.2:7")?;
    println!("the server listens on {}", listener.local_addr()?);
    let server = thread::spawn(move || {
        let (stream, peer) = listener.accept()?;
        println!("the client comes from {}", peer.ip());
        echo(stream)
    });

    let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
    stream.write_all(b"hello, quietline")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("the echo: {answer:?}");
    println!("{} bytes echoed", server.join().expect("the server's thread")?);
    Ok(())
}
