//! nc and socat in both roles: against `quietline serve`, and `quietline connect` against the
//! kernel's listeners.
//!
//! The tests check the bytes and the end: half-close in each direction, and both programs exit by
//! themselves.
//!
//! Not here: abrupt ends (`abrupt_end.rs`).

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use netns_tests::{Content, KERNEL, Lab, Link, Quietline, Running, STACK, sha256};

const BYTES: usize = 32 << 20;
const LIMIT: Duration = Duration::from_secs(50);

/// Sends a file to the echo service with this shell command and compares the echo.
fn echo_with(test: &str, program: &str, line: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &[program])? else { return Ok(()) };
    let content = Content::create(lab.directory(), "in", BYTES, 1)?;
    let server = lab.serve(&Link::default(), &["echo", "--port", "7"])?;
    lab.shell(line)?;
    ensure!(sha256(&lab.file("out"))? == content.sha256, "the echo differs");
    server.interrupt()?;
    Ok(())
}

/// Starts a program on the kernel side that listens on port 5000, in the scratch directory.
fn listen(lab: &Lab, line: &str) -> Result<Running> {
    let mut listener = lab.namespace.command("bash");
    listener.args(["-c", &format!("cd '{}' && exec {line}", lab.directory().display())]);
    let listener = Running::start(&mut listener)?;
    lab.wait_for_listener(5000)?;
    Ok(listener)
}

/// Starts `quietline connect` to that port with a file as its standard input, or with an input that
/// never ends.
fn connect(lab: &Lab, input: Option<&Path>) -> Result<Running> {
    let input = match input {
        Some(path) => Stdio::from(File::open(path)?),
        None => Stdio::piped(),
    };
    Quietline::connect(&lab.namespace, &Link::default(), 5000, input)
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
    fn tiny_writes_are_echoed() -> Result<()> {
        let line = format!(
            "head -c 200000 in >some && socat -b100 -t30 - TCP:{STACK}:7,nodelay <some >out && \
                            cmp some out && cp in out"
        );
        echo_with("tiny_writes_are_echoed", "socat", &line)
    }

    #[test]
    fn discard_reads_everything_and_closes() -> Result<()> {
        let name = "discard_reads_everything_and_closes";
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
        // The pattern of RFC 864: lines of 72 printable characters, each shifted by one character.
        ensure!(text.len() == 10_000_000, "{} bytes", text.len());
        let mut lines = text.split(|byte| *byte == b'\n');
        let (first, second) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        ensure!(first.len() == 73 && first.ends_with(b"\r"), "a line of {}", first.len());
        ensure!(first[1..72] == second[..71], "the pattern is not shifted");
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn connect_sends_to_a_kernel_nc() -> Result<()> {
        let Some(lab) = Lab::open("connect_sends_to_a_kernel_nc", &["nc"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", BYTES, 1)?;
        // nc has no input and shuts down its side at once; the stack still sends everything.
        let listener = listen(&lab, "nc -l -N 5000 </dev/null >out")?;
        connect(&lab, Some(&content.path))?.wait(LIMIT)?.success()?;
        listener.wait(LIMIT)?.success()?;
        ensure!(sha256(&lab.file("out"))? == content.sha256, "the kernel received other bytes");
        Ok(())
    }

    #[test]
    fn connect_receives_from_a_kernel_nc() -> Result<()> {
        let name = "connect_receives_from_a_kernel_nc";
        let Some(lab) = Lab::open(name, &["nc"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", BYTES, 1)?;
        let listener = listen(&lab, "nc -l -N 5000 <in")?;
        // nc would stop reading its own input once the stack's side ends, so that side stays open.
        let received = connect(&lab, None)?.wait(LIMIT)?;
        let bytes = received.stdout_bytes.len();
        ensure!(received.stdout_sha256()? == content.sha256, "got {bytes} wrong bytes");
        received.success()?;
        listener.wait(LIMIT)?.success()?;
        Ok(())
    }

    #[test]
    fn connect_exchanges_both_streams_with_a_kernel_socat() -> Result<()> {
        let name = "connect_exchanges_both_streams_with_a_kernel_socat";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let to_kernel = Content::create(lab.directory(), "to-kernel", BYTES, 1)?;
        let to_stack = Content::create(lab.directory(), "to-stack", BYTES, 2)?;
        let line = "socat -t30 TCP-LISTEN:5000,reuseaddr - <to-stack >from-stack";
        let listener = listen(&lab, line)?;
        let received = connect(&lab, Some(&to_kernel.path))?.wait(LIMIT)?;
        listener.wait(LIMIT)?.success()?;
        ensure!(sha256(&lab.file("from-stack"))? == to_kernel.sha256, "stack → kernel differs");
        ensure!(received.stdout_sha256()? == to_stack.sha256, "kernel → stack differs");
        received.success()?;
        Ok(())
    }

    #[test]
    fn a_half_closed_connection_still_receives_the_answer() -> Result<()> {
        let name = "a_half_closed_connection_still_receives_the_answer";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", BYTES, 1)?;
        // sha256sum answers only after the end of the stack's stream.
        let _listener = listen(&lab, "socat -t30 TCP-LISTEN:5000,reuseaddr EXEC:sha256sum")?;
        let answer = connect(&lab, Some(&content.path))?.wait(LIMIT)?.success()?;
        ensure!(answer.starts_with(&content.sha256), "answered {answer}");
        Ok(())
    }

    #[test]
    fn a_refused_connection_is_reported_in_one_line() -> Result<()> {
        let Some(lab) = Lab::open("a_refused_connection_is_reported_in_one_line", &[])? else {
            return Ok(());
        };
        let input = lab.file("in");
        std::fs::write(&input, "not received")?;
        let input = Stdio::from(File::open(&input)?);
        let stack = Quietline::connect(&lab.namespace, &Link::default(), 5999, input)?;
        let ended = stack.wait(LIMIT)?;
        let stderr = ended.stderr.trim();
        ensure!(ended.status.code() == Some(1), "{}: {stderr}", ended.status);
        ensure!(stderr.lines().count() == 1, "more than one line: {stderr}");
        ensure!(stderr.contains("refused"), "no reason: {stderr}");
        ensure!(ended.took < Duration::from_secs(5), "took {:?}", ended.took);
        let address = format!("{KERNEL}:5999");
        ensure!(stderr.contains(&address), "no address: {stderr}");
        Ok(())
    }
}
