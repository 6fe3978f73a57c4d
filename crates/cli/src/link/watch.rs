//! Events of the stack's link while a command runs: warnings are printed on stderr, the loss of the
//! link ends the command.
//!
//! Not here: the texts. They are the events' own.

use std::{io, thread};

use anyhow::anyhow;
use quietline::{Event, Stack};

use crate::{failure::Failure, output, signal::Waker};

/// Starts a thread that prints events, and calls `waker` when the link is gone. The thread ends
/// with the stack.
pub(crate) fn watch(stack: &Stack, waker: Waker) -> io::Result<()> {
    let events = stack.events();
    let report = move || {
        for event in events {
            match event {
                // The command reports the loss itself when it ends.
                Event::DeviceGone { .. } => waker.wake(),
                Event::AddressReady { .. } | Event::DeviceUp { .. } | Event::DeviceDown { .. } => {}
                event => output::remark(&format!("quietline: warning: {event}")),
            }
        }
    };
    thread::Builder::new().name("events".to_owned()).spawn(report).map(drop)
}

/// Returns the failure of the command if its link is gone.
pub(crate) fn loss(stack: &Stack) -> Option<Failure> {
    let mut events = stack.events();
    while let Some(event) = events.try_next() {
        if matches!(event, Event::DeviceGone { .. }) {
            return Some(Failure::Run(anyhow!("{event}")));
        }
    }
    None
}
