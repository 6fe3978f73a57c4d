//! A tap or tun of open descriptors of another program, or of another part of this program.
//!
//! Above: applications that may not open /dev/net/tun themselves. Android gives an app the
//! descriptor of its VPN, a privileged parent passes descriptors to a child over a socket
//! (SCM_RIGHTS), a container runtime passes them by inheritance. Linux: TUNGETIFF returns the
//! interface of a descriptor and the format of its frames.
//!
//! No privilege is needed. The interface is unchanged: its addresses, MTU and state belong to the
//! program that created it.
//!
//! Not here: the passing of descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};

use super::super::interface::check_mac;
use super::super::netlink::Netlink;
use super::super::setup_error::SetupError;
use super::config::{MTU_MIN, QUEUES_MAX};
use super::{Parts, Tun, TunKind, ioctl, local_mac};

/// Parameters that the descriptors do not contain. The default reads the MTU from the kernel and
/// generates the link address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TunFdConfig {
    /// Maximum size of an IP packet in bytes. `None` reads the MTU of the interface of this name in
    /// the network namespace of the calling thread. Set it if the interface is in another namespace
    /// or netlink is not permitted (Android).
    pub mtu: Option<u32>,
    /// Ethernet address of the stack; `None` generates a locally administered one. Unused by a tun.
    pub mac: Option<[u8; 6]>,
}

impl Tun {
    /// Builds a device of open descriptors of /dev/net/tun, one for each queue, that are attached
    /// to one interface.
    ///
    /// The driver reports their properties: whether frames have the virtio header (`IFF_VNET_HDR`),
    /// and thus offloads; the name; whether several queues are allowed. `kind` is the expected
    /// kind; another kind is refused. The descriptors become nonblocking and close-on-exec, also
    /// for other holders of the same open file.
    ///
    /// ```no_run
    /// use std::os::fd::OwnedFd;
    ///
    /// use quietline::Stack;
    /// use quietline::device::{Tun, TunFdConfig, TunKind};
    ///
    /// fn stack_of(fd: OwnedFd) -> Result<Stack, Box<dyn std::error::Error>> {
    ///     let config = TunFdConfig { mtu: Some(1500), ..TunFdConfig::default() };
    ///     let tun = Tun::from_fds(TunKind::Tun, vec![fd], &config)?;
    ///     Ok(Stack::builder().device(tun).address("10.0.0.2/24".parse()?).build()?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// One line that names the descriptor and the reason: it was not opened from /dev/net/tun; no
    /// interface is attached to it, or its interface was deleted; its interface has another kind,
    /// or another name than that of the first descriptor; its frames have packet information
    /// (`IFF_NO_PI` is missing); there are several descriptors without `IFF_MULTI_QUEUE`; or the
    /// MTU is unknown or out of range. The descriptors are closed then.
    pub fn from_fds(
        kind: TunKind,
        fds: Vec<OwnedFd>,
        config: &TunFdConfig,
    ) -> Result<Arc<Self>, SetupError> {
        if fds.is_empty() || fds.len() > usize::from(QUEUES_MAX) {
            return Err(SetupError::field("fds", fds.len(), "1 to 256 descriptors"));
        }
        config.mac.map_or(Ok(()), check_mac)?;
        let first = inspect(fds[0].as_fd(), kind)?;
        let mut uso = first.has_vnet_hdr();
        for (index, fd) in fds.iter().enumerate() {
            let own = inspect(fd.as_fd(), kind)?;
            if own != first {
                let value = format!("fd {index}: a queue of \"{}\"", own.name);
                let allowed = "queues of one interface, with the same flags";
                return Err(SetupError::field("fds", value, allowed));
            }
            uso &= prepare(fd.as_fd(), &first)?;
        }
        if fds.len() > 1 && !first.is_multi_queue() {
            let allowed = "one descriptor: its interface was created without IFF_MULTI_QUEUE";
            return Err(SetupError::field("fds", fds.len(), allowed));
        }
        let mtu = match config.mtu {
            Some(mtu) => mtu,
            None => mtu_of(&first.name)?,
        };
        if mtu < MTU_MIN || mtu > kind.mtu_max() {
            return Err(SetupError::field("mtu", mtu, "68 to 65535 less the link header"));
        }
        let mac = config.mac.unwrap_or_else(|| local_mac(&first.name));
        let vnet_hdr = first.has_vnet_hdr();
        let parts = Parts { kind, vnet_hdr, uso, name: first.name, mtu, mac, link: None };
        Self::assemble(parts, fds.into_boxed_slice())
    }
}

/// Reads the properties of `fd` from the driver, and refuses descriptors that no device can use.
fn inspect(fd: BorrowedFd<'_>, kind: TunKind) -> Result<ioctl::Attached, SetupError> {
    let attached = ioctl::attached(fd).map_err(|errno| {
        let step = format!("use a descriptor as a {}", kind.name());
        let error = SetupError::system(step, errno.raw_os_error());
        match errno {
            Errno::BADFD if ioctl::is_tun(fd) => error.with_hint(
                "no interface is attached to it (TUNSETIFF), or its interface was deleted",
            ),
            Errno::PERM | Errno::ACCESS => error.with_hint("the ioctl TUNGETIFF is not permitted"),
            _ => error.with_hint("it was not opened from /dev/net/tun"),
        }
    })?;
    if attached.kind() != kind {
        let value = format!("\"{}\", a {}", attached.name, attached.kind().name());
        let allowed = match kind {
            TunKind::Tap => "a descriptor of a tap (IFF_TAP)",
            TunKind::Tun => "a descriptor of a tun (IFF_TUN)",
        };
        return Err(SetupError::field("fds", value, allowed));
    }
    if attached.has_packet_information() {
        let allowed =
            "an interface created with IFF_NO_PI: its frames begin with packet information";
        return Err(SetupError::field("fds", format!("\"{}\"", attached.name), allowed));
    }
    Ok(attached)
}

/// Sets the flags that reads and writes of the device need. Returns whether the kernel has
/// superframes of datagrams.
fn prepare(fd: BorrowedFd<'_>, attached: &ioctl::Attached) -> Result<bool, SetupError> {
    let set = || {
        fcntl_setfd(fd, FdFlags::CLOEXEC)?;
        fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        if attached.has_vnet_hdr() { ioctl::enable_offloads(fd) } else { Ok(false) }
    };
    set().map_err(|errno: Errno| {
        let step = format!("prepare a descriptor of \"{}\"", attached.name);
        SetupError::system(step, errno.raw_os_error())
    })
}

fn mtu_of(name: &str) -> Result<u32, SetupError> {
    let link = Netlink::open().and_then(|mut netlink| netlink.link(name));
    let hint = "set TunFdConfig::mtu: the interface may be in another network namespace";
    Ok(link.map_err(|error| error.with_hint(hint))?.mtu)
}
