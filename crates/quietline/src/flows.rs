//! Intercepted flows: what clients open to any address through a device, for the application to
//! accept, relay or refuse.
//!
//! Above: applications. Below: `stack::socket::flows`. The asynchronous form is in module `tokio`.
//!
//! Not here: dialing, and the relay (`relay`).

use std::{
    fmt, io,
    iter::FusedIterator,
    sync::Arc,
    task::{Context, Poll},
};

use stack::{Errno, Readiness, base::ids::CoreId, socket::flows::FlowQueue};
use sync::WatchKey;

use crate::{
    clock::{self, with_cx},
    handle::Stack,
    observed,
    wait::{Wait, wait_until},
};

pub use packet::{EchoRequest, OtherPacket};
pub use request::TcpRequest;
pub use session::UdpSession;

mod packet;
mod request;
mod session;

/// An intercepted flow that is new.
#[derive(Debug)]
#[non_exhaustive]
pub enum Flow {
    /// A TCP connection whose SYN is not answered yet.
    Tcp(TcpRequest),
    /// The datagrams of a client that has no session yet.
    Udp(UdpSession),
    /// An echo request (ping).
    Echo(EchoRequest),
    /// A packet of another protocol.
    Other(OtherPacket),
}

/// The new flows of all devices that intercept
/// ([`StackBuilder::intercept`](crate::StackBuilder::intercept)), from [`Stack::flows`]. Any thread
/// may take flows; each flow goes to one of them.
///
/// When the last handle is dropped, the flows that were not taken are refused, and the devices
/// intercept nothing until [`Stack::flows`] is called again. Flows that were taken go on.
#[derive(Clone)]
pub struct Flows {
    shared: Arc<Shared>,
}

struct Shared {
    stack: Stack,
    queue: Arc<FlowQueue>,
}

impl Stack {
    /// Returns a handle to the intercepted flows.
    ///
    /// # Errors
    /// `InvalidInput` if no device intercepts; `ENETDOWN` if the stack was shut down.
    pub fn flows(&self) -> io::Result<Flows> {
        let Some(queue) = self.host().flow_queue() else {
            let text = "no device of the stack intercepts flows (StackBuilder::intercept)";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        queue.open()?;
        let shared = Shared { stack: self.clone(), queue: Arc::clone(queue) };
        Ok(Flows { shared: Arc::new(shared) })
    }
}

impl Flows {
    /// Returns the next flow, and waits for one.
    ///
    /// # Errors
    /// `ENETDOWN` if the stack was shut down.
    pub fn next(&self) -> io::Result<Flow> {
        let Shared { stack, queue } = &*self.shared;
        loop {
            match self.take() {
                Err(Errno::EAGAIN) => {}
                result => return Ok(result?),
            }
            let near = with_cx(|cx| cx.home(stack.host()));
            let wait = Wait {
                began: clock::now(),
                stack,
                core: near.unwrap_or(CoreId(0)),
                events: queue.waiters(),
                deadline: None,
                polling: request::polling,
            };
            wait_until(&wait, || queue.is_ready());
        }
    }

    /// Returns the next flow.
    ///
    /// # Errors
    /// `WouldBlock` if none waits; as [`next`](Self::next).
    pub fn try_next(&self) -> io::Result<Flow> {
        Ok(self.take()?)
    }

    fn take(&self) -> Result<Flow, Errno> {
        let Shared { stack, queue } = &*self.shared;
        Ok(Flow::new(stack, queue.try_next()?))
    }

    /// Returns an iterator over the flows. It waits for each, and ends with the stack.
    #[must_use]
    pub const fn incoming(&self) -> IncomingFlows<'_> {
        IncomingFlows { flows: self }
    }

    /// Returns READ if a flow waits, and HUP once the stack was shut down.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.shared.queue.readiness()
    }

    /// Returns the readiness if a flow waits or the stack was shut down, and otherwise registers
    /// the waker of `task`, as [`TcpStream::poll_ready`](crate::TcpStream::poll_ready).
    pub fn poll_ready(&self, task: &mut Context<'_>) -> Poll<Readiness> {
        observed::poll_ready(&*self.shared.queue, WatchKey::BY_WAKER, Readiness::READ, task)
    }

    pub(crate) fn socket(&self) -> &Arc<FlowQueue> {
        &self.shared.queue
    }
}

impl Flow {
    fn new(stack: &Stack, flow: stack::socket::flows::NewFlow) -> Self {
        use stack::socket::flows::NewFlow;
        match flow {
            NewFlow::Tcp(request) => Self::Tcp(TcpRequest::new(stack.clone(), request)),
            NewFlow::Udp(session) => Self::Udp(UdpSession::new(stack.clone(), session)),
            NewFlow::Echo(packet) => Self::Echo(EchoRequest::new(stack.clone(), packet)),
            NewFlow::Other(packet) => Self::Other(OtherPacket::new(stack.clone(), packet)),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        with_cx(|cx| self.queue.close(self.stack.host(), cx));
    }
}

impl fmt::Debug for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flows").field("readiness", &self.readiness()).finish_non_exhaustive()
    }
}

/// Iterator over intercepted flows, which ends when the stack is shut down.
#[derive(Debug)]
pub struct IncomingFlows<'a> {
    flows: &'a Flows,
}

impl Iterator for IncomingFlows<'_> {
    type Item = Flow;

    fn next(&mut self) -> Option<Flow> {
        self.flows.next().ok()
    }
}

impl FusedIterator for IncomingFlows<'_> {}

impl<'a> IntoIterator for &'a Flows {
    type Item = Flow;
    type IntoIter = IncomingFlows<'a>;

    fn into_iter(self) -> IncomingFlows<'a> {
        self.incoming()
    }
}
