//! Workers: one thread per core, which runs the core when no other thread does, and sleeps
//! otherwise.
//!
//! A worker sleeps in poll(2) on the descriptors of its core's device queues and on an eventfd,
//! until the core's next timer. After frames it keeps polling for a window that grows while frames
//! arrive often (`polling`): a loaded stack does not sleep between two frames, and an idle stack
//! does not poll. Another thread writes to the eventfd when it arms an earlier timer or hands the
//! core to the worker. Linux: ksoftirqd, threaded NAPI.
//!
//! A readable descriptor corresponds to an interrupt in Linux: it schedules its queue, and of the
//! queues with a descriptor a turn polls only the scheduled ones. An application thread that runs
//! the core polls all queues, and their descriptors may stay readable. The worker then waits until
//! that thread releases the core, and does not spin on the descriptors.

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
    base::ids::{DeviceIndex, NapiId},
    core::{Core, CoreRun, Kick},
    device::QueueId,
    host::Host,
};

use crate::{
    attachments::{Attachment, Attachments},
    clock, entropy,
    handle::until,
    housekeeping::Housekeeping,
    polling::{Window, YieldTimer},
};

/// Wakes a sleeping worker.
#[derive(Debug)]
struct Eventfd(OwnedFd);

impl Kick for Eventfd {
    fn kick(&self) {
        // The counter of an eventfd saturates only after 2^64 unread kicks.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }
}

/// Wakes the worker of a core after another thread has returned packets to the worker's pool.
struct ReturnKick(Arc<Core>);

impl PoolKick for ReturnKick {
    fn kick(&self) {
        self.0.wake_before(Instant::ZERO);
    }
}

/// Stop request for all workers of a stack, and the eventfds that wake them.
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

    /// Wakes every worker, which then checks for a stop request and for removed devices.
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
        threads.push(thread::Builder::new().name(name).spawn(move || worker.run_or_shut_down())?);
    }
    Ok(threads)
}

/// Returns the queues of core `index` of `cores` whose device has descriptors or reports its
/// removal. Queues are assigned to cores by the rule that the host uses.
fn queues_of(core: &Core, index: usize, cores: usize, attachments: &[Attachment]) -> Vec<Watched> {
    // The host's device 0 is loopback.
    (1..)
        .map(DeviceIndex)
        .zip(attachments)
        .filter(|(_, attachment)| attachment.concerns_workers())
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

/// A queue, and the device whose descriptors are watched.
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
    /// Runs the worker. If the worker panics, shuts the stack down: no thread would fire the timers
    /// of its core, and application threads would wait forever.
    fn run_or_shut_down(&self) {
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
        // Network timers are finer than the 50 µs that the kernel may add to a sleep. If the kernel
        // refuses, timers are late.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut cx = Cx::new(clock::memory(), entropy::rng()).with_clock(clock::now);
        let mut window = Window::default();
        cx.pool.set_kick(Some(Arc::new(ReturnKick(Arc::clone(&self.core)))));
        // Whether the descriptors were watched during the last sleep. If so, a queue whose
        // descriptor did not report has no frame.
        let mut watched = false;
        let mut slept = None;
        let mut housekeeping = Housekeeping::new(Arc::clone(&self.kick) as Arc<dyn Kick>);
        while !self.stop.is_requested() {
            cx.stay_online();
            cx.now = clock::now();
            self.release_removed(&mut cx);
            // Needed even if another thread runs the core: packets returned to this thread's pool
            // can only be freed here.
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
            // Without descriptors the worker has only timers to run, and a later sleep does no
            // harm. With descriptors, the worker does not watch queues that an application thread
            // polls.
            let watch = !self.has_descriptors() || ran && !self.core.is_polled(cx.now);
            let limit = housekeeping.before_sleep();
            let begin = clock::now();
            watched = self.sleep(&cx, watch, ran, limit);
            slept = Some(until(begin, clock::now()));
        }
        // Run the core once more: it may have been handed over just before the host was shut down.
        let _ = self.core.try_run(&self.host, &mut cx);
        cx.do_softirq();
        cx.go_offline();
    }

    /// Removes devices whose interface is gone, and releases the queues and descriptors of removed
    /// devices.
    fn release_removed(&self, cx: &mut Cx) {
        if self.has_lost_interface() && self.attachments.remove_gone(&self.host, cx) {
            // Other workers may watch queues of the device.
            self.stop.kick();
        }
        let gone = |queue: &Watched| self.core.is_gone(queue.napi);
        if self.queues.borrow().iter().any(gone) {
            self.queues.borrow_mut().retain(|queue| !gone(queue));
        }
    }

    /// Returns whether a queue of this core has a descriptor.
    fn has_descriptors(&self) -> bool {
        self.queues.borrow().iter().any(|queue| queue.attachment.fds.is_some())
    }

    /// Returns whether a device of this core's queues has lost its interface.
    fn has_lost_interface(&self) -> bool {
        self.queues.borrow().iter().any(|queue| queue.attachment.is_gone())
    }

    /// Polls after the worker has received frames, having `slept` before: continues while further
    /// frames arrive within the window. Releases the core between polls. Stops when an application
    /// thread polls the core, because that thread then receives its frames without a wake. Returns
    /// true if the core has work left that no other thread will do.
    fn poll_on(&self, cx: &mut Cx, window: &mut Window, slept: Option<Duration>) -> bool {
        let limit = Duration::from_micros(u64::from(cx.sysctls_of(&self.host).worker_poll));
        if let Some(slept) = slept {
            window.on_wake(slept, limit);
        }
        // Without descriptors, the sender of a frame schedules the core and runs it, so polling
        // finds nothing.
        if window.width().is_zero() || !self.has_descriptors() {
            return false;
        }
        cx.now = clock::now();
        let mut yield_timer = YieldTimer::new(cx.now);
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
            if yield_timer.yield_if_due(&mut cx.now) {
                window.close();
                return pending;
            }
        }
        pending
    }

    /// Sleeps until a frame, a kick or a timer, at most `limit`. If another thread runs the core
    /// (`ran` is false) or polls it, sleeps until that thread stops, and never less than
    /// `BUSY_SLEEP_MIN`: that thread also runs the expired timers. Returns true if the
    /// descriptors were watched.
    fn sleep(&self, cx: &Cx, watch_queues: bool, ran: bool, limit: Option<Duration>) -> bool {
        /// Shortest sleep of a worker while another thread runs its core.
        const BUSY_SLEEP_MIN: Duration = Duration::from_millis(1);
        let deadline = self.core.prepare_sleep(cx.now, !watch_queues);
        let timeout = deadline.map(|deadline| until(clock::now(), deadline));
        // The thread that ran the core may have released it before it could see that this worker
        // waits for the release.
        let busy = !ran && !self.core.is_free();
        let timeout = if busy { timeout.map(|time| time.max(BUSY_SLEEP_MIN)) } else { timeout };
        let timeout = match (timeout, limit) {
            (Some(timeout), Some(limit)) => Some(timeout.min(limit)),
            (timeout, limit) => timeout.or(limit),
        };
        // Packets may have been returned before `prepare_sleep`; no kick announces those.
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
            // An interface may be deleted no matter which thread polls its queues, so always watch
            // the link.
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
        // If poll(2) was interrupted or failed, it reported nothing: treat every descriptor as
        // ready.
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
