//! How a command ends when it does not end well: one line on stderr and an exit code.

use std::{fmt::Display, io, process::ExitCode};

/// The command line was wrong.
const EXIT_USAGE: u8 = 2;

/// Why a command stops early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user asked for something that cannot be: exit code 2.
    Usage(String),
    /// The work itself failed: exit code 1.
    Run(anyhow::Error),
    /// A signal asked for the end: exit code 128 + signal, as a shell reports it.
    Signal(u8),
    /// Whoever read our stdout went away (`quietline man | head`): no complaint, exit code 0.
    ReaderGone,
}

impl Failure {
    /// A usage failure that names the option it is about.
    pub(crate) fn option(option: &str, value: impl Display, reason: impl Display) -> Self {
        Self::Usage(format!("invalid value '{value}' for '{option}': {reason}"))
    }

    /// Prints the one line and chooses the exit code.
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
