//! Settings of the host itself: the fields of [`Sysctls`] and their rows.
//!
//! A row is a documentation comment, the field with its default, the codec with its bounds, the
//! tier, and the name. The comment is the text of docs/sysctl.md and of `quietline sysctl`:
//! complete sentences with the unit, the effect and the reason to change the value.
//!
//! Not here: rows of `TcpConfig` and `NeighborConfig` (`tcp_rows`), rows of devices (`device`).

use std::{ops::RangeInclusive, time::Duration};

use pkt::DomainConfig;
use sync::TsqProtocol;
use tcp::TcpConfig;

use super::{
    DeviceSysctls, Entry, INT_MAX, Tier, WORDS,
    codec::{
        ArpIgnores, AvailableCongestionControl, BusyPollFlushes, Codec, DefaultQdiscs, DevOrphans,
        DstChecks, DstLayouts, DstRefModes, FastOpenKey, GroExits, Keys, Mask, Micros, Millis,
        Number, Pages, Ports, PowerOfTwo, Presets, RoundedUp, RxContexts, RxDstModes, Seconds,
        Switch, TsqProtocols,
    },
    entry,
    modes::{
        ArpIgnore, BusyPollFlush, DefaultQdisc, DevOrphan, DstCheck, DstLayout, DstRefMode,
        GroExit, NeighborConfig, Preset, RxContext, RxDstMode,
    },
};
use crate::base::{limits::WEIGHT, tcp_memory::MemoryLimits};

/// Expands the rows below into [`Sysctls`] and [`HOST_TABLE`].
macro_rules! host_rows {
    ($(
        $(#[doc = $doc:literal])*
        $field:ident: $type:ty = $default:expr, $codec:ident $allowed:expr, $tier:ident, $name:literal;
    )*) => {
        /// All settings of a host, as plain values. Each call into a running host uses one set from
        /// beginning to end.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Sysctls {
            $($(#[doc = $doc])* pub $field: $type,)*
            /// Settings of the TCP engine.
            pub tcp: TcpConfig,
            /// Settings of neighbor resolution for IPv4.
            pub neigh: NeighborConfig,
            /// Settings of neighbor resolution for IPv6.
            pub neigh_v6: NeighborConfig,
            /// Settings of each device.
            pub devices: DeviceSysctls,
        }

        impl Default for Sysctls {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    tcp: TcpConfig::default(),
                    neigh: NeighborConfig::default(),
                    neigh_v6: NeighborConfig::default(),
                    devices: DeviceSysctls::default(),
                }
            }
        }

        pub(super) const HOST_TABLE: &[Entry] =
            &[$(entry!(concat!($($doc),*), $name, $tier, $codec $allowed, $field),)*];
    };
}

// The preset is the first row, because it changes other settings: if a saved list of all settings
// is set again in this order, each setting gets its saved value.
host_rows! {
    /// Sets the settings that together reproduce the data path of a version of Linux: receive
    /// contexts, early demux, references to route entries, the way out of receive offload, busy
    /// polling, TCP Small Queues, autocorking, ACKs for a backlog and packet recycling.
    /// docs/mechanisms.md lists the values. A setting that is set later keeps its own value. While
    /// a host runs, a preset does not change `net.quietline.dst_layout`. Set it to compare
    /// versions.
    preset: Preset = Preset::Default, Presets WORDS, Lab, "net.quietline.preset";
    /// Time to live of sent IP packets, in hops. Raise it if destinations are more than 64 routers
    /// away; a socket overrides it with `IP_TTL`.
    ip_default_ttl: u8 = 64, Number 1..=255, Operate, "net.ipv4.ip_default_ttl";
    /// Selects the ARP requests for addresses of this host that are answered. 0: all, on any
    /// device. 1: those that arrive on the device of the address. 2: as 1, and the sender must be
    /// in the subnet of the address. 8: none. A request without an answer is dropped and does not
    /// change the neighbor table. Differs from Linux, where the default is 0: a host with several
    /// devices on one link would answer with the link address of each. Set 0 if an address must be
    /// reachable on all devices of such a host.
    arp_ignore: ArpIgnore = ArpIgnore::OwnDevice, ArpIgnores WORDS, Operate, "net.ipv4.conf.all.arp_ignore";
    /// Drops gratuitous ARP packets, which are requests and replies whose sender address and target
    /// address are the same. Announcements then change no neighbor entry. Set it where
    /// announcements are forged, and see `net.quietline.arp_strict` for all other ARP packets.
    drop_gratuitous_arp: bool = false, Switch 0..=1, Operate, "net.ipv4.conf.all.drop_gratuitous_arp";
    /// Selects the ARP packets that change the neighbor table. 0: every packet changes the entry of
    /// its sender, and a request to this host creates one, as in Linux. 1: only the reply to a
    /// pending request of this host does, that is the first reply for an unresolved address, or one
    /// from the known link address. 2: none does, and only configured neighbors are reachable. Set
    /// 1 or 2 on links with untrusted stations.
    arp_strict: u8 = 0, Number 0..=2, Operate, "net.quietline.arp_strict";
    /// Reverse-path filter of received packets (RFC 3704). 0: no check. 1: the best route back to
    /// the source must use the device that received the packet. 2: any unicast route back is
    /// enough. The source of an established connection is checked again only after the routes or
    /// this setting change. Set 1 on hosts with several devices and symmetric routes, 2 on hosts
    /// with asymmetric ones.
    rp_filter: u8 = 0, Number 0..=2, Operate, "net.ipv4.conf.all.rp_filter";
    /// Accepts ICMP redirects: packets to the destination then go to another router of the link for
    /// five minutes. A redirect must come from the present router and quote a segment in flight or
    /// a datagram of an open socket. Set 0 on links with untrusted stations.
    accept_redirects: bool = true, Switch 0..=1, Operate, "net.ipv4.conf.all.accept_redirects";
    /// Accepts ICMP redirects only to next hops that some route to the destination has, of any
    /// prefix or metric. In Linux this setting has no effect unless `shared_media` is off. Set 0 if
    /// routers redirect to gateways that no route names.
    secure_redirects: bool = true, Switch 0..=1, Operate, "net.ipv4.conf.all.secure_redirects";
    /// Forwarding of packets for other hosts. It is always 0, because this stack is a host and not
    /// a router.
    ip_forward: bool = false, Switch 0..=0, Operate, "net.ipv4.ip_forward";
    /// Mode of path MTU discovery. 0: it is on. 1: packets leave without DF, and a report lowers
    /// the path MTU to `route.min_pmtu`. 2: packets leave without DF, and reports are ignored. 3:
    /// it is on, but reports about datagrams are ignored, because only TCP can validate a report.
    /// Set 1 or 2 if routers of the path filter ICMP; `tcp_mtu_probing` is the better remedy.
    ip_no_pmtu_disc: u8 = 0, Number 0..=3, Operate, "net.ipv4.ip_no_pmtu_disc";
    /// Time after which a path MTU from an ICMP report expires, in seconds (RFC 1191 §6.3). Lower
    /// it if paths change often: the larger MTU is then tried again sooner, at the price of one
    /// lost segment each time.
    route_mtu_expires: Duration = Duration::from_secs(600), Seconds 1..=INT_MAX, Tune, "net.ipv4.route.mtu_expires";
    /// Smallest path MTU that an ICMP report may set, in bytes. A report below it sets this value,
    /// and packets of the path leave without DF. Raise it if no path of the network is that narrow:
    /// it bounds the harm of forged reports.
    route_min_pmtu: u32 = 552, Number 68..=65_535, Tune, "net.ipv4.route.min_pmtu";
    /// Selection among the next hops of a route that has several. 0: by the addresses of a packet,
    /// so that all flows between two hosts take one path. 1: by the addresses and ports of a
    /// connection; datagrams still by their addresses. Set 1 if few pairs of hosts have many
    /// connections.
    fib_multipath_hash_policy: u8 = 0, Number 0..=1, Operate, "net.ipv4.fib_multipath_hash_policy";
    /// Memory of all fragments of incomplete datagrams, in bytes. Beyond it, the source whose
    /// fragments have most of it loses its oldest datagram. 0: fragments are dropped. Raise it if
    /// many peers send fragments at the same time.
    ipfrag_high_thresh: u32 = 4 << 20, Number 0..=INT_MAX, Operate, "net.ipv4.ipfrag_high_thresh";
    /// Time after which an incomplete datagram is dropped, in seconds. Its sender gets an ICMP
    /// error if the first fragment has arrived. Lower it where fragments are lost often, so that
    /// their memory is free sooner.
    ipfrag_time: Duration = Duration::from_secs(30), Seconds 1..=INT_MAX, Operate, "net.ipv4.ipfrag_time";
    /// Largest number of fragments of one source that may arrive between two fragments of one of
    /// its datagrams. Beyond it, the identification counts as reused, and the earlier fragments are
    /// dropped. 0: no limit. Raise it if more packets than that overtake a fragment.
    ipfrag_max_dist: u32 = 64, Number 0..=INT_MAX, Tune, "net.ipv4.ipfrag_max_dist";
    /// Hop limit of sent IPv6 packets, in hops. Raise it if destinations are more than 64 routers
    /// away; a socket overrides it with `IPV6_UNICAST_HOPS`.
    ip6_hop_limit: u8 = 64, Number 1..=255, Operate, "net.ipv6.conf.all.hop_limit";
    /// Flow labels of sent IPv6 segments (RFC 6437): 20 bits of a keyed hash of the four-tuple, so
    /// that routers spread connections over equal paths. 0: none. 1: labels, unless the socket
    /// clears `IPV6_AUTOFLOWLABEL`. 2: labels only if the socket sets it. 3: labels on all. Set 0
    /// if a router on the path uses labels for another purpose.
    ip6_auto_flowlabels: u8 = 1, Number 0..=3, Operate, "net.ipv6.auto_flowlabels";
    /// Memory of all IPv6 fragments of incomplete datagrams, in bytes, as
    /// `net.ipv4.ipfrag_high_thresh`. Raise it if many peers send fragments at the same time.
    ip6frag_high_thresh: u32 = 4 << 20, Number 0..=INT_MAX, Operate, "net.ipv6.ip6frag_high_thresh";
    /// Time after which an incomplete IPv6 datagram is dropped, in seconds (RFC 8200 §4.5), as
    /// `net.ipv4.ipfrag_time`. Lower it where fragments are lost often.
    ip6frag_time: Duration = Duration::from_secs(60), Seconds 1..=INT_MAX, Operate, "net.ipv6.ip6frag_time";
    /// Time after which a path MTU from an ICMPv6 report expires, in seconds (RFC 8201 §4). Lower
    /// it if paths change often.
    ip6_route_mtu_expires: Duration = Duration::from_secs(600), Seconds 1..=INT_MAX, Tune, "net.ipv6.route.mtu_expires";
    /// Accepts ICMPv6 redirects from the present router (RFC 4861 §8): packets to the destination
    /// then go to another router of the link, or to the destination itself, for five minutes. Set 0
    /// on links with untrusted stations.
    ip6_accept_redirects: bool = true, Switch 0..=1, Operate, "net.ipv6.conf.all.accept_redirects";
    /// Default of `IPV6_V6ONLY`. 0: a listener on `[::]` also accepts IPv4 connections, whose peers
    /// appear as v4-mapped addresses. 1: it accepts IPv6 only. Set 1 if other programs listen on
    /// the same ports for IPv4.
    bindv6only: bool = false, Switch 0..=1, Operate, "net.ipv6.bindv6only";
    /// Number of neighbor solicitations before an IPv6 address of an Ethernet device is used
    /// (RFC 4862 §5.4); they are `net.ipv6.neigh.default.retrans_time_ms` apart. An address that
    /// another station has is refused. It applies when the host starts and when an address is
    /// added. Set 0, no probes, on links where no address can be assigned twice: the host then
    /// starts a second or two sooner.
    dad_transmits: u32 = 1, Number 0..=10, Operate, "net.ipv6.conf.all.dad_transmits";
    /// Adds a random number to the probes of an IPv6 address, by which the host recognizes a probe
    /// that a loop in the link sends back (RFC 7527). 0: such a probe is taken for that of another
    /// station, and the address is refused. Set 0 only if a station of the link does not bear the
    /// option.
    enhanced_dad: bool = true, Switch 0..=1, Operate, "net.ipv6.conf.all.enhanced_dad";
    /// Acceptance of router advertisements on Ethernet devices (RFC 4861, RFC 4862). 1: the host
    /// solicits routers when it starts, and takes a default route, prefixes and addresses from
    /// them; interface identifiers are stable and opaque (RFC 7217). 0: none of that. Differs from
    /// Linux, where the default is 1: a host that names its addresses gets no others. Set 1 on
    /// links whose routers are trusted, before the host starts, because its start assigns
    /// link-local addresses and solicits routers.
    accept_ra: bool = false, Switch 0..=1, Operate, "net.ipv6.conf.all.accept_ra";
    /// Temporary addresses in prefixes of routers, besides the stable one (RFC 8981). 0: none. 1:
    /// formed, but connections prefer the stable address. 2: connections prefer a temporary one.
    /// Set 2 on clients that must not be recognized by their addresses. It needs `accept_ra`.
    use_tempaddr: u8 = 0, Number 0..=2, Operate, "net.ipv6.conf.all.use_tempaddr";
    /// Longest time for which a temporary address is valid, in seconds. Raise it if connections
    /// last longer.
    temp_valid_lft: Duration = Duration::from_secs(604_800), Seconds 1..=INT_MAX, Tune, "net.ipv6.conf.all.temp_valid_lft";
    /// Longest time for which new connections use a temporary address, in seconds. Lower it to
    /// change addresses more often.
    temp_prefered_lft: Duration = Duration::from_secs(86_400), Seconds 1..=INT_MAX, Tune, "net.ipv6.conf.all.temp_prefered_lft";
    /// Upper bound of the random time by which the preferred lifetime of a temporary address is
    /// shortened, in seconds and at most 0.4 of that lifetime, so that the hosts of a link do not
    /// change addresses together. Set 0 to use each for the whole time.
    max_desync_factor: Duration = Duration::from_secs(600), Seconds 0..=INT_MAX, Tune, "net.ipv6.conf.all.max_desync_factor";
    /// First and last local port of connections that name none (RFC 6056). Widen it on clients that
    /// open many connections to one server.
    ip_local_port_range: RangeInclusive<u16> = 32_768..=60_999, Ports 1..=65_535, Operate, "net.ipv4.ip_local_port_range";
    /// Lookup of established connections by four-tuple before the route lookup of a received
    /// packet. The connection caches its input route entry, which saves the route lookup. Set 0
    /// only on hosts that receive mostly packets without a connection.
    ip_early_demux: bool = true, Switch 0..=1, Tune, "net.ipv4.ip_early_demux";
    /// Early lookup of established TCP connections; it is on if this and `ip_early_demux` are both
    /// 1. Set 0 only together with `ip_early_demux`, or to measure what the early lookup saves.
    tcp_early_demux: bool = true, Switch 0..=1, Tune, "net.ipv4.tcp_early_demux";
    /// Early lookup of connected UDP sockets; it is on if this and `ip_early_demux` are both 1. Set
    /// 0 only together with `ip_early_demux`, or to measure what the early lookup saves.
    udp_early_demux: bool = true, Switch 0..=1, Tune, "net.ipv4.udp_early_demux";
    /// Reference counting of route entries (dst). `cas_inc_not_zero`: packets over loopback hold a
    /// reference, taken by a loop of compare-and-swap. `rcuref`: the same with one atomic addition.
    /// `sharded`: the same, in a word for each CPU while the entry is in use for lookups. `noref`:
    /// packets hold none unless they are queued. A change invalidates all cached routes. Change it
    /// to reproduce the costs of older Linux versions.
    dst_ref: DstRefMode = DstRefMode::Noref, DstRefModes WORDS, Lab, "net.quietline.dst_ref";
    /// Source of the validity of a route entry that a socket caches, for each packet that the
    /// socket sends or processes. `entry`: the entry's own generation, as in Linux. `generation`: a
    /// copy of it beside the cached entry, so that the socket reads no cache line that reference
    /// counting writes. Early demux reads the entry in both cases. A change invalidates all cached
    /// routes. Set `entry` to measure `net.quietline.dst_layout`, which matters most if sockets
    /// read the entry.
    dst_check: DstCheck = DstCheck::Generation, DstChecks WORDS, Lab, "net.quietline.dst_check";
    /// Place of a route entry's reference count. `packed`: on the cache line that every packet
    /// reads. `padded`: on a line of its own. `filled`: on a line with fields that no packet reads.
    /// It is fixed when the host is built. Change it to measure false sharing.
    dst_layout: DstLayout = DstLayout::Filled, DstLayouts WORDS, Lab, "net.quietline.dst_layout";
    /// Treatment of a packet's route entry when the packet is queued for another thread. `force`:
    /// the packet holds a reference. `optimistic_drop`: it holds none if the socket has an entry.
    /// `rcu_clear_then_release`: it holds none if the socket's entry is valid and belongs to the
    /// receiving device. Change it to reproduce older Linux versions.
    rx_dst_mode: RxDstMode = RxDstMode::RcuClearThenRelease, RxDstModes WORDS, Lab, "net.quietline.rx_dst_mode";
    /// Number of ARP probes before an address of an Ethernet device is used (RFC 5227, which says
    /// 3). An address that another station owns is refused; an address in use is announced and
    /// defended. 0: no probes and no announcements. Set it to 3 on links where addresses may be
    /// assigned twice. It applies when the host starts and when an address is added.
    acd_probes: u32 = 0, Number 0..=10, Operate, "net.quietline.acd_probes";
    /// Unit of the pauses between ARP probes and announcements, in milliseconds; a pause between
    /// two probes is a random time of one to two units. RFC 5227 says 1000. Lower it to some 20 on
    /// links inside one machine, so that the host starts sooner.
    acd_interval: Duration = Duration::from_secs(1), Millis 1..=60_000, Operate, "net.quietline.acd_interval_ms";
    /// Ignores all ICMP echo requests. Set it if the host must not answer ping.
    icmp_echo_ignore_all: bool = false, Switch 0..=1, Operate, "net.ipv4.icmp_echo_ignore_all";
    /// Ignores ICMP echo requests to broadcast and multicast addresses (RFC 1122 §3.2.2.6). Set 0
    /// only for diagnosis: the answers of all hosts of a link to one forged request are an attack
    /// on its source.
    icmp_echo_ignore_broadcasts: bool = true, Switch 0..=1, Operate, "net.ipv4.icmp_echo_ignore_broadcasts";
    /// Shortest time between two ICMP errors to one destination, in milliseconds, for the types of
    /// `icmp_ratemask` and for all errors of ICMPv6; up to six may follow each other sooner. 0: no
    /// limit. Lower it if many clients behind one address need the errors.
    icmp_ratelimit: Duration = Duration::from_secs(1), Millis 0..=INT_MAX, Operate, "net.ipv4.icmp_ratelimit";
    /// Types of ICMP messages that are limited, a sum of powers of two by type: 8 is destination
    /// unreachable. The limits are `icmp_ratelimit` and `icmp_msgs_per_sec`. Set other bits to
    /// limit echo replies (1), too.
    icmp_ratemask: u32 = 6168, Number 0..=INT_MAX, Operate, "net.ipv4.icmp_ratemask";
    /// Limited ICMP messages that the host sends to all destinations together, per second. Each
    /// takes a random number of tokens, so that no destination can count the messages to others.
    /// Raise it on hosts with many legitimate clients.
    icmp_msgs_per_sec: u32 = 1000, Number 1..=1_000_000, Operate, "net.ipv4.icmp_msgs_per_sec";
    /// Limited ICMP messages that the host sends in a burst, beyond which `icmp_msgs_per_sec`
    /// applies. Raise it together with `icmp_msgs_per_sec`.
    icmp_msgs_burst: u32 = 50, Number 1..=INT_MAX, Operate, "net.ipv4.icmp_msgs_burst";
    /// Largest number of sources in the filter of a group that an IPv4 socket has joined. Raise it
    /// for applications that receive a group from many sources.
    igmp_max_msf: u32 = 10, Number 0..=INT_MAX, Operate, "net.ipv4.igmp_max_msf";
    /// Largest number of sources in the filter of a group that an IPv6 socket has joined. Raise it
    /// for applications that receive a group from many sources.
    mld_max_msf: u32 = 64, Number 0..=INT_MAX, Operate, "net.ipv6.mld_max_msf";
    /// Ignores all ICMPv6 echo requests. Set it if the host must not answer ping.
    icmp6_echo_ignore_all: bool = false, Switch 0..=1, Operate, "net.ipv6.icmp.echo_ignore_all";
    /// Ignores ICMPv6 echo requests to multicast addresses. Differs from Linux, where the default
    /// is 0: the answers of all hosts of a link to one forged request are an attack on its source.
    /// Set 0 for diagnosis.
    icmp6_echo_ignore_multicast: bool = true, Switch 0..=1, Operate, "net.ipv6.icmp.echo_ignore_multicast";
    /// Largest number of half-open connections per listener; the listener's backlog bounds them as
    /// well. Beyond it, SYN cookies answer (`tcp_syncookies`), or SYNs are dropped. Raise it,
    /// `somaxconn` and the backlog on servers that accept many connections at once.
    tcp_max_syn_backlog: u32 = 4096, Number 1..=INT_MAX, Operate, "net.ipv4.tcp_max_syn_backlog";
    /// SYN cookies (RFC 4987). 0: never. 1: if the queue of half-open connections is full. 2: for
    /// every SYN, unless it reopens a connection in TIME-WAIT. Keep 1 on servers that untrusted
    /// clients reach; 2 is for tests.
    tcp_syncookies: u8 = 1, Number 0..=2, Operate, "net.ipv4.tcp_syncookies";
    /// Largest number of connections in TIME-WAIT; a further one is closed at once, without the
    /// protection of that state. Raise it rather than lower it: an entry is small.
    tcp_max_tw_buckets: u32 = 262_144, Number 0..=INT_MAX, Operate, "net.ipv4.tcp_max_tw_buckets";
    /// Reuse of a four-tuple in TIME-WAIT by a new outgoing connection whose port the host chooses
    /// (RFC 6191). 0: never. 1: if both connections have timestamps. 2: as 1, over loopback only.
    /// Set 1 on clients that run out of local ports.
    tcp_tw_reuse: u8 = 2, Number 0..=2, Operate, "net.ipv4.tcp_tw_reuse";
    /// Time that a connection must have been in TIME-WAIT before `tcp_tw_reuse` applies to it, in
    /// milliseconds. Lower it only on paths where no segment can be that late.
    tcp_tw_reuse_delay: Duration = Duration::from_secs(1), Millis 1..=60_000, Tune, "net.ipv4.tcp_tw_reuse_delay";
    /// Largest number of connections that no application holds and that have not ended; a further
    /// one is reset. Raise it on busy servers with slow clients; each holds the memory of its send
    /// buffer.
    tcp_max_orphans: u32 = 65_536, Number 0..=INT_MAX, Operate, "net.ipv4.tcp_max_orphans";
    /// Largest number of connections, half-open requests and connections in TIME-WAIT together; 0
    /// is no limit. Beyond it a SYN is dropped (`CONNECTION_LIMIT`) and `connect` fails with
    /// `ENOBUFS`; both count `SocketConnectionLimit`. Set it where the connections must fit into a
    /// bound of memory: an idle one takes 3 KB.
    tcp_max_connections: u32 = 0, Number 0..=INT_MAX, Operate, "net.quietline.tcp_max_connections";
    /// Memory of all TCP connections together, in pages of 4 KB: the level below which pressure
    /// ends, the level above which it begins, and the limit. The default is a part of the packet
    /// memory that the host is given. Set it if this host shares packet memory with others.
    tcp_mem: MemoryLimits = MemoryLimits::for_packets(DomainConfig::default().max_bytes), Pages 1..=INT_MAX, Operate, "net.ipv4.tcp_mem";
    /// Memory of the receive queues of all datagram sockets together, in pages of 4 KB. Datagrams
    /// beyond the third number are dropped (`UdpMemErrors`); the first bounds the batches in which
    /// pages are counted, the second has no effect. Set it if this host shares packet memory with
    /// others.
    udp_mem: MemoryLimits = MemoryLimits::for_packets(DomainConfig::default().max_bytes), Pages 1..=INT_MAX, Operate, "net.ipv4.udp_mem";
    /// Initial receive buffer of a datagram socket, in bytes of packet memory. Raise it if
    /// `UdpRcvbufErrors` counts and applications do not set `SO_RCVBUF`.
    rmem_default: u32 = 212_992, Number 2304..=INT_MAX, Operate, "net.core.rmem_default";
    /// Initial send buffer of a datagram socket, in bytes of packet memory. It bounds the datagrams
    /// in queueing disciplines and devices. Raise it if `UdpSndbufErrors` counts on fast devices.
    wmem_default: u32 = 212_992, Number 4608..=INT_MAX, Operate, "net.core.wmem_default";
    /// Congestion-control algorithms that `tcp_congestion_control` and `TCP_CONGESTION` accept.
    /// Read-only.
    tcp_available_congestion_control: () = (), AvailableCongestionControl WORDS, Operate, "net.ipv4.tcp_available_congestion_control";
    /// TCP Fast Open (RFC 7413), a sum of flags. 1: clients use it. 2: servers accept it. 4:
    /// clients send data without a cookie. 512: servers accept data without a cookie. 1024: every
    /// listener accepts it without a socket option. Set 3 if clients and servers tolerate a request
    /// that is delivered twice.
    tcp_fastopen: u32 = 1, Number 0..=INT_MAX, Operate, "net.ipv4.tcp_fastopen";
    /// Keys of the Fast Open cookies of this host's listeners. Without a value the host draws one
    /// key at its start. Set the same keys on all servers behind one address; the second key is the
    /// previous one, whose cookies stay valid.
    tcp_fastopen_key: Option<FastOpenKey> = None, Keys 0..=15, Operate, "net.ipv4.tcp_fastopen_key";
    /// Time in seconds for which clients do without Fast Open after a path seems to drop SYNs with
    /// data; the time doubles with each further suspicion. 0: Fast Open is never suspended. Set
    /// 3600 on networks with such middleboxes.
    tcp_fastopen_blackhole_timeout_sec: Duration = Duration::ZERO, Seconds 0..=INT_MAX, Operate, "net.ipv4.tcp_fastopen_blackhole_timeout_sec";
    /// Upper bound of the backlog that an application passes to `listen`, in connections. Raise it
    /// if `TcpExtListenOverflows` counts and the application asks for a larger backlog.
    somaxconn: u32 = 4096, Number 1..=INT_MAX, Operate, "net.core.somaxconn";
    /// Time for which a thread that waits for data polls its core before it sleeps, in
    /// microseconds; `SO_BUSY_POLL` overrides it. 0: it sleeps at once. Differs from Linux, where
    /// the default is 0: a wake-up costs about 7 µs here, and 50 is the value that Linux recommends
    /// for low latency. A thread that shares its CPU sleeps at once in any case. Set 0 where CPU
    /// time is worth more than latency.
    busy_read: u32 = 50, Number 0..=1_000_000, Operate, "net.core.busy_read";
    /// Time for which a thread that waits for anything but data polls its core before it sleeps, in
    /// microseconds: for room to send, a connection to accept, or the end of a handshake. 0: it
    /// sleeps at once. In Linux it applies to poll and select. Set 0 where CPU time is worth more
    /// than latency.
    busy_poll: u32 = 50, Number 0..=1_000_000, Operate, "net.core.busy_poll";
    /// Upper bound of the time for which the worker of a core with descriptors keeps polling after
    /// it has received frames, in microseconds. The actual time adapts: it approaches the bound
    /// while frames arrive at shorter intervals, and is 0 on an idle core. 0: the worker always
    /// sleeps at once. Set 0 where CPU time is worth more than latency.
    worker_poll: u32 = 50, Number 0..=1_000_000, Operate, "net.quietline.worker_poll_usecs";
    /// Context in which TCP processes segments for a thread that is blocked in `recv`. `bh`: in
    /// softirq context, as Linux since 4.14. `prequeue_ref`, `prequeue_drop`,
    /// `prequeue_drop_limited`: in that thread, by a prequeue as in Linux before 3.18, from 3.18,
    /// and from 4.7 to 4.13, respectively. Change it to compare the contexts.
    rx_context: RxContext = RxContext::Bh, RxContexts WORDS, Lab, "net.quietline.rx_context";
    /// Disables the prequeue, also if `net.quietline.rx_context` selects it. Linux had this switch
    /// for the prequeue. Set it to compare both contexts without a change of the mode.
    tcp_low_latency: bool = false, Switch 0..=1, Lab, "net.ipv4.tcp_low_latency";
    /// Answers all segments of a socket's backlog with one ACK when the owner releases the socket,
    /// instead of one ACK for every second segment. Set 0 if senders rely on frequent ACKs to open
    /// their congestion windows.
    tcp_backlog_ack_defer: bool = true, Switch 0..=1, Tune, "net.ipv4.tcp_backlog_ack_defer";
    /// Number of packets that receive offload collects before it passes them to IP as one list; the
    /// list also leaves at the end of each poll. `net.quietline.gro_exit` selects whether a
    /// superframe (a packet merged from several segments) counts as 1 or as its segments. 1: no
    /// lists. Raise it for bulk traffic without superframes.
    gro_normal_batch: u32 = 8, Number 1..=INT_MAX, Tune, "net.core.gro_normal_batch";
    /// Way in which packets leave receive offload. `immediate`: one by one, as before Linux 5.4.
    /// `normal_only_list`: unmerged packets in a list, superframes one by one, which can reorder a
    /// flow. `unified_list_packets`: all in a list, a superframe counts as 1 (Linux 5.5).
    /// `unified_list_segments`: all in a list, a superframe counts as its segments (Linux 5.11).
    /// Change it to compare them.
    gro_exit: GroExit = GroExit::UnifiedListSegments, GroExits WORDS, Lab, "net.quietline.gro_exit";
    /// Packets that leave receive offload after a cycle of busy polling, if another cycle follows.
    /// `none`: none before the list is full or polling ends. `rx_list_per_cycle`: the list, as in
    /// Linux. `rx_list_and_old_gro_per_cycle`: the list, packets held since an earlier millisecond,
    /// and everything after a cycle without a packet. Change it to compare the delays.
    busy_poll_flush: BusyPollFlush = BusyPollFlush::RxListAndOldGroPerCycle, BusyPollFlushes WORDS, Lab, "net.quietline.busy_poll_flush";
    /// Number of packets that a core receives from its devices in one turn (one pass of its softirq
    /// work) before it runs timers and deferred work; the last poll may exceed it. Raise it if
    /// `SoftnetTimeSqueeze` counts and latency of timers matters less than throughput.
    netdev_budget: u32 = 300, Number 1..=INT_MAX, Tune, "net.core.netdev_budget";
    /// Largest number of packets that wait for a core on their way from another (RPS), and in one
    /// queue of loopback. Beyond it, packets are dropped. Raise it if bursts are longer.
    netdev_max_backlog: u32 = 1000, Number 0..=INT_MAX, Operate, "net.core.netdev_max_backlog";
    /// Queueing discipline of devices that need one and have none configured. Set `fq` for many
    /// paced flows, `fq_codel` for slow links that interactive traffic shares;
    /// `net.quietline.dev.DEVICE.qdisc` sets it for one device.
    default_qdisc: DefaultQdisc = DefaultQdisc::PfifoFast, DefaultQdiscs WORDS, Operate, "net.core.default_qdisc";
    /// Moment at which a packet no longer counts towards the send memory of its socket.
    /// `completion`: when the device has sent it. `xmit`: when the device is given it, as drivers
    /// did that called `skb_orphan`; TCP Small Queues then have no effect. Change it to compare the
    /// queues.
    dev_orphan: DevOrphan = DevOrphan::Completion, DevOrphans WORDS, Lab, "net.quietline.dev_orphan";
    /// Number of freed packets that may wait for their return to the core that allocated them, with
    /// `net.quietline.skb_recycle` at `per_core_defer`. The packet that reaches this number is
    /// freed on the core that consumed it. 0: none waits. Change it to measure the batches of that
    /// mode.
    packet_defer_max: u32 = 64, Number 0..=INT_MAX, Lab, "net.core.skb_defer_max";
    /// Order of the steps by which TCP Small Queues stop a sender and wake it. `seed`: that of
    /// Linux 3.6, which can lose a wake-up. `robust`: that of Linux since 4.11. Set `seed` only to
    /// demonstrate the lost wake-ups.
    tsq_protocol: TsqProtocol = TsqProtocol::Robust, TsqProtocols WORDS, Lab, "net.quietline.tsq_protocol";
    /// Cores that apply the flow limit of RPS, one bit for each. If the backlog of the target core
    /// is at least half full, these cores drop packets of a flow that sent more than half of the
    /// recent packets. Set it where one flow must not crowd out the others.
    flow_limit_cpu_bitmap: u64 = 0, Mask WORDS, Tune, "net.core.flow_limit_cpu_bitmap";
    /// Number of buckets in which a core with a flow limit counts flows. Raise it if many flows
    /// share a core, so that fewer of them share a bucket.
    flow_limit_table_len: u32 = 4096, PowerOfTwo 1..=1 << 20, Tune, "net.core.flow_limit_table_len";
    /// Number of slots in the table that records on which core an application reads a flow (RFS);
    /// it is rounded up to a power of two. 0: no table, so RFS is off. Set it to a number above
    /// that of the active connections, together with `rps_flow_cnt` of the devices.
    rps_sock_flow_entries: u32 = 0, RoundedUp 0..=1 << 24, Operate, "net.core.rps_sock_flow_entries";
    /// Time for which a core may receive from its devices in one turn (one pass of its softirq
    /// work), in microseconds. 2000 is two ticks of a kernel with 1000 ticks a second. Lower it
    /// where timers must be punctual under load.
    netdev_budget_usecs: Duration = Duration::from_micros(2000), Micros 0..=INT_MAX, Tune, "net.core.netdev_budget_usecs";
    /// Largest number of packets that one poll takes from one queue, except in busy polling.
    /// Differs from Linux, where a device's weight is the constant 64 and this is the weight of the
    /// backlog. Lower it to make queues alternate sooner.
    dev_weight: usize = WEIGHT, Number 1..=WEIGHT as u64, Tune, "net.core.dev_weight";
}
