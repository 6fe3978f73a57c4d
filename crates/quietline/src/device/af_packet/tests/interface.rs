//! Interfaces that are promiscuous, go down, are deleted, or cannot be opened.

use super::*;

#[test]
fn a_different_mac_makes_the_interface_promiscuous_while_the_device_exists() {
    in_namespace(|| {
        let sockets = || {
            let text =
                std::fs::read_to_string("/proc/thread-self/net/packet").expect("packet sockets");
            text.lines().count()
        };
        let before = sockets();
        let mac = Some([2, 0, 0, 0, 0, 9]);
        let left = AfPacketConfig { mac, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            assert_eq!(
                left.device.caps().link,
                LinkType::Ethernet { mac: MacAddr([2, 0, 0, 0, 0, 9]) }
            );
            let frame = right.frame(7, 100);
            right.transmit(&mut PacketList::from_iter([frame]));
            let packets = left.receive(1);
            free(left, packets);
        });
        // A program that another test starts holds copies of all descriptors for a short time.
        let deadline = Clock::now() + TIMEOUT;
        while sockets() != before {
            assert!(Clock::now() < deadline, "{} sockets are left", sockets() - before);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn an_interface_that_is_down_drops_frames_and_works_again_when_up() {
    for_each_tx_format(|tx_format| {
        let rx_format = rx_format_for(tx_format);
        let left = AfPacketConfig { tx_format, rx_format, ..AfPacketConfig::new("left0") };
        pair(&left, &AfPacketConfig::new("right0"), |left, right| {
            run("ip link set left0 down");
            let mut list: PacketList = (0..3).map(|number| left.frame(number, 100)).collect();
            left.transmit(&mut list);
            assert!(list.is_empty(), "the packets are dropped");
            let dropped = left.cx.counters().drops.value(pkt::DropReason::DeviceDown);
            assert_eq!(dropped, 3);
            let deadline = left.device.next_deadline(QueueId(0));
            assert_eq!(
                deadline,
                Some(pkt::Instant::ZERO),
                "a core that is about to sleep sees the completions"
            );
            let completed = Completed { packets: 3, bytes: 300 };
            assert_eq!(left.complete(), completed, "dropped packets are completed");
            assert!(left.received(0).is_empty());
            left.wait(0, Duration::ZERO);
            assert!(!left.wait(0, Duration::from_millis(20)), "the descriptor is not readable");
            assert!(!left.device.is_gone());
            run("ip link set left0 up");
            let frame = left.frame(4, 100);
            left.transmit(&mut PacketList::from_iter([frame]));
            left.completed(1);
            // The other end detects its carrier a little later, and drops frames until then.
            let deadline = Clock::now() + TIMEOUT;
            loop {
                assert!(Clock::now() < deadline, "no frame arrives");
                let frame = right.frame(5, 100);
                right.transmit(&mut PacketList::from_iter([frame]));
                left.wait(0, Duration::from_millis(20));
                let packets = left.received(0);
                let arrived = packets.iter().any(|packet| number_of(packet) == 5);
                free(left, packets);
                if arrived {
                    break;
                }
            }
        });
    });
}

#[test]
fn a_deleted_interface_is_detected_and_its_descriptor_stays_silent() {
    for_each_tx_format(|tx_format| {
        let rx_format = rx_format_for(tx_format);
        let left = AfPacketConfig { tx_format, rx_format, ..AfPacketConfig::new("left0") };
        let right = AfPacketConfig { rx_format, ..AfPacketConfig::new("right0") };
        pair(&left, &right, |left, right| {
            run("ip link del left0");
            assert!(right.wait(0, TIMEOUT), "the kernel reports an error");
            assert!(right.device.is_gone());
            assert!(right.received(0).is_empty());
            right.wait(0, Duration::ZERO);
            assert!(!right.wait(0, Duration::from_millis(20)), "the descriptor is not readable");
            let frame = left.frame(1, 100);
            left.transmit(&mut PacketList::from_iter([frame]));
            assert!(left.device.is_gone(), "sending detects the deletion");
            let dropped = left.cx.counters().drops.value(pkt::DropReason::DeviceDown);
            assert_eq!(dropped, 1, "the sent frame is counted as dropped");
            assert!(left.received(0).is_empty());
        });
    });
}

#[test]
fn a_refused_configuration_names_the_cause() {
    in_namespace(|| {
        let refusal = |config: &AfPacketConfig| {
            let error = AfPacket::open(config).expect_err("refused");
            assert!(!error.to_string().contains('\n'));
            error.to_string()
        };
        let error = refusal(&AfPacketConfig::new("left0"));
        assert!(error.contains("\"left0\"") && error.contains("errno 19"), "{error}");
        run("ip link add left0 type veth peer name right0");
        let error = refusal(&AfPacketConfig::new("left0"));
        assert!(error.contains("ip link set left0 up"), "{error}");
        run("ip link set left0 up");
        let error = refusal(&AfPacketConfig { mtu: Some(9000), ..AfPacketConfig::new("left0") });
        assert!(error.contains("at most the interface's own"), "{error}");
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("becoming nobody");
        let error = refusal(&AfPacketConfig::new("left0"));
        assert!(error.contains("CAP_NET_RAW"), "{error}");
    });
}
