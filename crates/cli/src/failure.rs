//! Failures of commands: one line on stderr and an exit code.

use std::{fmt::Display, io, process::ExitCode};

/// Exit code for an invalid command line.
const EXIT_USAGE: u8 = 2;

/// Reason why a command stops early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line is invalid: exit code 2.
    Usage(String),
    /// The command failed: exit code 1.
    Run(anyhow::Error),
    /// A signal terminated the command: exit code 128 + signal, as a shell reports it.
    Signal(u8),
    /// The reader of stdout closed its pipe (`quietline man | head`): no message, exit code 0.
    ReaderGone,
}

impl Failure {
    /// Returns a usage failure that names the invalid option.
    pub(crate) fn option(option: &str, value: impl Display, reason: impl Display) -> Self {
        Self::Usage(format!("invalid value '{value}' for '{option}': {reason}"))
    }

    /// Prints the message, if there is one, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Self::Usage(message) => {
                crate::output::complain(&message);
                ExitCode::from(EXIT_USAGE)
            }
            Self::Run(error) => {
                crate::output::complain(&format!("{error:#}"));
                ExitCode::FAILURE
            }
            Self::Signal(number) => ExitCode::from(128_u8.saturating_add(number)),
            Self::ReaderGone => ExitCode::SUCCESS,
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Run(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Run(error.into())
    }
}
