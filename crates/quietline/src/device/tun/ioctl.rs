//! The tun driver's ioctls, each with its own safe function.
//!
//! Above: `Tun::create`. Linux: drivers/net/tun.c, Documentation/networking/tuntap.rst.
//!
//! Every descriptor opened here is close-on-exec and nonblocking, and is attached to its interface
//! before any other code uses it. Closing the last one deletes an interface that is not persistent.
//!
//! Not here: reads and writes (`receive`, `transmit`), addresses (`netlink`).

use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Getter, IntegerSetter, Opcode, Setter, Updater, opcode};

use super::super::vnet_hdr::VNET_HDR_LEN;
use super::config::TunKind;

/// The driver's device node.
pub(super) const DEVICE_NODE: &str = "/dev/net/tun";

/// Bytes of an interface name with its terminating zero.
const IFNAMSIZ: usize = 16;

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNGETFEATURES: Opcode = opcode::read::<u32>(b'T', 207);
const TUNSETOFFLOAD: Opcode = opcode::write::<c_int>(b'T', 208);
const TUNGETIFF: Opcode = opcode::read::<c_int>(b'T', 210);
const TUNGETVNETHDRSZ: Opcode = opcode::read::<c_int>(b'T', 215);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);

const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

const TUN_F_CSUM: usize = 0x01;
const TUN_F_TSO4: usize = 0x02;
const TUN_F_TSO6: usize = 0x04;
const TUN_F_TSO_ECN: usize = 0x08;
const TUN_F_USO4: usize = 0x20;
const TUN_F_USO6: usize = 0x40;

/// `struct ifreq` as TUNSETIFF reads and writes it: name, flags, and the rest of the union.
#[repr(C)]
struct IfRequest {
    name: [u8; IFNAMSIZ],
    flags: u16,
    unused: [u8; size_of::<libc::ifreq>() - IFNAMSIZ - 2],
}

impl IfRequest {
    fn name(&self) -> String {
        let len = self.name.iter().position(|&byte| byte == 0).unwrap_or(IFNAMSIZ);
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }
}

const _: () = assert!(size_of::<IfRequest>() == size_of::<libc::ifreq>());

/// Opens the driver's device node.
pub(super) fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE_NODE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Attaches `fd` as a queue of the interface `name`, which is created if it does not exist. Returns
/// the name that the kernel chose.
pub(super) fn attach(
    fd: BorrowedFd<'_>,
    name: &str,
    kind: TunKind,
    multi_queue: bool,
    vnet_hdr: bool,
) -> Result<String, Errno> {
    let mut request = IfRequest {
        name: [0; IFNAMSIZ],
        flags: IFF_NO_PI
            | if kind == TunKind::Tap { IFF_TAP } else { IFF_TUN }
            | if multi_queue { IFF_MULTI_QUEUE } else { 0 }
            | if vnet_hdr { IFF_VNET_HDR } else { 0 },
        unused: [0; size_of::<libc::ifreq>() - IFNAMSIZ - 2],
    };
    // The validated name leaves room for the terminating zero.
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`; `IfRequest` has its size (asserted
    // above) and layout, and outlives the call. The opcode's size field contains `int` for
    // historical reasons; the driver ignores it.
    unsafe { ioctl::ioctl(fd, Updater::<TUNSETIFF, IfRequest>::new(&mut request)) }?;
    Ok(request.name())
}

/// An interface as the driver describes it to one of its queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) name: String,
    flags: u16,
}

impl Attached {
    pub(super) const fn kind(&self) -> TunKind {
        if self.flags & IFF_TAP != 0 { TunKind::Tap } else { TunKind::Tun }
    }

    /// Returns whether frames begin with a virtio header.
    pub(super) const fn has_vnet_hdr(&self) -> bool {
        self.flags & IFF_VNET_HDR != 0
    }

    /// Returns whether frames begin with four bytes of packet information, which no device of this
    /// crate reads.
    pub(super) const fn has_packet_information(&self) -> bool {
        self.flags & IFF_NO_PI == 0
    }

    pub(super) const fn is_multi_queue(&self) -> bool {
        self.flags & IFF_MULTI_QUEUE != 0
    }
}

/// Returns the interface of which `fd` is a queue (TUNGETIFF).
pub(super) fn attached(fd: BorrowedFd<'_>) -> Result<Attached, Errno> {
    let request = interface_of(fd)?;
    let flags = request.flags;
    Ok(Attached { name: request.name(), flags })
}

/// Returns whether `fd` was opened from the driver's device node, attached or not (TUNGETFEATURES).
pub(super) fn is_tun(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: TUNGETFEATURES writes one `unsigned int` through the given pointer.
    unsafe { ioctl::ioctl(fd, Getter::<TUNGETFEATURES, u32>::new()) }.is_ok()
}

/// Sets the length of the virtio header to 12 bytes, unless it has that length.
pub(super) fn set_vnet_hdr_len(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let len = c_int::try_from(VNET_HDR_LEN).map_err(|_| Errno::INVAL)?;
    // SAFETY: TUNGETVNETHDRSZ writes one `int` through the given pointer.
    if unsafe { ioctl::ioctl(fd, Getter::<TUNGETVNETHDRSZ, c_int>::new()) } == Ok(len) {
        return Ok(());
    }
    // SAFETY: TUNSETVNETHDRSZ reads one `int` through the given pointer.
    unsafe { ioctl::ioctl(fd, Setter::<TUNSETVNETHDRSZ, c_int>::new(len)) }
}

/// Returns whether `fd` is a queue of an interface: false only for EBADFD, the driver's error for a
/// detached queue.
pub(super) fn is_attached(fd: BorrowedFd<'_>) -> bool {
    !matches!(interface_of(fd), Err(Errno::BADFD))
}

fn interface_of(fd: BorrowedFd<'_>) -> Result<IfRequest, Errno> {
    let mut request = IfRequest {
        name: [0; IFNAMSIZ],
        flags: 0,
        unused: [0; size_of::<libc::ifreq>() - IFNAMSIZ - 2],
    };
    // SAFETY: TUNGETIFF writes one `struct ifreq`; `IfRequest` has its size (asserted above) and
    // outlives the call.
    unsafe { ioctl::ioctl(fd, Updater::<TUNGETIFF, IfRequest>::new(&mut request)) }?;
    Ok(request)
}

/// Enables the 12-byte virtio header on every packet, and checksum and segmentation offloads
/// towards the stack. Returns whether the kernel has superframes of datagrams (since Linux 6.2).
pub(super) fn enable_offloads(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    set_vnet_hdr_len(fd)?;
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    match set_offloads(fd, tcp | TUN_F_USO4 | TUN_F_USO6) {
        Err(Errno::INVAL) => set_offloads(fd, tcp).map(|()| false),
        set => set.map(|()| true),
    }
}

fn set_offloads(fd: BorrowedFd<'_>, offloads: usize) -> Result<(), Errno> {
    // SAFETY: TUNSETOFFLOAD takes its bits by value and dereferences nothing.
    unsafe { ioctl::ioctl(fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads)) }
}

/// Disables every offload towards the stack, which a persistent interface may still have.
pub(super) fn disable_offloads(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set_offloads(fd, 0)
}
