//! A stack that waits costs nothing: no thread polls when nothing comes.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use netns_tests::{Lab, Link, Quietline};

/// How long the process is watched.
const WATCHED: Duration = Duration::from_secs(3);

/// Says something, hears it again, and keeps the connection for a while.
const HOLD: &str =
    "bash -c 'exec 3<>/dev/tcp/10.77.0.2/7; echo hello >&3; read -r line <&3; sleep 5; echo $line'";

/// Fails when the process uses more than a hundredth of a CPU. It uses a thousandth of that.
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
    fn a_waiting_stack_uses_no_cpu() -> Result<()> {
        let Some(lab) = Lab::open("a_waiting_stack_uses_no_cpu", &["bash"])? else {
            return Ok(());
        };
        let server = lab.serve(&Link::default(), &["echo"])?;
        // Nobody has anything to say on a new link.
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
