//! Devices as the builder and the workers use them: a [`Device`], the descriptors that workers
//! sleep on, and the removal of devices that are gone.
//!
//! Below: [`PollFd::is_gone`] and [`Attachment::gone_when`], by which a device reports that its
//! interface was deleted. Above: the workers and [`Stack::poll`](crate::Stack::poll), which call
//! them between two turns, because a device cannot be removed within a turn.
//!
//! Not here: the data path of a device (`stack::device`).

use std::{
    fmt,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
};

use stack::{
    Cx,
    base::ids::DeviceIndex,
    device::{Device, Wire},
    host::Host,
};

use crate::device::{AfPacket, AfXdp, Tun};

/// Descriptors of a device, on which the workers of a stack sleep.
///
/// A device whose queues have [`RxSignal::Descriptor`](crate::RxSignal::Descriptor) needs one. The
/// workers call the methods between two turns of their cores, each for the queues that its core
/// polls.
///
/// # Errors
///
/// A descriptor whose interface was deleted permanently reports an error to poll(2), so that a
/// worker would spin. Once [`is_gone`](Self::is_gone) is true, the worker does not watch it again.
pub trait PollFd: Send + Sync {
    /// Returns the descriptor that is readable as long as `queue` has a frame. It must stay open
    /// and the same as long as the device exists.
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_>;

    /// Called when the descriptor of `queue` has become readable, before the queue is polled. A
    /// device whose descriptor reports more than frames consumes those reports here.
    fn acknowledge(&self, _queue: u16) {}

    /// Returns whether the interface was deleted. The stack then removes the device, as
    /// [`Stack::remove_device`](crate::Stack::remove_device) does. Called in every turn, so the
    /// implementation should load an atomic and make no system call.
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns a descriptor that becomes readable when the interface may have been deleted, for a
    /// device whose other descriptors do not report that.
    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called when [`link_fd`](Self::link_fd) has become readable. The device determines whether
    /// its interface was deleted, and reads the descriptor until it is no longer readable.
    fn check_link(&self) {}
}

impl PollFd for Tun {
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        Self::poll_fd(self, queue)
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

impl PollFd for AfPacket {
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        Self::poll_fd(self, queue)
    }

    fn acknowledge(&self, queue: u16) {
        Self::acknowledge(self, queue);
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

impl PollFd for AfXdp {
    fn poll_fd(&self, queue: u16) -> BorrowedFd<'_> {
        Self::poll_fd(self, queue)
    }

    fn link_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(Self::link_fd(self))
    }

    fn check_link(&self) {
        Self::check_link(self);
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}

/// A device as [`StackBuilder::device`](crate::StackBuilder::device) takes it.
///
/// The devices of this crate convert by `From`. Any other device is wrapped by [`new`](Self::new):
///
/// - A device in memory, or one with a thread of its own, needs no more: it signals arrivals by its
///   [`Doorbell`](crate::device::Doorbell).
/// - A device with descriptors gives them with [`poll_fds`](Self::poll_fds), and the workers sleep
///   on them.
/// - A device that can disappear while it is in use says so with [`gone_when`](Self::gone_when), or
///   with [`PollFd::is_gone`].
///
/// # Examples
///
/// A complete device: one end of a cable inside the process. A frame that one stack sends is copied
/// into a queue, and the doorbell of the other end wakes the worker there.
///
/// ```
/// use std::{
///     collections::VecDeque,
///     io::{Read, Write},
///     sync::{Arc, Mutex, OnceLock},
/// };
///
/// use quietline::device::{
///     Batch, Capabilities, Cx, Device, Doorbell, LinkType, PacketList, QueueId, RxSignal,
/// };
/// use quietline::{Attachment, MacAddr, Stack, TcpListener, TcpStream};
///
/// /// One direction: frames on their way, and the doorbell of the core that receives them.
/// #[derive(Debug, Default)]
/// struct Lane {
///     frames: Mutex<VecDeque<Vec<u8>>>,
///     doorbell: OnceLock<Doorbell>,
/// }
///
/// #[derive(Debug)]
/// struct Cable {
///     caps: Capabilities,
///     incoming: Arc<Lane>,
///     outgoing: Arc<Lane>,
/// }
///
/// impl Device for Cable {
///     fn caps(&self) -> &Capabilities {
///         &self.caps
///     }
///
///     fn receive(&self, _: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
///         let mut frames = self.incoming.frames.lock().unwrap();
///         out.take_while_room(budget, || {
///             // Without packet memory the frame stays, and the next turn finds it.
///             let mut packet = cx.pool.alloc_from(frames.front()?)?;
///             packet.meta_mut().timestamp = cx.now;
///             frames.pop_front();
///             Some(packet)
///         })
///     }
///
///     fn transmit(&self, _: QueueId, cx: &mut Cx, list: &mut PacketList) {
///         let mut frames = self.outgoing.frames.lock().unwrap();
///         // A full cable leaves packets in the list: the stack keeps them.
///         while frames.len() < 256 {
///             let Some(packet) = list.pop_front() else { break };
///             frames.push_back(packet.to_vec());
///             cx.pool.free(packet);
///         }
///         drop(frames);
///         if let Some(doorbell) = self.outgoing.doorbell.get() {
///             doorbell.ring(cx);
///         }
///     }
///
///     /// A lane can be full, so packets may have to wait.
///     fn needs_qdisc(&self) -> bool {
///         true
///     }
///
///     /// Without packet memory a frame stays here, so a ring for each arrival is not enough.
///     fn rx_signal(&self, _: QueueId) -> RxSignal {
///         RxSignal::None
///     }
///
///     fn attach(&self, _: QueueId, doorbell: Doorbell) {
///         let _ = self.incoming.doorbell.set(doorbell);
///     }
///
///     fn is_attached(&self) -> bool {
///         self.incoming.doorbell.get().is_some()
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let lanes = [Arc::new(Lane::default()), Arc::new(Lane::default())];
/// let stack = |incoming: usize, address: &str| -> Result<Stack, Box<dyn std::error::Error>> {
///     let mac = MacAddr([2, 0, 0, 0, 0, u8::try_from(incoming)?]);
///     let cable = Arc::new(Cable {
///         caps: Capabilities::plain("cable", 1500, LinkType::Ethernet { mac }),
///         incoming: Arc::clone(&lanes[incoming]),
///         outgoing: Arc::clone(&lanes[1 - incoming]),
///     });
///     Ok(Stack::builder().device(Attachment::new(cable)).address(address.parse()?).build()?)
/// };
/// let (client, server) = (stack(0, "10.0.0.1/24")?, stack(1, "10.0.0.2/24")?);
/// let listener = TcpListener::bind(&server, "10.0.0.2:7")?;
/// let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
/// let (mut accepted, _) = listener.accept()?;
/// stream.write_all(b"by a cable of my own")?;
/// let mut bytes = [0; 20];
/// accepted.read_exact(&mut bytes)?;
/// assert_eq!(&bytes, b"by a cable of my own");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Attachment {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) fds: Option<Arc<dyn PollFd>>,
    gone: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Attachment {
    /// Wraps a device that has no descriptors and never disappears.
    #[must_use]
    pub fn new<D: Device + 'static>(device: Arc<D>) -> Self {
        Self::from(device as Arc<dyn Device>)
    }

    /// Makes the workers sleep on these descriptors. Usually the device itself implements
    /// [`PollFd`].
    ///
    /// A stack of [`StackBuilder::manual`](crate::StackBuilder::manual) has no workers: its
    /// application sleeps on the descriptors.
    #[must_use]
    pub fn poll_fds<F: PollFd + 'static>(mut self, fds: Arc<F>) -> Self {
        self.fds = Some(fds);
        self
    }

    /// Makes the stack remove the device once `gone` returns true, as
    /// [`Stack::remove_device`](crate::Stack::remove_device) does, with
    /// [`Event::DeviceGone`](crate::Event::DeviceGone).
    ///
    /// The workers call `gone` in every turn and before they sleep, so it should load an atomic and
    /// make no system call. A device that detects the removal on another thread sets the atomic and
    /// calls [`Doorbell::wake_gone`](crate::device::Doorbell::wake_gone).
    #[must_use]
    pub fn gone_when(mut self, gone: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.gone = Some(Arc::new(gone));
        self
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns whether the device reports that it is gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.fds.as_ref().is_some_and(|fds| fds.is_gone())
            || self.gone.as_ref().is_some_and(|gone| gone())
    }

    /// Returns whether a worker must watch descriptors of this device or call its `gone`.
    pub(crate) fn concerns_workers(&self) -> bool {
        self.fds.is_some() || self.gone.is_some()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment").field("device", &self.device).finish_non_exhaustive()
    }
}

impl From<Arc<dyn Device>> for Attachment {
    fn from(device: Arc<dyn Device>) -> Self {
        Self { device, fds: None, gone: None }
    }
}

impl From<Arc<Wire>> for Attachment {
    fn from(wire: Arc<Wire>) -> Self {
        Self::new(wire)
    }
}

impl From<Arc<Tun>> for Attachment {
    fn from(device: Arc<Tun>) -> Self {
        Self::new(Arc::clone(&device)).poll_fds(device)
    }
}

impl From<Arc<AfPacket>> for Attachment {
    fn from(device: Arc<AfPacket>) -> Self {
        Self::new(Arc::clone(&device)).poll_fds(device)
    }
}

impl From<Arc<AfXdp>> for Attachment {
    fn from(device: Arc<AfXdp>) -> Self {
        Self::new(Arc::clone(&device)).poll_fds(device)
    }
}

/// Devices of a running stack. They keep the descriptors that the workers sleep on open. `None` for
/// a removed device.
#[derive(Debug)]
pub(crate) struct Attachments(Mutex<Vec<Option<Attachment>>>);

impl Attachments {
    pub(crate) fn new(attachments: Vec<Attachment>) -> Self {
        Self(Mutex::new(attachments.into_iter().map(Some).collect()))
    }

    /// Releases the device with this index after the host has removed it. The host's device 0 is
    /// loopback.
    pub(crate) fn forget(&self, index: DeviceIndex) {
        let mut attachments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        attachments[index.0 as usize - 1] = None;
    }

    /// Removes the devices that are gone. Returns true if there was one. Called between two turns.
    pub(crate) fn remove_gone(&self, host: &Host, cx: &mut Cx) -> bool {
        let gone: Vec<_> = {
            let attachments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_gone = |attachment: &Option<Attachment>| {
                attachment.as_ref().is_some_and(Attachment::is_gone)
            };
            (1..)
                .map(DeviceIndex)
                .zip(&*attachments)
                .filter(|(_, own)| is_gone(own))
                .map(|(index, _)| index)
                .collect()
        };
        for &index in &gone {
            // ENODEV: another worker has removed it.
            let _ = host.remove_device(cx, index);
            self.forget(index);
        }
        !gone.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use stack::cx::event::Event;

    use super::*;
    use crate::Stack;
    use crate::device::namespace::{in_namespace, run, skip};
    use crate::device::{AfPacket, AfPacketConfig, AfXdp, AfXdpConfig, XdpMode};

    /// Deletes the interface of a stack without workers, which the application only polls.
    fn manual_stack_loses(attachment: impl Into<Attachment>) {
        const TIMEOUT: Duration = Duration::from_secs(10);
        let address = "10.77.0.2/24".parse().expect("an address");
        let stack = Stack::builder().device(attachment).address(address).manual();
        let stack = stack.build().expect("valid");
        let mut events = stack.events();
        let _ = stack.poll();
        run("ip link del right0");
        let deadline = Instant::now() + TIMEOUT;
        let gone = Event::DeviceGone { device: "left0".to_owned() };
        while events.try_next() != Some(gone.clone()) {
            assert!(Instant::now() < deadline, "no event reports the removal");
            let _ = stack.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn make_pair() {
        run("ip link add left0 type veth peer name right0");
        run("ip link set left0 up");
        run("ip link set right0 up");
    }

    #[test]
    fn a_manual_stack_that_polls_loses_its_af_packet_device() {
        in_namespace(|| {
            make_pair();
            let device = AfPacket::open(&AfPacketConfig::new("left0")).expect("privileges");
            manual_stack_loses(device);
        });
    }

    #[test]
    fn a_manual_stack_that_polls_loses_its_af_xdp_device() {
        in_namespace(|| {
            make_pair();
            let config = AfXdpConfig { mode: XdpMode::Generic, ..AfXdpConfig::new("left0") };
            match AfXdp::open(&config) {
                Err(error) if error.errno() == libc::EAFNOSUPPORT => skip(&error.to_string()),
                device => manual_stack_loses(device.expect("privileges")),
            }
        });
    }
}
