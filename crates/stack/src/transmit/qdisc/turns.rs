//! Order of flows that share a link: deficit round robin over new and old flows.
//!
//! RFC 8290 §4.2; Linux: `new_flows` and `old_flows` of sch_fq and sch_fq_codel. A flow that
//! becomes active goes once before the flows that have had their turn.

use std::collections::VecDeque;

/// Indices of the flows with packets, in the order of their turns.
#[derive(Debug)]
pub(super) struct Turns {
    new_flows: VecDeque<u32>,
    old_flows: VecDeque<u32>,
}

impl Turns {
    /// Creates empty lists, each with a capacity of `flows`.
    pub(super) fn with_capacity(flows: usize) -> Self {
        let list = || VecDeque::with_capacity(flows);
        Self { new_flows: list(), old_flows: list() }
    }

    /// Adds a flow that has become active.
    pub(super) fn begin(&mut self, flow: u32) {
        self.new_flows.push_back(flow);
    }

    /// Adds a flow whose departure time has come, behind all others.
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

    /// Handles the first flow, which has no packets. Returns true if the flow leaves the lists. A
    /// new flow stays for one more round if old flows wait; otherwise it would starve them by
    /// becoming new again with each packet.
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
