//! TCP Small Queues beside what else stops a connection or processes its acknowledgments.

use std::{io::IoSliceMut, sync::Arc};

use stack::{Errno, base::counters::Counter, socket::Reader};

use super::{
    scenarios::{LIMIT, stopped},
    shelf::Lab,
};

/// With a prequeue: an acknowledgment that waits for a reader holds nobody back that completions let go on, whether somebody holds
/// the connection meanwhile or not; and when the reader runs nothing is missing.
#[test]
fn what_waits_for_a_reader_stops_no_sender() {
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

        let (below, runs) = (lab.shelf.len(), lab.count(Counter::TsqRuns));
        let mut arrived = 0;
        for completions in 1..=10 {
            lab.complete(1);
            arrived += lab.read();
            lab.world.settle();
            assert_eq!(lab.shelf.len(), below, "{context}: one has gone, one has come");
            assert_eq!(lab.count(Counter::TsqRuns), runs + completions);
        }
        assert!(lab.count(Counter::PrequeueQueued) > queued + 1, "their ACKs wait behind it");
        let deferred = lab.count(Counter::TsqDeferred);
        let shelf = Arc::clone(&lab.shelf);
        lab.client.hold(&lab.host, &mut lab.world.cx, |cx| {
            shelf.complete(3);
            let _ = lab.host.poll(cx);
            assert_eq!(shelf.len(), below - 3, "the holder's");
        });
        assert_eq!(lab.shelf.len(), below, "{context}: which it sends when it lets go");
        assert_eq!(lab.count(Counter::TsqDeferred), deferred + 1);

        assert_eq!(read(&mut lab), Ok(64), "{context}");
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPPrequeued), 1);
        while lab.shelf.len() > 0 {
            lab.complete(lab.shelf.len());
            arrived += lab.read();
        }
        assert_eq!(arrived, 1_000_000, "{context}");
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPTimeouts), 0);
        drop(client);
        lab.finish();
    }
}

/// With autocorking, which waits for completions as well: one announcement stands for both, one completion answers it with one run, and
/// what is left announces anew. Completions alone carry the last byte out.
#[test]
fn a_completion_answers_autocorking_and_the_limit_at_once() {
    for protocol in ["seed", "robust"] {
        let settings =
            [("net.ipv4.tcp_autocorking", "1"), ("net.quietline.tsq_protocol", protocol)];
        let mut lab = Lab::new(&settings);
        lab.client.with_tcb(&lab.host, &mut lab.world.cx, |tcb, _| tcb.set_nodelay(true));
        lab.shelf.set_mute(true);
        let corks = lab.tcp(tcp::Counter::TcpExtTCPAutoCorking);
        let runs = lab.count(Counter::TsqRuns);
        lab.write(3 * 1448);
        lab.write(100);
        assert_eq!(lab.tcp(tcp::Counter::TcpExtTCPAutoCorking), corks + 1, "{protocol}");
        assert_eq!(lab.shelf.len(), 3, "{protocol}: the small one waits for them");
        // It grows, goes, and the limit stops what follows: announced already.
        lab.write(200_000);
        assert!((LIMIT..LIMIT + 2304).contains(&lab.client.wmem_alloc()), "{protocol}");
        assert_eq!(lab.count(Counter::TsqRuns), runs);
        let below = lab.shelf.len();
        lab.complete(1);
        assert_eq!((lab.shelf.len(), lab.count(Counter::TsqRuns)), (below, runs + 1));
        let mut completions = 1;
        while lab.shelf.len() > 0 {
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
