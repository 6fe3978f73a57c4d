//! Where packets go: the forwarding table and the resolved paths that sockets keep.

pub mod dst;
pub(crate) mod exception;
pub mod fib;
pub(crate) mod reply;

pub use dst::Dst;
