//! The dst entry: a resolved route, shared by all who send or receive along it.
//!
//! Made by `route::output` and `route::input` from the forwarding table, found there in a read section without a shared write,
//! cached on sockets. Linux: `struct dst_entry`, `struct rtable`.
//!
//! An entry never changes. It is valid as long as its generation is the host's (`rt_genid`); a change of routes starts a
//! new generation, and whoever meets an old entry looks up again. What holds for one destination only (a reported path
//! MTU) is on the socket's `Path`, not here.
//!
//! The parts of an entry, by who touches them, and where the layouts of `net.quietline.dst_layout` put them:
//!
//! ```text
//!                0                        128        256
//!   packed  512  │ header │ Dst …         │ count │ DstTail            │ DstOrigin │ DstStats
//!   padded  640  │ header │ Dst …         │ count │ (nothing)          │ DstTail   │ DstOrigin │ DstStats
//!   filled  512  │ header │ Dst …         │ count │ DstOrigin          │ DstTail   │ DstStats
//! ```
//!
//! *packed* is Linux up to 6.3: the count shares its line with the generation and the type, which every holder reads for every
//! packet. *padded* gives the count lines of its own; *filled* lets what nobody reads move in with it, so that the isolation
//! costs nothing. 128 bytes where Linux has 64, because prefetchers fetch lines in pairs.
//!
//! Not here: how references are counted (`sync::refcount`), when an entry is found.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use pkt::Instant;
use sync::counted::{Layout, Offsets, Parts};

use super::{neighbor::table::NeighborEntry, tx_queue::DeviceTx};
use crate::{
    base::limits::GSO_BYTES_MAX,
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

/// What an entry is made of.
#[derive(Debug)]
pub(crate) struct DstParts;

impl Parts for DstParts {
    type Head = Dst;
    type Tail = DstTail;
    type Cold = DstOrigin;
    type Stats = DstStats;
}

/// A counted reference to an entry.
pub(crate) type DstRef = sync::Ref<DstParts>;

/// An entry found in a read section, which it cannot leave (DST5, and PQ4 for packets, which carry one of these or a reference):
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
/// # impl sync::counted::Parts for Sample { type Head = (); type Tail = (); type Cold = (); type Stats = (); }
/// ```
pub(crate) type DstHandle<'s> = sync::Handle<'s, DstParts>;

/// What is read for every packet or batch.
#[derive(Debug)]
pub struct Dst {
    /// Device the packets leave by, or came by.
    pub(crate) device: Arc<dyn Device>,
    /// The queues in front of it.
    pub(crate) tx: Arc<DeviceTx>,
    /// Its link layer, copied from the device's capabilities to spare the dispatch.
    pub(crate) link: LinkType,
    /// The next hop's link address. `None` where the link has none, and on the way in.
    pub(crate) neighbor: Option<Arc<NeighborEntry>>,
    /// Largest IP packet in bytes on this path.
    pub(crate) mtu: u32,
    /// The same without what ICMP has reported ([`tcp::PathParams::receive_mtu`]).
    pub(crate) receive_mtu: u32,
    /// Largest superframe TCP may make ([`Dst::superframe_max`]). 0: single segments.
    pub(crate) gso_max_bytes: u32,
    /// Largest superframe the device takes for this address family; 0 when it takes none.
    pub(crate) tso_max_bytes: u32,
    /// The device does not complete checksums: the copy from the application sums what it copies (Linux: `sk_route_caps`).
    pub(crate) sums_payload: bool,
    /// Packets may wait on this path after they were sent, and complete later (`DeviceTx::completes`).
    pub(crate) completes: bool,
    /// They are held until their departure times (`DeviceTx::paces`).
    pub(crate) paces: bool,
    /// The device takes everything at once (`DeviceTx::takes_at_once`).
    pub(crate) at_once: bool,
    /// TCP segments carry DF (RFC 1191 §3).
    pub(crate) dont_fragment: bool,
    /// What this entry sends it receives: the dst stays with the packet.
    pub(crate) keeps_dst: bool,
}

/// What else is read for every packet: in the packed layout the neighbor of the count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DstTail {
    /// The host's route generation when the entry was made (`rt_genid`).
    pub(crate) generation: u32,
    /// Index of the device.
    pub(crate) device: u32,
    /// What happens to its packets (`rt_type`).
    pub(crate) kind: RouteKind,
    /// Good for packets on their way in (`rt_is_input`): input routes, and loopback's.
    pub(crate) is_input: bool,
}

/// What is read when a connection is opened or entries are listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DstOrigin {
    /// Source address for packets that have none yet; our own address on the way in.
    pub(crate) source: IpAddr,
}

/// How often an entry was looked up, to a tick: written at most once each by whoever looks it up.
#[derive(Debug, Default)]
pub(crate) struct DstStats {
    /// Ticks with a look-up. Relaxed, as below: a statistic orders nothing.
    uses: AtomicU32,
    /// The last of them.
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

/// DST1: where the count lies in each layout, and what lies beside it, whatever the width of a pointer; what
/// that costs in bytes is for pointers of 64 bits.
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
    assert!(!packed.is_apart(packed.tail, size_of::<DstTail>()), "packed shares on purpose");
    assert!(padded.is_apart(padded.tail, size_of::<DstTail>()));
    assert!(padded.is_apart(padded.cold, size_of::<DstOrigin>()));
    assert!(filled.is_apart(filled.tail, size_of::<DstTail>()));
    assert!(!filled.is_apart(filled.cold, size_of::<DstOrigin>()), "the gap is filled");
};

impl Dst {
    /// What `caps` allow for superframes of this address family, of a device that takes `max` bytes at this moment.
    pub(crate) const fn tso_limit(caps: &Capabilities, max: u32, v4: bool) -> u32 {
        let tso = if v4 { caps.tso4 } else { caps.tso6 };
        match tso && caps.tx_checksum {
            true if v4 || caps.jumbo6 || max < GSO_BYTES_MAX => max,
            true => GSO_BYTES_MAX,
            false => 0,
        }
    }

    /// Largest superframe TCP may make for a device: what the settings ask for and the device takes, or what `gso` cuts up
    /// where it takes none. Either way TCP, the socket lock and the route see one packet for many segments.
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

/// One dst entry as a reader sees it: a line of `ip route show cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DstInfo {
    /// What happens to its packets.
    pub kind: RouteKind,
    /// Index of the device; loopback is 0.
    pub device: u32,
    /// For packets on their way in.
    pub is_input: bool,
    /// Source address of packets that have none yet; on the way in the prefix that is ours.
    pub source: IpAddr,
    /// References at this moment: one is the table's.
    pub refs: u32,
    /// Ticks of 4 ms in which it was looked up.
    pub uses: u32,
    /// Made from the routes as they are.
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

/// What becomes of packets that an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// The address is ours: deliver.
    Local,
    /// Send to the next hop, or to the destination itself when the entry has none.
    Unicast,
    /// Everybody on a network, we included.
    Broadcast,
    /// A group.
    Multicast,
    /// Drop without a word.
    Blackhole,
    /// Drop and tell the sender.
    Unreachable,
}

impl RouteKind {
    /// The word that `ip route` prints in front of the prefix; empty for unicast.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Local => "local ",
            Self::Unicast => "",
            Self::Broadcast => "broadcast ",
            Self::Multicast => "multicast ",
            Self::Blackhole => "blackhole ",
            Self::Unreachable => "unreachable ",
        }
    }
}
