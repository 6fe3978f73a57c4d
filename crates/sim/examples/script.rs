//! Runs packet scripts and prints their traces:
//! `cargo run -p quietline-sim --example script -- FILE...`.

use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let mut failed = false;
    for path in env::args().skip(1) {
        let played = match fs::read_to_string(&path) {
            Ok(text) => sim::script::run(&path, &text).map_err(|failure| failure.to_string()),
            Err(error) => Err(format!("{path}: {error}")),
        };
        match played {
            Ok(played) => println!("{path}: ok\n    {}", played.trace.join("\n    ")),
            Err(text) => {
                failed = true;
                println!("{text}");
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
