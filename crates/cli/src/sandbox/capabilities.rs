//! No capability, and none to gain by executing a program.

use std::io;

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities,
    },
};

/// Numbers of capabilities that a kernel can have: they are bits of 64.
const NUMBERS: std::ops::Range<u32> = 0..64;

/// Empties every capability set of the calling thread.
///
/// A root without capabilities still owns root's files, but file permissions bind it as they bind any other user.
pub(super) fn drop_all() -> io::Result<()> {
    drop_bounding_set()?;
    // EINVAL: a kernel before 4.3, which has no such set.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}

/// Empties the bounding set, which only a thread with CAP_SETPCAP can: with `no_new_privs` the set gives nothing to the others.
fn drop_bounding_set() -> io::Result<()> {
    for number in NUMBERS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // EINVAL: the kernel's last capability was the one before.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
