//! SC3, SC4: charged memory, writability and received data are the same in every recycling mode.

use std::time::Duration;

use stack::{Readiness, socket::options::MemoryInfo};

use super::rig::{CLIENT, Rig, SERVER};

/// Visible state of one connection after one step.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// The socket's memory counters.
    memory: MemoryInfo,
    readiness: Readiness,
    /// Bytes of the last read or write.
    moved: usize,
}

/// Runs a random sequence of writes, reads, polls and pauses.
fn trace(mode: &str, seed: u64) -> (Vec<Seen>, i64) {
    let settings = [("net.quietline.skb_recycle", mode), ("net.ipv4.tcp_wmem", "4608 20000 60000")];
    let mut rig = Rig::new(seed % 2 == 1, &settings);
    let sockets = rig.connect();
    let mut rng = tcp::Rng::new(seed);
    let mut seen = Vec::new();
    for _ in 0..1500 {
        let at = rng.below(2) as usize;
        let most = [10, 100, 1000, 20_000][rng.below(4) as usize];
        let len = 1 + rng.below(most) as usize;
        let mut moved = 0;
        match rng.below(10) {
            0..=3 => moved = rig.send(at, &sockets[at], &vec![3; len]).unwrap_or(0),
            4..=6 => moved = rig.recv(at, &sockets[at], len).map_or(0, |bytes| bytes.len()),
            7..=8 => {
                let end = &mut rig.ends[at];
                end.poll();
                end.host.check(&mut end.poll, |_, _| {});
            }
            _ => rig.pass(Duration::from_micros(u64::from(rng.below(2000)))),
        }
        for (end, socket) in rig.ends.iter_mut().zip(&sockets) {
            let memory = socket.memory_info(&end.host, &mut end.app);
            let readiness = socket.readiness();
            seen.push(Seen { memory, readiness, moved });
        }
    }
    let pages = rig.ends[CLIENT].host.tcp_memory_pages() + rig.ends[SERVER].host.tcp_memory_pages();
    rig.finish([sockets]);
    (seen, pages)
}

#[test]
fn no_recycling_mode_changes_the_charges_or_writability_of_a_connection() {
    for seed in 0..12 {
        let plain = trace("none", seed);
        assert!(plain.0.iter().any(|seen| !seen.readiness.contains(Readiness::WRITE)));
        for mode in ["socket_one", "list_after_unlock", "per_core_defer", "unified_pool"] {
            let (seen, pages) = trace(mode, seed);
            let step = seen.iter().zip(&plain.0).position(|(seen, plain)| seen != plain);
            if let Some(step) = step {
                panic!(
                    "{mode}, seed {seed}, step {step}: {:?}, not {:?}",
                    seen[step], plain.0[step]
                );
            }
            assert_eq!(pages, plain.1, "{mode}, seed {seed}");
        }
    }
}
