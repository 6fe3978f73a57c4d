//! Recycling changes where packets are freed, and nothing else: whole scenarios in every mode,
//! between hosts with threads of their own, are equal to the last frame and the last nanosecond.
//!
//! Not here: the savings of each mode (`stack/tests/recycle`), the invariants of a run (`network`).

#[cfg(test)]
mod tests {
    use pkt::PoolStats;
    use sim::scenario::{Caches, Outcome, Scenario, Threads, run};
    use tcp::PacketRecycle;

    const MODES: [PacketRecycle; 5] = [
        PacketRecycle::None,
        PacketRecycle::SocketOne,
        PacketRecycle::ListAfterUnlock,
        PacketRecycle::PerCoreDefer,
        PacketRecycle::UnifiedPool,
    ];

    /// Plays `scenario` with every host in `mode`.
    fn outcome(scenario: &Scenario, mode: PacketRecycle) -> Outcome {
        let mut scenario = scenario.clone();
        scenario.hosts.iter_mut().for_each(|host| host.tcp.packet_recycle = mode);
        scenario.changes.retain(|change| !change.name.contains("skb"));
        run(&scenario, None, None)
    }

    /// SC3, SC4 in whole runs: no charge, no time of writability and no frame differs.
    #[test]
    fn no_mode_changes_a_run() {
        let (mut pools, mut caches) = (Vec::new(), Vec::new());
        for seed in 0..24 {
            let mut scenario = Scenario::of(seed);
            scenario.threads = if seed % 2 == 0 { Threads::Apart } else { Threads::Ringing };
            let runs = MODES.map(|mode| outcome(&scenario, mode));
            let seen = runs.map(|run| {
                let seen = Outcome { pool: PoolStats::default(), caches: Caches::default(), ..run };
                format!("{seen:?}")
            });
            for (mode, seen_in) in MODES.iter().zip(&seen) {
                assert_eq!(*seen_in, seen[0], "seed {seed}, {mode:?}");
            }
            pools.push(runs.map(|run| run.pool));
            caches.push(runs.map(|run| run.caches));
        }
        // Each mode has the effect that it is designed for.
        let sum = |mode: usize, value: fn(&PoolStats) -> u64| -> u64 {
            pools.iter().map(|runs| value(&runs[mode])).sum()
        };
        let [none, one, after, defer, unified] =
            [0, 1, 2, 3, 4].map(|mode| sum(mode, |pool| pool.free_remote));
        assert!(none > 1000 && after > 1000, "{none}, {after}");
        assert!(one < none, "{one} of {none}");
        assert_eq!(unified, 0, "of {none}");
        assert!(defer < none / 2 && sum(3, |pool| pool.defer_pushed) > 1000, "{defer} of {none}");
        assert!(sum(4, |pool| pool.adopted) > 1000);
        let used = |mode: usize| caches.iter().map(|runs| runs[mode].tx_hits).sum::<u64>();
        assert!(used(1) > 0 && [0, 2, 3, 4].map(used) == [0; 4]);
        assert!(caches.iter().any(|runs| runs[2].after_unlock > 0));
    }
}
