//! One test for each kind of stack and wire.

use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::{Arc, PoisonError, mpsc},
    thread,
};

use quietline::{TcpListener, TcpStream};

use crate::{
    conversation::{Random, TIMEOUT},
    rig::{
        Log, ONE_AT_A_TIME, Scenario, build, describe, late, lossy, on_cores, run,
        run_until_shutdown,
    },
};

#[test]
fn one_core_and_an_ideal_wire() {
    run(on_cores(1));
}

#[test]
fn two_cores_and_an_ideal_wire() {
    run(on_cores(2));
}

#[test]
fn two_cores_without_busy_polling() {
    run(Scenario { busy_read: "0", ..on_cores(2) });
}

#[test]
fn two_cores_over_loopback() {
    run(Scenario { loopback: true, ..on_cores(2) });
}

#[test]
fn two_cores_without_workers() {
    run(Scenario { manual: true, impairment: late(), ..on_cores(2) });
}

#[test]
fn two_cores_with_time_wait() {
    run(Scenario { time_wait: true, ..on_cores(2) });
}

#[test]
fn one_core_and_a_wire_with_loss() {
    run(Scenario { impairment: lossy(), ..on_cores(1) });
}

#[test]
fn two_cores_and_a_wire_with_delay_and_reordering() {
    run(Scenario { impairment: late(), ..on_cores(2) });
}

#[test]
fn a_server_is_shut_down_during_conversations() {
    for round in 0..8 {
        run_until_shutdown(round, |_, server| server.shutdown());
    }
}

#[test]
fn a_client_is_shut_down_during_conversations() {
    for round in 0..8 {
        run_until_shutdown(round, |client, _| client.shutdown());
    }
}

/// Every writer writes its own byte value; the readers together must find each value as often as it
/// was written.
#[test]
fn many_threads_share_one_stream() {
    const BYTES_PER_WRITER: usize = 30_000_000;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (client_stack, server_stack) = build(on_cores(2));
    let listener = TcpListener::bind(&server_stack, "10.0.0.2:80").unwrap();
    let to = listener.local_addr().unwrap();
    let outward = Arc::new(TcpStream::connect(&client_stack, to).unwrap());
    let inward = Arc::new(listener.accept().unwrap().0);
    let log = Log::default();
    let (sender, receiver) = mpsc::channel();
    for writer in 0..4u8 {
        let (outward, done) = (Arc::clone(&outward), sender.clone());
        thread::spawn(move || {
            let mut random = Random(u64::from(writer));
            let bytes = vec![writer; 100_000];
            let mut left = BYTES_PER_WRITER;
            while left > 0 {
                let piece = left.min(1 + random.below_usize(100_000));
                left -= (&*outward).write(&bytes[..piece]).unwrap();
            }
            let _ = done.send([0; 4]);
        });
    }
    for reader in 0..4 {
        let (inward, done) = (Arc::clone(&inward), sender.clone());
        thread::spawn(move || {
            let mut random = Random(100 + reader);
            let (mut found, mut buf) = ([0; 4], vec![0; 100_000]);
            loop {
                let piece = 1 + random.below_usize(100_000);
                match (&*inward).read(&mut buf[..piece]).unwrap() {
                    0 => break,
                    read => buf[..read].iter().for_each(|&byte| found[usize::from(byte)] += 1),
                }
            }
            let _ = done.send(found);
        });
    }
    let mut found = [0; 4];
    for finished in 1..=8 {
        let counts = receiver.recv_timeout(TIMEOUT);
        let stacks = [&client_stack, &server_stack];
        let counts: [usize; 4] =
            counts.unwrap_or_else(|_| panic!("the threads hang:\n{}", describe(&log, stacks)));
        found.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        if finished == 4 {
            outward.shutdown(Shutdown::Write).unwrap();
        }
    }
    assert_eq!(found, [BYTES_PER_WRITER; 4]);
}
