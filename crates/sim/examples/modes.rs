//! Prints combinations of modes, one per line, in the format of `QUIETLINE_SYSCTL`: `pairwise`
//! rows, in which every two values occur together, or `each`, in which every value occurs. For
//! `cargo xtask matrix`.

use std::process::ExitCode;

use sim::modes::{each, pairwise, settings, sizes};

fn main() -> ExitCode {
    let rows = match std::env::args().nth(1).as_deref() {
        Some("pairwise") => pairwise(&sizes()),
        Some("each") => each(&sizes()),
        _ => {
            eprintln!("usage: modes pairwise | each");
            return ExitCode::from(2);
        }
    };
    for row in rows {
        println!("{}", settings(&row));
    }
    ExitCode::SUCCESS
}
