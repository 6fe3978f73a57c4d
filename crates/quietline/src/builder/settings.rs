//! Typed setters of the settings that most applications look at.
//!
//! Each sets one or several sysctls of docs/sysctl.md, and [`StackBuilder::sysctl`] sets any other. What is set last counts.
//! Values out of bounds are refused by [`StackBuilder::build`], as with `sysctl`.
//!
//! Not here: settings of one socket (`options`), of one device (`net.quietline.dev.NAME`).

use std::{ops::RangeInclusive, time::Duration};

use tcp::Algorithm as CongestionControl;

use super::StackBuilder;

/// Explicit congestion notification (RFC 3168): whether routers may mark packets instead of dropping them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EcnMode {
    /// Connections neither offer nor accept it.
    Off,
    /// Accepted connections use it if the peer offers it; opened ones do not offer it. As in Linux.
    #[default]
    Accept,
    /// All connections offer and accept it.
    Offer,
}

/// Search for the path MTU by probe segments (RFC 4821).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MtuProbing {
    /// Only ICMP reports of routers lower the path MTU.
    #[default]
    Off,
    /// Connections search after several timeouts that look like a router which drops large packets silently.
    AfterBlackHole,
    /// All connections search, starting from small segments.
    Always,
}

impl StackBuilder {
    /// Congestion control of connections that choose none.
    ///
    /// `Cubic` and `Reno` reduce their rate when packets are lost, `Bbr` models the bandwidth and the round-trip time of the path
    /// and tolerates random loss, and `Dctcp` follows the marks of switches.
    /// [`TcpStream::set_congestion`](crate::TcpStream::set_congestion) sets it for one connection.
    ///
    /// Default: `Cubic`, as in Linux. Choose `Bbr` for long paths with random loss, such as radio links. It takes a larger
    /// share than Cubic does where both meet in a short queue.
    ///
    /// Warning: `Dctcp` is for networks whose switches mark early. On any other network it behaves worse than `Reno`.
    ///
    /// Setting: `net.ipv4.tcp_congestion_control`.
    pub fn congestion_control(self, algorithm: CongestionControl) -> Self {
        self.sysctl("net.ipv4.tcp_congestion_control", algorithm.name())
    }

    /// Upper bound of the send buffer of a connection, in bytes of packet memory.
    ///
    /// The buffer keeps bytes until they are acknowledged. It starts at 16 KB and grows with the congestion window, so an idle
    /// connection holds no more memory with a larger bound. A connection sends at most a buffer in each round trip:
    ///
    /// `bytes = 3 × bandwidth × round-trip time`, the factor because a buffer holds two windows and its bookkeeping.
    ///
    /// Default: 4 MiB, which is enough for 1 Gbit/s at 10 ms. Raise it for faster or longer paths. Lower it on hosts with many
    /// slow clients: a client that does not read holds up to this much memory.
    /// `SO_SNDBUF` sets a fixed size for one socket.
    ///
    /// Setting: the last number of `net.ipv4.tcp_wmem`.
    pub fn send_buffer_max(self, bytes: u32) -> Self {
        self.set_last_of_three("net.ipv4.tcp_wmem", bytes)
    }

    /// Upper bound of the receive buffer of a connection, in bytes of packet memory.
    ///
    /// Half of the buffer is announced as window. It starts at 128 KB and grows with the rate at which the application reads.
    /// A peer sends at most a window in each round trip:
    ///
    /// `bytes = 4 × bandwidth × round-trip time`.
    ///
    /// Default: 6 MiB, which is enough for 1 Gbit/s at 12 ms. Raise it for faster or longer paths. Lower it on hosts with many
    /// connections whose applications read slowly: a sender that fills the buffer makes the host hold up to this much.
    /// `SO_RCVBUF` sets a fixed size for one socket.
    ///
    /// Warning: a bound below the 128 KB that a buffer starts with lowers the start as well, and with it the throughput of the
    /// first round trips.
    ///
    /// Setting: the last number of `net.ipv4.tcp_rmem`.
    pub fn receive_buffer_max(self, bytes: u32) -> Self {
        self.set_last_of_three("net.ipv4.tcp_rmem", bytes)
    }

    /// Probes of idle connections, in whole seconds: the first one after `idle`, then `probes` in all, `interval` apart.
    ///
    /// They apply to sockets that have switched keepalive on (`SO_KEEPALIVE`, [`TcpStream::set_keepalive`]); no other connection
    /// is probed. A peer that has disappeared is noticed after
    ///
    /// `idle + probes × interval`.
    ///
    /// Default: 2 hours, 75 seconds, 9 probes, as in Linux and RFC 9293 §3.8.4: 2 hours and 11 minutes. Choose an `idle` below the
    /// time after which a NAT or firewall of the path forgets idle connections (often 5 minutes). Each probe is a packet
    /// for each idle connection, so short times keep radio links and batteries busy.
    ///
    /// Settings: `net.ipv4.tcp_keepalive_time`, `_intvl` and `_probes`.
    ///
    /// [`TcpStream::set_keepalive`]: crate::TcpStream::set_keepalive
    pub fn keepalive(self, idle: Duration, interval: Duration, probes: u8) -> Self {
        self.sysctl("net.ipv4.tcp_keepalive_time", &whole_seconds(idle))
            .sysctl("net.ipv4.tcp_keepalive_intvl", &whole_seconds(interval))
            .sysctl("net.ipv4.tcp_keepalive_probes", &probes.to_string())
    }

    /// Time without new payload in either direction after which a connection is reset, in whole seconds; `None` for no limit.
    ///
    /// Keepalive probes and window probes do not count as payload. So the limit also ends connections whose peer is alive and
    /// keeps its window closed, which keepalive does not notice.
    ///
    /// Default: `None`, as TCP has no such limit. Set it on servers that untrusted clients reach, above the longest pause of the
    /// protocol.
    ///
    /// Warning: it ends connections that are in order and only quiet, such as those of a connection pool.
    ///
    /// Setting: `net.quietline.tcp_idle_timeout`.
    pub fn idle_timeout(self, time: Option<Duration>) -> Self {
        let seconds = time.map_or_else(|| String::from("0"), whole_seconds);
        self.sysctl("net.quietline.tcp_idle_timeout", &seconds)
    }

    /// Number of retransmission timeouts of one segment after which a connection fails with `ETIMEDOUT`.
    ///
    /// The timeouts double up to 120 s. If the first is 200 ms, the connection fails after
    ///
    /// `0.2 s × (2^(count + 1) − 1)` for counts up to 9 (205 s), and 120 s more for each count above.
    ///
    /// Default: 15, which is 924.6 s, as in Linux. Lower it to fail sooner when a peer has disappeared, for example to 8 for
    /// 102 s; RFC 9293 §3.8.3 asks for at least 100 s. The time also depends on the round-trip time;
    /// `TCP_USER_TIMEOUT` sets an exact time for one socket.
    ///
    /// Setting: `net.ipv4.tcp_retries2`.
    pub fn retransmissions_max(self, count: u8) -> Self {
        self.sysctl("net.ipv4.tcp_retries2", &count.to_string())
    }

    /// Explicit congestion notification.
    ///
    /// Marks tell a sender of a full queue without the loss of a packet. They need routers that mark; other routers and hosts
    /// ignore them.
    ///
    /// Default: [`EcnMode::Accept`], as in Linux. Choose [`EcnMode::Offer`] on networks whose queues mark packets. A few
    /// middleboxes drop SYNs that offer it; a connection then tries again without the offer, a second later.
    ///
    /// Setting: `net.ipv4.tcp_ecn`.
    pub fn ecn(self, mode: EcnMode) -> Self {
        let value = match mode {
            EcnMode::Off => "0",
            EcnMode::Offer => "1",
            EcnMode::Accept => "2",
        };
        self.sysctl("net.ipv4.tcp_ecn", value)
    }

    /// Search for the path MTU by probe segments.
    ///
    /// Segments are as large as the MTU of the device allows, and routers with a smaller MTU report it by ICMP. If a router on
    /// the path filters ICMP, large segments disappear and the connection hangs; probing finds the size that passes.
    ///
    /// Default: [`MtuProbing::Off`], as in Linux. Choose [`MtuProbing::AfterBlackHole`] for hosts on the Internet: it costs
    /// nothing until segments disappear. [`MtuProbing::Always`] starts every connection with segments of 1,024 bytes,
    /// and so costs throughput at the beginning.
    ///
    /// Setting: `net.ipv4.tcp_mtu_probing`.
    pub fn mtu_probing(self, probing: MtuProbing) -> Self {
        let value = match probing {
            MtuProbing::Off => "0",
            MtuProbing::AfterBlackHole => "1",
            MtuProbing::Always => "2",
        };
        self.sysctl("net.ipv4.tcp_mtu_probing", value)
    }

    /// Upper bound of the time for which threads poll for packets before they sleep, in whole microseconds.
    ///
    /// A thread that waits in a socket call polls the queues of its connection for this long, and a worker does after it has
    /// received frames. An answer that arrives meanwhile costs no wake-up, which takes some 7 µs. The time is CPU time: an
    /// application with `n` threads that wait uses up to `n × time` in each wait.
    ///
    /// Default: 50 µs. The workers use less while frames are rare, and threads that share a CPU do not poll. Set zero where CPU
    /// time or energy is worth more than latency, and a multiple of the round-trip time where only latency counts.
    ///
    /// Settings: `net.core.busy_read`, `net.core.busy_poll`, `net.quietline.worker_poll_usecs`.
    pub fn busy_poll(self, time: Duration) -> Self {
        let usecs = time.as_micros().to_string();
        self.sysctl("net.core.busy_read", &usecs)
            .sysctl("net.core.busy_poll", &usecs)
            .sysctl("net.quietline.worker_poll_usecs", &usecs)
    }

    /// Local ports of connections that name none.
    ///
    /// A port is used by one connection to each remote address and port at a time, and for a minute after this host has closed
    /// it first (TIME-WAIT). To one server port a client so opens at most
    ///
    /// `ports ÷ 60 s` connections per second in the long run.
    ///
    /// Default: 32768 to 60999, as in Linux: 28,232 ports, 470 connections per second. Widen the range on clients and proxies
    /// that open more, down to 1024 if no server of the host listens there. Narrow it where a firewall admits few ports.
    ///
    /// Warning: the fewer ports, the easier a remote attacker guesses one (RFC 6056).
    ///
    /// Setting: `net.ipv4.ip_local_port_range`.
    pub fn local_ports(self, ports: RangeInclusive<u16>) -> Self {
        let value = format!("{} {}", ports.start(), ports.end());
        self.sysctl("net.ipv4.ip_local_port_range", &value)
    }

    /// Sets the last of the three sizes of a buffer (minimum, initial size, limit), and lowers the others to it if they are
    /// larger.
    fn set_last_of_three(self, name: &str, limit: u32) -> Self {
        let present = self.config.sysctls.get(name).unwrap_or_default();
        let mut sizes: Vec<u32> =
            present.split_whitespace().filter_map(|size| size.parse().ok()).collect();
        sizes.truncate(2);
        sizes.iter_mut().for_each(|size| *size = limit.min(*size));
        sizes.push(limit);
        let sizes: Vec<String> = sizes.iter().map(u32::to_string).collect();
        self.sysctl(name, &sizes.join(" "))
    }
}

/// A time in seconds, rounded up: a limit must not come early, and zero would mean none.
fn whole_seconds(time: Duration) -> String {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stack;

    #[test]
    fn a_typed_setter_sets_its_sysctls() {
        let stack = Stack::builder()
            .congestion_control(CongestionControl::Bbr)
            .send_buffer_max(8 << 20)
            .receive_buffer_max(64 << 10)
            .keepalive(Duration::from_secs(240), Duration::from_millis(9_500), 3)
            .idle_timeout(Some(Duration::from_secs(600)))
            .retransmissions_max(8)
            .ecn(EcnMode::Offer)
            .mtu_probing(MtuProbing::AfterBlackHole)
            .busy_poll(Duration::ZERO)
            .local_ports(1024..=65_535)
            .build()
            .expect("valid");
        for (name, value) in [
            ("net.ipv4.tcp_congestion_control", "bbr"),
            ("net.ipv4.tcp_wmem", "4096 16384 8388608"),
            ("net.ipv4.tcp_rmem", "4096 65536 65536"),
            ("net.ipv4.tcp_keepalive_time", "240"),
            ("net.ipv4.tcp_keepalive_intvl", "10"),
            ("net.ipv4.tcp_keepalive_probes", "3"),
            ("net.quietline.tcp_idle_timeout", "600"),
            ("net.ipv4.tcp_retries2", "8"),
            ("net.ipv4.tcp_ecn", "1"),
            ("net.ipv4.tcp_mtu_probing", "1"),
            ("net.core.busy_read", "0"),
            ("net.core.busy_poll", "0"),
            ("net.quietline.worker_poll_usecs", "0"),
            ("net.ipv4.ip_local_port_range", "1024 65535"),
        ] {
            let got = stack.sysctl(name).expect("it exists");
            assert_eq!(got.split_whitespace().collect::<Vec<_>>().join(" "), value, "{name}");
        }
    }

    /// The documented defaults, so that a changed default changes its documentation.
    #[test]
    fn the_documented_defaults_are_those_of_a_stack() {
        let set = Stack::builder()
            .congestion_control(CongestionControl::Cubic)
            .send_buffer_max(4 << 20)
            .receive_buffer_max(6 << 20)
            .keepalive(Duration::from_secs(7200), Duration::from_secs(75), 9)
            .idle_timeout(None)
            .retransmissions_max(15)
            .ecn(EcnMode::default())
            .mtu_probing(MtuProbing::default())
            .busy_poll(Duration::from_micros(50))
            .local_ports(32_768..=60_999)
            .build()
            .expect("valid");
        let untouched = Stack::builder().build().expect("valid");
        assert_eq!(set.sysctls(), untouched.sysctls());
    }

    #[test]
    fn a_value_out_of_bounds_is_refused_with_the_bounds() {
        let day = Duration::from_secs(86_400);
        let error = Stack::builder().keepalive(day, day, 9).build().expect_err("32767 at most");
        let text = error.to_string();
        assert!(text.contains("tcp_keepalive_time") && text.contains("32767"), "{text}");
        #[expect(clippy::reversed_empty_ranges, reason = "it is what the test is about")]
        let reversed = 9..=8;
        assert!(Stack::builder().local_ports(reversed).build().is_err());
    }
}
