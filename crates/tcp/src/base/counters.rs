//! Counters of TCP, under the names that `nstat` prints. The engine counts most events, crate
//! `stack` the others.
//!
//! Linux: include/uapi/linux/snmp.h, net/ipv4/proc.c, RFC 4022 for the `Tcp*` group. A variant's
//! name *is* the printed name, so a search for either finds both.
//!
//! One table defines the enum, the descriptions and the page, which has one slot for each counter.
//! A page has one writer at a time and any number of readers; the value of a counter is the
//! wrapping sum over all pages. Counters of Linux that neither crate increments are in
//! [`NOT_COUNTED`], with the reason; docs/counters.md shows both tables.
//!
//! Not here: counters of IP and of devices, drop reasons, printing (crate stack).

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Builds an enum `Counter` and its tables from one row of text per counter. Crate `stack` defines
/// its own counters with this macro, too.
#[macro_export]
macro_rules! counters {
    ($(#[$what:meta])* $($name:ident: $doc:literal,)*) => {
        $(#[$what])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Counter {
            $(#[doc = $doc] $name,)*
        }

        impl Counter {
            /// Every counter in the order of its table: those of Linux, then those that Linux
            /// lacks.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the name that `nstat` prints.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Returns the description of the counter.
            #[must_use]
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$name => $doc,)* }
            }
        }
    };
}

counters! {
    /// An event of TCP; the variant's name is the name that `nstat` prints.
    TcpActiveOpens: "Connections opened by this host: CLOSE to SYN_SENT.",
    TcpPassiveOpens: "Connections opened by peers, counted when the handshake completes or, with Fast Open, at the SYN.",
    TcpAttemptFails: "Handshakes that failed: SYN_SENT or SYN_RECV to CLOSE.",
    TcpEstabResets: "Connections that went from ESTABLISHED or CLOSE_WAIT directly to CLOSE, for example by a reset or a timeout.",
    TcpCurrEstab: "Connections that are in ESTABLISHED or CLOSE_WAIT: a gauge.",
    TcpInSegs: "Segments received, including malformed ones.",
    TcpOutSegs: "Segments sent, except retransmissions; a superframe counts as all its segments.",
    TcpRetransSegs: "Segments retransmitted.",
    TcpInErrs: "Segments received with a bad header or checksum.",
    TcpOutRsts: "Segments sent with RST.",
    TcpInCsumErrors: "Segments received with a bad checksum.",

    TcpExtSyncookiesSent: "SYN cookies sent.",
    TcpExtSyncookiesRecv: "Acknowledgments that carried a valid SYN cookie.",
    TcpExtSyncookiesFailed: "Acknowledgments that carried no valid SYN cookie.",
    TcpExtEmbryonicRsts: "Connections in SYN_RECV that a received or sent reset ended.",
    TcpExtPruneCalled: "Receive queues pruned because they exceeded their buffer or memory was scarce.",
    TcpExtRcvPruned: "Prunings after which the receive queues still held too much memory.",
    TcpExtOfoPruned: "Times that out-of-order data was dropped because the socket exceeded its buffer or memory was scarce.",
    TcpExtOutOfWindowIcmps: "ICMP errors dropped because their sequence number was outside the window.",
    TcpExtLockDroppedIcmps: "ICMP errors dropped because the socket was busy.",
    TcpExtTW: "Connections whose TIME_WAIT ended by its timer.",
    TcpExtTWRecycled: "TIME_WAIT connections replaced by an active open.",
    TcpExtTWKilled: "TIME_WAIT connections ended by a reset.",
    TcpExtPAWSActive: "Acknowledgments of our SYN refused because of their timestamps.",
    TcpExtPAWSEstab: "Segments refused because of an old timestamp.",
    TcpExtBeyondWindow: "Segments beyond the window: refused, or trimmed to the window if they began inside.",
    TcpExtTSEcrRejected: "Handshakes whose last segment echoed a timestamp that no SYN-ACK had carried.",
    TcpExtPAWSOldAck: "Old pure acknowledgments ignored because of their timestamp.",
    TcpExtPAWSTimewait: "Segments to TIME_WAIT refused because of an old timestamp.",
    TcpExtDelayedACKs: "Acknowledgments sent by the delayed-ACK timer.",
    TcpExtDelayedACKLocked: "Delayed-ACK timers deferred because the socket was busy.",
    TcpExtDelayedACKLost: "Segments received a second time, which are acknowledged at once.",
    TcpExtTCPPrequeued: "Times a reader processed the packets of its socket's prequeue.",
    TcpExtTCPPrequeueDropped: "Prequeued packets processed in softirq because the prequeue was full; no packet is lost.",
    TcpExtTCPDirectCopyFromBacklog: "Bytes copied from the backlog directly to a reader, without the receive queue.",
    TcpExtTCPDirectCopyFromPrequeue: "Bytes copied from the prequeue directly to a reader, without the receive queue.",
    TcpExtTCPSchedulerFailed: "Times the delayed-ACK timer found packets on a prequeue, because their reader had not run.",
    TcpExtListenOverflows: "Handshakes dropped because the accept queue was full.",
    TcpExtListenDrops: "SYNs and handshakes dropped by a listener for any reason.",
    TcpExtTCPHPHits: "Data segments processed by the fast path, except those that it copied whole to a waiting reader.",
    TcpExtTCPHPHitsToUser: "Data segments that the fast path copied whole to a waiting reader.",
    TcpExtTCPPureAcks: "Acknowledgments without data that took the slow path, or took the fast path and acknowledged no new data.",
    TcpExtTCPHPAcks: "Acknowledgments of new data processed by the fast path, with data or without.",
    TcpExtTCPRenoRecovery: "Recoveries started by duplicate acknowledgments without SACK.",
    TcpExtTCPSackRecovery: "Recoveries started by SACK information.",
    TcpExtTCPSACKReneging: "Peers that discarded data that they had reported by SACK.",
    TcpExtTCPSACKReorder: "Reorderings detected by SACK.",
    TcpExtTCPRenoReorder: "Reorderings detected by duplicate acknowledgments.",
    TcpExtTCPTSReorder: "Reorderings detected by the timestamp that a partial acknowledgment echoed.",
    TcpExtTCPFullUndo: "Fast recoveries undone because a timestamp showed that the original of a retransmitted segment had arrived.",
    TcpExtTCPPartialUndo: "Window reductions undone on a partial acknowledgment.",
    TcpExtTCPDSACKUndo: "Window reductions undone by duplicate SACK.",
    TcpExtTCPLossUndo: "Window reductions undone after a spurious timeout.",
    TcpExtTCPLostRetransmit: "Retransmissions detected as lost.",
    TcpExtTCPRenoFailures: "Timeouts of connections without SACK, after too few duplicate acknowledgments for recovery.",
    TcpExtTCPSackFailures: "Timeouts after SACK had reported out-of-order data, too little for recovery.",
    TcpExtTCPLossFailures: "Timeouts after progress in the recovery from an earlier timeout.",
    TcpExtTCPFastRetrans: "Segments retransmitted before a timeout.",
    TcpExtTCPSlowStartRetrans: "Segments retransmitted in slow start after a timeout, except the oldest one.",
    TcpExtTCPTimeouts: "Retransmission timeouts.",
    TcpExtTCPLossProbes: "Tail loss probes sent.",
    TcpExtTCPLossProbeRecovery: "Losses repaired by a tail loss probe.",
    TcpExtTCPRenoRecoveryFail: "Timeouts that ended a recovery without SACK.",
    TcpExtTCPSackRecoveryFail: "Timeouts that ended a recovery with SACK.",
    TcpExtTCPRcvCollapsed: "Received packets copied together to save memory.",
    TcpExtTCPBacklogCoalesce: "Packets merged into the tail of a busy socket's backlog.",
    TcpExtTCPDSACKOldSent: "Duplicate SACKs sent for data below the window.",
    TcpExtTCPDSACKOfoSent: "Duplicate SACKs sent for data in the out-of-order queue.",
    TcpExtTCPDSACKRecv: "Duplicate SACKs received for data below SND.UNA.",
    TcpExtTCPDSACKOfoRecv: "Duplicate SACKs received for data above SND.UNA.",
    TcpExtTCPAbortOnData: "Connections reset because data arrived after the application had stopped reading, or because their linger time was zero.",
    TcpExtTCPAbortOnClose: "Connections reset because unread data was left at close.",
    TcpExtTCPAbortOnMemory: "Orphaned connections reset because there were too many of them or memory was exhausted.",
    TcpExtTCPAbortOnTimeout: "Connections ended because a timer reached its limit of retries or of time.",
    TcpExtTCPAbortOnLinger: "Orphaned connections reset in FIN_WAIT2 at once, because `TCP_LINGER2` is negative.",
    TcpExtTCPAbortFailed: "Resets that could not be sent for lack of memory.",
    TcpExtTCPMemoryPressures: "Number of times that memory pressure began.",
    TcpExtTCPMemoryPressuresChrono: "Milliseconds under memory pressure.",
    TcpExtTCPSACKDiscard: "SACK blocks ignored as invalid.",
    TcpExtTCPDSACKIgnoredOld: "Duplicate SACKs ignored as too old or invalid.",
    TcpExtTCPDSACKIgnoredNoUndo: "Duplicate SACKs that could not contribute to an undo.",
    TcpExtTCPSpuriousRTOs: "Timeouts detected as spurious by F-RTO.",
    TcpExtTCPSackShiftFallback: "Queued packets split at the edge of a SACK block.",
    TcpExtTCPBacklogDrop: "Packets dropped because a busy socket's backlog was full.",
    TcpExtTCPDeferAcceptDrop: "Bare acknowledgments dropped because the listener waits for data (`TCP_DEFER_ACCEPT`).",
    TcpExtIPReversePathFilter: "Packets dropped because the route back to their source fails the check of `rp_filter`.",
    TcpExtTCPTimeWaitOverflow: "TIME_WAIT connections not kept because their limit was reached.",
    TcpExtTCPReqQFullDoCookies: "SYN queue overflows answered with SYN cookies.",
    TcpExtTCPReqQFullDrop: "SYNs dropped because the SYN queue was full and cookies are off.",
    TcpExtTCPRetransFail: "Retransmissions that could not be sent.",
    TcpExtTCPRcvCoalesce: "Received packets merged into the tail of the receive queue.",
    TcpExtTCPOFOQueue: "Packets with data that arrived out of order.",
    TcpExtTCPOFODrop: "Out-of-order segments dropped because the queue was full.",
    TcpExtTCPOFOMerge: "Out-of-order packets that held no new data.",
    TcpExtTCPChallengeACK: "Challenge acknowledgments sent (RFC 5961).",
    TcpExtTCPSYNChallenge: "SYNs refused in a synchronized state, which a challenge acknowledgment answers.",
    TcpExtTCPFastOpenActive: "Fast Open connections whose SYN's data was acknowledged.",
    TcpExtTCPFastOpenActiveFail: "Fast Open attempts whose SYN's data was not acknowledged.",
    TcpExtTCPFastOpenPassive: "Fast Open connections accepted.",
    TcpExtTCPFastOpenPassiveFail: "Fast Open attempts refused.",
    TcpExtTCPFastOpenListenOverflow: "Fast Open attempts beyond the listener's limit.",
    TcpExtTCPFastOpenCookieReqd: "Fast Open cookies requested.",
    TcpExtTCPFastOpenBlackhole: "Number of times that Fast Open was switched off because the path seemed to block it.",
    TcpExtTCPSpuriousRtxHostQueues: "Retransmissions deferred because an earlier copy was still queued in this host.",
    TcpExtBusyPollRxPackets: "Packets received by an application thread that polled its device.",
    TcpExtTCPAutoCorking: "Sends deferred because packets of the connection were still below TCP.",
    TcpExtTCPFromZeroWindowAdv: "Announcements of an open window after a closed one.",
    TcpExtTCPToZeroWindowAdv: "Announcements of a closed window after an open one.",
    TcpExtTCPWantZeroWindowAdv: "Closed windows not announced because the window may not shrink.",
    TcpExtTCPSynRetrans: "SYNs and SYN-ACKs retransmitted.",
    TcpExtTCPOrigDataSent: "Segments with data sent for the first time.",
    TcpExtTCPHystartTrainDetect: "Slow starts ended by a train of acknowledgments as long as half the path, or the whole path with pacing.",
    TcpExtTCPHystartTrainCwnd: "Sum of the windows, in segments, when a train of acknowledgments ended slow start.",
    TcpExtTCPHystartDelayDetect: "Slow starts ended by a rise of the round-trip time.",
    TcpExtTCPHystartDelayCwnd: "Sum of the windows, in segments, when a rise of the round-trip time ended slow start.",
    TcpExtTCPACKSkippedSynRecv: "Acknowledgments suppressed in SYN_RECV by their rate limit.",
    TcpExtTCPACKSkippedPAWS: "Acknowledgments, suppressed by their rate limit, of segments with an old timestamp.",
    TcpExtTCPACKSkippedSeq: "Acknowledgments, suppressed by their rate limit, of segments outside the window.",
    TcpExtTCPACKSkippedFinWait2: "Acknowledgments suppressed in FIN_WAIT2 by their rate limit.",
    TcpExtTCPACKSkippedTimeWait: "Acknowledgments suppressed in TIME_WAIT by their rate limit.",
    TcpExtTCPACKSkippedChallenge: "Challenge acknowledgments suppressed by their rate limit.",
    TcpExtTCPWinProbe: "Zero-window probes sent.",
    TcpExtTCPKeepAlive: "Keepalive probes sent.",
    TcpExtTCPMTUPFail: "Path MTU probes lost.",
    TcpExtTCPMTUPSuccess: "Path MTU probes delivered.",
    TcpExtTCPDelivered: "Segments that peers reported as received, by acknowledgment or SACK.",
    TcpExtTCPDeliveredCE: "Delivered segments whose acknowledgment echoed a congestion mark.",
    TcpExtTCPAckCompressed: "Acknowledgments of out-of-order segments that a later acknowledgment replaced.",
    TcpExtTCPZeroWindowDrop: "Segments dropped because our window was closed.",
    TcpExtTCPRcvQDrop: "In-order segments dropped because the receive queue had no space.",
    TcpExtTCPWqueueTooBig: "Splits of queued packets refused because the send queue was too large.",
    TcpExtTCPFastOpenPassiveAltKey: "Fast Open cookies accepted by the backup key.",
    TcpExtTCPDSACKRecvSegs: "Segments reported by duplicate SACKs.",
    TcpExtTCPDSACKIgnoredDubious: "Duplicate SACKs ignored as implausible.",

    IdleTimeouts: "Connections reset because they made no progress for the idle timeout; `TcpExtTCPAbortOnTimeout` counts them, too.",
    SkbTxCacheHit: "Writes into a packet that the connection had cached.",
    SkbTxCacheMiss: "Writes that found no cached packet, and allocated one.",
    SkbTxCacheRejectCloned: "Acknowledged packets not cached because their clone was still below TCP.",
    SkbTxCacheRejectFull: "Acknowledged packets not cached because the connection already cached another packet.",
    SkbRxCacheHandoff: "Read packets that were cached, and then freed by the core of the next segment.",
    SkbRxCacheFull: "Read packets not cached because the connection already cached another packet.",
    SkbRxCacheGated: "Read packets not cached because packets may change core (RPS, RFS).",
    SkbSocketCacheBytes: "Bytes of packet memory cached by connections: a gauge.",
}

/// Rows of Linux's `Tcp` and `TcpExt` that are not counted, and why.
pub const NOT_COUNTED: &[(&str, &str)] = &[
    ("TcpRtoAlgorithm", "no counter but a constant: RFC 6298 is the only algorithm"),
    ("TcpRtoMin", "no counter but the setting `tcp_rto_min_us`"),
    ("TcpRtoMax", "no counter but the setting `tcp_rto_max_ms`"),
    ("TcpMaxConn", "no counter but a constant: there is no limit"),
    (
        "TcpExtArpFilter",
        "no `arp_filter`: `arp_ignore` decides which devices answer ARP for an address",
    ),
    ("TcpExtTCPMD5NotFound", "no TCP-MD5 (RFC 2385)"),
    ("TcpExtTCPMD5Unexpected", "no TCP-MD5: the option is skipped as any unknown one"),
    ("TcpExtTCPMD5Failure", "no TCP-MD5"),
    ("TcpExtTCPSackShifted", "SACK marks queue entries in place; no data moves between them"),
    ("TcpExtTCPSackMerged", "SACK marks queue entries in place; none are merged"),
    ("TcpExtPFMemallocDrop", "no memory reserves for swapping over the network"),
    ("TcpExtTCPMinTTLDrop", "`IP_MINTTL` is not supported"),
    (
        "TcpExtTcpTimeoutRehash",
        "a connection keeps its hash, and thereby its next hop and flow label",
    ),
    (
        "TcpExtTcpDuplicateDataRehash",
        "a connection keeps its hash, and thereby its next hop and flow label",
    ),
    (
        "TcpExtTCPMigrateReqSuccess",
        "`tcp_migrate_req` is not supported: a closing listener resets its handshakes",
    ),
    (
        "TcpExtTCPMigrateReqFailure",
        "`tcp_migrate_req` is not supported: a closing listener resets its handshakes",
    ),
    ("TcpExtTCPPLBRehash", "no protective load balancing"),
    ("TcpExtTCPAORequired", "no TCP-AO (RFC 5925)"),
    ("TcpExtTCPAOBad", "no TCP-AO"),
    ("TcpExtTCPAOKeyNotFound", "no TCP-AO"),
    ("TcpExtTCPAOGood", "no TCP-AO"),
    ("TcpExtTCPAODroppedIcmps", "no TCP-AO"),
];

impl Counter {
    /// Number of counters, and of slots in a page.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether the counter is a gauge, a level that rises and falls. All other counters only grow.
    #[must_use]
    pub const fn is_gauge(self) -> bool {
        matches!(self, Self::TcpCurrEstab | Self::SkbSocketCacheBytes)
    }
}

/// One writer's page of counters.
///
/// One thread at a time owns a page and writes it, so counting is a load, an addition and a store
/// without a locked instruction. Two concurrent writers would only lose counts.
pub struct Counters {
    /// Values, written by the page's owner and read by any thread. Relaxed: no other memory access
    /// depends on the order of a counter's updates.
    values: [AtomicU64; Counter::COUNT],
}

impl Counters {
    /// Returns a page in which every counter is zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { values: [const { AtomicU64::new(0) }; Counter::COUNT] }
    }

    /// Adds `n` to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        let slot = &self.values[counter as usize];
        slot.store(slot.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Adds one to a counter.
    #[inline]
    pub fn inc(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Lowers a gauge by `n`.
    ///
    /// The value of one page may wrap below zero, because a connection established on one page may
    /// end on another. The wrapping sum over all pages is still exact.
    #[inline]
    pub fn sub(&self, counter: Counter, n: u64) {
        debug_assert!(counter.is_gauge(), "{} only grows", counter.name());
        self.add(counter, n.wrapping_neg());
    }

    /// Returns the value of a counter in this page alone.
    #[must_use]
    pub fn value(&self, counter: Counter) -> u64 {
        self.values[counter as usize].load(Ordering::Relaxed)
    }

    /// Adds this page to a sum over pages, indexed as [`Counter::ALL`].
    pub fn add_to(&self, sums: &mut [u64; Counter::COUNT]) {
        for (sum, slot) in sums.iter_mut().zip(&self.values) {
            *sum = sum.wrapping_add(slot.load(Ordering::Relaxed));
        }
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Counters {
    /// Prints the counters that are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = Counter::ALL.iter().map(|&counter| (counter.name(), self.value(counter)));
        f.debug_map().entries(counted.filter(|&(_, value)| value != 0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;

    use super::{Counter, Counters};

    #[test]
    fn all_counters_are_in_the_order_of_their_slots() {
        for (index, &counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(counter as usize, index);
        }
    }

    #[test]
    fn counter_names_are_unique_and_every_counter_has_a_description() {
        let names: BTreeSet<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::COUNT);
        for counter in Counter::ALL {
            // Counters without a counterpart in Linux.
            let ours = *counter == Counter::IdleTimeouts || counter.name().starts_with("Skb");
            assert!(ours || counter.name().starts_with("Tcp"));
            assert!(
                counter.doc().ends_with('.'),
                "the description of {} lacks a period",
                counter.name()
            );
        }
    }

    /// The kernel may lack up to nine names: an older kernel lacks new ones, a newer kernel those
    /// of the prequeue. On a kernel without the file the test passes.
    #[test]
    fn nearly_all_counter_names_are_known_to_the_running_kernel() {
        let Ok(text) = std::fs::read_to_string("/proc/net/netstat") else { return };
        let Some(header) = text.lines().find(|line| line.starts_with("TcpExt:")) else { return };
        let known: BTreeSet<_> =
            header.split_whitespace().skip(1).map(|name| format!("TcpExt{name}")).collect();
        let ours = Counter::ALL.iter().filter(|counter| counter.name().starts_with("TcpExt"));
        let unknown: BTreeSet<_> =
            ours.map(|counter| counter.name()).filter(|&name| !known.contains(name)).collect();
        assert!(unknown.len() < 10, "the kernel lacks these counters: {unknown:?}");
    }

    #[test]
    fn a_gauge_is_the_sum_over_all_pages() {
        let (opened, closed) = (Counters::new(), Counters::new());
        opened.add(Counter::TcpCurrEstab, 5);
        closed.sub(Counter::TcpCurrEstab, 3);
        closed.inc(Counter::TcpInSegs);
        let mut sums = [0; Counter::COUNT];
        opened.add_to(&mut sums);
        closed.add_to(&mut sums);
        assert_eq!(sums[Counter::TcpCurrEstab as usize], 2);
        assert_eq!(sums[Counter::TcpInSegs as usize], 1);
        assert_eq!(closed.value(Counter::TcpInSegs), 1);
    }

    #[test]
    fn debug_shows_the_counters_that_are_not_zero() {
        let page = Counters::new();
        page.inc(Counter::TcpExtTCPTimeouts);
        assert_eq!(format!("{page:?}"), r#"{"TcpExtTCPTimeouts": 1}"#);
    }
}
