//! Reasons for dropping a packet: one table yields the enum, its Linux-style names and its texts.
//!
//! Above: every step that may drop a packet. Linux: include/net/dropreason-core.h.
//!
//! Every packet that does not reach its destination is dropped with one of these reasons, counted
//! once by the code that drops it. There is no "not specified": a step must state why it drops.
//!
//! Not here: the counters themselves (crate stack keeps `DropReason::COUNT` per core).

use core::fmt;

use crate::packet::Packet;

/// Expands the table below into [`DropReason`], its names and its texts.
macro_rules! drop_reasons {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// Reason why a packet was dropped.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $(#[doc = $doc] $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their index.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// Number of reasons: the length of a table indexed by [`DropReason::index`].
            pub const COUNT: usize = Self::ALL.len();
            const NAMES: [&'static str; Self::COUNT] = [$($name,)*];
            const DOCS: [&'static str; Self::COUNT] = [$($doc,)*];
        }
    };
}

drop_reasons! {
    PacketTooShort "PKT_TOO_SMALL" "The packet is shorter than its fixed header."
    PacketTooBig "PKT_TOO_BIG" "The packet is larger than the path allows and may not be fragmented."
    NoMemory "NOMEM" "The packet pool is at its limit."
    QueueLimit "QUEUE_LIMIT" "A queue between two cores or layers is full."
    CpuBacklog "CPU_BACKLOG" "The backlog of the core that the packet was steered to is full, or its flow has more than half of it."
    StackDown "STACK_DOWN" "The stack is shutting down."
    EthernetType "UNHANDLED_PROTO" "No protocol is registered for the Ethernet type."
    OtherHost "OTHERHOST" "The frame was addressed to another host."
    ArpMalformed "ARP_MALFORMED" "An ARP message with lengths or types that are not Ethernet and IPv4."
    ArpSourceInvalid "ARP_INVALID_SOURCE" "The sender of an ARP message claims an address of this host, or one that no host may have."
    ArpIgnored "ARP_IGNORED" "The settings forbid an answer to this ARP request (`arp_ignore`), or the use of this announcement (`drop_gratuitous_arp`)."
    NdpHopLimit "IPV6_NDISC_HOP_LIMIT" "A neighbor discovery message with a hop limit below 255: it has crossed a router."
    NdpCode "IPV6_NDISC_BAD_CODE" "A neighbor discovery message with a code other than 0."
    NdpOptions "IPV6_NDISC_BAD_OPTIONS" "A neighbor discovery message that is too short, or has a malformed option."
    NdpInvalid "IPV6_NDISC_INVALID" "A neighbor discovery message whose addresses are not allowed in its type, or claim an address of this host."
    NdpFragment "IPV6_NDISC_FRAG" "A neighbor discovery message with a Fragment header."
    NdpOtherHost "IPV6_NDISC_NS_OTHERHOST" "A neighbor solicitation for an address that this host does not answer for."
    NdpReflected "IPV6_NDISC_REFLECTED" "An address probe of this host that a loop in the link has sent back (RFC 7527)."
    NdpIgnored "IPV6_NDISC_IGNORED" "A router advertisement or redirect that the settings forbid to use."
    NeighborFailed "NEIGH_FAILED" "The neighbor did not answer: its link address is unknown."
    NeighborQueueFull "NEIGH_QUEUEFULL" "Too many packets already wait for this neighbor's link address."
    IpVersion "IP_VERSION" "The version nibble does not match the Ethernet type."
    IpHeaderLength "IP_INHDR" "The IP header length is out of range."
    IpLength "IP_LENGTH" "The IP total length is shorter than its header or longer than the packet."
    IpCsum "IP_CSUM" "The IPv4 header checksum is wrong."
    IpOptions "IP_OPTIONS" "An IPv4 option or IPv6 extension header is malformed or not accepted."
    IpSourceInvalid "IP_INVALID_SOURCE" "The source address may not be a source."
    IpDestinationInvalid "IP_INVALID_DEST" "The destination address may not be a destination here."
    IpRpFilter "IP_RPFILTER" "The route back to the source does not use the device that received the packet (`rp_filter`)."
    IpNoProtocol "IP_NOPROTO" "No handler for the transport protocol."
    FragmentDuplicate "DUP_FRAG" "All bytes of the fragment had arrived before."
    FragmentTimeout "FRAG_REASM_TIMEOUT" "The datagram of the fragment was not complete in time."
    FragmentTooFar "FRAG_TOO_FAR" "Too many other fragments of the same source separate the fragment from the next one of its datagram."
    FragmentOverlap "FRAG_OVERLAP" "A fragment overlaps another one of its datagram, which ends."
    FragmentMalformed "FRAG_MALFORMED" "A fragment is empty or contradicts the end of its datagram, which ends; or an IPv6 fragment lacks headers or has a length that is no multiple of 8."
    FragmentTooBig "FRAG_TOO_BIG" "A fragment makes its datagram longer than a packet can be."
    FragmentMemory "FRAG_MEMORY" "The memory of fragments was used up, and the source of this one held most of it."
    FragmentEcn "FRAG_ECN" "Some fragments of the datagram were ECN-capable and others were not."
    IpTtl "IP_TTL" "The hop limit reached zero."
    IpNoRoute "IP_OUTNOROUTES" "No route to the destination."
    IpForwardingOff "IP_FORWARDING_OFF" "The destination is not local and this stack does not forward."
    IcmpCsum "ICMP_CSUM" "The ICMP checksum is wrong."
    IcmpMalformed "ICMP_MALFORMED" "An ICMP message is shorter than the fields of its type."
    IcmpUnknownType "ICMP_UNKNOWN_TYPE" "An ICMP type or code that this stack does not handle."
    IcmpEchoIgnored "ICMP_ECHO_IGNORED" "The settings forbid an answer to this echo request."
    IcmpNoSocket "ICMP_NO_SOCKET" "An ICMP error or reply that belongs to no socket."
    IcmpRateLimit "ICMP_RATE_LIMIT" "An answer that the ICMP rate limit suppressed."
    IcmpRedirectIgnored "ICMP_REDIRECT_IGNORED" "A redirect that the settings forbid to use."
    IgmpMalformed "IGMP_MALFORMED" "An IGMP message that is too short or has a wrong checksum."
    IgmpIgnored "IGMP_IGNORED" "An IGMP message that needs no answer: a report of another host, or a query from beyond the link."
    UdpHeader "UDP_HEADER" "The length field of a UDP header is impossible."
    UdpCsum "UDP_CSUM" "The UDP checksum is wrong."
    UdpNoSocket "UDP_NO_SOCKET" "No socket is bound to the UDP destination."
    TcpHeader "TCP_HEADER" "The TCP data offset is out of range or a port is zero."
    TcpOptions "TCP_OPTIONS" "A TCP option is malformed."
    TcpCsum "TCP_CSUM" "The TCP checksum is wrong."
    TcpCsumUnfinished "TCP_CSUM_UNFINISHED" "The TCP checksum covers the pseudo-header alone: its sender relied on a device that does not complete it."
    TcpNoSocket "NO_SOCKET" "No connection and no listener matches the segment."
    TcpFlags "TCP_FLAGS" "A combination of TCP flags that is not valid in this state."
    TcpDeferAccept "TCP_DEFER_ACCEPT" "An ACK without data for a listener that waits for data (`TCP_DEFER_ACCEPT`)."
    TcpOldAck "TCP_OLD_ACK" "The ACK is older than SND.UNA: a duplicate without new information."
    TcpTooOldAck "TCP_TOO_OLD_ACK" "The ACK is older than the largest window this side ever offered (RFC 5961)."
    TcpAckUnsentData "TCP_ACK_UNSENT_DATA" "The ACK covers data that was never sent."
    TcpOldSequence "TCP_OLD_SEQUENCE" "All sequence numbers of the segment were already received."
    TcpOverWindow "TCP_OVERWINDOW" "The segment lies beyond the receive window."
    TcpZeroWindow "TCP_ZEROWINDOW" "Data arrived while the receive window was closed."
    TcpInvalidSequence "TCP_INVALID_SEQUENCE" "The segment does not touch the receive window."
    TcpPaws "TCP_RFC7323_PAWS" "The timestamp is older than the last one accepted (RFC 7323)."
    TcpTsEcr "TCP_RFC7323_TSECR" "The timestamp echo is not one that this connection can have sent (RFC 7323)."
    TcpInvalidSyn "TCP_INVALID_SYN" "A SYN inside an existing connection."
    TcpInvalidAck "TCP_INVALID_ACK_SEQUENCE" "An ACK that a SYN-SENT or SYN-RECEIVED connection cannot accept."
    TcpReset "TCP_RESET" "A valid RST: it was processed and carries no data."
    TcpResetInvalid "TCP_RESET_INVALID" "A RST that does not match RCV.NXT (RFC 5961)."
    TcpClosed "TCP_CLOSE" "The connection is closed."
    TcpAbortOnData "TCP_ABORT_ON_DATA" "Data arrived after the application closed the socket."
    TcpFin "TCP_FIN" "A FIN without data: it was processed."
    TcpOfoQueueFull "TCP_OFOQUEUE_FULL" "The out-of-order queue is at its limit."
    TcpOfoDuplicate "TCP_OFOMERGE" "The segment is already in the out-of-order queue."
    TcpOfoPrune "TCP_OFO_QUEUE_PRUNE" "Out-of-order data was discarded to make room."
    TcpRcvQueueFull "TCP_RCVQUEUE_FULL" "The receive queue is at its limit."
    TcpMd5NotSupported "TCP_MD5UNEXPECTED" "The segment carries an MD5 or AO signature for which this stack has no key."
    TcpMinTtl "TCP_MINTTL" "The hop limit is below what the socket accepts."
    TcpPureAck "TCP_PURE_ACK" "An ACK without data: it was processed."
    TcpTimeWait "TCP_TIME_WAIT" "The segment belongs to a connection in TIME-WAIT and is not a valid reopening."
    ListenOverflow "LISTEN_OVERFLOW" "The accept queue of the listener is full."
    SynQueueFull "SYN_QUEUE_FULL" "The SYN queue of the listener is full."
    SourceLimit "SOURCE_LIMIT" "The source address has reached the listener's limit of connections per source address."
    FlowPendingFull "FLOW_PENDING_FULL" "The device has `max_pending` intercepted connections that are not established yet."
    FlowSourceLimit "FLOW_SOURCE_LIMIT" "The source address has `max_pending_per_source` intercepted connections that are not established yet."
    FlowQueueFull "FLOW_QUEUE_FULL" "Newer packets of intercepted flows fill the queue: that of the UDP session, or that of echo requests and other protocols."
    FlowIgnored "FLOW_IGNORED" "The application did not answer the echo request, or packet of another protocol, of an intercepted flow."
    ConnectionLimit "CONNECTION_LIMIT" "The host has as many connections as `net.quietline.tcp_max_connections` allows."
    SocketBacklog "SOCKET_BACKLOG" "The backlog of an owned socket is full."
    SocketRcvBuff "SOCKET_RCVBUFF" "The receive buffer of the socket is full."
    SocketClosed "SOCKET_CLOSE" "The socket was closed while the packet was queued on it."
    DeviceTxFull "FULL_RING" "The device's transmit queue is full."
    DeviceDown "DEV_READY" "The device is not up."
    DeviceTxError "DEV_TX_ERROR" "The device refused the frame."
    DeviceRxTruncated "DEV_RX_TRUNCATED" "The frame was larger than the buffer offered to the device."
    DeviceRxError "DEV_RX_ERROR" "The kernel failed to deliver a frame that had arrived."
    VnetHeader "DEV_HDR" "The offload header in front of the frame contradicts the frame."
    QdiscDrop "QDISC_DROP" "The queueing discipline dropped this packet."
    QueuePurge "QUEUE_PURGE" "The queueing discipline that held the packet was replaced."
    WireLoss "WIRE_LOSS" "The simulated wire lost the packet."
    WireQueueFull "WIRE_QUEUE_FULL" "The queue in front of the simulated wire is full."
}

impl DropReason {
    /// Returns the name of the counter, in the style of Linux's `SKB_DROP_REASON_` list.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// Returns a one-sentence description.
    #[must_use]
    pub const fn doc(self) -> &'static str {
        Self::DOCS[self.index()]
    }

    /// Returns the position in [`DropReason::ALL`], below [`DropReason::COUNT`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Decision of a step about the packet it was given.
#[must_use]
#[derive(Debug)]
pub enum Verdict<T = Packet> {
    /// The packet goes on to the next step.
    Pass(T),
    /// The packet was queued, answered or merged, and needs no further step.
    Consumed,
    /// The packet goes no further. The caller that receives this verdict counts the reason and
    /// frees the packet.
    Drop(DropReason, Packet),
}

impl<T> Verdict<T> {
    /// Returns the reason if the verdict is a drop.
    #[must_use]
    pub const fn drop_reason(&self) -> Option<DropReason> {
        match self {
            Self::Drop(reason, _) => Some(*reason),
            Self::Pass(_) | Self::Consumed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_reasons_is_consistent() {
        for (index, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert!(reason.doc().ends_with('.'), "{reason}");
            let upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            assert!(reason.name().chars().all(upper), "{reason}");
        }
        let mut names: Vec<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::COUNT);
        assert_eq!(DropReason::TcpCsum.name(), "TCP_CSUM");
    }
}
