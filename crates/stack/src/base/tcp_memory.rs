//! The account of what all connections of a host hold: `net.ipv4.tcp_mem`.
//!
//! Above: sockets charge what their queues hold after every change; the engine is told the verdict with every call.
//! Linux: net/core/sock.c (`__sk_mem_raise_allocated`), tcp_enter_memory_pressure, the per-CPU reserve `per_cpu_fw_alloc`.
//!
//! Counted in pages of 4 KB, as Linux counts. A socket settles once per batch, and its page count seldom changes; what
//! changes goes to a reserve that belongs to the running context, and only what the reserve cannot take reaches the
//! shared number. So the shared line is written once per `TcpMemory::batch` pages, never per packet, and the
//! account is off by at most that much per context.
//!
//! The verdict has a line of its own, which everybody reads and nobody writes until it changes.
//!
//! What the account says is what packets were charged. What they keep from being used again may be more: a slice keeps its page. So
//! the packet memory that is in use is judged too, whole pages of it, against what there is, and the worse of both is the verdict
//! (`TcpMemory::note_packets`). When that is what is scarce, connections are visited and give up what they can, since a peer
//! that holds memory on purpose sends nothing that would make them look.
//!
//! Not here: what a connection does without (`tcp::tcb::memory`), packet memory itself (`pkt::Domain`).

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

use pkt::Instant;
use sync::Padded;
use tcp::{Counter, Counters, MemoryPressure, MemoryState};

/// What one unit of the account is.
pub(crate) const PAGE_BYTES: u32 = 4096;

/// Pages a context may hold back: 1 MB, as Linux's `SK_MEMORY_PCPU_RESERVE`.
const RESERVE_PAGES_MAX: i64 = 256;

/// Levels of the verdict, as `MemoryPressure` has them; 0 is none.
const PRESSURE: u8 = 1;
const EXHAUSTED: u8 = 2;

/// How often the memory in use is counted: a link of 10 Gbit/s fills 12 MB in between.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The three thresholds of `tcp_mem`, in pages of 4 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Below it pressure ends.
    pub low: u64,
    /// Above it pressure begins.
    pub pressure: u64,
    /// Above it nobody gets memory.
    pub high: u64,
}

impl MemoryLimits {
    /// The default for `bytes_max` of packet memory: pressure at a half, an end at three quarters.
    ///
    /// Differs from Linux, where it is a sixteenth of all memory: this memory holds packets and nothing else. The last
    /// quarter is for what devices receive and for ACKs, without which nothing would ever be freed.
    #[must_use]
    pub fn for_packets(bytes_max: usize) -> Self {
        let pages = (bytes_max as u64 / u64::from(PAGE_BYTES)).max(128);
        Self { low: pages / 8 * 3, pressure: pages / 2, high: pages / 4 * 3 }
    }
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct TcpMemory {
    verdict: Padded<Verdict>,
    account: Padded<Account>,
}

/// Read with every call into the engine, written when pressure begins or ends.
#[derive(Debug, Default)]
struct Verdict {
    /// A `MemoryPressure`. Relaxed: a verdict orders nothing.
    pressure: AtomicU8,
    /// Idle connections keep packets that they should not any more. Release after what says so (the settings, the verdict),
    /// Acquire by who takes it, before it looks at that.
    trim: AtomicBool,
    /// Some setting so far let connections keep packets. Relaxed: who misses it misses a setting of this very moment.
    kept: AtomicBool,
    /// When packet memory is to be looked at next, in nanoseconds. Relaxed: two may look at once.
    look_at_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Account {
    /// Pages charged, less what contexts hold back. Relaxed: a sum orders nothing.
    pages: AtomicI64,
    /// Connections: under pressure each has its share. Relaxed: a count orders nothing.
    sockets: AtomicI64,
    /// When pressure began, in milliseconds from 1; 0 is no pressure. The one who swaps it counts.
    since_ms: AtomicU64,
    /// What the account alone would say, and what packet memory alone would. Relaxed: who changes one tells both, and packet memory
    /// is looked at again soon.
    charged: AtomicU8,
    packets: AtomicU8,
    /// The limits as last judged by, for those who give memory back outside any context: low, pressure, high. Relaxed: a
    /// mixture of two settings is judged by for a moment only.
    limits: [AtomicU64; 3],
}

impl TcpMemory {
    pub(crate) fn new() -> Self {
        Self { verdict: Padded::new(Verdict::default()), account: Padded::new(Account::default()) }
    }

    /// What the engine is told.
    #[inline]
    pub(crate) fn state(&self, limits: &MemoryLimits) -> MemoryState {
        match self.verdict.pressure.load(Ordering::Relaxed) {
            0 => MemoryState::PLENTY,
            verdict => self.scarce(verdict, limits),
        }
    }

    #[cold]
    fn scarce(&self, verdict: u8, limits: &MemoryLimits) -> MemoryState {
        let sockets = u64::try_from(self.account.sockets.load(Ordering::Relaxed)).unwrap_or(0);
        let share = limits.high.saturating_mul(u64::from(PAGE_BYTES)) / sockets.max(1);
        MemoryState {
            pressure: if verdict == PRESSURE {
                MemoryPressure::Pressure
            } else {
                MemoryPressure::Exhausted
            },
            share_bytes: u32::try_from(share).unwrap_or(u32::MAX),
        }
    }

    /// Pages that one context may hold back: little beside the limits, so that small hosts are judged well too.
    fn batch(limits: &MemoryLimits) -> i64 {
        i64::try_from(limits.low / 16).unwrap_or(i64::MAX).clamp(1, RESERVE_PAGES_MAX)
    }

    /// A socket holds `pages` more, or fewer. `reserve` is what the running context holds back.
    #[inline]
    pub(crate) fn charge(
        &self,
        reserve: &AtomicI64,
        pages: i64,
        limits: &MemoryLimits,
        counters: &Counters,
        now: Instant,
    ) {
        let held = reserve.load(Ordering::Relaxed) + pages;
        // While memory is scarce every page counts, so that nobody waits for what is free already.
        let plenty = self.verdict.pressure.load(Ordering::Relaxed) == 0;
        if plenty && held.abs() < Self::batch(limits) {
            reserve.store(held, Ordering::Relaxed);
            return;
        }
        reserve.store(0, Ordering::Relaxed);
        self.flush(held, limits, counters, now);
    }

    #[cold]
    fn flush(&self, pages: i64, limits: &MemoryLimits, counters: &Counters, now: Instant) {
        let total = self.account.pages.fetch_add(pages, Ordering::Relaxed) + pages;
        for (slot, limit) in
            self.account.limits.iter().zip([limits.low, limits.pressure, limits.high])
        {
            if slot.load(Ordering::Relaxed) != limit {
                slot.store(limit, Ordering::Relaxed);
            }
        }
        self.judge(total, limits);
        self.count(counters, now);
    }

    /// The verdict follows `total`.
    fn judge(&self, total: i64, limits: &MemoryLimits) {
        let before = self.account.charged.load(Ordering::Relaxed);
        self.account.charged.store(level(before, total, limits), Ordering::Relaxed);
        self.publish();
    }

    /// The worse of both accounts is what the engine is told.
    fn publish(&self) {
        let levels = [&self.account.charged, &self.account.packets];
        let verdict = levels.map(|level| level.load(Ordering::Relaxed)).into_iter().max();
        let verdict = verdict.unwrap_or_default();
        let before = self.verdict.pressure.load(Ordering::Relaxed);
        if verdict != before {
            self.verdict.pressure.store(verdict, Ordering::Relaxed);
            if before == 0 {
                let _ = self.want_trim();
            }
        }
    }

    /// Packet memory has not been looked at for a while.
    #[inline]
    pub(crate) fn is_look_due(&self, now: Instant) -> bool {
        now.as_nanos() >= self.verdict.look_at_ns.load(Ordering::Relaxed)
    }

    /// Of `max_bytes` of packet memory `used_bytes` are in use. Above a half and above three quarters, connections are
    /// visited to give up what they can ([`tcp::Tcb::relieve`]), again and again while it is exhausted.
    #[cold]
    pub(crate) fn note_packets(
        &self,
        used_bytes: usize,
        max_bytes: usize,
        counters: &Counters,
        now: Instant,
    ) {
        self.verdict.look_at_ns.store((now + LOOK_EVERY).as_nanos(), Ordering::Relaxed);
        let pages = i64::try_from(used_bytes / PAGE_BYTES as usize).unwrap_or(i64::MAX);
        let before = self.account.packets.load(Ordering::Relaxed);
        let packets = level(before, pages, &MemoryLimits::for_packets(max_bytes));
        if packets != before {
            self.account.packets.store(packets, Ordering::Relaxed);
        }
        self.publish();
        self.count(counters, now);
        if packets > before || packets == EXHAUSTED {
            self.verdict.trim.store(true, Ordering::Release);
        }
    }

    /// Pressure may have begun or ended: whoever notices first counts it.
    fn count(&self, counters: &Counters, now: Instant) {
        let since = &self.account.since_ms;
        let scarce = self.verdict.pressure.load(Ordering::Relaxed) > 0;
        if scarce == (since.load(Ordering::Relaxed) > 0) {
            return;
        }
        let now_ms = now.as_millis().max(1);
        if scarce {
            if since.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                counters.inc(Counter::TcpExtTCPMemoryPressures);
            }
            return;
        }
        let began = since.swap(0, Ordering::Relaxed);
        if began > 0 {
            let lasted = now_ms.saturating_sub(began);
            counters.add(Counter::TcpExtTCPMemoryPressuresChrono, lasted);
        }
    }

    /// A socket is gone with `pages` charged, outside any context.
    pub(crate) fn uncharge(&self, pages: i64) {
        if pages == 0 {
            return;
        }
        let total = self.account.pages.fetch_sub(pages, Ordering::Relaxed) - pages;
        if self.verdict.pressure.load(Ordering::Relaxed) > 0 {
            let [low, pressure, high] =
                self.account.limits.each_ref().map(|limit| limit.load(Ordering::Relaxed));
            self.judge(total, &MemoryLimits { low, pressure, high });
        }
    }

    /// The next setting lets connections keep packets.
    pub(crate) fn note_kept(&self) {
        self.verdict.kept.store(true, Ordering::Relaxed);
    }

    /// What connections keep for later has to go: memory is scarce, or it is not wanted any more. False when they never kept
    /// anything: then nobody need look at them.
    pub(crate) fn want_trim(&self) -> bool {
        let kept = self.verdict.kept.load(Ordering::Relaxed);
        if kept {
            self.verdict.trim.store(true, Ordering::Release);
        }
        kept
    }

    /// Whether somebody wanted that; the caller does it, by settings that it reads after this.
    #[inline]
    pub(crate) fn take_trim(&self) -> bool {
        self.verdict.trim.load(Ordering::Relaxed)
            && self.verdict.trim.swap(false, Ordering::Acquire)
    }

    /// A connection begins or ends.
    pub(crate) fn count_socket(&self, by: i64) {
        self.account.sockets.fetch_add(by, Ordering::Relaxed);
    }

    /// Connections that have not been forgotten.
    pub(crate) fn sockets(&self) -> i64 {
        self.account.sockets.load(Ordering::Relaxed)
    }

    /// Pages charged; the reserves of the contexts are to be added.
    pub(crate) fn pages(&self) -> i64 {
        self.account.pages.load(Ordering::Relaxed)
    }
}

/// The verdict on `total` pages, `before` being the one so far: pressure ends below the first threshold only.
fn level(before: u8, total: i64, limits: &MemoryLimits) -> u8 {
    let total = u64::try_from(total).unwrap_or(0);
    match before {
        _ if total > limits.high => EXHAUSTED,
        _ if total > limits.pressure => PRESSURE,
        0 => 0,
        _ if total <= limits.low => 0,
        _ => PRESSURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits { low: 160, pressure: 200, high: 300 };

    fn pressure(memory: &TcpMemory) -> MemoryPressure {
        memory.state(&LIMITS).pressure
    }

    #[test]
    fn little_changes_stay_in_the_reserve() {
        let (memory, counters, reserve) = (TcpMemory::new(), Counters::new(), AtomicI64::new(0));
        for _ in 0..9 {
            memory.charge(&reserve, 1, &LIMITS, &counters, Instant::ZERO);
        }
        assert_eq!((memory.pages(), reserve.load(Ordering::Relaxed)), (0, 9));
        memory.charge(&reserve, 1, &LIMITS, &counters, Instant::ZERO);
        assert_eq!((memory.pages(), reserve.load(Ordering::Relaxed)), (10, 0));
        memory.charge(&reserve, -9, &LIMITS, &counters, Instant::ZERO);
        assert_eq!((memory.pages(), reserve.load(Ordering::Relaxed)), (10, -9));
    }

    #[test]
    fn pressure_begins_above_the_second_and_ends_at_the_first_threshold() {
        let (memory, counters, reserve) = (TcpMemory::new(), Counters::new(), AtomicI64::new(0));
        let charge = |pages, ms| {
            let now = Instant::from_millis(ms);
            memory.charge(&reserve, pages, &LIMITS, &counters, now);
            pressure(&memory)
        };
        assert_eq!(charge(200, 1000), MemoryPressure::None);
        assert_eq!(charge(10, 2000), MemoryPressure::Pressure);
        assert_eq!(charge(-40, 3000), MemoryPressure::Pressure, "not yet at the first");
        assert_eq!(charge(140, 4000), MemoryPressure::Exhausted);
        assert_eq!(charge(-100, 5000), MemoryPressure::Pressure);
        assert_eq!(charge(-50, 6500), MemoryPressure::None);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressures), 1);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressuresChrono), 4500);
    }

    #[test]
    fn pressure_sends_nobody_to_connections_that_never_kept_anything() {
        let (memory, counters, reserve) = (TcpMemory::new(), Counters::new(), AtomicI64::new(0));
        let charge = |pages| memory.charge(&reserve, pages, &LIMITS, &counters, Instant::ZERO);
        charge(400);
        assert!(pressure(&memory) != MemoryPressure::None && !memory.take_trim());
        charge(-400);
        memory.note_kept();
        charge(400);
        assert!(memory.take_trim() && !memory.take_trim(), "once for each time it begins");
    }

    #[test]
    fn sockets_that_end_outside_any_context_end_the_pressure() {
        let (memory, counters, reserve) = (TcpMemory::new(), Counters::new(), AtomicI64::new(0));
        memory.count_socket(2);
        memory.charge(&reserve, 400, &LIMITS, &counters, Instant::ZERO);
        let state = memory.state(&LIMITS);
        assert_eq!(state.pressure, MemoryPressure::Exhausted);
        assert_eq!(state.share_bytes, 300 * 4096 / 2);
        memory.uncharge(400);
        assert_eq!((memory.pages(), pressure(&memory)), (0, MemoryPressure::None));
    }

    /// Slices keep pages that nobody was charged for.
    #[test]
    fn memory_in_use_is_judged_beside_the_account() {
        let (memory, counters) = (TcpMemory::new(), Counters::new());
        let max_bytes = 1 << 30;
        let look = |percent: usize, ms| {
            memory.note_packets(
                max_bytes / 100 * percent,
                max_bytes,
                &counters,
                Instant::from_millis(ms),
            );
            (pressure(&memory), memory.take_trim())
        };
        assert_eq!(look(49, 1000), (MemoryPressure::None, false));
        assert!(
            !memory.is_look_due(Instant::from_millis(1009))
                && memory.is_look_due(Instant::from_millis(1010))
        );
        assert_eq!(look(51, 2000), (MemoryPressure::Pressure, true), "connections are visited");
        assert_eq!(look(60, 2010), (MemoryPressure::Pressure, false), "once");
        assert_eq!(look(76, 2020), (MemoryPressure::Exhausted, true));
        assert_eq!(look(76, 2030), (MemoryPressure::Exhausted, true), "as long as it lasts");
        assert_eq!(look(40, 2040), (MemoryPressure::Pressure, false), "not yet at three eighths");
        let reserve = AtomicI64::new(0);
        memory.charge(&reserve, 400, &LIMITS, &counters, Instant::from_millis(2050));
        assert_eq!(pressure(&memory), MemoryPressure::Exhausted, "the account is worse");
        assert_eq!(look(30, 2060), (MemoryPressure::Exhausted, false));
        memory.charge(&reserve, -400, &LIMITS, &counters, Instant::from_millis(3000));
        assert_eq!(pressure(&memory), MemoryPressure::None);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressures), 1);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressuresChrono), 1000);
    }

    #[test]
    fn the_default_leaves_a_quarter_to_devices() {
        let limits = MemoryLimits::for_packets(1 << 30);
        assert_eq!(limits, MemoryLimits { low: 98_304, pressure: 131_072, high: 196_608 });
        assert!(MemoryLimits::for_packets(0).high > 0);
    }
}
