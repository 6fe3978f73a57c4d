//! A network namespace for one test, which is deleted with the test's thread.

use std::fs;
use std::io::Write as _;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test` in a new network namespace, or prints why it cannot.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return skip("skipped, it needs root");
    }
    let thread = thread::spawn(move || {
        // SAFETY: only the network namespace of this thread changes; no descriptor table is
        // unshared.
        if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
            return skip(&format!("skipped, no network namespace can be created: {error}"));
        }
        // Without IPv6, the kernel sends no frames of its own between those that a test counts.
        set_ipv6(false);
        test();
    });
    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

/// Sets whether new interfaces use IPv6.
pub(crate) fn set_ipv6(on: bool) {
    let disable = Path::new("/proc/sys/net/ipv6/conf/default/disable_ipv6");
    if on || disable.exists() {
        fs::write(disable, if on { "0" } else { "1" }).expect("the kernel's setting");
    }
}

/// Runs a program of iproute2 in the namespace of the calling thread.
pub(crate) fn run(line: &str) {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let output = Command::new(program).args(words).output().expect("iproute2 is installed");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Prints to standard error, which the test harness does not capture.
pub(crate) fn skip(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
