//! Lets sockets and stacks cross `catch_unwind`, as those of `std::net`.
//!
//! The compiler does not derive these traits, because the types hold cells and trait objects. No
//! code of the application runs while a call owns a socket or a core, so a panic of the application
//! leaves both consistent. A panic inside a call (of a device of the application, or by a fault of
//! the stack) releases both as it unwinds (`sync::CoreGuard`, `sync::Owned`): no lock stays taken,
//! and cores that the call still had to run are released. The packet in process is lost, and so are
//! wake-ups that were not sent yet.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::{
    attachments::Attachment, builder::StackBuilder, handle::Stack, listener::TcpListener,
    send_buffer::SendBuffer, socket::TcpSocket, stream::TcpStream, udp::UdpSocket,
};

macro_rules! unwind_safe {
    ($($name:ty),*) => {$(
        impl UnwindSafe for $name {}
        impl RefUnwindSafe for $name {}
    )*};
}

unwind_safe!(
    Attachment,
    SendBuffer,
    Stack,
    StackBuilder,
    TcpListener,
    TcpSocket,
    TcpStream,
    UdpSocket
);
