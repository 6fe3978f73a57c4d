//! The memory account of all TCP connections of a host: `net.ipv4.tcp_mem`.
//!
//! Above: sockets charge the content of their queues after every change; the TCP engine gets the
//! verdict (no pressure, pressure, or exhausted) with every call. Linux: net/core/sock.c
//! (`__sk_mem_raise_allocated`), tcp_enter_memory_pressure, the per-CPU reserve `per_cpu_fw_alloc`.
//!
//! The unit is a page of 4 KB, as in Linux. A socket updates its charge once per batch of segments,
//! and its page count seldom changes. A change goes to a reserve of the running context (`Cx`), and
//! only changes that the reserve cannot take reach the shared count. Therefore, while memory is
//! plentiful, the shared cache line is written once per `TcpMemory::batch` pages, never per packet,
//! and the account is off by at most that much per context.
//!
//! The verdict has its own cache line, which every context reads and which is seldom written: when
//! the verdict changes, when packet memory is counted (every 10 ms), and when connections are to be
//! visited.
//!
//! The account is the sum of packet charges. The memory kept in use may be larger, because a packet
//! with a slice of a page keeps the whole page in use. Therefore packet memory in use, counted in
//! whole pages, is compared with its maximum, too, and the verdict is the worse of both
//! (`TcpMemory::note_packets`). When packet memory is scarce, connections are visited to free
//! memory, because a peer that holds memory on purpose sends nothing that would make them run.
//!
//! Not here: how a connection reduces its memory (`tcp::tcb::memory`), packet memory itself
//! (`pkt::Domain`).

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

use pkt::Instant;
use sync::Padded;
use tcp::{Counter, Counters, MemoryPressure, MemoryState};

/// Unit of the account, in bytes.
pub(crate) const PAGE_BYTES: u32 = 4096;

/// Maximum pages in the reserve of a context: 1 MB, as Linux's `SK_MEMORY_PCPU_RESERVE`.
const RESERVE_PAGES_MAX: i64 = 256;

/// Levels of the verdict, as in `MemoryPressure`; 0 is none.
const PRESSURE: u8 = 1;
const EXHAUSTED: u8 = 2;

/// Interval between counts of the memory in use: a link of 10 Gbit/s fills 12 MB meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The three thresholds of `tcp_mem`, in pages of 4 KB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Threshold at which pressure ends.
    pub low: u64,
    /// Threshold above which pressure starts.
    pub pressure: u64,
    /// Threshold above which allocations fail.
    pub high: u64,
}

impl MemoryLimits {
    /// Returns the default for `bytes_max` of packet memory: pressure at a half, exhaustion at
    /// three quarters.
    ///
    /// Differs from Linux, where TCP gets a sixteenth of all memory: packet memory holds only
    /// packets. The last quarter is for frames received from devices and for ACKs, without which no
    /// memory would ever be freed.
    #[must_use]
    pub fn for_packets(bytes_max: usize) -> Self {
        let pages = (bytes_max as u64 / u64::from(PAGE_BYTES)).max(128);
        Self { low: pages / 8 * 3, pressure: pages / 2, high: pages / 4 * 3 }
    }
}

/// Memory account and verdict of one host.
#[derive(Debug)]
pub(crate) struct TcpMemory {
    verdict: Padded<Verdict>,
    account: Padded<Account>,
}

/// State read with every call into the engine, and seldom written.
#[derive(Debug, Default)]
struct Verdict {
    /// Current `MemoryPressure`. Relaxed: a verdict orders nothing.
    pressure: AtomicU8,
    /// Whether connections must be visited, because they may hold memory that they must free:
    /// cached packets, or more when packet memory is scarce. Stored with Release after its cause
    /// (the settings, the verdict) and taken with Acquire before the cause is read.
    trim: AtomicBool,
    /// Whether any setting so far allowed connections to cache packets. Relaxed: a thread that
    /// misses the store misses a setting that was changed concurrently.
    kept: AtomicBool,
    /// Next time to count packet memory, in nanoseconds. Relaxed: two threads may count at the same
    /// time.
    look_at_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Account {
    /// Pages charged, without the reserves of the contexts. Relaxed: a sum orders nothing.
    pages: AtomicI64,
    /// Number of connections; under pressure each has its share. Relaxed: a count orders nothing.
    sockets: AtomicI64,
    /// Start of the pressure in milliseconds, at least 1; 0 is no pressure. The thread that swaps
    /// the value counts the event.
    since_ms: AtomicU64,
    /// Levels by the account alone and by packet memory alone. Relaxed: a thread that changes one
    /// publishes both, and packet memory is counted again soon.
    charged: AtomicU8,
    packets: AtomicU8,
    /// Last limits used, for threads that free memory outside any context: low, pressure, high.
    /// Relaxed: a mixture of two settings is used only briefly.
    limits: [AtomicU64; 3],
}

impl TcpMemory {
    pub(crate) fn new() -> Self {
        Self { verdict: Padded::new(Verdict::default()), account: Padded::new(Account::default()) }
    }

    /// Returns the state passed to the engine.
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

    /// Returns the maximum reserve of a context in pages: small compared with the limits, so that
    /// the verdict is right on small hosts too.
    pub(super) fn batch(limits: &MemoryLimits) -> i64 {
        i64::try_from(limits.low / 16).unwrap_or(i64::MAX).clamp(1, RESERVE_PAGES_MAX)
    }

    /// Charges `pages` more to a socket, or fewer if negative. `reserve` belongs to the running
    /// context.
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
        // While memory is scarce every page is counted at once, so that no connection waits for
        // memory that is already free.
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

    /// Computes the verdict for `total` pages.
    fn judge(&self, total: i64, limits: &MemoryLimits) {
        let before = self.account.charged.load(Ordering::Relaxed);
        self.account.charged.store(level(before, total, limits), Ordering::Relaxed);
        self.publish();
    }

    /// Publishes the worse of both levels to the engine.
    fn publish(&self) {
        let levels = [&self.account.charged, &self.account.packets];
        let verdict = levels.map(|level| level.load(Ordering::Relaxed)).into_iter().max();
        let verdict = verdict.unwrap_or_default();
        let before = self.verdict.pressure.load(Ordering::Relaxed);
        if verdict != before {
            self.verdict.pressure.store(verdict, Ordering::Relaxed);
            if before == 0 {
                let _ = self.request_trim();
            }
        }
    }

    /// Returns whether it is time to count packet memory again.
    #[inline]
    pub(crate) fn is_check_due(&self, now: Instant) -> bool {
        now.as_nanos() >= self.verdict.look_at_ns.load(Ordering::Relaxed)
    }

    /// Records that `used_bytes` of `max_bytes` of packet memory are in use. When the share rises
    /// above a half or above three quarters, connections are visited to free memory
    /// ([`tcp::Tcb::reclaim_memory`]); above three quarters they are visited again after every
    /// count.
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

    /// Counts the start or end of pressure, once: by the first thread that notices the change.
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

    /// Uncharges the `pages` of a dropped socket, outside any context.
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

    /// Records that connections may cache packets from now on. Called before the setting takes
    /// effect.
    pub(crate) fn note_kept(&self) {
        self.verdict.kept.store(true, Ordering::Relaxed);
    }

    /// Requests that connections free their cached packets, because memory is scarce or a setting
    /// forbids caching. Returns false if no setting so far allowed caching; then none need be
    /// visited.
    pub(crate) fn request_trim(&self) -> bool {
        let kept = self.verdict.kept.load(Ordering::Relaxed);
        if kept {
            self.verdict.trim.store(true, Ordering::Release);
        }
        kept
    }

    /// Takes the trim request. The caller must read the settings by which it trims after this call.
    #[inline]
    pub(crate) fn take_trim(&self) -> bool {
        self.verdict.trim.load(Ordering::Relaxed)
            && self.verdict.trim.swap(false, Ordering::Acquire)
    }

    /// Counts a connection that starts or ends.
    pub(crate) fn count_socket(&self, by: i64) {
        self.account.sockets.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the number of connections that have not ended.
    pub(crate) fn sockets(&self) -> i64 {
        self.account.sockets.load(Ordering::Relaxed)
    }

    /// Returns the pages charged; the reserves of the contexts must be added.
    pub(crate) fn pages(&self) -> i64 {
        self.account.pages.load(Ordering::Relaxed)
    }
}

/// Returns the level for `total` pages, given the level `before`: pressure ends only at the first
/// threshold or below.
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
    fn small_changes_stay_in_the_reserve() {
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
        assert_eq!(
            charge(-40, 3000),
            MemoryPressure::Pressure,
            "pressure ended while pages were above the first threshold"
        );
        assert_eq!(charge(140, 4000), MemoryPressure::Exhausted);
        assert_eq!(charge(-100, 5000), MemoryPressure::Pressure);
        assert_eq!(charge(-50, 6500), MemoryPressure::None);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressures), 1);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressuresChrono), 4500);
    }

    #[test]
    fn pressure_visits_no_connections_that_never_cached_packets() {
        let (memory, counters, reserve) = (TcpMemory::new(), Counters::new(), AtomicI64::new(0));
        let charge = |pages| memory.charge(&reserve, pages, &LIMITS, &counters, Instant::ZERO);
        charge(400);
        assert!(pressure(&memory) != MemoryPressure::None && !memory.take_trim());
        charge(-400);
        memory.note_kept();
        charge(400);
        assert!(
            memory.take_trim() && !memory.take_trim(),
            "a start of pressure did not request exactly one visit"
        );
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

    /// Slices keep pages in use that no socket was charged for.
    #[test]
    fn the_verdict_is_the_worse_of_account_and_packet_memory_in_use() {
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
            !memory.is_check_due(Instant::from_millis(1009))
                && memory.is_check_due(Instant::from_millis(1010))
        );
        assert_eq!(
            look(51, 2000),
            (MemoryPressure::Pressure, true),
            "connections were not visited"
        );
        assert_eq!(
            look(60, 2010),
            (MemoryPressure::Pressure, false),
            "connections were visited twice"
        );
        assert_eq!(look(76, 2020), (MemoryPressure::Exhausted, true));
        assert_eq!(
            look(76, 2030),
            (MemoryPressure::Exhausted, true),
            "connections were not visited again while memory was exhausted"
        );
        assert_eq!(
            look(40, 2040),
            (MemoryPressure::Pressure, false),
            "pressure ended while usage was above three eighths"
        );
        let reserve = AtomicI64::new(0);
        memory.charge(&reserve, 400, &LIMITS, &counters, Instant::from_millis(2050));
        assert_eq!(
            pressure(&memory),
            MemoryPressure::Exhausted,
            "the account does not have the worse level"
        );
        assert_eq!(look(30, 2060), (MemoryPressure::Exhausted, false));
        memory.charge(&reserve, -400, &LIMITS, &counters, Instant::from_millis(3000));
        assert_eq!(pressure(&memory), MemoryPressure::None);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressures), 1);
        assert_eq!(counters.value(Counter::TcpExtTCPMemoryPressuresChrono), 1000);
    }

    #[test]
    fn the_default_limits_leave_a_quarter_of_packet_memory_to_devices() {
        let limits = MemoryLimits::for_packets(1 << 30);
        assert_eq!(limits, MemoryLimits { low: 98_304, pressure: 131_072, high: 196_608 });
        assert!(MemoryLimits::for_packets(0).high > 0);
    }
}
