//! Packets that a connection keeps for reuse: the one-packet caches of Linux 5.2 and their
//! successor.
//!
//! Above: `socket::api` (reads, writes), `input::ack`; `stack` takes packets that softirq frees.
//! Below: `pkt::Pool`. Linux: sk_tx_skb_cache and sk_rx_skb_cache (5.2 to 5.15: sk_wmem_free_skb,
//! sk_stream_alloc_skb, sk_eat_skb, tcp_v4_rcv), the defer_list of a socket (5.17 and 5.18).
//!
//! | slot | packet that enters | use |
//! |---|---|---|
//! | `tx` | The application wrote it, and the peer has acknowledged it | The next write |
//! | `rx` | It was received, and the application has read it | The core that processes the next segment frees it |
//!
//! Without the caches, if application and softirq run on different cores, a request costs its
//! server two frees on a core other than the allocating one: softirq frees packets that the
//! application allocated, and the application frees packets that softirq allocated. A cached packet
//! is uncharged and has no payload, so a connection keeps at most two descriptors. A connection
//! keeps none while memory is scarce, after it was closed, and after the setting has changed.
//!
//! Differs from Linux: payload is dropped when a packet enters the cache, not when it is reused, so
//! an idle connection pins no page (in Linux up to 64 KB each). Heads are never shared, so a free
//! slot refuses a packet only while a clone of it may still be queued below TCP.
//!
//! Not here: the pool's treatment of packets of other cores (`pkt::FreeMode`).

use alloc::boxed::Box;

use pkt::{Packet, PacketList, Pool};

use crate::{
    base::{
        counters::{Counter, Counters},
        memory::MemoryState,
        state::State,
    },
    cx::{
        Cx,
        config::{PacketRecycle, TcpConfig},
    },
    tcb::{Tcb, TcbFlags},
};

/// Cache of a connection. Most modes never allocate it.
#[derive(Debug, Default)]
pub(crate) struct PacketCache(Option<Box<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    /// Packet for the next write (Linux `sk_tx_skb_cache`).
    tx: Option<Packet>,
    /// Packet that softirq frees (Linux `sk_rx_skb_cache`).
    rx: Option<Packet>,
}

/// Fields of [`Cx`] that the caches need, without the pool.
pub(crate) struct CacheCx<'a> {
    pub(crate) config: &'a TcpConfig,
    pub(crate) counters: &'a Counters,
    memory: MemoryState,
    rps_needed: bool,
}

impl<'a> CacheCx<'a> {
    /// Splits `cx` into the pool, the list of read packets and the other fields.
    pub(crate) fn split<'b>(cx: &'b mut Cx<'a>) -> (&'b mut Pool, &'b mut PacketList, Self) {
        let Cx { config, counters, memory, rps_needed, .. } = *cx;
        (cx.pool, cx.read, CacheCx { config, counters, memory, rps_needed })
    }

    fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }
}

impl PacketCache {
    /// Caches or frees an acknowledged or purged packet, which must be uncharged.
    #[inline]
    pub(crate) fn put_tx(&mut self, pool: &mut Pool, cache_cx: &CacheCx<'_>, packet: Packet) {
        if cache_cx.config.caches_tx() && cache_cx.memory.is_plenty() {
            self.keep_tx(pool, cache_cx, packet);
        } else {
            pool.free(packet);
        }
    }

    #[cold]
    fn keep_tx(&mut self, pool: &mut Pool, cache_cx: &CacheCx<'_>, packet: Packet) {
        let slots = self.0.get_or_insert_default();
        if slots.tx.is_some() {
            cache_cx.count(Counter::SkbTxCacheRejectFull);
            return pool.free(packet);
        }
        match pool.renew(packet) {
            Ok(packet) => {
                cache_cx.counters.add(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
                slots.tx = Some(packet);
            }
            Err(packet) => {
                cache_cx.count(Counter::SkbTxCacheRejectCloned);
                pool.free(packet);
            }
        }
    }

    /// Returns an empty packet for a write. `None` when there is no memory.
    #[inline]
    pub(crate) fn take_tx(&mut self, pool: &mut Pool, cache_cx: &CacheCx<'_>) -> Option<Packet> {
        if !cache_cx.config.caches_tx() {
            return pool.alloc_fclone();
        }
        let Some(packet) = self.0.as_mut().and_then(|slots| slots.tx.take()) else {
            cache_cx.count(Counter::SkbTxCacheMiss);
            return pool.alloc_fclone();
        };
        cache_cx.count(Counter::SkbTxCacheHit);
        cache_cx.counters.sub(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
        Some(packet)
    }

    /// Caches, lists or frees a packet that the application has read completely, which must be
    /// uncharged.
    #[inline]
    pub(crate) fn put_read(
        &mut self,
        (pool, read): (&mut Pool, &mut PacketList),
        cache_cx: &CacheCx<'_>,
        packet: Packet,
    ) {
        match cache_cx.config.packet_recycle {
            PacketRecycle::SocketOne if cache_cx.config.tcp_rx_packet_cache => {
                self.keep_rx(pool, cache_cx, packet);
            }
            PacketRecycle::ListAfterUnlock => read.push_back(packet),
            _ => pool.free(packet),
        }
    }

    #[cold]
    fn keep_rx(&mut self, pool: &mut Pool, cache_cx: &CacheCx<'_>, packet: Packet) {
        if !cache_cx.memory.is_plenty() {
            return pool.free(packet);
        }
        // With RPS the core of the next segment may not be the core that allocated this packet.
        if cache_cx.rps_needed && cache_cx.config.rx_packet_cache_rps_gate {
            cache_cx.count(Counter::SkbRxCacheGated);
            return pool.free(packet);
        }
        let slots = self.0.get_or_insert_default();
        if slots.rx.is_some() {
            cache_cx.count(Counter::SkbRxCacheFull);
            return pool.free(packet);
        }
        match pool.renew(packet) {
            Ok(packet) => {
                cache_cx.counters.add(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
                slots.rx = Some(packet);
            }
            Err(packet) => pool.free(packet),
        }
    }

    /// Returns whether no slots are allocated, as on most connections in most modes.
    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Frees the packets of both slots.
    #[cold]
    pub(crate) fn clear(&mut self, pool: &mut Pool, counters: &Counters) {
        let Some(slots) = self.0.take() else { return };
        for packet in slots.tx.into_iter().chain(slots.rx) {
            counters.sub(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
            pool.free(packet);
        }
    }

    /// Panics if a cached packet has payload, a clone or an owner.
    pub(crate) fn check(&self) {
        for packet in self.0.iter().flat_map(|slots| slots.tx.iter().chain(&slots.rx)) {
            assert!(
                packet.is_empty() && packet.frag_count() == 0,
                "a cached packet has payload: {packet:?}"
            );
            assert!(
                !packet.clone_busy() && !packet.has_owner(),
                "a cached packet is shared: {packet:?}"
            );
        }
    }
}

impl Tcb {
    /// Returns the packet that a reader has left for softirq to free. Softirq calls this function
    /// before it processes a segment of an unlocked connection, and frees the packet after it has
    /// released the connection.
    #[inline]
    pub fn take_read_packet(&mut self, counters: &Counters) -> Option<Packet> {
        let packet = self.packet_cache.0.as_mut()?.rx.take()?;
        counters.add(Counter::SkbRxCacheHandoff, 1);
        counters.sub(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
        Some(packet)
    }

    /// Returns whether packets may be cached, so that
    /// [`trim_packet_cache`](Self::trim_packet_cache) may have to free them.
    #[inline]
    #[must_use]
    pub fn keeps_packets(&self) -> bool {
        !self.packet_cache.is_empty()
    }

    /// Frees the cached packets if they may not be kept any longer: the connection has ended or is
    /// an orphan, memory is scarce, or the setting has changed. The stack calls it after every
    /// change of the connection.
    #[inline]
    pub fn trim_packet_cache(&mut self, cx: &mut Cx<'_>) {
        if !self.packet_cache.is_empty() && !self.may_cache(cx) {
            self.packet_cache.clear(cx.pool, cx.counters);
        }
    }

    fn may_cache(&self, cx: &Cx<'_>) -> bool {
        let over = matches!(self.state, State::Close | State::TimeWait);
        if over || self.flags.contains(TcbFlags::ORPHAN) || !cx.memory.is_plenty() {
            return false;
        }
        let config = cx.config;
        self.packet_cache.0.as_ref().is_none_or(|slots| {
            (slots.tx.is_none() || config.caches_tx()) && (slots.rx.is_none() || config.caches_rx())
        })
    }
}
