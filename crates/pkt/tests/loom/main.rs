//! Loom models of all memory that two threads of this crate share.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quietline-pkt --release --test loom`
//!
//! Packet bodies and page data are tracked cells in these builds: a model fails if memory is reused
//! without being ordered after the last access by its previous holder.
#![cfg(loom)]

mod descriptors;
mod pages;
mod pairs;
mod rig;
