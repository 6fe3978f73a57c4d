//! Where packets go: the forwarding table, the dst entries made from it, and who holds them.

pub(crate) mod exception;
pub mod fib;
pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod router;
pub(crate) mod table;

pub(crate) use router::Path;
