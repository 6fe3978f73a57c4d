//! Finished connections that nobody has accepted.
//!
//! Above: `listener`. Linux: `reqsk_queue`, which is first in, first out. Differs from Linux: whoever accepts on a core gets
//! the oldest connection of that core first, so that the thread that serves a connection is the one that its packets come
//! to. The oldest of all is passed over a bounded number of times.

use std::{collections::VecDeque, sync::Arc};

use crate::{base::ids::CoreId, socket::connection::TcpSocket};

/// How often in a row the oldest connection may be passed over. A thread that accepts as fast as connections come then still
/// takes one in 17 from elsewhere.
const PASSED_OVER_MAX: u32 = 16;

/// Connections that are looked at for one of the caller's core. The queue is locked meanwhile.
const LOOK_MAX: usize = 32;

/// The queue, oldest first.
#[derive(Debug, Default)]
pub(super) struct AcceptQueue {
    sockets: VecDeque<Arc<TcpSocket>>,
    /// How often the oldest has been passed over.
    passed_over: u32,
}

impl AcceptQueue {
    pub(super) fn push(&mut self, socket: Arc<TcpSocket>) {
        self.sockets.push_back(socket);
    }

    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Takes the oldest connection, or one of core `near` before it.
    pub(super) fn take(&mut self, near: Option<CoreId>) -> Option<Arc<TcpSocket>> {
        let is_near = |socket: &Arc<TcpSocket>| near.is_none_or(|core| socket.core() == core);
        let index = match self.sockets.iter().take(LOOK_MAX).position(is_near) {
            Some(index) if self.passed_over < PASSED_OVER_MAX => index,
            _ => 0,
        };
        self.passed_over = if index == 0 { 0 } else { self.passed_over + 1 };
        self.sockets.remove(index)
    }

    /// Takes all: nobody will accept them.
    pub(super) fn take_all(&mut self) -> VecDeque<Arc<TcpSocket>> {
        core::mem::take(&mut self.sockets)
    }
}
