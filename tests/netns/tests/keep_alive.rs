//! Many keep-alive connections of `serve http` that wait for their next request: their memory, and
//! the memory left after their end.
//!
//! The clients are kernel sockets of this process, opened inside the namespace.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Lab, Link, Quietline, STACK};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as `serve` accepts by default, with room for one more.
const CONNECTIONS: usize = 4000;

/// Largest memory of the process at any time.
const PEAK_KB: u64 = 200_000;

/// Largest memory of the process after the connections have ended.
const REST_KB: u64 = 40_000;

/// Time from the end of the connections until their memory must be released.
const RELEASE_MAX: Duration = Duration::from_secs(60);

const LIMIT: Duration = Duration::from_secs(20);

const REQUEST: &[u8] = b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n";

/// Makes room for all descriptors; a soft limit of 1024 is common.
fn raise_descriptor_limit() -> Result<()> {
    let old = getrlimit(Resource::Nofile);
    let wanted = old.maximum.map_or(65_536, |most| most.min(65_536));
    let new = Rlimit { current: Some(wanted), maximum: old.maximum };
    setrlimit(Resource::Nofile, new).context("raising the limit of descriptors")
}

/// Returns a number of /proc/PID/status: kilobytes of memory, or threads.
fn status(server: &Quietline, field: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.id()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
    let number = line.trim_start_matches(':').split_whitespace().next().context("no number")?;
    Ok(number.parse()?)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends one request and reads its whole response, which ends with the file's content.
fn ask(stream: &mut TcpStream, content: &[u8]) -> Result<()> {
    stream.write_all(REQUEST)?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(content) {
        let count = stream.read(&mut buffer).context("the answer")?;
        ensure!(count > 0, "the connection ended behind {} bytes", answer.len());
        answer.extend_from_slice(&buffer[..count]);
    }
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_cost_little_and_leave_nothing() -> Result<()> {
        let Some(lab) = Lab::open("idle_connections_cost_little_and_leave_nothing", &[])? else {
            return Ok(());
        };
        raise_descriptor_limit()?;
        let content = b"a line of the file that is served\n".repeat(100);
        std::fs::write(lab.file("file"), &content)?;
        let dir = lab.directory().to_str().context("a path")?;
        let mut server = lab.serve(&Link::default(), &["http", "--port", "80", "--dir", dir])?;
        let address: SocketAddr = format!("{STACK}:80").parse()?;
        lab.namespace.enter(|| -> Result<()> {
            let mut streams = Vec::new();
            for number in 0..CONNECTIONS {
                let mut stream = connect(address).with_context(|| format!("number {number}"))?;
                ask(&mut stream, &content).with_context(|| format!("number {number}"))?;
                streams.push(stream);
            }
            // All of them are still served.
            for stream in &mut streams {
                ask(stream, &content)?;
            }
            let (threads, rest) = (status(&server, "Threads")?, status(&server, "VmRSS")?);
            println!("{CONNECTIONS} idle connections: {threads} threads, {rest} kB");
            ensure!(threads < 100, "{threads} threads for idle connections");
            Ok(())
        })?;
        let peak = status(&server, "VmHWM")?;
        ensure!(peak <= PEAK_KB, "{peak} kB at the peak");
        let begin = Instant::now();
        let mut rest = status(&server, "VmRSS")?;
        while rest > REST_KB && begin.elapsed() < RELEASE_MAX {
            sleep(Duration::from_millis(500));
            rest = status(&server, "VmRSS")?;
        }
        println!("{peak} kB at the peak, {rest} kB {:?} after the end", begin.elapsed());
        ensure!(rest <= REST_KB, "of {peak} kB {rest} kB stay");
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }
}
