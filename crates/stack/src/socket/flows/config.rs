//! Configuration of the interception by one device.

use std::time::Duration;

/// Bytes of datagrams that wait in one session: the default of a socket's receive buffer
/// (`net.core.rmem_default`), about a hundred datagrams of 1,500 bytes.
const SESSION_BYTES: u32 = 212_992;

/// RFC 4787 REQ-5: a session ends after two minutes at the earliest, and better after five.
const UDP_TIMEOUT: Duration = Duration::from_secs(300);

/// Timeout of sessions with DNS servers alone: RFC 4787 REQ-5 (a) allows less than two minutes for
/// well-known ports, and a resolver uses a new port for each query. Linux:
/// `nf_conntrack_udp_timeout`.
const DNS_TIMEOUT: Duration = Duration::from_secs(30);

/// Port of DNS.
const DNS_PORT: u16 = 53;

/// Interception of the flows that a device brings: their bounds.
///
/// ```
/// # use stack::socket::flows::Intercept;
/// let intercept = Intercept::all().max_pending(256).max_pending_per_source(32);
/// # assert_eq!(intercept, Intercept::all().max_pending_per_source(32).max_pending(256));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an interception does nothing until a device has it"]
pub struct Intercept {
    pub(super) max_pending: u32,
    pub(super) max_pending_per_source: u32,
    pub(super) max_sessions: u32,
    pub(super) session_bytes: u32,
    pub(super) udp_timeout: Duration,
    /// Timeouts by destination port, the last one of a port counts.
    pub(super) port_timeouts: Vec<(u16, Duration)>,
}

impl Intercept {
    /// Intercepts every flow to every address and port, TCP and other protocols, IPv4 and IPv6.
    pub fn all() -> Self {
        Self {
            max_pending: 1024,
            max_pending_per_source: 256,
            max_sessions: 4096,
            session_bytes: SESSION_BYTES,
            udp_timeout: UDP_TIMEOUT,
            port_timeouts: vec![(DNS_PORT, DNS_TIMEOUT)],
        }
    }

    /// Sets the largest number of TCP connections that are not established yet: those that the
    /// application has not answered, and those that wait for the third segment of the handshake. A
    /// further SYN is dropped (`FLOW_PENDING_FULL`), and the client repeats it. Default: 1,024.
    ///
    /// There are no SYN cookies, because a cookie answers before the application has decided.
    pub const fn max_pending(mut self, requests: u32) -> Self {
        self.max_pending = requests;
        self
    }

    /// Sets the part of these that one source address may have; an IPv6 /64 counts as one address,
    /// and 0 is no limit. A further SYN is dropped (`FLOW_SOURCE_LIMIT`). Default: 256.
    pub const fn max_pending_per_source(mut self, requests: u32) -> Self {
        self.max_pending_per_source = requests;
        self
    }

    /// Sets the largest number of UDP sessions. For a further one, the session that was not used
    /// for the longest time ends. Default: 4,096.
    pub const fn max_sessions(mut self, sessions: u32) -> Self {
        self.max_sessions = sessions;
        self
    }

    /// Sets the bytes of packet memory that the waiting datagrams of one UDP session may take. The
    /// oldest is dropped for a new one (`FLOW_QUEUE_FULL`). Default: 212,992.
    pub const fn session_bytes(mut self, bytes: u32) -> Self {
        self.session_bytes = bytes;
        self
    }

    /// Sets the time without a datagram in either direction after which a UDP session ends.
    /// Default: 5 minutes (RFC 4787).
    pub const fn udp_timeout(mut self, timeout: Duration) -> Self {
        self.udp_timeout = timeout;
        self
    }

    /// Sets the timeout of UDP sessions whose datagrams have gone to this port alone. The session
    /// of several ports has the longest of their timeouts. Default: 30 seconds for port 53 (DNS).
    pub fn udp_port_timeout(mut self, port: u16, timeout: Duration) -> Self {
        self.port_timeouts.push((port, timeout));
        self
    }

    /// Returns the timeout of a datagram to `port`.
    pub(super) fn timeout_of(&self, port: u16) -> Duration {
        let of_port = self.port_timeouts.iter().rev().find(|(of, _)| *of == port);
        of_port.map_or(self.udp_timeout, |(_, timeout)| *timeout)
    }
}
