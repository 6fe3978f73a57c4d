//! Route entry (dst): the cached result of a route lookup, shared by all senders and receivers
//! whose packets it matches.
//!
//! `route::output` and `route::input` create entries from the forwarding table, and find existing
//! ones in an RCU read section. A lookup writes no shared memory but the entry's statistics
//! (`DstStats`), and those about once per 4 ms. Sockets cache entries. Linux: `struct dst_entry`,
//! `struct rtable`.
//!
//! Apart from its count and statistics, an entry never changes. It is valid while its generation
//! equals that of the host's routes (`rt_genid`). A change of routes starts a new generation, and a
//! holder of an older entry repeats the lookup. A path MTU that ICMP reported for one destination
//! selects another entry, with a smaller `mtu`; the state and expiry of that report are in the
//! socket's `CachedDst`.
//!
//! An entry has four parts (`Dst`, `DstTail`, `DstOrigin`, `DstStats`), grouped by how often they
//! are read. The memory of an entry also contains a header (`sync::counted`) and the reference
//! count. Its size and the contents at each offset, in bytes, depend on `net.quietline.dst_layout`:
//!
//! | layout | size | 0 | 128 | 256 | 384 | 512 |
//! |---|---|---|---|---|---|---|
//! | packed | 512 | header, `Dst` | count, `DstTail` | `DstOrigin` | `DstStats` | |
//! | padded | 640 | header, `Dst` | count | `DstTail` | `DstOrigin` | `DstStats` |
//! | filled | 512 | header, `Dst` | count, `DstOrigin` | `DstTail` | `DstStats` | |
//!
//! *packed* is the layout of Linux up to 6.3: the reference count shares its cache line with the
//! generation and the type. Linux reads these fields for every packet; this stack does so with
//! `net.quietline.dst_check` at `entry`. By default, sockets compare a copy of the generation, no
//! packet of a connection reads the tail of the entry, and all layouts cost the same. *padded*
//! gives the count its own cache lines. *filled* puts rarely read fields next to the count, so that
//! the isolation costs no memory. The layouts separate fields by 128 bytes instead of Linux's 64,
//! because prefetchers fetch cache lines in pairs.
//!
//! Not here: reference counting (`sync::refcount`), and finding an entry.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use pkt::Instant;
use sync::counted::{Layout, Offsets, Parts};
use tcp::PathMetrics;

use super::{neighbor::table::NeighborEntry, tx_queue::DeviceTx};
use crate::{
    base::{ids::DeviceIndex, limits::GSO_BYTES_MAX},
    device::{Capabilities, Device, LinkType},
    sysctl::{DeviceSettings, modes::DstLayout},
};

impl From<DstLayout> for Layout {
    fn from(layout: DstLayout) -> Self {
        match layout {
            DstLayout::Packed => Self::Packed,
            DstLayout::Padded => Self::Padded,
            DstLayout::Filled => Self::Filled,
        }
    }
}

/// Generation of the routes of a host (Linux: `rt_genid`). Every change of routes increments it,
/// and a route entry or `CachedDst` with another generation is looked up again. The increment,
/// after the change, is a Release; a reader loads the generation with Acquire before it reads the
/// tables.
#[derive(Debug, Default)]
pub(crate) struct RouteGeneration(AtomicU32);

impl RouteGeneration {
    /// Returns the current generation.
    #[inline]
    pub(crate) fn current(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Starts a new generation, after the tables have changed.
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Types of the parts of an entry.
#[derive(Debug)]
pub(crate) struct DstParts;

impl Parts for DstParts {
    type Head = Dst;
    type Tail = DstTail;
    type Cold = DstOrigin;
    type Stats = DstStats;
}

/// Counted reference to an entry.
pub(crate) type DstRef = sync::Ref<DstParts>;

/// Reference of the table that publishes an entry.
pub(crate) type DstOwner = sync::Owner<DstParts>;

/// Entry found in an RCU read section. The handle cannot leave the section (DST5 in
/// docs/invariants.md). A packet carries such a handle or a counted reference (PQ4, same file).
///
/// ```compile_fail
/// fn escape(slot: &sync::Slot<Sample>, reader: &sync::Reader) {
///     let handle = {
///         let section = reader.pin();
///         slot.load(&section)
///     };
///     drop(handle); // `section` does not live long enough
/// }
/// # struct Sample;
/// # impl sync::counted::Parts for Sample {
/// #     type Head = ();
/// #     type Tail = ();
/// #     type Cold = ();
/// #     type Stats = ();
/// # }
/// ```
pub(crate) type DstHandle<'s> = sync::Handle<'s, DstParts>;

/// Part of an entry that is read for every packet or batch.
#[derive(Debug)]
pub struct Dst {
    /// Device on which packets leave or have arrived.
    pub(crate) device: Arc<dyn Device>,
    /// Transmit queues of the device.
    pub(crate) tx: Arc<DeviceTx>,
    /// Link type, copied from the device's capabilities to avoid the dynamic dispatch.
    pub(crate) link: LinkType,
    /// Neighbor entry of the next hop. `None` on links without link addresses, and for input.
    pub(crate) neighbor: Option<Arc<NeighborEntry>>,
    /// Maximum length of an IP packet on this route, in bytes.
    pub(crate) mtu: u32,
    /// `mtu` without the reductions that ICMP reported ([`tcp::PathParams::receive_mtu`]).
    pub(crate) receive_mtu: u32,
    /// Maximum length of a superframe (a packet of several segments) that TCP may send
    /// ([`Dst::superframe_max`]). 0: single segments.
    pub(crate) gso_max_bytes: u32,
    /// Maximum length of a superframe that the device accepts for this address family; 0 if it
    /// accepts none.
    pub(crate) tso_max_bytes: u32,
    /// True if the device accepts superframes of UDP datagrams.
    pub(crate) uso: bool,
    /// True if the device does not complete checksums: copying from the application then sums the
    /// payload (Linux: `sk_route_caps`).
    pub(crate) sums_payload: bool,
    /// True if packets complete some time after they were sent, because the device or its queueing
    /// discipline may hold them (`DeviceTx::completes`).
    pub(crate) completes: bool,
    /// True if the queueing discipline holds packets until their departure times
    /// (`DeviceTx::paces`).
    pub(crate) paces: bool,
    /// True if the device accepts all packets at once (`DeviceTx::takes_at_once`).
    pub(crate) at_once: bool,
    /// True if TCP segments carry DF (RFC 1191 §3).
    pub(crate) dont_fragment: bool,
    /// True for loopback, where a packet is sent and received by the same entry: the packet may
    /// then keep its entry from the sender to the receiver.
    pub(crate) keeps_dst: bool,
    /// Metrics of the route that concern TCP.
    pub(crate) metrics: PathMetrics,
}

/// Part with the other fields that Linux reads for every packet. In the packed layout, they share a
/// cache line with the count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DstTail {
    /// Route generation of the host when the entry was created (`rt_genid`).
    pub(crate) generation: u32,
    /// Index of the device.
    pub(crate) device: DeviceIndex,
    /// Treatment of packets that the entry matches (`rt_type`).
    pub(crate) kind: RouteKind,
    /// True if the entry is valid for received packets (`rt_is_input`): entries of input lookups,
    /// and those of local addresses over loopback.
    pub(crate) is_input: bool,
}

/// Part of an entry that is read when a connection is opened or entries are listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DstOrigin {
    /// Source address for packets that have chosen none. For input: the address of the local prefix
    /// that the lookup matched.
    pub(crate) source: IpAddr,
}

/// Statistics of an entry's lookups. They are written at most about once per tick, so that lookups
/// on several cores seldom write the same cache line.
#[derive(Debug, Default)]
pub(crate) struct DstStats {
    /// Number of ticks in which the entry was looked up. Relaxed, like `last_use`, because a
    /// statistic orders no other data.
    uses: AtomicU32,
    /// Last of these ticks.
    last_use: AtomicU64,
}

impl DstStats {
    /// Length of a tick: Linux's jiffy at 250 Hz.
    const TICK_NS: u64 = 4_000_000;

    pub(crate) fn on_lookup(&self, now: Instant) {
        let tick = now.as_nanos() / Self::TICK_NS;
        if self.last_use.load(Ordering::Relaxed) != tick {
            self.last_use.store(tick, Ordering::Relaxed);
            self.uses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Invariant DST1: checks, for each layout, the offset of the count and which parts share its cache
/// lines. The checks hold for any pointer width, except those of the total size, which need 64-bit
/// pointers.
const _: () = {
    const fn checked(layout: Layout, size: usize) -> Offsets {
        let offsets = Offsets::of::<DstParts>(layout);
        assert!(offsets.count > 0 && offsets.count.is_multiple_of(128));
        assert!(offsets.is_apart(offsets.head, size_of::<Dst>()));
        assert!(offsets.is_apart(offsets.stats, size_of::<DstStats>()));
        assert!(offsets.size == size || cfg!(not(target_pointer_width = "64")));
        offsets
    }
    let packed = checked(Layout::Packed, 512);
    let padded = checked(Layout::Padded, 640);
    let filled = checked(Layout::Filled, 512);
    assert!(
        !packed.is_apart(packed.tail, size_of::<DstTail>()),
        "in the packed layout, the tail does not share the line of the count"
    );
    assert!(padded.is_apart(padded.tail, size_of::<DstTail>()));
    assert!(padded.is_apart(padded.cold, size_of::<DstOrigin>()));
    assert!(filled.is_apart(filled.tail, size_of::<DstTail>()));
    assert!(
        !filled.is_apart(filled.cold, size_of::<DstOrigin>()),
        "in the filled layout, the origin is not on the line of the count"
    );
};

impl Dst {
    /// Returns the superframe limit that `caps` allow for this address family, for a device that
    /// accepts `max` bytes at this time.
    pub(crate) const fn tso_limit(caps: &Capabilities, max: u32, v4: bool) -> u32 {
        let tso = if v4 { caps.tso4 } else { caps.tso6 };
        match tso && caps.tx_checksum {
            true if v4 || caps.jumbo6 || max < GSO_BYTES_MAX => max,
            true => GSO_BYTES_MAX,
            false => 0,
        }
    }

    /// Returns the maximum length of a superframe that TCP may send to a device: the setting,
    /// limited to the length that the device accepts or, if it accepts none, to the length that
    /// software segmentation (`gso`) accepts. In either case, TCP and IP handle one packet for many
    /// segments.
    pub(crate) fn superframe_max(
        caps: &Capabilities,
        max: u32,
        settings: &DeviceSettings,
        v4: bool,
    ) -> u32 {
        let limit = match Self::tso_limit(caps, max, v4) {
            0 => max.max(GSO_BYTES_MAX),
            tso => tso,
        };
        settings.gso_bytes_max(v4).min(limit)
    }
}

/// One route entry (dst) for display, as in `ip route show cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DstInfo {
    /// Treatment of the packets.
    pub kind: RouteKind,
    /// Index of the device; loopback is 0.
    pub device: DeviceIndex,
    /// True for received packets.
    pub is_input: bool,
    /// Source address of packets that have chosen none. For input: the address of the local prefix
    /// that the lookup matched.
    pub source: IpAddr,
    /// Number of references at this time, including the one of the table.
    pub refs: u32,
    /// Number of ticks of 4 ms with a lookup.
    pub uses: u32,
    /// True if the entry was created from the current routes.
    pub is_current: bool,
}

impl DstInfo {
    pub(crate) fn new(dst: &DstRef, generation: u32) -> Self {
        let DstTail { generation: made, device, kind, is_input } = *dst.tail();
        Self {
            kind,
            device,
            is_input,
            source: dst.cold().source,
            refs: dst.refs(),
            uses: dst.stats().uses.load(Ordering::Relaxed),
            is_current: made == generation,
        }
    }
}

/// Treatment of packets that an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteKind {
    /// Deliver: the address belongs to this host.
    Local,
    /// Send to the next hop, or to the destination itself if the entry has none.
    Unicast,
    /// Send to all hosts of a network, which include this host.
    Broadcast,
    /// Send to a multicast group.
    Multicast,
    /// Drop silently.
    Blackhole,
    /// Drop and report an unreachable host to the sender.
    Unreachable,
    /// Drop and report to the sender that it may not send there.
    Prohibit,
}

impl RouteKind {
    /// Returns the keyword that `ip route` prints in front of the prefix; empty for unicast.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Local => "local ",
            Self::Unicast => "",
            Self::Broadcast => "broadcast ",
            Self::Multicast => "multicast ",
            Self::Blackhole => "blackhole ",
            Self::Unreachable => "unreachable ",
            Self::Prohibit => "prohibit ",
        }
    }
}
