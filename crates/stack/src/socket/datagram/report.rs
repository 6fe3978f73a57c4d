//! ICMP reports about the datagrams of a socket: the pending error, and the error queue of
//! `IP_RECVERR`.
//!
//! Above: `receive::icmp_input`, which has found the socket by the quoted datagram. Linux:
//! `__udp4_lib_err`, `ip_icmp_error`, `ip_recv_error`.
//!
//! Without `IP_RECVERR`, an error is reported only to a connected socket, because an unconnected
//! one could not tell which peer the error concerns, and only if the error is permanent
//! (RFC 1122 §4.1.3.3).

use std::{
    net::{IpAddr, SocketAddr},
    sync::PoisonError,
};

use super::{DEFERRED_REPORT, DatagramSocket, DatagramState};
use crate::{base::errno::Errno, cx::Cx};

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

impl DatagramSocket {
    /// Softirq: processes a report about a datagram of this socket.
    pub(crate) fn report(&self, cx: &mut Cx, error: QueuedError) {
        if !self.flags.receive_error() && !error.permanent {
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
        if socket.flags.receive_error() {
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
