//! Tests of the binary: exit codes, one-line messages, generated documents, and transfers by
//! `serve` and `connect` over the kernel's sockets.

#![expect(clippy::tests_outside_test_module, reason = "this whole file is a test module")]

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

/// A server in a child process, which is killed at the end of the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts a service on a free port of the kernel's loopback.
    fn start(arguments: &[&str]) -> Self {
        // The port is bound and freed again, so that the server can bind it.
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

    /// Sends a signal; returns the exit code and stdout.
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
fn invalid_command_lines_print_one_line_and_exit_with_code_2() {
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
        &["connect", "10.0.0.1", "80", "--link", "tap:q", "--address", "fd00::2/64"],
        &["serve", "echo", "--link", "tap:q", "--address", "::ffff:10.0.0.2/120"],
        &["connect", "10.0.0.3", "0", "--link", "kernel"],
        &["demo", "--stats=5"],
        &["sysctl", "net.ipv4.tcp_timstamps"],
        &["sysctl", "net.ipv4.tcp_sack=2"],
        &["serve", "echo", "--link", "tap:q", "--address", "10.0.0.2/24", "--sysctl", "net.x=1"],
        &["completions", "abc"],
    ] {
        assert_refused(arguments);
    }
}

#[test]
fn invalid_command_lines_of_the_lab_and_of_comparisons_are_refused_likewise() {
    for arguments in [
        &["lab"][..],
        &["lab", "nothing"],
        &["lab", "tsq", "--runs", "3"],
        &["lab", "tsq", "--runs", "0"],
        &["lab", "tsq", "--seed", "x"],
        &["lab", "compare", "one.json"],
        &["lab", "--quick"],
        &["lab", "merge"],
        &["lab", "tsq", "--job", "-1"],
        &["lab", "tsq", "--quick", "--job", "2"],
        &["lab", "tsq", "--plan", "--job", "0"],
        &["lab", "tsq", "--plan", "--json"],
        &["lab", "--plan", "tsq"],
        &["lab", "tsq", "--real", "eth0"],
        &["lab", "tsq", "--peer", "10.0.0.1"],
        &["lab", "tsq", "--echo-port", "8"],
        &[
            "lab",
            "tsq",
            "--real",
            "eth0",
            "--address",
            "10.0.0.9/24",
            "--peer",
            "10.0.0.1",
            "--plan",
        ],
        &["lab", "tsq", "--real", "eth0", "--address", "10.0.0.9", "--peer", "10.0.0.1"],
        &["demo", "--sysctl", "net.quietline.rx_contxt=bh"],
        &["demo", "--sysctl", "net.quietline.rx_context=nothing"],
        &["demo", "--sysctl", "net.quietline.rx_context"],
        &["demo", "--compare", "net.core.busy_read=0"],
        &["demo", "--compare", "net.core.busy_read=0,x"],
        &["demo", "--compare", "net.core.busy_reed=0,50"],
        &["demo", "--compare", "net.core.busy_read=0,50", "--stats"],
        &["demo", "--compare", "net.core.busy_read=0,50", "--pcap", "x.pcapng"],
    ] {
        assert_refused(arguments);
    }
}

/// One line on stderr, nothing on stdout, exit code 2.
fn assert_refused(arguments: &[&str]) {
    let output = run(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {complaint}");
    assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
    assert!(complaint.starts_with("quietline: ") && output.stdout.is_empty(), "{arguments:?}");
}

#[test]
fn help_and_version_go_to_stdout() {
    for arguments in [&["--help"][..], &["--version"], &["serve", "--help"], &["help", "demo"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}");
    }
}

/// One experiment from the command line to its files, and a comparison of the result with itself.
#[test]
fn the_lab_prints_stores_and_compares_an_experiment() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().to_str().expect("path");
    let line = ["lab", "tsq", "--quick", "--runs", "2", "--seed", "3", "--json", "--report", path];
    let output = run(&line);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(printed["command"], "lab");
    assert_eq!(printed["repeat"], "quietline lab tsq --quick --runs 2 --seed 3");
    assert!(printed["machine"]["cpus"].as_u64().is_some_and(|cpus| cpus > 0));
    let experiment = &printed["experiments"][0];
    assert_eq!((&experiment["name"], &experiment["runs"]), (&"tsq".into(), &2.into()));
    let arms = experiment["conditions"][0]["arms"].as_array().expect("arms");
    let metrics = experiment["metrics"].as_array().expect("metrics");
    for arm in arms {
        let runs = arm["runs"].as_array().expect("runs");
        assert_eq!(runs.len(), 2);
        for run in runs {
            assert_eq!(run["metrics"].as_array().map(Vec::len), Some(metrics.len()));
        }
    }
    for comparison in experiment["comparisons"].as_array().expect("comparisons") {
        let verdict = comparison["verdict"].as_str().expect("a verdict");
        let words =
            ["invalid", "no-difference", "not-significant", "equivalent", "better", "worse"];
        assert!(words.contains(&verdict), "{verdict}");
    }
    for name in ["lab.html", "lab.csv", "lab.json"] {
        assert!(dir.path().join(name).metadata().is_ok_and(|file| file.len() > 1000), "{name}");
    }
    let stored = dir.path().join("lab.json");
    let stored = stored.to_str().expect("path");
    let compared = run(&["lab", "compare", stored, stored, "--json"]);
    assert!(compared.status.success());
    let compared: serde_json::Value = serde_json::from_slice(&compared.stdout).expect("JSON");
    let rows = compared["arms"].as_array().expect("arms");
    assert!(rows.iter().all(|row| row["verdict"] == "no difference"), "{rows:?}");
}

/// Runs `quietline lab` and returns its JSON object.
fn lab(arguments: &[&str]) -> serde_json::Value {
    let output = run(&[&["lab"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Removes what depends on the time at which a result was measured.
fn timeless(mut result: serde_json::Value) -> serde_json::Value {
    for experiment in result["experiments"].as_array_mut().expect("experiments") {
        experiment["elapsed_s"] = 0.into();
        for condition in experiment["conditions"].as_array_mut().expect("conditions") {
            condition["load"] = serde_json::Value::Null;
        }
    }
    result["experiments"].take()
}

/// In virtual time a sweep measures what one process measures, bit by bit.
#[test]
fn the_jobs_of_a_plan_merge_into_the_result_of_one_process() {
    let dir = tempfile::tempdir().expect("directory");
    let base = ["tsq", "--quick", "--runs", "2", "--seed", "5"];
    let plan = run(&[&["lab"], &base[..], &["--plan"]].concat());
    assert!(plan.status.success() && plan.stderr.is_empty());
    let plan = String::from_utf8(plan.stdout).expect("text");
    let mut files = Vec::new();
    for (number, line) in plan.lines().enumerate() {
        let job: serde_json::Value = serde_json::from_str(line).expect("one object in a line");
        assert_eq!((&job["job"], &job["experiment"]), (&number.into(), &"tsq".into()));
        let command = job["command"].as_str().expect("a command");
        let report = dir.path().join(number.to_string());
        let report = report.to_str().expect("path");
        let arguments: Vec<_> = command.split(' ').skip(1).chain(["--report", report]).collect();
        assert!(run(&arguments).status.success(), "{command}");
        files.push(format!("{report}/lab.json"));
    }
    assert!(files.len() > 1);
    let files: Vec<_> = files.iter().map(String::as_str).rev().collect();
    let whole = lab(&[&base[..], &["--json"]].concat());
    let report = dir.path().join("all");
    let report = report.to_str().expect("path");
    let merged = lab(&[&["merge"][..], &files, &["--json", "--report", report]].concat());
    assert_eq!(merged["repeat"], whole["repeat"]);
    assert_eq!(merged["jobs"].as_array().map(Vec::len), Some(files.len()));
    assert!(timeless(merged) == timeless(whole), "the merged result is another one");
    assert!(dir.path().join("all/lab.html").exists());
    let partial = run(&["lab", "merge", files[0]]);
    let complaint = String::from_utf8_lossy(&partial.stderr);
    assert_eq!(partial.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("missing") && complaint.contains("--partial"), "{complaint}");
    assert!(run(&["lab", "merge", files[0], "--partial"]).status.success());
}

#[test]
fn all_experiments_have_a_plan_without_a_word() {
    let [short, long] =
        [&["lab", "--plan", "--quick"][..], &["lab", "all", "--quick", "--plan"]].map(run);
    assert!(short.status.success() && short.stdout == long.stdout);
    let text = String::from_utf8(short.stdout).expect("text");
    for experiment in ["prequeue", "gro-batch", "dst-layout", "tsq", "skb-cache"] {
        assert!(text.contains(&format!("\"experiment\":\"{experiment}\"")), "{text}");
    }
}

#[test]
fn the_test_of_the_lab_is_a_command_and_no_part_of_all() {
    let plan = run(&["lab", "selftest", "--plan"]);
    let text = String::from_utf8(plan.stdout).expect("text");
    assert!(plan.status.success() && text.lines().count() == 1, "{text}");
    assert!(text.contains("quietline lab selftest --seed 1 --job 0"), "{text}");
    let all = run(&["lab", "all", "--plan"]);
    assert!(!String::from_utf8_lossy(&all.stdout).contains("selftest"));
    let help = String::from_utf8(run(&["lab", "--help"]).stdout).expect("text");
    assert!(help.contains("selftest"), "{help}");
}

/// The command fails if and only if a verdict is not the expected one, and prints the result in
/// either case. Whether a verdict is right depends on the machine.
#[test]
fn the_test_of_the_lab_fails_with_an_unexpected_verdict() {
    let output = run(&["lab", "selftest", "--quick", "--json"]);
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a record");
    let comparisons = record["experiments"][0]["comparisons"].as_array().expect("comparisons");
    let is_claim = |verdict: &serde_json::Value| verdict == "better" || verdict == "worse";
    let as_expected = comparisons.iter().all(|own| match own["arm"].as_str() {
        Some("slower") => own["verdict"] == "worse",
        _ => !is_claim(&own["verdict"]) && own["verdict"] != "invalid",
    });
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!((comparisons.len(), output.status.success()), (2, as_expected), "{complaint}");
    assert_eq!(complaint.contains("cannot be trusted"), !as_expected, "{complaint}");
}

#[test]
fn an_interface_that_cannot_be_opened_is_a_failure_of_one_line() {
    let link = ["--real", "no-such-if", "--address", "10.0.0.9/24", "--peer", "10.0.0.1"];
    let output = run(&[&["lab", "tsq", "--quick", "--runs", "2"], &link[..]].concat());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
}

#[test]
fn results_that_cannot_be_read_are_a_failure_of_one_line() {
    let dir = tempfile::tempdir().expect("directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("path").to_owned()
    };
    let (empty, other) = (file("empty.json", ""), file("other.json", "{\"command\": \"demo\"}"));
    for path in ["/no/such/file.json", &empty, &other] {
        for arguments in [&["compare", path, path][..], &["merge", path]] {
            let output = run(&[&["lab"], arguments].concat());
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {complaint}");
            assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
            assert!(complaint.contains(path) && output.stdout.is_empty(), "{complaint}");
        }
    }
}

#[test]
fn completions_and_man_pages_are_generated() {
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
fn a_closed_stdout_is_not_an_error() {
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
fn echo_returns_all_bytes_and_prints_a_summary_at_sigterm() {
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
    // The connection's thread publishes its byte counts when it drops the stream.
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
fn chargen_and_discard_serve_a_connection() {
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
fn connect_sends_stdin_and_prints_the_response() {
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
fn connect_exchanges_datagrams_of_both_ip_versions() {
    for local in ["127.0.0.1:0", "[::1]:0"] {
        // A machine may have no IPv6.
        let Ok(server) = std::net::UdpSocket::bind(local) else { continue };
        let address = server.local_addr().expect("an address");
        let echo = thread::spawn(move || {
            let mut buffer = [0; 2000];
            let (len, peer) = server.recv_from(&mut buffer).expect("a datagram");
            server.send_to(&buffer[..len], peer).expect("sent");
            len
        });
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let mut child = quietline(&["connect", &host, &port, "--udp", "--link", "kernel"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        child.stdin.take().expect("stdin").write_all(b"one datagram").expect("written");
        let output = child.wait_with_output().expect("exit");
        assert!(output.status.success() && output.stdout == b"one datagram", "{output:?}");
        assert_eq!(echo.join().expect("the echo"), 12);
    }
}

#[test]
fn connect_reports_a_closed_udp_port() {
    let free = std::net::UdpSocket::bind("127.0.0.1:0").expect("port");
    let port = free.local_addr().expect("address").port().to_string();
    drop(free);
    let mut child = quietline(&["connect", "127.0.0.1", &port, "--udp", "--link", "kernel"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("stdin").write_all(b"x").expect("written");
    let output = child.wait_with_output().expect("exit");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"), "{output:?}");
}

#[test]
fn connect_reports_a_refused_connection() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let port = free.local_addr().expect("address").port().to_string();
    drop(free);
    let output = run(&["connect", "127.0.0.1", &port, "--link", "kernel"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("refused"));
}

#[test]
fn hundreds_of_connections_are_served_at_the_same_time() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("f"), "content").expect("file");
    let server = Server::start(&["http", "--dir", dir.path().to_str().expect("path")]);
    // The sockets of this process and of the server stay within the default limit of 1024
    // descriptors.
    let mut streams: Vec<_> = (0..400).map(|_| server.connect()).collect();
    for stream in &mut streams {
        stream.write_all(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
    }
    for stream in &mut streams {
        let mut answer = Vec::new();
        while !answer.ends_with(b"content") {
            let mut byte = [0];
            // Unlike `read`, this continues after a signal.
            stream.read_exact(&mut byte).expect("an answer");
            answer.push(byte[0]);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn demo_prints_one_json_object_with_both_sides() {
    let output = run(&["demo", "--json", "--seconds", "0.2", "--seed", "7"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let object: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("one JSON object");
    let workloads = object["workloads"].as_array().expect("workloads");
    assert_eq!(workloads.len(), 6);
    for workload in workloads {
        // A slice this short may consist of a stall, so 0 is a valid result.
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
fn demo_compares_the_values_of_a_setting() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("out.html");
    let path = path.to_str().expect("path");
    let compare = "net.core.busy_read=0,50,100";
    let workload = ["--workload", "rr-1", "--seconds", "0.5", "--seed", "7"];
    let more = ["--sysctl", "net.ipv4.tcp_sack=0", "--json", "--report", path];
    let output = run(&[&["demo", "--compare", compare][..], &workload, &more].concat());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object["sysctl"][0], "net.ipv4.tcp_sack=0");
    let experiment = &object["compare"];
    let arms = experiment["conditions"][0]["arms"].as_array().expect("arms");
    let names: Vec<_> = arms.iter().map(|arm| arm["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["0", "50", "100"]);
    let runs = arms[0]["runs"].as_array().expect("runs");
    assert!(runs.len() >= 2 && runs.len().is_multiple_of(2), "{}", runs.len());
    let comparisons = experiment["comparisons"].as_array().expect("comparisons");
    assert_eq!(comparisons.len(), 2);
    for comparison in comparisons {
        assert_eq!(comparison["unit"], "transactions/s");
        let ratio = &comparison["ratio"];
        let [low, estimate, high] =
            ["low", "estimate", "high"].map(|key| ratio[key].as_f64().expect("a number"));
        assert!(low <= estimate && estimate <= high, "{ratio}");
    }
    let page = std::fs::read_to_string(path).expect("page");
    assert!(page.contains("--compare net.core.busy_read=0,50,100") && page.contains("<svg"));
}

#[test]
fn demo_measures_with_the_settings_of_the_command_line() {
    let setting = "net.quietline.rx_context=prequeue_ref";
    let line = ["demo", "--seconds", "0.1", "--workload", "rr-1", "--sysctl", setting, "--json"];
    let output = run(&[&line[..], &["--stats=all"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(object["sysctl"][0], setting);
    assert!(object["counters"]["rr-1"]["server"].is_object());
}

#[test]
fn demo_writes_a_self_contained_page() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("out.html");
    let path = path.to_str().expect("path");
    let output = run(&["demo", "--seconds", "0.1", "--workload", "rr-1", "--report", path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(path).expect("page");
    assert!(page.matches("<svg").count() >= 3 && page.contains("request/response"));
    let mut links = page.match_indices("http").map(|(at, _)| &page[at..(at + 30).min(page.len())]);
    // The namespace of SVG is a name and is not loaded.
    assert!(links.all(|link| link.starts_with("http://www.w3.org/2000/svg")));
}

/// Returns the lines of a server's stderr after the "listening" line.
fn stderr_of(arguments: &[&str], work: impl FnOnce(&str)) -> Vec<String> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("port");
    let port = free.local_addr().expect("address").port().to_string();
    drop(free);
    let mut command = quietline(&["serve", "--link", "kernel", "--port", &port]);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr")).lines();
    assert!(stderr.next().expect("a line").expect("text").contains("listening on"));
    work(&format!("127.0.0.1:{port}"));
    // The connection's thread logs the end when it notices it.
    thread::sleep(Duration::from_millis(300));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let lines = stderr.map(|line| line.expect("text")).collect();
    assert!(child.wait().expect("exit").success());
    lines
}

/// Ends a connection with a RST.
fn reset(stream: TcpStream) {
    let linger = Some(Duration::ZERO);
    rustix::net::sockopt::set_socket_linger(&stream, linger).expect("an option");
}

#[test]
fn a_failed_connection_is_logged_and_an_ordinary_one_is_not() {
    let lines = stderr_of(&["echo"], |address| {
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.write_all(b"x").expect("written");
        stream.read_exact(&mut [0]).expect("echo");
        drop(stream);
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.write_all(b"12345").expect("written");
        stream.read_exact(&mut [0; 5]).expect("echo");
        reset(stream);
    });
    let [line] = lines.as_slice() else { panic!("not one line: {lines:?}") };
    assert!(line.contains("connection failed") && line.contains("127.0.0.1:"), "{line}");
    assert!(line.contains("5 bytes received, 5 sent") && line.contains("reset by peer"), "{line}");
    assert!(line.contains("(errno 104)"), "{line}");
}

#[test]
fn a_verbose_server_logs_every_connection() {
    let lines = stderr_of(&["discard", "-v"], |address| {
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.write_all(b"1234567").expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("shut down");
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    });
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("connection opened"), "{lines:?}");
    assert!(lines[1].contains("connection closed") && lines[1].contains("7 bytes received"));
}

#[test]
fn http_connections_are_logged_like_others() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("f"), "content").expect("file");
    let path = dir.path().to_str().expect("path");
    let work = |address: &str| {
        let mut stream = TcpStream::connect(address).expect("connection");
        stream
            .write_all(b"GET /f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .expect("written");
        stream.read_to_end(&mut Vec::new()).expect("an answer");
        // A RST between two requests is an ordinary end.
        let mut stream = TcpStream::connect(address).expect("connection");
        stream.write_all(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n").expect("written");
        assert!(stream.read(&mut [0; 1024]).expect("an answer") > 0);
        reset(stream);
        let mut stream = TcpStream::connect(address).expect("connection");
        stream
            .write_all(b"PUT /g HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
            .expect("written");
        stream.shutdown(std::net::Shutdown::Write).expect("shut down");
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    };
    let lines = stderr_of(&["http", "--upload", "--dir", path], work);
    let [line] = lines.as_slice() else { panic!("not one line: {lines:?}") };
    assert!(line.contains("connection failed after ") && line.contains(" received, 0 sent"));
    assert!(
        line.ends_with("the client closed the connection within the body of a request"),
        "{line}"
    );
    let lines = stderr_of(&["http", "-v", "--upload", "--dir", path], work);
    for (words, count) in
        [("connection opened", 3), ("connection closed", 2), ("connection failed", 1)]
    {
        assert_eq!(lines.iter().filter(|line| line.contains(words)).count(), count, "{lines:?}");
    }
}

#[test]
fn connections_beyond_the_limit_of_their_address_are_refused_and_logged() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().to_str().expect("path");
    for service in [&["echo"][..], &["http", "--dir", path]] {
        let lines = stderr_of(&[service, &["--max-per-peer", "2"]].concat(), |address| {
            let held = [(); 2].map(|()| TcpStream::connect(address).expect("connection"));
            let mut stream = TcpStream::connect(address).expect("connection");
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            drop(held);
        });
        let [line] = lines.as_slice() else { panic!("not one line: {lines:?}") };
        assert!(line.contains("127.0.0.1:") && line.contains("connection refused"), "{line}");
        assert!(line.ends_with("its address has reached the limit of --max-per-peer"), "{line}");
    }
}

#[test]
fn connections_that_break_at_the_end_of_the_server_are_not_logged() {
    let mut held = Vec::new();
    let lines = stderr_of(&["echo"], |address| {
        held.extend((0..20).map(|_| TcpStream::connect(address).expect("connection")));
    });
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn sigusr1_prints_statistics_and_the_server_continues() {
    let mut server = Server::start(&["echo", "--json"]);
    let mut stream = server.connect();
    stream.write_all(b"abc").expect("written");
    stream.read_exact(&mut [0; 3]).expect("echo");
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-USR1", &pid]).status().expect("kill").success());
    thread::sleep(Duration::from_millis(300));
    stream.write_all(b"d").expect("written");
    stream.read_exact(&mut [0; 1]).expect("the server continues");
    let (code, text) = server.stop("-TERM");
    assert_eq!(code, Some(0));
    let objects: Vec<serde_json::Value> = serde_json::Deserializer::from_str(&text)
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("JSON objects");
    assert_eq!(objects.len(), 2, "{text}");
    assert!(objects.iter().all(|object| object["connections"] == 1 && object["failed"] == 0));
    assert_eq!(objects[0]["open"], 1);
}

#[test]
fn a_failed_report_or_capture_loses_no_results() {
    for (option, words) in [("--report", "cannot write"), ("--pcap", "incomplete")] {
        let output =
            run(&["demo", "--json", "--seconds", "0.1", "--workload", "rr-1", option, "/dev/full"]);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains("/dev/full") && complaint.contains(words), "{complaint}");
        assert!(complaint.contains("No space left on device (errno 28)"), "{complaint}");
        let object: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("the results");
        assert_eq!(object["workloads"][0]["name"], "rr-1");
    }
}

#[test]
fn an_interrupted_demo_leaves_no_report() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("out.html");
    let path_text = path.to_str().expect("path");
    let mut child = quietline(&["demo", "--seconds", "60", "--workload", "rr-1"])
        .args(["--report", path_text])
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary runs");
    while !path.exists() {
        assert!(child.try_wait().expect("a child").is_none(), "the demo ended early");
        thread::sleep(Duration::from_millis(5));
    }
    // The file is created before the signal handlers are installed.
    thread::sleep(Duration::from_millis(300));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    assert_eq!(child.wait().expect("exit").code(), Some(130));
    assert!(!path.exists(), "an empty report was not removed");
}

#[test]
fn demo_output_to_a_pipe_is_ascii_80_columns_wide_and_groups_counters_by_workload() {
    let words =
        ["demo", "--seconds", "0.2", "--workload", "rr-1", "--workload", "lossy", "--stats"];
    let output = run(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.is_ascii(), "{text}");
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    for host in ["#rr-1 client", "#rr-1 server", "#lossy client", "#lossy server"] {
        assert!(text.lines().any(|line| line == host), "{host}");
    }
    let is_zero = |line: &str| line.split_whitespace().nth(1) == Some("0");
    assert!(!text.lines().any(is_zero), "{text}");
    let with_zeros = run(&["demo", "--seconds", "0.1", "--workload", "rr-1", "--stats=all"]);
    assert!(String::from_utf8_lossy(&with_zeros.stdout).lines().any(is_zero));
}

#[test]
fn connect_looks_up_a_host_name() {
    let server = Server::start(&["chargen"]);
    let port = server.address.rsplit(':').next().expect("port");
    let mut child = quietline(&["connect", "localhost", port, "--link", "kernel"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = [0; 74];
    child.stdout.take().expect("stdout").read_exact(&mut line).expect("a line");
    assert!(line.starts_with(b" !\"#"));
    let _ = child.kill();
    let _ = child.wait();
    let output = run(&["connect", "no-such-host.invalid", "80", "--link", "kernel"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        complaint.starts_with("quietline: cannot look up no-such-host.invalid: "),
        "{complaint}"
    );
    assert!(!complaint.contains("address information"), "{complaint}");
}

#[test]
fn settings_are_listed_with_value_default_and_description() {
    let listed = |words: &[&str]| {
        let output = run(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let all = listed(&["sysctl"]);
    assert!(all.lines().filter(|line| line.starts_with("net.")).count() > 100);
    assert!(all.is_ascii() && all.lines().all(|line| line.chars().count() <= 100), "{all}");
    let one = listed(&["sysctl", "net.ipv4.tcp_sack=0"]);
    let lines: Vec<_> = one.lines().collect();
    assert_eq!(lines[0], "net.ipv4.tcp_sack = 0");
    assert!(lines[1].starts_with("    default 1; a number from 0 to 1"), "{one}");
    assert!(lines[2].contains("selective acknowledgments"), "{one}");
    assert!(listed(&["sysctl", "rps"]).contains("net.quietline.dev.default.rps_cpus"));
    let object: serde_json::Value =
        serde_json::from_str(&listed(&["sysctl", "tcp_sack", "--json"])).expect("JSON");
    assert_eq!(object["settings"][0]["default"], "1");
    let output = run(&["sysctl", "net.ipv4.tcp_timstamps"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("did you mean net.ipv4.tcp_timestamps?"), "{complaint}");
}
