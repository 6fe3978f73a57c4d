//! Tests of the option table: numbers and names, bounds of values, and the behavior of stream
//! sockets before and after they connect.

use core::time::Duration;
use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{
    Access, Form, IPPROTO_IPV6, IPPROTO_TCP, OptionValue, SOL_SOCKET, SocketOption as O,
    SocketSettings, SocketState,
};
use crate::{
    base::errno::Errno,
    cx::{Cx, Memory},
    host::{Host, config::HostConfig},
    socket::{BUSY_POLL_BUDGET, BusyPoll, ConnectOptions, Connection, ListenOptions, Listener},
    sysctl::Sysctls,
};

/// A connection over loopback, on a host of its own. It is one of IPv6, which has the options of
/// both IP versions.
struct Bench {
    host: Arc<Host>,
    cx: Cx,
    socket: Arc<Connection>,
    _listener: Arc<Listener>,
}

impl Bench {
    fn new() -> Self {
        Self::with(&SocketSettings::default(), &SocketSettings::default())
    }

    /// Connects with the given settings, and returns when the connection is established.
    fn with(client: &SocketSettings, server: &SocketSettings) -> Self {
        Self::at("[::1]:80", client, server)
    }

    fn at(local: &str, client: &SocketSettings, server: &SocketSettings) -> Self {
        let memory = Memory::new(1 << 24);
        let config = HostConfig { cores: 1, ..HostConfig::replay(7) };
        let host = Host::new(&memory, config).unwrap();
        let mut cx = Cx::replay(&memory, 7);
        let local: SocketAddr = local.parse().unwrap();
        let options = ListenOptions { backlog: 8, settings: server.clone() };
        let listener = Listener::listen_with(&host, &mut cx, local, &options).unwrap();
        let options = ConnectOptions { local: None, settings: client.clone() };
        let socket = Connection::connect_with(&host, &mut cx, local, &options).unwrap();
        for _ in 0..8 {
            let _ = host.poll(&mut cx);
        }
        Self { host, cx, socket, _listener: listener }
    }

    fn set(&mut self, option: O, value: impl Into<OptionValue>) -> Result<(), Errno> {
        self.socket.set_option(&self.host, &mut self.cx, option, &value.into())
    }

    fn get(&mut self, option: O) -> Result<OptionValue, Errno> {
        self.socket.option(&self.host, &mut self.cx, option)
    }

    fn int(&mut self, option: O) -> i32 {
        self.get(option).unwrap().as_int().unwrap()
    }

    fn finish(mut self) {
        self.host.shut_down(&mut self.cx);
    }
}

/// Returns a value that is valid for the option.
fn sample(option: O) -> OptionValue {
    match option {
        O::Congestion => "reno".into(),
        O::MaxSegment => OptionValue::Int(1000),
        O::RtoMax => OptionValue::Int(2000),
        O::ThinLinearTimeouts => OptionValue::Int(1),
        O::TypeOfService | O::TrafficClass => OptionValue::Int(0xb8),
        // The priority that the sample of `IP_TOS` sets.
        O::Priority => OptionValue::Int(4),
        O::FastOpenConnect | O::FastOpenNoCookie => OptionValue::Int(1),
        O::FastOpenKey => OptionValue::Bytes(vec![7; 32]),
        _ => match option.form() {
            Form::Linger => OptionValue::Linger(Some(Duration::from_secs(3))),
            Form::Time => OptionValue::Time(Some(Duration::from_millis(2500))),
            _ if option == O::DeferAccept => OptionValue::Int(7),
            _ => OptionValue::Int(5),
        },
    }
}

/// Whether only `listen` or `connect` uses the option. A connection refuses such an option.
fn precedes_connection(option: O) -> bool {
    matches!(
        option,
        O::DeferAccept
            | O::FastOpen
            | O::FastOpenConnect
            | O::FastOpenKey
            | O::FastOpenNoCookie
            | O::MaxPerSource
            | O::V6Only
    )
}

/// Whether only a datagram socket has the option.
fn is_of_datagrams(option: O) -> bool {
    option.settable_in() == [SocketState::Datagram]
}

#[test]
fn options_are_found_by_number_and_by_name() {
    let numbers: BTreeSet<_> =
        O::ALL.iter().map(|option| (option.level(), option.number())).collect();
    assert_eq!(numbers.len(), O::ALL.len(), "two options have the same number");
    for &option in O::ALL {
        assert_eq!(O::from_number(option.level(), option.number()), Some(option));
        assert_eq!(O::from_name(option.name()), Some(option));
    }
    assert_eq!(O::from_number(IPPROTO_TCP, 18), Some(O::UserTimeout));
    assert_eq!(
        O::from_number(SOL_SOCKET, 66),
        Some(O::ReceiveTimeout),
        "the number with 64-bit times is not that of the option"
    );
    assert_eq!(O::from_number(IPPROTO_TCP, 99), None);
    assert_eq!(O::from_name("SO_NONSENSE"), None);
}

#[test]
fn every_stream_option_works_before_and_after_connect() {
    let sysctls = Sysctls::default();
    let mut bench = Bench::new();
    for &option in O::ALL.iter().filter(|option| !is_of_datagrams(**option)) {
        let mut settings = SocketSettings::default();
        let (set, get) = match option.access() {
            Access::Read => (Err(Errno::ENOPROTOOPT), true),
            Access::Write => (Ok(()), false),
            Access::Both => (Ok(()), true),
        };
        let name = option.name();
        assert_eq!(settings.set(option, &sample(option), &sysctls), set, "{name} before");
        let connected = if precedes_connection(option) { Err(Errno::EINVAL) } else { set };
        assert_eq!(bench.set(option, sample(option)), connected, "{name} connected");
        let readable = get && !matches!(option, O::PathMtu | O::PathMtuV6);
        assert_eq!(settings.get(option, &sysctls).is_ok(), readable, "{name} before");
        assert_eq!(bench.get(option).is_ok(), get, "{name} connected");
    }
    bench.finish();
}

/// As in Linux, where `setsockopt` and `getsockopt` have different errors.
#[test]
fn stream_sockets_of_ipv4_have_no_options_of_ipv6() {
    let none = SocketSettings::default();
    let mut bench = Bench::at("127.0.0.1:80", &none, &none);
    let listener = Arc::clone(&bench._listener);
    let of_ipv6 = O::ALL.iter().copied().filter(|option| option.level() == IPPROTO_IPV6);
    for option in of_ipv6 {
        let name = option.name();
        assert_eq!(bench.set(option, sample(option)), Err(Errno::ENOPROTOOPT), "{name}");
        assert_eq!(bench.get(option), Err(Errno::EOPNOTSUPP), "{name}");
        let set = listener.set_option(&bench.host, option, &sample(option));
        assert_eq!(set, Err(Errno::ENOPROTOOPT), "{name} of the listener");
        let read = listener.option(&bench.host, &bench.cx, option);
        assert_eq!(read, Err(Errno::EOPNOTSUPP), "{name} of the listener");
    }
    assert_eq!(bench.set(O::TypeOfService, 8), Ok(()));
    bench.finish();
}

#[test]
fn an_option_can_be_set_in_the_states_of_its_row() {
    let sysctls = Sysctls::default();
    let mut bench = Bench::new();
    let listener = Arc::clone(&bench._listener);
    for &option in O::ALL.iter().filter(|option| option.access() != Access::Read) {
        let name = option.name();
        let expected = |state: SocketState| match option.settable_in().contains(&state) {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        };
        let fresh = SocketSettings::default().set(option, &sample(option), &sysctls);
        assert_eq!(fresh, expected(SocketState::Fresh), "{name} fresh");
        let listening = listener.set_option(&bench.host, option, &sample(option));
        assert_eq!(listening, expected(SocketState::Listening), "{name} listening");
        let connected = bench.set(option, sample(option));
        assert_eq!(connected, expected(SocketState::Connected), "{name} connected");
    }
    bench.finish();
}

#[test]
fn typed_setters_stay_within_linuxs_bounds() {
    let long = Duration::from_secs(1 << 40);
    let settings = SocketSettings::default()
        .keepalive_time(Duration::ZERO)
        .keepalive_interval(long)
        .keepalive_probes(0)
        .syn_retries(200)
        .max_segment(1)
        .linger2(long)
        .rto_max(Duration::ZERO)
        .tos(0xff)
        .priority(9)
        .ttl(0)
        .traffic_class(0xff)
        .receive_buffer(1)
        .send_timeout(Some(Duration::ZERO));
    let shown = [
        (O::KeepIdle, 1),
        (O::KeepInterval, 32_767),
        (O::KeepCount, 1),
        (O::SynCount, 127),
        (O::MaxSegment, 88),
        (O::Linger2, 120),
        (O::RtoMax, 1000),
        (O::TypeOfService, 0xfc),
        (O::TrafficClass, 0xfc),
        (O::Priority, 6),
        (O::TimeToLive, 1),
        (O::ReceiveBuffer, 2304),
    ];
    let sysctls = Sysctls::default();
    for (option, number) in shown {
        let expected = Ok(OptionValue::Int(number));
        assert_eq!(settings.get(option, &sysctls), expected, "{}", option.name());
    }
    assert_eq!(settings.get(O::SendTimeout, &sysctls), Ok(OptionValue::Time(None)));
}

#[test]
fn setting_the_type_of_service_sets_the_priority() {
    let mut bench = Bench::new();
    for (tos, priority) in [(0x10, 6), (0x18, 4), (0x08, 2), (0xb8, 4), (0, 0)] {
        bench.set(O::TypeOfService, tos).unwrap();
        assert_eq!(bench.int(O::Priority), priority, "{tos:#x}");
    }
    bench.set(O::Priority, 6).unwrap();
    assert_eq!((bench.int(O::Priority), bench.int(O::TypeOfService)), (6, 0));
    for refused in [-1, 7, 300] {
        assert_eq!(bench.set(O::Priority, refused), Err(Errno::EPERM));
    }
    bench.finish();
}

#[test]
fn the_fields_of_ipv6_packets_have_linuxs_bounds() {
    let mut bench = Bench::new();
    assert_eq!(bench.int(O::UnicastHops), 64);
    for (option, refused) in [
        (O::UnicastHops, -2),
        (O::UnicastHops, 256),
        (O::TrafficClass, -2),
        (O::TrafficClass, 256),
        (O::MtuDiscoverV6, 6),
    ] {
        assert_eq!(bench.set(option, refused), Err(Errno::EINVAL), "{} {refused}", option.name());
    }
    for (option, set, shown) in [
        (O::UnicastHops, 0, 0),
        (O::UnicastHops, 255, 255),
        (O::UnicastHops, -1, 64),
        (O::TrafficClass, 0xff, 0xfc),
        (O::TrafficClass, -1, 0),
        (O::MtuDiscoverV6, 5, 5),
        (O::AutoFlowLabel, 0, 0),
    ] {
        bench.set(option, set).unwrap();
        assert_eq!(bench.int(option), shown, "{} {set}", option.name());
    }
    // The options of the two versions do not change each other.
    assert_eq!((bench.int(O::TimeToLive), bench.int(O::TypeOfService)), (64, 0));
    bench.finish();
}

/// Options of connections that can be set and read.
fn of_connections() -> impl Iterator<Item = O> {
    let both = |option: &O| option.access() == Access::Both && !is_of_datagrams(*option);
    O::ALL.iter().copied().filter(both)
}

#[test]
fn options_set_before_connect_apply_to_the_connection() {
    let sysctls = Sysctls::default();
    let mut settings = SocketSettings::default();
    for option in of_connections() {
        settings.set(option, &sample(option), &sysctls).unwrap();
    }
    let mut bench = Bench::with(&settings, &SocketSettings::default());
    for option in of_connections() {
        if matches!(option, O::MaxSegment | O::WindowClamp | O::IncomingCpu)
            || precedes_connection(option)
        {
            // A connection reports a negotiated value, the core that receives its segments, or a
            // constant.
            continue;
        }
        let before = settings.get(option, &sysctls);
        assert_eq!(bench.get(option), before, "{}", option.name());
    }
    bench.finish();
}

#[test]
fn an_accepted_connection_has_its_listeners_options() {
    let sysctls = Sysctls::default();
    let mut settings = SocketSettings::default();
    for option in of_connections() {
        if matches!(option, O::DeferAccept | O::FastOpenConnect) {
            // With `TCP_DEFER_ACCEPT` the connection would wait for data, and a listener refuses
            // `TCP_FASTOPEN_CONNECT`.
            continue;
        }
        settings.set(option, &sample(option), &sysctls).unwrap();
    }
    let mut bench = Bench::with(&SocketSettings::default(), &settings);
    let accepted = bench._listener.accept().unwrap();
    for option in of_connections() {
        if matches!(option, O::MaxSegment | O::WindowClamp | O::IncomingCpu)
            || precedes_connection(option)
        {
            continue;
        }
        let got = accepted.option(&bench.host, &mut bench.cx, option);
        assert_eq!(got, settings.get(option, &sysctls), "{}", option.name());
    }
    bench.finish();
}

#[test]
fn options_of_a_listener_can_be_set_while_it_listens() {
    let mut bench = Bench::new();
    let listener = Arc::clone(&bench._listener);
    let nodelay = OptionValue::from(true);
    assert_eq!(listener.option(&bench.host, &bench.cx, O::NoDelay), Ok(false.into()));
    assert_eq!(listener.set_option(&bench.host, O::NoDelay, &nodelay), Ok(()));
    assert_eq!(listener.option(&bench.host, &bench.cx, O::NoDelay), Ok(nodelay));
    assert_eq!(listener.option(&bench.host, &bench.cx, O::AcceptConnections), Ok(true.into()));
    let bad = OptionValue::Int(0);
    assert_eq!(listener.set_option(&bench.host, O::KeepIdle, &bad), Err(Errno::EINVAL));
    assert_eq!(listener.set_option(&bench.host, O::WindowClamp, &bad), Err(Errno::EINVAL));
    bench.cx.now += Duration::from_secs(1);
    bench.finish();
}

#[test]
fn buffers_are_doubled_and_bounded_by_the_sysctls() {
    let mut bench = Bench::new();
    bench.set(O::ReceiveBuffer, 100_000).unwrap();
    assert_eq!(bench.int(O::ReceiveBuffer), 200_000);
    bench.set(O::ReceiveBuffer, i32::MAX).unwrap();
    let rmem_max = bench.host.sysctls().tcp.rmem_max;
    assert_eq!(bench.int(O::ReceiveBuffer).cast_unsigned(), 2 * rmem_max);
    bench.set(O::ReceiveBuffer, 1).unwrap();
    assert_eq!(bench.int(O::ReceiveBuffer), 2304);
    bench.set(O::SendBuffer, 1).unwrap();
    assert_eq!(bench.int(O::SendBuffer), 4608);
    bench.set(O::SendBuffer, -1).unwrap();
    let wmem_max = bench.host.sysctls().tcp.wmem_max;
    assert_eq!(
        bench.int(O::SendBuffer).cast_unsigned(),
        2 * wmem_max,
        "a negative number was not taken as unsigned"
    );
    bench.set(O::SendBufferForce, 64 << 20).unwrap();
    assert_eq!(bench.int(O::SendBuffer), 128 << 20);
    bench.set(O::ReceiveBufferForce, i32::MAX).unwrap();
    assert_eq!(bench.int(O::ReceiveBuffer), i32::MAX - 1);
    bench.host.set_sysctl("net.core.rmem_max", "5000").unwrap();
    bench.set(O::ReceiveBuffer, 1 << 20).unwrap();
    assert_eq!(
        bench.int(O::ReceiveBuffer),
        10_000,
        "the bound is not the current value of the sysctl"
    );
    bench.finish();
}

#[test]
fn values_out_of_bounds_are_einval_and_change_nothing() {
    let mut bench = Bench::new();
    let refused = [
        (O::KeepIdle, 0),
        (O::KeepIdle, 32_768),
        (O::KeepInterval, -1),
        (O::KeepCount, 0),
        (O::KeepCount, 128),
        (O::MaxSegment, 87),
        (O::MaxSegment, 32_768),
        (O::UserTimeout, -1),
        (O::WindowClamp, 0),
    ];
    for (option, value) in refused {
        let before = bench.get(option);
        assert_eq!(bench.set(option, value), Err(Errno::EINVAL), "{}", option.name());
        assert_eq!(bench.get(option), before, "{}", option.name());
    }
    assert_eq!(bench.set(O::Congestion, "nonsense"), Err(Errno::ENOENT));
    assert_eq!(bench.set(O::Congestion, 1), Err(Errno::EINVAL), "a number was accepted as name");
    assert_eq!(bench.set(O::NoDelay, "on"), Err(Errno::EINVAL), "a name was accepted as number");
    bench.finish();
}

#[test]
fn options_return_the_sysctl_until_the_socket_has_its_own_value() {
    let mut bench = Bench::new();
    assert_eq!(bench.int(O::KeepIdle), 7200);
    bench.host.set_sysctl("net.ipv4.tcp_keepalive_time", "600").unwrap();
    bench.host.set_sysctl("net.ipv4.tcp_fin_timeout", "30").unwrap();
    assert_eq!(bench.int(O::KeepIdle), 600, "a change of the sysctl has no effect");
    bench.set(O::KeepIdle, 20).unwrap();
    bench.host.set_sysctl("net.ipv4.tcp_keepalive_time", "300").unwrap();
    assert_eq!(bench.int(O::KeepIdle), 20);
    assert_eq!(bench.int(O::Linger2), 30);
    for (set, got) in [(-5, -1), (1000, 120), (7, 7), (0, 30)] {
        bench.set(O::Linger2, set).unwrap();
        assert_eq!(bench.int(O::Linger2), got, "{set}");
    }
    bench.host.set_sysctl("net.quietline.tcp_idle_timeout", "90").unwrap();
    for (set, got) in [(20, 20), (0, 0), (-1, 90)] {
        bench.set(O::IdleTimeout, set).unwrap();
        assert_eq!(bench.int(O::IdleTimeout), got, "{set}");
    }
    bench.set(O::IdleTimeout, Duration::from_secs(7)).unwrap();
    assert_eq!(bench.set(O::IdleTimeout, -2), Err(Errno::EINVAL));
    assert_eq!(bench.int(O::IdleTimeout), 7);
    bench.set(O::WindowClamp, 1).unwrap();
    assert_eq!(
        bench.int(O::WindowClamp),
        1152,
        "the clamp is not raised to half of the smallest buffer"
    );
    bench.finish();
}

#[test]
fn the_defer_time_is_rounded_up_to_a_number_of_syn_acks() {
    let sysctls = Sysctls::default();
    let mut settings = SocketSettings::default();
    for (set, got) in [(0, 0), (-1, 0), (1, 1), (2, 3), (3, 3), (4, 7), (100, 127), (200, 247)] {
        settings.set(O::DeferAccept, &OptionValue::Int(set), &sysctls).unwrap();
        assert_eq!(settings.get(O::DeferAccept, &sysctls), Ok(OptionValue::Int(got)), "{set}");
    }
}

/// Reads a 32-bit field of `struct tcp_info`.
fn word(info: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(info[offset..offset + 4].try_into().unwrap())
}

fn long(info: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(info[offset..offset + 8].try_into().unwrap())
}

fn info(value: OptionValue) -> Vec<u8> {
    match value {
        OptionValue::Bytes(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tcp_info_has_the_kernels_layout() {
    let mut bench = Bench::new();
    let accepted = bench._listener.accept().unwrap();
    let sent = [7; 1000];
    let bufs = [std::io::IoSlice::new(&sent)];
    bench.cx.now += Duration::from_millis(5);
    assert_eq!(bench.socket.send(&bench.host, &mut bench.cx, &bufs), Ok(1000));
    for _ in 0..8 {
        let _ = bench.host.poll(&mut bench.cx);
    }
    bench.cx.now += Duration::from_millis(300);
    let _ = bench.host.poll(&mut bench.cx);
    let sender = info(bench.get(O::Info).unwrap());
    let receiver = info(accepted.option(&bench.host, &mut bench.cx, O::Info).unwrap());
    assert_eq!(sender.len(), 248);
    assert_eq!(sender[0], 1, "ESTABLISHED");
    assert_eq!(sender[5] & 7, 7, "timestamps, SACK, window scaling");
    assert_ne!(sender[6], 0, "both window scales");
    assert_eq!((long(&sender, 120), long(&receiver, 128)), (1000, 1000), "bytes acked, received");
    assert_eq!((long(&sender, 200), long(&sender, 208)), (1000, 0), "bytes sent, retransmitted");
    assert_eq!((word(&sender, 156), word(&receiver, 152)), (1, 1), "data segments out, in");
    assert_eq!(word(&sender, 44), 300, "milliseconds since data was sent");
    assert_eq!(word(&receiver, 52), 300, "milliseconds since data arrived");
    assert_eq!(word(&sender, 80), 10, "cwnd in segments");
    assert_eq!(word(&sender, 76), i32::MAX.cast_unsigned(), "ssthresh before any loss");
    assert_eq!((word(&sender, 24), word(&sender, 144)), (0, 0), "unacked, not sent");
    assert_eq!(word(&sender, 228), word(&receiver, 232), "the ends disagree about the window");
    assert_eq!(long(&sender, 112), u64::MAX, "a pacing limit is reported");
    let fresh = info(SocketSettings::default().get(O::Info, &Sysctls::default()).unwrap());
    assert_eq!((fresh[0], fresh.len()), (7, 248), "CLOSE");
    drop(accepted);
    bench.finish();
}

#[test]
fn read_only_options_describe_the_socket() {
    let mut bench = Bench::new();
    let facts = [
        (O::Type, 1),
        (O::Protocol, 6),
        (O::Domain, 10),
        (O::AcceptConnections, 0),
        (O::SendLowWater, 1),
        (O::IncomingCpu, 0),
        (O::Error, 0),
    ];
    for (option, expected) in facts {
        assert_eq!(bench.int(option), expected, "{}", option.name());
    }
    bench.finish();
}

#[test]
fn setsockopt_values_are_decoded_by_linuxs_length_rules() {
    let decode = OptionValue::decode;
    let five = 5i32.to_ne_bytes();
    assert_eq!(decode(O::NoDelay, &five), Ok(OptionValue::Int(5)));
    assert_eq!(
        decode(O::NoDelay, &[five, five].concat()),
        Ok(OptionValue::Int(5)),
        "extra bytes were not ignored"
    );
    assert_eq!(decode(O::NoDelay, &five[..3]), Err(Errno::EINVAL));
    let linger = [1i32.to_ne_bytes(), five].concat();
    assert_eq!(decode(O::Linger, &linger), Ok(OptionValue::Linger(Some(Duration::from_secs(5)))));
    assert_eq!(decode(O::Linger, &linger[..7]), Err(Errno::EINVAL));
    assert_eq!(decode(O::Linger, &[0; 8]), Ok(OptionValue::Linger(None)));
    let time = |seconds: i64, micros: i64| [seconds.to_ne_bytes(), micros.to_ne_bytes()].concat();
    let limit = Some(Duration::from_micros(1_500_000));
    assert_eq!(decode(O::SendTimeout, &time(1, 500_000)), Ok(OptionValue::Time(limit)));
    assert_eq!(decode(O::SendTimeout, &time(0, 0)), Ok(OptionValue::Time(None)), "unlimited");
    assert_eq!(decode(O::SendTimeout, &time(1, 1_000_000)), Err(Errno::EDOM));
    let at_once = Some(Duration::from_nanos(1));
    assert_eq!(decode(O::SendTimeout, &time(-1, 0)), Ok(OptionValue::Time(at_once)));
    assert_eq!(decode(O::Congestion, b"cubic\0junk"), Ok("cubic".into()));
    assert_eq!(decode(O::Congestion, b""), Err(Errno::EINVAL));
    let long = "a_name_of_twenty_bytes";
    assert_eq!(decode(O::Congestion, long.as_bytes()), Ok(long[..15].into()));
}

#[test]
fn results_are_truncated_to_the_buffer() {
    let encode = |value: OptionValue, option, room: usize| {
        let mut bytes = vec![0xff; room];
        let len = value.encode(option, &mut bytes);
        bytes.truncate(len);
        bytes
    };
    assert_eq!(encode(true.into(), O::NoDelay, 8), 1i32.to_ne_bytes());
    assert_eq!(encode(true.into(), O::NoDelay, 2), 1i32.to_ne_bytes()[..2]);
    assert_eq!(encode("cubic".into(), O::Congestion, 64), b"cubic\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(encode("cubic".into(), O::Congestion, 3), b"cub");
    // A rate beyond 32 bits, read in both widths.
    let fast = OptionValue::Long(5_000_000_000);
    assert_eq!(encode(fast.clone(), O::MaxPacingRate, 8), 5_000_000_000_u64.to_ne_bytes());
    assert_eq!(encode(fast.clone(), O::MaxPacingRate, 4), u32::MAX.to_ne_bytes());
    let decode = |bytes: &[u8]| OptionValue::decode(O::MaxPacingRate, bytes);
    assert_eq!(decode(&5_000_000_000_u64.to_ne_bytes()), Ok(fast));
    assert_eq!(decode(&7_u32.to_ne_bytes()), Ok(OptionValue::Int(7)));
    assert_eq!(decode(&[1, 2, 3]), Err(Errno::EINVAL));
    for option in [O::Linger, O::ReceiveTimeout] {
        let value = sample(option);
        let bytes = encode(value.clone(), option, 16);
        assert_eq!(OptionValue::decode(option, &bytes), Ok(value), "{}", option.name());
    }
}

/// `SO_BUSY_POLL` and its related options, before and after the socket connects. The sysctls apply
/// where no option was set.
#[test]
fn busy_polling_is_set_by_options_or_sysctls() {
    let sysctls = Sysctls { busy_read: 20, busy_poll: 30, ..Sysctls::default() };
    let mut settings = SocketSettings::default();
    assert_eq!(settings.get(O::BusyPoll, &sysctls), Ok(OptionValue::Int(20)));
    let params = settings.busy_poll.for_read(&sysctls);
    assert_eq!((params.time.as_micros(), params.budget), (20, usize::from(BUSY_POLL_BUDGET)));
    assert_eq!(settings.busy_poll.for_event(&sysctls).time.as_micros(), 30);
    for (option, value) in [(O::BusyPoll, 70), (O::PreferBusyPoll, 9), (O::BusyPollBudget, 16)] {
        settings.set(option, &value.into(), &sysctls).unwrap();
    }
    for (option, value) in [(O::BusyPoll, -1), (O::BusyPollBudget, -1), (O::BusyPollBudget, 65_536)]
    {
        assert_eq!(settings.set(option, &value.into(), &sysctls), Err(Errno::EINVAL));
    }
    let wanted = BusyPoll { usecs: Some(70), prefer: true, budget: Some(16) };
    assert_eq!(settings.busy_poll, wanted);
    let params = wanted.for_read(&sysctls);
    assert_eq!((params.time.as_micros(), params.budget, params.prefer), (70, 16, true));
    assert_eq!(wanted.for_event(&sysctls).budget, 16);
    assert_eq!(
        wanted.for_event(&sysctls).time.as_micros(),
        30,
        "the option also applies to other waits than reads"
    );
    let mut bench = Bench::with(&settings, &SocketSettings::default());
    assert_eq!(bench.socket.busy_poll(), wanted);
    assert_eq!((bench.int(O::BusyPoll), bench.int(O::PreferBusyPoll)), (70, 1));
    assert_eq!(bench.get(O::BusyPollBudget), Err(Errno::ENOPROTOOPT));
    bench.set(O::BusyPoll, 0).unwrap();
    bench.set(O::BusyPollBudget, 0).unwrap();
    assert_eq!(bench.socket.busy_poll(), BusyPoll { usecs: Some(0), budget: None, ..wanted });
    bench.finish();
}

#[test]
fn a_duration_is_a_number_in_the_unit_of_its_option() {
    let mut bench = Bench::new();
    let mut settings = SocketSettings::default();
    let sysctls = Sysctls::default();
    let rows = [
        (O::KeepIdle, Duration::from_secs(11), OptionValue::Int(11)),
        (O::KeepInterval, Duration::from_secs(12), OptionValue::Int(12)),
        (O::Linger2, Duration::from_secs(13), OptionValue::Int(13)),
        (O::UserTimeout, Duration::from_millis(1400), OptionValue::Int(1400)),
        (O::RtoMax, Duration::from_secs(2), OptionValue::Int(2000)),
        (O::BusyPoll, Duration::from_micros(50), OptionValue::Int(50)),
        (O::Linger, Duration::from_secs(3), OptionValue::Linger(Some(Duration::from_secs(3)))),
        (O::SendTimeout, Duration::from_millis(20), Duration::from_millis(20).into()),
    ];
    for (option, time, shown) in rows {
        bench.set(option, time).unwrap();
        assert_eq!(bench.get(option).unwrap(), shown, "{}", option.name());
        settings.set(option, &time.into(), &sysctls).unwrap();
        assert_eq!(settings.get(option, &sysctls).unwrap(), shown, "{}", option.name());
    }
    // Durations are neither rounded nor interpreted in another unit.
    let refused = [
        (O::KeepIdle, Duration::from_millis(1500)),
        (O::UserTimeout, Duration::from_micros(500)),
        (O::UserTimeout, Duration::from_secs(1 << 40)),
        (O::KeepCount, Duration::from_secs(3)),
        (O::NoDelay, Duration::from_secs(1)),
    ];
    for (option, time) in refused {
        assert_eq!(bench.set(option, time), Err(Errno::EINVAL), "{}: {time:?}", option.name());
    }
    for option in [O::UserTimeout, O::Linger, O::SendTimeout] {
        bench.set(option, None::<Duration>).unwrap();
    }
    assert_eq!(bench.int(O::UserTimeout), 0);
    assert_eq!(bench.get(O::Linger).unwrap(), OptionValue::Linger(None));
    // Linux: a `timeval` of zero is an unlimited wait.
    settings.set(O::SendTimeout, &Duration::ZERO.into(), &sysctls).unwrap();
    assert_eq!(settings.get(O::SendTimeout, &sysctls).unwrap(), OptionValue::Time(None));
    bench.finish();
}

#[test]
fn unsigned_numbers_are_accepted_clamped_or_rejected() {
    let mut bench = Bench::new();
    let large = 3_000_000_000_u32;
    bench.set(O::MaxPacingRate, large).unwrap();
    assert_eq!(bench.get(O::MaxPacingRate).unwrap(), OptionValue::Long(large.into()));
    bench.set(O::NotSentLowWater, u32::MAX).unwrap();
    assert_eq!(bench.int(O::NotSentLowWater).cast_unsigned(), u32::MAX);
    // A number above `i32::MAX` is clamped like any number that is too large, and does not become
    // negative.
    for option in [O::SendBuffer, O::ReceiveBuffer, O::ReceiveLowWater, O::WindowClamp] {
        bench.set(option, large).unwrap();
        let bounded = bench.int(option);
        bench.set(option, i32::MAX).unwrap();
        assert_eq!(bounded, bench.int(option), "{}", option.name());
    }
    bench.set(O::KeepCount, 9_u32).unwrap();
    assert_eq!(bench.int(O::KeepCount), 9);
    for option in [O::KeepCount, O::KeepIdle, O::UserTimeout, O::TimeToLive, O::Linger2] {
        assert_eq!(bench.set(option, large), Err(Errno::EINVAL), "{}", option.name());
    }
    bench.finish();
}
