//! Who runs a core, when, and for how long: turns until nothing is left, but not for ever.
//!
//! Above: doorbells and contexts that have raised the core (`cx::softirq`), its worker, `Host::poll`. Below: `turn`. Linux:
//! `napi_schedule`, `__do_softirq`, ksoftirqd.
//!
//! Not here: threads that wait and poll meanwhile (`busy_poll`), the worker's sleep (`sleep`).

use sync::{Claim, CoreGuard, Poller};

use super::{BACKLOG, Core, CoreRun, CoreState, PollReport, Scope, turn::turn};
use crate::{
    base::{counters::Counter, ids::NapiId},
    cx::{Cx, Owed, RunCore, event::Event},
    host::Host,
};

/// Turns of a core before its runner does something else. As Linux's `MAX_SOFTIRQ_RESTART`: with a budget of 300 frames
/// each, a few milliseconds.
const TURNS_MAX: usize = 10;

impl Core {
    /// The descriptor of a queue says that frames have arrived: the next turn polls it, whoever runs it. The caller goes on
    /// with [`run_interrupted`](Self::run_interrupted). Linux: a device's interrupt handler.
    pub fn interrupt(&self, napi: NapiId) {
        self.lock.mark(napi.bit());
    }

    /// The ownership that a context was given, or may claim. `None` if nothing is owed any more.
    pub(super) fn take(&self, owed: Owed) -> Option<CoreGuard<'_, CoreState>> {
        match owed {
            Owed::Claim(claim) => Some(self.lock.adopt(claim)),
            Owed::Run => self.lock.claim(),
        }
    }

    /// Runs turns until every queue is empty, if nobody else runs the core, but not for ever.
    pub fn try_run(&self, host: &Host, cx: &mut Cx) -> CoreRun {
        self.run(host, cx, Scope::All)
    }

    /// As [`try_run`](Self::try_run), for whoever watches the descriptors: of the queues that have one, only those that
    /// [`interrupt`](Self::interrupt) has named are polled.
    pub fn run_interrupted(&self, host: &Host, cx: &mut Cx) -> CoreRun {
        self.run(host, cx, Scope::Scheduled)
    }

    fn run(&self, host: &Host, cx: &mut Cx, scope: Scope) -> CoreRun {
        let Some(guard) = self.lock.try_own() else { return CoreRun::Elsewhere };
        cx.set_home(host, self.id);
        match self.run_turns(host, guard, cx, scope) {
            Some(_) => CoreRun::Pending,
            None => CoreRun::Idle,
        }
    }

    /// As [`try_run`](Self::try_run), or with `watched` [`run_interrupted`](Self::run_interrupted), for the core's worker.
    ///
    /// It wakes threads when the core is free, for what they do first is to want it. When one of them is a reader who polls, and
    /// more has arrived by descriptors, that is left to it ([`CoreRun::Left`]): fetched here it would be in other caches.
    /// So is what comes until it has been there.
    pub fn run_as_worker(&self, host: &Host, cx: &mut Cx, watched: bool) -> CoreRun {
        if self.is_left_alone(cx.now) {
            return CoreRun::Left;
        }
        let Some(guard) = self.lock.try_own() else { return CoreRun::Elsewhere };
        cx.set_home(host, self.id);
        if self.is_bulk() && self.attendance.sleeper_polls() {
            cx.hold_wakes();
        }
        let scope = if watched { Scope::Scheduled } else { Scope::All };
        let owed = self.run_turns(host, guard, cx, scope).is_some();
        let leaves = !owed && cx.has_left();
        if leaves {
            cx.now = cx.read_clock();
            self.leave_to_reader(cx);
            let entered = cx.enter(host);
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

    /// For a thread that came for something else: if work keeps coming in, it goes its way, and somebody else takes over.
    pub(super) fn run_for_another(
        &self,
        host: &Host,
        guard: CoreGuard<'_, CoreState>,
        cx: &mut Cx,
    ) {
        if let Some(guard) = self.run_turns(host, guard, cx, Scope::Scheduled) {
            self.leave(host, guard, cx);
        }
    }

    /// Lets a core go that has more to do: its worker takes over. Linux: `wakeup_softirqd`.
    ///
    /// Differs from Linux, where every CPU has a ksoftirqd: a core may have no worker. Then it is nobody's from here on, with a queue
    /// that is due, so that it wants to be run at once ([`next_deadline`](Self::next_deadline)): whoever polls its host, rings its
    /// doorbell or waits on it next comes for all of it.
    #[cold]
    fn leave(&self, host: &Host, guard: CoreGuard<'_, CoreState>, cx: &mut Cx) {
        guard.reschedule();
        if self.hand_to_worker(cx) {
            return;
        }
        let Some(guard) = self.lock.claim() else { return };
        // Of what is left not everything has a bit: the backlog's stands for all.
        guard.put_back(1 << BACKLOG);
        drop(guard);
        let entered = cx.enter(host);
        cx.count(Counter::CoreLeft, 1);
        cx.leave(entered);
    }

    /// Runs turns until every queue is empty and lets the core go, or gives it back after [`TURNS_MAX`]: the caller has
    /// other things to do, and the time it has read grows old.
    fn run_turns<'a>(
        &self,
        host: &Host,
        mut guard: CoreGuard<'a, CoreState>,
        cx: &mut Cx,
        scope: Scope,
    ) -> Option<CoreGuard<'a, CoreState>> {
        for _ in 0..TURNS_MAX {
            if turn(host, self, &mut guard, cx, scope) == PollReport::Pending {
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
            let entered = cx.enter(host);
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
        let is_up = self.host.upgrade().is_some_and(|host| host.check_up().is_ok());
        if !(is_up && self.kick_worker()) {
            // Releases the ownership bit and leaves the bits of the queues.
            drop(self.lock.claim());
        }
    }

    fn schedule_backlog(&self) -> bool {
        if !self.lock.schedule(1 << BACKLOG) {
            return false;
        }
        let is_up = self.host.upgrade().is_some_and(|host| host.check_up().is_ok());
        !(is_up && self.kick_worker())
    }

    fn run_scheduled(&self, cx: &mut Cx, owed: Owed) {
        let Some(guard) = self.take(owed) else { return };
        match self.host.upgrade() {
            Some(host) => {
                let entered = cx.enter(&host);
                cx.count(Counter::CoreDoorbells, 1);
                self.run_for_another(&host, guard, cx);
                cx.leave(entered);
            }
            None => self.forget(guard),
        }
    }

    #[cold]
    fn hand_over(&self, cx: &mut Cx, owed: Owed) {
        let Some(guard) = self.take(owed) else { return };
        match self.host.upgrade() {
            Some(host) => self.leave(&host, guard, cx),
            None => self.forget(guard),
        }
    }

    #[cold]
    fn disown(&self, owed: Owed) {
        let Some(guard) = self.take(owed) else { return };
        match self.host.upgrade() {
            Some(host) if host.check_up().is_ok() => {
                // Without a worker nobody knows that the core is owed a run: nobody owns the core then.
                guard.reschedule();
                if !self.kick_worker() {
                    drop(self.lock.claim());
                }
            }
            Some(_) => drop(guard),
            None => self.forget(guard),
        }
    }

    /// A thread that sends in bulk takes the acknowledgements itself, so that the worker need not be woken for each of them.
    fn poll_in_passing(&self, cx: &mut Cx) {
        if !self.has_descriptors() {
            return;
        }
        let Some(host) = self.host.upgrade() else { return };
        let Some(mut guard) = self.lock.own_if_idle() else { return };
        // The call that brought us here read the clock a superframe ago.
        cx.now = cx.read_clock();
        let report = turn(&host, self, &mut guard, cx, Scope::All);
        self.note_poll(cx);
        // Queues that nobody announces do not keep a core from being released.
        let owed = match report {
            PollReport::Pending => Some(guard),
            PollReport::AllDone => guard.release().err(),
        };
        if let Some(guard) = owed {
            self.run_for_another(&host, guard, cx);
        }
        cx.do_softirq();
    }

    fn leave_polling(&self, poller: Poller) {
        self.attendance.leave_polling(poller);
    }

    fn report(&self, event: Event) {
        if let Some(host) = self.host.upgrade() {
            host.report(event);
        }
    }
}
