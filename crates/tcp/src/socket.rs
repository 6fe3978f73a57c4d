//! Calls of the application and of its tools: data, options, `TCP_INFO`, the invariants.
//!
//! Above: `stack::socket`. Below: everything that the calls start, `input` and `close` excepted.

pub(crate) mod urgent;
