//! `getsockopt` and `setsockopt`.
//!
//! Linux: `tcp_setsockopt`, `sock_setsockopt`.

use std::{os::fd::RawFd, sync::Arc, time::Duration};

use libc::{IPPROTO_TCP, SOL_SOCKET};
use stack::{Cx, Errno, host::Host, socket::TcpSocket};
use tcp::{Algorithm, Keepalive};

use crate::runtime::Runtime;

/// `TCP_INQ`, which the libc crate does not name.
const TCP_INQ: i32 = 36;

/// An option as it was set.
#[derive(Clone, Debug)]
struct Wish {
    level: i32,
    name: i32,
    value: Vec<u8>,
}

/// What was set before there was a connection, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    set: Vec<Wish>,
}

impl Wishes {
    /// Makes a new connection what the program has asked for.
    pub(crate) fn apply(&self, stream: &Arc<TcpSocket>, host: &Host, cx: &mut Cx) {
        for wish in &self.set {
            // Validated when it was set; a connection that has ended meanwhile takes nothing.
            let _ = set_on_stream(stream, host, cx, wish);
        }
    }

    fn find(&self, level: i32, name: i32) -> Option<&Wish> {
        self.set.iter().rev().find(|wish| wish.level == level && wish.name == name)
    }
}

impl Runtime {
    pub(crate) fn setsockopt(
        &self,
        fd: RawFd,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket_mut(fd)?;
            match (level, name) {
                (IPPROTO_TCP, TCP_INQ) => socket.inq = int(value)? != 0,
                (SOL_SOCKET, libc::SO_RCVTIMEO) => socket.receive_timeout = timeval(value)?,
                (SOL_SOCKET, libc::SO_SNDTIMEO) => socket.send_timeout = timeval(value)?,
                _ => {
                    let wish = Wish { level, name, value: value.to_vec() };
                    check(&wish)?;
                    match socket.stream() {
                        Some(stream) => set_on_stream(stream, host, cx, &wish)?,
                        None => socket.wishes.set.push(wish),
                    }
                }
            }
            Ok(())
        })
    }

    pub(crate) fn getsockopt(&self, fd: RawFd, level: i32, name: i32) -> Result<Vec<u8>, Errno> {
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket(fd)?;
            if let Some(stream) = socket.stream() {
                return option_of_stream(stream, host, cx, level, name);
            }
            if (level, name) == (SOL_SOCKET, libc::SO_ERROR) {
                return Ok(0i32.to_ne_bytes().to_vec());
            }
            socket.wishes.find(level, name).map(|wish| wish.value.clone()).ok_or(Errno::ENOPROTOOPT)
        })
    }
}

/// Whether an option exists and its value is of the right form.
fn check(wish: &Wish) -> Result<(), Errno> {
    match (wish.level, wish.name) {
        (IPPROTO_TCP, libc::TCP_CONGESTION) => algorithm(&wish.value).map(drop),
        (SOL_SOCKET, libc::SO_LINGER) => linger(&wish.value).map(drop),
        (
            IPPROTO_TCP,
            libc::TCP_NODELAY
            | libc::TCP_CORK
            | libc::TCP_MAXSEG
            | libc::TCP_KEEPIDLE
            | libc::TCP_KEEPINTVL
            | libc::TCP_KEEPCNT
            | libc::TCP_USER_TIMEOUT
            | libc::TCP_QUICKACK
            | libc::TCP_NOTSENT_LOWAT,
        )
        | (
            SOL_SOCKET,
            libc::SO_REUSEADDR | libc::SO_KEEPALIVE | libc::SO_RCVBUF | libc::SO_SNDBUF,
        ) => int(&wish.value).map(drop),
        _ => Err(Errno::ENOPROTOOPT),
    }
}

fn set_on_stream(
    stream: &Arc<TcpSocket>,
    host: &Host,
    cx: &mut Cx,
    wish: &Wish,
) -> Result<(), Errno> {
    check(wish)?;
    stream.with_tcb(host, cx, |tcb, cx| {
        let value = int(&wish.value).unwrap_or_default();
        let on = value != 0;
        let number = u32::try_from(value).unwrap_or_default();
        let seconds = Duration::from_secs(u64::from(number));
        let keepalive = tcb.keepalive_times();
        match (wish.level, wish.name) {
            (IPPROTO_TCP, libc::TCP_NODELAY) => tcb.set_nodelay(on),
            (IPPROTO_TCP, libc::TCP_CORK) => tcb.set_cork(on),
            (IPPROTO_TCP, libc::TCP_QUICKACK) => tcb.set_quickack(on),
            (IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => tcb.set_notsent_lowat(number),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                let timeout = Duration::from_millis(u64::from(number));
                tcb.set_user_timeout(on.then_some(timeout));
            }
            (IPPROTO_TCP, libc::TCP_CONGESTION) => tcb.set_congestion(algorithm(&wish.value)?),
            (IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                tcb.set_keepalive_times(cx, Keepalive { time: seconds, ..keepalive });
            }
            (IPPROTO_TCP, libc::TCP_KEEPINTVL) => {
                tcb.set_keepalive_times(cx, Keepalive { interval: seconds, ..keepalive });
            }
            (IPPROTO_TCP, libc::TCP_KEEPCNT) => {
                let probes = u8::try_from(number).map_err(|_| Errno::EINVAL)?;
                tcb.set_keepalive_times(cx, Keepalive { probes, ..keepalive });
            }
            (SOL_SOCKET, libc::SO_KEEPALIVE) => tcb.set_keepalive(cx, on.then_some(keepalive)),
            (SOL_SOCKET, libc::SO_LINGER) => tcb.set_linger(linger(&wish.value)?),
            (SOL_SOCKET, libc::SO_RCVBUF) => tcb.set_rcvbuf(number.saturating_mul(2)),
            (SOL_SOCKET, libc::SO_SNDBUF) => tcb.set_sndbuf(number.saturating_mul(2)),
            (IPPROTO_TCP, libc::TCP_MAXSEG) => {
                tcb.set_maxseg(u16::try_from(number).map_err(|_| Errno::EINVAL)?);
            }
            _ => {}
        }
        Ok(())
    })
}

fn option_of_stream(
    stream: &Arc<TcpSocket>,
    host: &Host,
    cx: &mut Cx,
    level: i32,
    name: i32,
) -> Result<Vec<u8>, Errno> {
    if (level, name) == (SOL_SOCKET, libc::SO_ERROR) {
        let number = stream.take_error(host, cx).map_or(0, Errno::raw);
        return Ok(number.to_ne_bytes().to_vec());
    }
    let number = stream.with_tcb(host, cx, |tcb, _| {
        Ok(match (level, name) {
            (IPPROTO_TCP, libc::TCP_NODELAY) => u32::from(tcb.nodelay()),
            (IPPROTO_TCP, libc::TCP_CORK) => u32::from(tcb.cork()),
            (IPPROTO_TCP, libc::TCP_MAXSEG) => tcb.mss(),
            (SOL_SOCKET, libc::SO_RCVBUF) => tcb.rcvbuf(),
            (SOL_SOCKET, libc::SO_SNDBUF) => tcb.sndbuf(),
            (SOL_SOCKET, libc::SO_KEEPALIVE) => u32::from(tcb.keepalive()),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    })?;
    Ok(number.to_ne_bytes().to_vec())
}

/// An option's value as an int.
fn int(value: &[u8]) -> Result<i32, Errno> {
    let bytes = value.get(..4).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno::EINVAL)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// `struct timeval`; zero is no limit.
fn timeval(value: &[u8]) -> Result<Option<Duration>, Errno> {
    let part = |range: std::ops::Range<usize>| -> Result<u64, Errno> {
        let bytes = value.get(range).and_then(|bytes| bytes.try_into().ok());
        u64::try_from(i64::from_ne_bytes(bytes.ok_or(Errno::EINVAL)?)).map_err(|_| Errno::EINVAL)
    };
    let time = Duration::from_secs(part(0..8)?) + Duration::from_micros(part(8..16)?);
    Ok(Some(time).filter(|time| !time.is_zero()))
}

/// `struct linger`.
fn linger(value: &[u8]) -> Result<Option<Duration>, Errno> {
    let on = int(value)? != 0;
    let seconds = u64::try_from(int(value.get(4..).unwrap_or_default())?).unwrap_or_default();
    Ok(on.then(|| Duration::from_secs(seconds)))
}

fn algorithm(value: &[u8]) -> Result<Algorithm, Errno> {
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    std::str::from_utf8(name).ok().and_then(Algorithm::from_name).ok_or(Errno::ENOENT)
}
