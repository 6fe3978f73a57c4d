//! Options of a connection: typed methods as in `std::net` and similar crates, and every option by
//! its Linux name.
//!
//! Each typed method sets or reads one [`SocketOption`] by the rules of [`TcpStream::set_option`].

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

    /// Returns a socket option. Reading [`SocketOption::Error`] also clears the error.
    ///
    /// # Errors
    /// As getsockopt(2): `ENOPROTOOPT`.
    pub fn option(&self, option: SocketOption) -> io::Result<OptionValue> {
        let (host, socket) = (self.shared.stack.host(), &self.shared.socket);
        Ok(with_cx(|cx| socket.option(host, cx, option))?)
    }

    /// Returns a snapshot of the connection (`TCP_INFO`). [`SocketOption::Info`] returns the same
    /// as the kernel's `struct tcp_info`.
    ///
    /// # Errors
    /// None for a stream.
    pub fn tcp_info(&self) -> io::Result<TcpInfo> {
        let (host, socket) = (self.shared.stack.host(), &self.shared.socket);
        Ok(with_cx(|cx| socket.with_tcb(host, cx, |tcb, cx| tcb.info_at(cx.now))))
    }

    /// Returns a nonnegative integer option.
    fn number(&self, option: SocketOption) -> io::Result<u32> {
        let number = self.option(option)?.as_int().ok_or(Errno::EINVAL)?;
        Ok(number.cast_unsigned())
    }

    fn set_number(&self, option: SocketOption, number: u32) -> io::Result<()> {
        self.set_option(option, i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// Sets the maximum time that a read waits (`SO_RCVTIMEO`); `None` is no limit.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::ReceiveTimeout, OptionValue::Time(not_zero(timeout)?))
    }

    /// Returns the maximum time that a read waits.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.socket.receive_timeout())
    }

    /// Sets the maximum time that a write waits (`SO_SNDTIMEO`); `None` is no limit.
    ///
    /// # Errors
    /// `InvalidInput` for a zero timeout.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::SendTimeout, OptionValue::Time(not_zero(timeout)?))
    }

    /// Returns the maximum time that a write waits.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.shared.socket.send_timeout())
    }

    /// Disables Nagle's algorithm (`TCP_NODELAY`): small segments are sent at once instead of after
    /// an ACK.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.set_option(SocketOption::NoDelay, nodelay)
    }

    /// Returns whether Nagle's algorithm is disabled.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::NoDelay)? != 0)
    }

    /// Holds back partial segments (`TCP_CORK`), but at most for 200 ms while nothing is in flight.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_cork(&self, cork: bool) -> io::Result<()> {
        self.set_option(SocketOption::Cork, cork)
    }

    /// Returns whether partial segments are held back.
    ///
    /// # Errors
    /// None for a stream.
    pub fn cork(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::Cork)? != 0)
    }

    /// Acknowledges at once for a while (`TCP_QUICKACK`). `false` delays ACKs, so that data can
    /// carry them.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.set_option(SocketOption::QuickAck, quickack)
    }

    /// Returns whether the stream acknowledges at once at present.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn quickack(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::QuickAck)? != 0)
    }

    /// Sets how the last drop treats unsent data (`SO_LINGER`): `None` sends it in the background,
    /// zero resets the connection, any other time is the longest that the drop waits.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::Linger, OptionValue::Linger(linger))
    }

    /// Returns the time that the last drop waits for unsent data (`SO_LINGER`); `None` sends it in
    /// the background.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        match self.option(SocketOption::Linger)? {
            OptionValue::Linger(linger) => Ok(linger),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Returns the option for the IP version of the stream's packets.
    fn of_version(&self, v4: SocketOption, v6: SocketOption) -> io::Result<SocketOption> {
        Ok(if self.local_addr()?.ip().to_canonical().is_ipv4() { v4 } else { v6 })
    }

    /// Sets the TTL or hop limit of the stream's packets (`IP_TTL`, `IPV6_UNICAST_HOPS`), 1 to 255.
    /// Default: `net.ipv4.ip_default_ttl`, `net.ipv6.conf.all.hop_limit`.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        if ttl == 0 {
            return Err(Errno::EINVAL.into());
        }
        let option = self.of_version(SocketOption::TimeToLive, SocketOption::UnicastHops)?;
        self.set_number(option, ttl)
    }

    /// Returns the TTL or hop limit of the stream's packets.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn ttl(&self) -> io::Result<u32> {
        self.number(self.of_version(SocketOption::TimeToLive, SocketOption::UnicastHops)?)
    }

    /// Sets the differentiated services field of the stream's packets (`IP_TOS`, `IPV6_TCLASS`), in
    /// the upper six bits of `tos`. The lower two bits belong to ECN and are ignored. Over IPv4 it
    /// also sets `SO_PRIORITY`.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        let option = self.of_version(SocketOption::TypeOfService, SocketOption::TrafficClass)?;
        self.set_option(option, i32::from(tos))
    }

    /// Returns the differentiated services field of the stream's packets, in the upper six bits.
    ///
    /// # Errors
    /// None for a stream.
    pub fn tos(&self) -> io::Result<u8> {
        let option = self.of_version(SocketOption::TypeOfService, SocketOption::TrafficClass)?;
        Ok(u8::try_from(self.number(option)?).unwrap_or(u8::MAX))
    }

    /// Sends keepalive probes on an idle connection (`SO_KEEPALIVE`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.set_option(SocketOption::KeepAlive, keepalive)
    }

    /// Returns whether the stream sends keepalive probes when it is idle.
    ///
    /// # Errors
    /// None for a stream.
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(self.number(SocketOption::KeepAlive)? != 0)
    }

    /// Sets the idle time before the first keepalive probe (`TCP_KEEPIDLE`), in whole seconds from
    /// 1 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other time.
    pub fn set_keepalive_time(&self, time: Duration) -> io::Result<()> {
        self.set_option(SocketOption::KeepIdle, seconds(time))
    }

    /// Returns the idle time before the first keepalive probe.
    ///
    /// # Errors
    /// None for a stream.
    pub fn keepalive_time(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs(self.number(SocketOption::KeepIdle)?.into()))
    }

    /// Sets the time between keepalive probes (`TCP_KEEPINTVL`), in whole seconds from 1 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other time.
    pub fn set_keepalive_interval(&self, interval: Duration) -> io::Result<()> {
        self.set_option(SocketOption::KeepInterval, seconds(interval))
    }

    /// Returns the time between keepalive probes.
    ///
    /// # Errors
    /// None for a stream.
    pub fn keepalive_interval(&self) -> io::Result<Duration> {
        Ok(Duration::from_secs(self.number(SocketOption::KeepInterval)?.into()))
    }

    /// Sets the number of unanswered keepalive probes after which the connection ends with
    /// `ETIMEDOUT` (`TCP_KEEPCNT`), from 1 to 127.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_keepalive_probes(&self, probes: u32) -> io::Result<()> {
        self.set_number(SocketOption::KeepCount, probes)
    }

    /// Returns the number of unanswered keepalive probes after which the connection ends with
    /// `ETIMEDOUT`.
    ///
    /// # Errors
    /// None for a stream.
    pub fn keepalive_probes(&self) -> io::Result<u32> {
        self.number(SocketOption::KeepCount)
    }

    /// Sets how long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`), rounded up to
    /// milliseconds. `None` leaves the limit to `net.ipv4.tcp_retries2`.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        // Rounded up, because 0 removes the timeout.
        let whole = |time: Duration| u32::try_from(time.as_nanos().div_ceil(1_000_000));
        let ms = timeout.map_or(0, |time| whole(time).unwrap_or(u32::MAX));
        self.set_number(SocketOption::UserTimeout, ms)
    }

    /// Returns the time that sent data may stay unacknowledged; `None` if `net.ipv4.tcp_retries2`
    /// decides.
    ///
    /// # Errors
    /// None for a stream.
    pub fn user_timeout(&self) -> io::Result<Option<Duration>> {
        let ms = self.number(SocketOption::UserTimeout)?;
        Ok((ms != 0).then(|| Duration::from_millis(ms.into())))
    }

    /// Bounds the payload of a segment (`TCP_MAXSEG`), in bytes from 88 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_mss(&self, mss: u32) -> io::Result<()> {
        self.set_number(SocketOption::MaxSegment, mss)
    }

    /// Returns the payload of a full segment, in bytes.
    ///
    /// # Errors
    /// None for a stream.
    pub fn mss(&self) -> io::Result<u32> {
        self.number(SocketOption::MaxSegment)
    }

    /// Sets the congestion control by its Linux name (`TCP_CONGESTION`).
    ///
    /// # Errors
    /// `ENOENT` for an unknown name.
    pub fn set_congestion(&self, name: &str) -> io::Result<()> {
        self.set_option(SocketOption::Congestion, name)
    }

    /// Returns the name of the congestion control.
    ///
    /// # Errors
    /// None for a stream.
    pub fn congestion(&self) -> io::Result<String> {
        match self.option(SocketOption::Congestion)? {
            OptionValue::Name(name) => Ok(name),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Sets the number of unsent bytes from which on the stream is not writable
    /// (`TCP_NOTSENT_LOWAT`); 0 leaves it to `net.ipv4.tcp_notsent_lowat`.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_notsent_lowat(&self, bytes: u32) -> io::Result<()> {
        self.set_option(SocketOption::NotSentLowWater, bytes.cast_signed())
    }

    /// Returns the number of unsent bytes below which the stream is writable; 0 if the sysctl
    /// decides.
    ///
    /// # Errors
    /// None for a stream.
    pub fn notsent_lowat(&self) -> io::Result<u32> {
        self.number(SocketOption::NotSentLowWater)
    }

    /// Sets the size of the send buffer (`SO_SNDBUF`), in bytes up to `net.core.wmem_max`. As in
    /// Linux, the stack doubles the number for its overhead and stops autotuning.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_send_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::SendBuffer, bytes)
    }

    /// Returns the present size of the send buffer, in bytes of memory.
    ///
    /// # Errors
    /// None for a stream.
    pub fn send_buffer_size(&self) -> io::Result<u32> {
        self.number(SocketOption::SendBuffer)
    }

    /// Sets the size of the receive buffer (`SO_RCVBUF`), in bytes up to `net.core.rmem_max`. As in
    /// Linux, the stack doubles the number for its overhead and stops autotuning.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_receive_buffer_size(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::ReceiveBuffer, bytes)
    }

    /// Sets the number of bytes from which on the stream is readable and a blocking read returns
    /// (`SO_RCVLOWAT`); 1 by default. At most half of the largest receive buffer.
    ///
    /// # Errors
    /// None for a stream.
    pub fn set_rcvlowat(&self, bytes: u32) -> io::Result<()> {
        self.set_number(SocketOption::ReceiveLowWater, bytes)
    }

    /// Returns the number of bytes that a blocking read waits for (`SO_RCVLOWAT`).
    ///
    /// # Errors
    /// None for a stream.
    pub fn rcvlowat(&self) -> io::Result<u32> {
        Ok(self.shared.socket.rcvlowat())
    }

    /// Returns the present size of the receive buffer, in bytes of memory.
    ///
    /// # Errors
    /// None for a stream.
    pub fn receive_buffer_size(&self) -> io::Result<u32> {
        self.number(SocketOption::ReceiveBuffer)
    }
}

/// Returns whole seconds, at most the maximum of a C `int`.
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
