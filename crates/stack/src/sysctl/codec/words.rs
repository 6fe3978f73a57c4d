//! Formats of settings whose value is one word: enums, limits of TCP Small Queues and
//! congestion-control algorithms.

use std::ops::RangeInclusive;

use sync::TsqProtocol;
use tcp::{Algorithm, HystartDetect, PacketRecycle, TsqLimit};

use super::Codec;
use crate::sysctl::modes::{
    ArpIgnore, BusyPollFlush, DefaultQdisc, DevOrphan, DstCheck, DstLayout, DstRefMode, GroExit,
    Preset, RxContext, RxDstMode,
};

/// Defines the codec of an enum, with one word for each value.
macro_rules! words {
    ($(#[$doc:meta])* $codec:ident: $type:ident { $($value:ident = $word:literal,)* }) => {
        $(#[$doc])*
        pub(in crate::sysctl) struct $codec;

        impl $codec {
            pub(in crate::sysctl) const FORM: &str = concat!("one of", $(" ", $word),*);
        }

        impl Codec<$type> for $codec {
            fn parse(text: &str, _: &RangeInclusive<u64>) -> Option<$type> {
                match text.trim() {
                    $($word => Some($type::$value),)*
                    _ => None,
                }
            }

            fn format(value: &$type) -> String {
                let word = match value {
                    $($type::$value => $word,)*
                };
                word.to_owned()
            }
        }
    };
}

words! {
    /// ARP requests that get a reply, by Linux's numbers. Linux's numbers 3 to 7 are not accepted.
    ArpIgnores: ArpIgnore {
        AnyDevice = "0",
        OwnDevice = "1",
        OwnSubnet = "2",
        Never = "8",
    }
}

words! {
    /// Version of Linux whose data path the host reproduces.
    Presets: Preset {
        Linux3_5 = "linux-3.5",
        Linux3_6 = "linux-3.6",
        Linux3_18 = "linux-3.18",
        Linux5_2 = "linux-5.2",
        Linux5_4 = "linux-5.4",
        Linux6_4 = "linux-6.4",
        Default = "default",
    }
}

words! {
    /// Way in which packets leave receive offload.
    GroExits: GroExit {
        Immediate = "immediate",
        NormalOnlyList = "normal_only_list",
        UnifiedListPackets = "unified_list_packets",
        UnifiedListSegments = "unified_list_segments",
    }
}

words! {
    /// Packets that a cycle of busy polling delivers at its end.
    BusyPollFlushes: BusyPollFlush {
        None = "none",
        RxListPerCycle = "rx_list_per_cycle",
        RxListAndOldGroPerCycle = "rx_list_and_old_gro_per_cycle",
    }
}

words! {
    /// Context that processes received segments.
    RxContexts: RxContext {
        PrequeueRef = "prequeue_ref",
        PrequeueDrop = "prequeue_drop",
        PrequeueDropLimited = "prequeue_drop_limited",
        Bh = "bh",
    }
}

words! {
    /// Time at which a packet is uncharged from its socket.
    DevOrphans: DevOrphan {
        Completion = "completion",
        Xmit = "xmit",
    }
}

words! {
    /// Queueing discipline without parameters.
    DefaultQdiscs: DefaultQdisc {
        PfifoFast = "pfifo_fast",
        Fq = "fq",
        FqCodel = "fq_codel",
        NoQueue = "noqueue",
    }
}

words! {
    /// Reference counting of route entries (dst).
    DstRefModes: DstRefMode {
        CasIncNotZero = "cas_inc_not_zero",
        Rcuref = "rcuref",
        Sharded = "sharded",
        Noref = "noref",
    }
}

words! {
    /// Place from which the validity of a cached route entry (dst) is read.
    DstChecks: DstCheck {
        Entry = "entry",
        Generation = "generation",
    }
}

words! {
    /// Position of the reference count in a route entry (dst).
    DstLayouts: DstLayout {
        Packed = "packed",
        Padded = "padded",
        Filled = "filled",
    }
}

words! {
    /// Treatment of a packet's route entry (dst) when the packet is queued.
    RxDstModes: RxDstMode {
        Force = "force",
        OptimisticDrop = "optimistic_drop",
        RcuClearThenRelease = "rcu_clear_then_release",
    }
}

words! {
    /// Event, besides a loss, that ends CUBIC's first slow start.
    HystartDetects: HystartDetect {
        Off = "off",
        Train = "train",
        Delay = "delay",
        Both = "both",
    }
}

words! {
    /// Way in which freed packets are recycled.
    PacketRecycles: PacketRecycle {
        None = "none",
        SocketOne = "socket_one",
        ListAfterUnlock = "list_after_unlock",
        PerCoreDefer = "per_core_defer",
        UnifiedPool = "unified_pool",
    }
}

words! {
    /// Order of the steps by which TCP Small Queues stop and resume a sender.
    TsqProtocols: TsqProtocol {
        Seed = "seed",
        Robust = "robust",
    }
}

/// Limit of TCP Small Queues.
pub(in crate::sysctl) struct TsqLimitWord;

impl TsqLimitWord {
    pub(in crate::sysctl) const FORM: &str =
        "one of off static131072_ge dyn_max dyn_min2 paced_exempt v619";
}

impl Codec<TsqLimit> for TsqLimitWord {
    fn parse(text: &str, _: &RangeInclusive<u64>) -> Option<TsqLimit> {
        TsqLimit::ALL.into_iter().find(|mode| mode.name() == text.trim())
    }

    fn format(value: &TsqLimit) -> String {
        value.name().to_owned()
    }
}

/// Congestion control algorithm by its name.
pub(in crate::sysctl) struct CongestionControl;

impl CongestionControl {
    pub(in crate::sysctl) const FORM: &str = "one of cubic reno bbr dctcp";
}

impl Codec<Algorithm> for CongestionControl {
    fn parse(text: &str, _: &RangeInclusive<u64>) -> Option<Algorithm> {
        text.trim().parse().ok()
    }

    fn format(value: &Algorithm) -> String {
        value.name().to_owned()
    }
}

/// Names of all congestion control algorithms, which cannot be changed.
pub(in crate::sysctl) struct AvailableCongestionControl;

impl AvailableCongestionControl {
    pub(in crate::sysctl) const FORM: &str = "cubic reno bbr dctcp: it cannot be changed";
}

impl Codec<()> for AvailableCongestionControl {
    fn parse(text: &str, _: &RangeInclusive<u64>) -> Option<()> {
        (text.trim() == Algorithm::NAMES).then_some(())
    }

    fn format((): &()) -> String {
        Algorithm::NAMES.to_owned()
    }
}
