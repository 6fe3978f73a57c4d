//! Application threads that poll a core: while they wait for something, or in passing.
//!
//! Above: socket calls, by crate `quietline`. Linux: `napi_busy_loop`, `busy_poll_stop`.
//!
//! Not here: how long they do (`socket::BusyPoll`), and what the worker does meanwhile (`sleep`).

use sync::CoreGuard;

use super::{
    Core, CoreState, Scope,
    turn::{self, turn},
};
use crate::{cx::Cx, host::Host};

/// Looks between two cycles of busy polling that found nothing: some 0.4 µs. What arrives in a cycle waits for the next.
const LOOKS: u32 = 128;

impl Core {
    /// Runs cycles of at most `budget` frames until `done`, if nobody else runs the core: for a caller that waits for
    /// something. It keeps the ownership in between, as busy polling keeps NAPI's, so that frames are processed where they
    /// are awaited and not by their senders, who write nothing but the ring that a frame comes by. False when somebody else
    /// runs it: that thread will do the work. Linux: `napi_busy_loop`.
    ///
    /// The end is `busy_poll_stop`'s: what the last cycle left over keeps the ownership here, and is polled as any
    /// other run would. Once the ownership is given up nothing of the core is touched again, since it may be running
    /// elsewhere by then.
    pub fn busy_poll(
        &self,
        host: &Host,
        cx: &mut Cx,
        budget: usize,
        mut done: impl FnMut(&mut Cx) -> bool,
    ) -> bool {
        cx.set_home(host, self.id);
        let Some(mut guard) = self.lock.own_if_idle() else { return false };
        guard.poll_queues(guard.ringed);
        self.relieve_worker(cx);
        loop {
            let _ = turn(host, self, &mut guard, cx, Scope::Busy(budget));
            cx.do_softirq();
            if done(cx) {
                break;
            }
            self.look_out(&guard);
        }
        turn::stop_cycles(host, &mut guard, cx);
        cx.do_softirq();
        // The worker is not resumed: this thread will most likely be back before a worker could take over. It says so
        // with `stop_polling` when it is not.
        self.note_poll(cx);
        let unannounced = guard.stop_polling();
        let arrived = guard.arrived() & unannounced;
        if arrived != 0 {
            guard.put_back(arrived);
        }
        if let Err(guard) = guard.release() {
            self.run_for_another(host, guard, cx);
            // What it has sent may have raised other cores, and nobody else will run them.
            cx.do_softirq();
        }
        true
    }

    /// Between two cycles that found nothing: waits for a sign that the next one will find something, for as long as a few cycles
    /// take. A sign costs two loads, a cycle and the look at the clock behind it as much as ten signs.
    fn look_out(&self, guard: &CoreGuard<'_, CoreState>) {
        if !guard.hears_of_all() {
            return;
        }
        let nothing =
            || !guard.is_wanted() && guard.arrived() == 0 && !self.sockets.tasklet().is_pending();
        let mut looks = 0;
        while looks < LOOKS && nothing() {
            looks += 1;
        }
        if looks < LOOKS {
            // Most likely it is what this thread waits for.
            guard.prepare_release();
        }
    }
}
