//! Options of sockets by their Linux names.
//!
//! A socket without connection keeps its options until it has one; a listener hands its own to what it accepts.
//!
//! Not here: options the stack does not have. A script that sets one fails.

use std::{sync::Arc, time::Duration};

use stack::{Errno, host::Host, socket::TcpSocket};
use tcp::{Algorithm, Keepalive};

use super::ast::Arg;
use crate::World;

/// An option with its value.
#[derive(Clone, Debug)]
pub(super) enum SockOpt {
    /// Names a number sets.
    Number(&'static str, i64),
    Linger(Option<Duration>),
    Congestion(Algorithm),
}

/// Options with a number for a value.
const NUMBERS: &[&str] = &[
    "SO_KEEPALIVE",
    "SO_REUSEADDR",
    "SO_OOBINLINE",
    "SO_RCVBUF",
    "SO_RCVLOWAT",
    "SO_SNDBUF",
    "TCP_CORK",
    "TCP_KEEPCNT",
    "TCP_KEEPIDLE",
    "TCP_KEEPINTVL",
    "TCP_MAXSEG",
    "TCP_NODELAY",
    "TCP_NOTSENT_LOWAT",
    "TCP_QUICKACK",
    "TCP_USER_TIMEOUT",
    "TCP_WINDOW_CLAMP",
];

impl SockOpt {
    /// Reads the name and value of a call.
    pub(super) fn read(name: &str, value: &Arg) -> Result<Result<Self, Errno>, String> {
        if let Some(known) = NUMBERS.iter().find(|known| **known == name) {
            return Ok(Ok(Self::Number(known, value.number()?)));
        }
        Ok(match (name, value) {
            ("SO_LINGER", value) => {
                let on = value.field("onoff")?.number()? != 0;
                let seconds = u64::try_from(value.field("linger")?.number()?)
                    .map_err(|_| String::from("a negative linger time"))?;
                Ok(Self::Linger(on.then(|| Duration::from_secs(seconds))))
            }
            ("TCP_CONGESTION", Arg::Text(text)) => {
                Algorithm::from_name(text).map(Self::Congestion).ok_or(Errno::ENOENT)
            }
            _ => return Err(format!("the stack has no socket option {name}")),
        })
    }

    /// Sets the option of a connection.
    pub(super) fn apply(
        &self,
        world: &mut World,
        host: &Arc<Host>,
        socket: &TcpSocket,
        keepalive: &mut Keepalive,
    ) -> Result<(), Errno> {
        socket.with_tcb(host, &mut world.cx, |tcb, cx| {
            match self {
                Self::Linger(linger) => tcb.set_linger(*linger),
                Self::Congestion(algorithm) => tcb.set_congestion(*algorithm),
                Self::Number(name, value) => return set_number(tcb, cx, name, *value, keepalive),
            }
            Ok(())
        })
    }
}

fn set_number(
    tcb: &mut tcp::Tcb,
    cx: &tcp::Cx<'_>,
    name: &str,
    value: i64,
    keepalive: &mut Keepalive,
) -> Result<(), Errno> {
    let number = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
    let small = |value: u32| u8::try_from(value).map_err(|_| Errno::EINVAL);
    let time = Duration::from_secs(u64::from(number));
    match name {
        "SO_KEEPALIVE" => {
            tcb.set_keepalive(cx, (number != 0).then_some(*keepalive));
            return Ok(());
        }
        "SO_RCVBUF" => tcb.set_rcvbuf(number.saturating_mul(2)),
        "SO_OOBINLINE" => tcb.set_oob_inline(number != 0),
        "SO_RCVLOWAT" => tcb.set_rcvlowat(cx, number),
        "TCP_WINDOW_CLAMP" => tcb.set_window_clamp(number),
        "SO_SNDBUF" => tcb.set_sndbuf(number.saturating_mul(2)),
        "TCP_CORK" => tcb.set_cork(number != 0),
        "TCP_NODELAY" => tcb.set_nodelay(number != 0),
        "TCP_QUICKACK" => tcb.set_quickack(number != 0),
        "TCP_MAXSEG" => tcb.set_maxseg(u16::try_from(number).map_err(|_| Errno::EINVAL)?),
        "TCP_NOTSENT_LOWAT" => tcb.set_notsent_lowat(number),
        "TCP_USER_TIMEOUT" => {
            tcb.set_user_timeout(Some(Duration::from_millis(u64::from(number))));
        }
        "TCP_KEEPCNT" => keepalive.probes = small(number)?,
        "TCP_KEEPIDLE" => keepalive.time = time,
        "TCP_KEEPINTVL" => keepalive.interval = time,
        _ => {}
    }
    if name.starts_with("TCP_KEEP") && tcb.keepalive() {
        tcb.set_keepalive(cx, Some(*keepalive));
    }
    Ok(())
}

/// The value of an option of a connection that `getsockopt` answers with.
pub(super) fn number(
    world: &mut World,
    host: &Arc<Host>,
    socket: &TcpSocket,
    name: &str,
) -> Result<i64, String> {
    if name == "SO_ERROR" {
        return Ok(socket.take_error(host, &mut world.cx).map_or(0, |errno| errno.raw().into()));
    }
    socket.with_tcb(host, &mut world.cx, |tcb, _| {
        Ok(match name {
            "SO_KEEPALIVE" => tcb.keepalive().into(),
            "SO_OOBINLINE" => tcb.oob_inline().into(),
            "SO_RCVBUF" => tcb.rcvbuf().into(),
            "SO_RCVLOWAT" => tcb.rcvlowat().into(),
            "TCP_QUICKACK" => tcb.quickack().into(),
            "TCP_WINDOW_CLAMP" => tcb.window_clamp().into(),
            "SO_SNDBUF" => tcb.sndbuf().into(),
            "TCP_CORK" => tcb.cork().into(),
            "TCP_NODELAY" => tcb.nodelay().into(),
            "TCP_MAXSEG" => tcb.mss().into(),
            "TCP_USER_TIMEOUT" => {
                let time = tcb.user_timeout().unwrap_or_default();
                i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
            }
            _ => return Err(format!("the stack has no socket option {name} to read")),
        })
    })
}
