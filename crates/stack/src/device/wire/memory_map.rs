//! Addresses of the parts of a wire (`base::memory_map`).

use std::vec::Vec;

use super::Wire;
use crate::base::memory_map::{Region, regions};

impl Wire {
    /// Returns the regions of this end and of its directions, which the other end shares.
    #[must_use]
    pub fn memory_map(&self) -> Vec<Region> {
        let mut map = vec![Region::of("Wire", self)];
        for direction in self.outgoing.iter().chain(&self.incoming) {
            map.push(Region::of("Direction", &**direction));
            map.extend(regions!("Direction", direction, [in_flight, len, doorbell]));
            map.extend(direction.ring.iter().map(|ring| Region::of("Ring", &**ring)));
        }
        map
    }
}
