//! Busy polling: application threads that run a core while they wait for a socket.
//!
//! Above: socket calls, by crate `quietline`. Linux: `napi_busy_loop`, `busy_poll_stop`.
//!
//! Not here: how long a thread polls (`socket::BusyPoll`), and how the worker behaves meanwhile
//! (`sleep`).

use sync::CoreGuard;

use super::{
    Core, CoreState, Scope,
    turn::{self, turn},
};
use crate::{cx::Cx, socket::net::Net};

/// Maximum number of checks for an arrival between two cycles; without an arrival, all of them take
/// about 0.4 µs together. A frame that arrives during a cycle waits for the next one.
const LOOKS: u32 = 128;

impl Core {
    /// Runs cycles (turns that end once `budget` frames were taken) until `done` returns true, if
    /// no thread owns the core. Returns false if another thread owns it: that thread does the work.
    /// Linux: `napi_busy_loop`.
    ///
    /// The caller keeps the ownership between cycles, as busy polling keeps NAPI's. Therefore
    /// frames are processed on the waiting thread, and their senders only write them to a ring.
    ///
    /// At the end, as in `busy_poll_stop`, the work that the last cycle left is done under the same
    /// ownership. After the release nothing of the core is accessed, because another thread may own
    /// it.
    pub fn busy_poll(
        &self,
        net: &Net,
        cx: &mut Cx,
        budget: usize,
        mut done: impl FnMut(&mut Cx) -> bool,
    ) -> bool {
        cx.set_home(net, self.id);
        let Some(mut guard) = self.lock.own_if_idle() else { return false };
        guard.poll_queues(guard.ringed);
        self.suspend_worker(cx);
        loop {
            let _ = turn(net, self, &mut guard, cx, Scope::Busy(budget));
            cx.do_softirq();
            if done(cx) {
                break;
            }
            self.spin_until_work(&guard);
        }
        turn::stop_cycles(net, &mut guard, cx);
        cx.do_softirq();
        // The worker is not resumed, because this thread will most likely poll again before the
        // worker could take over. Otherwise the thread calls `stop_polling`.
        self.note_poll(cx);
        let unannounced = guard.stop_polling();
        let arrived = guard.arrived() & unannounced;
        if arrived != 0 {
            guard.put_back(arrived);
        }
        if let Err(guard) = guard.release() {
            self.run_for_another(net, guard, cx);
            // The packets that this thread has sent may have raised other cores (added them to the
            // list in `cx::softirq`), which only this thread will run.
            cx.do_softirq();
        }
        true
    }

    /// Waits until a check shows that the next cycle will find work, but at most for the time of a
    /// few cycles. A check costs two loads; a cycle and its clock read cost ten times as much.
    fn spin_until_work(&self, guard: &CoreGuard<'_, CoreState>) {
        if !guard.signals_every_arrival() {
            return;
        }
        let nothing = || !guard.is_wanted() && guard.arrived() == 0 && !self.tasklet.is_pending();
        let mut looks = 0;
        while looks < LOOKS && nothing() {
            looks += 1;
        }
        if looks < LOOKS {
            // The new work is most likely the awaited event.
            guard.prepare_release();
        }
    }
}
