//! Counters compared with those of Linux: every row of its tables is counted and tested, or
//! docs/counters.md explains why not.
//!
//! `docs/counters.md` shows the two tables. After a change of them: `UPDATE_DOCS=1 cargo test -p
//! quietline-sim --test counters`.

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fmt::Write as _,
        fs,
        path::{Path, PathBuf},
    };

    /// Rows of /proc/net/snmp, /proc/net/netstat and /proc/net/snmp6 of Linux 6.18, by group.
    const LINUX: [(&str, &str); 9] = [
        (
            "Ip",
            "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards InDelivers
            OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates
            OutTransmits",
        ),
        (
            "Icmp",
            "InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs InRedirects InEchos InEchoReps
            InTimestamps InTimestampReps InAddrMasks InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost
            OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos OutEchoReps OutTimestamps
            OutTimestampReps OutAddrMasks OutAddrMaskReps",
        ),
        (
            "Tcp",
            "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs
            RetransSegs InErrs OutRsts InCsumErrors",
        ),
        (
            "Udp",
            "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors",
        ),
        (
            "TcpExt",
            "SyncookiesSent SyncookiesRecv SyncookiesFailed EmbryonicRsts PruneCalled RcvPruned OfoPruned OutOfWindowIcmps
            LockDroppedIcmps ArpFilter TW TWRecycled TWKilled PAWSActive PAWSEstab BeyondWindow TSEcrRejected PAWSOldAck
            PAWSTimewait DelayedACKs DelayedACKLocked DelayedACKLost ListenOverflows ListenDrops TCPHPHits TCPPureAcks
            TCPHPAcks TCPRenoRecovery TCPSackRecovery TCPSACKReneging TCPSACKReorder TCPRenoReorder TCPTSReorder
            TCPFullUndo TCPPartialUndo TCPDSACKUndo TCPLossUndo TCPLostRetransmit TCPRenoFailures TCPSackFailures
            TCPLossFailures TCPFastRetrans TCPSlowStartRetrans TCPTimeouts TCPLossProbes TCPLossProbeRecovery
            TCPRenoRecoveryFail TCPSackRecoveryFail TCPRcvCollapsed TCPBacklogCoalesce TCPDSACKOldSent TCPDSACKOfoSent
            TCPDSACKRecv TCPDSACKOfoRecv TCPAbortOnData TCPAbortOnClose TCPAbortOnMemory TCPAbortOnTimeout
            TCPAbortOnLinger TCPAbortFailed TCPMemoryPressures TCPMemoryPressuresChrono TCPSACKDiscard
            TCPDSACKIgnoredOld TCPDSACKIgnoredNoUndo TCPSpuriousRTOs TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure
            TCPSackShifted TCPSackMerged TCPSackShiftFallback TCPBacklogDrop PFMemallocDrop TCPMinTTLDrop
            TCPDeferAcceptDrop IPReversePathFilter TCPTimeWaitOverflow TCPReqQFullDoCookies TCPReqQFullDrop
            TCPRetransFail TCPRcvCoalesce TCPOFOQueue TCPOFODrop TCPOFOMerge TCPChallengeACK TCPSYNChallenge
            TCPFastOpenActive TCPFastOpenActiveFail TCPFastOpenPassive TCPFastOpenPassiveFail
            TCPFastOpenListenOverflow TCPFastOpenCookieReqd TCPFastOpenBlackhole TCPSpuriousRtxHostQueues
            BusyPollRxPackets TCPAutoCorking TCPFromZeroWindowAdv TCPToZeroWindowAdv TCPWantZeroWindowAdv
            TCPSynRetrans TCPOrigDataSent TCPHystartTrainDetect TCPHystartTrainCwnd TCPHystartDelayDetect
            TCPHystartDelayCwnd TCPACKSkippedSynRecv TCPACKSkippedPAWS TCPACKSkippedSeq TCPACKSkippedFinWait2
            TCPACKSkippedTimeWait TCPACKSkippedChallenge TCPWinProbe TCPKeepAlive TCPMTUPFail TCPMTUPSuccess
            TCPDelivered TCPDeliveredCE TCPAckCompressed TCPZeroWindowDrop TCPRcvQDrop TCPWqueueTooBig
            TCPFastOpenPassiveAltKey TcpTimeoutRehash TcpDuplicateDataRehash TCPDSACKRecvSegs
            TCPDSACKIgnoredDubious TCPMigrateReqSuccess TCPMigrateReqFailure TCPPLBRehash TCPAORequired TCPAOBad
            TCPAOKeyNotFound TCPAOGood TCPAODroppedIcmps",
        ),
        (
            "IpExt",
            "InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts OutBcastPkts InOctets OutOctets InMcastOctets
            OutMcastOctets InBcastOctets OutBcastOctets InCsumErrors InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts
            ReasmOverlaps",
        ),
        (
            "Ip6",
            "InReceives InHdrErrors InTooBigErrors InNoRoutes InAddrErrors InUnknownProtos InTruncatedPkts InDiscards
            InDelivers OutForwDatagrams OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails
            FragOKs FragFails FragCreates InMcastPkts OutMcastPkts InOctets OutOctets InMcastOctets OutMcastOctets
            InBcastOctets OutBcastOctets InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts OutTransmits",
        ),
        (
            "Icmp6",
            "InMsgs InErrors OutMsgs OutErrors InCsumErrors OutRateLimitHost InDestUnreachs InPktTooBigs InTimeExcds
            InParmProblems InEchos InEchoReplies InGroupMembQueries InGroupMembResponses InGroupMembReductions
            InRouterSolicits InRouterAdvertisements InNeighborSolicits InNeighborAdvertisements InRedirects
            InMLDv2Reports OutDestUnreachs OutPktTooBigs OutTimeExcds OutParmProblems OutEchos OutEchoReplies
            OutGroupMembQueries OutGroupMembResponses OutGroupMembReductions OutRouterSolicits
            OutRouterAdvertisements OutNeighborSolicits OutNeighborAdvertisements OutRedirects OutMLDv2Reports",
        ),
        (
            "Udp6",
            "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors",
        ),
    ];

    /// Rows that Linux had until 4.13, whose mechanism is a setting here.
    const LINUX_4_13: [&str; 6] = [
        "TcpExtTCPPrequeued",
        "TcpExtTCPPrequeueDropped",
        "TcpExtTCPDirectCopyFromBacklog",
        "TcpExtTCPDirectCopyFromPrequeue",
        "TcpExtTCPHPHitsToUser",
        "TcpExtTCPSchedulerFailed",
    ];

    fn linux() -> Vec<(&'static str, String)> {
        let names = |group: &'static str, names: &'static str| {
            names.split_whitespace().map(move |name| (group, format!("{group}{name}")))
        };
        LINUX.iter().flat_map(|&(group, text)| names(group, text)).collect()
    }

    /// Returns name and description of every counter.
    fn counted() -> impl Iterator<Item = (&'static str, &'static str)> {
        let stack = stack::base::counters::Counter::ALL.iter().map(|c| (c.name(), c.doc()));
        stack.chain(tcp::Counter::ALL.iter().map(|c| (c.name(), c.doc())))
    }

    fn not_counted() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        stack::base::counters::NOT_COUNTED.iter().chain(tcp::base::counters::NOT_COUNTED)
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn both_tables_together_are_those_of_linux() {
        let linux: BTreeSet<_> = linux().into_iter().map(|(_, name)| name).collect();
        let ours: Vec<_> =
            counted().map(|(name, _)| name).filter(|name| linux.contains(*name)).collect();
        let both: Vec<_> =
            ours.iter().copied().chain(not_counted().map(|(name, _)| *name)).collect();
        let all: BTreeSet<_> = both.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(all.len(), both.len(), "a row is in both tables");
        assert_eq!(all, linux, "Linux's rows");
        let groups = ["Tcp", "Ip", "Icmp", "Udp"];
        let is_of_linux = |name: &str| groups.iter().any(|group| name.starts_with(group));
        for (name, _) in counted().filter(|(name, _)| is_of_linux(name)) {
            let known = linux.contains(name) || LINUX_4_13.contains(&name);
            assert!(known, "{name} is not a counter of Linux");
        }
    }

    #[test]
    fn every_counter_of_linux_has_a_test_that_names_it() {
        let mut texts = String::new();
        gather(&root().join("crates"), &mut texts);
        gather(&root().join("tests"), &mut texts);
        let linux: BTreeSet<_> = linux().into_iter().map(|(_, name)| name).collect();
        let words: BTreeSet<_> =
            texts.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
        let untested: Vec<_> = counted()
            .map(|(name, _)| name)
            .filter(|name| linux.contains(*name) && !words.contains(name))
            .collect();
        assert!(untested.is_empty(), "no test names {untested:?}");
    }

    /// Appends the text of all tests below `directory`: packet scripts, test files, and the test
    /// modules of sources.
    fn gather(directory: &Path, texts: &mut String) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                gather(&path, texts);
                continue;
            }
            let extension = path.extension().and_then(|extension| extension.to_str());
            if !matches!(extension, Some("rs" | "pkt")) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("text");
            let shown = path.to_string_lossy();
            let is_test = extension == Some("pkt") || shown.contains("/tests");
            let from = if is_test { Some(0) } else { text.find("#[cfg(test)]\nmod tests {") };
            if let Some(from) = from.filter(|_| !shown.ends_with("sim/tests/counters.rs")) {
                texts.push_str(&text[from..]);
            }
        }
    }

    #[test]
    fn the_page_of_counters_is_up_to_date() {
        let mut page = String::from(HEAD);
        for (group, _) in LINUX {
            write!(page, "\n## {group}\n\n| counter | one count is |\n|---|---|\n").unwrap();
            for (_, name) in linux().iter().filter(|(of, _)| *of == group) {
                if let Some((_, doc)) = counted().find(|(counted, _)| counted == name) {
                    writeln!(page, "| `{name}` | {} |", doc.trim_end_matches('.')).unwrap();
                }
            }
        }
        page.push_str("\n## Not counted\n\n| counter of Linux | reason |\n|---|---|\n");
        for (_, name) in linux() {
            if let Some((_, reason)) = not_counted().find(|(not, _)| *not == name) {
                writeln!(page, "| `{name}` | {reason} |").unwrap();
            }
        }
        page.push_str("\n## Linux until 4.13\n\n| counter | one count is |\n|---|---|\n");
        for (name, doc) in counted().filter(|(name, _)| LINUX_4_13.contains(name)) {
            writeln!(page, "| `{name}` | {} |", doc.trim_end_matches('.')).unwrap();
        }
        page.push_str(
            "\n## Counters that Linux does not have\n\n| counter | one count is |\n|---|---|\n",
        );
        let linux: BTreeSet<_> = linux().into_iter().map(|(_, name)| name).collect();
        let ours = |name: &str| !linux.contains(name) && !LINUX_4_13.contains(&name);
        for (name, doc) in counted().filter(|(name, _)| ours(name)) {
            writeln!(page, "| `{name}` | {} |", doc.trim_end_matches('.')).unwrap();
        }
        let path = root().join("docs/counters.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &page).expect("docs are writable");
        }
        // Only CI fails, so that two branches that add a row each do not conflict.
        if !std::env::var("CI").is_ok_and(|value| value == "true") {
            return;
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "stale: UPDATE_DOCS=1 cargo test -p quietline-sim --test counters");
    }

    const HEAD: &str = "# Counters

The counters of a host, as `quietline --stats` prints them, under the names of Linux 6.18's `nstat`; and the counters of Linux that do not
exist here, with the reason. `crates/sim/tests/counters.rs` writes this page from the tables of the code, checks that the two lists together are
exactly Linux's, and that a test names each counter. Drop reasons, in capitals, are in `crates/pkt/src/drop_reason.rs`. Linux's
`IcmpMsg` and `Icmp6InType*` count messages by number; `Icmp*` and `Icmp6*` have the same by name.
";
}
