//! Landlock: no file but those below `--dir`, no connection of the kernel's, no signal to another process.
//!
//! The rules are for what is opened from now on. The file of `--pcap`, the descriptors of the link and the standard streams are open
//! and stay as they are, so that they need no rule.

use anyhow::Context as _;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};

use super::Files;

/// Rights that are taken away: all that Linux 6.12 knows. An older kernel takes those that it knows.
const KNOWN: ABI = ABI::V6;

/// Restricts the calling thread and those that it starts. `false`: the kernel has no Landlock.
pub(super) fn restrict(files: Files<'_>) -> anyhow::Result<bool> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()
        .context("landlock_create_ruleset")?;
    let ruleset = match files.directory {
        Some(directory) => ruleset
            .add_rule(PathBeneath::new(directory, rights(files.upload)))
            .context("landlock_add_rule")?,
        None => ruleset,
    };
    let status = ruleset.restrict_self().context("landlock_restrict_self")?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Rights below the directory. An upload is a file without a name that gets one, or replaces the file that has it.
fn rights(upload: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    if !upload {
        return read;
    }
    read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Refer
}
