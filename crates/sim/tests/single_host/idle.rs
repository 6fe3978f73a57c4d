//! The idle timeout of a host with connections of every kind.

use std::{io::IoSlice, sync::Arc, time::Duration};

use sim::{Peer, Rig, RigConfig};
use stack::{
    Errno,
    socket::{
        Connection,
        options::{OptionValue, SocketOption},
    },
    sysctl::Sysctls,
};
use tcp::{Counter as TcpCounter, Flags, Options, State};

fn rig(timeout_s: &str) -> Rig {
    let mut sysctls = Sysctls::default();
    sysctls.set("net.quietline.tcp_idle_timeout", timeout_s).expect("a setting");
    Rig::new(RigConfig { sysctls, cores: 2, ..RigConfig::default() })
}

fn state(rig: &mut Rig, socket: &Connection) -> State {
    let host = rig.host();
    socket.with_tcb(&host, &mut rig.world.cx, |tcb, _| tcb.state())
}

#[test]
fn idle_peers_and_closed_windows_are_reset_and_active_peers_are_not() {
    let mut rig = rig("30");
    let listener = rig.listen(80, 8);
    let accept = |rig: &mut Rig, port| {
        let peer = Peer::open(rig, 80, port, Options::default());
        (peer, listener.accept().expect("a connection"))
    };
    let (mut idle, idle_socket) = accept(&mut rig, 2000);
    let (mut stuck, stuck_socket) = accept(&mut rig, 2001);
    let (mut active, active_socket) = accept(&mut rig, 2002);
    let (mut exempt, exempt_socket) = accept(&mut rig, 2003);
    let host = rig.host();
    let never = OptionValue::Int(0);
    let cx = &mut rig.world.cx;
    exempt_socket.set_option(&host, cx, SocketOption::IdleTimeout, &never).expect("allowed");
    stuck.window = 0;
    stuck.send_next(&mut rig, Flags::ACK, b"");
    let sent = stuck_socket.send(&host, &mut rig.world.cx, &[IoSlice::new(&[7; 1000])]);
    assert_eq!(sent, Ok(1000));
    let (mut probes, mut resets) = (0, Vec::new());
    for second in 0..120 {
        rig.pass(Duration::from_secs(1));
        let seen = rig.take();
        for peer in [&mut idle, &mut active, &mut exempt] {
            resets.extend(peer.hear(&seen).contains(&(Flags::RST | Flags::ACK)).then_some(second));
        }
        for flags in stuck.hear(&seen) {
            if flags.contains(Flags::RST) {
                resets.push(second);
            } else {
                probes += 1;
                // The window is still closed.
                stuck.send_next(&mut rig, Flags::ACK, b"");
            }
        }
        if second % 20 == 0 {
            active.send_next(&mut rig, Flags::ACK | Flags::PSH, b"x");
        }
    }
    // Thirty seconds later, rounded up to a tick of the timer wheel.
    assert_eq!(resets, [30, 30]);
    assert!(probes >= 5, "{probes} probes were answered");
    for socket in [&idle_socket, &stuck_socket] {
        assert_eq!(state(&mut rig, socket), State::Close);
        assert_eq!(socket.take_error(&host, &mut rig.world.cx), Some(Errno::ETIMEDOUT));
    }
    for socket in [&active_socket, &exempt_socket] {
        assert_eq!(state(&mut rig, socket), State::Established);
    }
    let counters = [TcpCounter::IdleTimeouts, TcpCounter::TcpExtTCPAbortOnTimeout];
    assert_eq!(counters.map(|counter| rig.count_tcp(counter)), [2, 2]);
    assert_eq!(rig.host().established_len(), 2);
    drop((idle_socket, stuck_socket, active_socket, exempt_socket, host));
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}

#[test]
fn connections_inherit_the_timeout_of_their_listener() {
    let mut rig = rig("0");
    let listener = rig.listen(80, 8);
    let peer = |rig: &mut Rig, port| -> Arc<Connection> {
        let _peer = Peer::open(rig, 80, port, Options::default());
        listener.accept().expect("a connection")
    };
    let before = peer(&mut rig, 2000);
    let timeout = OptionValue::from(Duration::from_secs(5));
    listener.set_option(&rig.host(), SocketOption::IdleTimeout, &timeout).expect("allowed");
    let after = peer(&mut rig, 2001);
    rig.pass(Duration::from_secs(6));
    assert_eq!(state(&mut rig, &before), State::Established);
    assert_eq!(state(&mut rig, &after), State::Close);
    drop((before, after));
    listener.close(&rig.host(), &mut rig.world.cx);
    drop(listener);
    rig.finish();
}
