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

    /// Acknowledges at once and for a while (`TCP_QUICKACK`); off lets answers carry the ACKs.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_quickack(&self, quickack: bool) -> io::Result<()> {
        self.set_option(SocketOption::QuickAck, quickack)
    }

    /// What the last drop does with unsent data (`SO_LINGER`): `None` sends it in the background, zero resets the
    /// connection, else the drop waits that long.
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.set_option(SocketOption::Linger, OptionValue::Linger(linger))
    }

    /// Sends keepalive probes on an idle connection (`SO_KEEPALIVE`).
    ///
    /// # Errors
    /// None; the signature is that of `std::net`.
    pub fn set_keepalive(&self, keepalive: bool) -> io::Result<()> {
        self.set_option(SocketOption::KeepAlive, keepalive)
    }

    /// Idle time before the first keepalive probe (`TCP_KEEPIDLE`), in whole seconds from 1 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other time.
    pub fn set_keepalive_time(&self, time: Duration) -> io::Result<()> {
        self.set_option(SocketOption::KeepIdle, seconds(time))
    }

    /// Time between keepalive probes (`TCP_KEEPINTVL`), in whole seconds from 1 to 32767.
    ///
    /// # Errors
    /// `EINVAL` for any other time.
    pub fn set_keepalive_interval(&self, interval: Duration) -> io::Result<()> {
        self.set_option(SocketOption::KeepInterval, seconds(interval))
    }

    /// Unanswered keepalive probes after which the connection is dead (`TCP_KEEPCNT`), from 1 to 127.
    ///
    /// # Errors
    /// `EINVAL` for any other number.
    pub fn set_keepalive_probes(&self, probes: u32) -> io::Result<()> {
        self.set_number(SocketOption::KeepCount, probes)
    }

    /// How long sent data may stay unacknowledged (`TCP_USER_TIMEOUT`), in whole milliseconds; `None` leaves it to
    /// `net.ipv4.tcp_retries2`.
    ///
    /// # Errors
    /// None that a stream can have.
    pub fn set_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let ms =
            timeout.map_or(0, |timeout| u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX));
        self.set_number(SocketOption::UserTimeout, ms)
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
