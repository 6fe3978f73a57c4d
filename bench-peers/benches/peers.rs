//! Runs every comparison once: `cargo bench -p bench-peers [-- --smoke]`.
//!
//! With `--smoke` each run is as short as possible and measures nothing; CI makes these. The
//! comparisons through a tap need root and, in `QUIETLINE_BIN`, the program to compare.
//!
//! Not here: the comparisons themselves (`src`).

use std::process::{Command, ExitCode, Stdio};

/// The comparisons, by subcommand.
const COMPARISONS: [&str; 6] = ["memory", "rr", "udp", "bulk", "tap", "bound"];

fn main() -> ExitCode {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let failed = COMPARISONS.map(|name| run(name, smoke)).into_iter().flatten().count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs one comparison, and returns its name if it fails or if its result is no JSON object.
fn run(name: &str, smoke: bool) -> Option<&str> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-peers"));
    command.args([name, "--json"]).args(smoke.then_some("--smoke")).stderr(Stdio::inherit());
    let output = command.output().expect("the program starts");
    let result = serde_json::from_slice::<serde_json::Value>(&output.stdout);
    if output.status.success() && result.as_ref().is_ok_and(serde_json::Value::is_object) {
        println!("{name}: {}", result.expect("an object"));
        return None;
    }
    println!("{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stdout));
    Some(name)
}
