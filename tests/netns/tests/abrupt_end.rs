//! Abrupt ends: a killed peer, a killed quietline, and Ctrl-C.
//!
//! After each, the surviving side serves the next peer, and no link, process or namespace is left.
//!
//! Not here: orderly ends (`netcat.rs`).

use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netns_tests::{Content, Finished, Lab, Link, Quietline, Running, STACK, binary};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(5);

/// Fails unless link and processes of the namespace are gone.
fn ensure_nothing_left(lab: &Lab) -> Result<()> {
    let deadline = Instant::now() + SOON;
    while lab.namespace.has_link(Link::NAME) {
        ensure!(Instant::now() < deadline, "the link still exists");
        sleep(Duration::from_millis(10));
    }
    let left = lab.namespace.processes()?;
    ensure!(left.is_empty(), "processes left in the namespace: {left:?}");
    Ok(())
}

/// Checks that an end by Ctrl-C ran the clean-up: an exit code, not a signal.
fn ensure_orderly(ended: &Finished) -> Result<()> {
    let code = ended.status.code();
    ensure!(matches!(code, Some(0 | 130)), "{}: {}", ended.status, ended.stderr);
    ensure!(!ended.stderr.contains("panicked"), "panicked: {}", ended.stderr);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_survives_killed_peers() -> Result<()> {
        let test = "a_server_survives_killed_peers";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let root = lab.file("root");
        std::fs::create_dir(&root)?;
        let content = Content::create(&root, "bulk", 64 << 20, 1)?;
        let root_text = root.display().to_string();
        let mut server = lab.serve(&Link::default(), &["http", "--dir", &root_text, "--upload"])?;
        let url = format!("http://{STACK}/bulk");
        let from = content.path.display().to_string();
        for round in 0..10 {
            let mut curl = lab.namespace.command("curl");
            curl.args(["-sS", "--limit-rate", "4M", "-o", "/dev/null"]);
            if round % 2 == 0 {
                curl.arg(&url)
            } else {
                curl.args(["-T", &from, &format!("http://{STACK}/up")])
            };
            let mut peer = Running::start(&mut curl)?;
            sleep(Duration::from_millis(200));
            peer.kill();
        }
        let printed = lab.shell(&format!("curl -sSf --max-time 30 {url} | sha256sum"))?;
        ensure!(printed.starts_with(&content.sha256), "the download after them differs");
        server.assert_alive()?;
        ensure_orderly(&server.interrupt()?)?;
        ensure_nothing_left(&lab)
    }

    #[test]
    fn a_killed_quietline_leaves_nothing_behind() -> Result<()> {
        let test = "a_killed_quietline_leaves_nothing_behind";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "bulk", 64 << 20, 1)?;
        let directory = lab.directory().display().to_string();
        let words = ["http", "--dir", &directory];
        let server = lab.serve(&Link::default(), &words)?;
        let url = format!("http://{STACK}/bulk");
        let mut curl = lab.namespace.command("curl");
        curl.args(["-sS", "--limit-rate", "4M", "--max-time", "30", "-o", "/dev/null", &url]);
        let mut peer = Running::start(&mut curl)?;
        sleep(Duration::from_millis(300));
        server.kill();
        peer.kill();
        ensure_nothing_left(&lab)?;
        // The name and the address are free again at once.
        let server = lab.serve(&Link::default(), &words)?;
        let printed = lab.shell(&format!("curl -sSf --max-time 30 {url} | sha256sum"))?;
        ensure!(printed.starts_with(&content.sha256), "the download after it differs");
        ensure_orderly(&server.interrupt()?)
    }

    #[test]
    fn connect_reports_a_killed_listener() -> Result<()> {
        let test = "connect_reports_a_killed_listener";
        let Some(lab) = Lab::open(test, &["socat"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", 64 << 20, 1)?;
        let mut listen = lab.namespace.command("socat");
        // Reads nothing: the stack's window closes with data unread, so that the kernel ends the
        // connection by a reset.
        listen.args(["-u", "PIPE", "TCP-LISTEN:5000,reuseaddr"]);
        let mut listener = Running::start(&mut listen)?;
        lab.shell("for i in $(seq 200); do ss -Hltn 'sport = :5000' | grep -q . && exit 0; sleep 0.02; done; exit 1")?;
        let link = Link::default();
        let input = Stdio::from(std::fs::File::open(&content.path)?);
        let stack = Quietline::connect(&lab.namespace, &link, 5000, input)?;
        sleep(Duration::from_secs(1));
        listener.kill();
        let ended = stack.wait(SOON)?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stderr.trim().lines().count() == 1, "more than one line: {}", ended.stderr);
        ensure_nothing_left(&lab)
    }

    #[test]
    fn ctrl_c_ends_a_server_with_open_connections() -> Result<()> {
        let test = "ctrl_c_ends_a_server_with_open_connections";
        let Some(lab) = Lab::open(test, &["socat"])? else { return Ok(()) };
        let server = lab.serve(&Link::default(), &["chargen", "--port", "19"])?;
        let mut readers = Vec::new();
        for _ in 0..5 {
            let mut reader = lab.namespace.command("socat");
            reader.args(["-u", &format!("TCP:{STACK}:19"), "/dev/null"]);
            readers.push(Running::start(&mut reader)?);
        }
        sleep(Duration::from_millis(500));
        let start = Instant::now();
        ensure_orderly(&server.interrupt()?)?;
        ensure!(start.elapsed() < SOON, "took {:?}", start.elapsed());
        drop(readers);
        ensure_nothing_left(&lab)
    }

    #[test]
    fn ctrl_c_ends_a_waiting_connect() -> Result<()> {
        let test = "ctrl_c_ends_a_waiting_connect";
        let Some(lab) = Lab::open(test, &["nc"])? else { return Ok(()) };
        let mut listener = Running::start(lab.namespace.command("nc").args(["-l", "-d", "5000"]))?;
        lab.wait_for_listener(5000)?;
        let mut connect = lab.namespace.command(binary()?);
        connect.args(["connect", "10.77.0.1", "5000", "--link=tap:ql0"]);
        connect.args([format!("--address={STACK}/24"), "--peer=10.77.0.1/24".to_owned()]);
        // Standard input stays open and empty, so that connect does not end by itself.
        let connect = Running::start_with_input(connect.stdin(Stdio::piped()))?;
        let deadline = Instant::now() + SOON;
        while !lab.namespace.has_link(Link::NAME) {
            ensure!(Instant::now() < deadline, "no link: {}", connect.stderr_so_far());
            sleep(Duration::from_millis(10));
        }
        sleep(Duration::from_millis(500));
        connect.signal(Signal::INT)?;
        ensure_orderly(&connect.wait(SOON)?)?;
        listener.kill();
        ensure_nothing_left(&lab)
    }

    #[test]
    fn ctrl_c_ends_the_demo() -> Result<()> {
        let Some(lab) = Lab::open("ctrl_c_ends_the_demo", &[])? else { return Ok(()) };
        let demo = Running::start(lab.namespace.command(binary()?).arg("demo"))?;
        sleep(Duration::from_secs(2));
        demo.signal(Signal::INT)?;
        ensure_orderly(&demo.wait(SOON)?)?;
        ensure_nothing_left(&lab)
    }
}
