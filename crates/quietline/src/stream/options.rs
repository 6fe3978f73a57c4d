//! Options of a connection: the typed methods that `std::net` and its relatives have, and all others by their Linux name.
//!
//! Every method sets what [`TcpStream::set_option`] sets, by the same rules.

use std::{io, time::Duration};

use stack::{
    Errno,
    socket::options::{OptionValue, SocketOption},
};

use tcp::TcpInfo;

use super::TcpStream;
use crate::clock::with_cx;

impl TcpStream {
    /// Sets a socket option by Linux's rules.
    ///
    /// # Errors
    /// As setsockopt(2): `ENOPROTOOPT`, `EINVAL`, `ENOENT`.
    pub fn set_option(
        &self,
        option: SocketOption,
        value: impl Into<OptionValue>,
    ) -> io::Result<()> {
        let value = value.into();
        let (host, socket) = (self.shared.stack.host(), &self.shared.socket);
        Ok(with_cx(|cx| socket.set_option(host, cx, option, &value))?)
    }

    /// Reads a socket option. Reading [`SocketOption::Error`] takes the error.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        let (host, socket) = (self.shared.stack.host(), &self.shared.socket);
        Ok(with_cx(|cx| socket.option(host, cx, option))?)
    }

    /// A snapshot of the connection (`TCP_INFO`). [`SocketOption::Info`] has the same as the kernel's `struct tcp_info`.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn tcp_info(&self) -> io::Result<TcpInfo> {
        let (host, socket) = (self.shared.stack.host(), &self.shared.socket);
        Ok(with_cx(|cx| socket.with_tcb(host, cx, |tcb, cx| tcb.info_at(cx.now))))
    }

    /// A number, as unsigned as it is meant.
    fn number(&self, option: SocketOption) -> io::Result<u32> {
        let number = self.option(option)?.as_int().ok_or(Errno::EINVAL)?;
        Ok(number.cast_unsigned())
    }

    fn set_number(&self, option: SocketOption, number: u32) -> io::Result<()> {
        self.set_option(option, i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// How long reads wait (`SO_RCVTIMEO`); `None` for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::ReceiveTimeout, OptionValue::Time(not_zero(timeout)?))
    }

    /// How long reads wait.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.socket.receive_timeout())
    }

    /// How long writes wait (`SO_SNDTIMEO`); `None` for ever.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::SendTimeout, OptionValue::Time(not_zero(timeout)?))
    }

    /// How long writes wait.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.socket.send_timeout())
    }

    /// Sends small segments at once (`TCP_NODELAY`) instead of waiting for an ACK (Nagle).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(SocketOption::NoDelay, nodelay)
    }

    /// Whether Nagle's algorithm is off.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::NoDelay)? != 0)
    }

    /// Holds back what is not a full segment (`TCP_CORK`), at most for one retransmission timeout.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        self.set_option(SocketOption::Cork, cork)
    }

    /// Whether partial segments are held back.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn cork(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::Cork)? != 0)
    }

    /// Acknowledges at once and for a while (`TCP_QUICKACK`); off lets answers carry the ACKs.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.set_option(SocketOption::QuickAck, quickack)
    }

    /// Whether the stream acknowledges at once at present.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn quickack(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::QuickAck)? != 0)
    }

    /// What the last drop does with unsent data (`SO_LINGER`): `None` sends it in the background, zero resets the
    /// connection, else the drop waits that long.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::Linger, OptionValue::Linger(linger))
    }

    /// Time that the last drop waits for unsent data (`SO_LINGER`); `None` sends it in the background.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        match self.option(SocketOption::Linger)? {
            OptionValue::Linger(linger) => Ok(linger),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// TTL of what the stream sends (`IP_TTL`), 1 to 255; the stack's default is `net.ipv4.ip_default_ttl`.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.set_number(SocketOption::TimeToLive, ttl)
    }

    /// TTL of what the stream sends.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn ttl(&self) -> io::Result<u32> {
        self.number(SocketOption::TimeToLive)
    }

    /// Differentiated services field of what the stream sends (`IP_TOS`), in the upper six bits of the number; the lower two are
    /// ECN's and ignored. It sets `SO_PRIORITY`, too.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        self.set_option(SocketOption::TypeOfService, i32::from(tos))
    }

    /// Differentiated services field of what the stream sends, in the upper six bits.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn tos(&self) -> io::Result<u8> {
        Ok(u8::try_from(self.number(SocketOption::TypeOfService)?).unwrap_or(u8::MAX))
    }

    /// Sends keepalive probes on an idle connection (`SO_KEEPALIVE`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.set_option(SocketOption::KeepAlive, keepalive)
    }

    /// Whether the stream sends keepalive probes when it is idle.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::KeepAlive)? != 0)
    }

    /// Idle time before the first keepalive probe (`TCP_KEEPIDLE`), in whole seconds from 1 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other time.
    pub fn set_keepalive_time(&self, time: Duration) -> io::Result<()> {
        self.set_option(SocketOption::KeepIdle, seconds(time))
    }

    /// Idle time before the first keepalive probe.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn keepalive_time(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs(self.number(SocketOption::KeepIdle)?.into()))
    }

    /// Time between keepalive probes (`TCP_KEEPINTVL`), in whole seconds from 1 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other time.
    pub fn set_keepalive_interval(&self, interval: Duration) -> io::Result<()> {
        self.set_option(SocketOption::KeepInterval, seconds(interval))
    }

    /// Time between keepalive probes.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn keepalive_interval(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs(self.number(SocketOption::KeepInterval)?.into()))
    }

    /// Unanswered keepalive probes after which the connection is dead (`TCP_KEEPCNT`), from 1 to 127.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_keepalive_probes(&self, probes: u32) -> io::Result<()> {
        self.set_number(SocketOption::KeepCount, probes)
    }

    /// Unanswered keepalive probes after which the connection ends with `ETIMEDOUT`.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn keepalive_probes(&self) -> io::Result<u32> {
        self.number(SocketOption::KeepCount)
    }

    /// How long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`), rounded up to milliseconds; `None` leaves it to
    /// `net.ipv4.tcp_retries2`.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        // Rounded up: 0 takes the timeout back.
        let whole = |time: Duration| u32::try_from(time.as_nanos().div_ceil(1_000_000));
        let ms = timeout.map_or(0, |time| whole(time).unwrap_or(u32::MAX));
        self.set_number(SocketOption::UserTimeout, ms)
    }

    /// Time that sent data may stay unacknowledged; `None` where `net.ipv4.tcp_retries2` decides.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        let ms = self.number(SocketOption::UserTimeout)?;
        Ok((ms != 0).then(|| Duration::from_millis(ms.into())))
    }

    /// Makes segments no larger than this (`TCP_MAXSEG`), payload bytes from 88 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_mss(&self, mss: u32) -> io::Result<()> {
        self.set_number(SocketOption::MaxSegment, mss)
    }

    /// Payload bytes of a full segment.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn mss(&self) -> io::Result<u32> {
        self.number(SocketOption::MaxSegment)
    }

    /// Congestion control by its Linux name (`TCP_CONGESTION`).
    ///
    /// # Errors
    /// `ENOENT` for a name the stack does not know.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.set_option(SocketOption::Congestion, name)
    }

    /// The congestion control's name.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn congestion(&self) -> io::Result<String> {
        match self.option(SocketOption::Congestion)? {
            OptionValue::Name(name) => Ok(name),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// The stream is ready for writing only while it holds fewer unsent bytes than this (`TCP_NOTSENT_LOWAT`); 0 leaves
    /// it to the sysctl.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::NotSentLowWater, bytes.cast_signed())
    }

    /// Unsent bytes below which the stream is ready for writing; 0 where the sysctl decides.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn notsent_lowat(&self) -> io::Result<u32> {
        self.number(SocketOption::NotSentLowWater)
    }

    /// Send buffer in bytes (`SO_SNDBUF`), at most `net.core.wmem_max`. Twice as much is kept, and autotuning ends.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_send_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::SendBuffer, bytes)
    }

    /// Send buffer as it is, bytes of memory.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        self.number(SocketOption::SendBuffer)
    }

    /// Receive buffer in bytes (`SO_RCVBUF`), at most `net.core.rmem_max`. Twice as much is kept, and autotuning ends.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_receive_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::ReceiveBuffer, bytes)
    }

    /// How many bytes a blocking read waits for, and make the stream readable (`SO_RCVLOWAT`); 1 by default. Bounded by
    /// half of the largest receive buffer.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_rcvlowat(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::ReceiveLowWater, bytes)
    }

    /// How many bytes a blocking read waits for (`SO_RCVLOWAT`).
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn rcvlowat(&self) -> io::Result<u32> {
        Ok(self.shared.socket.rcvlowat())
    }

    /// Receive buffer as it is, bytes of memory.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn receive_buffer_size(&self) -> io::Result<u32> {
        self.number(SocketOption::ReceiveBuffer)
    }
}

/// Whole seconds, at most what an `int` holds.
fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

fn not_zero(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    match timeout {
        Some(Duration::ZERO) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "the timeout is zero"))
        }
        timeout => Ok(timeout),
    }
}
