//! A stack on an interface that exists, by AF_XDP: frames pass through rings in shared memory, around the kernel's stack.
//!
//! Below: one AF_XDP socket for each queue of the interface, and our own XDP program that sends its frames there. Above: the
//! cores of a stack. Linux: net/xdp, Documentation/networking/af_xdp.rst.
//!
//! ```text
//!   interface ── XDP program ──► receive ring ── copy ──► packet memory          one system call sends a batch;
//!       ▲    (queue in map?)     fill ring ◄── the chunk is free again           receiving takes none
//!       │      no: the kernel
//!       └──────────────────────  transmit ring ◄── copy ── packet memory
//!                                completion ring ──► whoever paid for the packet
//! ```
//!
//! What is taken is the interface's queues: all of their frames are ours and none the kernel's, so the stack uses the
//! interface's own Ethernet address, and the kernel's addresses on it are dead for as long. The program goes away with the
//! process, however it ends.
//!
//! Frames are at most one chunk (MTU 3822) and never superframes: this API has no segmentation offload. Checksums of what is
//! sent are left to the kernel where it copies (Linux 6.8); of what arrives it says nothing. A veth whose other end leaves
//! them open (the default) needs `ethtool -K PEER tx off` there, or [`AfXdpConfig::trust_checksums`]; the stack drops such segments, with
//! the reason `TCP_CSUM_UNFINISHED`, and reports the first as [`Event::UnfinishedChecksums`](stack::host::Event::UnfinishedChecksums). In
//! generic mode only the former works: superframes of the other end exceed a chunk, so the kernel drops them
//! ([`Event::FramesTooLong`](stack::host::Event::FramesTooLong)).
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
mod glue;
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

/// Queues of an interface, taken from the kernel.
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
    /// Set by whoever finds it out, read by all. Relaxed: it orders nothing.
    gone: AtomicBool,
    /// [`Event::FramesTooLong`](stack::host::Event::FramesTooLong) has been reported. Relaxed: it orders nothing.
    told_too_long: AtomicBool,
    /// Tells when the interface is deleted: an AF_XDP socket without traffic says nothing.
    presence: Presence,
    /// Before the sockets: while it is attached they are there.
    _attached: Attached,
    /// Which queues have which socket.
    _program: Program,
    _promiscuous: Option<Promiscuous>,
    queues: Box<[Queue]>,
}

impl AfXdp {
    /// Takes the queues of an interface, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// A field is out of range or the kernel refuses a step: there is no AF_XDP, no privilege, no such mode, another program
    /// or socket has the place. Nothing is left behind.
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
                let step = format!("direct queue {number} of \"{}\" here", interface.name);
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
            told_too_long: AtomicBool::new(false),
            presence,
            _attached: attached,
            _program: program,
            _promiscuous: promiscuous.transpose()?,
            queues: queues.into_boxed_slice(),
        }))
    }

    /// The mode that the interface has given us: never `Auto`.
    #[must_use]
    pub const fn mode(&self) -> XdpMode {
        self.mode
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.caps.name
    }

    /// What was taken, as one line for a person.
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

    /// The descriptor that becomes readable when a frame waits on `queue`, to sleep on. It is silent once the interface is
    /// gone.
    ///
    /// # Panics
    /// There is no such queue.
    #[must_use]
    pub fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        self.queues[usize::from(queue)].as_fd()
    }

    /// A descriptor that becomes readable when the interface is deleted or moved to another network namespace, until
    /// [`AfXdp::check_link`].
    #[must_use]
    pub fn link_fd(&self) -> BorrowedFd<'_> {
        self.presence.as_fd()
    }

    /// Takes note of what has made [`AfXdp::link_fd`] readable, and finds out whether the interface is gone.
    pub fn check_link(&self) {
        if self.presence.is_gone() {
            self.set_gone();
        }
    }

    /// Whether the interface was deleted or moved away. Nothing arrives any more, and what is sent is dropped.
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

/// The stack's MTU: what is asked for, within what the interface carries.
fn mtu(config: &AfXdpConfig, interface: &Interface) -> Result<u32, SetupError> {
    let mtu = config.mtu.unwrap_or(interface.mtu);
    if mtu > interface.mtu {
        return Err(SetupError::field("mtu", mtu, "at most the interface's own"));
    }
    Ok(mtu)
}

/// How many queues to take.
fn queues(config: &AfXdpConfig, interface: &Interface) -> Result<u16, SetupError> {
    if let Some(queues) = config.queues {
        return Ok(queues);
    }
    // All of them, since frames of the others would be the kernel's. `rx_queues` counts those that could be switched on, too.
    let used = channels::receive_queues(&interface.name).unwrap_or(interface.rx_queues);
    let rest = used.saturating_sub(u32::from(config.first_queue));
    u16::try_from(rest).ok().filter(|rest| (1..=QUEUES_MAX).contains(rest)).ok_or_else(|| {
        SetupError::field("first-queue", config.first_queue, "a queue of the interface")
    })
}

/// Puts the program where `mode` says, or in the best place.
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
            "another XDP program is there (ip link set dev {} xdp off)",
            interface.name
        )),
        Errno::OPNOTSUPP => error.with_hint("the driver has no native XDP; mode=generic works"),
        // Limits of the driver's own, as veth's of the other end's MTU and queues.
        Errno::RANGE | Errno::NOSPC | Errno::INVAL if hooks == [Hook::Native] => {
            error.with_hint("the driver cannot, as the interface is set up; mode=generic works")
        }
        _ => error,
    })
}

/// What to ask of a bind. Nothing at all means: without copies if the driver can.
const fn how_to_bind(mode: XdpMode, hook: Hook) -> SocketAddrXdpFlags {
    match (mode, hook) {
        (XdpMode::ZeroCopy, _) => SocketAddrXdpFlags::XDP_ZEROCOPY,
        (XdpMode::Auto, Hook::Native) => SocketAddrXdpFlags::empty(),
        _ => SocketAddrXdpFlags::XDP_COPY,
    }
}
