//! An idle stack uses no CPU: no thread polls while nothing arrives.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use netns_tests::{Lab, Link, Quietline};

/// Time for which the process is observed.
const WATCHED: Duration = Duration::from_secs(3);

/// Sends a line, receives its echo, and keeps the connection open for a while.
const HOLD: &str =
    "bash -c 'exec 3<>/dev/tcp/10.77.0.2/7; echo hello >&3; read -r line <&3; sleep 5; echo $line'";

/// Fails if the process uses more than a hundredth of a CPU. It needs a thousandth of that.
fn ensure_idle(server: &Quietline, what: &str) -> Result<()> {
    let before = server.cpu_time()?;
    thread::sleep(WATCHED);
    let used = server.cpu_time()?.saturating_sub(before);
    println!("{what}: {used:?} of CPU time in {WATCHED:?}");
    ensure!(used < WATCHED / 100, "{what}: {used:?} of CPU time in {WATCHED:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_stack_uses_no_cpu() -> Result<()> {
        let Some(lab) = Lab::open("an_idle_stack_uses_no_cpu", &["bash"])? else {
            return Ok(());
        };
        let server = lab.serve(&Link::default(), &["echo"])?;
        // On a new link all packets have been exchanged after this.
        thread::sleep(Duration::from_secs(1));
        ensure_idle(&server, "listening")?;
        thread::scope(|scope| -> Result<()> {
            let client = scope.spawn(|| lab.shell(HOLD));
            thread::sleep(Duration::from_secs(1));
            ensure_idle(&server, "one connection")?;
            let said = client.join().expect("no panic")?;
            ensure!(said.trim() == "hello", "{said}");
            Ok(())
        })
    }
}
