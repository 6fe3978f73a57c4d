//! Polling of a worker after frames, with a device that counts its polls.
//!
//! The tests run in real time, so they assert nothing that a descheduled thread could make untrue.

mod panics;

use std::{os::fd::BorrowedFd, sync::atomic::AtomicUsize};

use pkt::{Batch, DropReason, PacketList};
use stack::{
    Capabilities, Device,
    base::ids::DeviceIndex,
    device::{LinkType, RxSignal},
    host::config::{DeviceConfig, HostConfig},
    sysctl::Sysctls,
};

use super::*;
use crate::attachments::PollFd;

/// A queue with a descriptor and a number of waiting frames that no socket receives.
#[derive(Debug)]
struct Ring {
    caps: Capabilities,
    waiting: AtomicUsize,
    polls: AtomicUsize,
    /// Upper bound of the frames that one poll returns.
    at_once: usize,
}

impl Device for Ring {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let taken = self.waiting.load(Ordering::Relaxed).min(budget).min(self.at_once);
        self.waiting.fetch_sub(taken, Ordering::Relaxed);
        for _ in 0..taken {
            let frame = cx.pool.alloc_from(&[0; 64]).expect("memory");
            out.push(frame).expect("room for the budget");
        }
        taken
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            cx.pool.free(packet);
        }
    }

    fn rx_signal(&self, _queue: QueueId) -> RxSignal {
        RxSignal::Descriptor
    }
}

/// Descriptor of the ring. These tests never sleep on it.
struct Signal(OwnedFd);

impl PollFd for Signal {
    fn poll_fd(&self, _queue: u16) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a worker without a thread, and its only queue.
fn worker_with_ring(at_once: usize, frames: usize) -> (Worker, Arc<Ring>, Cx) {
    let caps = Capabilities::plain("ring", 1500, LinkType::Ip);
    let (waiting, polls) = (AtomicUsize::new(frames), AtomicUsize::new(0));
    let ring = Arc::new(Ring { caps, waiting, polls, at_once });
    let mut sysctls = Sysctls::default();
    // Time for which a thread that prefers busy polling keeps the worker from polling.
    sysctls.set("net.quietline.dev.default.gro_flush_timeout", "1000000000").expect("a time");
    let device = DeviceConfig { device: Arc::clone(&ring) as _, addresses: Vec::new() };
    let config = HostConfig { cores: 1, devices: vec![device], sysctls, ..HostConfig::replay(0) };
    let host = Host::new(clock::memory(), config).expect("a host");
    let core = Arc::clone(&host.cores()[0]);
    let napi = core.napi_of(DeviceIndex(1), QueueId(0)).expect("an instance");
    let signal = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("a descriptor");
    let attachment = Attachment::new(Arc::clone(&ring)).poll_fds(Arc::new(Signal(signal)));
    let kick = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("a descriptor");
    let worker = Worker {
        host,
        core,
        queues: RefCell::new(vec![Watched { attachment, queue: 0, napi }]),
        attachments: Arc::new(Attachments::new(Vec::new())),
        kick: Arc::new(Eventfd(kick)),
        stop: Arc::new(Stop::default()),
    };
    let mut cx = Cx::new(clock::memory(), entropy::rng()).with_clock(clock::now);
    cx.now = clock::now();
    (worker, ring, cx)
}

const SOON: Option<Duration> = Some(Duration::ZERO);

#[test]
fn frames_in_quick_succession_are_received_without_a_sleep() {
    let (worker, ring, mut cx) = worker_with_ring(1, 100);
    let mut window = Window::default();
    let mut rounds = 0;
    while ring.waiting.load(Ordering::Relaxed) > 0 {
        // If another thread needs the CPU, the window closes; the worker would then sleep and be
        // woken.
        let before = cx.received();
        worker.poll_on(&mut cx, &mut window, SOON);
        assert!(cx.received() > before, "the worker polls while its window is open");
        rounds += 1;
    }
    assert!(rounds <= 100 && cx.received() == 100, "{} frames in {rounds} rounds", cx.received());
}

#[test]
fn a_worker_with_rare_frames_does_not_poll() {
    let (worker, ring, mut cx) = worker_with_ring(1, 100);
    let mut window = Window::default();
    assert!(!worker.poll_on(&mut cx, &mut window, Some(Duration::from_secs(1))));
    assert!(!worker.poll_on(&mut cx, &mut window, None), "the worker has not slept before");
    worker.host.set_sysctl("net.quietline.worker_poll_usecs", "0").expect("a number");
    assert!(!worker.poll_on(&mut cx, &mut window, SOON), "polling is switched off");
    assert_eq!(ring.polls.load(Ordering::Relaxed), 0);
}

/// An application thread polls the core, so the worker leaves after one run. It must report
/// remaining work, because that thread has not scheduled it.
#[test]
fn a_worker_leaves_a_polled_core_and_reports_remaining_work() {
    let (worker, ring, mut cx) = worker_with_ring(usize::MAX, 0);
    let mut window = Window::default();
    for frames in [100_000, 0] {
        // `stop_polling` keeps the worker away for one second at most. If the machine stalls for
        // longer, repeat the step.
        let pending = loop {
            ring.waiting.store(frames, Ordering::Relaxed);
            cx.now = clock::now();
            worker.core.stop_polling(&mut cx, &worker.host, true);
            assert!(worker.core.is_polled(cx.now));
            let pending = worker.poll_on(&mut cx, &mut window, SOON);
            if worker.core.is_polled(clock::now()) {
                break pending;
            }
        };
        assert_eq!(pending, frames > 0, "the worker reports remaining work");
        let left = ring.waiting.load(Ordering::Relaxed);
        let after_one_run = if frames > 0 { 90_000..100_000 } else { 0..1 };
        assert!(after_one_run.contains(&left), "{left} frames are left");
    }
}

#[test]
fn a_stopped_worker_does_not_poll() {
    let (worker, ring, mut cx) = worker_with_ring(1, 100);
    worker.stop.stop();
    assert!(!worker.poll_on(&mut cx, &mut Window::default(), SOON));
    assert_eq!(ring.polls.load(Ordering::Relaxed), 0);
}

/// Taking a device down masks the descriptor, and a worker that sleeps meanwhile does not watch it:
/// without a kick the worker would never wake. Frames that arrived while the device was down are
/// dropped.
#[test]
fn a_sleeping_worker_is_woken_when_a_device_comes_up() {
    let (worker, ring, mut cx) = worker_with_ring(usize::MAX, 0);
    worker.core.set_kick(Arc::clone(&worker.kick) as _);
    let napi = worker.queues.borrow()[0].napi;
    let is_kicked = || read(&worker.kick.0, &mut [0; 8][..]).is_ok();
    assert_eq!(worker.host.set_device_up(&mut cx, DeviceIndex(1), false), Ok(()));
    assert!(worker.core.is_masked(napi));
    ring.waiting.store(100, Ordering::Relaxed);
    worker.core.interrupt(napi);
    assert_eq!(worker.core.run_interrupted(&worker.host, &mut cx), CoreRun::Idle);
    assert_eq!(ring.waiting.load(Ordering::Relaxed), 100, "a masked queue is not polled");
    assert_eq!(worker.core.prepare_sleep(cx.now, false), None, "no timer is armed");
    let _ = is_kicked();
    assert_eq!(worker.host.set_device_up(&mut cx, DeviceIndex(1), true), Ok(()));
    assert!(!worker.core.is_masked(napi) && is_kicked());
    worker.core.finish_sleep();
    assert_eq!(ring.waiting.load(Ordering::Relaxed), 0);
    let counters = worker.host.counters();
    assert_eq!(counters.drops(DropReason::DeviceDown), 100);
    assert_eq!(counters.get("DeviceRxPackets"), Some(0));
}

#[test]
fn a_polling_window_without_frames_ends() {
    let (worker, ring, mut cx) = worker_with_ring(1, 0);
    assert!(!worker.poll_on(&mut cx, &mut Window::default(), SOON));
    assert!(ring.polls.load(Ordering::Relaxed) > 0 && cx.received() == 0);
}
