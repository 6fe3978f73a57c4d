//! Where packets go: the forwarding table, the dst entries made from it, and who holds them.

pub mod dst;
pub(crate) mod exception;
pub mod fib;
pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod packet_dst;
pub(crate) mod table;

pub use dst::Dst;
pub(crate) use dst::{DstHandle, DstRef, Path};
pub(crate) use packet_dst::{OnceDst, PacketDst, leave_rcu};
