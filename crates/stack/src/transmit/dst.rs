//! Dst entry: a resolved route, shared by all senders and receivers along it.
//!
//! `route::output` and `route::input` create entries from the forwarding table and find them in a
//! read section without a shared write. Sockets cache them. Linux: `struct dst_entry`, `struct
//! rtable`.
//!
//! An entry never changes. It is valid while its generation is the host's (`rt_genid`). A change of
//! routes starts a new generation, and a user of an old entry looks up again. Properties of a
//! single destination (a reported path MTU) are in the socket's `Path`, not here.
//!
//! The parts of an entry, by their users, and their offsets in the layouts of
//! `net.quietline.dst_layout`:
//!
//! ```text
//!                0                        128                 256         384
//!   packed  512  │ header │ Dst …         │ count │ DstTail   │ DstOrigin │ DstStats
//!   padded  640  │ header │ Dst …         │ count │ (nothing) │ DstTail   │ DstOrigin │ DstStats
//!   filled  512  │ header │ Dst …         │ count │ DstOrigin │ DstTail   │ DstStats
//! ```
//!
//! *packed* is the layout of Linux up to 6.3: the count shares its cache line with generation and
//! type, which Linux reads for every packet, and so does this stack with `net.quietline.dst_check`
//! at `entry`. By default sockets compare a copy of the generation, and no packet reads the tail of
//! the entry of its connection, so the layouts do not differ. *padded* gives the count separate
//! cache lines.
//! *filled* puts rarely read fields next to the count, so that the isolation costs no memory. Lines
//! are 128 bytes where Linux has 64, because prefetchers fetch lines in pairs.
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

/// Generation of the routes of a host, incremented by every change: an entry or a cached path with
/// another number is made again (Linux: `rt_genid`). Release after the change, Acquire before a
/// reader loads the tables.
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

/// Entry found in a read section, which it cannot leave. DST5 and, for packets, PQ4: a packet
/// carries one of these or a reference.
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

/// Part that is read for every packet or batch.
#[derive(Debug)]
pub struct Dst {
    /// Device that packets leave by or arrived by.
    pub(crate) device: Arc<dyn Device>,
    /// Transmit queues of the device.
    pub(crate) tx: Arc<DeviceTx>,
    /// Link type, copied from the device's capabilities to avoid the dynamic dispatch.
    pub(crate) link: LinkType,
    /// Neighbor entry of the next hop. `None` on links without link addresses, and for input.
    pub(crate) neighbor: Option<Arc<NeighborEntry>>,
    /// Maximum length of an IP packet on this path, in bytes.
    pub(crate) mtu: u32,
    /// `mtu` without the reductions that ICMP reported ([`tcp::PathParams::receive_mtu`]).
    pub(crate) receive_mtu: u32,
    /// Maximum length of a superframe that TCP may send ([`Dst::superframe_max`]). 0: single
    /// segments.
    pub(crate) gso_max_bytes: u32,
    /// Maximum length of a superframe that the device accepts for this address family; 0 if it
    /// accepts none.
    pub(crate) tso_max_bytes: u32,
    /// True if the device does not complete checksums: copying from the application then sums the
    /// payload (Linux: `sk_route_caps`).
    pub(crate) sums_payload: bool,
    /// True if packets may wait on this path after they were sent, and complete later
    /// (`DeviceTx::completes`).
    pub(crate) completes: bool,
    /// True if packets are held until their departure times (`DeviceTx::paces`).
    pub(crate) paces: bool,
    /// True if the device accepts all packets at once (`DeviceTx::takes_at_once`).
    pub(crate) at_once: bool,
    /// True if TCP segments carry DF (RFC 1191 §3).
    pub(crate) dont_fragment: bool,
    /// True if sent packets are received along this same entry: the dst then stays with the packet.
    pub(crate) keeps_dst: bool,
    /// Metrics of the route that concern TCP.
    pub(crate) metrics: PathMetrics,
}

/// Remaining fields that are read for every packet. In the packed layout they share a cache line
/// with the count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DstTail {
    /// Route generation of the host when the entry was created (`rt_genid`).
    pub(crate) generation: u32,
    /// Index of the device.
    pub(crate) device: DeviceIndex,
    /// Treatment of the packets (`rt_type`).
    pub(crate) kind: RouteKind,
    /// True if valid for received packets (`rt_is_input`): input routes and loopback routes.
    pub(crate) is_input: bool,
}

/// Part that is read when a connection is opened or entries are listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DstOrigin {
    /// Source address for packets without one; for input, our own address.
    pub(crate) source: IpAddr,
}

/// Lookups of an entry, with the resolution of a tick. Each thread that looks it up writes at most
/// once per tick.
#[derive(Debug, Default)]
pub(crate) struct DstStats {
    /// Number of ticks with a lookup. Relaxed, as is `last_use`, because a statistic orders no
    /// other data.
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

/// DST1: offset of the count in each layout, and its neighbors, for any pointer width. The sizes
/// apply to 64-bit pointers.
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
        "packed shares the line on purpose"
    );
    assert!(padded.is_apart(padded.tail, size_of::<DstTail>()));
    assert!(padded.is_apart(padded.cold, size_of::<DstOrigin>()));
    assert!(filled.is_apart(filled.tail, size_of::<DstTail>()));
    assert!(!filled.is_apart(filled.cold, size_of::<DstOrigin>()), "the gap is filled");
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
    /// limited to the length that the device accepts or, if it accepts none, that `gso` segments.
    /// In either case, TCP, the socket lock and the route handle one packet for many segments.
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

/// One dst entry for display, as in `ip route show cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DstInfo {
    /// Treatment of the packets.
    pub kind: RouteKind,
    /// Index of the device; loopback is 0.
    pub device: DeviceIndex,
    /// True for received packets.
    pub is_input: bool,
    /// Source address of packets without one; for input, our own prefix.
    pub source: IpAddr,
    /// References at this time, including the one of the table.
    pub refs: u32,
    /// Ticks of 4 ms with a lookup.
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
    /// Broadcast to a network, which includes this host.
    Broadcast,
    /// Multicast to a group.
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
