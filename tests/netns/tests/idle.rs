//! A stack that waits costs nothing: no thread polls when nothing comes.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Lab, Link};

/// How long the process is watched.
const WATCHED: Duration = Duration::from_secs(3);

/// Says something, hears it again, and keeps the connection for a while.
const HOLD: &str =
    "bash -c 'exec 3<>/dev/tcp/10.77.0.2/7; echo hello >&3; read -r line <&3; sleep 5; echo $line'";

/// CPU time of all threads of a process.
fn cpu_time(process: u32) -> Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().context("three numbers")?;
        nanos += first.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// Fails when the process uses more than a hundredth of a CPU. It uses a thousandth of that.
fn ensure_idle(process: u32, what: &str) -> Result<()> {
    let before = cpu_time(process)?;
    thread::sleep(WATCHED);
    let used = cpu_time(process)?.saturating_sub(before);
    println!("{what}: {used:?} of CPU time in {WATCHED:?}");
    ensure!(used < WATCHED / 100, "{what}: {used:?} of CPU time in {WATCHED:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_stack_uses_no_cpu() -> Result<()> {
        let Some(lab) = Lab::open("a_waiting_stack_uses_no_cpu", &["bash"])? else {
            return Ok(());
        };
        let server = lab.serve(&Link::default(), &["echo"])?;
        // Nobody has anything to say on a new link.
        thread::sleep(Duration::from_secs(1));
        ensure_idle(server.id(), "listening")?;
        thread::scope(|scope| -> Result<()> {
            let client = scope.spawn(|| lab.shell(HOLD));
            thread::sleep(Duration::from_secs(1));
            ensure_idle(server.id(), "one connection")?;
            let said = client.join().expect("no panic")?;
            ensure!(said.trim() == "hello", "{said}");
            Ok(())
        })
    }
}
