//! nc and socat both ways: against `quietline serve`, and `quietline connect` against the kernel's listeners.
//!
//! What counts besides the bytes is the end: half-close in each direction, and both programs exiting by themselves.
//!
//! Not here: abrupt ends (`death.rs`).

use std::time::Duration;

use anyhow::{Result, ensure};
use netns_tests::{Content, KERNEL, Lab, Link, Quietline, Running, STACK, sha256};

const BYTES: usize = 32 << 20;
const LIMIT: Duration = Duration::from_secs(50);

/// Sends a file to the echo service with this shell line and compares what came back.
fn echo_with(test: &str, program: &str, line: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &[program])? else { return Ok(()) };
    let content = Content::create(lab.directory(), "in", BYTES, 1)?;
    let server = lab.serve(&Link::default(), &["echo", "--port", "7"])?;
    lab.shell(line)?;
    ensure!(sha256(&lab.file("out"))? == content.sha256, "the echo differs");
    server.interrupt()?;
    Ok(())
}

/// Connects to a program of the kernel side that listens on 5000: sends one file, receives another.
fn connect_to(test: &str, program: &str, listen: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &[program])? else { return Ok(()) };
    let to_kernel = Content::create(lab.directory(), "to-kernel", BYTES, 1)?;
    let to_stack = Content::create(lab.directory(), "to-stack", BYTES, 2)?;
    let mut listener = lab.namespace.command("bash");
    listener.args(["-c", &format!("cd '{}' && {listen}", lab.directory().display())]);
    let listener = Running::start(&mut listener)?;
    wait_for_listener(&lab, 5000)?;

    let stack = Quietline::connect(&lab.namespace, &Link::default(), 5000, &to_kernel.path)?;
    let stack = stack.wait(LIMIT)?;
    let received = std::fs::metadata(lab.file("from-stack")).map_or(0, |file| file.len());
    ensure!(stack.status.success(), "quietline connect: {} {}", stack.status, stack.stderr);
    listener.wait(LIMIT)?.success()?;
    let sent = sha256(&lab.file("from-stack"))?;
    ensure!(sent == to_kernel.sha256, "the kernel got something else ({received} bytes)");
    ensure!(stack.stdout_sha256()? == to_stack.sha256, "the stack got something else");
    Ok(())
}

/// Waits until a kernel program listens on the port.
fn wait_for_listener(lab: &Lab, port: u16) -> Result<()> {
    let line = format!(
        "for i in $(seq 200); do ss -Hltn 'sport = :{port}' | grep -q . && exit 0; sleep 0.02; done; exit 1"
    );
    lab.shell(&line)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nc_gets_its_echo() -> Result<()> {
        echo_with("nc_gets_its_echo", "nc", &format!("nc -N {STACK} 7 <in >out"))
    }

    #[test]
    fn socat_gets_its_echo() -> Result<()> {
        echo_with("socat_gets_its_echo", "socat", &format!("socat -t30 - TCP:{STACK}:7 <in >out"))
    }

    #[test]
    fn echo_with_tiny_writes() -> Result<()> {
        let line = format!(
            "head -c 200000 in >some && socat -b100 -t30 - TCP:{STACK}:7,nodelay <some >out && \
                            cmp some out && cp in out"
        );
        echo_with("echo_with_tiny_writes", "socat", &line)
    }

    #[test]
    fn discard_takes_everything_and_closes() -> Result<()> {
        let name = "discard_takes_everything_and_closes";
        let Some(lab) = Lab::open(name, &["nc"])? else { return Ok(()) };
        Content::create(lab.directory(), "in", BYTES, 1)?;
        let server = lab.serve(&Link::default(), &["discard", "--port", "9"])?;
        let printed = lab.shell(&format!("nc -N {STACK} 9 <in | wc -c"))?;
        ensure!(printed.trim() == "0", "discard answered {printed}");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn chargen_runs_until_the_reader_has_enough() -> Result<()> {
        let name = "chargen_runs_until_the_reader_has_enough";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let mut server = lab.serve(&Link::default(), &["chargen", "--port", "19"])?;
        let line =
            format!("(socat -u TCP:{STACK}:19 - || true) | head -c 10000000 >out; ls -l out");
        lab.shell(&line)?;
        let text = std::fs::read(lab.file("out"))?;
        // RFC 864's pattern: lines of 72 printable characters that begin one character later each time.
        ensure!(text.len() == 10_000_000, "{} bytes", text.len());
        let mut lines = text.split(|byte| *byte == b'\n');
        let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        ensure!(first.len() == 73 && first.ends_with(b"\r"), "a line of {}", first.len());
        ensure!(first[1..72] == second[..71], "the pattern does not move");
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn connect_reaches_a_kernel_nc() -> Result<()> {
        connect_to("connect_reaches_a_kernel_nc", "nc", "nc -l -N 5000 <to-stack >from-stack")
    }

    #[test]
    fn connect_reaches_a_kernel_socat() -> Result<()> {
        let listen = "socat -t30 TCP-LISTEN:5000,reuseaddr - <to-stack >from-stack";
        connect_to("connect_reaches_a_kernel_socat", "socat", listen)
    }

    #[test]
    fn a_half_closed_stream_still_brings_the_answer() -> Result<()> {
        let name = "a_half_closed_stream_still_brings_the_answer";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", BYTES, 1)?;
        // sha256sum answers only after it has seen the end of the stack's stream.
        let mut listener = lab.namespace.command("socat");
        listener.args(["-t30", "TCP-LISTEN:5000,reuseaddr", "EXEC:sha256sum"]);
        let _listener = Running::start(&mut listener)?;
        wait_for_listener(&lab, 5000)?;
        let stack = Quietline::connect(&lab.namespace, &Link::default(), 5000, &content.path)?;
        let answer = stack.wait(LIMIT)?.success()?;
        ensure!(answer.starts_with(&content.sha256), "answered {answer}");
        Ok(())
    }

    #[test]
    fn a_refused_connection_is_one_line() -> Result<()> {
        let Some(lab) = Lab::open("a_refused_connection_is_one_line", &[])? else { return Ok(()) };
        let input = lab.file("in");
        std::fs::write(&input, "nobody hears")?;
        let stack = Quietline::connect(&lab.namespace, &Link::default(), 5999, &input)?;
        let ended = stack.wait(LIMIT)?;
        let stderr = ended.stderr.trim();
        ensure!(ended.status.code() == Some(1), "{}: {stderr}", ended.status);
        ensure!(stderr.lines().count() == 1, "not one line: {stderr}");
        ensure!(stderr.contains("refused"), "does not say why: {stderr}");
        ensure!(ended.took < Duration::from_secs(5), "took {:?}", ended.took);
        let address = format!("{KERNEL}:5999");
        ensure!(stderr.contains(&address), "does not say where: {stderr}");
        Ok(())
    }
}
