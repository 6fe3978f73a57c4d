//! Tap and tun devices: one driver of the Linux kernel, with or without an Ethernet header.
//!
//! Below: /dev/net/tun, read and written one frame per call. Above: the cores of a stack, one per queue. Linux:
//! drivers/net/tun.c; the peer on the other side is the kernel's own TCP/IP stack.
//!
//! ```text
//!   our stack ── transmit ── writev ─►  kernel receives      kernel sends ─► readv ── receive ── our stack
//!                      [12-byte virtio header] [Ethernet header, tap only] [IP packet]
//! ```
//!
//! With `vnet_hdr` a frame may be a TCP superframe of up to 64 KB with its checksum left open, in both directions, so
//! that one call moves what 45 plain ones would; towards the kernel, over IPv4, of three times that (BIG TCP) where it is new enough,
//! unless `gso_ipv4_max_size` of the device asks for less or more. A kernel that passes such a frame on cuts it up, and one that has
//! no memory for it gets 64 KB from then on (`transmit`). Without `vnet_hdr` every frame is complete and at most one MTU long.
//!
//! The interface is made, addressed and brought up by [`Tun::create`], and disappears with the last descriptor of the
//! device, also when the process is killed. Any thread may transmit on any queue; the kernel remembers on which queue
//! a flow was last sent and delivers its packets there, so a flow should keep to one.
//!
//! Not here: io_uring batches, steering programs (TUNSETSTEERINGEBPF), IFF_NAPI (one write is one kernel poll then,
//! and there is nothing to merge).

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};
use stack::{
    base::limits::{BIG_TCP_BYTES_MAX, GSO_BYTES_MAX},
    device::{Capabilities, Doorbell, LinkType},
    header::ethernet::MacAddr,
};

use super::netlink::{Link, LinkChange, Netlink};
use super::setup_error::SetupError;

pub mod config;
mod glue;
mod ioctl;
mod receive;
mod transmit;

pub use config::{MTU_MIN, QUEUES_MAX, TunConfig, TunKind};

/// The kernel whose tap first takes IPv4 superframes longer than the header's length field can say (BIG TCP, RFC 2675's idea
/// without an option): major and minor version. Its TCP/IP does since 6.3, but until 6.6 a tap refuses what does not fit into 17
/// single pages (EMSGSIZE; `tun_alloc_skb`).
const BIG_TCP_IPV4_SINCE: (u32, u32) = (6, 6);

/// A tap or tun interface, open and up.
pub struct Tun {
    kind: TunKind,
    vnet_hdr: bool,
    caps: Capabilities,
    link: Link,
    queues: Box<[OwnedFd]>,
    /// Bytes of the largest superframe that the kernel takes at this moment (`transmit`). Relaxed: who reads an old one meets the
    /// kernel itself.
    superframe_max: AtomicU32,
    /// Set by the core that finds it out, read by its worker. Relaxed: it orders nothing.
    gone: AtomicBool,
    /// Never ready. Stands in for the queues once the interface is gone.
    silence: OwnedFd,
    /// Doorbell of the host that has the device.
    doorbell: OnceLock<Doorbell>,
}

impl Tun {
    /// Makes the interface (or takes over a persistent one), sets what `config` asks for and brings it up, in the
    /// network namespace of the calling thread.
    ///
    /// # Errors
    /// A field is out of range or the kernel refuses a step. Nothing is left behind.
    pub fn create(config: &TunConfig) -> Result<Arc<Self>, SetupError> {
        config.validate()?;
        let (name, queues) = open_queues(config)?;
        let link = configure_link(config, &name)?;
        let mac = config.mac.unwrap_or_else(|| local_mac(&name));
        if config.kind == TunKind::Tap && link.mac == Some(mac) {
            let allowed = "another address than the kernel's side of the tap has";
            return Err(SetupError::field("mac", config::format_mac(mac), allowed));
        }
        let silence = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| SetupError::system("make an eventfd", e.raw_os_error()))?;
        let caps = Capabilities {
            name,
            mtu: config.mtu,
            link: match config.kind {
                TunKind::Tap => LinkType::Ethernet { mac: MacAddr(mac) },
                TunKind::Tun => LinkType::Ip,
            },
            tx_checksum: config.vnet_hdr,
            tso4: config.vnet_hdr,
            tso6: config.vnet_hdr,
            gso_max_bytes: if config.vnet_hdr { superframe_max() } else { config.mtu },
            jumbo6: false,
            queues: config.queues,
            async_completion: false,
        };
        let kind = config.kind;
        Ok(Arc::new(Self {
            kind,
            vnet_hdr: config.vnet_hdr,
            superframe_max: AtomicU32::new(caps.gso_max_bytes),
            caps,
            link,
            queues,
            gone: AtomicBool::new(false),
            silence,
            doorbell: OnceLock::new(),
        }))
    }

    /// Tap or tun.
    #[must_use]
    pub fn kind(&self) -> TunKind {
        self.kind
    }

    /// The interface's name, as the kernel chose it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.caps.name
    }

    /// The kernel's side of the link, as it was when the device was made.
    #[must_use]
    pub fn host_link(&self) -> &Link {
        &self.link
    }

    /// The descriptor that becomes readable when a frame waits on `queue`, to sleep on. Every frame read from it
    /// elsewhere is missing here.
    ///
    /// The descriptors of a deleted interface report an error for ever. So that nobody spins on them, a descriptor that
    /// is never ready takes their place once [`Tun::is_gone`]: ask before every sleep.
    ///
    /// # Panics
    /// There is no such queue.
    #[must_use]
    pub fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        if self.is_gone() { self.silence.as_fd() } else { self.queue_fd(queue) }
    }

    fn queue_fd(&self, queue: u16) -> BorrowedFd<'_> {
        self.queues[usize::from(queue)].as_fd()
    }

    /// Whether somebody else has deleted the interface. Nothing arrives any more, and what is sent is dropped.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Tun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tun")
            .field("kind", &self.kind)
            .field("name", &self.caps.name)
            .field("queues", &self.queues.len())
            .field("vnet_hdr", &self.vnet_hdr)
            .finish_non_exhaustive()
    }
}

/// Largest superframe that the running kernel takes from a tap. What its version is not clear from has no BIG TCP.
fn superframe_max() -> u32 {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match kernel_version(&release) {
        Some(version) if version >= BIG_TCP_IPV4_SINCE => BIG_TCP_BYTES_MAX,
        _ => GSO_BYTES_MAX,
    }
}

/// Major and minor version of a release such as `6.18.44-rc1`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Opens one descriptor per queue and attaches all to one interface. Dropping them undoes it.
fn open_queues(config: &TunConfig) -> Result<(String, Box<[OwnedFd]>), SetupError> {
    let kind = config.kind.name();
    let mut name = config.name.clone();
    let mut queues = Vec::with_capacity(usize::from(config.queues));
    for index in 0..config.queues {
        let fd = ioctl::open().map_err(|e| {
            let error =
                SetupError::system(format!("open {}", ioctl::DEVICE_NODE), e.raw_os_error());
            match e.raw_os_error() {
                libc::ENOENT | libc::ENODEV | libc::ENXIO => {
                    error.with_hint("the kernel's tun driver is missing (modprobe tun)")
                }
                _ => error,
            }
        })?;
        let multi_queue = config.queues > 1;
        name = ioctl::attach(fd.as_fd(), &name, config.kind, multi_queue, config.vnet_hdr)
            .map_err(|e| {
                let step = match index {
                    0 => format!("create {kind} \"{name}\""),
                    _ => format!("add queue {index} to {kind} \"{name}\""),
                };
                let error = SetupError::system(step, e.raw_os_error());
                match e.raw_os_error() {
                    libc::EINVAL => error.with_hint(
                        "an interface of that name exists and is of another kind or queue count",
                    ),
                    _ => error,
                }
            })?;
        let offloads = match config.vnet_hdr {
            true => ioctl::enable_offloads(fd.as_fd()),
            false => ioctl::disable_offloads(fd.as_fd()),
        };
        offloads.map_err(|e| {
            SetupError::system(format!("set offloads of {kind} \"{name}\""), e.raw_os_error())
        })?;
        queues.push(fd);
    }
    Ok((name, queues.into_boxed_slice()))
}

/// Gives the kernel's side what `config` asks for, and nothing it has already.
fn configure_link(config: &TunConfig, name: &str) -> Result<Link, SetupError> {
    let mut netlink = Netlink::open()?;
    let link = netlink.link(name)?;
    let change = LinkChange {
        mtu: Some(config.mtu).filter(|&mtu| mtu != link.mtu),
        tx_queue_len: config.tx_queue_len.filter(|&len| len != link.tx_queue_len),
        up: !link.up,
    };
    netlink.change_link(link.index, name, &change)?;
    if let Some(address) = config.host_address {
        netlink.add_address(link.index, name, address, config.host_peer)?;
    }
    for &route in &config.host_routes {
        netlink.add_route(link.index, name, route)?;
    }
    netlink.link(name)
}

/// A locally administered unicast address (IEEE 802 bit 1 of the first byte) made of `name` and chance, so that two
/// taps bridged together, or one remade under its old name, do not meet with one address.
fn local_mac(name: &str) -> [u8; 6] {
    let mut chance = [0; 8];
    // Without chance the name alone still tells the taps of one machine apart.
    let _ = rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::NONBLOCK);
    // FNV-1a of name and chance.
    let hash = name.bytes().chain(chance).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [.., a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests;
