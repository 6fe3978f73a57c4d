//! The `quietline` command: the demo, the lab, small servers and a netcat-like client on the
//! user-space stack.
//!
//! Below: crate `quietline` (sockets, devices). Above: the shell.
//!
//! Every command writes results to stdout and everything else to stderr. Exit codes: 0 success, 1
//! the command failed, 2 the command line was invalid, 128 + n terminated by signal n.
//!
//! Not here: protocols and packets.

#![forbid(unsafe_code)]

mod args;
mod connect;
mod demo;
mod documents;
mod endpoint;
mod failure;
mod lab;
mod link;
mod output;
mod page;
mod page_file;
mod plot;
mod sandbox;
mod serve;
mod settings;
mod signal;
mod stats;

use std::process::ExitCode;

use crate::{
    args::{Cli, Command},
    failure::Failure,
};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run() -> Result<(), Failure> {
    let Some(cli) = Cli::from_command_line()? else {
        return Ok(());
    };
    match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Connect(args) => connect::run(&args),
        Command::Sysctl(args) => settings::run(&args),
        Command::Completions { shell } => documents::completions(shell),
        Command::Man { dir } => documents::man(dir.as_deref()),
    }
}
