//! Counters of the stack, named as `nstat` prints them; RFC 4293 defines the `Ip*` and `Icmp*`
//! groups, RFC 4113 most of `Udp*`.
//!
//! A context ([`Cx`](crate::cx::Cx): the state of a thread that runs the stack) counts on its own
//! page of counters; [`Snapshot`] sums the pages. Linux: include/uapi/linux/snmp.h,
//! net/ipv4/proc.c, net/ipv6/proc.c. A variant's name *is* the printed name, so a search for a
//! printed name finds its variant.
//!
//! One table yields the enum, the texts and the slots of a counter page. A page has one writer at a
//! time and any number of readers; the value of a counter is the wrapping sum over all pages of a
//! host. Groups that Linux does not have follow Linux's, except for `IgmpInQueries`, and drop
//! reasons come last, in capitals. [`NOT_COUNTED`] lists rows of Linux that this stack does not
//! count, with the reason.
//!
//! Not here: the `Tcp*` table (`tcp::base::counters`) and the drop reasons (`pkt::DropReason`). A
//! page holds all three.

use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use pkt::DropReason;

pub use snapshot::Snapshot;

mod snapshot;

tcp::counters! {
    /// An event counted by the stack; the variant's name is the name that `nstat` prints.
    IpInReceives: "IPv4 packets received, bad ones included.",
    IpInHdrErrors: "IPv4 packets dropped because of their header: version, checksum, length, options, TTL.",
    IpInAddrErrors: "IPv4 packets dropped because their destination is not an address of this host, or because their addresses are not allowed in a packet from a link.",
    IpInUnknownProtos: "IPv4 packets dropped because no handler takes their protocol.",
    IpInDiscards: "Valid IPv4 packets dropped because a unicast packet arrived in a broadcast or multicast frame, or for lack of memory.",
    IpInDelivers: "IPv4 packets handed to a transport protocol.",
    IpOutRequests: "IPv4 packets that transport protocols asked to send; a superframe (a packet of several segments) counts once.",
    IpOutDiscards: "Outgoing IPv4 packets dropped for lack of memory: datagrams and ICMP errors; other drops are counted by reason alone.",
    IpOutNoRoutes: "Outgoing IPv4 packets dropped because no route leads to their destination.",
    IpReasmTimeout: "Reassemblies that failed because not all fragments arrived in time.",
    IpReasmReqds: "Fragments received that needed reassembly.",
    IpReasmOKs: "Datagrams reassembled.",
    IpReasmFails: "Reassemblies that failed.",
    IpFragOKs: "Packets sent as fragments.",
    IpFragFails: "Packets dropped because they needed fragmentation and had DF set, or for lack of memory.",
    IpFragCreates: "Fragments made.",
    IpOutTransmits: "IPv4 packets handed to a device or to the neighbor's queue.",

    IcmpInMsgs: "ICMP messages received, bad ones included.",
    IcmpInErrors: "ICMP messages dropped: malformed, bad checksum, unknown, or an error that quotes no packet of this host.",
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
    IcmpOutErrors: "ICMP messages not sent for lack of memory or a route.",
    IcmpOutRateLimitGlobal: "ICMP messages not sent because of the rate limit of the host.",
    IcmpOutRateLimitHost: "ICMP messages not sent because of the rate limit of their destination.",
    IcmpOutDestUnreachs: "Destination Unreachable messages sent.",
    IcmpOutTimeExcds: "Time Exceeded messages sent: reassemblies that timed out.",
    IcmpOutEchos: "Echo requests sent, by ping sockets.",
    IcmpOutEchoReps: "Echo replies sent.",

    UdpInDatagrams: "Datagrams that applications have received.",
    UdpNoPorts: "Datagrams received for a port without a socket.",
    UdpInErrors: "Datagrams received and not delivered: malformed, bad checksum, or no room or memory at the socket.",
    UdpOutDatagrams: "Datagrams sent.",
    UdpRcvbufErrors: "Datagrams dropped because the receive buffer of the socket was full, or for lack of memory for a copy.",
    UdpSndbufErrors: "Sends that failed because the send buffer of the socket was full, or for lack of memory.",
    UdpInCsumErrors: "Datagrams received with a bad checksum.",
    UdpIgnoredMulti: "Broadcast and multicast datagrams received that no socket wanted.",
    UdpMemErrors: "Datagrams dropped because all sockets together had reached `udp_mem`.",

    IpExtInNoRoutes: "Received packets dropped because no route leads to their destination.",
    IpExtInTruncatedPkts: "Packets shorter than the length their header gives.",
    IpExtInMcastPkts: "Multicast packets received.",
    IpExtOutMcastPkts: "Multicast packets sent.",
    IpExtInBcastPkts: "Broadcast packets received.",
    IpExtOutBcastPkts: "Broadcast packets sent.",
    IpExtInOctets: "Bytes of IP packets received, headers included.",
    IpExtOutOctets: "Bytes of IP packets sent, headers included.",
    IpExtInMcastOctets: "Bytes of multicast packets received.",
    IpExtOutMcastOctets: "Bytes of multicast packets sent.",
    IpExtInBcastOctets: "Bytes of broadcast packets received.",
    IpExtOutBcastOctets: "Bytes of broadcast packets sent.",
    IpExtInCsumErrors: "Packets received with a bad header checksum.",
    IpExtInNoECTPkts: "Packets received without ECN support (Not-ECT).",
    IpExtInECT1Pkts: "Packets received marked ECT(1).",
    IpExtInECT0Pkts: "Packets received marked ECT(0).",
    IpExtInCEPkts: "Packets received marked Congestion Experienced.",
    IpExtReasmOverlaps: "Datagrams dropped because fragments overlapped.",

    IgmpInQueries: "Queries of multicast routers for the groups of this host.",

    Ip6InReceives: "IPv6 packets received, bad ones included.",
    Ip6InHdrErrors: "IPv6 packets dropped because of their header or an extension header.",
    Ip6InNoRoutes: "IPv6 packets dropped because no route leads to their destination.",
    Ip6InAddrErrors: "IPv6 packets dropped because their destination is not an address of this host, or because their addresses are not allowed in a packet from a link.",
    Ip6InUnknownProtos: "IPv6 packets dropped because no handler takes their protocol.",
    Ip6InTruncatedPkts: "IPv6 packets shorter than the length their header gives.",
    Ip6InDiscards: "Valid IPv6 packets dropped because a unicast packet arrived in a broadcast or multicast frame, or for lack of memory.",
    Ip6InDelivers: "IPv6 packets handed to a transport protocol.",
    Ip6OutRequests: "IPv6 packets that transport protocols asked to send; a superframe counts once.",
    Ip6OutDiscards: "Outgoing IPv6 packets dropped for lack of memory: datagrams and ICMP errors; other drops are counted by reason alone.",
    Ip6OutNoRoutes: "Outgoing IPv6 packets dropped because no route leads to their destination.",
    Ip6ReasmTimeout: "IPv6 reassemblies that failed because not all fragments arrived in time.",
    Ip6ReasmReqds: "IPv6 fragments received that needed reassembly.",
    Ip6ReasmOKs: "IPv6 datagrams reassembled.",
    Ip6ReasmFails: "IPv6 reassemblies that failed.",
    Ip6FragOKs: "IPv6 packets sent as fragments.",
    Ip6FragFails: "IPv6 packets longer than the MTU that were dropped for lack of memory.",
    Ip6FragCreates: "IPv6 fragments made.",
    Ip6InMcastPkts: "IPv6 multicast packets received.",
    Ip6OutMcastPkts: "IPv6 multicast packets sent.",
    Ip6InOctets: "Bytes of IPv6 packets received, headers included.",
    Ip6OutOctets: "Bytes of IPv6 packets sent, headers included.",
    Ip6InMcastOctets: "Bytes of IPv6 multicast packets received.",
    Ip6OutMcastOctets: "Bytes of IPv6 multicast packets sent.",
    Ip6InNoECTPkts: "IPv6 packets received without ECN support (Not-ECT).",
    Ip6InECT1Pkts: "IPv6 packets received marked ECT(1).",
    Ip6InECT0Pkts: "IPv6 packets received marked ECT(0).",
    Ip6InCEPkts: "IPv6 packets received marked Congestion Experienced.",
    Ip6OutTransmits: "IPv6 packets handed to a device or to the neighbor's queue.",

    Icmp6InMsgs: "ICMPv6 messages received, bad ones included.",
    Icmp6InErrors: "ICMPv6 messages dropped: malformed, bad checksum, unknown, or an error that quotes no packet of this host.",
    Icmp6OutMsgs: "ICMPv6 messages sent.",
    Icmp6OutErrors: "ICMPv6 messages not sent for lack of memory or a route.",
    Icmp6InCsumErrors: "ICMPv6 messages received with a bad checksum.",
    Icmp6OutRateLimitHost: "ICMPv6 messages not sent because of the rate limit of their destination.",
    Icmp6InDestUnreachs: "ICMPv6 Destination Unreachable messages received.",
    Icmp6InPktTooBigs: "ICMPv6 Packet Too Big messages received.",
    Icmp6InTimeExcds: "ICMPv6 Time Exceeded messages received.",
    Icmp6InParmProblems: "ICMPv6 Parameter Problem messages received.",
    Icmp6InEchos: "ICMPv6 echo requests received.",
    Icmp6InEchoReplies: "ICMPv6 echo replies received.",
    Icmp6InGroupMembQueries: "MLD queries of multicast routers received.",
    Icmp6InGroupMembResponses: "MLDv1 reports of other hosts received.",
    Icmp6InGroupMembReductions: "MLDv1 Done messages of other hosts received.",
    Icmp6InRouterSolicits: "Router solicitations received.",
    Icmp6InRouterAdvertisements: "Router advertisements received.",
    Icmp6InNeighborSolicits: "Neighbor solicitations received.",
    Icmp6InNeighborAdvertisements: "Neighbor advertisements received.",
    Icmp6InRedirects: "ICMPv6 redirects received.",
    Icmp6InMLDv2Reports: "MLDv2 reports of other hosts received.",
    Icmp6OutDestUnreachs: "ICMPv6 Destination Unreachable messages sent.",
    Icmp6OutTimeExcds: "ICMPv6 Time Exceeded messages sent: reassemblies that timed out.",
    Icmp6OutParmProblems: "ICMPv6 Parameter Problem messages sent.",
    Icmp6OutEchos: "ICMPv6 echo requests sent, by ping sockets.",
    Icmp6OutEchoReplies: "ICMPv6 echo replies sent.",
    Icmp6OutGroupMembResponses: "MLDv1 reports sent.",
    Icmp6OutGroupMembReductions: "MLDv1 Done messages sent.",
    Icmp6OutRouterSolicits: "Router solicitations sent.",
    Icmp6OutNeighborSolicits: "Neighbor solicitations sent.",
    Icmp6OutNeighborAdvertisements: "Neighbor advertisements sent.",
    Icmp6OutMLDv2Reports: "MLDv2 reports sent.",

    Udp6InDatagrams: "Datagrams over IPv6 that applications have received.",
    Udp6NoPorts: "Datagrams received over IPv6 for a port without a socket.",
    Udp6InErrors: "Datagrams received over IPv6 and not delivered: malformed, bad or no checksum, or no room or memory at the socket.",
    Udp6OutDatagrams: "Datagrams sent over IPv6.",
    Udp6RcvbufErrors: "Datagrams over IPv6 dropped because the receive buffer of the socket was full, or for lack of memory for a copy.",
    Udp6SndbufErrors: "Sends over IPv6 that failed because the send buffer of the socket was full, or for lack of memory.",
    Udp6InCsumErrors: "Datagrams received over IPv6 with a bad checksum or without one.",
    Udp6IgnoredMulti: "Multicast datagrams received over IPv6 that no socket wanted.",
    Udp6MemErrors: "Datagrams over IPv6 dropped because all sockets together had reached `udp_mem`.",

    SoftnetProcessed: "Packets taken from device queues by polls.",
    SoftnetTimeSqueeze: "Turns of a core that ended with work left because the budget was used up.",
    RpsPackets: "Packets that the core which polled them handed to another core (RPS, RFS).",
    ForeignCorePackets: "Segments processed on another core than the one of their connection.",
    CoreTurns: "Turns of a core. A turn is one pass over its queues, transmit completions and timers.",
    CoreDoorbells: "Times a thread ran a core because packets that the thread had sent or steered (RPS) had arrived at that core.",
    CoreMissed: "Times the owner of a core ran another turn because a doorbell had rung meanwhile.",
    CoreHandoffs: "Times a thread that had run cores long enough handed a scheduled core to the worker of that core.",
    CoreLeftToReader: "Times a worker left arrived frames to a polling reader that it woke.",
    CoreLeft: "Times a thread that had run cores long enough left a core without a worker to the next poll or doorbell.",
    CoreSleeps: "Times a worker parked.",
    CoreKicks: "Times a parked worker was woken (kicked).",
    SocketConnectionLimit: "SYNs dropped and calls of `connect` refused because the host had as many connections as `net.quietline.tcp_max_connections` allows.",
    ListenSourceLimit: "SYNs and returned SYN cookies dropped because their source had reached the listener's limit of connections.",
    FlowRequests: "SYNs of intercepted connections that were handed to the application.",
    FlowPendingFull: "SYNs of intercepted connections dropped because `max_pending` connections were not established yet.",
    FlowSourceLimit: "SYNs of intercepted connections dropped because their source had `max_pending_per_source` such connections.",
    FlowCancelled: "Intercepted connections that ended before they were established: by a reset, an ICMP error, or the silence of the client.",
    FlowRefused: "Intercepted connections that the application has refused.",
    FlowSessions: "UDP sessions of intercepted flows opened.",
    FlowSessionsExpired: "UDP sessions of intercepted flows that ended because they were idle.",
    FlowSessionsEvicted: "UDP sessions of intercepted flows that ended because a new one took their place (`max_sessions`).",
    FlowSessionDrops: "Datagrams of intercepted flows dropped because newer ones filled the queue of their session.",
    SocketWakes: "Wake-ups of application threads that waited on a socket.",
    SocketWatchCalls: "Tasks woken and event loops called by a socket because a condition became true.",
    SocketWakesSpurious: "Wake-ups of readers that then found nothing to read.",
    SocketBacklogQueued: "Packets queued on the backlog of a socket that another thread owned.",
    SocketBacklogAckDeferred: "Backlog packets whose immediate ACK waited for the one ACK at the end of the backlog.",
    PrequeueQueued: "Packets queued for a waiting reader.",
    PrequeueWakes: "Wake-ups of readers because of a prequeue, at most one until the prequeue is empty again.",
    PrequeueLength1: "Prequeues that held 1 packet when they were processed.",
    PrequeueLength2: "Prequeues that held 2 or 3 packets when they were processed.",
    PrequeueLength4: "Prequeues that held 4 to 7 packets when they were processed.",
    PrequeueLength8: "Prequeues that held 8 to 15 packets when they were processed.",
    PrequeueLength16: "Prequeues that held 16 to 31 packets when they were processed.",
    PrequeueLength32: "Prequeues that held 32 packets or more when they were processed.",
    HostQueueBytes0: "Times TCP measured the packet memory of its connection in qdiscs and devices, and found none.",
    HostQueueBytesTo4K: "Times TCP found less than 4 KB of packet memory of a connection in qdiscs and devices.",
    HostQueueBytesTo16K: "Times TCP found 4 to 16 KB of packet memory of a connection in qdiscs and devices.",
    HostQueueBytesTo64K: "Times TCP found 16 to 64 KB of packet memory of a connection in qdiscs and devices.",
    HostQueueBytesTo256K: "Times TCP found 64 to 256 KB of packet memory of a connection in qdiscs and devices.",
    HostQueueBytesTo1M: "Times TCP found 256 KB to 1 MB of packet memory of a connection in qdiscs and devices.",
    HostQueueBytesOver1M: "Times TCP found 1 MB or more of packet memory of a connection in qdiscs and devices.",
    HostQueueDelayTo10Us: "Sampled packets that completed less than 10 us after their departure time. A transmit queue that has a queueing discipline, or whose device has no space, samples one packet at a time.",
    HostQueueDelayTo100Us: "Sampled packets that completed 10 to 100 us after their departure time.",
    HostQueueDelayTo1Ms: "Sampled packets that completed 100 us to 1 ms after their departure time.",
    HostQueueDelayTo10Ms: "Sampled packets that completed 1 to 10 ms after their departure time.",
    HostQueueDelayTo100Ms: "Sampled packets that completed 10 to 100 ms after their departure time.",
    HostQueueDelayOver100Ms: "Sampled packets that completed 100 ms or more after their departure time.",
    HostQueueDelayMicros: "Total microseconds from departure time to completion of the sampled packets.",
    TsqThrottled: "Times TCP stopped because enough packet memory of the connection was in qdiscs and devices.",
    TsqThrottledMicros: "Total microseconds that connections were stopped by TCP Small Queues.",
    TsqRecheck: "Times TCP continued because enough packets had completed by the time it announced its stop.",
    TsqRuns: "Stopped connections resumed by completions.",
    TsqDeferred: "Resumed connections left to the thread that owned the socket.",
    SkbReadAfterUnlock: "Packets freed after their socket was released (`list_after_unlock`).",
    SkbAllocs: "Packets allocated or cloned. Packet memory is counted for all hosts of a process together.",
    SkbAllocFails: "Packets and pages not allocated because packet memory was at its limit.",
    SkbFreesLocal: "Packets whose memory stayed with the context that freed them.",
    SkbFreesAdopted: "Packets of `SkbFreesLocal` that another context had allocated.",
    SkbFreesRemote: "Packets whose memory was returned to the context that had allocated them.",
    SkbReturnsDrained: "Packets whose memory other contexts returned, or that were freed without a context.",
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
    SkbDeferredBytes: "Memory of packets that are being returned to their context, in bytes without payload: a gauge.",
    TimerExpired: "Timer entries that were due, stale ones included.",
    TimerRuns: "Turns that found timer entries due; entries of one tick are due together.",
    DeviceRxPackets: "Frames received from devices; a superframe counts once.",
    DeviceRxMissed: "Frames lost because a device's receive ring was full or had no memory.",
    DeviceRxBytes: "Bytes of frames received from devices, link headers included.",
    DeviceTxPackets: "Frames handed to devices; a superframe counts once.",
    DeviceTxBytes: "Bytes of frames handed to devices, link headers included.",
    TxRequeues: "Packets kept for another attempt because the device had no space.",
    TxTimeouts: "Queues stopped by their byte limit that continued because the device had completed nothing for 5 s.",
    TxQueueChanges: "Times a connection changed to another transmit queue of its device (XPS).",
    TxQueueKept: "Times a connection kept its transmit queue because data of it was still in that queue or its device.",
    DeviceTxSuperframes: "Superframes passed unsegmented to devices (TSO), refused ones included.",
    DeviceTxRefused: "Times that a device refused a superframe for its size, for example a tap whose kernel has no contiguous memory. The superframe is segmented and sent, and the device gets no larger ones from then on.",
    GroMerged: "Segments merged into a held packet by a copy of their payload.",
    GroMergedFree: "Segments merged into a held packet without a copy; the descriptor was freed at once.",
    GroHeld: "Segments held so that others can be merged into them.",
    GroNormal: "Frames that receive offload passed on unchanged.",
    GroSuperframes: "Superframes of more than one segment delivered to IP.",
    GroSuperframeSegments: "Segments in the superframes delivered to IP.",
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
    GroHeldMicros: "Total microseconds that receive offload held packets.",
    RxListFlushes: "Lists of received packets delivered to IP.",
    RxListPackets: "Packets in the lists delivered to IP.",
    RxListMicros: "Total microseconds from the first packet of a list to its delivery.",
    RxListSize1: "Delivered lists of one packet.",
    RxListSize2To3: "Delivered lists of two or three packets.",
    RxListSize4To7: "Delivered lists of four to seven packets.",
    RxListSize8To15: "Delivered lists of eight to fifteen packets.",
    RxListSize16To31: "Delivered lists of 16 to 31 packets.",
    RxListSize32To63: "Delivered lists of 32 to 63 packets.",
    RxListSize64: "Delivered lists of 64 packets or more.",
    GsoSegments: "Segments made from superframes by software (GSO).",
    TxChecksumSoftware: "Transport checksums completed by software on transmit.",
    TxChecksumCopied: "Transport checksums of `TxChecksumSoftware` whose payload the copy from the application had summed.",
    RxChecksumSoftware: "Transport checksums verified by software on receive.",
    DstHit: "Sends that used the route entry (dst) cached by their socket.",
    DstMiss: "Times a socket looked up its route entry because none was cached or the routes had changed.",
    DstAllocs: "Route entries (dst) allocated.",
    DstGet: "References to route entries taken by packets and sockets.",
    DstPut: "References to route entries released by packets, and by sockets that drop a cached input route entry.",
    DstCheckEntry: "Times the validity of a cached route entry was read from the entry itself.",
    DstForce: "Packets that took a reference to their route entry at the end of the read section.",
    DstForceFailed: "Attempts to take a reference to a route entry whose count was already zero.",
    DstDropNoref: "Packets that left the read section without their route entry because their socket had one cached.",
    RxDstSet: "Times a connection cached the input route entry of a packet.",
    RxDstSetNullSkipped: "Packets without a route entry that arrived at a connection without a cached one.",
    RxDstInvalidated: "Cached input route entries that connections dropped because they were stale or of another device.",
    RxRouteLookups: "Received packets whose route entry was looked up.",
    RxRouteHints: "Received packets that used the route entry of the previous packet in the list.",
    RxSublists: "Sequences of packets for one connection, or with one route entry, in the lists.",
    ArpInPackets: "ARP packets received, bad ones included.",
    ArpOutPackets: "ARP packets sent.",
    ArpConflicts: "ARP packets by which another station uses or claims an address of this host (RFC 5227).",
    NeighAllocs: "Neighbors added to the table.",
    NeighDestroys: "Neighbors removed from the table.",
    NeighResFailed: "Resolutions that failed: every probe was unanswered.",
    NeighUnresolvedDiscards: "Packets dropped because too many waited for the same neighbor.",
    NeighPeriodicGcRuns: "Collections of neighbors that were not used for a time.",
    NeighForcedGcRuns: "Garbage collections forced because the table was nearly full.",
    NeighTableFulls: "Neighbors refused because the table was full.",
}

/// Rows of Linux's `Ip`, `Icmp`, `IpExt`, `Ip6` and `Icmp6` groups that are not counted, with the
/// reason.
pub const NOT_COUNTED: &[(&str, &str)] = &[
    ("IpForwarding", "the setting `ip_forward`, not a counter"),
    ("IpDefaultTTL", "the setting `ip_default_ttl`, not a counter"),
    ("IpForwDatagrams", "a host forwards no packets"),
    ("IcmpOutParmProbs", "a packet with a malformed header is dropped without a report"),
    ("IcmpOutSrcQuenchs", "deprecated (RFC 6633)"),
    ("IcmpOutRedirects", "only routers send them"),
    ("IcmpOutTimestamps", "the stack sends no such requests"),
    (
        "IcmpOutTimestampReps",
        "timestamp requests are not answered (RFC 1122 §3.2.2.8 leaves it open)",
    ),
    ("IcmpOutAddrMasks", "deprecated (RFC 6918)"),
    ("IcmpOutAddrMaskReps", "deprecated (RFC 6918)"),
    ("Ip6InTooBigErrors", "a host forwards no packets"),
    ("Ip6OutForwDatagrams", "a host forwards no packets"),
    ("Ip6InBcastOctets", "IPv6 has no broadcast"),
    ("Ip6OutBcastOctets", "IPv6 has no broadcast"),
    ("Icmp6OutPktTooBigs", "only routers send them"),
    ("Icmp6OutGroupMembQueries", "only routers send them"),
    ("Icmp6OutRouterAdvertisements", "only routers send them"),
    ("Icmp6OutRedirects", "only routers send them"),
];

impl Counter {
    /// Number of counters, and of slots in a page.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the counter of the same event for the IP version that `V4` selects. Any other
    /// counter is returned unchanged: one that both versions share, one without a counterpart, and
    /// those of ICMP message types, which `header::icmp` chooses.
    #[inline]
    #[must_use]
    pub const fn of<const V4: bool>(self) -> Self {
        if V4 {
            return self;
        }
        match self {
            Self::IpInReceives => Self::Ip6InReceives,
            Self::IpInHdrErrors => Self::Ip6InHdrErrors,
            Self::IpInAddrErrors => Self::Ip6InAddrErrors,
            Self::IpInUnknownProtos => Self::Ip6InUnknownProtos,
            Self::IpInDiscards => Self::Ip6InDiscards,
            Self::IpInDelivers => Self::Ip6InDelivers,
            Self::IpOutRequests => Self::Ip6OutRequests,
            Self::IpOutDiscards => Self::Ip6OutDiscards,
            Self::IpOutNoRoutes => Self::Ip6OutNoRoutes,
            Self::IpReasmReqds => Self::Ip6ReasmReqds,
            Self::IpReasmTimeout => Self::Ip6ReasmTimeout,
            Self::IpReasmOKs => Self::Ip6ReasmOKs,
            Self::IpReasmFails => Self::Ip6ReasmFails,
            Self::IpFragOKs => Self::Ip6FragOKs,
            Self::IpFragCreates => Self::Ip6FragCreates,
            Self::IpFragFails => Self::Ip6FragFails,
            Self::IpOutTransmits => Self::Ip6OutTransmits,
            Self::IpExtInNoRoutes => Self::Ip6InNoRoutes,
            Self::IpExtInTruncatedPkts => Self::Ip6InTruncatedPkts,
            Self::IpExtInMcastPkts => Self::Ip6InMcastPkts,
            Self::IpExtOutMcastPkts => Self::Ip6OutMcastPkts,
            Self::IpExtInOctets => Self::Ip6InOctets,
            Self::IpExtOutOctets => Self::Ip6OutOctets,
            Self::IpExtInMcastOctets => Self::Ip6InMcastOctets,
            Self::IpExtOutMcastOctets => Self::Ip6OutMcastOctets,
            Self::IpExtInNoECTPkts => Self::Ip6InNoECTPkts,
            Self::IpExtInECT1Pkts => Self::Ip6InECT1Pkts,
            Self::IpExtInECT0Pkts => Self::Ip6InECT0Pkts,
            Self::IpExtInCEPkts => Self::Ip6InCEPkts,
            Self::IcmpInMsgs => Self::Icmp6InMsgs,
            Self::IcmpInErrors => Self::Icmp6InErrors,
            Self::IcmpInCsumErrors => Self::Icmp6InCsumErrors,
            Self::IcmpOutMsgs => Self::Icmp6OutMsgs,
            Self::IcmpOutErrors => Self::Icmp6OutErrors,
            Self::IcmpOutRateLimitHost => Self::Icmp6OutRateLimitHost,
            Self::UdpInDatagrams => Self::Udp6InDatagrams,
            Self::UdpNoPorts => Self::Udp6NoPorts,
            Self::UdpInErrors => Self::Udp6InErrors,
            Self::UdpOutDatagrams => Self::Udp6OutDatagrams,
            Self::UdpRcvbufErrors => Self::Udp6RcvbufErrors,
            Self::UdpSndbufErrors => Self::Udp6SndbufErrors,
            Self::UdpInCsumErrors => Self::Udp6InCsumErrors,
            Self::UdpIgnoredMulti => Self::Udp6IgnoredMulti,
            Self::UdpMemErrors => Self::Udp6MemErrors,
            other => other,
        }
    }

    /// As [`of`](Self::of), for a version that is known when the code runs.
    #[inline]
    #[must_use]
    pub const fn of_version(self, v4: bool) -> Self {
        if v4 { self } else { self.of::<false>() }
    }
}

/// Counters with one writer and any number of readers.
///
/// The writer is the current owner of the page; a count is then a load, an addition and a store,
/// without a locked instruction. Two concurrent writers would lose counts but do no other harm.
#[derive(Debug)]
struct Slots<const N: usize> {
    /// Values, written by the page's owner and read by threads that print them. Relaxed: a counter
    /// orders nothing.
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

/// Counts of one writer for every [`Counter`].
#[derive(Debug)]
pub struct StackCounters(Slots<{ Counter::COUNT }>);

impl StackCounters {
    /// Adds `n` to `counter`.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.0.add(counter as usize, n);
    }

    /// Returns this page's share of a counter.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.0.value(counter as usize)
    }
}

/// Counts of one writer of dropped packets, by reason.
#[derive(Debug)]
pub struct DropCounters(Slots<{ DropReason::COUNT }>);

impl DropCounters {
    /// Adds `n` packets dropped for `reason`.
    #[inline]
    pub fn add(&self, reason: DropReason, n: u64) {
        self.0.add(reason.index(), n);
    }

    /// Returns this page's share of a reason.
    #[must_use]
    pub fn value(&self, reason: DropReason) -> u64 {
        self.0.value(reason.index())
    }
}

/// All counts of one context for one host. Aligned to 128 bytes, so that the writers of two pages
/// share neither a cache line nor a pair of lines that the prefetcher loads together.
#[repr(align(128))]
pub struct CounterPage {
    /// Counters of IP, ICMP, link, cores and sockets.
    pub stack: StackCounters,
    /// Counters of the TCP engine.
    pub tcp: tcp::Counters,
    /// Drops by reason.
    pub drops: DropCounters,
    /// Pages of TCP memory that the page's owner has charged or freed but not yet added to the
    /// host's account (`tcp_memory`).
    pub(crate) tcp_reserve: AtomicI64,
    /// As `tcp_reserve`, for datagrams (`udp_memory`).
    pub(crate) udp_reserve: AtomicI64,
}

impl CounterPage {
    /// Creates a page of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            stack: StackCounters(Slots::new()),
            tcp: tcp::Counters::new(),
            drops: DropCounters(Slots::new()),
            tcp_reserve: AtomicI64::new(0),
            udp_reserve: AtomicI64::new(0),
        }
    }
}

impl Default for CounterPage {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CounterPage {
    /// Prints the counters that are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let snapshot = Snapshot::sum([self]);
        f.debug_map().entries(snapshot.iter().filter(|&(_, value)| value != 0)).finish()
    }
}
