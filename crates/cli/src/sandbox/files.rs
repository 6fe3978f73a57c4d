//! Landlock: no file outside `--dir`, no kernel TCP connection, no signal to another process.
//!
//! The rules apply to files that are opened later. The `--pcap` file, the descriptors of the link
//! and the standard streams are already open and need no rule.

use anyhow::Context as _;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetStatus, Scope,
};

use super::Files;

/// Version of the rights that are taken away: all of Linux 6.12. An older kernel takes away the
/// rights that it knows.
const KNOWN: ABI = ABI::V6;

/// Restricts the calling thread and the threads that it starts. `false`: the kernel has no
/// Landlock.
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

/// Returns the rights below the directory. An upload writes an unnamed file, then gives it a name
/// or replaces the existing file.
fn rights(upload: bool) -> BitFlags<AccessFs> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    if !upload {
        return read;
    }
    read | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::Refer
}
