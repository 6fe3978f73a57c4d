//! A thousand connections served by one thread: a stack without workers, nonblocking sockets, and a
//! loop that polls.
//!
//! [`Stack::poll`] runs everything that has work and says how long the stack may be left alone.
//! Both stacks are driven by the one thread here; with a tap or an interface the loop would sleep
//! on the device's descriptor for that long.
//!
//! Run it with `cargo run -p quietline --example many_connections`. It prints:
//!
//! ```text
//! 1000 connections, none established yet
//! 1000 accepted
//! 1000 answers, all of them right
//! ```

use std::{
    error::Error,
    io::{ErrorKind, Read, Write},
    thread,
    time::Duration,
};

use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

const CONNECTIONS: usize = 1000;

/// Runs both stacks until neither has work at this moment.
fn run(stacks: [&Stack; 2]) {
    let next = stacks.map(Stack::poll).into_iter().flatten().min();
    thread::sleep(next.unwrap_or_default().min(Duration::from_micros(100)));
}

/// Returns the bytes that have arrived on a nonblocking stream; none if there are none yet.
fn read_some(mut stream: &TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    match stream.read(buffer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().manual().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().manual().device(right).address("10.0.0.2/24".parse()?).build()?;

    let listener = TcpListener::bind_with_backlog(&server, "10.0.0.2:7", 1024)?;
    listener.set_nonblocking(true)?;
    let to = "10.0.0.2:7".parse()?;
    let connect = |_| TcpStream::connect_nonblocking(&client, to);
    let clients = (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>, _>>()?;
    println!("{} connections, none established yet", clients.len());

    let mut served = Vec::new();
    while served.len() < CONNECTIONS {
        run([&client, &server]);
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                served.push(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    println!("{} accepted", served.len());

    for (number, mut stream) in clients.iter().enumerate() {
        stream.write_all(&u32::try_from(number)?.to_be_bytes())?;
    }
    let mut answers = vec![None; CONNECTIONS];
    let mut buffer = [0; 4];
    while answers.contains(&None) {
        run([&client, &server]);
        for mut stream in &served {
            // Four bytes in one segment: a protocol with longer messages would collect them.
            let count = read_some(stream, &mut buffer)?;
            stream.write_all(&buffer[..count])?;
        }
        for (answer, stream) in answers.iter_mut().zip(&clients) {
            if read_some(stream, &mut buffer)? == buffer.len() {
                *answer = Some(u32::from_be_bytes(buffer));
            }
        }
    }
    let right = answers.iter().zip(0..).filter(|(answer, number)| **answer == Some(*number));
    assert_eq!(right.count(), CONNECTIONS);
    println!("{} answers, all of them right", answers.len());
    Ok(())
}
