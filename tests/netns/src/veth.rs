//! A veth pair: the kernel's end in one namespace, quietline's in another, so that no other host is
//! on the link.
//!
//! ```text
//!    kernel 10.77.0.1  peer0 ──── ql0  10.77.0.2 quietline, by af_packet
//! ```
//!
//! Not here: the programs on it.

use anyhow::Result;

use crate::lab::{KERNEL, STACK};
use crate::namespace::Namespace;
use crate::quietline::Quietline;

/// See the module head.
#[derive(Debug)]
pub struct Veth {
    /// Namespace of quietline's end.
    pub ours: Namespace,
}

impl Veth {
    /// Name of quietline's end.
    pub const OURS: &str = "ql0";

    /// Name of the kernel's end.
    pub const PEER: &str = "peer0";

    /// Joins a new namespace to the kernel's.
    ///
    /// # Errors
    /// When the pair cannot be made.
    pub fn open(kernel: &Namespace) -> Result<Self> {
        let ours = Namespace::create()?;
        let (own, peer) = (Self::OURS, Self::PEER);
        kernel.ip(&format!("link add {peer} type veth peer name {own}"))?;
        kernel.ip(&format!("link set {own} netns {}", ours.name()))?;
        kernel.ip(&format!("address add {KERNEL}/24 dev {peer}"))?;
        kernel.ip(&format!("link set {peer} up"))?;
        ours.ip(&format!("link set {own} up"))?;
        Ok(Self { ours })
    }

    /// Starts `quietline serve` with these arguments on quietline's end. `options` begin with a
    /// comma or are empty.
    ///
    /// # Errors
    /// When it does not begin to listen.
    pub fn serve(&self, options: &str, words: &[&str]) -> Result<Quietline> {
        self.serve_at(STACK, options, words)
    }

    /// The same at another address.
    ///
    /// # Errors
    /// When it does not begin to listen.
    pub fn serve_at(&self, address: &str, options: &str, words: &[&str]) -> Result<Quietline> {
        let link = format!("--link=af_packet:{}{options}", Self::OURS);
        let address = format!("--address={address}/24");
        Quietline::serve_with(&self.ours, &[words, &[link.as_str(), &address]].concat())
    }
}
