//! Number of receive queues that an interface uses, often fewer than it was created with.
//!
//! Above: `AfXdp::open`. Linux: SIOCETHTOOL with ETHTOOL_GCHANNELS, as `ethtool -l` prints.
//!
//! Not here: changing the number (`ethtool -L`), because the interface belongs to the kernel.

use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

const ETHTOOL_GCHANNELS: u32 = 0x3c;
const SIOCETHTOOL: libc::Ioctl = 0x8946;
const IFNAMSIZ: usize = 16;

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Channels {
    command: u32,
    rx_max: u32,
    tx_max: u32,
    other_max: u32,
    combined_max: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

const _: () = assert!(size_of::<Channels>() == 36 && offset_of!(Channels, combined) == 32);

/// `struct ifreq` as SIOCETHTOOL reads it: name, pointer to the command's structure, and the rest
/// of the union.
#[repr(C)]
struct Request {
    name: [u8; IFNAMSIZ],
    data: *mut Channels,
    unused: [u8; size_of::<libc::ifreq>() - IFNAMSIZ - size_of::<usize>()],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// Returns the number of receive queues that the driver of `interface` uses; `None` if the driver
/// does not report it.
pub(super) fn receive_queues(interface: &str) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None).ok()?;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = Request {
        name: [0; IFNAMSIZ],
        data: &raw mut channels,
        unused: [0; size_of::<libc::ifreq>() - IFNAMSIZ - size_of::<usize>()],
    };
    request.name.get_mut(..interface.len())?.copy_from_slice(interface.as_bytes());
    // SAFETY: the request has the size of `struct ifreq` (asserted above), and its pointer refers
    // to the structure of the given command, which lives until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    (result == 0).then_some(channels.rx + channels.combined).filter(|queues| *queues > 0)
}
