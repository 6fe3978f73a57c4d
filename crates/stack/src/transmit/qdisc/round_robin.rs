//! Order in which the flows of a discipline are served: deficit round robin over new and old flows.
//! A turn of a flow is its chance to send one quantum of bytes (not a turn of a core).
//!
//! RFC 8290 §4.2; Linux: `new_flows` and `old_flows` of sch_fq and sch_fq_codel. A flow that
//! becomes active gets its first turn before the old flows, which have had one.

use std::collections::VecDeque;

/// Indices of the active flows. New flows are served before old ones; each list is in the order of
/// the turns.
#[derive(Debug)]
pub(super) struct RoundRobin {
    new_flows: VecDeque<u32>,
    old_flows: VecDeque<u32>,
}

impl RoundRobin {
    /// Creates empty lists, each with a capacity of `flows`.
    pub(super) fn with_capacity(flows: usize) -> Self {
        let list = || VecDeque::with_capacity(flows);
        Self { new_flows: list(), old_flows: list() }
    }

    /// Adds a flow that has become active.
    pub(super) fn begin(&mut self, flow: u32) {
        self.new_flows.push_back(flow);
    }

    /// Adds a flow whose departure time has come, behind all other flows.
    pub(super) fn resume(&mut self, flow: u32) {
        self.old_flows.push_back(flow);
    }

    /// Returns the flow that sends next.
    pub(super) fn first(&self) -> Option<u32> {
        self.new_flows.front().or_else(|| self.old_flows.front()).copied()
    }

    /// Moves the first flow, which has used up its quantum, to the end.
    pub(super) fn pass(&mut self) {
        if let Some(flow) = self.remove_first() {
            self.old_flows.push_back(flow);
        }
    }

    /// Handles the first flow, which has no packets. Returns true if the flow leaves the lists. If
    /// old flows wait, a new flow becomes an old one instead. If it left the lists, it would be new
    /// again with its next packet, and could starve the old flows.
    pub(super) fn end(&mut self) -> bool {
        let goes_round = !self.new_flows.is_empty() && !self.old_flows.is_empty();
        match self.remove_first() {
            Some(flow) if goes_round => self.old_flows.push_back(flow),
            _ => {}
        }
        !goes_round
    }

    /// Removes the first flow and returns it.
    pub(super) fn remove_first(&mut self) -> Option<u32> {
        self.new_flows.pop_front().or_else(|| self.old_flows.pop_front())
    }
}
