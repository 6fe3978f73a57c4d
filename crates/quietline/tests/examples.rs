//! Checks that every example prints the output in its head comment.
//!
//! The examples are modules of this program, which runs itself once for each and compares the
//! output. They are therefore built together with the tests, not with the cargo command that a
//! reader types.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use rustix::thread::{UnshareFlags, unshare_unsafe};

#[path = "../examples/custom_device.rs"]
mod custom_device;
#[path = "../examples/dns_policy.rs"]
mod dns_policy;
#[path = "../examples/echo.rs"]
mod echo;
#[path = "../examples/http2_hyper.rs"]
mod http2_hyper;
#[path = "../examples/http_hyper.rs"]
mod http_hyper;
#[path = "../examples/http_over_tap.rs"]
mod http_over_tap;
#[path = "../examples/many_connections.rs"]
mod many_connections;
#[path = "../examples/packet_port.rs"]
mod packet_port;
#[path = "../examples/quic_quinn.rs"]
mod quic_quinn;
#[path = "../examples/sans_io.rs"]
mod sans_io;
#[path = "../examples/sim_test.rs"]
mod sim_test;
#[path = "../examples/tls_rustls.rs"]
mod tls_rustls;
#[path = "../examples/tun2direct.rs"]
mod tun2direct;
#[path = "../examples/tun2socks.rs"]
mod tun2socks;
#[path = "../examples/tun_from_fd.rs"]
mod tun_from_fd;
#[path = "../examples/udp_echo.rs"]
mod udp_echo;

type Run = fn() -> Result<(), Box<dyn std::error::Error>>;

/// The examples, and the requirements of each besides the toolchain.
static EXAMPLES: [(&str, Run, Needs); 16] = [
    ("custom_device", custom_device::main, Needs::Nothing),
    ("dns_policy", dns_policy::main, Needs::Nothing),
    ("echo", echo::main, Needs::Nothing),
    ("http2_hyper", http2_hyper::main, Needs::Nothing),
    ("http_hyper", http_hyper::main, Needs::Nothing),
    ("http_over_tap", http_over_tap::main, Needs::Namespace),
    ("many_connections", many_connections::main, Needs::Nothing),
    ("packet_port", packet_port::main, Needs::Nothing),
    ("quic_quinn", quic_quinn::main, Needs::Nothing),
    ("sans_io", sans_io::main, Needs::Nothing),
    ("sim_test", sim_test::main, Needs::Nothing),
    ("tls_rustls", tls_rustls::main, Needs::Nothing),
    ("tun2direct", tun2direct::main, Needs::Namespace),
    ("tun2socks", tun2socks::main, Needs::Nothing),
    ("tun_from_fd", tun_from_fd::main, Needs::Namespace),
    ("udp_echo", udp_echo::main, Needs::Nothing),
];

/// Argument before the name of an example: this process runs that example.
const RUN: &str = "--run-example";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A network namespace and a tap in it: root, and /dev/net/tun.
    Namespace,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name] = &arguments[..]
        && flag == RUN
    {
        return run_example(name);
    }
    let (words, skipped) = filters(&arguments);
    let chosen = |name: &str| {
        let named = |word: &&str| name.contains(*word);
        (words.is_empty() || words.iter().any(named)) && !skipped.iter().any(named)
    };
    if arguments.iter().any(|argument| argument == "--list") {
        EXAMPLES.iter().for_each(|(name, ..)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let (mut passed, mut failed, mut ignored) = (0, 0, 0);
    let mut report = |name: &str, result: Result<(), String>| match result {
        Ok(()) => {
            println!("test {name} ... ok");
            passed += 1;
        }
        Err(why) => {
            println!("test {name} ... FAILED\n{why}");
            failed += 1;
        }
    };
    if chosen("all_examples_are_listed") {
        report("all_examples_are_listed", all_examples_are_listed());
    }
    for (name, _, needs) in EXAMPLES.iter().filter(|(name, ..)| chosen(name)) {
        match reason_to_skip(*needs) {
            Some(why) => {
                println!("skipped: {name}: {why}");
                ignored += 1;
            }
            None => report(name, prints_the_expected_output(name)),
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 filtered out"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the words that select tests by a part of their names, and the words after `--skip`, as
/// libtest reads them. Skips the values of other options.
fn filters(arguments: &[String]) -> (Vec<&str>, Vec<&str>) {
    const WITH_VALUE: [&str; 4] = ["--test-threads", "--format", "--color", "--logfile"];
    let (mut words, mut skipped) = (Vec::new(), Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--skip" => skipped.extend(arguments.next().map(String::as_str)),
            option if WITH_VALUE.contains(&option) => {
                let _ = arguments.next();
            }
            option if option.starts_with('-') => {}
            word => words.push(word),
        }
    }
    (words, skipped)
}

/// Runs an example in this process.
fn run_example(name: &str) -> ExitCode {
    let Some((_, run, needs)) = EXAMPLES.iter().find(|(known, ..)| *known == name) else {
        eprintln!("there is no example {name}");
        return ExitCode::FAILURE;
    };
    if *needs == Needs::Namespace {
        // SAFETY: only the network namespace of this thread changes, and of the threads that it
        // starts; no descriptor table is unshared.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            eprintln!("no network namespace: {error}");
            return ExitCode::FAILURE;
        }
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the reason why an example cannot run on this machine. Returns `None` if no example may
/// be skipped (`CI=true`).
fn reason_to_skip(needs: Needs) -> Option<&'static str> {
    if needs == Needs::Nothing || std::env::var("CI").is_ok_and(|value| value == "true") {
        None
    } else if !rustix::process::geteuid().is_root() {
        Some("a network namespace needs root")
    } else if !Path::new("/dev/net/tun").exists() {
        Some("/dev/net/tun is missing")
    } else {
        None
    }
}

fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples"))
}

/// Checks that every file in examples/ is in [`EXAMPLES`] and has at most 150 lines.
fn all_examples_are_listed() -> Result<(), String> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(directory()).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        if text.lines().count() > 150 {
            return Err(format!("{}: {} lines", path.display(), text.lines().count()));
        }
        files.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    let known: BTreeSet<String> = EXAMPLES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    if files == known { Ok(()) } else { Err(format!("files: {files:?}, listed: {known:?}")) }
}

/// Runs an example in a separate process and compares its output.
fn prints_the_expected_output(name: &str) -> Result<(), String> {
    let text = fs::read_to_string(directory().join(format!("{name}.rs")))
        .map_err(|error| error.to_string())?;
    let expected = expected(&text).ok_or("the head comment has no ```text block")?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program).args([RUN, name]).output().map_err(|e| e.to_string())?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && printed == expected {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}\nexpected:\n{expected}printed:\n{printed}{errors}", output.status))
}

/// Returns the lines of the first `text` block in the head comment of an example.
fn expected(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("//! ```text\n")?;
    let (block, _) = rest.split_once("//! ```\n")?;
    Some(block.lines().map(|line| format!("{}\n", line.trim_start_matches("//!").trim())).collect())
}
