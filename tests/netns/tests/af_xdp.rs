//! A stack on one end of a veth pair by AF_XDP, the kernel on the other.
//!
//! The two ends are in two namespaces, so that no other host is on the link. By default the
//! kernel's end finishes its checksums (`ethtool -K … tx off`), because AF_XDP does not report
//! unfinished ones.
//!
//! Not here: zero-copy, which veth does not support.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{
    Content, Finished, KERNEL, Lab, Namespace, Quietline, Report, STACK, binary, talk,
};
use rustix::process::Signal;

/// Name of quietline's end.
const OURS: &str = "ql0";

/// Name of the kernel's end, in the lab's namespace.
const PEER: &str = "peer0";

const LIMIT: Duration = Duration::from_secs(20);

/// A lab whose namespace has the kernel's end, and the namespace of quietline's end.
struct Pair {
    lab: Lab,
    ours: Namespace,
}

impl Pair {
    /// Makes a veth pair with these numbers of queues at the kernel's end and at quietline's.
    fn open(test: &str, programs: &[&str], queues: [u16; 2], mtu: u32) -> Result<Option<Self>> {
        let programs = [&["ethtool"], programs].concat();
        let Some(lab) = Lab::open(test, &programs)? else { return Ok(None) };
        let ours = Namespace::create()?;
        let [theirs, own] = queues;
        lab.namespace.ip(&format!(
            "link add {PEER} mtu {mtu} numrxqueues {theirs} numtxqueues {theirs} type veth \
             peer name {OURS} mtu {mtu} numrxqueues {own} numtxqueues {own}"
        ))?;
        lab.namespace.ip(&format!("link set {OURS} netns {}", ours.name()))?;
        lab.namespace.ip(&format!("address add {KERNEL}/24 dev {PEER}"))?;
        lab.namespace.ip(&format!("link set {PEER} up"))?;
        ours.ip(&format!("link set {OURS} up"))?;
        lab.namespace.tool("ethtool", &format!("-K {PEER} tx off"))?;
        Ok(Some(Self { lab, ours }))
    }

    /// Starts `quietline serve` on its end. `options` begin with a comma or are empty.
    fn serve(&self, options: &str, words: &[&str]) -> Result<Quietline> {
        let link = format!("--link=af_xdp:{OURS}{options}");
        let address = format!("--address={STACK}/24");
        let words = [words, &[link.as_str(), &address]].concat();
        Quietline::serve_with(&self.ours, &words)
    }

    /// Returns the error message of a `quietline serve` that must fail.
    fn refusal(&self, prefix: &[&str], options: &str) -> Result<String> {
        let mut command = self.ours.command(prefix.first().copied().unwrap_or("env"));
        command.args(prefix.get(1..).unwrap_or_default()).arg(binary()?);
        command.args(["serve", "echo", "--port=7", &format!("--link=af_xdp:{OURS}{options}")]);
        let ended = Finished::of(command.arg(format!("--address={STACK}/24")))?;
        ensure!(!ended.status.success(), "it runs: {}", ended.stderr);
        ensure!(ended.stderr.trim().lines().count() == 1, "more than one line: {}", ended.stderr);
        Ok(ended.stderr)
    }

    /// Whether an XDP program is attached to quietline's end.
    fn has_program(&self) -> Result<bool> {
        Ok(self.ours.ip(&format!("link show dev {OURS}"))?.contains("xdp"))
    }

    fn ensure_detached(&self) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.has_program()? {
            ensure!(Instant::now() < deadline, "the XDP program is still attached");
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// Transfers in both directions, and returns quietline's report. `chosen` is the expected mode in
/// its output.
fn bulk(pair: &Pair, options: &str, chosen: &str) -> Result<Report> {
    let lab = &pair.lab;
    let root = lab.file("root");
    std::fs::create_dir_all(&root)?;
    let content = Content::create(&root, "bulk", 32 << 20, 5)?;
    let directory = root.display().to_string();
    let words = ["http", "--dir", &directory, "--upload", "--stats", "--json"];
    let server = pair.serve(options, &words)?;
    ensure!(server.stderr_so_far().contains(chosen), "{}", server.stderr_so_far());
    ensure!(pair.has_program()?, "no program on the interface");
    let from = content.path.display().to_string();
    let printed = lab.shell(&format!(
        "curl -sSf --max-time 50 http://{STACK}/bulk | sha256sum
         curl -sSf --max-time 50 -T '{from}' http://{STACK}/up >/dev/null
         sha256sum <root/up"
    ))?;
    let expected = format!("{0}  -\n{0}  -\n", content.sha256);
    ensure!(printed == expected, "the bytes differ: {printed}");
    let ended = server.interrupt()?;
    pair.ensure_detached()?;
    Report::of(&ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_transfers_pass_in_generic_mode() -> Result<()> {
        let test = "bulk_transfers_pass_in_generic_mode";
        let Some(pair) = Pair::open(test, &["curl"], [1, 1], 1500)? else { return Ok(()) };
        let report = bulk(&pair, ",mode=generic", "generic mode, copying, 1 queue")?;
        ensure!(report.counter("DEV_RX_TRUNCATED")? == 0, "superframes arrived");
        Ok(())
    }

    #[test]
    fn bulk_transfers_pass_in_native_mode() -> Result<()> {
        let test = "bulk_transfers_pass_in_native_mode";
        let Some(pair) = Pair::open(test, &["curl"], [1, 1], 1500)? else { return Ok(()) };
        bulk(&pair, ",mode=native", "native mode, copying, 1 queue").map(drop)
    }

    #[test]
    fn bulk_transfers_pass_with_page_sized_frames_and_rings_of_64() -> Result<()> {
        let test = "bulk_transfers_pass_with_page_sized_frames_and_rings_of_64";
        let Some(pair) = Pair::open(test, &["curl"], [1, 1], 3000)? else { return Ok(()) };
        let report = bulk(&pair, ",mode=generic,ring=64", "generic")?;
        // Frames that found no room were sent later: none was dropped for lack of it.
        ensure!(report.counter("FULL_RING")? == 0, "frames were dropped");
        Ok(())
    }

    #[test]
    fn unfinished_checksums_are_trusted_if_configured() -> Result<()> {
        let test = "unfinished_checksums_are_trusted_if_configured";
        let Some(pair) = Pair::open(test, &["curl"], [1, 1], 1500)? else { return Ok(()) };
        pair.lab.namespace.tool("ethtool", &format!("-K {PEER} tx on"))?;
        // In native mode the kernel sends no superframes here, although its end may advertise them.
        let report = bulk(&pair, ",mode=native,trust-checksums", "native")?;
        ensure!(report.counter("TcpInCsumErrors")? == 0, "checksums were verified");
        Ok(())
    }

    #[test]
    fn auto_mode_selects_a_mode_of_the_driver() -> Result<()> {
        let test = "auto_mode_selects_a_mode_of_the_driver";
        // veth has no native mode if the other end may send on more queues than this end receives
        // on.
        let Some(pair) = Pair::open(test, &["curl"], [2, 1], 1500)? else { return Ok(()) };
        let refusal = pair.refusal(&[], ",mode=native")?;
        ensure!(refusal.contains("mode=generic works"), "{refusal}");
        bulk(&pair, "", "generic mode, copying, 1 queue").map(drop)
    }

    #[test]
    fn busy_polling_receives_frames() -> Result<()> {
        let test = "busy_polling_receives_frames";
        let Some(pair) = Pair::open(test, &["curl"], [1, 1], 1500)? else { return Ok(()) };
        bulk(&pair, ",mode=native,busy-poll=20,busy-poll-budget=16", "native").map(drop)
    }

    fn two_queues(test: &str, mode: &str) -> Result<()> {
        let Some(pair) = Pair::open(test, &[], [2, 2], 1500)? else { return Ok(()) };
        let words = ["echo", "--port=7", "--cores=2", "--stats", "--json"];
        let server = pair.serve(mode, &words)?;
        ensure!(server.stderr_so_far().contains("2 queue"), "{}", server.stderr_so_far());
        let address: SocketAddr = format!("{STACK}:7").parse()?;
        pair.lab.namespace.enter(|| talk(address, 200, 5))?;
        let report = Report::of(&server.interrupt()?)?;
        let processed = report.softnet("processed")?;
        println!("frames on each core: {processed:?}");
        ensure!(processed.len() == 2 && processed.iter().sum::<u64>() > 1000, "{processed:?}");
        Ok(())
    }

    #[test]
    fn two_hundred_connections_on_two_queues_in_generic_mode() -> Result<()> {
        two_queues("two_hundred_connections_on_two_queues_in_generic_mode", ",mode=generic")
    }

    #[test]
    fn two_hundred_connections_on_two_queues_in_native_mode() -> Result<()> {
        two_queues("two_hundred_connections_on_two_queues_in_native_mode", ",mode=native")
    }

    #[test]
    fn frames_without_room_are_counted() -> Result<()> {
        const PINGS: u64 = 300;
        let test = "frames_without_room_are_counted";
        let Some(pair) = Pair::open(test, &["ping"], [1, 1], 1500)? else { return Ok(()) };
        let words = ["echo", "--port=7", "--stats", "--json"];
        let server = pair.serve(",mode=generic,ring=64", &words)?;
        let ping = |count: u64| {
            let words = format!("-n -q -c {count} -i 0.002 -W 1 {STACK}");
            let mut command = pair.lab.namespace.command("ping");
            Finished::of(command.args(words.split_whitespace()))
        };
        ensure!(ping(1)?.status.success(), "no answer");
        let answered = pair.lab.namespace.ip(&format!("neighbour show {STACK}"))?;
        let mac = answered.split("lladdr ").nth(1).and_then(|rest| rest.split(' ').next());
        let mac = mac.with_context(|| format!("no address: {answered}"))?;
        pair.lab
            .namespace
            .ip(&format!("neighbour replace {STACK} lladdr {mac} dev {PEER} nud permanent"))?;
        server.signal(Signal::STOP)?;
        let _none_answers = ping(PINGS)?;
        server.signal(Signal::CONT)?;
        // The kernel's counts are read when frames arrive.
        sleep(Duration::from_millis(300));
        ping(1)?;
        let report = Report::of(&server.interrupt()?)?;
        let (seen, missed) = (report.counter("IcmpInEchos")?, report.counter("DeviceRxMissed")?);
        ensure!(missed > 0 && seen > 2, "{seen} seen, {missed} missed");
        ensure!(seen + missed == PINGS + 2, "{seen} seen and {missed} missed of {}", PINGS + 2);
        Ok(())
    }

    #[test]
    fn an_interface_that_is_deleted_under_traffic_ends_the_server() -> Result<()> {
        let test = "an_interface_that_is_deleted_under_traffic_ends_the_server";
        let Some(pair) = Pair::open(test, &["socat"], [1, 1], 1500)? else { return Ok(()) };
        let server = pair.serve("", &["chargen", "--port=19", "--stats", "--json"])?;
        let reader = format!("timeout 5 socat -u TCP:{STACK}:19 - >/dev/null & sleep 0.3");
        pair.lab.shell(&format!("{reader}; ip link delete {PEER}"))?;
        let ended = server.wait(LIMIT)?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stderr.contains("its interface was deleted"), "{}", ended.stderr);
        let report = Report::of(&ended)?;
        ensure!(report.counter("TcpPassiveOpens")? > 0, "nothing was counted");
        Ok(())
    }

    #[test]
    fn a_transfer_survives_an_interface_that_goes_down_and_up() -> Result<()> {
        let test = "a_transfer_survives_an_interface_that_goes_down_and_up";
        let Some(pair) = Pair::open(test, &["curl"], [1, 1], 1500)? else { return Ok(()) };
        let content = Content::create(pair.lab.directory(), "bulk", 16 << 20, 3)?;
        let directory = pair.lab.directory().display().to_string();
        let server = pair.serve("", &["http", "--dir", &directory])?;
        pair.lab.shell(&format!(
            "curl -sSf --max-time 50 --limit-rate 8M -o down http://{STACK}/bulk & sleep 0.7; \
             ip netns exec {0} ip link set {OURS} down; sleep 1; \
             ip netns exec {0} ip link set {OURS} up; wait $!; sha256sum <down >sum",
            pair.ours.name()
        ))?;
        let printed = std::fs::read_to_string(pair.lab.file("sum"))?;
        ensure!(printed.starts_with(&content.sha256), "the download differs");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn the_xdp_program_is_detached_with_its_process() -> Result<()> {
        let test = "the_xdp_program_is_detached_with_its_process";
        let Some(pair) = Pair::open(test, &["ping"], [1, 1], 1500)? else { return Ok(()) };
        for round in 0..3 {
            // The queue is free again at once.
            let server = pair.serve("", &["echo", "--port=7"])?;
            ensure!(pair.has_program()?, "no program on the interface");
            let words = format!("-n -q -c 1 -W 2 {STACK}");
            pair.lab.namespace.tool("ping", &words).with_context(|| format!("round {round}"))?;
            if round == 0 {
                server.interrupt()?;
            } else {
                server.kill();
            }
            pair.ensure_detached()?;
        }
        Ok(())
    }

    #[test]
    fn refusals_name_the_reason() -> Result<()> {
        let test = "refusals_name_the_reason";
        let Some(pair) = Pair::open(test, &["setpriv"], [1, 1], 1500)? else { return Ok(()) };
        let expect = |prefix: &[&str], options: &str, words: &str| -> Result<()> {
            let refusal = pair.refusal(prefix, options)?;
            ensure!(refusal.contains(words), "{options}: {refusal}");
            ensure!(!pair.has_program()?, "{options}: a program is left");
            Ok(())
        };
        expect(&[], ",mode=zerocopy", "no zero-copy")?;
        expect(&[], ",queues=2", "there is no such queue")?;
        expect(&[], ",first-queue=4", "first-queue")?;
        let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
        expect(&nobody, "", "CAP_NET_RAW")?;
        let server = pair.serve(",mode=generic", &["echo", "--port=7"])?;
        let refusal = pair.refusal(&[], ",mode=generic")?;
        ensure!(refusal.contains("another XDP program"), "{refusal}");
        server.interrupt()?;
        pair.ours.ip(&format!("link set {OURS} mtu 9000"))?;
        expect(&[], "", "3822")?;
        pair.ours.ip(&format!("link set {OURS} down"))?;
        expect(&[], "", "link set ql0 up")?;
        Ok(())
    }
}
