//! The sandbox of `serve` and `connect`: privileges that the process gives up once its link and its
//! files are open.
//!
//! Frames come from unknown senders. If one of them ever takes control of the process, the process
//! has no capability, no way to gain one, no file outside `--dir`, and only the system calls that a
//! running stack needs.
//!
//! Invariant: the process has one thread when [`enter`] is called. Capabilities and Landlock belong
//! to a thread. A thread that starts later inherits them; a thread that runs already would keep its
//! privileges. A capture's writer and a stack's workers therefore start afterwards. The seccomp
//! filter is set on all threads at once (`SECCOMP_FILTER_FLAG_TSYNC`).
//!
//! Below: capabilities(7), landlock(7), seccomp(2). Above: `link`, which opens everything first.
//!
//! Not here: `--link kernel`, which has no sandbox, because it creates and binds its sockets while
//! it serves.

use std::{fmt, io, os::fd::BorrowedFd};

use anyhow::Context as _;

use crate::{failure::Failure, output};

mod calls;
mod capabilities;
mod files;
#[cfg(test)]
mod tests;

/// Files that the process may still open.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Files<'a> {
    /// The only directory that the process may read.
    pub(crate) directory: Option<BorrowedFd<'a>>,
    /// Whether the process may create and replace files there.
    pub(crate) upload: bool,
}

/// Threads that get the seccomp filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// Every thread of the process.
    All,
    /// The calling thread only: for tests, whose process continues.
    #[cfg(test)]
    Caller,
}

/// A part of the sandbox that a kernel can lack. Every kernel has capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mechanism {
    /// `PR_SET_NO_NEW_PRIVS`, Linux 3.5.
    NoNewPrivileges,
    /// Landlock, Linux 5.13, if built in and enabled.
    Landlock,
    /// Seccomp filters for all threads, Linux 3.17.
    Seccomp,
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNewPrivileges => "no_new_privs (an executed program can gain privileges)",
            Self::Landlock => "Landlock (only permissions restrict which files are opened)",
            Self::Seccomp => "seccomp filters (no system call is refused)",
        })
    }
}

/// Drops the privileges that the process no longer needs, and prints a warning on stderr if the
/// kernel lacks a mechanism.
pub(crate) fn enter(files: Files<'_>) -> Result<(), Failure> {
    let missing = enter_on(Threads::All, files)
        .context("cannot enter the sandbox (--no-sandbox runs without it)")?;
    if let Some(line) = warning(&missing) {
        output::remark(&line);
    }
    Ok(())
}

/// Enters the sandbox, and returns the mechanisms that the kernel lacks.
fn enter_on(threads: Threads, files: Files<'_>) -> anyhow::Result<Vec<Mechanism>> {
    let mut missing = Vec::new();
    let mut note = |mechanism, is_there: bool| {
        if !is_there {
            missing.push(mechanism);
        }
    };
    find_clock();
    capabilities::drop_all().context("dropping capabilities")?;
    note(Mechanism::NoNewPrivileges, rustix::thread::set_no_new_privs(true).is_ok());
    note(Mechanism::Landlock, files::restrict(files).context("restricting files")?);
    // The filter must be the last step, because it refuses the system calls of the others.
    note(Mechanism::Seccomp, calls::restrict(threads, files).context("restricting system calls")?);
    Ok(missing)
}

/// Makes rustix find the vDSO before the filter refuses the calls that this needs. Otherwise every
/// clock reading would be a system call.
fn find_clock() {
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let _ = rustix::param::page_size();
}

/// Returns one line that names all missing mechanisms.
fn warning(missing: &[Mechanism]) -> Option<String> {
    let names: Vec<_> = missing.iter().map(Mechanism::to_string).collect();
    let names = names.join(", ");
    (!names.is_empty()).then(|| {
        format!("quietline: warning: the sandbox is incomplete, because this kernel lacks {names}")
    })
}

/// Whether an error means that the kernel lacks the mechanism: ENOSYS, or EINVAL and EOPNOTSUPP
/// when it is not built in or disabled.
fn is_lack(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOSYS, Errno::INVAL, Errno::OPNOTSUPP]
        .into_iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
