//! Runs of a core: which thread runs it, when, and for how long. A run is a sequence of turns
//! (`turn`: one pass over all work of the core) by one owner; it ends when the queues are empty, or
//! after a limit.
//!
//! Above: contexts that have raised the core, for example by a doorbell (`cx::softirq`); its
//! worker; `Host::poll`. Below: `turn`. Linux: `napi_schedule`, `__do_softirq`, ksoftirqd.
//!
//! Not here: threads that busy-poll (`busy_poll`), the worker's sleep (`sleep`).

use sync::{Claim, CoreGuard, Poller};

use super::{BACKLOG, Core, CoreRun, CoreState, PollReport, Scope, turn::turn};
use crate::{
    base::{counters::Counter, ids::NapiId},
    cx::{Cx, Owed, RunCore, event::Event},
    socket::net::Net,
};

/// Turns of a core before its runner does something else, as Linux's `MAX_SOFTIRQ_RESTART`. With a
/// budget of 300 frames per turn this is a few milliseconds.
const TURNS_MAX: usize = 10;

impl Core {
    /// Marks a queue whose descriptor has signaled arrivals: the next turn polls it, whichever
    /// thread runs the turn. The caller then calls [`run_interrupted`](Self::run_interrupted).
    /// Linux: a device's interrupt handler.
    pub fn interrupt(&self, napi: NapiId) {
        self.lock.mark(napi.bit());
    }

    /// Takes the ownership that a context was given or may claim. Returns `None` if no run is owed.
    pub(super) fn take(&self, owed: Owed) -> Option<CoreGuard<'_, CoreState>> {
        match owed {
            Owed::Claim(claim) => Some(self.lock.adopt(claim)),
            Owed::Run => self.lock.claim(),
        }
    }

    /// Runs turns until every queue is empty or the turn limit is reached, if no other thread owns
    /// the core.
    pub fn try_run(&self, net: &Net, cx: &mut Cx) -> CoreRun {
        self.run(net, cx, Scope::All)
    }

    /// As [`try_run`](Self::try_run), for the thread that watches the descriptors: of the queues
    /// with a descriptor, only those named by [`interrupt`](Self::interrupt) are polled.
    pub fn run_interrupted(&self, net: &Net, cx: &mut Cx) -> CoreRun {
        self.run(net, cx, Scope::Scheduled)
    }

    fn run(&self, net: &Net, cx: &mut Cx, scope: Scope) -> CoreRun {
        let Some(guard) = self.lock.try_own() else { return CoreRun::Elsewhere };
        cx.set_home(net, self.id);
        match self.run_turns(net, guard, cx, scope) {
            Some(_) => CoreRun::Pending,
            None => CoreRun::Idle,
        }
    }

    /// As [`try_run`](Self::try_run), or with `watched` [`run_interrupted`](Self::run_interrupted),
    /// for the core's worker.
    ///
    /// While superframes (packets of several segments) arrive and the thread that went to sleep
    /// last had polled, wakes are deferred until the core is released or needs another turn: the
    /// first thing a woken thread does is try to own it. If a woken thread is a reader that polls,
    /// frames that arrive by descriptors before its poll are left to it ([`CoreRun::Left`]),
    /// because the worker would load them into the caches of another CPU.
    pub fn run_as_worker(&self, net: &Net, cx: &mut Cx, watched: bool) -> CoreRun {
        if self.needs_no_worker(cx.now) {
            return CoreRun::Left;
        }
        let Some(guard) = self.lock.try_own() else { return CoreRun::Elsewhere };
        cx.set_home(net, self.id);
        if self.is_bulk() && self.attendance.sleeper_polls() {
            cx.hold_wakes();
        }
        let scope = if watched { Scope::Scheduled } else { Scope::All };
        let owed = self.run_turns(net, guard, cx, scope).is_some();
        let leaves = !owed && cx.has_left();
        if leaves {
            cx.now = cx.read_clock();
            self.leave_to_reader(cx);
            let entered = cx.enter(net);
            cx.count(Counter::CoreLeftToReader, 1);
            cx.leave(entered);
        }
        cx.release_wakes();
        match (owed, leaves) {
            (true, _) => CoreRun::Pending,
            (false, true) => CoreRun::Left,
            (false, false) => CoreRun::Idle,
        }
    }

    /// Runs the core on a thread whose own task is another one. If work keeps arriving, another
    /// thread takes over.
    pub(super) fn run_for_another(&self, net: &Net, guard: CoreGuard<'_, CoreState>, cx: &mut Cx) {
        if let Some(guard) = self.run_turns(net, guard, cx, Scope::Scheduled) {
            self.leave(net, guard, cx);
        }
    }

    /// Releases a core that has more work: its worker takes over. Linux: `wakeup_softirqd`.
    ///
    /// Differs from Linux, where every CPU has a ksoftirqd: a core may have no worker. Then the
    /// core is released with the bit of a queue set, so that its next deadline is now
    /// ([`next_deadline`](Self::next_deadline)). The next thread that polls the host, rings a
    /// doorbell of the core or waits on the core does all the work.
    #[cold]
    fn leave(&self, net: &Net, guard: CoreGuard<'_, CoreState>, cx: &mut Cx) {
        guard.reschedule();
        if self.hand_to_worker(cx) {
            return;
        }
        let Some(guard) = self.lock.claim() else { return };
        // Not every kind of remaining work has a bit. The bit of the backlog stands for all of
        // them.
        guard.put_back(1 << BACKLOG);
        drop(guard);
        let entered = cx.enter(net);
        cx.count(Counter::CoreLeft, 1);
        cx.leave(entered);
    }

    /// Runs turns until every queue is empty and releases the core, or returns its guard after
    /// [`TURNS_MAX`] turns: the caller has other work, and its clock reading becomes stale.
    fn run_turns<'a>(
        &self,
        net: &Net,
        mut guard: CoreGuard<'a, CoreState>,
        cx: &mut Cx,
        scope: Scope,
    ) -> Option<CoreGuard<'a, CoreState>> {
        for _ in 0..TURNS_MAX {
            if turn(net, self, &mut guard, cx, scope) == PollReport::Pending {
                cx.wake_held();
                continue;
            }
            match guard.release() {
                Ok(()) => {
                    self.resume_worker();
                    return None;
                }
                Err(still_owned) => guard = still_owned,
            }
            let entered = cx.enter(net);
            cx.count(Counter::CoreMissed, 1);
            cx.leave(entered);
        }
        Some(guard)
    }
}

impl RunCore for Core {
    fn own_or_schedule(&self, napi: NapiId) -> Option<Claim> {
        self.lock.own_or_schedule(napi.bit())
    }

    fn schedule_on_worker(&self, napi: NapiId) {
        if !self.lock.schedule(napi.bit()) {
            return;
        }
        let is_up = self.net.upgrade().is_some_and(|net| net.check_up().is_ok());
        if !(is_up && self.kick_worker()) {
            // Releases the ownership bit and leaves the bits of the queues.
            drop(self.lock.claim());
        }
    }

    fn schedule_backlog(&self) -> bool {
        if !self.lock.schedule(1 << BACKLOG) {
            return false;
        }
        let is_up = self.net.upgrade().is_some_and(|net| net.check_up().is_ok());
        !(is_up && self.kick_worker())
    }

    fn run_scheduled(&self, cx: &mut Cx, owed: Owed) {
        let Some(guard) = self.take(owed) else { return };
        match self.net.upgrade() {
            Some(net) => {
                let entered = cx.enter(&net);
                cx.count(Counter::CoreDoorbells, 1);
                self.run_for_another(&net, guard, cx);
                cx.leave(entered);
            }
            None => self.forget(guard),
        }
    }

    #[cold]
    fn hand_over(&self, cx: &mut Cx, owed: Owed) {
        let Some(guard) = self.take(owed) else { return };
        match self.net.upgrade() {
            Some(net) => self.leave(&net, guard, cx),
            None => self.forget(guard),
        }
    }

    #[cold]
    fn disown(&self, owed: Owed) {
        let Some(guard) = self.take(owed) else { return };
        match self.net.upgrade() {
            Some(net) if net.check_up().is_ok() => {
                // Without a worker, no thread would begin the owed run. Therefore the core is
                // released with its queue bits set.
                guard.reschedule();
                if !self.kick_worker() {
                    drop(self.lock.claim());
                }
            }
            Some(_) => drop(guard),
            None => self.forget(guard),
        }
    }

    /// Polls once on a thread that sends in bulk. The thread receives its acknowledgments itself,
    /// so that the worker is not woken for each of them.
    fn poll_in_passing(&self, cx: &mut Cx) {
        if !self.has_descriptors() {
            return;
        }
        let Some(net) = self.net.upgrade() else { return };
        let Some(mut guard) = self.lock.own_if_idle() else { return };
        // The caller read the clock before it sent a superframe, so its reading is stale.
        cx.now = cx.read_clock();
        let report = turn(&net, self, &mut guard, cx, Scope::All);
        self.note_poll(cx);
        // Queues without an arrival signal do not prevent the release of the core.
        let owed = match report {
            PollReport::Pending => Some(guard),
            PollReport::AllDone => guard.release().err(),
        };
        if let Some(guard) = owed {
            self.run_for_another(&net, guard, cx);
        }
        cx.do_softirq();
    }

    fn leave_polling(&self, poller: Poller) {
        self.attendance.leave_polling(poller);
    }

    fn remove_queues(&self) {
        self.end();
    }

    fn report(&self, event: Event) {
        if let Some(net) = self.net.upgrade() {
            net.report(event);
        }
    }
}
