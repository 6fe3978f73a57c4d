//! The C interface of quietline: stacks, sockets with the calls of BSD and the prefix `ql_`, epoll,
//! and packet ports. `include/quietline.h` is generated from the comments and signatures here.
//!
//! Above: programs in C and in languages that call C. Below: the socket calls of crate `posix`, the
//! stacks and devices of crate `quietline`, host files of crate `quietline-config`.
//!
//! # Rules of every function
//!
//! - A call that fails returns -1, or a null pointer, with `errno` set to the number that Linux's
//!   call of that name has. [`ql_error`](stack::ql_error) returns a line of text about the last
//!   failed call that builds a stack.
//! - A null pointer that the call needs is `EFAULT`. Handles of another kind, and handles that were
//!   freed, are undefined behavior, as in every C library.
//! - A panic does not cross the boundary: it becomes `EIO`, or ends the process in a library built
//!   with `panic = "abort"`, as the release profile does.
//!
//! # What a program promises
//!
//! The SAFETY comments refer to these promises. **(a)** A handle is null or comes from this
//! library, and was not freed. **(b)** A pointer with a length is null or points to that many bytes
//! or elements, which are readable, and writable where the call writes, for the time of the call,
//! and no other thread changes them meanwhile. **(c)** A pointer without a length is null or points
//! to one valid value, writable where the call writes. **(d)** A string is null or ends with a zero
//! byte.
//!
//! # Modules
//!
//! `boundary` and the modules with `ql_` functions (`stack`, `port`, `socket`, `transfer`,
//! `events`) have all unsafe code. `table` maps descriptors to objects, and `call` blocks.
//!
//! Not here: a preload library for existing programs; control messages.

#![allow(
    clippy::missing_safety_doc,
    reason = "the promises of every function are at the head of the crate, and the header has none"
)]

mod boundary;
mod call;
mod events;
mod port;
mod socket;
mod stack;
mod table;
mod transfer;

pub use events::*;
pub use port::*;
pub use socket::*;
pub use stack::*;
pub use transfer::*;
