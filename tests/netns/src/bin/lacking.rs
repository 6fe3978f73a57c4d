//! Runs a program on a kernel that seems to lack system calls: `lacking landlock,seccomp PROGRAM
//! [WORD...]`.
//!
//! A seccomp filter answers ENOSYS to the named calls, like a kernel that was built without them.
//! The program inherits the filter.
//!
//! Not here: the required behavior of the program (`tests/sandbox.rs`).

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn main() -> Result<()> {
    let mut words = std::env::args_os().skip(1);
    let names = words.next().context("names of the missing system calls")?;
    let program = words.next().context("a program")?;
    let names = names.to_string_lossy().into_owned();
    let calls = names.split(',').map(|name| match name {
        "landlock" => Ok(libc::SYS_landlock_create_ruleset),
        "seccomp" => Ok(libc::SYS_seccomp),
        _ => bail!("unknown: {name}"),
    });
    let rules = calls.map(|call| Ok((call?, Vec::new()))).collect::<Result<BTreeMap<_, _>>>()?;
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    Err(Command::new(program).args(words).exec()).context("starting the program")
}
