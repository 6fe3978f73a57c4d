//! Formats of settings whose value is a word: closed enums, and values with names.

use std::ops::RangeInclusive;

use sync::TsqProtocol;
use tcp::{Algorithm, HystartDetect, PacketRecycle, TsqLimit};

use super::Codec;
use crate::sysctl::modes::{
    ArpIgnore, BusyPollFlush, DefaultQdisc, DevOrphan, DstCheck, DstLayout, DstRefMode, GroExit,
    Preset, RxContext, RxDstMode,
};

/// Defines the codec of a closed enum, with one word for each value.
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
    /// ARP requests that get a reply, with Linux's numbers and the gaps between them.
    ArpIgnores: ArpIgnore {
        AnyDevice = "0",
        OwnDevice = "1",
        OwnSubnet = "2",
        Never = "8",
    }
}

words! {
    /// Version of Linux whose data path the host has.
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
    /// How packets leave receive offload.
    GroExits: GroExit {
        Immediate = "immediate",
        NormalOnlyList = "normal_only_list",
        UnifiedListPackets = "unified_list_packets",
        UnifiedListSegments = "unified_list_segments",
    }
}

words! {
    /// Packets that a busy-poll cycle delivers.
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
    /// Discipline without parameters.
    DefaultQdiscs: DefaultQdisc {
        PfifoFast = "pfifo_fast",
        Fq = "fq",
        FqCodel = "fq_codel",
        NoQueue = "noqueue",
    }
}

words! {
    /// Reference counting of dst entries.
    DstRefModes: DstRefMode {
        CasIncNotZero = "cas_inc_not_zero",
        Rcuref = "rcuref",
        Noref = "noref",
    }
}

words! {
    /// Source of the validity of a cached dst entry.
    DstChecks: DstCheck {
        Entry = "entry",
        Generation = "generation",
    }
}

words! {
    /// Position of the reference count in a dst entry.
    DstLayouts: DstLayout {
        Packed = "packed",
        Padded = "padded",
        Filled = "filled",
    }
}

words! {
    /// Treatment of the dst of a queued packet.
    RxDstModes: RxDstMode {
        Force = "force",
        OptimisticDrop = "optimistic_drop",
        RcuClearThenRelease = "rcu_clear_then_release",
    }
}

words! {
    /// Event that ends CUBIC's first slow start.
    HystartDetects: HystartDetect {
        Off = "off",
        Train = "train",
        Delay = "delay",
        Both = "both",
    }
}

words! {
    /// How freed packets are recycled.
    PacketRecycles: PacketRecycle {
        None = "none",
        SocketOne = "socket_one",
        ListAfterUnlock = "list_after_unlock",
        PerCoreDefer = "per_core_defer",
        UnifiedPool = "unified_pool",
    }
}

words! {
    /// Order of steps of TCP Small Queues.
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
