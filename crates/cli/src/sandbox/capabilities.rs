//! Drops all capabilities, and the means to gain one by executing a program.

use std::io;

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities,
    },
};

/// Numbers of capabilities that a kernel can have: a set has 64 bits.
const NUMBERS: std::ops::Range<u32> = 0..64;

/// Empties every capability set of the calling thread.
///
/// Root without capabilities still owns root's files, but file permissions apply to it as to any
/// other user.
pub(super) fn drop_all() -> io::Result<()> {
    drop_bounding_set()?;
    // EINVAL: a kernel before 4.3 has no ambient set.
    match clear_ambient_capability_set() {
        Ok(()) | Err(Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}

/// Empties the bounding set. Only a thread with CAP_SETPCAP can; for other threads `no_new_privs`
/// makes the set ineffective.
fn drop_bounding_set() -> io::Result<()> {
    for number in NUMBERS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // EINVAL: the previous capability was the last one of this kernel.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
