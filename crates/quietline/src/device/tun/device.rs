//! `impl Device for Tun`.
//!
//! Above: `stack::core` and `stack::transmit::ip_output`.

use std::sync::atomic::Ordering;

use pkt::{Batch, DropReason, PacketList};
use stack::{
    base::limits::{GRO_BYTES_MAX, GSO_BYTES_MAX, WEIGHT},
    cx::Cx,
    device::{Capabilities, Device, Doorbell, QueueId, RxSignal},
};

use super::Tun;
use super::receive::Frame;
use super::transmit::ends_the_list;

/// Frames that one poll takes if each may be a superframe.
const SUPERFRAMES_PER_POLL: usize = 8;

/// Default bound of IPv4 superframes, if the kernel accepts BIG TCP. Measured (docs/benchmarks.md):
/// each write costs the kernel's reader a wake, and beyond three times 64 KB there is no further
/// gain.
const BIG_TCP_SIZE: u32 = 3 * GRO_BYTES_MAX;

impl Device for Tun {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// Reads until no frame waits or `budget` frames were taken, bad frames included.
    fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        let fd = self.queue_fd(queue.0);
        let mut taken = 0;
        while taken < budget && !out.is_full() {
            match self.read_frame(fd, &mut cx.pool, cx.now) {
                Frame::Good(packet) => {
                    if let Err(packet) = out.push(packet) {
                        cx.drop_packet(DropReason::QueueLimit, packet);
                    }
                }
                Frame::Bad(reason, packet) => cx.drop_packet(reason, packet),
                Frame::Lost => cx.counters().drops.add(DropReason::DeviceRxError, 1),
                Frame::Empty | Frame::NoMemory => break,
                Frame::Gone => {
                    self.gone.store(true, Ordering::Relaxed);
                    break;
                }
            }
            taken += 1;
        }
        taken
    }

    fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let fd = self.queue_fd(queue.0);
        while let Some(mut packet) = list.pop_front() {
            match self.write_frame(fd, &mut packet) {
                Ok(()) => cx.pool.free(packet),
                Err(DropReason::DeviceTxFull) => return list.push_front(packet),
                Err(reason) if self.shrink(&packet, reason) => return list.push_front(packet),
                Err(reason) => {
                    cx.drop_packet(reason, packet);
                    if ends_the_list(reason) {
                        while let Some(packet) = list.pop_front() {
                            cx.drop_packet(reason, packet);
                        }
                    }
                }
            }
        }
    }

    /// Fewer frames if each may be a superframe, so that the reader still finds their bytes in its
    /// caches.
    fn weight(&self) -> usize {
        if self.vnet_hdr { SUPERFRAMES_PER_POLL } else { WEIGHT }
    }

    fn gso_ipv4_size(&self) -> u32 {
        if self.caps.gso_max_bytes > GSO_BYTES_MAX { BIG_TCP_SIZE } else { GRO_BYTES_MAX }
    }

    fn superframe_max(&self) -> u32 {
        self.superframe_max.load(Ordering::Relaxed)
    }

    fn start(&self, _queue: QueueId) {
        self.superframe_max.store(self.caps.gso_max_bytes, Ordering::Relaxed);
    }

    /// The kernel's own tap has a queueing discipline.
    fn needs_qdisc(&self) -> bool {
        true
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }

    fn attach(&self, queue: QueueId, doorbell: Doorbell) {
        if queue.0 == 0 {
            let _ = self.doorbell.set(doorbell);
        }
    }

    fn is_attached(&self) -> bool {
        self.doorbell.get().is_some()
    }
}
