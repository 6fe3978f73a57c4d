//! What the stack counts, under the names `nstat` prints; RFC 4293 for the `Ip*` and `Icmp*` groups.
//!
//! Written by every context through [`Cx`](crate::cx::Cx); read by [`Snapshot`]. Linux: include/uapi/linux/snmp.h,
//! net/ipv4/proc.c. A variant's name *is* the printed name, so that a search for either finds both.
//!
//! One table yields the enum, the text and the page. A page has one writer at a time and any number of readers; the value of a
//! counter is the wrapping sum over all pages of a host. Groups that Linux does not have follow Linux's, and drop reasons
//! come last, in capitals. What Linux counts and this stack has no cause to is in [`NOT_COUNTED`], with the reason.
//!
//! Not here: the `Tcp*` table (`tcp::base::counters`) and the reasons (`pkt::DropReason`). A page holds all three.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pkt::DropReason;

pub use snapshot::Snapshot;

mod snapshot;

tcp::counters! {
    /// Something counted by the stack; the variant's name is what `nstat` prints.
    IpInReceives: "IPv4 packets received, bad ones included.",
    IpInHdrErrors: "IPv4 packets dropped because of their header: version, checksum, length, options, TTL.",
    IpInAddrErrors: "IPv4 packets dropped because their destination is not ours to take.",
    IpInUnknownProtos: "IPv4 packets dropped because no handler takes their protocol.",
    IpInDiscards: "Good IPv4 packets dropped for want of memory or room.",
    IpInDelivers: "IPv4 packets handed to a transport protocol.",
    IpOutRequests: "IPv4 packets that transport protocols asked to send; a superframe counts once.",
    IpOutDiscards: "IPv4 packets to be sent that were dropped for want of memory or room.",
    IpOutNoRoutes: "IPv4 packets to be sent that were dropped because no route leads to their destination.",
    IpReasmReqds: "Fragments received that needed reassembly.",
    IpReasmFails: "Reassemblies that failed.",
    IpFragFails: "Packets dropped because they had to be cut and must not be.",
    IpOutTransmits: "IPv4 packets handed to a device or to the neighbor's queue.",

    IcmpInMsgs: "ICMP messages received, bad ones included.",
    IcmpInErrors: "ICMP messages dropped: malformed, bad checksum, unknown, or an error that quotes nothing of ours.",
    IcmpInCsumErrors: "ICMP messages received with a bad checksum.",
    IcmpInDestUnreachs: "Destination Unreachable messages received.",
    IcmpInTimeExcds: "Time Exceeded messages received.",
    IcmpInParmProbs: "Parameter Problem messages received.",
    IcmpInSrcQuenchs: "Source Quench messages received.",
    IcmpInRedirects: "Redirect messages received.",
    IcmpInEchos: "Echo requests received.",
    IcmpInEchoReps: "Echo replies received.",
    IcmpInTimestamps: "Timestamp requests received.",
    IcmpInTimestampReps: "Timestamp replies received.",
    IcmpInAddrMasks: "Address Mask requests received.",
    IcmpInAddrMaskReps: "Address Mask replies received.",
    IcmpOutMsgs: "ICMP messages sent.",
    IcmpOutErrors: "ICMP messages not sent for want of memory or a route.",
    IcmpOutRateLimitGlobal: "ICMP messages held back by the limit of the whole host.",
    IcmpOutDestUnreachs: "Destination Unreachable messages sent.",
    IcmpOutEchoReps: "Echo replies sent.",

    IpExtInNoRoutes: "Packets received and dropped because no route leads to their destination.",
    IpExtInTruncatedPkts: "Packets shorter than the length their header gives.",
    IpExtInMcastPkts: "Multicast packets received.",
    IpExtInBcastPkts: "Broadcast packets received.",
    IpExtInOctets: "Bytes of IP packets received, headers included.",
    IpExtOutOctets: "Bytes of IP packets sent, headers included.",
    IpExtInMcastOctets: "Bytes of multicast packets received.",
    IpExtInBcastOctets: "Bytes of broadcast packets received.",
    IpExtInCsumErrors: "Packets received with a bad header checksum.",
    IpExtInNoECTPkts: "Packets received that do not speak ECN.",
    IpExtInECT1Pkts: "Packets received marked ECT(1).",
    IpExtInECT0Pkts: "Packets received marked ECT(0).",
    IpExtInCEPkts: "Packets received marked Congestion Experienced.",

    SoftnetProcessed: "Packets taken from device queues by polls.",
    SoftnetTimeSqueeze: "Turns that ended with work left because the budget was used up.",
    RpsPackets: "Packets that the core which polled them handed to another core (RPS, RFS).",
    ForeignCorePackets: "Segments of connections that went up on another core than the connection's.",
    CoreTurns: "Turns of a core.",
    CoreDoorbells: "Runs of a core by the context whose frame rang its doorbell.",
    CoreMissed: "Times the owner of a core looked again because a doorbell had rung meanwhile.",
    CoreHandoffs: "Scheduled cores handed to their worker because the caller had run long enough.",
    CoreLeftToReader: "Times a worker left arrived frames to a polling reader that it woke.",
    CoreLeft: "Cores without a worker left to the next poll or doorbell because the caller had run long enough.",
    CoreSleeps: "Times a worker parked.",
    CoreKicks: "Times a parked worker was kicked.",
    ListenSourceLimit: "SYNs and returned SYN cookies dropped because their source had reached the listener's limit of connections.",
    SocketWakes: "Wake-ups of application threads that waited on a socket.",
    SocketWakesSpurious: "Wake-ups of readers that then found nothing to read.",
    SocketBacklogQueued: "Packets queued on the backlog of a socket that was owned.",
    SocketBacklogAckDeferred: "Backlog packets whose immediate ACK waited for the one ACK at the end of the backlog.",
    PrequeueQueued: "Packets queued for a waiting reader.",
    PrequeueWakes: "Wake-ups of readers because of a prequeue, at most one while it is not empty.",
    PrequeueLength1: "Prequeues that held 1 packet when they were processed.",
    PrequeueLength2: "Prequeues that held 2 or 3 packets when they were processed.",
    PrequeueLength4: "Prequeues that held 4 to 7 packets when they were processed.",
    PrequeueLength8: "Prequeues that held 8 to 15 packets when they were processed.",
    PrequeueLength16: "Prequeues that held 16 to 31 packets when they were processed.",
    PrequeueLength32: "Prequeues that held 32 packets or more when they were processed.",
    HostQueueBytes0: "Times TCP measured the packet memory of its connection in qdiscs and devices, and found none.",
    HostQueueBytesTo4K: "Times TCP found less than 4 KB of packet memory below a connection.",
    HostQueueBytesTo16K: "Times TCP found 4 to 16 KB of packet memory below a connection.",
    HostQueueBytesTo64K: "Times TCP found 16 to 64 KB of packet memory below a connection.",
    HostQueueBytesTo256K: "Times TCP found 64 to 256 KB of packet memory below a connection.",
    HostQueueBytesTo1M: "Times TCP found 256 KB to 1 MB of packet memory below a connection.",
    HostQueueBytesOver1M: "Times TCP found 1 MB of packet memory or more below a connection.",
    HostQueueDelayTo10Us: "Packets that completed less than 10 us after their departure time. Samples: one packet at a time of a queue that has a discipline, or no room in its device.",
    HostQueueDelayTo100Us: "Of these samples, the ones that took 10 to 100 us.",
    HostQueueDelayTo1Ms: "Of these samples, the ones that took 100 us to 1 ms.",
    HostQueueDelayTo10Ms: "Of these samples, the ones that took 1 to 10 ms.",
    HostQueueDelayTo100Ms: "Of these samples, the ones that took 10 to 100 ms.",
    HostQueueDelayOver100Ms: "Of these samples, the ones that took 100 ms or longer.",
    HostQueueDelayMicros: "Microseconds that these samples took, summed up.",
    TsqThrottled: "Times TCP stopped because enough packet memory of the connection was below it.",
    TsqThrottledMicros: "Microseconds that connections were stopped by TCP Small Queues, summed up.",
    TsqRecheck: "Times TCP continued because enough packets had completed by the time it announced its stop.",
    TsqRuns: "Stopped connections resumed by completions.",
    TsqDeferred: "Resumed connections left to the thread that owned the socket.",
    SkbReadAfterUnlock: "Packets freed after their socket was released (`list_after_unlock`).",
    SkbAllocs: "Packets allocated or cloned. Packet memory is counted for all hosts of a process together.",
    SkbAllocFails: "Packets and pages not allocated because packet memory was at its limit.",
    SkbFreesLocal: "Packets whose memory stayed with the context that freed them.",
    SkbFreesAdopted: "Packets of `SkbFreesLocal` that another context had allocated.",
    SkbFreesRemote: "Packets whose memory was returned to the context that had allocated them.",
    SkbReturnsDrained: "Packets whose memory a context got back from others, or that no context had freed.",
    SkbDeferPushed: "Packets returned whole to the context that had allocated them.",
    SkbDeferOverflows: "Packets not returned whole because too many waited there, or because that context had ended.",
    SkbDeferKicks: "Sleeping threads woken because half of the allowed packets waited for them.",
    SkbDeferDrained: "Packets that were returned whole and freed.",
    SkbMagazineFlushes: "Magazines of free memory that contexts gave to the depot.",
    SkbMagazineRefills: "Magazines of free memory that contexts took from the depot.",
    SkbSlabRefills: "Slabs of packet memory taken from the system.",
    SkbLocks: "Locks taken for the depot and for slabs.",
    SkbLocksContended: "Locks of `SkbLocks` that another context held.",
    SkbFreeBytes: "Packet memory without a packet, in bytes: a gauge.",
    SkbDeferredBytes: "Packet memory of packets on their return, in bytes without their payload: a gauge.",
    TimerExpired: "Timer entries that were due, stale ones included.",
    TimerRuns: "Turns that found timer entries due; entries of one tick are due together.",
    DeviceRxPackets: "Frames received from devices; a superframe counts once.",
    DeviceRxMissed: "Frames that arrived and found a device's receive ring full, or no memory in it.",
    DeviceRxBytes: "Bytes of frames received from devices, link headers included.",
    DeviceTxPackets: "Frames handed to devices; a superframe counts once.",
    DeviceTxBytes: "Bytes of frames handed to devices, link headers included.",
    TxRequeues: "Packets that a device had no room for and that were kept to be tried again.",
    TxTimeouts: "Queues stopped by their byte limit that continued because the device had completed nothing for 5 s.",
    TxQueueChanges: "Times a connection changed to another transmit queue of its device (XPS).",
    TxQueueKept: "Times a connection kept its transmit queue because data of it was still below.",
    DeviceTxSuperframes: "Superframes given whole to devices (TSO), refused ones included.",
    DeviceTxRefused: "Times that a device refused a superframe for its size, for example a tap whose kernel has no contiguous memory. It is cut into segments and sent, and the device gets no larger ones from then on.",
    GroMerged: "Segments merged into a held packet by a copy of their payload.",
    GroMergedFree: "Segments merged into a held packet without a copy: the descriptor was free at once.",
    GroHeld: "Segments held so that others can be merged into them.",
    GroNormal: "Frames that receive offload passed on unchanged.",
    GroSuperframes: "Superframes of more than one segment that were passed up.",
    GroSuperframeSegments: "Segments in the superframes that were passed up.",
    GroFlushPsh: "Held packets completed by a segment with PSH, FIN, URG, SYN or RST merged into them.",
    GroFlushFlags: "Held packets completed because the next segment differed in control bits, acknowledgment, window or urgent pointer.",
    GroFlushSeq: "Held packets completed because the next segment did not continue them.",
    GroFlushOptions: "Held packets completed because the next segment had other TCP options: mostly another timestamp.",
    GroFlushHeader: "Held packets completed because the next segment differed in its link or IP header, or could not be merged at all.",
    GroFlushLen: "Held packets completed by a segment that was shorter, longer or empty.",
    GroFlushSize: "Held packets completed because the next segment would have made them too large.",
    GroFlushFullBucket: "Held packets completed to make room for another flow in their bucket.",
    GroFlushAge: "Held packets completed because they were held since an earlier millisecond.",
    GroFlushComplete: "Held packets completed at the end of a poll.",
    GroHeldMicros: "Microseconds that held packets spent with receive offload, summed up.",
    RxListFlushes: "Lists of received packets that went up.",
    RxListPackets: "Packets in the lists that went up.",
    RxListMicros: "Microseconds from the first packet of a list until it went up, summed up.",
    RxListSize1: "Lists of one packet that went up.",
    RxListSize2To3: "Lists of two or three packets that went up.",
    RxListSize4To7: "Lists of four to seven packets that went up.",
    RxListSize8To15: "Lists of eight to fifteen packets that went up.",
    RxListSize16To31: "Lists of 16 to 31 packets that went up.",
    RxListSize32To63: "Lists of 32 to 63 packets that went up.",
    RxListSize64: "Lists of 64 packets and more that went up.",
    GsoSegments: "Segments that superframes were cut into by software (GSO).",
    TxChecksumSoftware: "Transport checksums completed by software on transmit.",
    TxChecksumCopied: "Transport checksums of `TxChecksumSoftware` whose payload the copy from the application had summed.",
    RxChecksumSoftware: "Transport checksums verified by software on receive.",
    DstHit: "Sends whose path was cached and still valid.",
    DstMiss: "Paths looked up because none was cached or the routes had changed.",
    DstAllocs: "Dst entries made.",
    DstGet: "References to dst entries taken by packets and sockets.",
    DstPut: "References to dst entries released by packets, and by sockets that forget their input route.",
    DstForce: "Packets that took a reference to their dst at the end of the read section.",
    DstForceFailed: "Conditional gets that found a count of zero.",
    DstDropNoref: "Packets that left the read section without their dst because their socket had one.",
    RxDstSet: "Input routes that connections took over from a packet.",
    RxDstSetNullSkipped: "Packets that had no input route to give to a connection without one.",
    RxDstInvalidated: "Input routes that connections forgot: stale, or of another device.",
    RxRouteLookups: "Received packets whose route was looked up.",
    RxRouteHints: "Received packets that took the route of the packet before them in the list.",
    RxSublists: "Runs of packets for one connection, or of one route, in the lists.",
    ArpInPackets: "ARP packets received, bad ones included.",
    ArpOutPackets: "ARP packets sent.",
    ArpConflicts: "ARP packets by which another station uses or claims an address of ours (RFC 5227).",
    NeighAllocs: "Neighbors entered into the table.",
    NeighDestroys: "Neighbors removed from the table.",
    NeighResFailed: "Resolutions that failed: every probe was unanswered.",
    NeighUnresolvedDiscards: "Packets dropped because too many waited for the same neighbor.",
    NeighForcedGcRuns: "Collections forced because the table was nearly full.",
    NeighTableFulls: "Neighbors refused because the table was full.",
}

/// Rows of Linux's `Ip`, `Icmp` and `IpExt` that are not counted, and why.
pub const NOT_COUNTED: &[(&str, &str)] = &[
    ("IpForwarding", "no counter but the setting `ip_forward`"),
    ("IpDefaultTTL", "no counter but the setting `ip_default_ttl`"),
    ("IpForwDatagrams", "a host: nothing is forwarded"),
    ("IpReasmTimeout", "no reassembly: a fragment is a counted drop"),
    ("IpReasmOKs", "no reassembly: a fragment is a counted drop"),
    ("IpFragOKs", "no fragmentation: TCP sends what the path takes"),
    ("IpFragCreates", "no fragmentation: TCP sends what the path takes"),
    ("IcmpOutRateLimitHost", "one limit for the whole host, none for each destination"),
    ("IcmpOutTimeExcds", "a host: nothing is forwarded or reassembled whose time could run out"),
    ("IcmpOutParmProbs", "a malformed header is dropped without an answer"),
    ("IcmpOutSrcQuenchs", "deprecated (RFC 6633)"),
    ("IcmpOutRedirects", "a host: only routers send them"),
    ("IcmpOutEchos", "nothing here pings"),
    ("IcmpOutTimestamps", "nothing here asks"),
    (
        "IcmpOutTimestampReps",
        "timestamp requests are not answered (RFC 1122 §3.2.2.8 leaves it open)",
    ),
    ("IcmpOutAddrMasks", "deprecated (RFC 6918)"),
    ("IcmpOutAddrMaskReps", "deprecated (RFC 6918)"),
    ("IpExtOutMcastPkts", "nothing is sent to groups"),
    ("IpExtOutBcastPkts", "nothing is sent to broadcast addresses"),
    ("IpExtOutMcastOctets", "nothing is sent to groups"),
    ("IpExtOutBcastOctets", "nothing is sent to broadcast addresses"),
    ("IpExtReasmOverlaps", "no reassembly: a fragment is a counted drop"),
];

impl Counter {
    /// Number of counters, and of slots in a page.
    pub const COUNT: usize = Self::ALL.len();
}

const _: () = assert!(Counter::COUNT <= 256, "the enum is repr(u8)");

/// Slots with one writer and any number of readers.
///
/// The writer is whoever owns the page for the time being; a count is then a load, an addition and a store, with no locked
/// instruction. Two writers at once lose counts, nothing else.
#[derive(Debug)]
struct Slots<const N: usize> {
    /// Written by the page's owner, read by anybody who prints. Relaxed: a counter orders nothing.
    values: [AtomicU64; N],
}

impl<const N: usize> Slots<N> {
    const fn new() -> Self {
        Self { values: [const { AtomicU64::new(0) }; N] }
    }

    #[inline]
    fn add(&self, index: usize, n: u64) {
        let slot = &self.values[index];
        slot.store(slot.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    fn value(&self, index: usize) -> u64 {
        self.values[index].load(Ordering::Relaxed)
    }

    fn add_to(&self, sums: &mut [u64; N]) {
        for (sum, slot) in sums.iter_mut().zip(&self.values) {
            *sum = sum.wrapping_add(slot.load(Ordering::Relaxed));
        }
    }
}

/// One writer's counts of everything in [`Counter`].
#[derive(Debug)]
pub struct StackCounters(Slots<{ Counter::COUNT }>);

impl StackCounters {
    /// Counts `n`.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.0.add(counter as usize, n);
    }

    /// This page's share of a counter.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.0.value(counter as usize)
    }
}

/// One writer's counts of dropped packets by reason.
#[derive(Debug)]
pub struct DropCounters(Slots<{ DropReason::COUNT }>);

impl DropCounters {
    /// Counts `n` packets that died of `reason`.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0.add(reason.index(), n);
    }

    /// This page's share of a reason.
    #[must_use]
    pub fn value(&self, reason: DropReason) -> u64 {
        self.0.value(reason.index())
    }
}

/// Everything one context counts for one host. Aligned to 128 bytes, so that the writers of two pages share neither a cache
/// line nor a pair of lines that the prefetcher fetches together.
#[repr(align(128))]
pub struct CounterPage {
    /// IP, ICMP, link, cores, sockets.
    pub stack: StackCounters,
    /// The engine's page.
    pub tcp: tcp::Counters,
    /// Drops by reason.
    pub drops: DropCounters,
    /// Pages of TCP memory that the page's owner holds back from the host's account (`tcp_memory`).
    pub(crate) tcp_reserve: AtomicI64,
}

impl CounterPage {
    /// A page of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stack: StackCounters(Slots::new()),
            tcp: tcp::Counters::new(),
            drops: DropCounters(Slots::new()),
            tcp_reserve: AtomicI64::new(0),
        }
    }
}

impl Default for CounterPage {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CounterPage {
    /// What is not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = Snapshot::sum([self]);
        f.debug_map().entries(snapshot.iter().filter(|&(_, value)| value != 0)).finish()
    }
}
