//! TCP Small Queues in combination with prequeues and autocorking.

use std::{io::IoSliceMut, sync::Arc};

use stack::{Errno, base::counters::Counter, socket::Reader};

use super::{
    manual_device::Lab,
    scenarios::{LIMIT, stopped},
};

/// With a prequeue: an acknowledgment that is queued for a reader does not stop a sender that
/// completions resume, whether or not a thread owns the connection meanwhile; and nothing is
/// missing when the reader runs.
#[test]
fn acks_queued_for_a_reader_stop_no_sender() {
    for context in ["prequeue_ref", "prequeue_drop", "prequeue_drop_limited"] {
        let (mut lab, _) = stopped(&[("net.quietline.rx_context", context)]);
        let (host, client) = (Arc::clone(&lab.host), Arc::clone(&lab.client));
        let (mut reader, mut buf) = (Reader::new(), [0; 100]);
        let mut read = |lab: &mut Lab| {
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            client.recv_or_wait(&host, &mut lab.world.cx, &mut reader, bufs)
        };
        assert_eq!(read(&mut lab), Err(Errno::EAGAIN), "nothing was sent to it");
        let queued = lab.count(Counter::PrequeueQueued);
        lab.answer(64);
        assert_eq!(lab.count(Counter::PrequeueQueued), queued + 1, "{context}");

        let (below, runs) = (lab.device.len(), lab.count(Counter::TsqRuns));
        let mut arrived = 0;
        for completions in 1..=10 {
            lab.complete(1);
            arrived += lab.read();
            lab.world.settle();
            assert_eq!(lab.device.len(), below, "{context}: one completed, one sent");
            assert_eq!(lab.count(Counter::TsqRuns), runs + completions);
        }
        assert!(lab.count(Counter::PrequeueQueued) > queued + 1, "their ACKs are queued behind it");
        let deferred = lab.count(Counter::TsqDeferred);
        let device = Arc::clone(&lab.device);
        lab.client.hold(&lab.host, &mut lab.world.cx, |cx| {
            device.complete(3);
            let _ = lab.host.poll(cx);
            assert_eq!(device.len(), below - 3, "the owner sends");
        });
        assert_eq!(
            lab.device.len(),
            below,
            "{context}: the owner sends when it releases the socket"
        );
        assert_eq!(lab.count(Counter::TsqDeferred), deferred + 1);

        assert_eq!(read(&mut lab), Ok(64), "{context}");
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPPrequeued), 1);
        while lab.device.len() > 0 {
            lab.complete(lab.device.len());
            arrived += lab.read();
        }
        assert_eq!(arrived, 1_000_000, "{context}");
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPTimeouts), 0);
        drop(client);
        lab.finish();
    }
}

/// With autocorking, which waits for completions, too: one TSQ entry stands for both, one
/// completion answers it with one run, and the remaining data is entered again. Completions alone
/// send the last byte.
#[test]
fn a_completion_answers_autocorking_and_the_limit_at_once() {
    for protocol in ["seed", "robust"] {
        let settings =
            [("net.ipv4.tcp_autocorking", "1"), ("net.quietline.tsq_protocol", protocol)];
        let mut lab = Lab::new(&settings);
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_nodelay(true));
        lab.device.set_mute(true);
        let corks = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking);
        let runs = lab.count(Counter::TsqRuns);
        lab.write(3 * 1448);
        lab.write(100);
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPAutoCorking), corks + 1, "{protocol}");
        assert_eq!(lab.device.len(), 3, "{protocol}: the small segment waits for them");
        // The small packet grows and is sent, and the limit stops the following ones: the entry
        // exists already.
        lab.write(200_000);
        assert!((LIMIT..LIMIT + 2304).contains(&lab.client.wmem_alloc()), "{protocol}");
        assert_eq!(lab.count(Counter::TsqRuns), runs);
        let below = lab.device.len();
        lab.complete(1);
        assert_eq!((lab.device.len(), lab.count(Counter::TsqRuns)), (below, runs + 1));
        let mut completions = 1;
        while lab.device.len() > 0 {
            lab.complete(1);
            completions += 1;
        }
        assert!(lab.count(Counter::TsqRuns) - runs <= completions, "TSQ6: one run per completion");
        let unsent =
            lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.info().notsent_bytes);
        assert_eq!(unsent, 0, "{protocol}");
        lab.finish();
    }
}
