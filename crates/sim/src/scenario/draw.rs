//! Draws a scenario from a seed.
//!
//! Bounds keep a run short and every stream deliverable: no mean loss above a few percent, no
//! blackout longer than 20 s, less data where segments are tiny.

use std::time::Duration;

use stack::{base::tcp_memory::MemoryLimits, sysctl::Sysctls};
use tcp::{Algorithm, Rng};

use super::{Flow, Scenario, Session, Setting, Threads};
use crate::{
    modes::{self, Settings},
    network::{Burst, Change, Offload, PathConfig, Version},
    traffic::{Behavior, Ending},
};

/// Settings that may change while connections exist, with values of both kinds.
const CHANGES: [(&str, [&str; 2]); 21] = [
    ("tcp_sack", ["0", "1"]),
    ("tcp_timestamps", ["0", "1"]),
    ("tcp_window_scaling", ["0", "1"]),
    ("tcp_dsack", ["0", "1"]),
    ("tcp_frto", ["0", "2"]),
    ("tcp_early_retrans", ["0", "3"]),
    ("tcp_ecn", ["0", "1"]),
    ("tcp_congestion_control", ["reno", "bbr"]),
    ("tcp_moderate_rcvbuf", ["0", "1"]),
    ("tcp_rmem", ["4096 8000 20000", "4096 131072 6291456"]),
    ("tcp_wmem", ["4096 8000 20000", "4096 16384 4194304"]),
    ("tcp_mtu_probing", ["1", "2"]),
    ("tcp_reordering", ["1", "10"]),
    ("tcp_max_reordering", ["1", "300"]),
    ("tcp_slow_start_after_idle", ["0", "1"]),
    ("tcp_tso_win_divisor", ["0", "8"]),
    ("tcp_notsent_lowat", ["1", "4294967295"]),
    ("tcp_comp_sack_nr", ["0", "255"]),
    ("tcp_pingpong_thresh", ["1", "255"]),
    ("tcp_min_tso_segs", ["1", "40"]),
    // MTU probing adds headers and timestamps to this floor: 512 fits the narrowest black-hole
    // path, of 576 bytes.
    ("tcp_min_snd_mss", ["48", "512"]),
];

/// Largest length of each stream when segments are tiny.
const TINY_LENGTH_MAX: u64 = 30_000;

/// Settings for the largest windows and superframes.
const BROAD: [(&str, &str); 7] = [
    ("net.quietline.dev.default.gso_ipv4_max_size", "524280"),
    ("net.quietline.dev.default.gro_ipv4_max_size", "524280"),
    ("net.ipv4.tcp_rmem", "4096 8000000 16000000"),
    ("net.ipv4.tcp_wmem", "4096 4000000 16000000"),
    ("net.ipv4.tcp_window_scaling", "1"),
    ("net.ipv4.tcp_notsent_lowat", "4294967295"),
    // Superframes of the device's size, not bounded by the pacing rate.
    ("net.ipv4.tcp_tso_rtt_log", "31"),
];

/// Setting that can be made only when a host is built.
const LAYOUT: &str = "net.quietline.dst_layout";

/// Smallest MTU of IPv6.
const MTU_MIN_V6: u32 = 1280;

/// Smallest payload of a datagram, and the largest over IPv4.
const DATAGRAM_BYTES_MIN: u32 = 8;
const DATAGRAM_BYTES_MAX: u32 = 65_507;

/// Longest blackout, in milliseconds.
const DARK_MS_MAX: u32 = 20_000;

impl Scenario {
    /// Draws the scenario of `seed`.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let (mut scenario, mut draw) = Self::drawn(seed);
        // Drawn last, so that a seed keeps everything else that it drew before there was a choice.
        if scenario.mtu >= MTU_MIN_V6 && draw.one_in(2) {
            scenario.use_ipv6();
        } else if scenario.mtu >= 500 && draw.one_in(4) {
            draw.fragments(&mut scenario);
        }
        draw.datagrams(&mut scenario);
        scenario
    }

    /// Draws the scenario of `seed` over IPv4.
    #[must_use]
    pub fn over_ipv4(seed: u64) -> Self {
        Self::drawn(seed).0
    }

    fn drawn(seed: u64) -> (Self, Draw) {
        let mut draw = Draw { rng: Rng::new(seed ^ 0x5ce0_a210) };
        let offload = [Offload::None, Offload::None, Offload::Cut, Offload::Whole];
        let offload = offload[draw.below(4)];
        let mtu = [256, 576, 1280, 1500, 1500, 1500, 9000][draw.below(7)];
        let count = [2, 2, 2, 2, 3, 4][draw.below(6)];
        let asked = modes::from_environment();
        let mut modes: Vec<Vec<usize>> = (0..count).map(|_| draw.modes(&asked)).collect();
        let mut hosts: Vec<Sysctls> = modes.iter().map(|row| draw.sysctls(row)).collect();
        let paths: Vec<PathConfig> = (0..count).map(|_| draw.path(mtu)).collect();
        let tiny = mtu < 500
            || hosts.iter().any(|host| host.tcp.tcp_rmem.max < 20_000)
            || paths.iter().any(|path| path.rate_bps.is_some_and(|rate| rate < 1_000_000));
        let sessions = match draw.below(20) {
            0 => 8 + draw.rng.below(20),
            1..6 => 2 + draw.rng.below(3),
            _ => 1,
        };
        let budget = if tiny { 100_000 } else { 1_500_000 } / sessions;
        let sessions = (0..sessions).map(|_| draw.session(count, budget)).collect();
        let cores = [1, 1, 1, 2][draw.below(4)].max(asked.cores());
        if cores > 1 {
            for (host, row) in hosts.iter_mut().zip(&modes) {
                let drawn = draw.steering();
                // A host whose mode selects steering keeps that.
                if modes::is_default(row, "steering") {
                    drawn.apply(host);
                }
            }
        } else {
            modes.iter_mut().for_each(|row| modes::forget_steering(row));
        }
        hosts.iter_mut().for_each(|host| asked.apply(host));
        let maxseg = vec![None; hosts.len()];
        let changes = Vec::new();
        let threads = [Threads::One, Threads::Ringing, Threads::Apart, Threads::Apart];
        let threads = threads[draw.below(4)];
        // Real devices coalesce completions for up to some milliseconds.
        let completes_after = draw.one_in(2).then(|| draw.millis(4));
        let mut scenario = Self {
            seed,
            hosts,
            modes,
            threads,
            completes_after,
            cores,
            paths,
            mtu,
            version: Version::V4,
            offload,
            sessions,
            datagrams: Vec::new(),
            maxseg,
            changes,
        };
        draw.handshakes(&mut scenario);
        draw.settings(&mut scenario);
        if asked == Settings::default() && draw.one_in(25) {
            draw.broad(&mut scenario);
        }
        (scenario, draw)
    }

    /// Gives the hosts IPv6 addresses. No path of IPv6 is narrower than 1,280 bytes (RFC 8200 §5).
    fn use_ipv6(&mut self) {
        self.version = Version::V6;
        for path in &mut self.paths {
            path.mtu = path.mtu.max(MTU_MIN_V6);
            for (_, change) in &mut path.changes {
                if let Change::Mtu(mtu) = change {
                    *mtu = (*mtu).max(MTU_MIN_V6);
                }
            }
        }
    }
}

struct Draw {
    rng: Rng,
}

impl Draw {
    fn below(&mut self, bound: u32) -> usize {
        self.rng.below(bound) as usize
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.below(n) == 0
    }

    fn fraction(&mut self, max: f64) -> f64 {
        f64::from(self.rng.below(1000)) / 1000.0 * max
    }

    fn millis(&mut self, max: u32) -> Duration {
        Duration::from_micros(u64::from(self.rng.below(max * 1000)))
    }

    /// Draws from 1 to `max`, small orders of magnitude as often as large ones.
    fn size(&mut self, max: u32) -> u32 {
        let bits = 32 - max.leading_zeros();
        let top = 1_u32 << self.rng.below(bits);
        (top + self.rng.below(top)).min(max)
    }

    /// Draws a host's row of modes: often the defaults, unless the environment selects modes.
    fn modes(&mut self, asked: &Settings) -> Vec<usize> {
        if *asked != Settings::default() || self.one_in(3) {
            vec![0; modes::table().len()]
        } else {
            modes::draw(&mut self.rng)
        }
    }

    fn sysctls(&mut self, modes: &[usize]) -> Sysctls {
        let mut sysctls = Sysctls::default();
        modes::settings(modes).apply(&mut sysctls);
        let tcp = &mut sysctls.tcp;
        // Linux gives orphaned connections fewer retries; here their streams must arrive, too.
        tcp.tcp_orphan_retries = tcp.tcp_retries2;
        tcp.tcp_mtu_probing = [1, 2][self.below(2)];
        tcp.tcp_ecn = [1, 2, 0][self.below(3)];
        if self.one_in(2) {
            tcp.tcp_congestion_control = Algorithm::ALL[self.below(4)];
        }
        tcp.tcp_sack = !self.one_in(5);
        tcp.tcp_timestamps = !self.one_in(5);
        tcp.tcp_window_scaling = !self.one_in(6);
        tcp.tcp_dsack = !self.one_in(8);
        tcp.tcp_frto = u8::from(!self.one_in(8)) * 2;
        tcp.tcp_moderate_rcvbuf = !self.one_in(6);
        tcp.tcp_slow_start_after_idle = !self.one_in(4);
        if self.one_in(6) {
            tcp.tcp_early_retrans = 0;
        }
        if self.one_in(6) {
            tcp.tcp_tso_win_divisor = [0, 1, 8][self.below(3)];
        }
        if self.one_in(8) {
            tcp.tcp_reordering = [1, 2, 5, 10][self.below(4)];
        }
        if self.one_in(8) {
            tcp.tcp_comp_sack_nr = 0;
        }
        if self.one_in(5) {
            let most = 4096 + self.size(200_000);
            tcp.tcp_rmem.default = most.min(tcp.tcp_rmem.default);
            tcp.tcp_rmem.max = most;
        }
        if self.one_in(5) {
            let most = 4608 + self.size(200_000);
            tcp.tcp_wmem.default = most.min(tcp.tcp_wmem.default);
            tcp.tcp_wmem.max = most;
        }
        if self.one_in(8) {
            tcp.tcp_notsent_lowat = 1 + self.size(100_000);
        }
        if self.one_in(8) {
            tcp.tcp_comp_sack_nr = [0, 1, 255][self.below(3)];
            tcp.tcp_pingpong_thresh = [1, 3, 255][self.below(3)];
        }
        if self.one_in(8) {
            // Memory pressure from permanent in each transfer to rare. Memory is never exhausted:
            // that ends orphaned connections, and here their streams must arrive.
            let low = 8 + u64::from(self.size(500));
            sysctls.tcp_mem = MemoryLimits { low, pressure: low + low / 2, high: 1 << 22 };
        }
        sysctls
    }

    /// Lets hosts send without DF over paths that are narrower than their devices, so that the
    /// router cuts packets into two fragments. More would multiply the loss of packets.
    fn fragments(&mut self, scenario: &mut Scenario) {
        for host in &mut scenario.hosts {
            if self.one_in(2) {
                host.ip_no_pmtu_disc = 2;
            }
        }
        for path in &mut scenario.paths {
            path.mtu = scenario.mtu / 2 + 28 + self.rng.below(scenario.mtu / 2);
            path.changes.retain(|(_, change)| !matches!(change, Change::Mtu(_)));
        }
    }

    /// Draws receive steering for a host whose modes leave it open. Its effects must not be
    /// observable in the streams.
    fn steering(&mut self) -> Settings {
        if self.one_in(2) {
            return Settings::default();
        }
        let settings = [
            ("net.quietline.dev.default.rps_cpus", ["0", "1", "2", "3"][self.below(4)]),
            ("net.quietline.dev.default.rps_flow_cnt", ["0", "0", "4096"][self.below(3)]),
            ("net.core.rps_sock_flow_entries", ["0", "64"][self.below(2)]),
        ];
        Settings::of(&settings)
    }

    fn path(&mut self, mtu: u32) -> PathConfig {
        let mut path = PathConfig { delay: self.millis(100), ..PathConfig::default() };
        if self.one_in(2) {
            path.rate_bps = Some(200_000 * u64::from(self.size(1 << 12)));
            // From a queue for one packet to bufferbloat.
            path.queue = Duration::from_millis(u64::from(self.size(2000)) - 1);
        }
        if self.one_in(3) {
            path.loss = self.fraction(0.05);
        }
        if self.one_in(4) {
            path.burst = Some(Burst {
                good: Duration::from_millis(1000) + self.millis(3000),
                bad: Duration::from_millis(1) + self.millis(100),
                loss: 0.2 + self.fraction(0.8),
            });
        }
        if self.one_in(4) {
            path.jitter = self.millis(30);
            path.jitter_reorders = self.one_in(2);
        }
        if self.one_in(4) {
            path.reorder = self.fraction(0.15);
        }
        path.reorder_delay = self.millis(20);
        if self.one_in(5) {
            path.duplicate = self.fraction(0.1);
        }
        if self.one_in(5) {
            path.corrupt = self.fraction(0.03);
        }
        if self.one_in(4) {
            path.mark_above = Some(self.millis(20));
        }
        if self.one_in(6) {
            path.mtu = 576 + self.rng.below(mtu);
            // A black hole, which only MTU probing detects.
            path.tells_mtu = self.one_in(2);
        }
        path.changes = self.changes(mtu, path.rate_bps);
        path
    }

    fn changes(&mut self, mtu: u32, rate: Option<u64>) -> Vec<(Duration, Change)> {
        let mut changes = Vec::new();
        if self.one_in(6) {
            for _ in 0..=self.below(3) {
                let start = self.millis(3000);
                let length = Duration::from_millis(u64::from(self.size(DARK_MS_MAX)));
                changes.push((start, Change::Dark(true)));
                changes.push((start + length, Change::Dark(false)));
            }
        }
        if self.one_in(5) {
            for _ in 0..=self.below(3) {
                changes.push((self.millis(2000), Change::Mtu(576 + self.rng.below(mtu))));
            }
        }
        if let Some(rate) = rate
            && self.one_in(6)
        {
            let rate = (rate / u64::from(1 + self.rng.below(10))).max(200_000);
            changes.push((self.millis(2000), Change::Rate(rate)));
        }
        if self.one_in(8) {
            changes.push((self.millis(2000), Change::Delay(self.millis(200))));
        }
        changes.sort_by_key(|(at, _)| *at);
        changes
    }

    /// Draws special handshakes: SYN cookies, data in the SYN, a peer that accepts only tiny
    /// segments.
    fn handshakes(&mut self, scenario: &mut Scenario) {
        if self.one_in(8) {
            // The ACK of a cookie must carry the number behind the SYN; otherwise the answer is a
            // reset, as in Linux. So the first two segments of a client must not both be lost, nor
            // overtaken by the third.
            scenario.hosts.iter_mut().for_each(|host| host.tcp_syncookies = 2);
            for path in &mut scenario.paths {
                let PathConfig { delay, duplicate, .. } = *path;
                *path = PathConfig { delay, duplicate, ..PathConfig::default() };
            }
        }
        if self.one_in(5) {
            // With Fast Open cookies, or without: then every host accepts data in any SYN.
            let mode = [3, 0x207][self.below(2)];
            scenario.hosts.iter_mut().for_each(|host| host.tcp_fastopen = mode);
            for session in &mut scenario.sessions {
                session.early = !self.one_in(4);
            }
        }
        if self.one_in(8) {
            let host = self.below(u32::try_from(scenario.hosts.len()).expect("few"));
            scenario.maxseg[host] = Some([88, 89, 100, 216, 536][self.below(5)]);
            for session in &mut scenario.sessions {
                session.up.length = session.up.length.min(TINY_LENGTH_MAX);
                session.down.length = session.down.length.min(TINY_LENGTH_MAX);
            }
        }
    }

    /// Draws settings that change while connections exist.
    fn settings(&mut self, scenario: &mut Scenario) {
        if !self.one_in(4) {
            return;
        }
        let hosts = u32::try_from(scenario.hosts.len()).expect("few");
        for _ in 0..=self.below(8) {
            let (name, values) = CHANGES[self.below(21)];
            let (at, host) = (self.millis(3000), self.below(hosts));
            let (name, value) = (format!("net.ipv4.{name}"), values[self.below(2)].to_owned());
            scenario.changes.push(Setting { at, host, name, value });
        }
        if modes::from_environment() == Settings::default() && self.one_in(2) {
            let row = modes::draw(&mut self.rng);
            let (at, host) = (self.millis(3000), self.below(hosts));
            let settings = modes::settings(&row).0.into_iter();
            let live = settings.filter(|(name, _)| name != LAYOUT);
            let live = live.map(|(name, value)| Setting { at, host, name, value });
            scenario.changes.extend(live.collect::<Vec<_>>());
        }
        scenario.changes.sort_by_key(|change| change.at);
    }

    /// Draws a network as inside one machine: only the size limit bounds superframes (BIG TCP).
    fn broad(&mut self, scenario: &mut Scenario) {
        scenario.offload = [Offload::Cut, Offload::Whole][self.below(2)];
        for host in &mut scenario.hosts {
            for (name, value) in BROAD {
                host.set(name, value).expect("a setting");
            }
        }
        for path in &mut scenario.paths {
            let delay = Duration::from_micros(u64::from(self.rng.below(100)));
            let loss = if self.one_in(2) { 0.0 } else { self.fraction(0.002) };
            *path = PathConfig { delay, loss, ..PathConfig::default() };
        }
        scenario.sessions.truncate(1);
        for session in &mut scenario.sessions {
            let [up, down] = [self.behavior(1), self.behavior(1)].map(|behavior| Behavior {
                length: 1_000_000 + u64::from(self.rng.below(3_000_000)),
                write_max: 500_000,
                read_max: 500_000,
                pauses: 0,
                ..behavior
            });
            (session.up, session.down) = (up, Behavior { length: 0, ..down });
        }
        scenario.maxseg = vec![None; scenario.hosts.len()];
        scenario.changes.clear();
    }

    fn session(&mut self, hosts: u32, budget: u32) -> Session {
        let client = self.below(hosts);
        let server = (client + 1 + self.below(hosts - 1)) % hosts as usize;
        let at = if self.one_in(2) { Duration::ZERO } else { self.millis(2000) };
        let (up, down) = (self.behavior(budget), self.behavior(budget));
        let mut session = Session { client, server, at, early: false, up, down };
        // Both streams, or only one of them.
        match self.below(4) {
            0 => session.up.length = 0,
            1 => session.down.length = 0,
            _ => {}
        }
        match self.below(8) {
            0 => session.up.ending = Ending::Last,
            1 => session.down.ending = Ending::Last,
            2 if session.down.length == 0 => session.up.ending = Ending::Close,
            3 if session.up.length == 0 => session.down.ending = Ending::Close,
            4 if self.one_in(2) => {
                let after = u64::from(self.rng.below(budget));
                let aborter = if self.one_in(2) { &mut session.up } else { &mut session.down };
                aborter.ending = Ending::Abort(after);
            }
            _ => {}
        }
        session
    }

    /// Draws datagrams for half of the scenarios: most fit the MTU or need a few fragments.
    fn datagrams(&mut self, scenario: &mut Scenario) {
        let hosts = u32::try_from(scenario.hosts.len()).expect("few");
        for _ in 0..[0, 0, 1, 2][self.below(4)] {
            let from = self.below(hosts);
            let to = (from + 1 + self.below(hosts - 1)) % hosts as usize;
            let bounds = [scenario.mtu / 2, 3 * scenario.mtu, 3 * scenario.mtu, DATAGRAM_BYTES_MAX];
            let bound = bounds[self.below(4)];
            let size_max = DATAGRAM_BYTES_MIN + self.size(bound);
            scenario.datagrams.push(Flow {
                from,
                to,
                at: self.millis(1000),
                count: self.size(40),
                size_max: size_max.min(DATAGRAM_BYTES_MAX),
                equal: self.one_in(3),
                pause: self.millis(100),
                batch: self.size(8),
                connected: self.one_in(2),
                joins: self.one_in(3),
            });
        }
        if !scenario.datagrams.is_empty() {
            for host in &mut scenario.hosts {
                host.udp_early_demux = !self.one_in(4);
            }
        }
    }

    fn behavior(&mut self, budget: u32) -> Behavior {
        Behavior {
            length: u64::from(self.size(budget)),
            write_max: self.size(200_000).max(if budget > 2000 { 64 } else { 1 }),
            write_pause: self.millis(300),
            read_max: self.size(100_000).max(64),
            read_pause: self.millis(300),
            waits: self.one_in(2),
            pauses: [0, 0, 5, 50][self.below(4)],
            more: [0, 0, 100, 500][self.below(4)],
            option_changes: [0, 0, 5, 30][self.below(4)],
            ending: Ending::First,
            prediction: None,
        }
    }
}
