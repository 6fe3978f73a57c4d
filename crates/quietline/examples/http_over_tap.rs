//! A web server on a stack of its own, reached by the Linux kernel through a tap. It needs root (or
//! `CAP_NET_ADMIN`).
//!
//! The tap `qlexample` exists as long as the program runs. The kernel's end is 10.77.0.1, the
//! stack's 10.77.0.2. The program asks its server itself, by the kernel's sockets; with `--stay` it
//! goes on serving, so that `curl http://10.77.0.2/` and `ping 10.77.0.2` can be tried from another
//! terminal.
//!
//! Run it with `sudo -E cargo run -p quietline --example http_over_tap`. It prints:
//!
//! ```text
//! serving http://10.77.0.2:80
//! the request: GET / HTTP/1.1
//! the answer: HTTP/1.1 200 OK
//! the content: hello from user space
//! ```

use std::{
    error::Error,
    io::{BufRead, BufReader, Read, Write},
    thread,
};

use quietline::{
    Stack, TcpListener, TcpStream,
    device::{Tun, TunConfig},
};

const CONTENT: &str = "hello from user space\n";

/// Answers one request with [`CONTENT`]; returns the request line.
fn answer(stream: &TcpStream) -> std::io::Result<String> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The header lines end with an empty one.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n";
    let mut stream = stream;
    write!(stream, "{head}Content-Length: {}\r\n\r\n{CONTENT}", CONTENT.len())?;
    Ok(request)
}

/// Asks for `/` by the kernel's sockets; returns the whole answer.
fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: 10.77.0.2\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let host_address = Some("10.77.0.1/24".parse()?);
    let tap = Tun::create(&TunConfig { host_address, ..TunConfig::tap("qlexample") })?;
    let stack = Stack::builder().device(tap).address("10.77.0.2/24".parse()?).build()?;
    let listener = TcpListener::bind(&stack, "10.77.0.2:80")?;
    println!("serving http://{}", listener.local_addr()?);

    let kernel = thread::spawn(|| ask("10.77.0.2:80"));
    let (stream, _) = listener.accept()?;
    println!("the request: {}", answer(&stream)?);
    drop(stream);
    let answered = kernel.join().expect("the asking thread")?;
    let (head, content) = answered.split_once("\r\n\r\n").ok_or("an answer without an end")?;
    println!("the answer: {}", head.lines().next().unwrap_or_default());
    print!("the content: {content}");

    while std::env::args().any(|argument| argument == "--stay") {
        let (stream, peer) = listener.accept()?;
        thread::spawn(move || match answer(&stream) {
            Ok(request) => println!("{peer}: {request}"),
            Err(error) => eprintln!("{peer}: {error}"),
        });
    }
    Ok(())
}
