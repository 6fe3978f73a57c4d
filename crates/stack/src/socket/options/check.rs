//! Bounds of option values, as Linux has them.
//!
//! There are three kinds of functions. Those for `setsockopt` take an [`OptionValue`] and return
//! the typed value that the socket keeps, or the errno; the comment of a check that belongs to
//! certain options begins with them. Those for the typed setters (`…_of`) limit a typed value to
//! the same bounds. Those for `getsockopt` (`show…`) return an [`OptionValue`].

use core::{ops::RangeInclusive, time::Duration};
use std::net::Ipv4Addr;

use tcp::{Algorithm, TcpConfig};

use super::{OptionValue, SocketState};
use crate::{
    base::{errno::Errno, ids::CoreId},
    socket::fast_open::mode,
    sysctl::{FastOpenKey, Sysctls},
    transmit::ip_output::{IpFields, MtuDiscover},
};

/// Smallest send buffer (`SOCK_MIN_SNDBUF`): two of the smallest packets with their descriptors.
const SNDBUF_MIN: u32 = 4608;

/// Smallest receive buffer (`SOCK_MIN_RCVBUF`): one of the smallest packets with its descriptor.
const RCVBUF_MIN: u32 = 2304;

/// Largest value of an `int`.
pub(super) const INT_MAX: u32 = i32::MAX as u32;

/// Largest number whose double fits in an `int`.
const BUFFER_MAX: u32 = INT_MAX / 2;

/// Range of `TCP_KEEPIDLE` and `TCP_KEEPINTVL`, in seconds (`MAX_TCP_KEEPIDLE`,
/// `MAX_TCP_KEEPINTVL`).
const KEEP_SECONDS: RangeInclusive<i32> = 1..=32_767;

/// Range of `TCP_KEEPCNT` and `TCP_SYNCNT` (`MAX_TCP_KEEPCNT`, `MAX_TCP_SYNCNT`).
const COUNT: RangeInclusive<i32> = 1..=127;

/// Range of `TCP_MAXSEG` besides 0, which removes the limit (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAXSEG: RangeInclusive<i32> = 88..=32_767;

/// Upper bound of `TCP_LINGER2` (`TCP_FIN_TIMEOUT_MAX`); a longer time is shortened to it.
pub(super) const LINGER2_MAX: Duration = Duration::from_secs(120);

/// Range of `TCP_RTO_MAX_MS`, in milliseconds (`TCP_RTO_MAX_SEC`).
const RTO_MAX_MS: RangeInclusive<i32> = 1000..=120_000;

/// Range of `IP_TTL`.
const TTL: RangeInclusive<i32> = 1..=255;

/// Upper bound of `SO_PRIORITY`: in Linux a greater number needs `CAP_NET_ADMIN`.
pub(super) const PRIORITY_MAX: u8 = 6;

/// Bits of `IP_TOS` and `IPV6_TCLASS` that a stream socket may set. The other two are the ECN
/// field, which TCP sets (RFC 3168 §5).
pub(super) const TOS_MASK: u8 = !0b11;

/// Longest time between two SYN-ACKs (`TCP_RTO_MAX`).
const RTO_MAX_SECONDS: u64 = 120;

/// Returns the number, or `EINVAL` for a value that is not an `int`.
pub(super) const fn int(value: &OptionValue) -> Result<i32, Errno> {
    match value {
        OptionValue::Int(number) => Ok(*number),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns whether a switch is on: any number but 0.
pub(super) fn flag(value: &OptionValue) -> Result<bool, Errno> {
    Ok(int(value)? != 0)
}

fn ranged(value: &OptionValue, allowed: RangeInclusive<i32>) -> Result<i32, Errno> {
    let number = int(value)?;
    if allowed.contains(&number) { Ok(number) } else { Err(Errno::EINVAL) }
}

/// Returns `number`, limited to the range `allowed`.
fn within(number: u64, allowed: RangeInclusive<i32>) -> u32 {
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    number.clamp(*allowed.start(), *allowed.end()).unsigned_abs()
}

/// `SO_BUSY_POLL_BUDGET`; `None` for 0, the default.
pub(super) fn frames(value: &OptionValue) -> Result<Option<u16>, Errno> {
    let frames = u16::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
    Ok((frames != 0).then_some(frames))
}

/// `TCP_THIN_LINEAR_TIMEOUTS`, `TCP_FASTOPEN_NO_COOKIE`, `IP_MULTICAST_ALL`, `IPV6_MULTICAST_LOOP`:
/// 0 or 1.
pub(super) fn switch(value: &OptionValue) -> Result<bool, Errno> {
    ranged(value, 0..=1).map(|on| on == 1)
}

/// `TCP_FASTOPEN`, `QUIETLINE_MAX_PER_SOURCE`, `SO_BUSY_POLL`, `IPV6_MULTICAST_IF`: a number that
/// is not negative. Differs from Linux, where raising `SO_BUSY_POLL` requires `CAP_NET_ADMIN`,
/// because this stack belongs to its application.
pub(super) fn natural(value: &OptionValue) -> Result<u32, Errno> {
    u32::try_from(int(value)?).map_err(|_| Errno::EINVAL)
}

/// `TCP_FASTOPEN_CONNECT`: 0 or 1; `EOPNOTSUPP` if `tcp_fastopen` does not allow clients.
pub(super) fn fast_open_connect(value: &OptionValue, sysctls: &Sysctls) -> Result<bool, Errno> {
    let on = switch(value)?;
    if sysctls.tcp_fastopen & mode::CLIENT == 0 { Err(Errno::EOPNOTSUPP) } else { Ok(on) }
}

/// `TCP_FASTOPEN_KEY`: the key, optionally followed by the previous key.
pub(super) fn fast_open_key(value: &OptionValue) -> Result<FastOpenKey, Errno> {
    let OptionValue::Bytes(bytes) = value else { return Err(Errno::EINVAL) };
    let (primary, rest) = bytes.split_first_chunk().ok_or(Errno::EINVAL)?;
    let backup = match rest {
        [] => None,
        rest => Some(rest.try_into().map_err(|_| Errno::EINVAL)?),
    };
    Ok(FastOpenKey { primary: *primary, backup })
}

/// Returns the keys of a socket, or else those of `tcp_fastopen_key`; no bytes if neither is set.
pub(super) fn show_fast_open_key(keys: Option<FastOpenKey>, sysctls: &Sysctls) -> OptionValue {
    let keys = keys.or(sysctls.tcp_fastopen_key);
    let bytes =
        keys.map(|keys| [&keys.primary[..], keys.backup.as_ref().map_or(&[], |key| key)].concat());
    OptionValue::Bytes(bytes.unwrap_or_default())
}

/// `SO_INCOMING_CPU`; a negative number, or one of more than 16 bits, means no core.
pub(super) fn core(value: &OptionValue) -> Result<Option<CoreId>, Errno> {
    Ok(u16::try_from(int(value)?).ok().map(CoreId))
}

/// Returns the time limit of a blocking call. As in Linux, zero means no limit.
pub(super) fn time(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    match value {
        OptionValue::Time(limit) => Ok(not_zero(*limit)),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the limit; `None` for zero.
pub(super) fn not_zero(limit: Option<Duration>) -> Option<Duration> {
    limit.filter(|limit| !limit.is_zero())
}

pub(super) const fn linger(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    match value {
        OptionValue::Linger(linger) => Ok(*linger),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns twice the number, because the size also covers descriptors, as in Linux. With the bound
/// `max` of a sysctl, a negative number counts as a large unsigned one. `SO_*BUFFORCE` has no
/// bound, and a negative number counts as 0.
fn buffer(value: &OptionValue, max: Option<u32>, min: u32) -> Result<u32, Errno> {
    let number = int(value)?;
    let wanted = match max {
        Some(max) => number.cast_unsigned().min(max),
        None => u32::try_from(number).unwrap_or(0),
    };
    Ok(buffer_of(wanted, min))
}

fn buffer_of(bytes: u32, min: u32) -> u32 {
    (bytes.min(BUFFER_MAX) * 2).max(min)
}

/// `SO_SNDBUF` with its bound `max`; `SO_SNDBUFFORCE` without one.
pub(super) fn sndbuf(value: &OptionValue, max: Option<u32>) -> Result<u32, Errno> {
    buffer(value, max, SNDBUF_MIN)
}

pub(super) fn sndbuf_of(bytes: u32) -> u32 {
    buffer_of(bytes, SNDBUF_MIN)
}

/// `SO_RCVBUF` with its bound `max`; `SO_RCVBUFFORCE` without one.
pub(super) fn rcvbuf(value: &OptionValue, max: Option<u32>) -> Result<u32, Errno> {
    buffer(value, max, RCVBUF_MIN)
}

pub(super) fn rcvbuf_of(bytes: u32) -> u32 {
    buffer_of(bytes, RCVBUF_MIN)
}

/// `TCP_MAXSEG`; `None` for 0, which removes the limit.
pub(super) fn maxseg(value: &OptionValue) -> Result<Option<u16>, Errno> {
    if int(value)? == 0 {
        return Ok(None);
    }
    ranged(value, MAXSEG).map(|bytes| u16::try_from(bytes).ok())
}

pub(super) fn maxseg_of(bytes: u16) -> u16 {
    u16::try_from(within(bytes.into(), MAXSEG)).unwrap_or(u16::MAX)
}

/// `TCP_KEEPIDLE` and `TCP_KEEPINTVL`.
pub(super) fn keep_seconds(value: &OptionValue) -> Result<Duration, Errno> {
    let seconds = ranged(value, KEEP_SECONDS)?;
    Ok(Duration::from_secs(u64::from(seconds.unsigned_abs())))
}

pub(super) fn keep_time_of(time: Duration) -> Duration {
    Duration::from_secs(within(time.as_secs(), KEEP_SECONDS).into())
}

/// `TCP_KEEPCNT` and `TCP_SYNCNT`.
pub(super) fn count(value: &OptionValue) -> Result<u8, Errno> {
    ranged(value, COUNT).map(|count| u8::try_from(count).unwrap_or(u8::MAX))
}

pub(super) fn count_of(count: u8) -> u8 {
    u8::try_from(within(count.into(), COUNT)).unwrap_or(u8::MAX)
}

/// `TCP_LINGER2`. 0 becomes `None`, which selects the time of the sysctl; a negative number becomes
/// zero.
pub(super) fn linger2(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    let seconds = int(value)?;
    let kept = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(LINGER2_MAX);
    Ok((seconds != 0).then_some(kept))
}

pub(super) fn show_linger2(linger2: Option<Duration>, config: &TcpConfig) -> OptionValue {
    match linger2 {
        None => show(config.tcp_fin_timeout.as_secs()),
        Some(Duration::ZERO) => OptionValue::Int(-1),
        Some(time) => show(time.as_secs()),
    }
}

/// `TCP_DEFER_ACCEPT`, seconds. Linux stores a number of SYN-ACKs, so the time is rounded up to the
/// time of the next SYN-ACK: 1, 3, 7 seconds and so on, for at most 255 SYN-ACKs at intervals of at
/// most two minutes.
pub(super) fn defer_accept(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    Ok(defer_accept_of(u64::try_from(int(value)?).unwrap_or(0)))
}

pub(super) fn defer_accept_of(wanted: u64) -> Option<Duration> {
    let (mut period, mut timeout, mut count) = (1, 1, 1);
    while wanted > period && count < 255 {
        timeout = (timeout * 2).min(RTO_MAX_SECONDS);
        period += timeout;
        count += 1;
    }
    (wanted > 0).then(|| Duration::from_secs(period))
}

/// `TCP_USER_TIMEOUT`, milliseconds; 0 removes the timeout.
pub(super) fn user_timeout(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    let ms = u64::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// `QUIETLINE_IDLE_TIMEOUT`, seconds. 0 means no limit; -1 becomes `None`, which selects the time
/// of the sysctl.
pub(super) fn idle_timeout(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    match int(value)? {
        -1 => Ok(None),
        seconds => match u64::try_from(seconds) {
            Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
            Err(_) => Err(Errno::EINVAL),
        },
    }
}

/// Returns a time in milliseconds.
pub(super) fn show_ms(time: Duration) -> OptionValue {
    show(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// `SO_MAX_PACING_RATE`, an unsigned number of bytes per second. All ones, in 32 or 64 bits, mean
/// no limit.
pub(super) fn max_pacing_rate(value: &OptionValue) -> Result<Option<u64>, Errno> {
    let rate = match value {
        OptionValue::Long(rate) => *rate,
        _ => match int(value)?.cast_unsigned() {
            u32::MAX => u64::MAX,
            rate => rate.into(),
        },
    };
    Ok(pacing_rate(rate))
}

/// Returns the limit, at least 1; `None` for all ones, which mean no limit.
pub(super) fn pacing_rate(rate: u64) -> Option<u64> {
    (rate != u64::MAX).then_some(rate.max(1))
}

pub(super) fn show_max_pacing_rate(rate: Option<u64>) -> OptionValue {
    OptionValue::Long(rate.unwrap_or(u64::MAX))
}

/// `TCP_WINDOW_CLAMP`, at least half of the smallest receive buffer. 0 becomes `None`, no limit;
/// only a fresh socket accepts 0.
pub(super) fn window_clamp(value: &OptionValue, state: SocketState) -> Result<Option<u32>, Errno> {
    match int(value)? {
        0 if state != SocketState::Fresh => Err(Errno::EINVAL),
        0 => Ok(None),
        bytes => Ok(Some(u32::try_from(bytes).unwrap_or(0).max(RCVBUF_MIN / 2))),
    }
}

pub(super) fn window_clamp_of(bytes: u32) -> Option<u32> {
    (bytes != 0).then_some(bytes.max(RCVBUF_MIN / 2))
}

/// `SO_RCVLOWAT`. A negative number counts as the largest one, and 0 as 1.
pub(super) fn rcvlowat(value: &OptionValue) -> Result<u32, Errno> {
    Ok(u32::try_from(int(value)?).unwrap_or(i32::MAX as u32).max(1))
}

/// `TCP_NOTSENT_LOWAT`, an unsigned number. 0 becomes `None`, which selects the number of the
/// sysctl.
pub(super) fn notsent_lowat(value: &OptionValue) -> Result<Option<u32>, Errno> {
    let bytes = int(value)?.cast_unsigned();
    Ok((bytes != 0).then_some(bytes))
}

/// `TCP_RTO_MAX_MS`.
pub(super) fn rto_max(value: &OptionValue) -> Result<Duration, Errno> {
    let ms = ranged(value, RTO_MAX_MS)?;
    Ok(Duration::from_millis(u64::from(ms.unsigned_abs())))
}

pub(super) fn rto_max_of(time: Duration) -> Duration {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(within(ms, RTO_MAX_MS).into())
}

/// `IP_TOS`: for a datagram socket the low byte, otherwise the low byte without the two ECN bits.
pub(super) fn tos(value: &OptionValue, state: SocketState) -> Result<u8, Errno> {
    let [low, ..] = int(value)?.to_le_bytes();
    Ok(if state == SocketState::Datagram { low } else { low & TOS_MASK })
}

/// `IP_MULTICAST_IF`: index of a device and an address, from a `struct ip_mreqn`, a `struct
/// ip_mreq` or a `struct in_addr`. A number is an index.
pub(super) fn multicast_interface(value: &OptionValue) -> Result<(u32, Ipv4Addr), Errno> {
    let bytes = match value {
        OptionValue::Bytes(bytes) => bytes,
        value => return natural(value).map(|index| (index, Ipv4Addr::UNSPECIFIED)),
    };
    let address = |at: usize| {
        let octets = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
        octets.map(|octets| Ipv4Addr::from(*octets)).ok_or(Errno::EINVAL)
    };
    match bytes.get(8..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(index) => Ok((u32::from_ne_bytes(*index), address(4)?)),
        None if bytes.len() >= 8 => Ok((0, address(4)?)),
        None => Ok((0, address(0)?)),
    }
}

/// `IP_MULTICAST_TTL` and `IPV6_MULTICAST_HOPS`; -1 selects the default of 1.
pub(super) fn multicast_ttl(value: &OptionValue) -> Result<u8, Errno> {
    match int(value)? {
        -1 => Ok(1),
        hops => u8::try_from(hops).map_err(|_| Errno::EINVAL),
    }
}

/// `UDP_SEGMENT`: payload bytes of a datagram, or 0 for no segmentation.
pub(super) fn segment(value: &OptionValue) -> Result<u16, Errno> {
    u16::try_from(int(value)?).map_err(|_| Errno::EINVAL)
}

/// Returns the priority of a differentiated services field (Linux: `rt_tos2priority`). The priority
/// follows from the bits that RFC 791 defined as delay and throughput.
const fn priority_of_tos(tos: u8) -> u8 {
    match tos >> 3 & 3 {
        0b10 => 6,
        0b11 => 4,
        0b01 => 2,
        _ => 0,
    }
}

/// Sets the differentiated services field and the priority that follows from it.
pub(super) const fn set_tos(ip: &mut IpFields, tos: u8) {
    ip.tos = tos;
    ip.priority = priority_of_tos(tos);
}

/// `SO_PRIORITY`.
pub(super) fn priority(value: &OptionValue) -> Result<u8, Errno> {
    match u8::try_from(int(value)?) {
        Ok(priority @ 0..=PRIORITY_MAX) => Ok(priority),
        _ => Err(Errno::EPERM),
    }
}

/// `IP_TTL`; -1 becomes `None`, which selects the TTL of the sysctl.
pub(super) fn ttl(value: &OptionValue) -> Result<Option<u8>, Errno> {
    match int(value)? {
        -1 => Ok(None),
        _ => ranged(value, TTL).map(|hops| u8::try_from(hops).ok()),
    }
}

/// `IPV6_UNICAST_HOPS`; -1 becomes `None`, which selects the hop limit of the sysctl.
pub(super) fn hop_limit(value: &OptionValue) -> Result<Option<u8>, Errno> {
    ranged(value, -1..=255).map(|hops| u8::try_from(hops).ok())
}

/// `IPV6_TCLASS`; -1 selects the default of 0. Only a datagram socket sets the two ECN bits.
pub(super) fn traffic_class(value: &OptionValue, state: SocketState) -> Result<u8, Errno> {
    let class = u8::try_from(ranged(value, -1..=255)?).unwrap_or(0);
    Ok(if state == SocketState::Datagram { class } else { class & TOS_MASK })
}

/// Returns the value of `IPV6_MTU_DISCOVER`.
pub(super) fn show_mtu_discover_v6(discover: Option<MtuDiscover>) -> OptionValue {
    OptionValue::Int(discover.unwrap_or(MtuDiscover::Want) as i32)
}

/// Returns the value of `IPV6_AUTOFLOWLABEL`. For `None` that is the mode of `auto_flowlabels`.
pub(super) fn show_flow_label(label: Option<bool>, sysctls: &Sysctls) -> OptionValue {
    label.unwrap_or(matches!(sysctls.ip6_auto_flowlabels, 1 | 3)).into()
}

/// `IP_MTU_DISCOVER`.
pub(super) fn mtu_discover(value: &OptionValue) -> Result<Option<MtuDiscover>, Errno> {
    let index = usize::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
    MtuDiscover::ALL.get(index).copied().map(Some).ok_or(Errno::EINVAL)
}

/// Returns the value of `IP_MTU_DISCOVER`. For `None` that is the mode that `ip_no_pmtu_disc`
/// selects.
pub(super) fn show_mtu_discover(discover: Option<MtuDiscover>, sysctls: &Sysctls) -> OptionValue {
    let default = match sysctls.ip_no_pmtu_disc {
        0 | 3 => MtuDiscover::Want,
        _ => MtuDiscover::Dont,
    };
    OptionValue::Int(discover.unwrap_or(default) as i32)
}

/// `TCP_CONGESTION`: `ENOENT` for an unknown name.
pub(super) fn congestion(value: &OptionValue) -> Result<Algorithm, Errno> {
    match value {
        OptionValue::Name(name) => Algorithm::from_name(name).ok_or(Errno::ENOENT),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns a number as an `int`, at most the largest one.
pub(super) fn show(number: impl Into<u64>) -> OptionValue {
    OptionValue::Int(i32::try_from(number.into()).unwrap_or(i32::MAX))
}
