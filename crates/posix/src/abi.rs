//! Numbers of Linux's socket interface, as the generic tables have them (x86-64, AArch64, RISC-V).
//!
//! Linux: include/uapi. Levels and numbers of socket options are in `stack::socket::options`.

use stack::socket::options::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};

macro_rules! numbers {
    ($($name:ident: $kind:ty = $value:expr, $doc:literal;)*) => {
        $(#[doc = $doc] pub const $name: $kind = $value;)*

        /// Every number by its name, for text that names them.
        #[allow(clippy::cast_possible_wrap, clippy::cast_lossless, reason = "an ioctl number is small")]
        const NAMES: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

numbers! {
    AF_UNSPEC: i32 = 0, "No address family: `connect` to it disconnects.";
    AF_INET: i32 = 2, "IPv4.";
    AF_INET6: i32 = 10, "IPv6.";

    SOCK_STREAM: i32 = 1, "A byte stream.";
    SOCK_DGRAM: i32 = 2, "Datagrams.";
    SOCK_NONBLOCK: i32 = 0x800, "With a type or in `accept4`: the new socket has `O_NONBLOCK`.";
    SOCK_CLOEXEC: i32 = 0x8_0000, "With a type or in `accept4`: the new descriptor has `FD_CLOEXEC`.";

    SHUT_RD: i32 = 0, "No more reading.";
    SHUT_WR: i32 = 1, "No more writing.";
    SHUT_RDWR: i32 = 2, "Neither.";

    MSG_OOB: i32 = 0x1, "Urgent data.";
    MSG_PEEK: i32 = 0x2, "Received bytes stay in the queue.";
    MSG_TRUNC: i32 = 0x20, "Received bytes are discarded and counted.";
    MSG_DONTWAIT: i32 = 0x40, "This call does not block.";
    MSG_EOR: i32 = 0x80, "A record ends with the last byte.";
    MSG_WAITALL: i32 = 0x100, "The call blocks until the buffers are full.";
    MSG_ERRQUEUE: i32 = 0x2000, "Receives from the error queue, which is always empty here.";
    MSG_NOSIGNAL: i32 = 0x4000, "`EPIPE` raises no signal.";
    MSG_MORE: i32 = 0x8000, "Another write follows soon.";
    MSG_FASTOPEN: i32 = 0x2000_0000, "The call connects and sends (RFC 7413).";

    F_GETFL: i32 = 3, "`fcntl`: returns the status flags.";
    F_SETFL: i32 = 4, "`fcntl`: sets the status flags.";
    O_RDWR: i32 = 2, "Access mode of every socket.";
    O_NONBLOCK: i32 = 0x800, "Calls do not block.";

    FIONREAD: u64 = 0x541b, "`ioctl`: bytes that can be read.";
    SIOCINQ: u64 = FIONREAD, "`ioctl`: the same.";
    FIONBIO: u64 = 0x5421, "`ioctl`: sets `O_NONBLOCK`.";
    SIOCOUTQ: u64 = 0x5411, "`ioctl`: bytes queued and not acknowledged.";
    SIOCOUTQNSD: u64 = 0x894b, "`ioctl`: bytes queued and never sent.";
    SIOCATMARK: u64 = 0x8905, "`ioctl`: whether the next byte is the urgent one.";

    POLLIN: i16 = 0x1, "Data, the end of the stream or an error can be read.";
    POLLPRI: i16 = 0x2, "An urgent byte can be read.";
    POLLOUT: i16 = 0x4, "Room to write.";
    POLLERR: i16 = 0x8, "An error is pending.";
    POLLHUP: i16 = 0x10, "Both directions have ended, or there is no connection.";
    POLLNVAL: i16 = 0x20, "The descriptor is not open.";
    POLLRDNORM: i16 = 0x40, "With `POLLIN`.";
    POLLWRNORM: i16 = 0x100, "With `POLLOUT`.";
    POLLRDHUP: i16 = 0x2000, "The peer sends no more.";

    EPOLL_CTL_ADD: i32 = 1, "`epoll_ctl`: adds a descriptor.";
    EPOLL_CTL_DEL: i32 = 2, "`epoll_ctl`: removes a descriptor.";
    EPOLL_CTL_MOD: i32 = 3, "`epoll_ctl`: changes the events of a descriptor.";
    EPOLLIN: u32 = 0x1, "As `POLLIN`.";
    EPOLLOUT: u32 = 0x4, "As `POLLOUT`.";
    EPOLLERR: u32 = 0x8, "As `POLLERR`; always reported.";
    EPOLLHUP: u32 = 0x10, "As `POLLHUP`; always reported.";
    EPOLLEXCLUSIVE: u32 = 1 << 28, "One of several sets is woken.";
    EPOLLWAKEUP: u32 = 1 << 29, "Keeps the system awake; without effect here.";
    EPOLLONESHOT: u32 = 1 << 30, "One report, until the descriptor is armed again.";
    EPOLLET: u32 = 1 << 31, "Edge-triggered.";
}

/// `IPPROTO_ICMP`: with `SOCK_DGRAM`, echo requests over IPv4.
pub const IPPROTO_ICMP: i32 = 1;
/// `IPPROTO_ICMPV6`: with `SOCK_DGRAM`, echo requests over IPv6.
pub const IPPROTO_ICMPV6: i32 = 58;

/// `TCP_INQ`: `recvmsg` reports the bytes left to read. The value of its control message, too.
pub const TCP_INQ: i32 = 36;
/// `TCP_CC_INFO`: figures of the congestion control.
pub const TCP_CC_INFO: i32 = 26;

/// The number of a name such as `"MSG_PEEK"`; `None` for a name that is not in the table.
#[must_use]
pub fn number_of(name: &str) -> Option<i64> {
    let name = match name {
        "PF_INET" => "AF_INET",
        "PF_INET6" => "AF_INET6",
        "SOL_SOCKET" => return Some(SOL_SOCKET.into()),
        "IPPROTO_IP" | "SOL_IP" => return Some(IPPROTO_IP.into()),
        "IPPROTO_IPV6" | "SOL_IPV6" => return Some(IPPROTO_IPV6.into()),
        "IPPROTO_TCP" | "SOL_TCP" => return Some(IPPROTO_TCP.into()),
        name => name,
    };
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}
