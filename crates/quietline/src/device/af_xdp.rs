//! A stack on an existing interface, through AF_XDP: frames pass through rings in shared memory and
//! bypass the kernel's stack.
//!
//! Below: one AF_XDP socket for each queue of the interface, and an XDP program that directs its
//! frames there. Above: the cores of a stack. Linux: net/xdp, Documentation/networking/af_xdp.rst.
//!
//! ```text
//!   interface ── XDP program ──► receive ring ── copy ──► packet memory   (no system call)
//!       ▲    (queue in map?)     fill ring ◄── free chunk
//!       │      no: the kernel
//!       └──────────────────────  transmit ring ◄── copy ── packet memory  (one call per batch)
//!                                completion ring ──► owner of the packet
//! ```
//!
//! The device takes over queues of the interface with all of their frames, so the stack uses the
//! interface's own Ethernet address, and the kernel's addresses on the interface are unreachable
//! meanwhile. The kernel removes the program when the process ends, for any reason.
//!
//! A frame is at most one chunk (MTU 3822) and never a superframe, because this API has no
//! segmentation offload. In copy mode the kernel completes the checksums of sent frames (Linux
//! 6.8). The kernel gives no checksum status of received frames. A veth whose other end leaves
//! checksums partial (the default) needs `ethtool -K PEER tx off` there, or
//! [`AfXdpConfig::trust_checksums`]. Otherwise the stack drops such segments with the reason
//! `TCP_CSUM_UNFINISHED`, and reports the first as
//! [`Event::UnfinishedChecksums`](stack::cx::event::Event::UnfinishedChecksums). In generic mode
//! only the `ethtool` command works: superframes of the other end exceed a chunk, so the kernel
//! drops them ([`Event::FramesTooLong`](stack::cx::event::Event::FramesTooLong)).
//!
//! Not here: frames of several chunks (XDP_USE_SG), memory shared between sockets.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::xdp::SocketAddrXdpFlags;
use stack::{
    device::{Capabilities, LinkType},
    header::ethernet::MacAddr,
};

use super::interface::{Interface, Promiscuous};
use super::presence::Presence;
use super::setup_error::SetupError;

mod abi;
mod channels;
pub mod config;
mod device;
mod program;
mod queue;
mod receive;
mod ring;
mod socket;
mod transmit;
mod umem;

pub use config::{AfXdpConfig, BusyPoll, MTU_MAX, QUEUES_MAX, RING_DEFAULT, XdpMode};
use program::{Attached, Hook, Program};
use queue::{Queue, Unbound};

/// A device on queues of an interface that are taken over from the kernel.
///
/// ```no_run
/// use quietline::{Stack, device::{AfXdp, AfXdpConfig}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = AfXdp::open(&AfXdpConfig::new("eth1"))?;
/// println!("{}", device.describe());
/// let stack = Stack::builder().device(device).address("192.0.2.7/24".parse()?).build()?;
/// # let _ = stack;
/// # Ok(())
/// # }
/// ```
pub struct AfXdp {
    caps: Capabilities,
    mode: XdpMode,
    busy_poll: bool,
    trust_checksums: bool,
    /// Set by the thread that detects the deletion of the interface. Relaxed: it orders nothing.
    gone: AtomicBool,
    /// Whether [`Event::FramesTooLong`](stack::cx::event::Event::FramesTooLong) was reported.
    /// Relaxed: it orders nothing.
    reported_too_long: AtomicBool,
    /// Reports the deletion of the interface: an AF_XDP socket without traffic does not.
    presence: Presence,
    /// Declared before the sockets, so that the program is detached before they close.
    _attached: Attached,
    /// The program and its map from queues to sockets.
    _program: Program,
    _promiscuous: Option<Promiscuous>,
    queues: Box<[Queue]>,
}

impl AfXdp {
    /// Takes over queues of an interface, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// If a field is out of range or the kernel refuses a step: no AF_XDP, no privilege, no such
    /// mode, or another program or socket uses the interface. A failed call leaves nothing behind.
    pub fn open(config: &AfXdpConfig) -> Result<Arc<Self>, SetupError> {
        config.validate()?;
        let interface = Interface::find(&config.interface)?;
        let presence = Presence::watch(&interface)?;
        let mtu = mtu(config, &interface)?;
        let chunk_len = config::chunk_len(mtu)
            .ok_or_else(|| SetupError::field("mtu", mtu, "at most 3822 with af_xdp"))?;
        let first = u32::from(config.first_queue);
        let numbers = first..first + u32::from(queues(config, &interface)?);
        let unbound = numbers.clone().map(|_| Unbound::new(config, chunk_len));
        let unbound = unbound.collect::<Result<Vec<_>, _>>()?;
        let program = Program::load(numbers.end)?;
        let (attached, hook) = attach(&program, &interface, config.mode)?;
        let mut queues = Vec::with_capacity(unbound.len());
        let (mut zero_copy, mut tx_checksum) = (true, true);
        for (number, socket) in numbers.zip(unbound) {
            let (queue, bound) = socket.bind(&interface, number, how_to_bind(config.mode, hook))?;
            program.insert(number, queue.as_fd()).map_err(|e| {
                let step = format!("direct queue {number} of \"{}\" to its socket", interface.name);
                SetupError::system(step, e.raw_os_error())
            })?;
            zero_copy &= bound.zero_copy;
            tx_checksum &= bound.tx_checksum;
            queues.push(queue);
        }
        let mac = config.mac.unwrap_or(interface.mac);
        let promiscuous = (mac != interface.mac).then(|| Promiscuous::enter(&interface));
        let caps = Capabilities {
            name: interface.name,
            mtu,
            link: LinkType::Ethernet { mac: MacAddr(mac) },
            tx_checksum,
            tso4: false,
            tso6: false,
            uso: false,
            gso_max_bytes: mtu,
            jumbo6: true,
            queues: u16::try_from(queues.len()).unwrap_or(QUEUES_MAX),
            async_completion: true,
        };
        Ok(Arc::new(Self {
            caps,
            mode: match hook {
                Hook::Generic => XdpMode::Generic,
                Hook::Native if zero_copy => XdpMode::ZeroCopy,
                Hook::Native => XdpMode::Native,
            },
            busy_poll: config.busy_poll.is_some(),
            trust_checksums: config.trust_checksums,
            gone: AtomicBool::new(false),
            reported_too_long: AtomicBool::new(false),
            presence,
            _attached: attached,
            _program: program,
            _promiscuous: promiscuous.transpose()?,
            queues: queues.into_boxed_slice(),
        }))
    }

    /// Returns the mode of the device, never `Auto`.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Returns the name of the interface.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.caps.name
    }

    /// Returns a one-line description of the device for users.
    #[must_use]
    pub fn describe(&self) -> String {
        let mode = match self.mode {
            XdpMode::ZeroCopy => "native mode with zero-copy",
            XdpMode::Native => "native mode, copying",
            XdpMode::Generic | XdpMode::Auto => "generic mode, copying",
        };
        let queues = self.caps.queues;
        format!("af_xdp on \"{}\": {mode}, {queues} queue(s)", self.caps.name)
    }

    /// Returns the descriptor that becomes readable when a frame waits on `queue`, for a worker to
    /// sleep on. It reports nothing after the interface was deleted.
    ///
    /// # Panics
    /// If there is no such queue.
    #[must_use]
    pub fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        self.queues[usize::from(queue)].as_fd()
    }

    /// Returns a descriptor that becomes readable when the interface is deleted or moved to another
    /// network namespace, until [`AfXdp::check_link`].
    #[must_use]
    pub fn link_fd(&self) -> BorrowedFd<'_> {
        self.presence.as_fd()
    }

    /// Reads the events that made [`AfXdp::link_fd`] readable, and checks whether the interface is
    /// gone.
    pub fn check_link(&self) {
        if self.presence.is_gone() {
            self.set_gone();
        }
    }

    /// Returns whether the interface was deleted or moved away. No more frames arrive then, and
    /// frames to be sent are dropped.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for AfXdp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfXdp")
            .field("name", &self.caps.name)
            .field("mode", &self.mode)
            .field("queues", &self.queues.len())
            .finish_non_exhaustive()
    }
}

/// Returns the stack's MTU: the configured one, at most the interface's own.
fn mtu(config: &AfXdpConfig, interface: &Interface) -> Result<u32, SetupError> {
    let mtu = config.mtu.unwrap_or(interface.mtu);
    if mtu > interface.mtu {
        return Err(SetupError::field("mtu", mtu, "at most the interface's own"));
    }
    Ok(mtu)
}

/// Returns the number of queues to take over.
fn queues(config: &AfXdpConfig, interface: &Interface) -> Result<u16, SetupError> {
    if let Some(queues) = config.queues {
        return Ok(queues);
    }
    // All queues in use, because frames of other queues would go to the kernel. `rx_queues` also
    // counts queues that are not enabled.
    let used = channels::receive_queues(&interface.name).unwrap_or(interface.rx_queues);
    let rest = used.saturating_sub(u32::from(config.first_queue));
    u16::try_from(rest).ok().filter(|rest| (1..=QUEUES_MAX).contains(rest)).ok_or_else(|| {
        SetupError::field("first-queue", config.first_queue, "a queue of the interface")
    })
}

/// Attaches the program at the hook that `mode` names, or at the best one that works.
fn attach(
    program: &Program,
    interface: &Interface,
    mode: XdpMode,
) -> Result<(Attached, Hook), SetupError> {
    let hooks: &[Hook] = match mode {
        XdpMode::Auto => &[Hook::Native, Hook::Generic],
        XdpMode::Generic => &[Hook::Generic],
        XdpMode::Native | XdpMode::ZeroCopy => &[Hook::Native],
    };
    let mut refusal = Errno::INVAL;
    for &hook in hooks {
        match program.attach(interface, hook) {
            Ok(attached) => return Ok((attached, hook)),
            Err(error) => refusal = error,
        }
        if matches!(refusal, Errno::BUSY | Errno::EXIST | Errno::PERM) {
            break;
        }
    }
    let step = format!("attach an XDP program to \"{}\"", interface.name);
    let error = SetupError::system(step, refusal.raw_os_error());
    Err(match refusal {
        Errno::BUSY | Errno::EXIST => error.with_hint(format!(
            "another XDP program is attached (ip link set dev {} xdp off)",
            interface.name
        )),
        Errno::OPNOTSUPP => error.with_hint("the driver has no native XDP; mode=generic works"),
        // Limits of the driver, as veth's of the other end's MTU and queues.
        Errno::RANGE | Errno::NOSPC | Errno::INVAL if hooks == [Hook::Native] => {
            error.with_hint("the driver refuses native XDP on this interface; mode=generic works")
        }
        _ => error,
    })
}

/// Returns the flags of the bind. Empty flags mean: zero-copy if the driver supports it.
const fn how_to_bind(mode: XdpMode, hook: Hook) -> SocketAddrXdpFlags {
    match (mode, hook) {
        (XdpMode::ZeroCopy, _) => SocketAddrXdpFlags::XDP_ZEROCOPY,
        (XdpMode::Auto, Hook::Native) => SocketAddrXdpFlags::empty(),
        _ => SocketAddrXdpFlags::XDP_COPY,
    }
}
