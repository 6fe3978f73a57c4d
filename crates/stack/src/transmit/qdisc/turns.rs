//! Whose turn it is among flows that share a link: deficit round robin over new and old flows.
//!
//! RFC 8290 §4.2; Linux: `new_flows` and `old_flows` of sch_fq and sch_fq_codel. A flow that has been away goes before those
//! that have had their turn, once.

use std::collections::VecDeque;

/// Indices of the flows that have packets, in the order of their turns.
#[derive(Debug)]
pub(super) struct Turns {
    new_flows: VecDeque<u32>,
    old_flows: VecDeque<u32>,
}

impl Turns {
    /// Of nobody, with room for `flows` before memory is asked for.
    pub(super) fn with_capacity(flows: usize) -> Self {
        let list = || VecDeque::with_capacity(flows);
        Self { new_flows: list(), old_flows: list() }
    }

    /// A flow that had no packets has one.
    pub(super) fn begin(&mut self, flow: u32) {
        self.new_flows.push_back(flow);
    }

    /// A flow that had to wait comes back behind all others.
    pub(super) fn resume(&mut self, flow: u32) {
        self.old_flows.push_back(flow);
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<u32> {
        self.new_flows.front().or_else(|| self.old_flows.front()).copied()
    }

    /// The first has used up its turn.
    pub(super) fn pass(&mut self) {
        if let Some(flow) = self.remove_first() {
            self.old_flows.push_back(flow);
        }
    }

    /// The first has no packets. True when it leaves: a new flow goes round once more if others wait, or it would starve
    /// them by coming anew for each packet.
    pub(super) fn end(&mut self) -> bool {
        let goes_round = !self.new_flows.is_empty() && !self.old_flows.is_empty();
        match self.remove_first() {
            Some(flow) if goes_round => self.old_flows.push_back(flow),
            _ => {}
        }
        !goes_round
    }

    /// The first has to wait.
    pub(super) fn remove_first(&mut self) -> Option<u32> {
        self.new_flows.pop_front().or_else(|| self.old_flows.pop_front())
    }
}
