//! A packet completes when the kernel's queue releases it. Refused packets are offered again or
//! dropped.

use std::process::Command;

use super::*;

/// Returns the number of frames that the discipline of the left end has dequeued.
fn dequeued() -> usize {
    let output = Command::new("tc").args(["-s", "qdisc", "show", "dev", "left0"]).output();
    let text = String::from_utf8(output.expect("iproute2 is installed").stdout).expect("words");
    let words: Vec<_> = text.split_whitespace().collect();
    let count = words.windows(2).find_map(|pair| (pair[1] == "pkt").then(|| pair[0].parse()));
    count.expect("a count of packets").expect("a number")
}

/// A packet that a slow discipline of the kernel still holds is not completed. Packets without room
/// in the ring stay with the caller.
#[test]
fn completions_are_those_of_the_kernels_queue() {
    for_each_tx_format(|tx_format| {
        let left = AfPacketConfig { tx_ring_frames: 16, tx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("tc qdisc add dev left0 root tbf rate 500kbit burst 2kb limit 1mb");
            let mut list: PacketList = (0..40).map(|number| left.frame(number, 1000)).collect();
            left.transmit(&mut list);
            assert_eq!(list.len(), 24, "the device accepts 16 frames");
            let mut done = 0;
            let deadline = Clock::now() + TIMEOUT;
            while done < 40 && Clock::now() < deadline {
                done += left.complete().packets;
                let gone = dequeued();
                assert!(done <= gone, "{done} have completed, {gone} have left");
                left.transmit(&mut list);
                left.wait(0, Duration::from_millis(100));
            }
            assert_eq!((done, list.len()), (40, 0));
            let packets = right.receive(40);
            assert!(packets.iter().map(number_of).eq(0..40));
            free(right, packets);
        });
    });
}

/// A full discipline refuses frames. They wait in the ring until the discipline has room, and none
/// is lost.
#[test]
fn frames_refused_by_the_kernels_queue_are_offered_again() {
    for_each_tx_format(|tx_format| {
        let left = AfPacketConfig { tx_ring_frames: 64, tx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("tc qdisc add dev left0 root tbf rate 4mbit burst 2kb limit 3000");
            let mut list: PacketList = (0..60).map(|number| left.frame(number, 1000)).collect();
            left.transmit(&mut list);
            assert!(list.is_empty());
            assert!(
                left.device.next_deadline(QueueId(0)).is_some(),
                "the frames are offered again soon"
            );
            left.completed(60);
            assert_eq!(left.device.next_deadline(QueueId(0)), None);
            let packets = right.receive(60);
            assert!(packets.iter().map(number_of).eq(0..60));
            free(right, packets);
        });
    });
}

/// A frame larger than the limit of the discipline would block the ring forever.
#[test]
fn a_frame_too_large_for_the_kernels_queue_is_dropped_and_counted() {
    for_each_tx_format(|tx_format| {
        let left = AfPacketConfig { tx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("tc qdisc add dev left0 root tbf rate 4mbit burst 2kb limit 1200");
            let mut list = PacketList::new();
            for number in 0..6 {
                list.push_back(left.frame(number, if number == 2 { 1400 } else { 1000 }));
            }
            left.transmit(&mut list);
            assert_eq!(left.completed(6).bytes, 6_400, "the dropped frame is not in flight");
            assert_eq!(left.cx.counters().drops.value(pkt::DropReason::QdiscDrop), 1);
            let packets = right.receive(5);
            assert!(packets.iter().map(number_of).eq([0, 1, 3, 4, 5]));
            free(right, packets);
        });
    });
}

/// Completions are late by a few small frames at most, and never before the frame has left.
#[test]
fn completions_by_the_send_buffer_are_not_early() {
    in_namespace(|| {
        let right = AfPacketConfig { rx_format: RxFormat::Calls, ..AfPacketConfig::new("right0") };
        pair(&AfPacketConfig::new("left0"), &right, |left, right| {
            run("tc qdisc add dev left0 root tbf rate 8mbit burst 2kb limit 1mb");
            let mut list: PacketList =
                (0..100).map(|number| left.frame(number, 60 + number * 389 % 1440)).collect();
            left.transmit(&mut list);
            assert!(list.is_empty());
            let (mut done, mut arrived, mut latest) = (0, 0, 0);
            let deadline = Clock::now() + TIMEOUT;
            while done < 100 {
                assert!(Clock::now() < deadline, "{done} have completed");
                // Count arrivals before completions: an arrived frame has left, no matter how long
                // this thread is descheduled in between.
                let packets = right.received(0);
                arrived += packets.len();
                free(right, packets);
                done += left.complete().packets;
                latest = latest.max(arrived.saturating_sub(done));
                // A frame that has left may not have arrived yet.
                if done > arrived {
                    let gone = dequeued();
                    assert!(done <= gone, "{done} have completed, {gone} have left");
                }
            }
            assert!(latest < 50, "{latest} completions were late");
        });
    });
}
