//! The memory account of all datagram sockets of a host: `net.ipv4.udp_mem`.
//!
//! Above: sockets charge the content of their receive queues. Linux: net/ipv4/udp.c
//! (`__udp_enqueue_schedule_skb`, `udp_rmem_release`), net/core/sock.c.
//!
//! The unit is a page of 4 KB, and contexts keep a reserve, as in `tcp_memory`: the shared count is
//! written once per batch of pages, never per datagram. The account is off by at most that batch
//! for each context. A datagram for which no page is left is dropped. There is no state of
//! pressure, so the second threshold of `udp_mem` has no effect, and the first one only determines
//! the size of a batch.
//!
//! Differs from Linux, where a socket above `udp_rmem_min` is also refused between the second and
//! the third threshold.

use std::sync::atomic::{AtomicI64, Ordering};

use sync::Padded;

use super::tcp_memory::{MemoryLimits, TcpMemory};

/// Memory account of the datagram sockets of one host.
#[derive(Debug, Default)]
pub(crate) struct UdpMemory {
    /// Pages charged, without the reserves of the contexts. Relaxed: a sum orders nothing.
    pages: Padded<AtomicI64>,
}

impl UdpMemory {
    /// Charges `pages` more to a socket, or fewer if negative. Returns false, and charges nothing,
    /// if that would exceed the limit. `reserve` belongs to the running context.
    #[inline]
    pub(crate) fn charge(&self, reserve: &AtomicI64, pages: i64, limits: &MemoryLimits) -> bool {
        let held = reserve.load(Ordering::Relaxed) + pages;
        if pages > 0 {
            let total = self.pages.load(Ordering::Relaxed) + held;
            if u64::try_from(total).is_ok_and(|total| total > limits.high) {
                return false;
            }
        }
        if held.abs() < TcpMemory::batch(limits) {
            reserve.store(held, Ordering::Relaxed);
        } else {
            reserve.store(0, Ordering::Relaxed);
            self.pages.fetch_add(held, Ordering::Relaxed);
        }
        true
    }

    /// Uncharges the `pages` of a dropped socket, outside any context.
    pub(crate) fn uncharge(&self, pages: i64) {
        if pages != 0 {
            self.pages.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Returns the pages charged; the reserves of the contexts must be added.
    pub(crate) fn pages(&self) -> i64 {
        self.pages.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits { low: 160, pressure: 200, high: 300 };

    #[test]
    fn pages_beyond_the_limit_are_refused_and_not_charged() {
        let (memory, reserve) = (UdpMemory::default(), AtomicI64::new(0));
        assert!(memory.charge(&reserve, 299, &LIMITS));
        assert!(!memory.charge(&reserve, 2, &LIMITS));
        assert!(
            memory.charge(&reserve, 1, &LIMITS),
            "a charge that reaches exactly the limit was refused"
        );
        assert!(!memory.charge(&reserve, 1, &LIMITS));
        assert!(memory.charge(&reserve, -100, &LIMITS));
        assert!(memory.charge(&reserve, 100, &LIMITS));
        assert_eq!(memory.pages() + reserve.load(Ordering::Relaxed), 300);
        memory.uncharge(300);
        assert_eq!(memory.pages() + reserve.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn small_changes_stay_in_the_reserve() {
        let (memory, reserve) = (UdpMemory::default(), AtomicI64::new(0));
        assert!((0..9).all(|_| memory.charge(&reserve, 1, &LIMITS)));
        assert_eq!((memory.pages(), reserve.load(Ordering::Relaxed)), (0, 9));
        assert!(memory.charge(&reserve, 1, &LIMITS));
        assert_eq!((memory.pages(), reserve.load(Ordering::Relaxed)), (10, 0));
    }
}
