//! Workers: one thread per core that runs it when nobody else does, and sleeps otherwise.
//!
//! A worker sleeps in poll(2) on the descriptors of its core's device queues and on an eventfd, until the core's next
//! timer. After frames it polls on for a moment that grows while they come often (`patience`), so that a stack under load does
//! not sleep between two frames, and one that idles costs nothing. It is kicked through the eventfd when a timer is armed for earlier or a core is handed to it. Linux:
//! ksoftirqd, threaded NAPI.
//!
//! A readable descriptor is what an interrupt is in Linux: it schedules its queue, and of the queues with a descriptor the
//! turn polls only those. While an application thread runs the core in the worker's stead it polls them all, and they may
//! stay readable; the worker then waits for that thread to let go instead of spinning on them.

use std::{
    cell::RefCell,
    io,
    num::NonZeroU64,
    os::fd::{AsFd, OwnedFd},
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pkt::{Instant, PoolKick};
use rustix::{
    event::{EventfdFlags, PollFd as Poll, PollFlags, Timespec, eventfd, poll},
    io::{read, write},
    thread::set_current_timer_slack,
};
use stack::{
    Cx,
    base::ids::NapiId,
    core::{Core, CoreRun, Kick},
    device::QueueId,
    host::Host,
};

use crate::{
    attachments::Attachments,
    builder::Attachment,
    clock, entropy,
    housekeeping::Housekeeping,
    patience::{Offer, Window},
    running::until,
};

/// Wakes a parked worker.
#[derive(Debug)]
struct Eventfd(OwnedFd);

impl Kick for Eventfd {
    fn kick(&self) {
        // The counter of an eventfd saturates only after 2^64 kicks nobody has read.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Tells the worker of a core that packets have come home to its thread.
struct HomeKick(Arc<Core>);

impl PoolKick for HomeKick {
    fn kick(&self) {
        self.0.wake_before(Instant::ZERO);
    }
}

/// The request to end, and the descriptors to kick for it.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    requested: AtomicBool,
    kicks: Mutex<Vec<Arc<Eventfd>>>,
}

impl Stop {
    pub(crate) fn stop(&self) {
        self.requested.store(true, Ordering::Release);
        self.kick();
    }

    /// Makes every worker look again.
    pub(crate) fn kick(&self) {
        for kick in self.kicks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            kick.kick();
        }
    }

    fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }
}

/// Starts one worker for each core of `host`.
pub(crate) fn start(
    host: &Arc<Host>,
    attachments: &[Attachment],
    shared: &Arc<Attachments>,
    stop: &Arc<Stop>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    for (index, core) in host.cores().iter().enumerate() {
        let kick = Arc::new(Eventfd(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?));
        core.set_kick(Arc::clone(&kick) as Arc<dyn Kick>);
        stop.kicks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&kick));
        let worker = Worker {
            host: Arc::clone(host),
            core: Arc::clone(core),
            queues: RefCell::new(queues_of(core, index, host.cores().len(), attachments)),
            attachments: Arc::clone(shared),
            kick,
            stop: Arc::clone(stop),
        };
        let name = format!("ql/{}/{index}", host.name());
        threads.push(thread::Builder::new().name(name).spawn(move || worker.live())?);
    }
    Ok(threads)
}

/// The queues of core `index` of `cores` that have a descriptor: the same spreading as the host's.
fn queues_of(core: &Core, index: usize, cores: usize, attachments: &[Attachment]) -> Vec<Watched> {
    // The host's device 0 is loopback.
    (1..)
        .zip(attachments)
        .filter(|(_, attachment)| attachment.fds.is_some())
        .flat_map(|(device, attachment)| {
            (0..attachment.device.caps().queues)
                .filter(move |queue| usize::from(*queue) % cores == index)
                .filter_map(move |queue| {
                    let napi = core.napi_of(device, QueueId(queue))?;
                    Some(Watched { attachment: attachment.clone(), queue, napi })
                })
        })
        .collect()
}

/// A queue with its descriptor.
struct Watched {
    attachment: Attachment,
    queue: u16,
    napi: NapiId,
}

struct Worker {
    host: Arc<Host>,
    core: Arc<Core>,
    queues: RefCell<Vec<Watched>>,
    /// Devices of the whole stack.
    attachments: Arc<Attachments>,
    kick: Arc<Eventfd>,
    stop: Arc<Stop>,
}

impl Worker {
    /// The life of a worker's thread. A stack whose worker panics is shut down: nobody would fire its timers, so that threads would
    /// wait for ever.
    fn live(&self) {
        if panic::catch_unwind(AssertUnwindSafe(|| self.run())).is_ok() {
            return;
        }
        self.host.worker_panicked(&self.core);
        let mut cx = Cx::new(clock::memory(), entropy::rng()).with_clock(clock::now);
        cx.now = clock::now();
        self.host.shut_down(&mut cx);
        self.stop.stop();
    }

    fn run(&self) {
        // Timers of the network are finer than the 50 µs that the kernel may add to a sleep. Where it refuses they are late.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut cx = Cx::new(clock::memory(), entropy::rng()).with_clock(clock::now);
        let mut window = Window::default();
        cx.pool.set_kick(Some(Arc::new(HomeKick(Arc::clone(&self.core)))));
        // Whether the descriptors were watched until now: then those that say nothing have nothing.
        let mut watched = false;
        let mut slept = None;
        let mut housekeeping = Housekeeping::new(Arc::clone(&self.kick) as Arc<dyn Kick>);
        while !self.stop.is_requested() {
            cx.stay_online();
            cx.now = clock::now();
            self.let_go(&mut cx);
            // Also when another thread runs the core: what came home waits for this thread.
            cx.pool.drain_returns();
            let before = cx.received();
            let run = self.core.run_as_worker(&self.host, &mut cx, watched);
            cx.do_softirq();
            if run == CoreRun::Pending {
                watched = false;
                continue;
            }
            if run != CoreRun::Left
                && cx.received() > before
                && self.poll_on(&mut cx, &mut window, slept.take())
            {
                watched = false;
                continue;
            }
            cx.go_offline();
            let ran = run != CoreRun::Elsewhere;
            // Without queues of the operating system only timers are the worker's, and they can wait a little. With them,
            // what an application thread polls need not be watched.
            let watch = self.queues.borrow().is_empty() || ran && !self.core.is_polled(cx.now);
            let limit = housekeeping.before_sleep();
            let begin = clock::now();
            watched = self.sleep(&cx, watch, ran, limit);
            slept = Some(until(begin, clock::now()));
        }
        // Once more: the core may have been handed over just before the host went down.
        let _ = self.core.try_run(&self.host, &mut cx);
        cx.do_softirq();
        cx.go_offline();
    }

    /// Takes devices away whose interface is gone. Devices that were taken away are not watched, and their descriptors not kept.
    fn let_go(&self, cx: &mut Cx) {
        if self.has_lost_interface() && self.attachments.remove_gone(&self.host, cx) {
            // Other workers may watch queues of the device.
            self.stop.kick();
        }
        let gone = |queue: &Watched| self.core.is_gone(queue.napi);
        if self.queues.borrow().iter().any(gone) {
            self.queues.borrow_mut().retain(|queue| !gone(queue));
        }
    }

    /// Whether a device of this core's queues has lost its interface.
    fn has_lost_interface(&self) -> bool {
        self.queues.borrow().iter().any(|queue| queue.attachment.is_gone())
    }

    /// Frames have come, after the worker had `slept`: polls on as long as more come within the window. It does not keep the
    /// core meanwhile, and ends when an application thread polls it, which gets what it waits for at first hand. True if the
    /// core has work left that nobody else will do.
    fn poll_on(&self, cx: &mut Cx, window: &mut Window, slept: Option<Duration>) -> bool {
        let limit = Duration::from_micros(u64::from(cx.sysctls_of(&self.host).worker_poll));
        if let Some(slept) = slept {
            window.on_wake(slept, limit);
        }
        // Only descriptors bring frames that nobody else would look for.
        if window.width().is_zero() || self.queues.borrow().is_empty() {
            return false;
        }
        cx.now = clock::now();
        let mut offer = Offer::new(cx.now);
        let mut end = cx.now + window.width();
        let mut pending = false;
        while cx.now < end && !self.stop.is_requested() {
            let before = cx.received();
            let run = self.core.run_as_worker(&self.host, cx, false);
            cx.do_softirq();
            cx.now = clock::now();
            pending = run == CoreRun::Pending;
            if run == CoreRun::Elsewhere || self.core.is_polled(cx.now) {
                return pending;
            }
            if cx.received() > before {
                end = cx.now + window.width();
            }
            if offer.at(&mut cx.now) {
                window.close();
                return pending;
            }
        }
        pending
    }

    /// Sleeps until a frame, a kick or a timer. When another thread runs the core (`ran` is false) or polls it, until that
    /// thread stops, and never less than a moment: it also runs the timers that are due. At most as long as `limit`. True if the
    /// descriptors were watched.
    fn sleep(&self, cx: &Cx, watch_queues: bool, ran: bool, limit: Option<Duration>) -> bool {
        /// Shortest sleep of a worker whose core is run by another thread.
        const BUSY_SLEEP_MIN: Duration = Duration::from_millis(1);
        let deadline = self.core.prepare_sleep(cx.now, !watch_queues);
        let timeout = deadline.map(|deadline| until(clock::now(), deadline));
        // Whoever ran it may have left meanwhile, and not have seen that this worker waits for that.
        let busy = !ran && !self.core.is_free();
        let timeout = if busy { timeout.map(|time| time.max(BUSY_SLEEP_MIN)) } else { timeout };
        let timeout = match (timeout, limit) {
            (Some(timeout), Some(limit)) => Some(timeout.min(limit)),
            (timeout, limit) => timeout.or(limit),
        };
        // Sent home before we had said that we sleep.
        let idle = !cx.pool.has_deferred() && !self.has_lost_interface();
        let waits = timeout != Some(Duration::ZERO) && idle;
        if waits {
            self.wait(watch_queues, timeout);
        }
        self.core.finish_sleep();
        let mut count = [0; 8];
        let _ = read(&self.kick.0, &mut count[..]);
        waits && watch_queues
    }

    fn wait(&self, watch_queues: bool, timeout: Option<Duration>) {
        let queues = self.queues.borrow();
        let mut fds = Vec::with_capacity(1 + queues.len());
        fds.push(Poll::from_borrowed_fd(self.kick.0.as_fd(), PollFlags::IN));
        let mut polls = Vec::with_capacity(queues.len());
        let mut links = Vec::new();
        for Watched { attachment, queue, napi } in &*queues {
            let Some(device) = attachment.fds.as_ref().filter(|device| !device.is_gone()) else {
                continue;
            };
            // An interface is deleted whoever polls its queues.
            links.extend(device.link_fd().filter(|_| *queue == 0).map(|fd| (device, fd)));
            if watch_queues && !self.core.is_masked(*napi) {
                fds.push(Poll::from_borrowed_fd(device.poll_fd(*queue), PollFlags::IN));
                polls.push((device, *queue, *napi));
            }
        }
        fds.extend(links.iter().map(|(_, fd)| Poll::from_borrowed_fd(*fd, PollFlags::IN)));
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        // A poll that was interrupted or refused has seen nothing: all of them are looked at.
        let polled = poll(&mut fds, timeout.as_ref());
        let reported = |fd: &Poll<'_>| polled.is_err() || !fd.revents().is_empty();
        let (queue_fds, link_fds) = fds[1..].split_at(polls.len());
        for (fd, (device, queue, napi)) in queue_fds.iter().zip(polls) {
            if reported(fd) {
                device.acknowledge(queue);
                self.core.interrupt(napi);
            }
        }
        for (fd, (device, _)) in link_fds.iter().zip(links) {
            if reported(fd) {
                device.check_link();
            }
        }
    }
}

#[cfg(test)]
mod tests;
