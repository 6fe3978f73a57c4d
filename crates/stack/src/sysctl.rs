//! Settings by their Linux names: one table says the name, where the value lives, how it is written and what is allowed.
//!
//! Above: the builder and the CLI, which set text; the data path, which reads plain fields. Linux:
//! Documentation/networking/ip-sysctl.rst, Documentation/admin-guide/sysctl/net.rst.
//!
//! Settings of one device or queue have names of their own below `net.quietline.dev`: see [`device`].
//!
//! Only settings that some code reads are listed: setting one that has no effect is an error, not a silence. To add one,
//! add its line to the table. What Linux has as a constant is a setting here by a name below `net.quietline`.
//!
//! Not here: what TCP's settings mean (`tcp::cx::config`) and the neighbours' (`neighbour`); their fields are set in place.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use sync::TsqProtocol;
use tcp::TcpConfig;

use pkt::DomainConfig;

use crate::core::WEIGHT;
use crate::gro::{BusyPollFlush, GroExit};
use crate::link::ArpIgnore;
use crate::neighbour::NeighborConfig;
use crate::qdisc::{DefaultQdisc, DevOrphan};
use crate::route::dst::{DstLayout, DstRefMode, RxDstMode};
use crate::socket::RxContext;
use crate::tcp_memory::MemoryLimits;
pub use codec::FastOpenKey;
use codec::{
    ArpIgnores, AvailableCongestionControl, BusyPollFlushes, Codec, CongestionControl,
    DefaultQdiscs, DevOrphans, DstLayouts, DstRefModes, GroExits, HystartDetects, Keys, Limits,
    Mask, Micros, Millis, Nanos, Number, PacketRecycles, Pages, Ports, PowerOfTwo, RoundedUp,
    RxContexts, RxDstModes, Seconds, Switch, TsqLimitWord, TsqProtocols,
};
pub(crate) use device::Present;
pub use device::{DeviceSettings, DeviceSysctls, RxQueueSettings, TxQueueSettings};

pub(crate) use live::LiveSysctls;

mod codec;
pub mod device;
mod live;

/// One line of the table.
struct Entry {
    name: &'static str,
    /// Where the value lives, as a path below [`Sysctls`].
    #[cfg(test)]
    field: &'static str,
    /// Bounds of every number in the value.
    allowed: RangeInclusive<u64>,
    /// What a value looks like, up to its bounds: "a number".
    form: &'static str,
    read: fn(&Sysctls) -> String,
    /// False when the text is not of the form or out of bounds; nothing is changed then.
    write: fn(&mut Sysctls, &str, &RangeInclusive<u64>) -> bool,
}

/// Expands the table below into [`Sysctls`] and [`Entry`]s. Settings of the stack itself bring their field along; those
/// of a part name the field they are kept in.
macro_rules! sysctls {
    (
        stack { $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr, $codec:ident $allowed:expr, $name:literal;)* }
        parts { $($name_of_part:literal, $part:ident.$place:ident, $part_codec:ident $part_allowed:expr;)* }
    ) => {
        /// Every setting of a host. Plain values; a running host reads one set from the beginning of a call
        /// to its end.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Sysctls {
            $($(#[$doc])* pub $field: $type,)*
            /// The engine's settings.
            pub tcp: TcpConfig,
            /// Neighbour resolution.
            pub neigh: NeighborConfig,
            /// Settings of each device.
            pub devices: DeviceSysctls,
        }

        impl Default for Sysctls {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    tcp: TcpConfig::default(),
                    neigh: NeighborConfig::default(),
                    devices: DeviceSysctls::default(),
                }
            }
        }

        const TABLE: &[Entry] = &[
            $(sysctls!(@entry $name, $codec $allowed, $field),)*
            $(sysctls!(@entry $name_of_part, $part_codec $part_allowed, $part.$place),)*
        ];
    };
    (@entry $name:literal, $codec:ident $allowed:expr, $($place:ident).+) => {
        Entry {
            name: $name,
            #[cfg(test)]
            field: stringify!($($place).+),
            allowed: $allowed,
            form: $codec::FORM,
            read: |sysctls| $codec::format(&sysctls.$($place).+),
            write: |sysctls, text, allowed| match $codec::parse(text, allowed) {
                Some(value) => {
                    sysctls.$($place).+ = value;
                    true
                }
                None => false,
            },
        }
    };
}

/// Bounds of a value that is no number.
const WORDS: RangeInclusive<u64> = RangeInclusive::new(1, 0);

/// Upper bound of what Linux keeps in an int.
const INT_MAX: u64 = i32::MAX as u64;

sysctls! {
    stack {
        /// TTL of packets we send.
        ip_default_ttl: u8 = 64, Number 1..=255, "net.ipv4.ip_default_ttl";
        /// Which ARP requests for addresses of this host are answered. 0: all, by whatever device they come. 1: those that come by
        /// the device of the address. 2: as 1, from senders in the subnet of the address. 8: none. A request that is not
        /// answered is dropped and teaches nothing. Differs from Linux, where it is 0: a host with several devices on one link
        /// would otherwise answer with the link address of each.
        arp_ignore: ArpIgnore = ArpIgnore::OwnDevice, ArpIgnores WORDS, "net.ipv4.conf.all.arp_ignore";
        /// Drop gratuitous ARP packets: requests and replies whose sender and target are one address. Announcements then change no
        /// neighbor entry. Other ARP packets still do; see `net.quietline.arp_strict`.
        drop_gratuitous_arp: bool = false, Switch 0..=1, "net.ipv4.conf.all.drop_gratuitous_arp";
        /// Which ARP packets change the neighbor table. 0: any packet changes the entry of its sender, and a request to this host
        /// creates one, as in Linux. 1: only a reply to a pending request of this host does: the first for an unresolved address,
        /// or one from the link address that is known. 2: none does, and only neighbors that were set are reached. Set 1 or 2 on
        /// links with stations that are not trusted.
        arp_strict: u8 = 0, Number 0..=2, "net.quietline.arp_strict";
        /// Reverse-path filter of packets from wires (RFC 3704). 0: no check. 1: the best route back to the source must leave by
        /// the device that the packet came by; set it on hosts with several devices whose routes are symmetric. 2: any unicast
        /// route back must exist. An established connection is checked again only after a change of routes or of this setting.
        rp_filter: u8 = 0, Number 0..=2, "net.ipv4.conf.all.rp_filter";
        /// Whether packets for others are sent on. Always off: this is a host.
        ip_forward: bool = false, Switch 0..=0, "net.ipv4.ip_forward";
        /// Path MTU discovery: 0 and 3 do it (3 asks for validated reports, which every report here is), 1 sends without DF and
        /// takes a report for `route.min_pmtu`, 2 sends without DF and ignores reports.
        ip_no_pmtu_disc: u8 = 0, Number 0..=3, "net.ipv4.ip_no_pmtu_disc";
        /// How long a reported path MTU counts (RFC 1191 §6.3).
        route_mtu_expires: Duration = Duration::from_secs(600), Seconds 1..=INT_MAX, "net.ipv4.route.mtu_expires";
        /// Smallest path MTU a report may bring us to; one that asks for less also ends DF.
        route_min_pmtu: u32 = 552, Number 68..=65_535, "net.ipv4.route.min_pmtu";
        /// Ports for connections that name none (RFC 6056).
        ip_local_port_range: RangeInclusive<u16> = 32_768..=60_999, Ports 1..=65_535, "net.ipv4.ip_local_port_range";
        /// A packet of an established connection is placed by its four-tuple before any route is asked.
        ip_early_demux: bool = true, Switch 0..=1, "net.ipv4.ip_early_demux";
        /// As `ip_early_demux`, for TCP; both must be on.
        tcp_early_demux: bool = true, Switch 0..=1, "net.ipv4.tcp_early_demux";
        /// How dst entries are counted, and which packets hold one. A change makes every route be looked up again.
        dst_ref: DstRefMode = DstRefMode::Noref, DstRefModes WORDS, "net.quietline.dst_ref";
        /// Where the count of a dst entry lies. Only when the host is built.
        dst_layout: DstLayout = DstLayout::Filled, DstLayouts WORDS, "net.quietline.dst_layout";
        /// What becomes of the dst of a packet that is queued for another thread.
        rx_dst_mode: RxDstMode = RxDstMode::RcuClearThenRelease, RxDstModes WORDS, "net.quietline.rx_dst_mode";
        /// ARP probes for each address on an Ethernet device before the address is used (RFC 5227); 3 is the RFC's number. An
        /// address that another station has is refused, and one in use is announced and defended. 0: no probes, no
        /// announcements. Read when the host starts.
        acd_probes: u32 = 0, Number 0..=10, "net.quietline.acd_probes";
        /// Unit of the pauses between probes and announcements, in milliseconds: a probe follows the last after one to two of
        /// them, at random. 1000 is the RFC's; a link inside of one machine answers within 20.
        acd_interval: Duration = Duration::from_secs(1), Millis 1..=60_000, "net.quietline.acd_interval_ms";
        /// Answer no echo requests.
        icmp_echo_ignore_all: bool = false, Switch 0..=1, "net.ipv4.icmp_echo_ignore_all";
        /// Answer no echo requests to broadcast and multicast addresses (RFC 1122 §3.2.2.6).
        icmp_echo_ignore_broadcasts: bool = true, Switch 0..=1, "net.ipv4.icmp_echo_ignore_broadcasts";
        /// Half-open connections of one listener, which its backlog bounds as well.
        tcp_max_syn_backlog: u32 = 4096, Number 1..=INT_MAX, "net.ipv4.tcp_max_syn_backlog";
        /// SYN cookies (RFC 4987): 0 never, 1 when the SYN queue is full, 2 always.
        tcp_syncookies: u8 = 1, Number 0..=2, "net.ipv4.tcp_syncookies";
        /// Connections in TIME-WAIT; further ones are closed at once.
        tcp_max_tw_buckets: u32 = 262_144, Number 0..=INT_MAX, "net.ipv4.tcp_max_tw_buckets";
        /// Whether a connect may take over a connection in TIME-WAIT (RFC 6191): 0 never, 1 with timestamps, 2 with timestamps
        /// over loopback.
        tcp_tw_reuse: u8 = 2, Number 0..=2, "net.ipv4.tcp_tw_reuse";
        /// How long it must have waited by then.
        tcp_tw_reuse_delay: Duration = Duration::from_secs(1), Millis 1..=60_000, "net.ipv4.tcp_tw_reuse_delay";
        /// Connections that nobody holds and that are not done; further ones are reset.
        tcp_max_orphans: u32 = 65_536, Number 0..=INT_MAX, "net.ipv4.tcp_max_orphans";
        /// Memory of all connections together, in pages of 4 KB: where pressure ends, where it begins, and where nobody
        /// gets more. The default follows the packet memory that the host is given.
        tcp_mem: MemoryLimits = MemoryLimits::for_packets(DomainConfig::default().max_bytes), Pages 1..=INT_MAX, "net.ipv4.tcp_mem";
        /// The algorithms that `tcp_congestion_control` and `TCP_CONGESTION` may name. It says, and cannot be told.
        tcp_available_congestion_control: () = (), AvailableCongestionControl WORDS, "net.ipv4.tcp_available_congestion_control";
        /// Fast Open (RFC 7413), a sum: 1 clients, 2 servers, 4 clients without a cookie, 512 servers without a cookie, 1024
        /// every listener.
        tcp_fastopen: u32 = 1, Number 0..=INT_MAX, "net.ipv4.tcp_fastopen";
        /// Keys of our cookies. None: the host draws one.
        tcp_fastopen_key: Option<FastOpenKey> = None, Keys 0..=15, "net.ipv4.tcp_fastopen_key";
        /// How long clients do without it when a path seems to swallow SYNs with data; doubled each time, 0 is never.
        tcp_fastopen_blackhole_timeout_sec: Duration = Duration::ZERO, Seconds 0..=INT_MAX, "net.ipv4.tcp_fastopen_blackhole_timeout_sec";
        /// Upper bound of the backlog given to `listen`.
        somaxconn: u32 = 4096, Number 1..=INT_MAX, "net.core.somaxconn";
        /// How long, in microseconds, a thread that waits for data polls its core before it sleeps, where `SO_BUSY_POLL` does
        /// not say. Differs from Linux, where it is 0: a wake costs about 7 µs between its two ends here, and 50 is what
        /// Linux recommends where latency counts. A thread whose CPU is wanted by others sleeps at once.
        busy_read: u32 = 50, Number 0..=1_000_000, "net.core.busy_read";
        /// The same for a thread that waits for anything else: room to send, a connection to accept, the end of a
        /// handshake. Linux: poll and select.
        busy_poll: u32 = 50, Number 0..=1_000_000, "net.core.busy_poll";
        /// How long, in microseconds, the worker of a core with descriptors goes on polling after it has found frames. It
        /// approaches this while frames come that often, and is nothing on a core that idles. 0: it sleeps at once.
        worker_poll: u32 = 50, Number 0..=1_000_000, "net.quietline.worker_poll_usecs";
        /// Where TCP processes what arrives for a thread that waits in `recv`: in softirq (`bh`), or in that thread, with one
        /// of the prequeues of Linux before 4.14.
        rx_context: RxContext = RxContext::Bh, RxContexts WORDS, "net.quietline.rx_context";
        /// No prequeue, whatever `rx_context` says.
        tcp_low_latency: bool = false, Switch 0..=1, "net.ipv4.tcp_low_latency";
        /// What a socket's owner finds on its backlog is answered by one ACK, not by one for every second segment.
        tcp_backlog_ack_defer: bool = true, Switch 0..=1, "net.ipv4.tcp_backlog_ack_defer";
        /// Packets, or segments of superframes, that wait to go up together; what waits goes up when the poll ends at the latest.
        gro_normal_batch: u32 = 8, Number 1..=INT_MAX, "net.core.gro_normal_batch";
        /// Which packets wait, and what counts.
        gro_exit: GroExit = GroExit::UnifiedListSegments, GroExits WORDS, "net.quietline.gro_exit";
        /// What goes up at the end of a busy-poll cycle that goes on.
        busy_poll_flush: BusyPollFlush = BusyPollFlush::RxListAndOldGroPerCycle, BusyPollFlushes WORDS, "net.quietline.busy_poll_flush";
        /// Packets that one turn of a core takes from its devices, to within a poll.
        netdev_budget: u32 = 300, Number 1..=INT_MAX, "net.core.netdev_budget";
        /// Packets that may wait for a core on their way from another, and in one queue of loopback.
        netdev_max_backlog: u32 = 1000, Number 0..=INT_MAX, "net.core.netdev_max_backlog";
        /// The queueing discipline of devices that need one and have none of their own.
        default_qdisc: DefaultQdisc = DefaultQdisc::PfifoFast, DefaultQdiscs WORDS, "net.core.default_qdisc";
        /// When a packet's socket is paid back: when the device has sent it, or when it is given to the device.
        dev_orphan: DevOrphan = DevOrphan::Completion, DevOrphans WORDS, "net.quietline.dev_orphan";
        /// Packets that may wait for their home with `skb_recycle` at `per_core_defer`; the one that comes to this dies where it is.
        /// 0: none waits.
        packet_defer_max: u32 = 64, Number 0..=INT_MAX, "net.core.skb_defer_max";
        /// Order of the steps by which TCP Small Queues stop a sender and wake it.
        tsq_protocol: TsqProtocol = TsqProtocol::Robust, TsqProtocols WORDS, "net.quietline.tsq_protocol";
        /// Cores that drop packets of a flow which takes more than its half when they hand packets on, a bit for each.
        flow_limit_cpu_bitmap: u64 = 0, Mask WORDS, "net.core.flow_limit_cpu_bitmap";
        /// Buckets in which such a core counts flows.
        flow_limit_table_len: u32 = 4096, PowerOfTwo 1..=1 << 20, "net.core.flow_limit_table_len";
        /// Slots of the table that says where applications read their flows (RFS), rounded up to a power of two. 0: there is
        /// none.
        rps_sock_flow_entries: u32 = 0, RoundedUp 0..=1 << 24, "net.core.rps_sock_flow_entries";
        /// How long one turn may poll its devices: two ticks of a kernel with 1000 a second.
        netdev_budget_usecs: Duration = Duration::from_micros(2000), Micros 0..=INT_MAX, "net.core.netdev_budget_usecs";
        /// Packets that one poll of one queue takes. Differs from Linux, where a device's weight is the constant 64 and this
        /// is the backlog's: it holds for every queue, and 64 is the most.
        dev_weight: usize = WEIGHT, Number 1..=WEIGHT as u64, "net.core.dev_weight";
    }
    parts {
        "net.core.rmem_max", tcp.rmem_max, Number 2304..=INT_MAX;
        "net.core.wmem_max", tcp.wmem_max, Number 4608..=INT_MAX;
        "net.ipv4.tcp_rmem", tcp.tcp_rmem, Limits 1..=INT_MAX;
        "net.ipv4.tcp_wmem", tcp.tcp_wmem, Limits 1..=INT_MAX;
        "net.ipv4.tcp_moderate_rcvbuf", tcp.tcp_moderate_rcvbuf, Switch 0..=1;
        "net.ipv4.tcp_shrink_window", tcp.tcp_shrink_window, Switch 0..=1;
        "net.ipv4.tcp_timestamps", tcp.tcp_timestamps, Switch 0..=1;
        "net.ipv4.tcp_window_scaling", tcp.tcp_window_scaling, Switch 0..=1;
        "net.ipv4.tcp_sack", tcp.tcp_sack, Switch 0..=1;
        "net.ipv4.tcp_dsack", tcp.tcp_dsack, Switch 0..=1;
        "net.ipv4.tcp_frto", tcp.tcp_frto, Number 0..=2;
        "net.ipv4.tcp_early_retrans", tcp.tcp_early_retrans, Number 0..=4;
        "net.ipv4.tcp_retries1", tcp.tcp_retries1, Number 0..=255;
        "net.ipv4.tcp_mtu_probing", tcp.tcp_mtu_probing, Number 0..=2;
        "net.ipv4.tcp_mtu_probe_floor", tcp.tcp_mtu_probe_floor, Number 48..=65_535;
        "net.ipv4.tcp_probe_threshold", tcp.tcp_probe_threshold, Number 0..=65_535;
        "net.ipv4.tcp_probe_interval", tcp.tcp_probe_interval, Seconds 0..=INT_MAX;
        "net.ipv4.tcp_syn_linear_timeouts", tcp.tcp_syn_linear_timeouts, Number 0..=127;
        "net.ipv4.tcp_thin_linear_timeouts", tcp.tcp_thin_linear_timeouts, Switch 0..=1;
        "net.ipv4.tcp_retries2", tcp.tcp_retries2, Number 0..=255;
        "net.ipv4.tcp_syn_retries", tcp.tcp_syn_retries, Number 1..=127;
        "net.ipv4.tcp_synack_retries", tcp.tcp_synack_retries, Number 0..=255;
        "net.ipv4.tcp_orphan_retries", tcp.tcp_orphan_retries, Number 0..=255;
        "net.ipv4.tcp_keepalive_time", tcp.tcp_keepalive_time, Seconds 1..=32_767;
        "net.ipv4.tcp_keepalive_intvl", tcp.tcp_keepalive_intvl, Seconds 1..=32_767;
        "net.ipv4.tcp_keepalive_probes", tcp.tcp_keepalive_probes, Number 1..=127;
        "net.ipv4.tcp_fin_timeout", tcp.tcp_fin_timeout, Seconds 0..=120;
        "net.ipv4.tcp_rfc1337", tcp.tcp_rfc1337, Switch 0..=1;
        "net.ipv4.tcp_base_mss", tcp.tcp_base_mss, Number 48..=65_535;
        "net.ipv4.tcp_min_snd_mss", tcp.tcp_min_snd_mss, Number 48..=65_535;
        "net.ipv4.tcp_challenge_ack_limit", tcp.tcp_challenge_ack_limit, Number 0..=INT_MAX;
        "net.ipv4.tcp_abort_on_overflow", tcp.tcp_abort_on_overflow, Switch 0..=1;
        "net.ipv4.tcp_invalid_ratelimit", tcp.tcp_invalid_ratelimit, Millis 0..=INT_MAX;
        "net.ipv4.tcp_slow_start_after_idle", tcp.tcp_slow_start_after_idle, Switch 0..=1;
        "net.ipv4.tcp_notsent_lowat", tcp.tcp_notsent_lowat, Number 0..=0xffff_ffff;
        "net.ipv4.tcp_stdurg", tcp.tcp_stdurg, Switch 0..=1;
        "net.ipv4.tcp_reordering", tcp.tcp_reordering, Number 1..=127;
        "net.ipv4.tcp_max_reordering", tcp.tcp_max_reordering, Number 1..=300;
        "net.ipv4.tcp_tso_win_divisor", tcp.tcp_tso_win_divisor, Number 0..=255;
        "net.ipv4.tcp_rto_min_us", tcp.tcp_rto_min, Micros 1..=INT_MAX;
        "net.ipv4.tcp_congestion_control", tcp.tcp_congestion_control, CongestionControl WORDS;
        "net.quietline.hystart_detect", tcp.hystart_detect, HystartDetects WORDS;
        "net.ipv4.tcp_ecn", tcp.tcp_ecn, Number 0..=2;
        "net.ipv4.tcp_ecn_fallback", tcp.tcp_ecn_fallback, Switch 0..=1;
        "net.ipv4.tcp_pacing_ss_ratio", tcp.tcp_pacing_ss_ratio, Number 0..=1000;
        "net.ipv4.tcp_pacing_ca_ratio", tcp.tcp_pacing_ca_ratio, Number 0..=1000;
        "net.ipv4.tcp_min_tso_segs", tcp.tcp_min_tso_segs, Number 1..=65_535;
        "net.ipv4.tcp_tso_rtt_log", tcp.tcp_tso_rtt_log, Number 0..=255;
        "net.ipv4.tcp_limit_output_bytes", tcp.tcp_limit_output_bytes, Number 0..=INT_MAX;
        "net.quietline.pacing_shift", tcp.pacing_shift, Number 5..=12;
        "net.quietline.tsq_limit", tcp.tsq_limit, TsqLimitWord WORDS;
        "net.quietline.skb_recycle", tcp.packet_recycle, PacketRecycles WORDS;
        "net.ipv4.tcp_tx_skb_cache", tcp.tcp_tx_packet_cache, Switch 0..=1;
        "net.ipv4.tcp_rx_skb_cache", tcp.tcp_rx_packet_cache, Switch 0..=1;
        "net.quietline.rx_skb_cache_rps_gate", tcp.rx_packet_cache_rps_gate, Switch 0..=1;
        "net.ipv4.tcp_autocorking", tcp.tcp_autocorking, Switch 0..=1;
        "net.ipv4.tcp_min_rtt_wlen", tcp.tcp_min_rtt_wlen, Seconds 0..=86_400;
        "net.ipv4.tcp_comp_sack_delay_ns", tcp.tcp_comp_sack_delay, Nanos 0..=INT_MAX;
        "net.ipv4.tcp_comp_sack_nr", tcp.tcp_comp_sack_nr, Number 0..=255;
        "net.ipv4.tcp_pingpong_thresh", tcp.tcp_pingpong_thresh, Number 1..=255;
        "net.ipv4.tcp_rto_max_ms", tcp.tcp_rto_max, Millis 1_000..=120_000;
        "net.quietline.bbr_loss_thresh", tcp.bbr_loss_thresh, Number 1..=999;
        "net.quietline.tcp_delack_max_ms", tcp.tcp_delack_max, Millis 1..=500;
        "net.quietline.tcp_delack_min_ms", tcp.tcp_delack_min, Millis 1..=500;
        "net.quietline.tcp_idle_timeout", tcp.tcp_idle_timeout, Seconds 0..=INT_MAX;
        "net.ipv4.neigh.default.base_reachable_time_ms", neigh.base_reachable_time, Millis 1..=INT_MAX;
        "net.ipv4.neigh.default.retrans_time_ms", neigh.retrans_time, Millis 1..=INT_MAX;
        "net.ipv4.neigh.default.delay_first_probe_time", neigh.delay_first_probe_time, Seconds 0..=INT_MAX;
        "net.ipv4.neigh.default.ucast_solicit", neigh.ucast_solicit, Number 0..=INT_MAX;
        "net.ipv4.neigh.default.mcast_solicit", neigh.mcast_solicit, Number 1..=INT_MAX;
        "net.ipv4.neigh.default.unres_qlen", neigh.unres_qlen, Number 1..=INT_MAX;
        "net.ipv4.neigh.default.unres_qlen_bytes", neigh.unres_qlen_bytes, Number 0..=INT_MAX;
        "net.ipv4.neigh.default.gc_thresh3", neigh.gc_thresh3, Number 1..=INT_MAX;
    }
}

/// Settings that a running host does not change.
const AT_CONSTRUCTION: &[&str] = &["net.quietline.dst_layout"];

/// Sets `tcp_limit_output_bytes` along with it.
const TSQ_LIMIT: &str = "net.quietline.tsq_limit";

/// Why a setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// There is no such setting, or nothing reads it.
    #[error("{name}: no such setting")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The value is not of the right form or out of bounds.
    #[error("{name}: {value:?} is not allowed: expected {allowed}")]
    Invalid {
        /// The setting.
        name: String,
        /// The value as given.
        value: String,
        /// What would be accepted.
        allowed: String,
    },
}

impl Sysctls {
    /// Sets a value from its text, as `sysctl -w NAME=VALUE` does. Numbers are decimal; several are separated by blanks.
    ///
    /// # Errors
    /// [`SysctlError`]; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        let dotted = dotted(name);
        if dotted.starts_with(device::PREFIX) {
            return self.devices.set(&dotted, value);
        }
        let entry = find(&dotted)?;
        if (entry.write)(self, value, &entry.allowed) {
            if entry.name == TSQ_LIMIT {
                // Who chooses a version of Linux gets its limit.
                self.tcp.tcp_limit_output_bytes = self.tcp.tsq_limit.default_limit_bytes();
            }
            Ok(())
        } else {
            let allowed = entry.to_string();
            Err(SysctlError::Invalid {
                name: entry.name.to_owned(),
                value: value.to_owned(),
                allowed,
            })
        }
    }

    /// As [`set`](Self::set), of a host that runs already.
    pub(crate) fn set_live(&mut self, name: &str, value: &str) -> Result<(), SysctlError> {
        let name = dotted(name);
        if AT_CONSTRUCTION.contains(&&*name) {
            let present = self.get(&name)?;
            if present != value.trim() {
                let allowed = format!("{present}: it is chosen when the host is built");
                return Err(SysctlError::Invalid { name, value: value.to_owned(), allowed });
            }
        }
        self.set(&name, value)
    }

    /// A value as text, as `sysctl -n NAME` prints it.
    ///
    /// # Errors
    /// [`SysctlError::Unknown`].
    pub fn get(&self, name: &str) -> Result<String, SysctlError> {
        let dotted = dotted(name);
        if dotted.starts_with(device::PREFIX) {
            return self.devices.get(&dotted);
        }
        find(&dotted).map(|entry| (entry.read)(self))
    }

    /// Every setting with its value, in the order of the table; the devices' come last.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'static, str>, String)> + '_ {
        let table = TABLE.iter().map(|entry| (Cow::Borrowed(entry.name), (entry.read)(self)));
        table.chain(self.devices.iter().map(|(name, value)| (Cow::Owned(name), value)))
    }

    /// The names and what each accepts; those of devices as they are for all of them.
    pub fn names() -> impl Iterator<Item = (&'static str, String)> {
        TABLE.iter().map(|entry| (entry.name, entry.to_string())).chain(DeviceSysctls::names())
    }
}

/// A name with dots where sysctl(8) allows slashes.
fn dotted(name: &str) -> String {
    name.trim().replace('/', ".")
}

/// Finds a setting by its name with dots.
fn find(name: &str) -> Result<&'static Entry, SysctlError> {
    TABLE
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| SysctlError::Unknown { name: name.to_owned() })
}

impl fmt::Display for Entry {
    /// What the setting accepts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(self.form, &self.allowed))
    }
}

/// What a value of `form` with numbers in `allowed` looks like.
fn describe(form: &str, allowed: &RangeInclusive<u64>) -> String {
    let (low, high) = (allowed.start(), allowed.end());
    if allowed.is_empty() {
        form.to_owned()
    } else if low == high {
        format!("{low}: it cannot be changed")
    } else {
        format!("{form} from {low} to {high}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Settings that Linux does not have.
    const OURS: &str = "net.quietline.";

    /// Settings that Linux had, from 5.2 to 5.15.
    const GONE_FROM_LINUX: [&str; 2] = ["net.ipv4.tcp_tx_skb_cache", "net.ipv4.tcp_rx_skb_cache"];

    #[test]
    fn every_default_is_allowed_and_survives_the_round_trip() {
        let mut sysctls = Sysctls::default();
        for (name, value) in Sysctls::default().iter() {
            assert_eq!(sysctls.set(&name, &value), Ok(()), "{name} = {value}");
            assert_eq!(sysctls.get(&name).as_ref(), Ok(&value), "{name}");
        }
        assert_eq!(sysctls, Sysctls::default());
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = Sysctls::names().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Sysctls::names().count());
    }

    /// Linux is the reference for the names, where this machine shows them.
    #[test]
    fn names_are_the_kernels() {
        let path = |name: &str| format!("/proc/sys/{}", name.replace('.', "/"));
        if std::fs::metadata(path("net.ipv4.tcp_rmem")).is_err() {
            return;
        }
        let missing = |name: &&str| std::fs::metadata(path(name)).is_err();
        let linux = Sysctls::names().map(|(name, _)| name).filter(|name| !name.starts_with(OURS));
        let unknown: Vec<_> = linux.filter(missing).collect();
        // A kernel may be older than the youngest names.
        let unknown: Vec<_> =
            unknown.into_iter().filter(|name| !GONE_FROM_LINUX.contains(name)).collect();
        assert!(unknown.len() <= 2, "not in this kernel: {unknown:?}");
    }

    /// The names of a struct's fields, from its `Debug` text.
    fn fields(part: &str, value: &dyn fmt::Debug) -> Vec<String> {
        let text = format!("{value:#?}");
        let name = |line: &str| Some(line.strip_prefix("    ")?.split_once(':')?.0.to_owned());
        let names = text.lines().filter_map(name).filter(|name| !name.starts_with(' '));
        names.map(|name| format!("{part}{name}")).collect()
    }

    #[test]
    fn every_field_has_a_name() {
        let sysctls = Sysctls::default();
        let mut expected = fields("tcp.", &sysctls.tcp);
        expected.extend(fields("neigh.", &sysctls.neigh));
        expected.extend(fields("", &sysctls));
        expected.retain(|field| field != "tcp" && field != "neigh" && field != "devices");
        assert!(expected.len() > 40, "{expected:?}");
        let known: BTreeSet<_> =
            TABLE.iter().map(|entry| entry.field.replace(char::is_whitespace, "")).collect();
        let missing: Vec<_> = expected.iter().filter(|field| !known.contains(*field)).collect();
        assert!(missing.is_empty(), "no sysctl name: {missing:?}");
    }

    #[test]
    fn values_reach_their_fields() {
        let mut sysctls = Sysctls::default();
        sysctls.set("net.ipv4.tcp_rmem", " 4096\t131072  6291456 ").unwrap();
        sysctls.set("net.ipv4.tcp_fin_timeout", "30").unwrap();
        sysctls.set("net/ipv4/ip_local_port_range", "1024 65535").unwrap();
        sysctls.set("net.ipv4.neigh.default.retrans_time_ms", "250").unwrap();
        sysctls.set("net.ipv4.tcp_timestamps", "0").unwrap();
        sysctls.set("net.ipv4.tcp_congestion_control", " bbr\n").unwrap();
        assert_eq!(sysctls.tcp.tcp_congestion_control, tcp::Algorithm::Bbr);
        assert_eq!(sysctls.tcp.tcp_rmem.max, 6_291_456);
        assert_eq!(sysctls.tcp.tcp_fin_timeout, Duration::from_secs(30));
        assert_eq!(sysctls.ip_local_port_range, 1024..=65_535);
        assert_eq!(sysctls.neigh.retrans_time, Duration::from_millis(250));
        assert!(!sysctls.tcp.tcp_timestamps);
    }

    #[test]
    fn bad_values_say_what_is_allowed_and_change_nothing() {
        let bad = [
            ("net.ipv4.ip_default_ttl", "0"),
            ("net.ipv4.ip_default_ttl", "256"),
            ("net.ipv4.conf.all.arp_ignore", "3"),
            ("net.ipv4.ip_default_ttl", "-1"),
            ("net.ipv4.ip_default_ttl", "+1"),
            ("net.ipv4.ip_default_ttl", "0x40"),
            ("net.ipv4.ip_default_ttl", "64 64"),
            ("net.ipv4.ip_default_ttl", ""),
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv4.tcp_timestamps", "2"),
            ("net.ipv4.tcp_timestamps", "on"),
            ("net.ipv4.tcp_rmem", "4096 131072"),
            ("net.ipv4.tcp_rmem", "4096 131072 65536"),
            ("net.ipv4.tcp_rmem", "4096 131072 99999999999999999999"),
            ("net.ipv4.ip_local_port_range", "2000 1000"),
            ("net.ipv4.ip_local_port_range", "0 1000"),
            ("net.ipv4.tcp_fin_timeout", "1.5"),
            ("net.ipv4.tcp_congestion_control", "vegas"),
            ("net.ipv4.tcp_congestion_control", ""),
            ("net.ipv4.tcp_available_congestion_control", "cubic"),
        ];
        for (name, value) in bad {
            let mut sysctls = Sysctls::default();
            let error = sysctls.set(name, value).unwrap_err();
            assert!(matches!(error, SysctlError::Invalid { .. }), "{name} = {value}");
            assert_eq!(sysctls, Sysctls::default(), "{name} = {value}");
        }
    }

    #[test]
    fn errors_are_one_clear_line() {
        let mut sysctls = Sysctls::default();
        let mut message = |name, value| sysctls.set(name, value).unwrap_err().to_string();
        assert_eq!(
            message("net.ipv4.ip_default_ttl", "900"),
            "net.ipv4.ip_default_ttl: \"900\" is not allowed: expected a number from 1 to 255"
        );
        assert_eq!(
            message("net.ipv4.tcp_wmem", "1"),
            "net.ipv4.tcp_wmem: \"1\" is not allowed: expected three numbers in ascending order, each from 1 to 2147483647"
        );
        assert_eq!(
            message("net.ipv4.ip_forward", "1"),
            "net.ipv4.ip_forward: \"1\" is not allowed: expected 0: it cannot be changed"
        );
        assert_eq!(
            message("net.ipv4.tcp_congestion_control", "vegas"),
            "net.ipv4.tcp_congestion_control: \"vegas\" is not allowed: expected one of cubic reno bbr dctcp"
        );
        assert_eq!(message("net.ipv4.nonsense", "1"), "net.ipv4.nonsense: no such setting");
    }
}
