//! The table of socket options: the single place that defines an option.
//!
//! A row has up to four parts:
//!
//! 1. The documentation, the name in the enum, the level, the number, Linux's name and the form.
//! 2. `set STATES { CHECK }`: the socket states that allow setting the option, and the check of the
//!    value. `CHECK` returns the typed value `new`, or the errno.
//!    `with SETTER(ARGUMENTS) { VALUE }`: the typed setter of [`SocketSettings`], [`ListenOptions`]
//!    and [`ConnectOptions`]. It returns no error: `VALUE` is `new` within Linux's bounds.
//! 3. The places that keep `new`: `settings { … }` before the connection exists; then `tcb { … }`
//!    (the TCP engine, under the socket's lock), `socket { … }` (`SharedSettings`, without the
//!    lock) or `nowhere`.
//! 4. `get settings { … } tcb { … }`: the expressions that read the value from these two places.
//!
//! A row without `set` is read-only, and a row without `get` is write-only. The line `names` binds
//! the identifiers that the rows use.
//!
//! Not here: what a row becomes (`expand.rs`), the checks (`check.rs`), the copy of the settings
//! into a new connection (`shared.rs`, `tcp::SocketOptions`).

use core::time::Duration;

use tcp::{Algorithm, Keepalive};

use super::{
    AF_INET, Access, Form, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP, MemoryInfo,
    OptionValue, SOL_QUIETLINE, SOL_SOCKET, SocketSettings, SocketState, check, domain_of,
    expand::{access, options, setter, store},
    tcp_info,
};
use crate::{
    base::{errno::Errno, ids::CoreId},
    cx::Cx,
    socket::family::Family,
    socket::net::Net,
    socket::{ConnectOptions, Connection, ListenOptions},
    sysctl::{FastOpenKey, Sysctls},
    transmit::ip_output::MtuDiscover,
};

/// Value of `TCP_MAXSEG` without a connection and without a limit (`TCP_MSS_DEFAULT`).
const MSS_DEFAULT: u64 = 536;

/// All states: the option can always be set.
const ANY: &[SocketState] =
    &[SocketState::Fresh, SocketState::Listening, SocketState::Connected, SocketState::Datagram];
/// States of a stream socket without a connection.
const BEFORE: &[SocketState] = &[SocketState::Fresh, SocketState::Listening];
/// The state of datagram sockets.
const DATAGRAM: &[SocketState] = &[SocketState::Datagram];
/// The state before `connect` and `listen`.
const FRESH: &[SocketState] = &[SocketState::Fresh];

options! {
    names(new state kept socket tcb net cx given sysctls);

    /// Allows binding an address while connections from it are in TIME-WAIT. A bound port is shared
    /// with other connections that set the option, as long as the peers differ. Default off, but on
    /// in [`ListenOptions`], as in `std::net`.
    ReuseAddress = SOL_SOCKET 2, "SO_REUSEADDR", Int,
        set ANY { check::flag(given)? } with reuse_address(on: bool) { on }
        settings { kept.reuse_address = new } socket { socket.settings().set_reuse_address(new) },
        get settings { kept.reuse_address.into() }
        socket { socket.settings().reuse_address().into() };

    /// The kind of socket: 1, a stream, or 2, datagrams.
    Type = SOL_SOCKET 3, "SO_TYPE", Int,
        get settings { OptionValue::Int(state.kind()) }
        socket { OptionValue::Int(SocketState::Connected.kind()) };

    /// The pending error. Reading it clears it.
    Error = SOL_SOCKET 4, "SO_ERROR", Int,
        get settings { OptionValue::Int(0) }
        socket { OptionValue::Int(socket.take_error(net, cx).map_or(0, Errno::raw)) };

    /// Allows a datagram socket to send to broadcast addresses, which fails with `EACCES`
    /// otherwise. Default off.
    Broadcast = SOL_SOCKET 6, "SO_BROADCAST", Int,
        set DATAGRAM { check::flag(given)? }
        settings { kept.datagram.broadcast = new } nowhere { () },
        get settings { kept.datagram.broadcast.into() } socket { false.into() };

    /// Size of the send buffer in bytes; setting it ends autotuning. As in Linux, the buffer is
    /// twice the number, which leaves room for the overhead of packets. `SO_SNDBUF` is at most
    /// `net.core.wmem_max`; the typed setter has no such limit, as `SO_SNDBUFFORCE`. Default
    /// `net.ipv4.tcp_wmem`, and `net.core.wmem_default` for datagrams.
    SendBuffer = SOL_SOCKET 7, "SO_SNDBUF", Size,
        set ANY { check::sndbuf(given, Some(sysctls.tcp.wmem_max))? }
        with send_buffer(bytes: u32) { check::sndbuf_of(bytes) }
        settings { kept.tcp.sndbuf = Some(new) } tcb { tcb.set_sndbuf(new) },
        get settings { check::show(kept.tcp.sndbuf.unwrap_or(sysctls.tcp.tcp_wmem.default)) }
        tcb { check::show(tcb.sndbuf()) };

    /// Size of the receive buffer in bytes; setting it ends autotuning and determines the window
    /// scale of the SYN. As in Linux, the buffer is twice the number, which leaves room for the
    /// overhead of packets. `SO_RCVBUF` is at most `net.core.rmem_max`; the typed setter has no
    /// such limit, as `SO_RCVBUFFORCE`. Default `net.ipv4.tcp_rmem`, and `net.core.rmem_default`
    /// for datagrams.
    ReceiveBuffer = SOL_SOCKET 8, "SO_RCVBUF", Size,
        set ANY { check::rcvbuf(given, Some(sysctls.tcp.rmem_max))? }
        with receive_buffer(bytes: u32) { check::rcvbuf_of(bytes) }
        settings { kept.tcp.rcvbuf = Some(new) } tcb { tcb.set_rcvbuf(new) },
        get settings { check::show(kept.tcp.rcvbuf.unwrap_or(sysctls.tcp.tcp_rmem.default)) }
        tcb { check::show(tcb.rcvbuf()) };

    /// Sends probes on an idle connection. Default off.
    KeepAlive = SOL_SOCKET 9, "SO_KEEPALIVE", Int,
        set ANY { check::flag(given)? } with keepalive(on: bool) { on }
        settings { kept.tcp.keepalive = new }
        tcb { tcb.set_keepalive(cx, new.then(|| tcb.keepalive_times())) },
        get settings { kept.tcp.keepalive.into() } tcb { tcb.keepalive().into() };

    /// Delivers urgent data within the stream. Default off.
    OobInline = SOL_SOCKET 10, "SO_OOBINLINE", Int,
        set ANY { check::flag(given)? } with oob_inline(on: bool) { on }
        settings { kept.tcp.oob_inline = new } tcb { tcb.set_oob_inline(new) },
        get settings { kept.tcp.oob_inline.into() } tcb { tcb.oob_inline().into() };

    /// Sends datagrams over IPv4 without a checksum. Default off.
    NoCheck = SOL_SOCKET 11, "SO_NO_CHECK", Int,
        set DATAGRAM { check::flag(given)? }
        settings { kept.datagram.no_check = new } nowhere { () },
        get settings { kept.datagram.no_check.into() } socket { false.into() };

    /// Priority of sent packets, 0 to 6, by which a queueing discipline with several bands chooses
    /// the band. `IP_TOS` also sets the priority. Other numbers are `EPERM`. Default 0.
    Priority = SOL_SOCKET 12, "SO_PRIORITY", Int,
        set ANY { check::priority(given)? }
        with priority(priority: u8) { priority.min(check::PRIORITY_MAX) }
        settings { kept.ip.priority = new }
        socket { socket.settings().change_ip(|ip| ip.priority = new) },
        get settings { check::show(kept.ip.priority) }
        socket { check::show(socket.settings().ip_fields().priority) };

    /// Treatment of unsent data when the last handle of the socket is dropped. `None`, the default:
    /// the data is sent in the background. Zero: the connection is reset. Any other time: the drop
    /// waits for the data, at most that long.
    Linger = SOL_SOCKET 13, "SO_LINGER", Linger,
        set ANY { check::linger(given)? } with linger(time: Option<Duration>) { time }
        settings { kept.tcp.linger = new } tcb { tcb.set_linger(new) },
        get settings { OptionValue::Linger(kept.tcp.linger) }
        tcb { OptionValue::Linger(tcb.linger()) };

    /// Shares the port with other sockets that set the option. The hash of a connection's flow
    /// selects one of several listeners. A listener that closes resets the connections it has not
    /// accepted. Default off.
    ReusePort = SOL_SOCKET 15, "SO_REUSEPORT", Int,
        set ANY { check::flag(given)? } with reuse_port(on: bool) { on }
        settings { kept.reuse_port = new } socket { socket.settings().set_reuse_port(new) },
        get settings { kept.reuse_port.into() } socket { socket.settings().reuse_port().into() };

    /// Number of bytes that make a socket readable, at most half of the largest receive buffer
    /// (`SO_RCVBUF`, or the last number of `net.ipv4.tcp_rmem`). Default 1.
    ReceiveLowWater = SOL_SOCKET 18, "SO_RCVLOWAT", Size,
        set ANY { check::rcvlowat(given)? } with receive_low_water(bytes: u32) { bytes.max(1) }
        settings { kept.tcp.rcvlowat = Some(new) } tcb { tcb.set_rcvlowat(cx, new) },
        get settings { check::show(kept.tcp.rcvlowat.unwrap_or(1)) }
        socket { check::show(socket.rcvlowat()) };

    /// Number of free bytes that make a socket writable: always 1.
    SendLowWater = SOL_SOCKET 19, "SO_SNDLOWAT", Int,
        get settings { OptionValue::Int(1) } socket { OptionValue::Int(1) };

    /// Longest wait of a call that receives or accepts. `None`, the default, and zero set no limit.
    ReceiveTimeout = SOL_SOCKET 20, "SO_RCVTIMEO", Time,
        set ANY { check::time(given)? }
        with receive_timeout(limit: Option<Duration>) { check::not_zero(limit) }
        settings { kept.receive_timeout = new }
        socket { socket.settings().set_receive_timeout(new) },
        get settings { OptionValue::Time(kept.receive_timeout) }
        socket { OptionValue::Time(socket.settings().receive_timeout()) };

    /// Longest wait of a call that sends or connects. `None`, the default, and zero set no limit.
    SendTimeout = SOL_SOCKET 21, "SO_SNDTIMEO", Time,
        set ANY { check::time(given)? }
        with send_timeout(limit: Option<Duration>) { check::not_zero(limit) }
        settings { kept.send_timeout = new } socket { socket.settings().set_send_timeout(new) },
        get settings { OptionValue::Time(kept.send_timeout) }
        socket { OptionValue::Time(socket.settings().send_timeout()) };

    /// Whether the socket listens.
    AcceptConnections = SOL_SOCKET 30, "SO_ACCEPTCONN", Int,
        get settings { (state == SocketState::Listening).into() } socket { false.into() };

    /// `SO_SNDBUF` without the limit of `net.core.wmem_max`.
    SendBufferForce = SOL_SOCKET 32, "SO_SNDBUFFORCE", Size,
        set ANY { check::sndbuf(given, None)? }
        settings { kept.tcp.sndbuf = Some(new) } tcb { tcb.set_sndbuf(new) };

    /// `SO_RCVBUF` without the limit of `net.core.rmem_max`.
    ReceiveBufferForce = SOL_SOCKET 33, "SO_RCVBUFFORCE", Size,
        set ANY { check::rcvbuf(given, None)? }
        settings { kept.tcp.rcvbuf = Some(new) } tcb { tcb.set_rcvbuf(new) };

    /// The protocol: 6, TCP, or 17, UDP.
    Protocol = SOL_SOCKET 38, "SO_PROTOCOL", Int,
        get settings { OptionValue::Int(state.protocol()) }
        socket { OptionValue::Int(SocketState::Connected.protocol()) };

    /// The address family: 2 for IPv4, 10 for IPv6. Settings without a socket have that of IPv4.
    Domain = SOL_SOCKET 39, "SO_DOMAIN", Int,
        get settings { OptionValue::Int(AF_INET) }
        socket { domain_of(socket.local()) };

    /// Time for which a reading thread polls the socket's core before it sleeps, in microseconds.
    /// Default `net.core.busy_read`.
    BusyPoll = SOL_SOCKET 46, "SO_BUSY_POLL", Microseconds,
        set ANY { check::natural(given)? }
        with busy_poll(microseconds: u32) { microseconds.min(check::INT_MAX) }
        settings { kept.busy_poll.usecs = Some(new) }
        socket { socket.settings().change_busy_poll(|poll| poll.usecs = Some(new)) },
        get settings { check::show(kept.busy_poll.usecs.unwrap_or(sysctls.busy_read)) }
        socket { check::show(socket.busy_poll().usecs.unwrap_or_else(|| cx.sysctls_of(net).busy_read)) };

    /// Upper bound of the rate at which segments are sent, in bytes per second. `None`, the
    /// default, sets no bound; in `setsockopt`, all ones in 32 or 64 bits set none.
    MaxPacingRate = SOL_SOCKET 47, "SO_MAX_PACING_RATE", IntOrLong,
        set ANY { check::max_pacing_rate(given)? }
        with max_pacing_rate(rate: Option<u64>) { check::pacing_rate(rate.unwrap_or(u64::MAX)) }
        settings { kept.tcp.max_pacing_rate = new } tcb { tcb.set_max_pacing_rate(new) },
        get settings { check::show_max_pacing_rate(kept.tcp.max_pacing_rate) }
        tcb { check::show_max_pacing_rate(tcb.max_pacing_rate()) };

    /// Number of a core. Among the listeners or datagram sockets that share a port, those with this
    /// number receive the connections or datagrams that this core processes. With one listener and
    /// one accepting thread per core, the threads share no listener. Default none. Setting the
    /// option has an effect only before `listen`, or before a datagram socket is bound; reading it
    /// on a connection or datagram socket returns the core that received the last packets.
    IncomingCpu = SOL_SOCKET 49, "SO_INCOMING_CPU", Int,
        set ANY { check::core(given)? } with incoming_core(core: u16) { Some(CoreId(core)) }
        settings { kept.incoming_core = new } nowhere { () },
        get settings { OptionValue::Int(kept.incoming_core.map_or(-1, |core| i32::from(core.0))) }
        socket { check::show(socket.incoming_core().0) };

    /// The memory that the socket holds and may hold: the nine numbers of [`MemoryInfo`].
    MemoryInfo = SOL_SOCKET 55, "SO_MEMINFO", Bytes,
        get settings { MemoryInfo::of_none(&kept.tcp, sysctls).into() }
        socket { socket.memory_info(net, cx).into() };

    /// States that a thread which stops polling will poll again soon. Until then, the worker does
    /// not watch the core's queues (in Linux, their interrupts stay off), for at most the longest
    /// `gro_flush_timeout` of the core's devices. Default off.
    PreferBusyPoll = SOL_SOCKET 69, "SO_PREFER_BUSY_POLL", Int,
        set ANY { check::flag(given)? } with prefer_busy_poll(on: bool) { on }
        settings { kept.busy_poll.prefer = new }
        socket { socket.settings().change_busy_poll(|poll| poll.prefer = new) },
        get settings { kept.busy_poll.prefer.into() } socket { socket.busy_poll().prefer.into() };

    /// Number of frames that one cycle of polling receives at most. 0 selects the default, 8.
    BusyPollBudget = SOL_SOCKET 70, "SO_BUSY_POLL_BUDGET", Int,
        set ANY { check::frames(given)? }
        with busy_poll_budget(frames: u16) { (frames != 0).then_some(frames) }
        settings { kept.busy_poll.budget = new }
        socket { socket.settings().change_busy_poll(|poll| poll.budget = new) };

    /// The differentiated services field of sent IPv4 packets (RFC 2474 §3). On a datagram socket,
    /// the number includes the two ECN bits; on other sockets these bits are ignored, because TCP
    /// sets them. The option also sets the priority. Default 0.
    TypeOfService = IPPROTO_IP 1, "IP_TOS", ByteOrInt,
        set ANY { check::tos(given, state)? } with tos(tos: u8) { tos & check::TOS_MASK }
        settings { check::set_tos(&mut kept.ip, new) }
        socket { socket.settings().change_ip(|ip| check::set_tos(ip, new)) },
        get settings { check::show(kept.ip.tos) }
        socket { check::show(socket.settings().ip_fields().tos) };

    /// The TTL of sent IPv4 packets, 1 to 255. Default `net.ipv4.ip_default_ttl`, which -1 as
    /// `IP_TTL` restores.
    TimeToLive = IPPROTO_IP 2, "IP_TTL", ByteOrInt,
        set ANY { check::ttl(given)? } with ttl(hops: u8) { Some(hops.max(1)) }
        settings { kept.ip.ttl = new }
        socket { socket.settings().change_ip(|ip| ip.ttl = new) },
        get settings { check::show(kept.ip.ttl.unwrap_or(sysctls.ip_default_ttl)) }
        socket { {
            let ttl = socket.settings().ip_fields().ttl;
            check::show(ttl.unwrap_or_else(|| cx.sysctls_of(net).ip_default_ttl))
        } };

    /// Mode of path MTU discovery, `IP_PMTUDISC_DONT` to `IP_PMTUDISC_OMIT`.
    /// `net.ipv4.ip_no_pmtu_disc` selects the default.
    MtuDiscover = IPPROTO_IP 10, "IP_MTU_DISCOVER", ByteOrInt,
        set ANY { check::mtu_discover(given)? } with mtu_discover(mode: MtuDiscover) { Some(mode) }
        settings { kept.ip.mtu_discover = new }
        socket { socket.settings().change_ip(|ip| ip.mtu_discover = new) },
        get settings { check::show_mtu_discover(kept.ip.mtu_discover, sysctls) }
        socket { {
            let mode = socket.settings().ip_fields().mtu_discover;
            check::show_mtu_discover(mode, cx.sysctls_of(net))
        } };

    /// Reports an ICMP error of an open connection at once. If off, the default, the error is
    /// stored, and reported if a timer ends the connection. A datagram socket queues the errors of
    /// its IPv4 datagrams; if off, it gets only permanent errors, and only while it is connected.
    ReceiveError = IPPROTO_IP 11, "IP_RECVERR", ByteOrInt,
        set ANY { check::flag(given)? } with receive_error(on: bool) { on }
        settings { kept.tcp.receive_error = new } tcb { tcb.set_receive_error(new) },
        get settings { kept.tcp.receive_error.into() } tcb { tcb.receive_error().into() };

    /// Path MTU that a connection currently assumes, or of the route of a connected datagram
    /// socket, in bytes. On other sockets, reading fails with `ENOTCONN`.
    PathMtu = IPPROTO_IP 14, "IP_MTU", Int,
        get settings { return Err(Errno::ENOTCONN) } tcb { check::show(tcb.path_mtu()) };

    /// Device and source address of datagrams to IPv4 groups: an address of the device
    /// (`struct in_addr`), or the index of the device and an address (`struct ip_mreqn`); a number
    /// is an index. Reading it returns the address. Default none: the routes select both.
    MulticastInterface = IPPROTO_IP 32, "IP_MULTICAST_IF", Bytes,
        set DATAGRAM { check::multicast_interface(given)? }
        settings { (kept.datagram.v4.multicast_device, kept.datagram.multicast_source) = new }
        nowhere { () },
        get settings { OptionValue::Bytes(kept.datagram.multicast_source.octets().to_vec()) }
        socket { OptionValue::Bytes(vec![0; 4]) };

    /// TTL of datagrams to IPv4 groups, 0 to 255. Default 1: the datagrams stay on the link. With
    /// 0, they stay on this host.
    MulticastTtl = IPPROTO_IP 33, "IP_MULTICAST_TTL", ByteOrInt,
        set DATAGRAM { check::multicast_ttl(given)? }
        settings { kept.datagram.v4.multicast_hops = new } nowhere { () },
        get settings { check::show(kept.datagram.v4.multicast_hops) } socket { OptionValue::Int(1) };

    /// Delivers datagrams sent to an IPv4 group also to the members of the group on this host.
    /// Default on.
    MulticastLoop = IPPROTO_IP 34, "IP_MULTICAST_LOOP", ByteOrInt,
        set DATAGRAM { check::flag(given)? }
        settings { kept.datagram.v4.multicast_loop = new } nowhere { () },
        get settings { kept.datagram.v4.multicast_loop.into() } socket { true.into() };

    /// Delivers the datagrams of every IPv4 group that any socket of this host has joined; if off,
    /// only those of the groups that this socket has joined. Default on.
    MulticastAll = IPPROTO_IP 49, "IP_MULTICAST_ALL", Int,
        set DATAGRAM { check::switch(given)? }
        settings { kept.datagram.v4.multicast_all = new } nowhere { () },
        get settings { kept.datagram.v4.multicast_all.into() } socket { true.into() };

    /// The hop limit of sent IPv6 packets, 0 to 255; `IP_TTL` is for IPv4 packets. Default
    /// `net.ipv6.conf.all.hop_limit`, which -1 as `IPV6_UNICAST_HOPS` restores.
    UnicastHops = IPPROTO_IPV6 16, "IPV6_UNICAST_HOPS", Int,
        set ANY { check::hop_limit(given)? } with hop_limit(hops: u8) { Some(hops) }
        settings { kept.ipv6.hop_limit = new }
        socket { socket.settings().change_ipv6(|ipv6| ipv6.hop_limit = new) },
        get settings { check::show(kept.ipv6.hop_limit.unwrap_or(sysctls.ip6_hop_limit)) }
        socket { {
            let hops = socket.settings().ipv6_fields().hop_limit;
            check::show(hops.unwrap_or_else(|| cx.sysctls_of(net).ip6_hop_limit))
        } };

    /// Index of the device for datagrams to IPv6 groups without a scope. Default 0: the routes
    /// select the device.
    MulticastInterfaceV6 = IPPROTO_IPV6 17, "IPV6_MULTICAST_IF", Int,
        set DATAGRAM { check::natural(given)? }
        settings { kept.datagram.v6.multicast_device = new } nowhere { () },
        get settings { check::show(kept.datagram.v6.multicast_device) } socket { OptionValue::Int(0) };

    /// Hop limit of datagrams to IPv6 groups, 0 to 255. Default 1: the datagrams stay on the link.
    /// With 0, they stay on this host.
    MulticastHopsV6 = IPPROTO_IPV6 18, "IPV6_MULTICAST_HOPS", Int,
        set DATAGRAM { check::multicast_ttl(given)? }
        settings { kept.datagram.v6.multicast_hops = new } nowhere { () },
        get settings { check::show(kept.datagram.v6.multicast_hops) } socket { OptionValue::Int(1) };

    /// Delivers datagrams sent to an IPv6 group also to the members of the group on this host.
    /// Default on.
    MulticastLoopV6 = IPPROTO_IPV6 19, "IPV6_MULTICAST_LOOP", Int,
        set DATAGRAM { check::switch(given)? }
        settings { kept.datagram.v6.multicast_loop = new } nowhere { () },
        get settings { kept.datagram.v6.multicast_loop.into() } socket { true.into() };

    /// As `IP_MTU_DISCOVER`, for IPv6 packets, which no router fragments. Default
    /// `IPV6_PMTUDISC_WANT`.
    MtuDiscoverV6 = IPPROTO_IPV6 23, "IPV6_MTU_DISCOVER", Int,
        set ANY { check::mtu_discover(given)? }
        with mtu_discover_v6(mode: MtuDiscover) { Some(mode) }
        settings { kept.ipv6.mtu_discover = new }
        socket { socket.settings().change_ipv6(|ipv6| ipv6.mtu_discover = new) },
        get settings { check::show_mtu_discover_v6(kept.ipv6.mtu_discover) }
        socket { check::show_mtu_discover_v6(socket.settings().ipv6_fields().mtu_discover) };

    /// Path MTU of an IPv6 socket, as `IP_MTU`.
    PathMtuV6 = IPPROTO_IPV6 24, "IPV6_MTU", Int,
        get settings { return Err(Errno::ENOTCONN) } tcb { check::show(tcb.path_mtu()) };

    /// As `IP_RECVERR`. A datagram socket has both options, each for the packets of its IP version;
    /// on other sockets, both names are one option.
    ReceiveErrorV6 = IPPROTO_IPV6 25, "IPV6_RECVERR", Int,
        set ANY { check::flag(given)? }
        settings { match state {
            SocketState::Datagram => kept.datagram.v6.receive_error = new,
            _ => kept.tcp.receive_error = new,
        } }
        tcb { tcb.set_receive_error(new) },
        get settings { match state {
            SocketState::Datagram => kept.datagram.v6.receive_error.into(),
            _ => kept.tcp.receive_error.into(),
        } }
        tcb { tcb.receive_error().into() };

    /// Limits an IPv6 socket to IPv6 peers. If off, IPv4 peers connect too, and have v4-mapped
    /// addresses. Default `net.ipv6.bindv6only`.
    V6Only = IPPROTO_IPV6 26, "IPV6_V6ONLY", Int,
        set FRESH { check::flag(given)? } with v6_only(on: bool) { on }
        settings { kept.v6_only = Some(new) } nowhere { () },
        get settings { kept.v6_only.unwrap_or(sysctls.bindv6only).into() }
        socket { (socket.bind_flags().family == Family::V6Only).into() };

    /// Delivers the datagrams of every IPv6 group that any socket of this host has joined; if off,
    /// only those of the groups that this socket has joined. Default on.
    MulticastAllV6 = IPPROTO_IPV6 29, "IPV6_MULTICAST_ALL", Int,
        set DATAGRAM { check::flag(given)? }
        settings { kept.datagram.v6.multicast_all = new } nowhere { () },
        get settings { kept.datagram.v6.multicast_all.into() } socket { true.into() };

    /// The traffic class of sent IPv6 packets; `IP_TOS` is for IPv4 packets. On a datagram socket,
    /// the number includes the two ECN bits; on other sockets these bits are ignored, because TCP
    /// sets them. Default 0, which -1 restores.
    TrafficClass = IPPROTO_IPV6 67, "IPV6_TCLASS", Int,
        set ANY { check::traffic_class(given, state)? }
        with traffic_class(class: u8) { class & check::TOS_MASK }
        settings { kept.ipv6.traffic_class = new }
        socket { socket.settings().change_ipv6(|ipv6| ipv6.traffic_class = new) },
        get settings { check::show(kept.ipv6.traffic_class) }
        socket { check::show(socket.settings().ipv6_fields().traffic_class) };

    /// Whether sent IPv6 packets carry a flow label. `net.ipv6.auto_flowlabels` selects the
    /// default; with 0 or 3 the option has no effect.
    AutoFlowLabel = IPPROTO_IPV6 70, "IPV6_AUTOFLOWLABEL", Int,
        set ANY { Some(check::flag(given)?) } with auto_flow_label(on: bool) { Some(on) }
        settings { kept.ipv6.flow_label = new }
        socket { socket.settings().change_ipv6(|ipv6| ipv6.flow_label = new) },
        get settings { check::show_flow_label(kept.ipv6.flow_label, sysctls) }
        socket { {
            let label = socket.settings().ipv6_fields().flow_label;
            check::show_flow_label(label, cx.sysctls_of(net))
        } };

    /// Sends small segments at once: Nagle's algorithm is off. Default off.
    NoDelay = IPPROTO_TCP 1, "TCP_NODELAY", Int,
        set ANY { check::flag(given)? } with nodelay(on: bool) { on }
        settings { kept.tcp.nodelay = new } tcb { tcb.set_nodelay(new) },
        get settings { kept.tcp.nodelay.into() } tcb { tcb.nodelay().into() };

    /// Largest payload of a segment in bytes, 88 to 32,767. The MSS option announces it, and sent
    /// segments do not exceed it; on a connection, setting it only limits sent segments. In
    /// `setsockopt`, 0 removes the limit, but changes nothing on a connection. Default: the MTU of
    /// the route decides.
    MaxSegment = IPPROTO_TCP 2, "TCP_MAXSEG", Int,
        set ANY { check::maxseg(given)? }
        with max_segment(bytes: u16) { Some(check::maxseg_of(bytes)) }
        settings { kept.tcp.maxseg = new }
        tcb { if let Some(bytes) = new { tcb.set_maxseg(bytes) } },
        get settings { check::show(kept.tcp.maxseg.map_or(MSS_DEFAULT, u64::from)) }
        tcb { check::show(tcb.mss()) };

    /// Holds segments that are not full, for at most 200 ms while nothing is in flight. Default
    /// off.
    Cork = IPPROTO_TCP 3, "TCP_CORK", Int,
        set ANY { check::flag(given)? } with cork(on: bool) { on }
        settings { kept.tcp.cork = new } tcb { tcb.set_cork(new) },
        get settings { kept.tcp.cork.into() } tcb { tcb.cork().into() };

    /// Idle time before the first keepalive probe, 1 to 32,767 seconds. Default
    /// `net.ipv4.tcp_keepalive_time`.
    KeepIdle = IPPROTO_TCP 4, "TCP_KEEPIDLE", Seconds,
        set ANY { check::keep_seconds(given)? }
        with keepalive_time(time: Duration) { check::keep_time_of(time) }
        settings { kept.tcp.keepalive_times.time = new }
        tcb { tcb.set_keepalive_times(cx, Keepalive { time: new, ..tcb.keepalive_times() }) },
        get settings { check::show(kept.tcp.keepalive_times.or_config(&sysctls.tcp).time.as_secs()) }
        tcb { check::show(tcb.keepalive_times().or_config(cx.config).time.as_secs()) };

    /// Time between keepalive probes, 1 to 32,767 seconds. Default `net.ipv4.tcp_keepalive_intvl`.
    KeepInterval = IPPROTO_TCP 5, "TCP_KEEPINTVL", Seconds,
        set ANY { check::keep_seconds(given)? }
        with keepalive_interval(time: Duration) { check::keep_time_of(time) }
        settings { kept.tcp.keepalive_times.interval = new }
        tcb { tcb.set_keepalive_times(cx, Keepalive { interval: new, ..tcb.keepalive_times() }) },
        get settings { check::show(kept.tcp.keepalive_times.or_config(&sysctls.tcp).interval.as_secs()) }
        tcb { check::show(tcb.keepalive_times().or_config(cx.config).interval.as_secs()) };

    /// Number of unanswered probes that end a connection, 1 to 127. Default
    /// `net.ipv4.tcp_keepalive_probes`.
    KeepCount = IPPROTO_TCP 6, "TCP_KEEPCNT", Int,
        set ANY { check::count(given)? }
        with keepalive_probes(probes: u8) { check::count_of(probes) }
        settings { kept.tcp.keepalive_times.probes = new }
        tcb { tcb.set_keepalive_times(cx, Keepalive { probes: new, ..tcb.keepalive_times() }) },
        get settings { check::show(kept.tcp.keepalive_times.or_config(&sysctls.tcp).probes) }
        tcb { check::show(tcb.keepalive_times().or_config(cx.config).probes) };

    /// Number of SYN retransmissions, 1 to 127, after those of `net.ipv4.tcp_syn_linear_timeouts`.
    /// Default `net.ipv4.tcp_syn_retries`.
    SynCount = IPPROTO_TCP 7, "TCP_SYNCNT", Int,
        set ANY { check::count(given)? } with syn_retries(retries: u8) { check::count_of(retries) }
        settings { kept.tcp.syn_retries = Some(new) } tcb { tcb.set_syn_retries(Some(new)) },
        get settings { check::show(kept.tcp.syn_retries.unwrap_or(sysctls.tcp.tcp_syn_retries)) }
        tcb { check::show(tcb.syn_retries().unwrap_or(cx.config.tcp_syn_retries)) };

    /// Time that a closed socket stays in FIN-WAIT-2, at most 120 seconds; with zero, the state
    /// ends at once. In `setsockopt`, 0 selects the sysctl's time, and a negative number ends the
    /// state at once. Default `net.ipv4.tcp_fin_timeout`.
    Linger2 = IPPROTO_TCP 8, "TCP_LINGER2", Seconds,
        set ANY { check::linger2(given)? }
        with linger2(time: Duration) { Some(time.min(check::LINGER2_MAX)) }
        settings { kept.tcp.linger2 = new } tcb { tcb.set_linger2(new) },
        get settings { check::show_linger2(kept.tcp.linger2, &sysctls.tcp) }
        tcb { check::show_linger2(tcb.linger2(), cx.config) };

    /// Time that a listener's handshakes wait for data before `accept` returns them, in whole
    /// seconds. As in Linux, the time is rounded up to that of a SYN-ACK retransmission: 1, 3, 7
    /// seconds and so on. Default zero: handshakes do not wait for data.
    DeferAccept = IPPROTO_TCP 9, "TCP_DEFER_ACCEPT", Seconds,
        set BEFORE { check::defer_accept(given)? }
        with defer_accept(time: Duration) { check::defer_accept_of(time.as_secs()) }
        settings { kept.tcp.defer_accept = new } nowhere { () },
        get settings { check::show(kept.tcp.defer_accept.map_or(0, |time| time.as_secs())) }
        socket { OptionValue::Int(0) };

    /// Largest window to announce, in bytes, at least 1152. 0 removes the limit before `connect`
    /// and `listen`, and is `EINVAL` afterwards. Default none.
    WindowClamp = IPPROTO_TCP 10, "TCP_WINDOW_CLAMP", Size,
        set ANY { check::window_clamp(given, state)? }
        with window_clamp(bytes: u32) { check::window_clamp_of(bytes) }
        settings { kept.tcp.window_clamp = new } tcb { tcb.set_window_clamp(new.unwrap_or(0)) },
        get settings { check::show(kept.tcp.window_clamp.unwrap_or(0)) }
        tcb { check::show(tcb.window_clamp()) };

    /// State and counters of the connection, as `struct tcp_info`.
    Info = IPPROTO_TCP 11, "TCP_INFO", Bytes,
        get settings { OptionValue::Bytes(tcp_info::without_connection(state.of_tcp())) }
        tcb { OptionValue::Bytes(tcp_info::encode(&tcb.info_at(cx.now))) };

    /// On: sends a pending ACK at once, and ACKs do not wait for outgoing data. Off: they do, from
    /// the beginning of the connection if set before. TCP may change the mode later. Default on.
    QuickAck = IPPROTO_TCP 12, "TCP_QUICKACK", Int,
        set ANY { check::flag(given)? } with quickack(on: bool) { on }
        settings { kept.tcp.pingpong = !new } tcb { tcb.set_quickack(new) },
        get settings { (!kept.tcp.pingpong).into() } tcb { tcb.quickack().into() };

    /// Congestion control. An unknown name is `ENOENT`. Default `net.ipv4.tcp_congestion_control`.
    Congestion = IPPROTO_TCP 13, "TCP_CONGESTION", Name,
        set ANY { check::congestion(given)? } with congestion(algorithm: Algorithm) { algorithm }
        settings { kept.tcp.congestion = Some(new) } tcb { tcb.set_congestion(new) },
        get settings { kept.tcp.congestion.unwrap_or(sysctls.tcp.tcp_congestion_control).name().into() }
        tcb { tcb.congestion().name().into() };

    /// Keeps the first six timeouts of a stream with few segments in flight from doubling the RTO.
    /// Default off.
    ThinLinearTimeouts = IPPROTO_TCP 16, "TCP_THIN_LINEAR_TIMEOUTS", Int,
        set ANY { check::switch(given)? } with thin_linear_timeouts(on: bool) { on }
        settings { kept.tcp.thin_linear_timeouts = new } tcb { tcb.set_thin_linear_timeouts(new) },
        get settings { kept.tcp.thin_linear_timeouts.into() }
        tcb { tcb.thin_linear_timeouts().into() };

    /// Time that sent data may stay unacknowledged before the connection fails (RFC 5482), in
    /// milliseconds. With zero, the default, `net.ipv4.tcp_retries2` bounds the retransmissions
    /// instead.
    UserTimeout = IPPROTO_TCP 18, "TCP_USER_TIMEOUT", Milliseconds,
        set ANY { check::user_timeout(given)? }
        with user_timeout(time: Duration) { check::not_zero(Some(time)) }
        settings { kept.tcp.user_timeout = new } tcb { tcb.set_user_timeout(new) },
        get settings { check::show_ms(kept.tcp.user_timeout.unwrap_or_default()) }
        tcb { check::show_ms(tcb.user_timeout().unwrap_or_default()) };

    /// Upper bound of a listener's connections whose SYN data may be read before the handshake has
    /// ended (RFC 7413), if `net.ipv4.tcp_fastopen` allows it. Only for applications that may
    /// execute a request twice: the network may repeat a SYN, and with it the request. Default 0.
    FastOpen = IPPROTO_TCP 23, "TCP_FASTOPEN", Int,
        set BEFORE { check::natural(given)? } with fast_open(connections: u32) { connections }
        settings { kept.fast_open = new } nowhere { () },
        get settings { check::show(kept.fast_open) } socket { OptionValue::Int(0) };

    /// A write starts no new packet above this number of unsent bytes, and the socket is writable
    /// below half of it. 0, the default, selects `net.ipv4.tcp_notsent_lowat`.
    NotSentLowWater = IPPROTO_TCP 25, "TCP_NOTSENT_LOWAT", Unsigned,
        set ANY { check::notsent_lowat(given)? }
        with notsent_lowat(bytes: u32) { (bytes != 0).then_some(bytes) }
        settings { kept.tcp.notsent_lowat = new }
        tcb { match new {
            Some(bytes) => tcb.set_notsent_lowat(bytes),
            None => tcb.reset_notsent_lowat(cx.config.tcp_notsent_lowat),
        } },
        get settings { OptionValue::Int(kept.tcp.notsent_lowat.unwrap_or(0).cast_signed()) }
        tcb { OptionValue::Int(tcb.notsent_lowat().unwrap_or(0).cast_signed()) };

    /// If the peer has sent a cookie before, `connect` returns at once and the SYN carries the
    /// first write (RFC 7413). Only for requests that may be executed twice: the network may repeat
    /// a SYN, and with it the data. `EOPNOTSUPP` if `net.ipv4.tcp_fastopen` does not allow clients.
    /// The option has no effect on a listener. Default off.
    FastOpenConnect = IPPROTO_TCP 30, "TCP_FASTOPEN_CONNECT", Int,
        set FRESH { check::fast_open_connect(given, sysctls)? }
        with fast_open_connect(on: bool) { on }
        settings { kept.fast_open_connect = new } nowhere { () },
        get settings { kept.fast_open_connect.into() } socket { OptionValue::Int(0) };

    /// Key of a listener's cookies in place of the host's key: 16 bytes, or 32 with the former key.
    /// Cookies of the former key, `backup`, are still accepted. Default none.
    FastOpenKey = IPPROTO_TCP 33, "TCP_FASTOPEN_KEY", Bytes,
        set BEFORE { check::fast_open_key(given)? }
        with fast_open_key(primary: [u8; 16], backup: Option<[u8; 16]>) { FastOpenKey { primary, backup } }
        settings { kept.fast_open_key = Some(new) } nowhere { () },
        get settings { check::show_fast_open_key(kept.fast_open_key, sysctls) }
        socket { check::show_fast_open_key(None, cx.sysctls_of(net)) };

    /// Sends data in the SYN without asking for a cookie first; a listener accepts it without a
    /// cookie. Only for networks without forged addresses. Default off.
    FastOpenNoCookie = IPPROTO_TCP 34, "TCP_FASTOPEN_NO_COOKIE", Int,
        set BEFORE { check::switch(given)? } with fast_open_no_cookie(on: bool) { on }
        settings { kept.fast_open_no_cookie = new } nowhere { () },
        get settings { kept.fast_open_no_cookie.into() } socket { OptionValue::Int(0) };

    /// Upper bound of the retransmission timeout, 1 to 120 seconds, in milliseconds. Default
    /// `net.ipv4.tcp_rto_max_ms`.
    RtoMax = IPPROTO_TCP 44, "TCP_RTO_MAX_MS", Milliseconds,
        set ANY { check::rto_max(given)? } with rto_max(time: Duration) { check::rto_max_of(time) }
        settings { kept.tcp.rto_max = Some(new) } tcb { tcb.set_rto_max(new) },
        get settings { check::show_ms(kept.tcp.rto_max.unwrap_or(sysctls.tcp.tcp_rto_max)) }
        tcb { check::show_ms(tcb.rto_max()) };

    /// Payload bytes of each of the datagrams into which one send is cut; the last datagram may be
    /// shorter. With 0, the default, one send is one datagram.
    Segment = IPPROTO_UDP 103, "UDP_SEGMENT", Int,
        set DATAGRAM { check::segment(given)? }
        settings { kept.datagram.segment = new } nowhere { () },
        get settings { check::show(kept.datagram.segment) } socket { OptionValue::Int(0) };

    /// Joins waiting datagrams of one sender and of equal size, so that one receive returns several
    /// datagrams and their size. Default off.
    ReceiveOffload = IPPROTO_UDP 104, "UDP_GRO", Int,
        set DATAGRAM { check::flag(given)? }
        settings { kept.datagram.gro = new } nowhere { () },
        get settings { kept.datagram.gro.into() } socket { false.into() };

    /// Limit of the connections that one source address may have with a listener, including
    /// half-open connections and those that wait for `accept`. The stack drops a SYN above the
    /// limit without an answer (drop reason `SOURCE_LIMIT`, counter `ListenSourceLimit`). A
    /// connection counts until it is closed on both sides or reset. Clients behind one NAT share an
    /// address. Forged SYNs can use up the limit of another address with half-open connections,
    /// unless `net.ipv4.tcp_syncookies` is 2. Each listener of a shared port counts separately.
    /// Default 0, no limit.
    MaxPerSource = SOL_QUIETLINE 1, "QUIETLINE_MAX_PER_SOURCE", Int,
        set BEFORE { check::natural(given)? } with max_per_source(connections: u32) { connections }
        settings { kept.max_per_source = new } nowhere { () },
        get settings { check::show(kept.max_per_source) } socket { OptionValue::Int(0) };

    /// Time without progress after which a connection is reset, in whole seconds; zero sets no
    /// limit. In `setsockopt`, -1 selects the sysctl's time. Default
    /// `net.quietline.tcp_idle_timeout`.
    IdleTimeout = SOL_QUIETLINE 2, "QUIETLINE_IDLE_TIMEOUT", Seconds,
        set ANY { check::idle_timeout(given)? }
        with idle_timeout(time: Duration) { Some(Duration::from_secs(time.as_secs())) }
        settings { kept.tcp.idle_timeout = new } tcb { tcb.set_idle_timeout(cx, new) },
        get settings { check::show(kept.tcp.idle_timeout.unwrap_or(sysctls.tcp.tcp_idle_timeout).as_secs()) }
        tcb { check::show(tcb.idle_timeout().unwrap_or(cx.config.tcp_idle_timeout).as_secs()) };
}
