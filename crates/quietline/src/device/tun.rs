//! Tap and tun devices: one driver of the Linux kernel, with or without an Ethernet header.
//!
//! Below: /dev/net/tun, read and written one frame per call. Above: the cores of a stack, one per
//! queue. Linux: drivers/net/tun.c; the peer on the other side is the kernel's own TCP/IP stack.
//!
//! ```text
//!   stack ── transmit ── writev ─► kernel receives      kernel sends ─► readv ── receive ── stack
//!                  [12-byte virtio header] [Ethernet header, tap only] [IP packet]
//! ```
//!
//! With `vnet_hdr` a frame may be a TCP superframe of up to 64 KB with a partial checksum, in both
//! directions, so that one system call replaces 45. Towards the kernel, IPv4 superframes are three
//! times as large (BIG TCP) if the kernel is new enough, unless `gso_ipv4_max_size` of the device
//! sets another size. A kernel that forwards such a frame segments it. A kernel that has no memory
//! for one gets superframes of at most 64 KB from then on (`transmit`). Without `vnet_hdr` every
//! frame is complete and at most one MTU long.
//!
//! [`Tun::create`] creates the interface, adds its addresses and brings it up. The interface is
//! deleted with the last descriptor of the device, also when the process is killed.
//! [`Tun::from_fds`] takes open descriptors instead. Any thread may transmit on any queue; the
//! kernel delivers the packets of a flow on the queue that the flow last used, so a flow should
//! keep to one.
//!
//! Not here: io_uring batches, steering programs (TUNSETSTEERINGEBPF), IFF_NAPI (with it one write
//! is one kernel poll, which leaves nothing to merge).

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
mod device;
mod from_fds;
mod ioctl;
mod receive;
mod transmit;

pub use config::{MTU_MIN, QUEUES_MAX, TunConfig, TunKind};
pub use from_fds::TunFdConfig;

/// First kernel version, major and minor, whose tap accepts IPv4 superframes that exceed the length
/// field of the header (BIG TCP, as the jumbograms of RFC 2675 but without an option). The kernel's
/// TCP/IP accepts them since 6.3, but before 6.6 a tap refuses frames that do not fit into 17
/// single pages (EMSGSIZE; `tun_alloc_skb`).
const BIG_TCP_IPV4_SINCE: (u32, u32) = (6, 6);

/// A tap or tun interface, open and up.
pub struct Tun {
    kind: TunKind,
    vnet_hdr: bool,
    caps: Capabilities,
    /// Kernel's side of the link; `None` for a device of open descriptors.
    link: Option<Link>,
    queues: Box<[OwnedFd]>,
    /// Largest superframe in bytes that the kernel accepts at present (`transmit`). Relaxed: a
    /// reader of an old value is refused by the kernel.
    superframe_max: AtomicU32,
    /// Set by the core that detects the deletion, read by its worker. Relaxed: it orders nothing.
    gone: AtomicBool,
    /// A descriptor that is never ready, which replaces the queues' descriptors once the interface
    /// is gone.
    silence: OwnedFd,
    /// Doorbell of the device's host.
    doorbell: OnceLock<Doorbell>,
}

/// Parts of a device besides its descriptors.
struct Parts {
    kind: TunKind,
    vnet_hdr: bool,
    /// Whether the kernel takes and passes superframes of datagrams.
    uso: bool,
    name: String,
    mtu: u32,
    mac: [u8; 6],
    link: Option<Link>,
}

impl Tun {
    /// Creates the interface or opens a persistent one, configures it as `config` says and brings
    /// it up, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If a field is out of range or the kernel refuses a step. A failed call leaves nothing
    /// behind.
    pub fn create(config: &TunConfig) -> Result<Arc<Self>, SetupError> {
        config.validate()?;
        let (name, queues, uso) = open_queues(config)?;
        let link = configure_link(config, &name)?;
        let mac = config.mac.unwrap_or_else(|| local_mac(&name));
        if config.kind == TunKind::Tap && link.mac == Some(mac) {
            let allowed = "another address than the kernel's side of the tap has";
            return Err(SetupError::field("mac", config::format_mac(mac), allowed));
        }
        let link = Some(link);
        let mtu = config.mtu;
        let (kind, vnet_hdr) = (config.kind, config.vnet_hdr);
        let parts = Parts { kind, vnet_hdr, uso, name, mtu, mac, link };
        Self::assemble(parts, queues)
    }

    /// Builds a device of descriptors that are attached to an interface.
    fn assemble(parts: Parts, queues: Box<[OwnedFd]>) -> Result<Arc<Self>, SetupError> {
        let Parts { kind, vnet_hdr, uso, name, mtu, mac, link } = parts;
        let silence = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| SetupError::system("create an eventfd", e.raw_os_error()))?;
        let caps = Capabilities {
            name,
            mtu,
            link: match kind {
                TunKind::Tap => LinkType::Ethernet { mac: MacAddr(mac) },
                TunKind::Tun => LinkType::Ip,
            },
            tx_checksum: vnet_hdr,
            tso4: vnet_hdr,
            tso6: vnet_hdr,
            uso,
            gso_max_bytes: if vnet_hdr { superframe_max() } else { mtu },
            jumbo6: false,
            queues: u16::try_from(queues.len()).unwrap_or(QUEUES_MAX),
            async_completion: false,
        };
        Ok(Arc::new(Self {
            kind,
            vnet_hdr,
            superframe_max: AtomicU32::new(caps.gso_max_bytes),
            caps,
            link,
            queues,
            gone: AtomicBool::new(false),
            silence,
            doorbell: OnceLock::new(),
        }))
    }

    /// Returns whether it is a tap or a tun.
    #[must_use]
    pub fn kind(&self) -> TunKind {
        self.kind
    }

    /// Returns the interface's name, as the kernel chose it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.caps.name
    }

    /// Returns the kernel's side of the link, as it was when [`create`](Self::create) opened the
    /// device. `None` for a device of [`from_fds`](Self::from_fds), whose interface may be in
    /// another network namespace.
    #[must_use]
    pub fn host_link(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Returns the descriptor that becomes readable when a frame waits on `queue`, for a worker to
    /// sleep on. No other code may read frames from it.
    ///
    /// The descriptors of a deleted interface report an error forever. To keep threads from
    /// spinning, once [`Tun::is_gone`] is true this method returns a descriptor that is never
    /// ready; call it before every sleep.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        if self.is_gone() { self.silence.as_fd() } else { self.queue_fd(queue) }
    }

    fn queue_fd(&self, queue: u16) -> BorrowedFd<'_> {
        self.queues[usize::from(queue)].as_fd()
    }

    /// Returns whether the interface was deleted. No more frames arrive then, and frames to be sent
    /// are dropped.
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

/// Returns the size of the largest superframe that the running kernel accepts from a tap. If the
/// kernel version cannot be parsed, assumes no BIG TCP.
fn superframe_max() -> u32 {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    match kernel_version(&release) {
        Some(version) if version >= BIG_TCP_IPV4_SINCE => BIG_TCP_BYTES_MAX,
        _ => GSO_BYTES_MAX,
    }
}

/// Returns major and minor version of a release such as `6.18.44-rc1`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Opens one descriptor per queue and attaches all to one interface. Dropping the descriptors
/// deletes it. Also returns whether the kernel has superframes of datagrams.
fn open_queues(config: &TunConfig) -> Result<(String, Box<[OwnedFd]>, bool), SetupError> {
    let kind = config.kind.name();
    let mut name = config.name.clone();
    let mut queues = Vec::with_capacity(usize::from(config.queues));
    let mut uso = config.vnet_hdr;
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
            false => ioctl::disable_offloads(fd.as_fd()).map(|()| false),
        };
        uso &= offloads.map_err(|e| {
            SetupError::system(format!("set offloads of {kind} \"{name}\""), e.raw_os_error())
        })?;
        queues.push(fd);
    }
    Ok((name, queues.into_boxed_slice(), uso))
}

/// Configures the kernel's side as `config` says, leaving out settings that have their value
/// already.
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

/// Returns a locally administered unicast address (IEEE 802 bit 1 of the first byte) derived from
/// `name` and random bytes, so that two bridged taps, or a tap created again under its old name,
/// have different addresses.
fn local_mac(name: &str) -> [u8; 6] {
    let mut random = [0; 8];
    // Without random bytes the name alone still distinguishes the taps of one machine.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    // FNV-1a of the name and the random bytes.
    let hash = name.bytes().chain(random).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [.., a, b, c, d, e] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests;
