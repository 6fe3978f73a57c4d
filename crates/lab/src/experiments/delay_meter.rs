//! A device that notes of every packet how long a queue of the kernel held it: from the call that
//! takes it until its completion.
//!
//! Above: the host of `tsq --real`. Below: a device that completes packets later, in order. Linux:
//! no counterpart; `tc -s qdisc` has the backlog only.
//!
//! The delay includes the queueing discipline, the driver's ring and the time until the host asks
//! for completions, which a host that polls without pause does every few microseconds.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant as Clock},
};

use quietline::sans_io::{Batch, Capabilities, Completed, Cx, Device, PacketList, QueueId};

/// A packet that the device has completed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delay {
    /// When the device has taken the packet.
    pub(super) taken: Clock,
    /// Time until the device has completed it.
    pub(super) delay: Duration,
    /// Bytes of the frame, or of the superframe.
    pub(super) bytes: usize,
}

/// Packets of the first queue of a device, which is the only one that a host of one core uses.
#[derive(Debug, Default)]
struct Notes {
    /// Packets that the device has: when it took each of them, and their bytes.
    held: VecDeque<(Clock, usize)>,
    completed: Vec<Delay>,
}

impl Notes {
    /// Notes the first of these packets: the device has left `left` of them.
    fn take(&mut self, at: Clock, lengths: &[usize], left: usize) {
        let taken = lengths.len().saturating_sub(left);
        self.held.extend(lengths[..taken].iter().map(|&bytes| (at, bytes)));
    }

    /// Notes the completion of the `packets` oldest packets.
    fn complete(&mut self, at: Clock, packets: usize) {
        let oldest = self.held.drain(..packets.min(self.held.len()));
        self.completed.extend(oldest.map(|(taken, bytes)| Delay {
            taken,
            delay: at - taken,
            bytes,
        }));
    }
}

/// Device that measures the delays of packets in another one.
#[derive(Debug)]
pub(super) struct DelayMeter {
    device: Arc<dyn Device>,
    notes: Mutex<Notes>,
}

impl DelayMeter {
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, notes: Mutex::default() }
    }

    /// The completed packets since the last call.
    pub(super) fn take(&self) -> Vec<Delay> {
        self.with(|notes| mem::take(&mut notes.completed))
    }

    fn with<R>(&self, change: impl FnOnce(&mut Notes) -> R) -> R {
        change(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Device for DelayMeter {
    fn caps(&self) -> &Capabilities {
        self.device.caps()
    }

    fn wrapped(&self) -> Option<&dyn Device> {
        Some(&*self.device)
    }

    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        self.device.receive(queue, cx, budget, out)
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let (mut same, mut lengths) = (PacketList::new(), Vec::with_capacity(list.len()));
        while let Some(packet) = list.pop_front() {
            lengths.push(packet.len());
            same.push_back(packet);
        }
        list.append(&mut same);
        let at = Clock::now();
        self.device.transmit(queue, cx, list);
        self.with(|notes| notes.take(at, &lengths, list.len()));
    }

    fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
        let completed = self.device.complete(queue, cx);
        if completed.packets > 0 {
            self.with(|notes| notes.complete(Clock::now(), completed.packets));
        }
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device takes two of three packets, then the third; it completes them in order.
    #[test]
    fn a_packet_is_held_from_the_call_that_takes_it_until_its_completion() {
        let mut notes = Notes::default();
        let start = Clock::now();
        let at = |ms| start + Duration::from_millis(ms);
        notes.take(at(0), &[1500, 90, 1500], 1);
        notes.take(at(3), &[1500], 0);
        notes.complete(at(5), 1);
        notes.complete(at(9), 2);
        let seen: Vec<_> =
            notes.completed.iter().map(|own| (own.delay.as_millis(), own.bytes)).collect();
        assert_eq!(seen, [(5, 1500), (9, 90), (6, 1500)]);
        // More than the device has: packets from before the notes began.
        notes.complete(at(10), 1);
        assert_eq!((notes.completed.len(), notes.held.len()), (3, 0));
    }
}
