//! Cores: every frame is processed, whichever threads ring, own or poll, and no worker sleeps while
//! there is work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use sim::{Peer, Rig, RigConfig};
use stack::{Cx, base::counters::Counter, core::Kick};
use tcp::Flags;

/// Frames that each of two senders delivers.
const FRAMES: u64 = 20_000;

/// Two threads ring while two others repeatedly own the core. At the end every frame has been
/// processed: a doorbell that found the core owned was not lost.
#[test]
fn a_doorbell_to_a_busy_core_is_not_lost() {
    let rig = Rig::new(RigConfig::default());
    let host = rig.host();
    let (memory, link) = (rig.world.memory().clone(), Arc::clone(&rig.link));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut cx = Cx::replay(&memory, 3);
                // A deadline that is due at once requires another call.
                while host.poll(&mut cx).is_some() || !done.load(Ordering::Relaxed) {}
            });
        }
        let senders: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut cx = Cx::replay(&memory, 4);
                    for _ in 0..FRAMES {
                        assert!(link.deliver(&mut cx, &[0; 60]));
                        cx.do_softirq();
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.join().expect("a sender");
        }
        done.store(true, Ordering::Relaxed);
    });
    let counters = host.counters();
    assert_eq!(counters.stack(Counter::SoftnetProcessed), 2 * FRAMES);
    assert_eq!(counters.stack(Counter::DeviceRxPackets), 2 * FRAMES);
    assert_eq!(counters.stack(Counter::DeviceRxBytes), 2 * FRAMES * 60);
    drop((host, link));
    rig.finish();
}

#[derive(Default)]
struct Kicks(AtomicU64);

impl Kick for Kicks {
    fn kick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_sleeping_worker_is_kicked_for_an_earlier_timer_only() {
    let mut rig = Rig::new(RigConfig::default());
    let kicks = Arc::new(Kicks::default());
    let host = rig.host();
    host.cores()[0].set_kick(Arc::clone(&kicks) as Arc<dyn Kick>);
    let listen = rig.listen(80, 8);
    let now = rig.world.cx.now;
    assert_eq!(host.cores()[0].prepare_sleep(now, false), None, "nothing is armed");
    let mut peer = Peer::new(80, 2000);
    peer.send_next(&mut rig, Flags::SYN, b"");
    assert_eq!(kicks.0.load(Ordering::Relaxed), 1, "the SYN-ACK is retransmitted after a second");
    host.cores()[0].finish_sleep();
    let deadline = host.cores()[0].prepare_sleep(now, false);
    assert!(deadline.is_some_and(|at| at <= now + Duration::from_secs(2)), "{deadline:?}");
    let mut later = Peer::new(80, 2001);
    later.send_next(&mut rig, Flags::SYN, b"");
    assert_eq!(kicks.0.load(Ordering::Relaxed), 1, "it wakes for the earlier timer anyway");
    host.cores()[0].finish_sleep();
    let counters = host.counters();
    assert_eq!(counters.stack(Counter::CoreKicks), 1);
    assert_eq!(counters.stack(Counter::CoreSleeps), 2);
    listen.close(&host, &mut rig.world.cx);
    drop((listen, host));
    rig.finish();
}
