//! Calls of the application and of its tools: data, options, `TCP_INFO`, the invariants.
//!
//! Above: `stack::socket`. None of these blocks or sends: the caller runs `output` after them.
//!
//! Not here: opening (`open`) and closing (`close`).

pub mod api;
pub mod audit;
pub mod info;
mod sockopt;
mod urgent;
