//! A stack on a device of the application's own: frames are datagrams on a socket pair. [`Device`]
//! moves frames, and [`PollFd`] gives the workers a descriptor to sleep on. The other end may be
//! another process. `quietline::device::conformance` tests such a device (tests/outside-device).
//!
//! Run it with `cargo run -p quietline --example custom_device`. It prints:
//!
//! ```text
//! the server reads "through a device of my own"
//! ```

use std::{
    error::Error,
    io::{Read, Write},
    os::{fd::AsFd, fd::BorrowedFd, unix::net::UnixDatagram},
    sync::{Arc, OnceLock},
};

use quietline::device::{Batch, Cx, Doorbell, LinkType, PacketList, QueueId};
use quietline::{Attachment, Capabilities, Device, MacAddr, PollFd, RxSignal};
use quietline::{Stack, TcpListener, TcpStream};

#[derive(Debug)]
struct SocketDevice {
    caps: Capabilities,
    socket: UnixDatagram,
    attached: OnceLock<Doorbell>,
}

impl Device for SocketDevice {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let mut frame = [0; 2048];
        out.take_while_room(budget, || {
            // An error means that no datagram waits: the socket does not block.
            let count = self.socket.recv(&mut frame).ok()?;
            let mut packet = cx.pool.alloc_from(&frame[..count])?;
            packet.meta_mut().timestamp = cx.now;
            Some(packet)
        })
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            if self.socket.send(&packet.to_vec()).is_err() {
                // The socket is full: the rest stays in the list, and the stack calls again.
                return list.push_front(packet);
            }
            cx.pool.free(packet);
        }
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.attached.set(doorbell);
    }

    fn is_attached(&self) -> bool {
        self.attached.get().is_some()
    }
}

impl PollFd for SocketDevice {
    fn poll_fd(&self, _queue: u16) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn stack(socket: UnixDatagram, number: u8) -> Result<Stack, Box<dyn Error>> {
    socket.set_nonblocking(true)?;
    let mac = MacAddr([2, 0, 0, 0, 0, number]);
    let caps = Capabilities::plain("own", 1500, LinkType::Ethernet { mac });
    let device = Arc::new(SocketDevice { caps, socket, attached: OnceLock::new() });
    let attachment = Attachment::new(Arc::clone(&device)).poll_fds(device);
    Ok(Stack::builder()
        .device(attachment)
        .address(format!("10.0.0.{number}/24").parse()?)
        .build()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (left, right) = UnixDatagram::pair()?;
    let (client, server) = (stack(left, 1)?, stack(right, 2)?);
    let listener = TcpListener::bind(&server, "10.0.0.2:7")?;
    let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
    let (mut accepted, _) = listener.accept()?;
    stream.write_all(b"through a device of my own")?;
    drop(stream);
    let mut text = String::new();
    accepted.read_to_string(&mut text)?;
    println!("the server reads {text:?}");
    Ok(())
}
