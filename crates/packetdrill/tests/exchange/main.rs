//! A scripted exchange through the shared object, as packetdrill plays one, in virtual time.
//!
//! The library is loaded with dlopen and spoken to through its table of functions alone.

#![allow(clippy::tests_outside_test_module, reason = "a test crate of its own is a test module")]

mod library;
mod wire;

use std::{sync::mpsc, thread, time::Duration};

use library::Library;
use wire::{ACK, FIN, PSH, SYN, Segment, Version};

/// The first segment of the peer: a SYN with an MSS of 1000 and no other option.
fn syn() -> Segment {
    Segment { flags: SYN, seq: 1000, options: vec![2, 4, 0x03, 0xe8], ..Segment::default() }
}

/// Listens, shakes hands and accepts; the connection and our initial sequence number.
fn accept(library: &Library) -> (i32, i32, u32) {
    let listener = library.listen();
    library.deliver(&syn());
    let synack = library.next_packet();
    assert_eq!((synack.flags, synack.ack), (SYN | ACK, 1001));
    library.deliver(&Segment { flags: ACK, seq: 1001, ack: synack.seq + 1, ..Segment::default() });
    let connection = library.accept(listener);
    assert!(connection > listener, "a descriptor of its own");
    (listener, connection, synack.seq + 1)
}

/// Whether a SYN with timestamps from `port` is answered by one with timestamps.
fn offers_timestamps(library: &Library, port: u16) -> bool {
    library.deliver(&Segment {
        port,
        options: vec![2, 4, 0x03, 0xe8, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0],
        ..syn()
    });
    library.next_packet().options.contains(&8)
}

#[test]
fn a_connection_is_made_used_and_closed_in_virtual_time() {
    make_use_and_close(&Library::load("", None));
}

#[test]
fn a_connection_over_ipv6_passes_the_same_exchange() {
    make_use_and_close(&Library::load_for(Version::Ipv6, "mtu=1520", None));
}

#[test]
fn an_ipv6_socket_with_an_ipv4_peer_passes_the_same_exchange() {
    make_use_and_close(&Library::load_for(Version::Ipv4Mapped, "", None));
}

fn make_use_and_close(library: &Library) {
    let started = library.micros();
    let (_, connection, iss) = accept(library);

    library.deliver(&Segment {
        flags: PSH | ACK,
        seq: 1001,
        ack: iss,
        payload: b"hello".to_vec(),
        ..Segment::default()
    });
    // The first data of a connection is acknowledged at once.
    let ack = library.next_packet();
    assert_eq!((ack.flags, ack.ack, ack.payload.len()), (ACK, 1006, 0));
    assert_eq!(library.read(connection, 100), Ok(b"hello".to_vec()));
    assert_eq!(library.write(connection, b"good day"), Ok(8));
    let answer = library.next_packet();
    assert_eq!((answer.seq, answer.ack, &answer.payload[..]), (iss, 1006, &b"good day"[..]));
    assert_eq!(answer.flags, PSH | ACK);

    // Without an acknowledgment the segment is sent again, after a timeout of virtual time.
    let again = library.next_packet();
    assert_eq!((again.seq, &again.payload[..]), (iss, &b"good day"[..]));
    assert!(library.micros() - started >= 200_000, "virtual time has passed");

    library.deliver(&Segment { flags: ACK, seq: 1006, ack: iss + 8, ..Segment::default() });
    assert_eq!(library.close(connection), 0);
    let fin = library.next_packet();
    assert_eq!((fin.flags, fin.seq), (FIN | ACK, iss + 8));
    library.deliver(&Segment { flags: FIN | ACK, seq: 1006, ack: iss + 9, ..Segment::default() });
    let last = library.next_packet();
    assert_eq!((last.flags, last.seq, last.ack), (ACK, iss + 9, 1007));
    assert_eq!(library.read(connection, 1), Err(libc::EBADF));
}

#[test]
fn a_blocked_read_returns_at_the_moment_its_data_comes() {
    let library = Library::load("", None);
    let (_, connection, iss) = accept(&library);
    let (report, reports) = mpsc::channel();
    thread::scope(|scope| {
        let library = &library;
        scope.spawn(move || {
            report.send(None).unwrap();
            let read = library.read(connection, 100);
            report.send(Some((read, library.micros()))).unwrap();
        });
        assert_eq!(reports.recv(), Ok(None));
        library.await_sleeper();
        let before = library.micros();
        library.sleep(Duration::from_secs(3));
        library.deliver(&Segment {
            flags: PSH | ACK,
            seq: 1001,
            ack: iss,
            payload: b"late".to_vec(),
            ..Segment::default()
        });
        library.sleep(Duration::from_secs(3));
        let (read, returned) = reports.recv().unwrap().unwrap();
        assert_eq!(read, Ok(b"late".to_vec()));
        let waited = returned - before;
        assert!((3_000_000..3_000_100).contains(&waited), "returned after {waited} µs");
    });
}

#[test]
fn a_setting_written_to_the_control_file_takes_effect() {
    let path = std::env::temp_dir().join(format!("quietline-exchange-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let library = Library::load("seed=3", Some(&path));
    library.listen();
    assert!(offers_timestamps(&library, 5001), "timestamps are offered at first");
    std::fs::write(&path, "sysctl -q net.ipv4.tcp_timestamps=0\n").unwrap();
    assert!(!offers_timestamps(&library, 5002), "and not any more");
    std::fs::remove_file(&path).unwrap();
}

/// The result of a script does not depend on the machine's settings. A setting that the script
/// writes is applied even if the machine has the same value; every other one is this stack's
/// default.
#[test]
fn a_setting_written_in_the_namespace_is_applied_even_if_the_machine_has_it() {
    if !Library::enter_namespace() {
        assert!(
            std::env::var_os("CI").is_none_or(|value| value != "true"),
            "not root, and CI=true"
        );
        println!("skipped: not root");
        return;
    }
    let timestamps = "/proc/sys/net/ipv4/tcp_timestamps";
    std::fs::write(timestamps, "0\n").unwrap();
    let library = Library::load("netns", None);
    library.listen();
    assert!(offers_timestamps(&library, 5001), "the machine's value is not applied");
    std::fs::write(timestamps, "0\n").unwrap();
    assert!(!offers_timestamps(&library, 5002), "the script's value is applied");
    std::fs::write(timestamps, "1\n").unwrap();
    assert!(offers_timestamps(&library, 5003));
}

#[test]
fn a_call_that_could_never_return_says_so() {
    let library = Library::load("", None);
    let (_, connection, _) = accept(&library);
    assert_eq!(library.read(connection, 1), Err(libc::EDEADLK));
    assert_eq!(library.read(777, 1), Err(libc::EBADF));
}

#[test]
fn wall_clock_time_passes_by_itself() {
    let library = Library::load("wall", None);
    let (_, connection, iss) = accept(&library);
    assert_eq!(library.write(connection, b"x"), Ok(1));
    let sent = library.next_packet();
    let again = library.next_packet();
    assert_eq!((sent.seq, again.seq), (iss, iss));
}
