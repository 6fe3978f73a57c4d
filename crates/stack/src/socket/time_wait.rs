//! TIME-WAIT sockets: the small rest of a connection that answers old segments and accepts a new
//! SYN.
//!
//! Linux: `struct inet_timewait_sock`, `tcp_timewait_state_process`. `net.ipv4.tcp_max_tw_buckets`
//! bounds their number.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet};
use tcp::{Reuse, SegmentHeader, TimeWait, TimeWaitVerdict};

use super::demux::{BindFlags, Entry, FlowName};
use crate::{
    base::{ids::DeviceIndex, timer::TimerHandle},
    cx::Cx,
    socket::{core_sockets::TimerEntry, net::Net, rx::Rx},
};

/// A connection in TIME-WAIT.
#[derive(Debug)]
pub(crate) struct TimeWaitSocket {
    name: FlowName,
    /// Flags that allow other sockets to bind the local address and port.
    bind: BindFlags,
    this: Weak<Self>,
    /// Protocol state. Locked only for one segment, timer or active open at a time.
    time_wait: Mutex<TimeWait>,
    done: AtomicBool,
    /// Entry in the timer wheel, encoded by `TimerHandle::to_bits`; [`NOT_ARMED`] for none. Arming
    /// and disarming are SeqCst, like the end of the wait (`done`): either the thread that arms the
    /// timer sees that the wait has ended, or the thread that ends the wait sees the timer.
    timer: AtomicU64,
}

/// Value of `timer` without an entry in the timer wheel.
const NOT_ARMED: u64 = u64::MAX;

impl TimeWaitSocket {
    pub(super) fn new(name: &FlowName, time_wait: TimeWait, bind: BindFlags) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            name: *name,
            bind,
            this: this.clone(),
            time_wait: Mutex::new(time_wait),
            done: AtomicBool::new(false),
            timer: AtomicU64::new(NOT_ARMED),
        })
    }

    /// Arms the timer.
    pub(super) fn arm(&self, net: &Net) {
        let deadline = self.time_wait.lock().unwrap_or_else(PoisonError::into_inner).deadline();
        self.arm_for(net, deadline);
    }

    fn arm_for(&self, net: &Net, deadline: Instant) {
        let handle =
            net.core_sockets(self.name.core).arm(deadline, TimerEntry::TimeWait(self.this.clone()));
        self.timer.store(handle.to_bits(), Ordering::SeqCst);
        // A thread that ended the wait before the store found no timer, so this thread disarms it.
        if self.done.load(Ordering::SeqCst) {
            self.disarm(net);
        }
    }

    fn disarm(&self, net: &Net) {
        let bits = self.timer.swap(NOT_ARMED, Ordering::SeqCst);
        if bits != NOT_ARMED {
            net.core_sockets(self.name.core).disarm(TimerHandle::from_bits(bits));
        }
    }

    /// Processes a segment for the closed connection, in softirq context. A SYN that may start a
    /// new connection goes to the listener. Without a listener, the SYN is acknowledged and the
    /// wait continues, because a spoofed SYN must not end the wait (RFC 1337).
    pub(crate) fn segment(&self, rx: &mut Rx<'_, '_>, header: &SegmentHeader, packet: Packet) {
        let (net, cx) = (rx.net, &mut *rx.cx);
        let verdict = {
            let mut time_wait = self.time_wait.lock().unwrap_or_else(PoisonError::into_inner);
            let payload = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            time_wait.on_segment(&mut cx.tcp(), header, payload)
        };
        net.reply(cx, &self.name);
        match verdict {
            TimeWaitVerdict::Keep => cx.drop_packet(DropReason::TcpTimeWait, packet),
            TimeWaitVerdict::Closed => {
                self.end(net);
                cx.drop_packet(DropReason::TcpReset, packet);
            }
            TimeWaitVerdict::Reopen { iss } => {
                let FlowName { tuple, hash, via, .. } = self.name;
                let core = net.core_for(cx, hash);
                let name = FlowName { tuple, hash, core, via };
                if let Some(interceptor) = via.and_then(|device| net.flows().of(device)) {
                    self.end(net);
                    return interceptor.segment(rx, &name, Some(iss), header, packet);
                }
                match net.demux().listener(core, tuple.local, hash, rx.rcu) {
                    Some(listener) => match listener.admit_reopening(cx, &tuple, header) {
                        Ok(()) => {
                            self.end(net);
                            listener.segment(rx, &name, Some(iss), header, packet);
                        }
                        // Differs from Linux, which ends the wait before the listener decides. Here
                        // the wait continues, so that a retransmission of the refused SYN is again
                        // compared with the sequence numbers that the new connection must exceed.
                        Err(reason) => cx.drop_packet(reason, packet),
                    },
                    None => self.acknowledge(net, cx, packet),
                }
            }
        }
    }

    /// Acknowledges the SYN in `packet`, for which there is no listener; the wait continues.
    fn acknowledge(&self, net: &Net, cx: &mut Cx, packet: Packet) {
        self.time_wait.lock().unwrap_or_else(PoisonError::into_inner).acknowledge(&mut cx.tcp());
        net.reply(cx, &self.name);
        cx.drop_packet(DropReason::TcpTimeWait, packet);
    }

    /// Returns the state that an active open with the same four-tuple inherits, or `None` if it
    /// must not end the wait (RFC 6191 §2). `bound`: the opening socket has bound its port.
    pub(super) fn reuse(&self, cx: &Cx, bound: bool) -> Option<Reuse> {
        let sysctls = cx.sysctls();
        let loopback =
            self.name.tuple.local.ip().is_loopback() || self.name.tuple.remote.ip().is_loopback();
        let allowed = match sysctls.tcp_tw_reuse {
            0 => false,
            1 => true,
            _ => loopback,
        };
        // As in Linux, the delay does not apply to a socket that has bound the port (with
        // `SO_REUSEADDR`).
        let delay = if bound { Duration::ZERO } else { sysctls.tcp_tw_reuse_delay };
        if !allowed && !bound {
            return None;
        }
        self.time_wait.lock().unwrap_or_else(PoisonError::into_inner).reuse(cx.now, delay)
    }

    /// Replaces this socket by `entry` in the table. Returns false, without a change, if the wait
    /// has ended meanwhile.
    pub(super) fn replace_with(&self, net: &Net, cx: &Cx, entry: Entry) -> bool {
        let replaced = net.demux().replace_if(self.name.hash, self.name.tuple, entry, |present| {
            matches!(present, Entry::TimeWait(present) if std::ptr::eq(&raw const **present, self))
                && !self.done.swap(true, Ordering::SeqCst)
        });
        if replaced {
            self.disarm(net);
            net.time_wait_release();
            cx.counters().tcp.add(tcp::Counter::TcpExtTWRecycled, 1);
        }
        replaced
    }

    /// Ends the wait after two maximum segment lifetimes, in softirq context. If a segment has
    /// restarted this time, arms the timer again.
    pub(crate) fn on_timer(&self, net: &Net, cx: &Cx) {
        self.timer.store(NOT_ARMED, Ordering::Relaxed);
        let deadline = self.time_wait.lock().unwrap_or_else(PoisonError::into_inner).deadline();
        if deadline > cx.now && !self.done.load(Ordering::Acquire) {
            self.arm_for(net, deadline);
        } else if self.end(net) {
            cx.counters().tcp.add(tcp::Counter::TcpExtTW, 1);
        }
    }

    pub(crate) const fn bind_flags(&self) -> BindFlags {
        self.bind
    }

    /// Returns the device of an intercepted flow.
    pub(crate) const fn via(&self) -> Option<DeviceIndex> {
        self.name.via
    }

    /// Ends the wait. Returns false if the wait had ended before.
    pub(crate) fn end(&self, net: &Net) -> bool {
        let ends = !self.done.swap(true, Ordering::SeqCst);
        if ends {
            net.demux().remove(self.name.hash, &self.name.tuple, |entry| {
                matches!(entry, Entry::TimeWait(time_wait) if std::ptr::eq(&raw const **time_wait, self))
            });
            self.disarm(net);
            net.time_wait_release();
        }
        ends
    }
}
