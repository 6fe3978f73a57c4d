//! Validation of option values by Linux's rules, and their conversion to stored values.
//!
//! Each function takes the value given by the application and returns the value that the socket
//! stores, or the errno.

use core::{ops::RangeInclusive, time::Duration};

use tcp::{Algorithm, Keepalive, TcpConfig};

use super::{OptionValue, SocketOption};
use crate::{
    base::{errno::Errno, ids::CoreId},
    socket::{BusyPoll, fast_open::mode},
    sysctl::{FastOpenKey, Sysctls},
    transmit::ip_output::MtuDiscover,
};

/// Smallest send buffer (`SOCK_MIN_SNDBUF`): two of the smallest packets with their descriptors.
const SNDBUF_MIN: u32 = 4608;

/// Smallest receive buffer (`SOCK_MIN_RCVBUF`): one of the smallest packets with its descriptor.
const RCVBUF_MIN: u32 = 2304;

/// Largest number whose double fits an `int`.
const BUFFER_MAX: u32 = i32::MAX as u32 / 2;

/// Allowed seconds of `TCP_KEEPIDLE` and `TCP_KEEPINTVL` (`MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`).
const KEEP_SECONDS: RangeInclusive<i32> = 1..=32_767;

/// Allowed probes of `TCP_KEEPCNT` (`MAX_TCP_KEEPCNT`).
const KEEP_COUNT: RangeInclusive<i32> = 1..=127;

/// Allowed values of `TCP_MAXSEG` besides 0, which resets it (`TCP_MIN_MSS`, `MAX_TCP_WINDOW`).
const MAXSEG: RangeInclusive<i32> = 88..=32_767;

/// Maximum seconds of `TCP_LINGER2` (`TCP_FIN_TIMEOUT_MAX`); larger values are clamped.
const LINGER2_SECONDS_MAX: u64 = 120;

/// Allowed SYN retransmissions of `TCP_SYNCNT` (`MAX_TCP_SYNCNT`).
const SYN_RETRIES: RangeInclusive<i32> = 1..=127;

/// Allowed milliseconds of `TCP_RTO_MAX_MS` (`TCP_RTO_MAX_SEC`).
const RTO_MAX_MS: RangeInclusive<i32> = 1000..=120_000;

/// Allowed values of `IP_TTL`.
const TTL: RangeInclusive<i32> = 1..=255;

/// Longest time between two SYN-ACKs (`TCP_RTO_MAX`).
const RTO_MAX_SECONDS: u64 = 120;

/// Returns the number, if the value is one.
pub(super) const fn int(value: &OptionValue) -> Result<i32, Errno> {
    match value {
        OptionValue::Int(number) => Ok(*number),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns a switch: on unless 0.
pub(super) fn flag(value: &OptionValue) -> Result<bool, Errno> {
    Ok(int(value)? != 0)
}

fn ranged(value: &OptionValue, allowed: RangeInclusive<i32>) -> Result<i32, Errno> {
    let number = int(value)?;
    if allowed.contains(&number) { Ok(number) } else { Err(Errno::EINVAL) }
}

/// Returns `busy` with one of `SO_BUSY_POLL`, `SO_PREFER_BUSY_POLL` and `SO_BUSY_POLL_BUDGET`
/// changed. Differs from Linux, which requires `CAP_NET_ADMIN` to raise a value, because this stack
/// belongs to its application.
pub(super) fn busy_poll(
    busy: BusyPoll,
    option: SocketOption,
    value: &OptionValue,
) -> Result<BusyPoll, Errno> {
    Ok(match option {
        SocketOption::BusyPoll => {
            let usecs = u32::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
            BusyPoll { usecs: Some(usecs), ..busy }
        }
        SocketOption::BusyPollBudget => {
            let budget = u16::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
            BusyPoll { budget: (budget != 0).then_some(budget), ..busy }
        }
        _ => BusyPoll { prefer: flag(value)?, ..busy },
    })
}

/// Returns `SO_BUSY_POLL` or `SO_PREFER_BUSY_POLL`; the budget cannot be read, as in Linux.
pub(super) fn show_busy_poll(
    busy: BusyPoll,
    option: SocketOption,
    sysctls: &Sysctls,
) -> Result<OptionValue, Errno> {
    match option {
        SocketOption::BusyPoll => Ok(show(u64::from(busy.usecs.unwrap_or(sysctls.busy_read)))),
        SocketOption::PreferBusyPoll => Ok(busy.prefer.into()),
        _ => Err(Errno::ENOPROTOOPT),
    }
}

/// Returns a switch that must be 0 or 1: `TCP_THIN_LINEAR_TIMEOUTS`, `TCP_FASTOPEN_NO_COOKIE`.
pub(super) fn switch(value: &OptionValue) -> Result<bool, Errno> {
    ranged(value, 0..=1).map(|on| on == 1)
}

/// Returns a number that must not be negative: `TCP_FASTOPEN`, `QUIETLINE_MAX_PER_SOURCE`.
pub(super) fn queue_length(value: &OptionValue) -> Result<u32, Errno> {
    u32::try_from(int(value)?).map_err(|_| Errno::EINVAL)
}

/// `TCP_FASTOPEN_CONNECT`: 0 or 1, if `tcp_fastopen` allows clients.
pub(super) fn fast_open_connect(value: &OptionValue, sysctls: &Sysctls) -> Result<bool, Errno> {
    let on = switch(value)?;
    if sysctls.tcp_fastopen & mode::CLIENT == 0 { Err(Errno::EOPNOTSUPP) } else { Ok(on) }
}

/// `TCP_FASTOPEN_KEY`: one key, or two of which the second is the previous one.
pub(super) fn fast_open_key(value: &OptionValue) -> Result<FastOpenKey, Errno> {
    let OptionValue::Bytes(bytes) = value else { return Err(Errno::EINVAL) };
    let (primary, rest) = bytes.split_first_chunk().ok_or(Errno::EINVAL)?;
    let backup = match rest {
        [] => None,
        rest => Some(rest.try_into().map_err(|_| Errno::EINVAL)?),
    };
    Ok(FastOpenKey { primary: *primary, backup })
}

/// Returns the keys of a socket, or else those of `tcp_fastopen_key`; no bytes when neither was
/// set.
pub(super) fn show_fast_open_key(keys: Option<FastOpenKey>, sysctls: &Sysctls) -> OptionValue {
    let keys = keys.or(sysctls.tcp_fastopen_key);
    let bytes =
        keys.map(|keys| [&keys.primary[..], keys.backup.as_ref().map_or(&[], |key| key)].concat());
    OptionValue::Bytes(bytes.unwrap_or_default())
}

/// `SO_INCOMING_CPU`; a negative number is none.
pub(super) fn core(value: &OptionValue) -> Result<Option<CoreId>, Errno> {
    Ok(u16::try_from(int(value)?).ok().map(CoreId))
}

/// Returns a time limit of a blocking call. Zero is no limit, as in Linux.
pub(super) fn time(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    match value {
        OptionValue::Time(limit) => Ok(limit.filter(|limit| !limit.is_zero())),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) const fn linger(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    match value {
        OptionValue::Linger(linger) => Ok(*linger),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns twice the requested size, because Linux counts descriptors too. The number is unsigned:
/// a negative one is a very large one, which the sysctl bounds. `SO_*BUFFORCE` has no such bound
/// and treats a negative number as zero.
fn buffer(value: &OptionValue, max: Option<u32>, min: u32) -> Result<u32, Errno> {
    let number = int(value)?;
    let wanted = match max {
        Some(max) => number.cast_unsigned().min(max),
        None => u32::try_from(number).unwrap_or(0),
    };
    Ok((wanted.min(BUFFER_MAX) * 2).max(min))
}

/// `SO_SNDBUF` and `SO_SNDBUFFORCE`.
pub(super) fn sndbuf(
    option: SocketOption,
    value: &OptionValue,
    sysctls: &Sysctls,
) -> Result<u32, Errno> {
    let max = (option == SocketOption::SendBuffer).then_some(sysctls.tcp.wmem_max);
    buffer(value, max, SNDBUF_MIN)
}

/// `SO_RCVBUF` and `SO_RCVBUFFORCE`.
pub(super) fn rcvbuf(
    option: SocketOption,
    value: &OptionValue,
    sysctls: &Sysctls,
) -> Result<u32, Errno> {
    let max = (option == SocketOption::ReceiveBuffer).then_some(sysctls.tcp.rmem_max);
    buffer(value, max, RCVBUF_MIN)
}

/// `TCP_MAXSEG`; `None` resets it.
pub(super) fn maxseg(value: &OptionValue) -> Result<Option<u16>, Errno> {
    if int(value)? == 0 {
        return Ok(None);
    }
    ranged(value, MAXSEG).map(|bytes| u16::try_from(bytes).ok())
}

/// Returns `times` with one of `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT` changed.
pub(super) fn keepalive_times(
    times: Keepalive,
    option: SocketOption,
    value: &OptionValue,
) -> Result<Keepalive, Errno> {
    let seconds = ranged(value, KEEP_SECONDS)
        .map(|seconds| Duration::from_secs(u64::from(seconds.unsigned_abs())));
    Ok(match option {
        SocketOption::KeepIdle => Keepalive { time: seconds?, ..times },
        SocketOption::KeepInterval => Keepalive { interval: seconds?, ..times },
        _ => {
            let probes = ranged(value, KEEP_COUNT)?;
            Keepalive { probes: u8::try_from(probes).unwrap_or(u8::MAX), ..times }
        }
    })
}

/// Returns one of `times`, or the sysctl if the socket has none.
pub(super) fn show_keepalive(
    times: Keepalive,
    option: SocketOption,
    sysctls: &Sysctls,
) -> OptionValue {
    let times = times.or_config(&sysctls.tcp);
    let number = match option {
        SocketOption::KeepIdle => times.time.as_secs(),
        SocketOption::KeepInterval => times.interval.as_secs(),
        _ => u64::from(times.probes),
    };
    show(number)
}

/// `TCP_LINGER2`: `None` for 0, which selects the sysctl; a negative number disables the wait.
pub(super) fn linger2(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    let seconds = int(value)?;
    let kept = u64::try_from(seconds).unwrap_or(0).min(LINGER2_SECONDS_MAX);
    Ok((seconds != 0).then(|| Duration::from_secs(kept)))
}

pub(super) fn show_linger2(linger2: Option<Duration>, sysctls: &Sysctls) -> OptionValue {
    match linger2 {
        None => show(sysctls.tcp.tcp_fin_timeout.as_secs()),
        Some(Duration::ZERO) => OptionValue::Int(-1),
        Some(time) => show(time.as_secs()),
    }
}

/// `TCP_DEFER_ACCEPT`, in seconds. Linux stores a number of SYN-ACKs, so the time is rounded up to
/// the time of the next one: 1, 3, 7 seconds and so on, at most 255 of them and two minutes apart.
pub(super) fn defer_accept(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    let wanted = u64::try_from(int(value)?).unwrap_or(0);
    let (mut period, mut timeout, mut count) = (1, 1, 1);
    while wanted > period && count < 255 {
        timeout = (timeout * 2).min(RTO_MAX_SECONDS);
        period += timeout;
        count += 1;
    }
    Ok((wanted > 0).then(|| Duration::from_secs(period)))
}

/// `TCP_USER_TIMEOUT`, in milliseconds; 0 resets it.
pub(super) fn user_timeout(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    let ms = u64::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

pub(super) fn show_user_timeout(timeout: Option<Duration>) -> OptionValue {
    show_ms(timeout.unwrap_or(Duration::ZERO))
}

/// `QUIETLINE_IDLE_TIMEOUT`, in seconds: 0 is no limit, -1 selects the sysctl.
pub(super) fn idle_timeout(value: &OptionValue) -> Result<Option<Duration>, Errno> {
    match int(value)? {
        -1 => Ok(None),
        seconds => match u64::try_from(seconds) {
            Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
            Err(_) => Err(Errno::EINVAL),
        },
    }
}

/// Returns the effective idle timeout: the socket's, or else the sysctl's.
pub(super) fn show_idle_timeout(timeout: Option<Duration>, config: &TcpConfig) -> OptionValue {
    show(timeout.unwrap_or(config.tcp_idle_timeout).as_secs())
}

/// Returns a time in milliseconds.
pub(super) fn show_ms(time: Duration) -> OptionValue {
    show(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// `SO_MAX_PACING_RATE`, an unsigned number of bytes per second; the maximum of its width is no
/// limit.
pub(super) fn max_pacing_rate(value: &OptionValue) -> Result<Option<u64>, Errno> {
    let rate = match value {
        OptionValue::Long(rate) => *rate,
        _ => match int(value)?.cast_unsigned() {
            u32::MAX => u64::MAX,
            rate => rate.into(),
        },
    };
    Ok((rate != u64::MAX).then_some(rate.max(1)))
}

pub(super) fn show_max_pacing_rate(rate: Option<u64>) -> OptionValue {
    OptionValue::Long(rate.unwrap_or(u64::MAX))
}

/// `TCP_WINDOW_CLAMP`: at least half the smallest buffer. `None` for 0, which only a socket without
/// a connection accepts.
pub(super) fn window_clamp(value: &OptionValue) -> Result<Option<u32>, Errno> {
    let bytes = int(value)?;
    Ok((bytes != 0).then(|| u32::try_from(bytes).unwrap_or(0).max(RCVBUF_MIN / 2)))
}

/// `SO_RCVLOWAT`: a negative number is the maximum, zero is 1.
pub(super) fn rcvlowat(value: &OptionValue) -> Result<u32, Errno> {
    Ok(u32::try_from(int(value)?).unwrap_or(i32::MAX as u32).max(1))
}

/// `TCP_NOTSENT_LOWAT`, an unsigned number; 0 selects the sysctl.
pub(super) fn notsent_lowat(value: &OptionValue) -> Result<Option<u32>, Errno> {
    let bytes = int(value)?.cast_unsigned();
    Ok((bytes != 0).then_some(bytes))
}

/// `TCP_SYNCNT`.
pub(super) fn syn_retries(value: &OptionValue) -> Result<Option<u8>, Errno> {
    ranged(value, SYN_RETRIES).map(|retries| u8::try_from(retries).ok())
}

/// `TCP_RTO_MAX_MS`.
pub(super) fn rto_max(value: &OptionValue) -> Result<Duration, Errno> {
    let ms = ranged(value, RTO_MAX_MS)?;
    Ok(Duration::from_millis(u64::from(ms.unsigned_abs())))
}

/// `IP_TOS`: the low byte, without the two ECN bits, which TCP controls (RFC 3168 §5).
pub(super) fn tos(value: &OptionValue) -> Result<u8, Errno> {
    let [low, ..] = int(value)?.to_le_bytes();
    Ok(low & !0b11)
}

/// Returns the priority of a differentiated services field (Linux: `rt_tos2priority`), derived from
/// the former delay and throughput bits.
pub(super) const fn priority_of_tos(tos: u8) -> u8 {
    match tos >> 3 & 3 {
        0b10 => 6,
        0b11 => 4,
        0b01 => 2,
        _ => 0,
    }
}

/// `SO_PRIORITY`: 7 and more need a privilege that no caller has here.
pub(super) fn priority(value: &OptionValue) -> Result<u8, Errno> {
    match u8::try_from(int(value)?) {
        Ok(priority @ 0..=6) => Ok(priority),
        _ => Err(Errno::EPERM),
    }
}

/// `IP_TTL`: -1 selects the sysctl.
pub(super) fn ttl(value: &OptionValue) -> Result<Option<u8>, Errno> {
    match int(value)? {
        -1 => Ok(None),
        _ => ranged(value, TTL).map(|hops| u8::try_from(hops).ok()),
    }
}

/// `IP_MTU_DISCOVER`.
pub(super) fn mtu_discover(value: &OptionValue) -> Result<Option<MtuDiscover>, Errno> {
    let index = usize::try_from(int(value)?).map_err(|_| Errno::EINVAL)?;
    MtuDiscover::ALL.get(index).copied().map(Some).ok_or(Errno::EINVAL)
}

/// Returns `IP_MTU_DISCOVER`, or its default if it was not set.
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

/// Converts a number to an `int`, saturating.
pub(super) fn show(number: u64) -> OptionValue {
    OptionValue::Int(i32::try_from(number).unwrap_or(i32::MAX))
}
