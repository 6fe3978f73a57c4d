//! ICMP reports about the datagrams of a socket: the pending error, and the error queue of
//! `IP_RECVERR` (for reports about IPv4 datagrams) and `IPV6_RECVERR` (about IPv6 datagrams).
//!
//! Above: `receive::icmp_input` and neighbor resolution, whose errors `Net::report_datagram` passes
//! to the socket of the datagram. Linux: `__udp4_lib_err`, `__udp6_lib_err`, `ping_err`,
//! `ip_icmp_error`, `ip_recv_error`, `ipv6_icmp_error`, `ipv6_recv_error`.
//!
//! Without the option, an error is reported only if it is permanent (RFC 1122 §4.1.3.3), and only
//! to a connected socket, because an unconnected one could not tell which peer the error concerns.

use std::{
    net::{IpAddr, SocketAddr},
    sync::PoisonError,
};

use super::{DEFERRED_REPORT, DatagramSocket, DatagramState, SocketKind};
use crate::{base::errno::Errno, cx::Cx, header::ip::protocol, socket::family::Family};

/// Maximum number of reports in the error queue, and of reports that wait for the owner of the
/// socket. Further reports are dropped. In Linux, reports count towards the receive buffer instead.
pub(super) const ERRORS_MAX: usize = 64;

/// Origin of an error in the error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorOrigin {
    /// Local: the datagram did not leave this host (`SO_EE_ORIGIN_LOCAL`).
    Local,
    /// An ICMP message (`SO_EE_ORIGIN_ICMP`).
    Icmp {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
    /// An ICMPv6 message (`SO_EE_ORIGIN_ICMP6`).
    Icmp6 {
        /// Type of the message.
        kind: u8,
        /// Code of the message.
        code: u8,
    },
}

/// Returns the kind of the datagram sockets whose packets have this protocol.
pub(crate) const fn kind_of(protocol: u8) -> Option<SocketKind> {
    match protocol {
        protocol::UDP => Some(SocketKind::Udp),
        protocol::ICMP | protocol::ICMPV6 => Some(SocketKind::Ping),
        _ => None,
    }
}

/// Error that an earlier datagram has caused (`struct sock_extended_err`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuedError {
    /// The error.
    pub errno: Errno,
    /// Origin of the report.
    pub origin: ErrorOrigin,
    /// Largest packet that the path carries, for `EMSGSIZE`; otherwise 0.
    pub mtu: u32,
    /// Sender of the report; `None` if it is this host.
    pub offender: Option<IpAddr>,
    /// Destination of the datagram.
    pub destination: SocketAddr,
    /// Whether the error is permanent, so that a connected socket gets it without `IP_RECVERR`.
    pub(crate) permanent: bool,
}

impl QueuedError {
    /// Returns the report with the addresses as the application sees them.
    pub(super) fn presented(self, family: Family) -> Self {
        Self {
            offender: self.offender.map(|ip| family.present_ip(ip)),
            destination: family.present(self.destination),
            ..self
        }
    }

    /// Whether the report is about an IPv4 datagram.
    const fn is_ipv4(&self) -> bool {
        self.destination.is_ipv4()
    }
}

impl DatagramSocket {
    /// Softirq: processes a report about a datagram of this socket.
    pub(crate) fn report(&self, cx: &mut Cx, error: QueuedError) {
        if !self.flags.receive_error(error.is_ipv4()) && !error.permanent {
            return;
        }
        {
            let mut waiting = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= ERRORS_MAX {
                return;
            }
            waiting.push(error);
        }
        self.deferred(cx, DEFERRED_REPORT);
    }
}

impl DatagramState {
    /// Processes the waiting reports.
    pub(super) fn take_reports(&mut self, socket: &DatagramSocket) {
        let waiting =
            core::mem::take(&mut *socket.reports.lock().unwrap_or_else(PoisonError::into_inner));
        for error in waiting {
            self.on_report(socket, error);
        }
    }

    fn on_report(&mut self, socket: &DatagramSocket, error: QueuedError) {
        if socket.flags.receive_error(error.is_ipv4()) {
            if self.errors.len() < ERRORS_MAX {
                self.errors.push(error);
            }
        } else if self.remote != Some(error.destination) {
            // The socket is unconnected, or was connected to another peer after it sent the
            // datagram.
            return;
        }
        self.error = Some(error.errno);
    }
}
