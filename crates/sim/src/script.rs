//! Packet scripts: the segments of a host are compared with a script, line by line, in virtual
//! time.
//!
//! The language is packetdrill's: packets of the peer (`<`), expected packets of the host (`>`),
//! calls of its application with their results, and assertions (`%{ assert tcpi_snd_cwnd == 10
//! }%`). The whole stack runs, on a [`World`](crate::World) of one host. CONTRIBUTING.md says how
//! to write and run a script; the scripts are in `tests/scripts`.
//!
//! ```text
//! text ── lex ── parse ──► events ── run (time) ── stage ─────► host
//!          parse_packet, parse_call              conn, packet: numbers and bytes
//!                                                syscall: the application, by crate posix
//!                                                expr, info: assertions
//! ```
//!
//! A script is written with the addresses of IPv4, and [`run_over`] also plays it over IPv6.
//!
//! Not here: shell commands (only `sysctl` is interpreted), Python.

mod ast;
mod compare;
mod config;
mod conn;
mod expr;
mod family;
mod info;
mod lex;
mod packet;
mod parse;
mod parse_call;
mod parse_packet;
mod run;
mod stage;
mod syscall;

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use stack::base::counters::Snapshot;

use ast::{Event, What};
use config::Config;
pub use family::Family;
use run::Player;
use stage::Stage;

use crate::modes::{self, Settings};

/// An error of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ScriptError {
    /// 0 for the end of the script.
    line: u32,
    text: String,
}

impl ScriptError {
    fn new(line: u32, text: impl Into<String>) -> Self {
        Self { line, text: text.into() }
    }
}

/// Why a script failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The script, as its file is named.
    pub name: String,
    /// The line that was not fulfilled; 0 for the end.
    pub line: u32,
    /// The expectation and the result.
    pub text: String,
    /// The events until then, one line each.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}: {}", self.name, self.line, self.text)?;
        for line in &self.trace {
            writeln!(f, "    {line}")?;
        }
        Ok(())
    }
}

/// Results of a script that was fulfilled.
#[derive(Clone, Debug)]
pub struct Played {
    /// The events, one line each.
    pub trace: Vec<String>,
    /// Counters of the host.
    pub counters: Snapshot,
}

/// Runs a script in the modes of the environment. `name` is for messages.
///
/// # Errors
/// The first line that cannot be read or was not fulfilled.
pub fn run(name: &str, text: &str) -> Result<Played, Failure> {
    run_in(name, text, &modes::from_environment())
}

/// Runs a script in these modes. Its own settings have precedence.
///
/// # Errors
/// The first line that cannot be read or was not fulfilled.
pub fn run_in(name: &str, text: &str, modes: &Settings) -> Result<Played, Failure> {
    run_over(name, text, modes, Family::V4)
}

/// Runs a script in these modes with sockets and packets of a family, which
/// [plays](Family::plays) it.
///
/// # Errors
/// The first line that cannot be read or was not fulfilled.
pub fn run_over(
    name: &str,
    text: &str,
    modes: &Settings,
    family: Family,
) -> Result<Played, Failure> {
    let failure = |error: ScriptError, trace| Failure {
        name: name.to_owned(),
        line: error.line,
        text: error.text,
        trace,
    };
    let (mut player, events) =
        start(text, modes, family).map_err(|error| failure(error, Vec::new()))?;
    // A broken invariant is a panic. Its message needs the trace, too.
    let played = catch_unwind(AssertUnwindSafe(|| play(&mut player, &events)));
    let Player { mut stage, .. } = player;
    let mut trace = std::mem::take(&mut stage.trace);
    match played {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            for sent in &stage.sent {
                let shown = stage.show(&sent.segment);
                trace.push(format!("{} > {shown}   (not expected yet)", run::show_time(sent.at)));
            }
            return Err(failure(error, trace));
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
            let text = format!("panic: {}", text.unwrap_or_default());
            return Err(failure(ScriptError::new(0, text), trace));
        }
    }
    let counters = stage.counters();
    match stage.finish() {
        Ok(()) => Ok(Played { trace, counters }),
        Err(text) => Err(failure(ScriptError::new(0, text), trace)),
    }
}

/// Parses a script and builds its host, which has the settings at the head from the beginning.
fn start(
    text: &str,
    modes: &Settings,
    family: Family,
) -> Result<(Player, Vec<Event>), ScriptError> {
    let parsed = parse::parse(text)?;
    let config = Config::read(&parsed.options)?;
    let mut settings = modes.0.clone();
    let mut line = 0;
    let mut events = parsed.events.into_iter().peekable();
    while let Some(Event { what: What::Sysctls(_), .. }) = events.peek() {
        if let Some(Event { line: at, what: What::Sysctls(more), .. }) = events.next() {
            line = at;
            settings.extend(more);
        }
    }
    let events: Vec<_> = events.collect();
    if events.is_empty() {
        return Err(ScriptError::new(line, "a script without events"));
    }
    let stage = Stage::new(config, modes.cores(), &settings, family)
        .map_err(|text| ScriptError::new(line, text))?;
    Ok((Player::new(stage), events))
}

fn play(player: &mut Player, events: &[Event]) -> Result<(), ScriptError> {
    for event in events {
        player.play(event)?;
    }
    player.end()
}

#[cfg(test)]
mod tests;
