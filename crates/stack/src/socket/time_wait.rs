//! A connection in TIME-WAIT: only the state needed to answer old segments and to accept a new SYN.
//!
//! Linux: `struct inet_timewait_sock`, `tcp_timewait_state_process`. Bounded by
//! `net.ipv4.tcp_max_tw_buckets`.

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
    base::timer::TimerHandle,
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
    /// Protocol state. Locked for one segment or timer only.
    time_wait: Mutex<TimeWait>,
    done: AtomicBool,
    /// Entry in the timer wheel, encoded by `TimerHandle::to_bits`; [`NOT_ARMED`] for none. SeqCst
    /// like `done`: either the arming thread sees that the wait has ended, or the ending thread
    /// sees the timer.
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
        // A thread that has ended the wait meanwhile has found no timer to disarm.
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

    /// Softirq: processes a segment for the closed connection. A SYN that may start a new
    /// connection goes to the listener. Without a listener it is acknowledged and the wait
    /// continues, because a spoofed SYN must not end it (RFC 1337).
    pub(crate) fn segment(&self, rx: &mut Rx<'_, '_>, header: &SegmentHeader, packet: Packet) {
        let (net, cx) = (rx.net, &mut *rx.cx);
        let verdict = {
            let mut time_wait = self.time_wait.lock().unwrap_or_else(PoisonError::into_inner);
            let payload = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            time_wait.on_segment(&mut cx.tcp(), header, payload)
        };
        net.reply(cx, &self.name.tuple, self.name.core);
        match verdict {
            TimeWaitVerdict::Keep => cx.drop_packet(DropReason::TcpTimeWait, packet),
            TimeWaitVerdict::Closed => {
                self.end(net);
                cx.drop_packet(DropReason::TcpReset, packet);
            }
            TimeWaitVerdict::Reopen { iss } => {
                let FlowName { tuple, hash, .. } = self.name;
                let core = net.core_for(cx, hash);
                match net.demux().listener(core, tuple.local, hash, rx.rcu) {
                    Some(listener) => match listener.admit_reopening(cx, &tuple, header) {
                        Ok(()) => {
                            self.end(net);
                            let name = FlowName { tuple, hash, core };
                            listener.segment(rx, &name, Some(iss), header, packet);
                        }
                        // Differs from Linux, which ends the wait first: the retransmitted SYN then
                        // still finds the sequence numbers that the new connection must exceed.
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
        net.reply(cx, &self.name.tuple, self.name.core);
        cx.drop_packet(DropReason::TcpTimeWait, packet);
    }

    /// Returns the state that an active open inherits with the four-tuple, if the wait may end for
    /// it (RFC 6191 §2).
    pub(super) fn reuse(&self, cx: &Cx, bound: bool) -> Option<Reuse> {
        let sysctls = cx.sysctls();
        let loopback =
            self.name.tuple.local.ip().is_loopback() || self.name.tuple.remote.ip().is_loopback();
        let allowed = match sysctls.tcp_tw_reuse {
            0 => false,
            1 => true,
            _ => loopback,
        };
        // As in Linux, a socket that has bound the port with SO_REUSEADDR need not wait.
        let delay = if bound { Duration::ZERO } else { sysctls.tcp_tw_reuse_delay };
        if !allowed && !bound {
            return None;
        }
        self.time_wait.lock().unwrap_or_else(PoisonError::into_inner).reuse(cx.now, delay)
    }

    /// Replaces this socket by `entry` in the table, unless it has ended meanwhile.
    pub(super) fn give_way(&self, net: &Net, cx: &Cx, entry: Entry) -> bool {
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

    /// Softirq: ends the wait after two maximum segment lifetimes, or arms the timer again if a
    /// segment has restarted them.
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

    /// Ends the wait; false if it had ended before.
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
