//! Calls of the application and of diagnostic tools: data, options, `TCP_INFO`, invariants.
//!
//! Above: `stack::socket`. None of these calls blocks or sends: the caller runs `output`
//! afterwards.
//!
//! Not here: opening (`open`) and closing (`close`).

pub mod api;
pub mod audit;
pub mod info;
mod sockopt;
mod urgent;
