//! Packets that a connection keeps for reuse: the one-packet caches of Linux 5.2 and their
//! successor.
//!
//! Above: `socket::api` (reads, writes), `input::ack`; `stack` takes what softirq frees. Below:
//! `pkt::Pool`. Linux: sk_tx_skb_cache and sk_rx_skb_cache (5.2 to 5.15: sk_wmem_free_skb,
//! sk_stream_alloc_skb, sk_eat_skb, tcp_v4_rcv), the defer_list of a socket (5.16 to 5.18).
//!
//! ```text
//!   write ──alloc──► send queue ──ACK, on another core──► tx ──► the next write
//!   receive, on another core ──► receive queue ──read──► rx ──► freed by the core of the next segment
//! ```
//!
//! Without them a request costs its server two frees on a foreign core: softirq frees packets that
//! the application allocated, and the application frees packets that softirq allocated. A packet
//! that comes here is uncharged and has lost its payload: a connection keeps at most two
//! descriptors. It keeps none while memory is scarce, after it was closed, and after the setting
//! has changed.
//!
//! Differs from Linux: payload is dropped when a packet is put in, not when it is used again, so
//! that an idle connection pins no page (in Linux up to 64 KB each). Heads are never shared, so
//! that a packet is refused only while a clone of it may still be queued below.
//!
//! Not here: what the pool does with packets of other cores (`pkt::FreeMode`).

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

/// See the module head. In most modes it is never made.
#[derive(Debug, Default)]
pub(crate) struct PacketCache(Option<Box<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    /// For the next write (Linux `sk_tx_skb_cache`).
    tx: Option<Packet>,
    /// For softirq to free (Linux `sk_rx_skb_cache`).
    rx: Option<Packet>,
}

/// What the caches need of [`Cx`] beside the pool.
pub(crate) struct Lent<'a> {
    pub(crate) config: &'a TcpConfig,
    pub(crate) counters: &'a Counters,
    memory: MemoryState,
    rps_needed: bool,
}

impl<'a> Lent<'a> {
    /// The parts of `cx` that are no pool.
    pub(crate) fn split<'b>(cx: &'b mut Cx<'a>) -> (&'b mut Pool, &'b mut PacketList, Self) {
        let Cx { config, counters, memory, rps_needed, .. } = *cx;
        (cx.pool, cx.read, Lent { config, counters, memory, rps_needed })
    }

    fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }
}

impl PacketCache {
    /// What an acknowledged or purged packet comes to, whose charge has been given back already.
    #[inline]
    pub(crate) fn put_tx(&mut self, pool: &mut Pool, lent: &Lent<'_>, packet: Packet) {
        if lent.config.caches_tx() && lent.memory.is_plenty() {
            self.keep_tx(pool, lent, packet);
        } else {
            pool.free(packet);
        }
    }

    #[cold]
    fn keep_tx(&mut self, pool: &mut Pool, lent: &Lent<'_>, packet: Packet) {
        let slots = self.0.get_or_insert_default();
        if slots.tx.is_some() {
            lent.count(Counter::SkbTxCacheRejectFull);
            return pool.free(packet);
        }
        match pool.renew(packet) {
            Ok(packet) => {
                lent.counters.add(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
                slots.tx = Some(packet);
            }
            Err(packet) => {
                lent.count(Counter::SkbTxCacheRejectCloned);
                pool.free(packet);
            }
        }
    }

    /// An empty packet to write into. `None` when there is no memory.
    #[inline]
    pub(crate) fn take_tx(&mut self, pool: &mut Pool, lent: &Lent<'_>) -> Option<Packet> {
        if !lent.config.caches_tx() {
            return pool.alloc_fclone();
        }
        let Some(packet) = self.0.as_mut().and_then(|slots| slots.tx.take()) else {
            lent.count(Counter::SkbTxCacheMiss);
            return pool.alloc_fclone();
        };
        lent.count(Counter::SkbTxCacheHit);
        lent.counters.sub(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
        Some(packet)
    }

    /// What a packet comes to that the application has read to its end, whose charge has been given back already.
    #[inline]
    pub(crate) fn put_read(
        &mut self,
        (pool, read): (&mut Pool, &mut PacketList),
        lent: &Lent<'_>,
        packet: Packet,
    ) {
        match lent.config.packet_recycle {
            PacketRecycle::SocketOne if lent.config.tcp_rx_packet_cache => {
                self.keep_rx(pool, lent, packet);
            }
            PacketRecycle::ListAfterUnlock => read.push_back(packet),
            _ => pool.free(packet),
        }
    }

    #[cold]
    fn keep_rx(&mut self, pool: &mut Pool, lent: &Lent<'_>, packet: Packet) {
        if !lent.memory.is_plenty() {
            return pool.free(packet);
        }
        // The core of the next segment need not be the one that allocated this one.
        if lent.rps_needed && lent.config.rx_packet_cache_rps_gate {
            lent.count(Counter::SkbRxCacheGated);
            return pool.free(packet);
        }
        let slots = self.0.get_or_insert_default();
        if slots.rx.is_some() {
            lent.count(Counter::SkbRxCacheFull);
            return pool.free(packet);
        }
        match pool.renew(packet) {
            Ok(packet) => {
                lent.counters.add(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
                slots.rx = Some(packet);
            }
            Err(packet) => pool.free(packet),
        }
    }

    /// Nothing was ever kept: most connections, in most modes.
    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Empties both slots.
    #[cold]
    pub(crate) fn clear(&mut self, pool: &mut Pool, counters: &Counters) {
        let Some(slots) = self.0.take() else { return };
        for packet in slots.tx.into_iter().chain(slots.rx) {
            counters.sub(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
            pool.free(packet);
        }
    }

    /// Panics unless what is kept holds nothing but itself.
    pub(crate) fn check(&self) {
        for packet in self.0.iter().flat_map(|slots| slots.tx.iter().chain(&slots.rx)) {
            assert!(
                packet.is_empty() && packet.frag_count() == 0,
                "no payload is kept: {packet:?}"
            );
            assert!(!packet.clone_busy() && !packet.has_owner(), "nobody else knows of {packet:?}");
        }
    }
}

impl Tcb {
    /// Softirq, about to process a segment of a connection that nobody owns: what the reader has left for it, to be freed
    /// after the connection was let go.
    #[inline]
    pub fn take_read_packet(&mut self, counters: &Counters) -> Option<Packet> {
        let packet = self.packet_cache.0.as_mut()?.rx.take()?;
        counters.add(Counter::SkbRxCacheHandoff, 1);
        counters.sub(Counter::SkbSocketCacheBytes, u64::from(packet.truesize()));
        Some(packet)
    }

    /// Something is kept: [`trim_packet_cache`](Self::trim_packet_cache) has something to look at.
    #[inline]
    #[must_use]
    pub fn keeps_packets(&self) -> bool {
        !self.packet_cache.is_empty()
    }

    /// Empties the caches if they may not be kept any more: the connection is over or nobody's, memory is scarce, the
    /// setting has changed. After every change of the connection.
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
