//! A stack on an interface that exists: a NIC, or one end of a veth pair. Rings shared with the kernel, or calls.
//!
//! Below: packet sockets. Above: the cores of a stack, one per queue. Linux: net/packet/af_packet.c.
//!
//! ```text
//!   wire ─► driver ─► (kernel's GRO) ─► receive ring ─ copy ─► our stack ─ copy in the call ───────► (qdisc) ─► driver ─► wire
//!                             │    └──► copy in the call ─────────┘    └── copy ─► transmit ring ─────┘
//!                             └──────► the kernel's own stack, which has no address here
//! ```
//!
//! **Rings or calls.** Either way may have a ring or none ([`RxFormat`], [`TxFormat`]). Out, a call copies each frame once; a ring's
//! places a NIC reads as they are, but where a frame goes to another network namespace or socket the kernel copies it out of them
//! again. In, a ring costs no system call per frame, and its copy is made by whoever brings the frame.
//!
//! **Addresses.** The interface should have no IP address: what arrives for ours is then nobody's in the kernel's own stack, and
//! is dropped there after a route lookup. Where the kernel forwards between interfaces it must not on this one
//! (`net.ipv4.conf.IF.forwarding=0`), or it would send a copy on. Our link address is the interface's own unless the
//! configuration names another one: then the interface becomes promiscuous while the device lives, and the kernel's stack
//! ignores our frames at once; but switches and hypervisors that know the NIC's address may not let another one through.
//!
//! **Superframes.** With `vnet_hdr` what the kernel's GRO has merged, or a peer on the same machine has sent as a superframe,
//! arrives as one frame; and what we send as a superframe is cut by the NIC or, where it cannot, by the kernel. Its MTU holds for
//! the segments. None is larger than 64 KB, for which the kernel needs no memory in a row: the pages of a ring's place, or single pages
//! that it copies to.
//!
//! **Completions are true.** A packet is ours until the last holder in the kernel lets go of it: while it waits in a queueing
//! discipline or a driver's ring it counts as in flight, which is what byte queue limits and TCP Small Queues
//! measure. A discipline that cuts superframes itself, as tbf does with those larger than its burst, completes them when it does.
//! A ring says it of each packet; without one the send buffer says how many there are, and they are taken to leave in their order
//! (`sendmsg`).
//!
//! **The way through the kernel.** By default frames pass the interface's queueing discipline and are seen by tcpdump; with
//! [`KernelQdisc::Bypass`] they go straight into the driver.
//!
//! When the interface goes down what is sent is dropped and counted; it works again when it comes up. When it is deleted the
//! device is dead: [`AfPacket::is_gone`].
//!
//! Not here: VLANs (a tagged frame is dropped and counted), UDP superframes, interfaces without an Ethernet header.

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
use super::presence::{Deletions, LookTimer};
use super::setup_error::SetupError;

pub mod config;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod glue;
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

/// What an event of a queue's epoll descriptor is about.
const FRAMES: u64 = 0;
const COMPLETIONS: u64 = 1;
const DELETIONS: u64 = 2;

/// An interface of the kernel's that a stack is on.
pub struct AfPacket {
    caps: Capabilities,
    interface: Interface,
    /// Frames of one poll at most.
    weight: usize,
    queues: Box<[Queue]>,
    /// Watched by the epoll descriptor of queue 0.
    deletions: Deletions,
    /// Set by whoever finds out that the interface is deleted. Relaxed: it orders nothing.
    gone: AtomicBool,
    _promiscuous: Option<Promiscuous>,
}

/// A queue pair.
struct Queue {
    /// Beside its ring, because errors are taken off it while the ring is read.
    receiver: OwnedFd,
    rx: Mutex<Rx>,
    tx: Tx,
    /// An epoll descriptor: readable while a frame waits, and once after packets were completed. Queue 0: also when the interface may
    /// have been deleted.
    events: OwnedFd,
    look_timer: LookTimer,
    /// The core that this queue belongs to.
    doorbell: OnceLock<Doorbell>,
    /// Packets and bytes that were taken and dropped since the last completion. Written by who sends, taken by the core; the count is
    /// released after the bytes.
    given_up_packets: AtomicUsize,
    given_up_bytes: AtomicUsize,
}

/// The way in that a queue has.
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
                let (receiver, mapping, geometry) = socket::open_receiver(interface, config)?;
                (receiver, Rx::Ring(RxRing::new(mapping, geometry, config.vnet_hdr)))
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
                let (sender, places) = socket::open_sender(interface, config)?;
                Tx::Ring(TxRing::new(sender, places, config.vnet_hdr))
            }
        };
        let events =
            watch(receiver.as_fd(), tx.socket()).map_err(|errno| watch_error(interface, errno))?;
        Ok(Self {
            receiver,
            rx: Mutex::new(rx),
            tx,
            events,
            look_timer: LookTimer::default(),
            doorbell: OnceLock::new(),
            given_up_packets: AtomicUsize::new(0),
            given_up_bytes: AtomicUsize::new(0),
        })
    }

    /// Forgets what has arrived.
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
    /// Puts a device on the interface that `config` names, in the network namespace of the calling thread. Frames that
    /// arrived while it was set up are forgotten.
    ///
    /// # Errors
    /// A field is out of range; there is no such interface, it is down or has no Ethernet header; or the kernel refuses
    /// a step: the text names CAP_NET_RAW where that is missing, and the ring that is too large. Nothing is left behind.
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
        // First of all: a deletion that it does not report fails the binding of the sockets.
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

    /// The interface, as it was when the device was made.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The descriptor that is readable while a frame waits on `queue`, and becomes readable when packets were completed,
    /// until [`AfPacket::acknowledge`]. That of queue 0 also when the interface is deleted.
    ///
    /// # Panics
    /// There is no such queue.
    #[must_use]
    pub fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        self.queue(queue).events.as_fd()
    }

    /// Takes note of what made the descriptor of `queue` readable; to be called before the queue is polled. The completions told
    /// so far are not told again, and an error is looked into.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn acknowledge(&self, queue: u16) {
        let queue = self.queue(queue);
        let mut events = [MaybeUninit::uninit(); 3];
        let Ok((events, _)) = epoll::wait(&queue.events, &mut events, Some(&Timespec::default()))
        else {
            return;
        };
        let mut look = false;
        for event in events {
            let (flags, data) = (event.flags, event.data);
            if data.u64() == DELETIONS {
                self.deletions.acknowledge();
                look = true;
            }
            look |= flags.contains(epoll::EventFlags::ERR);
        }
        if look {
            self.look(queue);
        }
    }

    /// Whether the interface has been deleted. Nothing arrives any more, and what is sent is dropped.
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
    // Between its binding and its joining a queue has received what others have received too.
    queues.iter_mut().for_each(Queue::discard);
    let added = epoll::EventData::new_u64(DELETIONS);
    epoll::add(&queues[0].events, deletions.as_fd(), added, epoll::EventFlags::IN)
        .map_err(|errno| watch_error(interface, errno))?;
    Ok(queues.into_boxed_slice())
}

/// One descriptor for both sockets. Frames: as long as they wait. Completions: once each, because a transmit ring is writable
/// almost always.
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
