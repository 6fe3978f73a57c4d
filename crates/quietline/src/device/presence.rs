//! Detects that an interface was deleted, with a descriptor that becomes readable.
//!
//! Above: `af_packet`, `af_xdp`. Linux: `unregister_netdevice_many_notify` unbinds packet sockets
//! (`packet_notifier`, index -1) and then sends RTM_DELLINK to the rtnetlink group of links. Moving
//! the interface to another network namespace does the same.
//!
//! The error of a packet socket (ENETDOWN) does not suffice. The kernel closes an interface before
//! it deletes it, and reports the error at that time: a reader that checks at once still finds its
//! socket bound, and the kernel does not report the error again. An AF_XDP socket reports nothing
//! to poll(2).
//!
//! Not here: taps and tuns, whose own descriptors report an error.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pkt::Instant;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, bind as bind_to, recv, socket_with,
};

use super::af_packet::socket::{bind, is_unbound, packet_socket};
use super::interface::Interface;
use super::setup_error::SetupError;
use super::sockopt::attach_filter;

/// The rtnetlink group of links, as the bit mask of a bind.
const RTMGRP_LINK: u32 = 1;

/// Offsets in a link message: `nlmsg_type` of `struct nlmsghdr`, and `ifi_index` of the
/// `struct ifinfomsg` after its 16 bytes.
const TYPE_OFFSET: u32 = 4;
const INDEX_OFFSET: u32 = 20;

/// An rtnetlink socket that receives only the deletion of one interface.
///
/// The filter also passes the deletion of a bridge port (RTM_DELLINK of family AF_BRIDGE), so a
/// message requires a check and is no proof.
#[derive(Debug)]
pub(super) struct Deletions(OwnedFd);

impl Deletions {
    /// Watches an interface, in the network namespace of the calling thread. A deletion before this
    /// call is not reported, but a later bind to the interface fails.
    pub(super) fn watch(interface: &Interface) -> Result<Self, SetupError> {
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            // NETLINK_ROUTE is protocol 0.
            let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None::<Protocol>)?;
            attach_filter(fd.as_fd(), &only_deletion_of(interface.index))?;
            bind_to(&fd, &SocketAddrNetlink::new(0, RTMGRP_LINK))?;
            Ok(fd)
        };
        open().map(Self).map_err(|errno: Errno| {
            let step = format!("watch for the deletion of \"{}\"", interface.name);
            SetupError::system(step, errno.raw_os_error())
        })
    }

    /// Reads all messages from the socket. A check of the interface after this call sees every
    /// deletion that was reported before.
    pub(super) fn acknowledge(&self) {
        let mut start = [0; 4];
        // ENOBUFS: messages were lost for lack of memory. The error is reported once, and the check
        // that follows makes up for them.
        while let Ok(_) | Err(Errno::INTR | Errno::NOBUFS) =
            recv(&self.0, &mut start[..], RecvFlags::DONTWAIT)
        {}
    }
}

impl AsFd for Deletions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a socket filter (classic BPF) that accepts RTM_DELLINK for the interface `index`. BPF
/// loads in network byte order, but the message is in the byte order of the host.
fn only_deletion_of(index: u32) -> [libc::sock_filter; 6] {
    const ALL: u32 = u32::MAX;
    let instruction = |code: u32, k, jt, jf| {
        let code = u16::try_from(code).unwrap_or(u16::MAX);
        libc::sock_filter { code, jt, jf, k }
    };
    let load = |size, at| instruction(libc::BPF_LD | size | libc::BPF_ABS, at, 0, 0);
    // Continues if equal, and skips `others` instructions if not.
    let equals = |k, others| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, 0, others);
    let accept = |bytes| instruction(libc::BPF_RET | libc::BPF_K, bytes, 0, 0);
    [
        load(libc::BPF_H, TYPE_OFFSET),
        equals(u32::from(libc::RTM_DELLINK.to_be()), 3),
        load(libc::BPF_W, INDEX_OFFSET),
        equals(index.to_be(), 1),
        accept(ALL),
        accept(0),
    ]
}

/// A packet socket that is bound to an interface and receives nothing, for a device whose own
/// sockets do not show whether they are bound.
#[derive(Debug)]
pub(super) struct Presence {
    deletions: Deletions,
    packet: OwnedFd,
}

impl Presence {
    /// Watches an interface, in the network namespace of the calling thread.
    pub(super) fn watch(interface: &Interface) -> Result<Self, SetupError> {
        let deletions = Deletions::watch(interface)?;
        let packet = packet_socket(&interface.name)?;
        // Protocol 0: the socket receives no frame.
        bind(&packet, interface, 0)?;
        Ok(Self { deletions, packet })
    }

    /// Returns whether the interface was deleted or moved away. Clears the descriptor until the
    /// next message.
    pub(super) fn is_gone(&self) -> bool {
        self.deletions.acknowledge();
        is_unbound(self.packet.as_fd())
    }
}

/// Readable when the interface may have been deleted, until [`Presence::is_gone`].
impl AsFd for Presence {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deletions.as_fd()
    }
}

/// Timer of checks for events that a queue's descriptor reports only to a sleeping thread. Used
/// only by the holder of the queue's core. Relaxed: it orders nothing.
#[derive(Debug, Default)]
pub(super) struct CheckTimer {
    due_ns: AtomicU64,
}

impl CheckTimer {
    /// Time between two checks.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// Returns whether a check is due; the next one is due 100 ms later.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let due = now.as_nanos() >= self.due_ns.load(Ordering::Relaxed);
        if due {
            self.due_ns.store((now + Self::INTERVAL).as_nanos(), Ordering::Relaxed);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::device::namespace::{in_namespace, run};

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll") > 0
    }

    #[test]
    fn a_deletion_is_reported_even_if_the_interface_was_down_before() {
        in_namespace(|| {
            run("ip link add left0 type veth peer name right0");
            run("ip link set left0 up");
            run("ip link set right0 up");
            let interface = Interface::find("left0").expect("it is up");
            let presence = Presence::watch(&interface).expect("privileges");
            run("ip link add other0 type veth peer name other1");
            run("ip link del other0");
            run("ip link set left0 down");
            assert!(
                !is_readable(presence.as_fd()),
                "other interfaces and other changes are not reported"
            );
            assert!(!presence.is_gone());
            run("ip link del right0");
            assert!(is_readable(presence.as_fd()));
            assert!(presence.is_gone());
            assert!(!is_readable(presence.as_fd()), "the message was read");
            assert!(presence.is_gone(), "the interface is still gone");
        });
    }

    #[test]
    fn a_bridge_port_that_is_released_still_exists() {
        in_namespace(|| {
            run("ip link add left0 type veth peer name right0");
            run("ip link add name bridge0 type bridge");
            run("ip link set left0 master bridge0");
            run("ip link set left0 up");
            let presence = Presence::watch(&Interface::find("left0").expect("it is up"));
            let presence = presence.expect("privileges");
            run("ip link set left0 nomaster");
            assert!(!presence.is_gone());
            assert!(!is_readable(presence.as_fd()), "the message was read");
        });
    }

    #[test]
    fn checks_are_100_ms_apart() {
        let timer = CheckTimer::default();
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        assert!(timer.is_due(at(1)));
        assert!(!timer.is_due(at(100)));
        assert!(timer.is_due(at(101)));
    }
}
