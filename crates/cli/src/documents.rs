//! Documents generated from the argument definitions: shell completions and man pages.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{args::Cli, failure::Failure, output};

/// Prints the completion script for a shell.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quietline", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Prints the man page, or writes one page per command into `dir`.
pub(crate) fn man(dir: Option<&Path>) -> Result<(), Failure> {
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
            .with_context(|| format!("cannot write man pages into {}", dir.display()))?;
        return Ok(());
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    output::print(&String::from_utf8_lossy(&page))
}
