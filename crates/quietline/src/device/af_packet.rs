//! A stack on an existing interface, a NIC or one end of a veth pair, through packet sockets: rings
//! shared with the kernel, or system calls.
//!
//! Below: packet sockets. Above: the cores of a stack, one per queue. Linux:
//! net/packet/af_packet.c.
//!
//! ```text
//!   driver ─ (GRO) ─┬► receive ring ─ copy ─┬► stack ┬ copy ─► transmit ring ┬► (qdisc) ─► driver
//!                   ├► copy in the call ────┘        └ copy in the call ─────┘
//!                   └► the kernel's own stack, which has no address here
//! ```
//!
//! **Rings or calls.** Each direction uses a ring or system calls ([`RxFormat`], [`TxFormat`]). To
//! send, a call copies each frame once. A NIC reads the slots of a transmit ring in place, but the
//! kernel copies a frame out of the ring again if the frame goes to another network namespace or
//! socket. To receive, a ring costs no system call per frame, and the thread that delivers the
//! frame copies it.
//!
//! **Addresses.** The interface should have no IP address: the kernel's own stack then drops
//! packets to the stack's addresses after a route lookup. If the kernel forwards between
//! interfaces, forwarding must be off on this one (`net.ipv4.conf.IF.forwarding=0`), because the
//! kernel would forward a copy. The stack uses the interface's link address unless the
//! configuration names another. With another address the interface is promiscuous while the device
//! exists, and the kernel's stack ignores the device's frames at once; but switches and hypervisors
//! that know the NIC's address may filter another one.
//!
//! **Superframes.** With `vnet_hdr`, a superframe of the kernel's GRO or of a peer on the same
//! machine arrives as one frame. The NIC, or else the kernel, segments the superframes that the
//! stack sends. The MTU applies to the segments. A superframe has at most 64 KB, for which the
//! kernel needs no contiguous memory: it uses the pages of a ring's slot, or single pages that it
//! copies to.
//!
//! **Completions.** The device holds a packet until the kernel releases its last reference. While
//! the packet waits in a queueing discipline or a driver's ring it counts as in flight, for byte
//! queue limits and TCP Small Queues. A discipline that segments superframes itself, as tbf does
//! with those larger than its burst, completes them at that time. A ring reports each packet.
//! Without a ring the fill level of the send buffer gives the number of packets in flight, and
//! packets are assumed to leave in order (`sendmsg`).
//!
//! **Path through the kernel.** By default frames pass the interface's queueing discipline, and
//! tcpdump sees them. With [`KernelQdisc::Bypass`] they go directly to the driver.
//!
//! While the interface is down, frames to be sent are dropped and counted; the device works again
//! when the interface is up. After the interface was deleted the device cannot be used any more:
//! [`AfPacket::is_gone`].
//!
//! Not here: VLANs (a tagged frame is dropped and counted), UDP superframes, interfaces without an
//! Ethernet header.

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::event::{Timespec, epoll};
use stack::{
    base::limits::WEIGHT,
    device::{Capabilities, Doorbell, LinkType},
    header::ethernet::MacAddr,
};

use super::interface::{Interface, Promiscuous};
use super::presence::{CheckTimer, Deletions};
use super::setup_error::SetupError;

pub mod config;
mod device;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod receive;
mod recvmsg;
mod sender;
mod sendmsg;
pub(in crate::device) mod socket;
mod transmit;

pub use config::{AfPacketConfig, Fanout, KernelQdisc, RxFormat, TxFormat};

use receive::RxRing;
use recvmsg::RxCalls;
use sender::Tx;
use sendmsg::TxCalls;
use transmit::{IP_BYTES_MAX, TxRing};

/// Bytes of an Ethernet header.
const ETHERNET_HEADER_LEN: u16 = 14;

/// Source of an event of a queue's epoll descriptor.
const FRAMES: u64 = 0;
const COMPLETIONS: u64 = 1;
const DELETIONS: u64 = 2;

/// A device on an existing interface, through packet sockets.
pub struct AfPacket {
    caps: Capabilities,
    interface: Interface,
    /// Maximum number of frames of one poll.
    weight: usize,
    queues: Box<[Queue]>,
    /// Reports of deleted interfaces, watched by the epoll descriptor of queue 0.
    deletions: Deletions,
    /// Set by the thread that detects the deletion of the interface. Relaxed: it orders nothing.
    gone: AtomicBool,
    _promiscuous: Option<Promiscuous>,
}

/// A queue pair.
struct Queue {
    /// Outside of `rx`, because `check_interface` reads its pending error while another thread
    /// holds the ring.
    receiver: OwnedFd,
    rx: Mutex<Rx>,
    tx: Tx,
    /// Epoll descriptor: readable while a frame waits, and once after packets were completed. That
    /// of queue 0 is also readable when the interface may have been deleted.
    events: OwnedFd,
    check_timer: CheckTimer,
    /// Doorbell of the core that runs this queue.
    doorbell: OnceLock<Doorbell>,
    /// Packets and bytes that `transmit` accepted and dropped since the last completion. Added by
    /// the sending thread and taken by the core; the count is released after the bytes.
    dropped_packets: AtomicUsize,
    dropped_bytes: AtomicUsize,
}

/// Receive path of a queue.
#[derive(Debug)]
enum Rx {
    Ring(RxRing),
    Calls(RxCalls),
}

impl Queue {
    fn open(
        interface: &Interface,
        config: &AfPacketConfig,
        group: &mut Option<socket::FanoutGroup>,
    ) -> Result<Self, SetupError> {
        let (receiver, rx) = match config.rx_format {
            RxFormat::Calls => {
                let receiver = socket::open_plain_receiver(interface, config)?;
                (receiver, Rx::Calls(RxCalls::new(config.vnet_hdr)))
            }
            RxFormat::Frames | RxFormat::Blocks => {
                let socket::RingSocket { fd, mapping, geometry } =
                    socket::open_receiver(interface, config)?;
                (fd, Rx::Ring(RxRing::new(mapping, geometry, config.vnet_hdr)))
            }
        };
        if config.queues > 1 {
            socket::join_fanout(&receiver, &interface.name, config.fanout, group)?;
        }
        let tx = match config.tx_format {
            TxFormat::Calls => {
                let sender = socket::open_plain_sender(interface, config)?;
                let room = usize::from(config.tx_ring_frames);
                Tx::Calls(TxCalls::new(sender, room, config.vnet_hdr))
            }
            TxFormat::Ring => {
                let (sender, slots) = socket::open_sender(interface, config)?;
                Tx::Ring(TxRing::new(sender, slots, config.vnet_hdr))
            }
        };
        let events =
            watch(receiver.as_fd(), tx.socket()).map_err(|errno| watch_error(interface, errno))?;
        Ok(Self {
            receiver,
            rx: Mutex::new(rx),
            tx,
            events,
            check_timer: CheckTimer::default(),
            doorbell: OnceLock::new(),
            dropped_packets: AtomicUsize::new(0),
            dropped_bytes: AtomicUsize::new(0),
        })
    }

    /// Drops the frames that have arrived.
    fn discard(&mut self) {
        match self.rx.get_mut().unwrap_or_else(PoisonError::into_inner) {
            Rx::Ring(ring) => ring.discard(),
            Rx::Calls(_) => RxCalls::discard(self.receiver.as_fd()),
        }
    }

    fn receiver(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl AfPacket {
    /// Opens a device on the interface that `config` names, in the network namespace of the calling
    /// thread. Drops frames that arrived during the setup.
    ///
    /// # Errors
    /// If a field is out of range; if there is no such interface, or it is down or has no Ethernet
    /// header; or if the kernel refuses a step. The text names a missing CAP_NET_RAW and a ring
    /// that is too large. A failed call leaves nothing behind.
    pub fn open(config: &AfPacketConfig) -> Result<Arc<Self>, SetupError> {
        config.validate()?;
        let interface = Interface::find(&config.interface)?;
        let mtu = config.mtu.unwrap_or(interface.mtu);
        if mtu > interface.mtu {
            return Err(SetupError::field("mtu", mtu, "at most the interface's own"));
        }
        if mtu > IP_BYTES_MAX {
            return Err(SetupError::field("mtu", mtu, "68 to 65480"));
        }
        // Watch first: a deletion before the watch fails the binding of the sockets.
        let deletions = Deletions::watch(&interface)?;
        let queues = open_queues(&interface, config, &deletions)?;
        let mac = config.mac.unwrap_or(interface.mac);
        let promiscuous = match mac == interface.mac {
            true => None,
            false => Some(Promiscuous::enter(&interface)?),
        };
        let gso_max = match interface.gso_max_bytes {
            0 => IP_BYTES_MAX,
            bytes => bytes.min(IP_BYTES_MAX),
        };
        let caps = Capabilities {
            name: interface.name.clone(),
            mtu,
            link: LinkType::Ethernet { mac: MacAddr(mac) },
            tx_checksum: config.vnet_hdr,
            tso4: config.vnet_hdr,
            tso6: config.vnet_hdr,
            uso: false,
            gso_max_bytes: if config.vnet_hdr { gso_max.max(mtu) } else { mtu },
            jumbo6: true,
            queues: config.queues,
            async_completion: true,
        };
        let weight = match config.rx_format {
            RxFormat::Calls if config.vnet_hdr => recvmsg::BURST_MAX,
            _ => WEIGHT,
        };
        let gone = AtomicBool::new(false);
        Ok(Arc::new(Self {
            caps,
            interface,
            weight,
            queues,
            deletions,
            gone,
            _promiscuous: promiscuous,
        }))
    }

    /// Returns the interface, as it was when the device was opened.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the descriptor that is readable while a frame waits on `queue`, and after packets
    /// were completed until [`AfPacket::acknowledge`]. That of queue 0 is also readable when the
    /// interface may have been deleted.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        self.queue(queue).events.as_fd()
    }

    /// Reads the events that made the descriptor of `queue` readable. To be called before the queue
    /// is polled: later completions then report again. Checks for a deleted interface after an
    /// error.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn acknowledge(&self, queue: u16) {
        let queue = self.queue(queue);
        let mut events = [MaybeUninit::uninit(); 3];
        let Ok((events, _)) = epoll::wait(&queue.events, &mut events, Some(&Timespec::default()))
        else {
            return;
        };
        let mut check = false;
        for event in events {
            let (flags, data) = (event.flags, event.data);
            if data.u64() == DELETIONS {
                self.deletions.acknowledge();
                check = true;
            }
            check |= flags.contains(epoll::EventFlags::ERR);
        }
        if check {
            self.check_interface(queue);
        }
    }

    /// Returns whether the interface was deleted. No more frames arrive then, and frames to be sent
    /// are dropped.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    fn queue(&self, queue: u16) -> &Queue {
        &self.queues[usize::from(queue)]
    }
}

impl fmt::Debug for AfPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfPacket")
            .field("interface", &self.interface)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

fn open_queues(
    interface: &Interface,
    config: &AfPacketConfig,
    deletions: &Deletions,
) -> Result<Box<[Queue]>, SetupError> {
    let mut group = None;
    let mut queues = Vec::with_capacity(usize::from(config.queues));
    for _ in 0..config.queues {
        queues.push(Queue::open(interface, config, &mut group)?);
    }
    // Between its bind and its joining of the fanout group, a queue has received copies of frames
    // of the other queues.
    queues.iter_mut().for_each(Queue::discard);
    let added = epoll::EventData::new_u64(DELETIONS);
    epoll::add(&queues[0].events, deletions.as_fd(), added, epoll::EventFlags::IN)
        .map_err(|errno| watch_error(interface, errno))?;
    Ok(queues.into_boxed_slice())
}

/// Returns one epoll descriptor for both sockets. Frames are level-triggered. Completions are
/// edge-triggered, because a transmit ring is almost always writable.
fn watch(receiver: BorrowedFd<'_>, sender: BorrowedFd<'_>) -> Result<OwnedFd, rustix::io::Errno> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let frames = epoll::EventData::new_u64(FRAMES);
    epoll::add(&events, receiver, frames, epoll::EventFlags::IN)?;
    let completions = epoll::EventFlags::OUT | epoll::EventFlags::ET;
    epoll::add(&events, sender, epoll::EventData::new_u64(COMPLETIONS), completions)?;
    Ok(events)
}

fn watch_error(interface: &Interface, errno: rustix::io::Errno) -> SetupError {
    SetupError::system(format!("watch \"{}\"", interface.name), errno.raw_os_error())
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
