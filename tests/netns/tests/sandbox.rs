//! The sandbox of the command: the privileges of each thread in /proc, the services that still
//! work, and kernels that lack a part of it.
//!
//! Every other test of this crate runs quietline in its sandbox, too.
//!
//! Not here: the refused files and calls (unit tests of the command).

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Finished, KERNEL, Lab, Link, Quietline, Running, STACK, Veth, binary};
use rustix::process::Signal;

const LACKING: &str = env!("CARGO_BIN_EXE_lacking");

/// Time limit of a start or an end.
const LIMIT: Duration = Duration::from_secs(10);

/// Text of a warning about the sandbox.
const WARNING: &str = "the sandbox is incomplete";

/// Fields of /proc/PID/task/TID/status for one thread.
#[derive(Debug)]
struct Thread {
    name: String,
    /// Effective, permitted, inheritable, bounding and ambient capabilities.
    capabilities: [u64; 5],
    no_new_privileges: bool,
    /// 2 if it has filters.
    seccomp: u8,
}

impl Thread {
    fn read(status: &str) -> Result<Self> {
        let field = |name: &str| {
            let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
            let (_, value) = lines.find(|(field, _)| *field == name).context(name.to_owned())?;
            Ok::<_, anyhow::Error>(value.trim().to_owned())
        };
        let mut capabilities = [0; 5];
        for (set, name) in capabilities.iter_mut().zip(["Eff", "Prm", "Inh", "Bnd", "Amb"]) {
            *set = u64::from_str_radix(&field(&format!("Cap{name}"))?, 16)?;
        }
        let no_new_privileges = field("NoNewPrivs")? == "1";
        let seccomp = field("Seccomp")?.parse()?;
        Ok(Self { name: field("Name")?, capabilities, no_new_privileges, seccomp })
    }

    fn all(process: u32) -> Result<Vec<Self>> {
        let tasks = fs::read_dir(format!("/proc/{process}/task"))?;
        tasks.map(|task| Self::read(&fs::read_to_string(task?.path().join("status"))?)).collect()
    }

    fn is_confined(&self) -> bool {
        self.capabilities == [0; 5] && self.no_new_privileges && self.seccomp == 2
    }
}

/// Fails unless every thread of a process is in the sandbox, and threads of these names exist
/// within [`LIMIT`]: a new thread has the name of the process until it runs and sets its own.
fn ensure_confined(process: u32, names: &[&str]) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let threads = loop {
        let threads = Thread::all(process)?;
        let lacks = |name: &&&str| !threads.iter().any(|thread| thread.name == **name);
        let Some(missing) = names.iter().find(lacks) else { break threads };
        ensure!(Instant::now() < deadline, "no {missing} in {threads:?}");
        sleep(Duration::from_millis(5));
    };
    let free: Vec<_> = threads.iter().filter(|thread| !thread.is_confined()).collect();
    ensure!(free.is_empty(), "not in the sandbox: {free:?}");
    Ok(())
}

/// Makes a directory with a file, as an argument of the server.
fn root(lab: &Lab) -> Result<String> {
    let root = lab.file("root");
    fs::create_dir(&root)?;
    fs::write(root.join("hello"), "hello")?;
    Ok(root.display().to_string())
}

/// Downloads, lists, stores and replaces.
fn ensure_serves(lab: &Lab, root: &str) -> Result<()> {
    let url = |path: &str| format!("http://{STACK}/{path}");
    ensure!(lab.curl(&["--fail", &url("hello")])?.success()? == "hello", "a file");
    ensure!(lab.curl(&["--fail", &url("")])?.success()?.contains("hello"), "a listing");
    for text in ["first", "second"] {
        let file = lab.file(text);
        fs::write(&file, text)?;
        lab.curl(&["--fail", "-T", &file.display().to_string(), &url("stored")])?.success()?;
        ensure!(fs::read_to_string(Path::new(root).join("stored"))? == text, "an upload");
    }
    ensure!(lab.curl(&["--fail", &url("stored")])?.success()? == "second", "the stored file");
    Ok(())
}

/// Runs a server on one end of a veth pair. `link` is without its name.
fn serve_on_veth(link: &str, test: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &["curl", "ethtool"])? else { return Ok(()) };
    let root = root(&lab)?;
    let veth = Veth::open(&lab.namespace)?;
    // AF_XDP does not report unfinished checksums.
    lab.namespace.tool("ethtool", &format!("-K {} tx off", Veth::PEER))?;
    let (link, address) = (format!("--link={link}"), format!("--address={STACK}/24"));
    let words = ["http", "--dir", &root, "--upload", &link, &address];
    let server = Quietline::serve_with(&veth.ours, &words)?;
    ensure_serves(&lab, &root)?;
    ensure_confined(server.id(), &["ql/ql0/0", "connection"])?;
    ensure!(!server.stderr_so_far().contains(WARNING), "{}", server.stderr_so_far());
    server.interrupt()?;
    Ok(())
}

/// Runs a server on a kernel without these system calls: it warns in one line, and serves.
fn serve_lacking(names: &str, expected: &[&str], test: &str) -> Result<()> {
    let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
    let root = root(&lab)?;
    let mut command = lab.namespace.command(LACKING);
    command.arg(names).arg(binary()?).args(["serve", "http", "--dir", &root, "--upload"]);
    let (address, peer) = (format!("--address={STACK}/24"), format!("--peer={KERNEL}/24"));
    let server = Running::start(command.args(["--link=tap:ql0", &address, &peer]))?;
    let deadline = Instant::now() + LIMIT;
    while !server.stderr_so_far().contains("listening") {
        ensure!(Instant::now() < deadline, "never listened: {}", server.stderr_so_far());
        sleep(Duration::from_millis(5));
    }
    ensure_serves(&lab, &root)?;
    server.signal(Signal::INT)?;
    let stderr = server.wait(LIMIT)?.stderr;
    let warnings: Vec<_> = stderr.lines().filter(|line| line.contains(WARNING)).collect();
    ensure!(warnings.len() == 1, "{stderr}");
    for name in ["Landlock", "seccomp", "no_new_privs"] {
        ensure!(warnings[0].contains(name) == expected.contains(&name), "{name}: {stderr}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_on_a_tap_is_confined() -> Result<()> {
        let test = "every_thread_on_a_tap_is_confined";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let root = root(&lab)?;
        let pcap = lab.file("run.pcapng");
        let record = format!("--pcap={}", pcap.display());
        let link = Link { cores: 2, ..Link::default() };
        let server =
            lab.serve(&link, &["http", "--dir", &root, "--upload", &record, "--stats=1"])?;
        ensure_serves(&lab, &root)?;
        let names = ["capture", "ql/ql0/0", "ql/ql0/1", "events", "acceptor"];
        ensure_confined(server.id(), &names)?;
        ensure_confined(server.id(), &["connections", "connection"])?;
        server.signal(Signal::USR1)?;
        sleep(Duration::from_millis(1500));
        let ended = server.interrupt()?;
        ensure!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stdout.matches("TcpPassiveOpens").count() >= 3, "{}", ended.stdout);
        ensure!(!ended.stderr.contains(WARNING), "{}", ended.stderr);
        ensure!(ended.stderr.contains(", 0 left out"), "the capture: {}", ended.stderr);
        ensure!(fs::metadata(pcap)?.len() > 1000, "the capture is empty");
        Ok(())
    }

    #[test]
    fn every_thread_on_a_tun_is_confined() -> Result<()> {
        let Some(lab) = Lab::open("every_thread_on_a_tun_is_confined", &[])? else {
            return Ok(());
        };
        let link = Link { kind: "tun", ..Link::default() };
        let server = lab.serve(&link, &["echo", "--port=7"])?;
        ensure_confined(server.id(), &["ql/ql0/0", "connection"])?;
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn every_thread_on_packet_sockets_is_confined() -> Result<()> {
        serve_on_veth("af_packet:ql0", "every_thread_on_packet_sockets_is_confined")
    }

    #[test]
    fn every_thread_on_taken_queues_is_confined() -> Result<()> {
        serve_on_veth("af_xdp:ql0", "every_thread_on_taken_queues_is_confined")
    }

    #[test]
    fn every_thread_of_connect_is_confined() -> Result<()> {
        let test = "every_thread_of_connect_is_confined";
        let Some(lab) = Lab::open(test, &["nc"])? else { return Ok(()) };
        let mut listener = Running::start(lab.namespace.command("nc").args(["-l", "-d", "5000"]))?;
        lab.wait_for_listener(5000)?;
        let connect = Quietline::connect(&lab.namespace, &Link::default(), 5000, Stdio::piped())?;
        lab.shell("for i in $(seq 200); do ss -Htn state established 'sport = :5000' | grep -q . && exit 0; sleep 0.02; done; exit 1")?;
        ensure_confined(connect.id(), &["ql/ql0/0", "receiver", "sender"])?;
        listener.kill();
        Ok(())
    }

    #[test]
    fn without_a_sandbox_threads_keep_their_privileges() -> Result<()> {
        let test = "without_a_sandbox_threads_keep_their_privileges";
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        let server = lab.serve(&Link::default(), &["echo", "--port=7", "--no-sandbox"])?;
        for thread in Thread::all(server.id())? {
            let Thread { capabilities, no_new_privileges, seccomp, .. } = &thread;
            ensure!(capabilities[0] != 0, "{thread:?}");
            ensure!(!no_new_privileges && *seccomp == 0, "{thread:?}");
        }
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn a_link_out_of_the_directory_is_not_served() -> Result<()> {
        let test = "a_link_out_of_the_directory_is_not_served";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let root = root(&lab)?;
        fs::write(lab.file("secret"), "not yours")?;
        symlink("../secret", Path::new(&root).join("out"))?;
        symlink("hello", Path::new(&root).join("in"))?;
        let server = lab.serve(&Link::default(), &["http", "--dir", &root])?;
        let got = lab.curl(&["--fail", &format!("http://{STACK}/out")])?;
        ensure!(!got.status.success() && !got.stdout.contains("yours"), "{}", got.stdout);
        let got = lab.curl(&["--fail", &format!("http://{STACK}/in")])?;
        ensure!(got.success()? == "hello", "a link inside");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn an_inaccessible_directory_is_refused() -> Result<()> {
        let test = "an_inaccessible_directory_is_refused";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let root = root(&lab)?;
        chown(&root, Some(65_534), Some(65_534))?;
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700))?;
        let mut command = lab.namespace.command(binary()?);
        let address = format!("--address={STACK}/24");
        command.args(["serve", "http", "--dir", &root, "--link=tap:ql0", &address]);
        let ended = Finished::of(&mut command)?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stderr.contains("--no-sandbox"), "{}", ended.stderr);
        let server = lab.serve(&Link::default(), &["http", "--dir", &root, "--no-sandbox"])?;
        let got = lab.curl(&["--fail", &format!("http://{STACK}/hello")])?;
        ensure!(got.success()? == "hello", "as root");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn a_kernel_without_landlock_is_named_once() -> Result<()> {
        serve_lacking("landlock", &["Landlock"], "a_kernel_without_landlock_is_named_once")
    }

    #[test]
    fn a_kernel_without_seccomp_is_named_once() -> Result<()> {
        serve_lacking("seccomp", &["seccomp"], "a_kernel_without_seccomp_is_named_once")
    }

    #[test]
    fn a_kernel_without_both_is_named_once() -> Result<()> {
        let expected = ["Landlock", "seccomp"];
        serve_lacking("landlock,seccomp", &expected, "a_kernel_without_both_is_named_once")
    }
}
