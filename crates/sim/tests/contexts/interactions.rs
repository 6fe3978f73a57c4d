//! Prequeues in combination with busy polling.

use std::sync::Arc;

use stack::base::counters::Counter;
use tcp::Counter as TcpCounter;

use super::waiting::{PREQUEUES, PSH_ACK, Waiting};

/// Busy-polls a core until a segment of the connection arrives there.
fn poll_until_arrival(waiting: &mut Waiting, payload: &[u8]) {
    let frame = waiting.next_frame(PSH_ACK, payload);
    let Waiting { rig, host, .. } = waiting;
    let (link, mut cycles) = (Arc::clone(&rig.link), 0);
    let polled = host.cores()[0].busy_poll(host, &mut rig.world.cx, 8, |cx| {
        cycles += 1;
        if cycles == 1 {
            assert!(link.deliver(cx, &frame));
        }
        cycles == 2
    });
    assert!(polled, "the core is free");
}

/// A thread that busy-polls in `recv` processes segments as softirq does, and becomes a reader when
/// it goes to sleep. Segments that another thread then finds by polling are queued for the sleeping
/// reader.
#[test]
fn a_polling_thread_is_no_reader_and_takes_no_packet_from_one() {
    for context in PREQUEUES {
        let mut waiting = Waiting::new(context);
        poll_until_arrival(&mut waiting, b"found");
        assert_eq!(waiting.tcp(TcpCounter::TcpExtBusyPollRxPackets), 1, "{context:?}");
        assert_eq!((waiting.stack(Counter::PrequeueQueued), waiting.is_due()), (0, false));
        assert_eq!(waiting.read(10).expect("data"), b"found");
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 0);

        waiting.wait();
        poll_until_arrival(&mut waiting, b"waits");
        assert_eq!(waiting.tcp(TcpCounter::TcpExtBusyPollRxPackets), 2, "{context:?}");
        assert_eq!((waiting.stack(Counter::PrequeueQueued), waiting.is_due()), (1, true));
        assert_eq!(waiting.read(10).expect("data"), b"waits");
        assert_eq!(waiting.tcp(TcpCounter::TcpExtTCPDirectCopyFromPrequeue), 5);
        waiting.finish();
    }
}
