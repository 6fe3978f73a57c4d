//! The binary from outside: exit codes, one-line refusals, generated documents, and real bytes through
//! `serve` and `connect` over the kernel's sockets.

#![expect(clippy::tests_outside_test_module, reason = "this whole file is one")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

fn quietline(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quietline"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    quietline(arguments).output().expect("the binary runs")
}

/// A server in a child process that ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts a service on a free port of the kernel's loopback.
    fn start(arguments: &[&str]) -> Self {
        // Bound and freed again: the next one to ask for this port is the server.
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
        let port = free.local_addr().expect("address").port().to_string();
        drop(free);
        let mut command = quietline(&["serve", "--link", "kernel", "--port", &port]);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stderr.take().expect("stderr")).read_line(&mut line).expect("a line");
        assert!(line.contains("listening on"), "{line}");
        Self { child, address: format!("127.0.0.1:{port}") }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connection");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        stream
    }

    /// Sends a signal and returns exit code and stdout.
    fn stop(&mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
        let mut text = String::new();
        self.child.stdout.take().expect("stdout").read_to_string(&mut text).expect("text");
        (self.child.wait().expect("exit").code(), text)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn bad_command_lines_get_one_line_and_exit_code_2() {
    for arguments in [
        &[][..],
        &["nothing"],
        &["demo", "--seconds", "abc"],
        &["demo", "--workload", "abc"],
        &["serve", "echo"],
        &["serve", "http", "--link", "tap:q", "--address", "10.0.0.2/24"],
        &["serve", "http", "--link", "kernel", "--dir", "/no/such/directory"],
        &["serve", "chargen", "--link", "kernel", "--zerocopy"],
        &["serve", "echo", "--link", "tap:q"],
        &["serve", "echo", "--link", "bond:q", "--address", "10.0.0.2/24"],
        &["serve", "echo", "--link", "tap:q", "--address", "10.0.0.2"],
        &["serve", "echo", "--link", "tap:q", "--address", "10.0.0.0/24"],
        &["serve", "echo", "--link", "tap:q", "--address", "10.0.0.2/24", "--gateway", "10.1.0.1"],
        &["serve", "echo", "--link", "tap:q", "--address", "10.0.0.2/24", "--peer", "fe80::1/64"],
        &["serve", "echo", "--link", "tap:q", "--address", "10.0.0.2/24", "--mtu", "12"],
        &["serve", "echo", "--link", "kernel", "--address", "10.0.0.2/24"],
        &["connect", "10.0.0.300", "80", "--link", "kernel"],
        &["connect", "10.0.0.3", "80000", "--link", "kernel"],
        &["connect", "0.0.0.0", "80", "--link", "kernel"],
        &["connect", "fd00::1", "80", "--link", "tap:q", "--address", "10.0.0.2/24"],
        &["connect", "fd00::1", "80", "--link", "tap:q", "--address", "fd00::2/64"],
        &["completions", "abc"],
    ] {
        let output = run(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
        assert!(complaint.starts_with("quietline: ") && output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [&["--help"][..], &["--version"], &["serve", "--help"], &["help", "demo"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn documents_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && output.stdout.len() > 1000, "{shell}");
    }
    let page = run(&["man"]);
    assert!(String::from_utf8_lossy(&page.stdout).contains(".TH quietline 1"));
    let dir = tempfile::tempdir().expect("directory");
    assert!(run(&["man", "--dir", dir.path().to_str().expect("path")]).status.success());
    assert!(dir.path().join("quietline-serve.1").exists());
}

#[test]
fn a_closed_stdout_is_no_failure() {
    let mut child = quietline(&["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("exit");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn echo_sends_back_and_ends_by_sigterm_with_a_summary() {
    let mut server = Server::start(&["echo", "--json"]);
    let mut stream = server.connect();
    let sent: Vec<u8> =
        (0..1_000_000_u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    let writer = {
        let (mut stream, sent) = (stream.try_clone().expect("clone"), sent.clone());
        thread::spawn(move || {
            stream.write_all(&sent).expect("written");
            stream.shutdown(std::net::Shutdown::Write).expect("shut down");
        })
    };
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("read");
    writer.join().expect("writer");
    assert!(received == sent);
    // The connection's thread publishes its counts when it lets go of the stream.
    thread::sleep(Duration::from_millis(200));
    let (code, text) = server.stop("-TERM");
    assert_eq!(code, Some(0));
    let summary: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(summary["connections"], 1);
    assert_eq!(
        (&summary["bytes_received"], &summary["bytes_sent"]),
        (&1_000_000.into(), &1_000_000.into())
    );
}

#[test]
fn chargen_and_discard_do_their_work() {
    let mut server = Server::start(&["chargen"]);
    let mut line = [0; 74];
    server.connect().read_exact(&mut line).expect("a line");
    assert!(line.starts_with(b" !\"#$%&'()*+,-./0123456789") && line.ends_with(b"\r\n"));
    assert_eq!(server.stop("-INT").0, Some(0));

    let server = Server::start(&["discard"]);
    let mut stream = server.connect();
    stream.write_all(&[0; 500_000]).expect("written");
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert_eq!(stream.read(&mut line).expect("end"), 0);
}

#[test]
fn connect_carries_stdin_there_and_back() {
    let server = Server::start(&["echo"]);
    let port = server.address.rsplit(':').next().expect("port");
    let mut child = quietline(&["connect", "127.0.0.1", port, "--link", "kernel", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let mut stdin = child.stdin.take().expect("stdin");
    let writer = {
        let sent = sent.clone();
        thread::spawn(move || stdin.write_all(&sent).expect("written"))
    };
    let output = child.wait_with_output().expect("exit");
    writer.join().expect("writer");
    assert!(output.status.success() && output.stdout == sent);
    let summary: serde_json::Value =
        serde_json::from_slice(&output.stderr).expect("one JSON object");
    assert_eq!(summary["bytes_received"], 3_000_000);
}

#[test]
fn connect_says_when_nobody_listens() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let port = free.local_addr().expect("address").port().to_string();
    drop(free);
    let output = run(&["connect", "127.0.0.1", &port, "--link", "kernel"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"));
}

#[test]
fn hundreds_of_connections_at_once() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("f"), "content").expect("file");
    let server = Server::start(&["http", "--dir", dir.path().to_str().expect("path")]);
    // Within the 1024 descriptors a process has by default, ours and the server's.
    let mut streams: Vec<_> = (0..400).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    }
    for stream in &mut streams {
        let mut answer = vec![0; 1024];
        let count = stream.read(&mut answer).expect("an answer");
        assert!(
            answer[..count].starts_with(b"HTTP/1.1 200") && answer[..count].ends_with(b"content")
        );
    }
}

#[test]
fn demo_prints_one_object_with_both_sides() {
    let output = run(&["demo", "--json", "--seconds", "0.2", "--seed", "7"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let object: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("one JSON object");
    let workloads = object["workloads"].as_array().expect("workloads");
    assert_eq!(workloads.len(), 6);
    for workload in workloads {
        // A slice this short may see nothing but a stall, so 0 is a result too.
        assert!(workload["quietline"]["median"].as_f64().expect("median") >= 0.0, "{workload}");
        assert!(workload["quietline"]["n"].as_u64().expect("n") >= 1, "{workload}");
        assert!(workload["unit"].is_string());
        if workload["name"] == "lossy" {
            assert!(workload["kernel"].is_null() && workload["ratio"].is_null());
            assert_eq!(workload["checksum_ok"], true);
        } else {
            let kernel = workload["kernel"]["median"].as_f64().expect("median");
            let ratio = workload["quietline"]["median"].as_f64().expect("median") / kernel;
            if ratio.is_finite() {
                assert!((workload["ratio"].as_f64().expect("ratio") - ratio).abs() < 1e-9);
            }
        }
    }
}

#[test]
fn demo_writes_a_page_that_needs_nothing_else() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("out.html");
    let path = path.to_str().expect("path");
    let output = run(&["demo", "--seconds", "0.1", "--workload", "rr-1", "--report", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(path).expect("page");
    assert!(page.matches("<svg").count() >= 3 && page.contains("request/response"));
    let mut links = page.match_indices("http").map(|(at, _)| &page[at..(at + 30).min(page.len())]);
    // The namespace of SVG is a name, not something to load.
    assert!(links.all(|link| link.starts_with("http://www.w3.org/2000/svg")));
}
