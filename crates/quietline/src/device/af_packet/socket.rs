//! System calls of a packet socket and its rings, except for those that carry frames.
//!
//! Above: `AfPacket::open`, `receive`, `transmit`. Linux: net/packet/af_packet.c, packet(7).
//!
//! Each queue has two sockets. The receiving socket is bound to the interface for every protocol,
//! and never receives the frames that leave the interface. The sending socket is bound for protocol
//! 0, which receives nothing.
//!
//! Not here: the contents of the rings.

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_int, socklen_t};
use rustix::io::Errno;
use rustix::ioctl;
use rustix::net::{
    AddressFamily, Protocol, SendFlags, SocketFlags, SocketType, send, socket_with, sockopt,
};

use super::super::interface::{Interface, raw_socket_error};
use super::super::mapping::Mapping;
use super::super::setup_error::SetupError;
use super::super::sockopt::{Plain, option, set_option};
use super::config::{AfPacketConfig, Fanout, KernelQdisc, RxFormat};
use super::receive::{FRAME_BYTES, Geometry};
use super::recvmsg::{PACKET_AUXDATA, SO_RXQ_OVFL};
use super::transmit::{BLOCK_FRAMES, SLOT_BYTES};

/// Bytes of a block of a V2 ring. There a block is only a unit of allocation: the kernel tries to
/// allocate that much contiguous memory, and otherwise uses scattered memory.
pub(super) const SLOTS_BLOCK_BYTES: usize = 1 << 20;

/// Bytes of a block of a V3 ring. The timeout also closes a block with a single frame in it, so the
/// number of blocks is the number of milliseconds for which rare frames can arrive without a poll:
/// 128 with the default ring. A superframe still fits.
pub(super) const SHARED_BLOCK_BYTES: usize = 128 << 10;
const _: () = assert!(FRAME_BYTES <= SHARED_BLOCK_BYTES);

/// `TPACKET_V2` and `TPACKET_V3` as values of PACKET_VERSION.
const TPACKET_V2: c_int = 1;
const TPACKET_V3: c_int = 2;

/// The socket ioctl `SIOCOUTQ`, which has the number of `TIOCOUTQ`.
#[expect(clippy::cast_possible_truncation, reason = "the numbers of ioctls have 32 bits")]
const SIOCOUTQ: ioctl::Opcode = libc::TIOCOUTQ as ioctl::Opcode;

// SAFETY: structures of integers without padding.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: as above.
unsafe impl Plain for libc::tpacket_req3 {}
// SAFETY: as above.
unsafe impl Plain for libc::tpacket_stats {}

/// The fanout group of the receiving sockets of one device.
#[derive(Debug, Clone, Copy)]
pub(super) struct FanoutGroup {
    id: u32,
}

/// A receiving socket, with its ring.
pub(super) struct RingSocket {
    pub(super) fd: OwnedFd,
    pub(super) mapping: Mapping,
    pub(super) geometry: Geometry,
}

/// Opens the receiving socket of a queue with a ring: bound, with its ring mapped and in use.
pub(super) fn open_receiver(
    interface: &Interface,
    config: &AfPacketConfig,
) -> Result<RingSocket, SetupError> {
    let name = &interface.name;
    let fd = packet_socket(name)?;
    let in_blocks = config.rx_format == RxFormat::Blocks;
    let block_bytes = if in_blocks { SHARED_BLOCK_BYTES } else { SLOTS_BLOCK_BYTES };
    let blocks =
        usize::try_from(config.rx_ring_bytes).map_or(1, |bytes| bytes / block_bytes).max(1);
    let version = if in_blocks { TPACKET_V3 } else { TPACKET_V2 };
    set(&fd, name, "select the ring version", libc::PACKET_VERSION, &version)?;
    offload_headers(&fd, name, config)?;
    set(&fd, name, "ignore outgoing frames", libc::PACKET_IGNORE_OUTGOING, &1)?;
    let geometry = if in_blocks { Geometry::blocks(blocks) } else { Geometry::frames(blocks) };
    let what = format!("map a receive ring of {} MB", (blocks * block_bytes) >> 20);
    let request = request(block_bytes, blocks, FRAME_BYTES);
    let made = if in_blocks {
        let request = libc::tpacket_req3 {
            tp_block_size: request.tp_block_size,
            tp_block_nr: request.tp_block_nr,
            tp_frame_size: request.tp_frame_size,
            tp_frame_nr: request.tp_frame_nr,
            tp_retire_blk_tov: u32::from(config.retire_ms),
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    } else {
        set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    };
    let mapping = made
        .and_then(|()| Mapping::shared(fd.as_fd(), 0, blocks * block_bytes))
        .map_err(|errno| ring_error(name, &what, "rx-ring", errno))?;
    bind(&fd, interface, ETH_P_ALL)?;
    Ok(RingSocket { fd, mapping, geometry })
}

/// Opens the receiving socket of a queue without a ring: bound, and already receiving.
pub(super) fn open_plain_receiver(
    interface: &Interface,
    config: &AfPacketConfig,
) -> Result<OwnedFd, SetupError> {
    let name = &interface.name;
    let fd = packet_socket(name)?;
    offload_headers(&fd, name, config)?;
    set(&fd, name, "ignore outgoing frames", libc::PACKET_IGNORE_OUTGOING, &1)?;
    set(&fd, name, "request auxiliary data", PACKET_AUXDATA, &1)?;
    let step = "request the drop count";
    set_option::<c_int>(fd.as_fd(), libc::SOL_SOCKET, SO_RXQ_OVFL, &1)
        .map_err(|errno| step_error(name, step, errno))?;
    // The kernel doubles the size, for the memory that frames take beyond their bytes. Without
    // CAP_NET_ADMIN the buffer may be smaller, and more frames are missed.
    let bytes = usize::try_from(config.rx_ring_bytes).unwrap_or(usize::MAX);
    if sockopt::set_socket_recv_buffer_size_force(&fd, bytes).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(&fd, bytes);
    }
    bind(&fd, interface, ETH_P_ALL)?;
    Ok(fd)
}

/// Opens the sending socket of a queue with a ring.
pub(super) fn open_sender(
    interface: &Interface,
    config: &AfPacketConfig,
) -> Result<(OwnedFd, Mapping), SetupError> {
    let name = &interface.name;
    let fd = packet_socket(name)?;
    let slots = usize::from(config.tx_ring_frames).next_multiple_of(BLOCK_FRAMES);
    set(&fd, name, "select the ring version", libc::PACKET_VERSION, &TPACKET_V2)?;
    prepare_sender(&fd, name, config, slots)?;
    let request = request(BLOCK_FRAMES * SLOT_BYTES, slots / BLOCK_FRAMES, SLOT_BYTES);
    let what = format!("map a transmit ring of {slots} frames");
    let mapping = set_option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_TX_RING, &request)
        .and_then(|()| Mapping::shared(fd.as_fd(), 0, slots * SLOT_BYTES))
        .map_err(|errno| ring_error(name, &what, "tx-ring", errno))?;
    bind(&fd, interface, 0)?;
    Ok((fd, mapping))
}

/// Opens the sending socket of a queue without a ring.
pub(super) fn open_plain_sender(
    interface: &Interface,
    config: &AfPacketConfig,
) -> Result<OwnedFd, SetupError> {
    let fd = packet_socket(&interface.name)?;
    prepare_sender(&fd, &interface.name, config, usize::from(config.tx_ring_frames))?;
    bind(&fd, interface, 0)?;
    Ok(fd)
}

fn offload_headers(fd: &OwnedFd, name: &str, config: &AfPacketConfig) -> Result<(), SetupError> {
    let asked = c_int::from(config.vnet_hdr);
    set(fd, name, "request offload headers", libc::PACKET_VNET_HDR, &asked)
}

/// Sets the options that both kinds of sending sockets need, for up to `frames` frames in flight.
fn prepare_sender(
    fd: &OwnedFd,
    name: &str,
    config: &AfPacketConfig,
    frames: usize,
) -> Result<(), SetupError> {
    offload_headers(fd, name, config)?;
    let bypass = c_int::from(config.qdisc == KernelQdisc::Bypass);
    set(fd, name, "select the qdisc path", libc::PACKET_QDISC_BYPASS, &bypass)?;
    // Packets in flight count against the send buffer: with room for all of them, their number is
    // the limit. The size is doubled, because the kernel reports completions only while less than
    // half of the buffer is used. Without CAP_NET_ADMIN the buffer may be smaller; frames that find
    // no room wait.
    let bytes = 2 * frames * SLOT_BYTES;
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
    }
    Ok(())
}

/// Adds the receiving socket `fd` to the fanout group. The first socket creates the group.
pub(super) fn join_fanout(
    fd: &OwnedFd,
    interface: &str,
    fanout: Fanout,
    group: &mut Option<FanoutGroup>,
) -> Result<(), SetupError> {
    let kind = match fanout {
        Fanout::Hash => libc::PACKET_FANOUT_HASH,
        Fanout::Cpu => libc::PACKET_FANOUT_CPU,
    };
    let kind = kind | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
    let step = "join the fanout group";
    if let Some(FanoutGroup { id }) = *group {
        return set(fd, interface, step, libc::PACKET_FANOUT, &(id | kind << 16));
    }
    let found = (kind | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16;
    set(fd, interface, step, libc::PACKET_FANOUT, &found)?;
    let answer: u32 = option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT)
        .map_err(|errno| step_error(interface, step, errno))?;
    *group = Some(FanoutGroup { id: answer & 0xffff });
    Ok(())
}

/// Makes the kernel send every waiting frame of the ring, up to the first that it cannot send.
pub(super) fn send_waiting(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    loop {
        match send(fd, &[], SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            result => return result.map(drop),
        }
    }
}

/// Returns the bytes of memory of frames that were sent and are not freed yet.
pub(super) fn send_buffer_used(fd: BorrowedFd<'_>) -> usize {
    // SAFETY: SIOCOUTQ writes a `c_int`.
    let get = unsafe { ioctl::Getter::<SIOCOUTQ, c_int>::new() };
    // SAFETY: as above; no other pointer is passed.
    let used = unsafe { ioctl::ioctl(fd, get) };
    // Every packet socket supports this ioctl.
    used.map_or(0, |used| usize::try_from(used).unwrap_or(0))
}

/// Returns the number of frames that the kernel dropped since the last call because the ring was
/// full.
pub(super) fn missed(fd: BorrowedFd<'_>) -> u64 {
    option::<libc::tpacket_stats>(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)
        .map_or(0, |stats| u64::from(stats.tp_drops))
}

/// Returns whether the interface that the socket was bound to was deleted. Clears the pending error
/// of the socket.
pub(in crate::device) fn is_unbound(fd: BorrowedFd<'_>) -> bool {
    let _ = sockopt::socket_error(fd);
    let mut address = link_address(0, 0);
    let mut len = SOCKADDR_LEN;
    // SAFETY: the kernel writes at most `len` bytes, the size of `address`, which consists of
    // integers, and the length.
    let result =
        unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    result == 0 && address.sll_ifindex <= 0
}

/// `ETH_P_ALL` in the width of its field.
const ETH_P_ALL: u16 = 3;

#[expect(clippy::cast_possible_truncation, reason = "20 bytes")]
const SOCKADDR_LEN: socklen_t = size_of::<libc::sockaddr_ll>() as socklen_t;

/// Opens an unbound packet socket, which receives nothing.
pub(in crate::device) fn packet_socket(interface: &str) -> Result<OwnedFd, SetupError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0: no frame arrives before the ring exists and the socket is bound.
    socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None::<Protocol>)
        .map_err(|errno| step_error(interface, "open a packet socket", errno))
}

/// Binds a packet socket to an interface, to receive `protocol`; 0 receives nothing.
pub(in crate::device) fn bind(
    fd: &OwnedFd,
    interface: &Interface,
    protocol: u16,
) -> Result<(), SetupError> {
    let address = link_address(interface.index.cast_signed(), protocol);
    // SAFETY: the kernel reads the `SOCKADDR_LEN` bytes of `address` and keeps no pointer.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), SOCKADDR_LEN) };
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(step_error(&interface.name, "bind a packet socket", Errno::from_raw_os_error(errno)))
}

const fn link_address(index: c_int, protocol: u16) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: 17,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

const _: () = assert!(libc::AF_PACKET == 17);

fn set<T: Plain>(
    fd: &OwnedFd,
    interface: &str,
    step: &str,
    name: c_int,
    value: &T,
) -> Result<(), SetupError> {
    set_option(fd.as_fd(), libc::SOL_PACKET, name, value)
        .map_err(|errno| step_error(interface, step, errno))
}

fn step_error(interface: &str, step: &str, errno: Errno) -> SetupError {
    let error = raw_socket_error(&format!("{step} on \"{interface}\""), errno.raw_os_error());
    match errno {
        Errno::NOPROTOOPT => error.with_hint("the kernel is older than Linux 4.20"),
        Errno::AFNOSUPPORT => error.with_hint("the kernel has no packet sockets (CONFIG_PACKET)"),
        _ => error,
    }
}

fn ring_error(interface: &str, step: &str, option: &str, errno: Errno) -> SetupError {
    let error = step_error(interface, step, errno);
    match errno {
        Errno::NOMEM | Errno::AGAIN => {
            error.with_hint(format!("the kernel has no memory for it; request less with {option}="))
        }
        _ => error,
    }
}

fn request(block_bytes: usize, blocks: usize, frame_bytes: usize) -> libc::tpacket_req {
    let narrow = |number: usize| u32::try_from(number).expect("validated: at most 1 GB");
    libc::tpacket_req {
        tp_block_size: narrow(block_bytes),
        tp_block_nr: narrow(blocks),
        tp_frame_size: narrow(frame_bytes),
        tp_frame_nr: narrow(block_bytes / frame_bytes * blocks),
    }
}
