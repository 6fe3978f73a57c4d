//! Connections that wait for `accept`: established ones, and those that Fast Open has opened early.
//!
//! Above: `listener`. Linux: `reqsk_queue`, which is first in, first out. Differs from Linux: a
//! thread that accepts on a core gets the oldest connection of that core first, so that the thread
//! that handles a connection runs on the core that receives its packets. The oldest connection of
//! all is passed over a bounded number of times.

use std::{collections::VecDeque, sync::Arc};

use crate::{base::ids::CoreId, socket::connection::Connection};

/// Maximum number of times in a row that the oldest connection is passed over. A thread that
/// accepts as fast as connections arrive then still takes one in 17 from another core.
const PASSED_OVER_MAX: u32 = 16;

/// Maximum number of connections that are searched for one of the caller's core. The queue is
/// locked during the search.
const LOOK_MAX: usize = 32;

/// The queue, oldest connection first.
#[derive(Debug, Default)]
pub(super) struct AcceptQueue {
    sockets: VecDeque<Arc<Connection>>,
    /// Number of times in a row that the oldest connection was passed over.
    passed_over: u32,
}

impl AcceptQueue {
    pub(super) fn push(&mut self, socket: Arc<Connection>) {
        self.sockets.push_back(socket);
    }

    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Takes the oldest connection of core `near` among the first [`LOOK_MAX`]. Takes the oldest of
    /// all if there is none, or if the oldest was passed over too often.
    pub(super) fn take(&mut self, near: Option<CoreId>) -> Option<Arc<Connection>> {
        let is_near = |socket: &Arc<Connection>| near.is_none_or(|core| socket.core() == core);
        let index = match self.sockets.iter().take(LOOK_MAX).position(is_near) {
            Some(index) if self.passed_over < PASSED_OVER_MAX => index,
            _ => 0,
        };
        self.passed_over = if index == 0 { 0 } else { self.passed_over + 1 };
        self.sockets.remove(index)
    }

    /// Takes all connections, none of which will be accepted.
    pub(super) fn take_all(&mut self) -> VecDeque<Arc<Connection>> {
        core::mem::take(&mut self.sockets)
    }
}
