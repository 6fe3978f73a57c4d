//! Addresses of the parts of a core (`base::memory_map`).

use std::vec::Vec;

use super::Core;
use crate::base::memory_map::{Region, regions};

impl Core {
    /// Appends the regions of this core. They have the same names for every core of a host.
    pub(crate) fn add_regions(&self, map: &mut Vec<Region>) {
        map.push(Region::of("Core", self));
        map.extend(regions!("Core", self, [id, net, lock, places, requested]));
        map.push(Region::of("Backlog", &*self.backlog));
        map.push(Region::of("Tasklet", &*self.tasklet));
        map.push(Region::of("CoreSockets", &*self.sockets));
        map.push(Region::of("Attendance", &*self.attendance));
    }
}
