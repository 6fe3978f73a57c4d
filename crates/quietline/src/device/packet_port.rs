//! A packet port: a device whose other end is the application.
//!
//! [`PacketPort::ip`] and [`PacketPort::ethernet`] return a device for
//! [`Stack::builder`](crate::Stack::builder) and the port. [`PacketPort::drain`] lends the packets
//! that the stack sends to a closure, and [`PacketPort::inject`] gives packets to the stack, so
//! that a tunnel, a virtual machine monitor or a test is a loop of a few lines.
//!
//! ```
//! use std::time::Duration;
//!
//! use quietline::{
//!     Stack, UdpSocket,
//!     device::{PacketPort, PortConfig},
//! };
//!
//! # fn main() -> std::io::Result<()> {
//! let (device, port) = PacketPort::ip(&PortConfig::default())?;
//! let stack = Stack::builder().device(device).address("10.0.0.1/24".parse().unwrap()).build()?;
//! let socket = UdpSocket::bind(&stack, "10.0.0.1:7")?;
//! socket.send_to(b"hello", "10.0.0.2:7")?;
//!
//! assert!(port.wait(Some(Duration::from_secs(5)))?);
//! let mut packet = Vec::new();
//! // An error of the closure, such as `WouldBlock`, leaves the packet in the port.
//! port.drain(64, |frame| {
//!     packet.clear();
//!     frame.slices().for_each(|slice| packet.extend_from_slice(slice));
//!     std::io::Result::Ok(())
//! })?;
//! assert!(packet.ends_with(b"hello"));
//! // Packets that the port has no room for stay with the caller.
//! assert_eq!(port.inject(&[&packet])?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! **Who runs the stack.** A frame is processed on the thread that injects it, up to the socket, as
//! a frame of a [`Wire`](crate::Wire) is processed on the thread of its sender; a drain runs the
//! stack, too, so that it sends the packets that had waited for room. No thread is woken for that.
//! A stack of [`StackBuilder::manual`](crate::StackBuilder::manual) needs
//! [`Stack::poll`](crate::Stack::poll) for its timers only.
//!
//! **Back-pressure.** Each direction has a queue of [`PortConfig::queue_bytes`]. `inject` takes as
//! many frames as fit. A full queue in the other direction leaves packets in the queueing
//! discipline of the device, where TCP Small Queues and CoDel see them.
//!
//! **Waiting.** The descriptor of the port ([`AsFd`]) is readable while frames wait to be drained,
//! once there is room again after an `inject` that has not taken every frame, and when the stack
//! has ended. It fits epoll and `tokio::io::unix::AsyncFd`. A call of `drain` that finds no more
//! frames makes it unreadable. A program that never asks for the descriptor pays nothing for it.
//!
//! **Superframes.** Without [`PortConfig::superframes`] every frame has its checksums in place and
//! no segment exceeds the MSS of its peer. With them, a frame may be a packet of several TCP
//! segments, and its checksum partial: [`PortFrame::vnet_hdr`] describes both, as the virtio header
//! of a tap does, and [`PacketPort::inject_superframes`] takes such frames.
//!
//! Each direction has one lock, held while packets are linked into a list or out of it, once for
//! each batch; no packet is copied on its way out, and one copy is made on its way in.
//!
//! Above: the application. Linux: a tun device and the program that has opened it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use pkt::{DropReason, Packet, Pool, Slices};
use stack::{
    base::config_error::ConfigError,
    device::{Capabilities, LinkType},
    header::ethernet::MacAddr,
};

use self::{
    device::PortDevice,
    shared::{Arrival, Batch, Shared, cost},
};
use super::vnet_hdr::VnetHdr;
use crate::{attachments::Attachment, clock};

mod device;
mod shared;
#[cfg(test)]
mod tests;

/// Smallest MTU (RFC 791 §3.2: 68 bytes; with the default of `tcp_min_snd_mss`: 88).
const MTU_MIN: u32 = 88;

/// Largest IP packet: its length field has 16 bits.
const IP_LEN_MAX: u32 = 65_535;

/// Bytes of an Ethernet header.
const ETHERNET_HEADER_LEN: u16 = 14;

/// An 802.1Q tag, which an Ethernet frame of one MTU may have.
const VLAN_TAG_LEN: usize = 4;

/// Configuration of a [`PacketPort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Name of the device in its stack. Default: `port0`.
    pub name: String,
    /// Largest IP packet in bytes, 88 to 65,535. Default: 1500.
    pub mtu: u32,
    /// Largest superframe (packet of several TCP segments) in both directions, in bytes of IP
    /// packet, up to 65,535. Default: `None`, no superframes and no partial checksums.
    pub superframes: Option<u32>,
    /// Bytes of frames that wait in each direction. A frame counts at least 512 bytes, for its
    /// descriptor. An empty queue takes a frame of any size. Default: 1 MiB, which is 5.6 ms at
    /// 1.5 Gbit/s; a tunnel over a slower path needs less.
    pub queue_bytes: usize,
}

impl Default for PortConfig {
    fn default() -> Self {
        Self { name: "port0".to_owned(), mtu: 1500, superframes: None, queue_bytes: 1 << 20 }
    }
}

impl PortConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        if !(MTU_MIN..=IP_LEN_MAX).contains(&self.mtu) {
            return Err(ConfigError::new("mtu", self.mtu, format!("{MTU_MIN} to {IP_LEN_MAX}")));
        }
        match self.superframes {
            Some(bytes) if !(self.mtu..=IP_LEN_MAX).contains(&bytes) => {
                let allowed = format!("the MTU to {IP_LEN_MAX}");
                Err(ConfigError::new("superframes", bytes, allowed))
            }
            _ => Ok(()),
        }
    }

    fn capabilities(&self, link: LinkType) -> Capabilities {
        let plain = Capabilities::plain(&*self.name, self.mtu, link);
        let offloads = self.superframes.is_some();
        Capabilities {
            tx_checksum: offloads,
            tso4: offloads,
            tso6: offloads,
            gso_max_bytes: self.superframes.unwrap_or(plain.gso_max_bytes),
            async_completion: true,
            ..plain
        }
    }
}

/// The application's end of a device, made by [`ip`](Self::ip) and [`ethernet`](Self::ethernet).
/// Threads may share it. See the module [`packet_port`](self) for an example.
///
/// Dropping it removes the device from its stack, as `ip link del` removes an interface.
#[derive(Debug)]
pub struct PacketPort {
    shared: Arc<Shared>,
}

impl PacketPort {
    /// Makes a device without link layer, and the port that has its packets.
    ///
    /// # Errors
    /// `InvalidInput` for a value that is not allowed; errors of eventfd(2).
    pub fn ip(config: &PortConfig) -> io::Result<(Attachment, Self)> {
        Self::with_link(config, LinkType::Ip)
    }

    /// Makes an Ethernet device with the address `mac`, and the port that has its frames. The
    /// application, or the network behind it, answers ARP and neighbor solicitations.
    ///
    /// # Errors
    /// As [`ip`](Self::ip).
    pub fn ethernet(config: &PortConfig, mac: MacAddr) -> io::Result<(Attachment, Self)> {
        Self::with_link(config, LinkType::Ethernet { mac })
    }

    fn with_link(config: &PortConfig, link: LinkType) -> io::Result<(Attachment, Self)> {
        config.validate()?;
        let link_len = match link {
            LinkType::Ethernet { .. } => ETHERNET_HEADER_LEN,
            LinkType::Ip => 0,
        };
        let shared = Arc::new(Shared::new(config, config.capabilities(link), link_len)?);
        let device = Arc::new(PortDevice(Arc::clone(&shared)));
        let own = Arc::clone(&shared);
        let attachment =
            Attachment::new(device).gone_when(move || own.port_gone.load(Ordering::Acquire));
        Ok((attachment, Self { shared }))
    }

    /// Gives frames to the stack, in order, and processes them. Returns the number of frames taken:
    /// the others found no room and stay with the caller, who gives them again when the descriptor
    /// of the port is readable.
    ///
    /// A frame that is longer than the MTU allows, or has no bytes, is taken, dropped and counted
    /// (`DeviceRxTruncated`, `PacketTooShort`), as well as every frame while the device is down
    /// (`DeviceDown`).
    ///
    /// # Errors
    /// `BrokenPipe` if the stack has ended or has removed the device; `OutOfMemory` if no frame was
    /// taken because packet memory is at its limit.
    pub fn inject<F: AsRef<[u8]>>(&self, frames: &[F]) -> io::Result<usize> {
        self.inject_each(frames.iter().map(|frame| (VnetHdr::default(), frame.as_ref())))
    }

    /// As [`inject`](Self::inject), for frames whose header says that they are superframes or that
    /// their checksum is partial or verified. A header that contradicts its frame, or a superframe
    /// for a port without superframes, is a drop (`VnetHeader`).
    ///
    /// # Errors
    /// As [`inject`](Self::inject).
    pub fn inject_superframes<F: AsRef<[u8]>>(&self, frames: &[(VnetHdr, F)]) -> io::Result<usize> {
        self.inject_each(frames.iter().map(|(header, frame)| (*header, frame.as_ref())))
    }

    fn inject_each<'a>(
        &self,
        frames: impl ExactSizeIterator<Item = (VnetHdr, &'a [u8])> + Clone,
    ) -> io::Result<usize> {
        if self.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let shared = &*self.shared;
        let costs = frames.clone().map(|(_, bytes)| cost(bytes.len()));
        let (count, reserved) = shared.incoming.lock().reserve(costs);
        let is_short = count < frames.len();
        clock::with_cx(|cx| {
            let mut arrival = Arrival::new(reserved, is_short);
            let (mut taken, mut has_memory) = (0, true);
            for (header, bytes) in frames.take(count) {
                match packet_of(shared, &mut cx.pool, header, bytes) {
                    Ok(packet) => arrival.push(packet),
                    Err(Some(reason)) => arrival.dropped.add(reason, 1),
                    Err(None) => {
                        has_memory = false;
                        break;
                    }
                }
                taken += 1;
            }
            shared.arrive(cx, arrival);
            if taken == 0 && !has_memory {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            Ok(taken)
        })
    }

    /// Lends up to `max` frames of the stack to `each`, in order, and returns the number of those
    /// that it has taken: fewer than `max` if the stack has no more to send now. No lock is held
    /// while `each` runs. Of two threads that drain one port at the same time, each gets some of
    /// the frames.
    ///
    /// # Errors
    /// The first error of `each`. Its frame and all later ones stay in the port, and the next call
    /// begins with that frame; frames before it are done.
    pub fn drain<T, E>(
        &self,
        max: usize,
        mut each: impl FnMut(PortFrame<'_>) -> Result<T, E>,
    ) -> Result<usize, E> {
        let shared = &*self.shared;
        let mut drained = 0;
        while drained < max {
            let mut batch = Batch::take(shared, max - drained);
            if batch.is_empty() {
                shared.settle_signal();
                break;
            }
            let lent = lend(shared, &mut batch, &mut each);
            drained += batch.drained;
            // The stack sends the packets that had waited for room.
            drop(batch);
            lent?;
        }
        Ok(drained)
    }

    /// Sleeps until the descriptor is readable, at most `timeout`, without limit for `None`.
    /// Returns false after that time.
    ///
    /// # Errors
    /// Errors of poll(2), such as `Interrupted`.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.shared.signal.wait(timeout)
    }

    /// Returns whether the stack has ended or has removed the device. Frames that it has sent
    /// before can still be drained.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.device_gone.load(Ordering::Acquire)
    }
}

impl AsFd for PacketPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.signal.watch()
    }
}

impl AsRawFd for PacketPort {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for PacketPort {
    fn drop(&mut self) {
        self.shared.close_port();
    }
}

/// Lends the frames of a batch, until one is refused.
fn lend<T, E>(
    shared: &Shared,
    batch: &mut Batch<'_>,
    each: &mut impl FnMut(PortFrame<'_>) -> Result<T, E>,
) -> Result<(), E> {
    while let Some(packet) = batch.next() {
        match PortFrame::of(shared, packet).map(&mut *each) {
            Ok(Ok(_)) => batch.drained += 1,
            Ok(Err(error)) => {
                batch.put_back();
                return Err(error);
            }
            Err(reason) => shared.incoming.lock().dropped.add(reason, 1),
        }
        batch.finish();
    }
    Ok(())
}

/// Copies a frame into packet memory. `None` if there is no memory, otherwise the reason of a drop.
fn packet_of(
    shared: &Shared,
    pool: &mut Pool,
    header: VnetHdr,
    bytes: &[u8],
) -> Result<Packet, Option<DropReason>> {
    let is_plain = header == VnetHdr::default();
    if bytes.len() <= usize::from(shared.link_len) {
        return Err(Some(DropReason::PacketTooShort));
    }
    if !is_plain && shared.superframe_max.is_none() {
        return Err(Some(DropReason::VnetHeader));
    }
    let tag = if shared.link_len == 0 { 0 } else { VLAN_TAG_LEN };
    let ip_len = match shared.superframe_max {
        Some(bytes) if header.gso_type != 0 => bytes,
        _ => shared.caps.mtu,
    };
    if bytes.len() > ip_len as usize + usize::from(shared.link_len) + tag {
        return Err(Some(DropReason::DeviceRxTruncated));
    }
    let mut packet = pool.alloc_from(bytes).ok_or(None)?;
    if let Err(reason) = header.apply_to(&mut packet, shared.link_len) {
        pool.free(packet);
        return Err(Some(reason));
    }
    Ok(packet)
}

/// A frame that the stack sends, lent by [`PacketPort::drain`].
#[derive(Clone, Copy, Debug)]
pub struct PortFrame<'a> {
    packet: &'a Packet,
    header: VnetHdr,
}

impl<'a> PortFrame<'a> {
    fn of(shared: &Shared, packet: &'a Packet) -> Result<Self, DropReason> {
        // Without offloads a packet has neither, and a port without superframes asks for none.
        let header = match shared.superframe_max {
            Some(_) => VnetHdr::of(packet, shared.link_len)?,
            None => VnetHdr::default(),
        };
        Ok(Self { packet, header })
    }

    /// Returns the bytes in order, in non-empty parts: one for a small frame, otherwise the headers
    /// and slices of the payload.
    #[must_use]
    pub fn slices(&self) -> Slices<'a> {
        self.packet.slices()
    }

    /// Returns the number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        self.packet.len()
    }

    /// Copies the frame to the beginning of `buffer`, as far as it fits. Returns the number of
    /// bytes copied.
    pub fn copy_to(&self, buffer: &mut [u8]) -> usize {
        self.packet.copy_to(0, buffer)
    }

    /// Returns the payload bytes of each TCP segment of a superframe. `None` for any other frame.
    #[must_use]
    pub fn gso_size(&self) -> Option<u16> {
        (self.header.gso_size != 0).then_some(self.header.gso_size)
    }

    /// Returns the description of a partial checksum and of the segments, in the form of virtio.
    /// All fields are zero if the port has no superframes.
    #[must_use]
    pub const fn vnet_hdr(&self) -> VnetHdr {
        self.header
    }
}
