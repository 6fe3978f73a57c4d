//! The transitions of RFC 9293 figure 5, and the effect of a reset or SYN in every state.

use core::time::Duration;

use pkt::DropReason;

use super::net::{Net, Side};
use crate::{Counter, Flags, Readiness, RecvError, SendError, State, TcpError};

#[test]
fn three_way_handshake_establishes_both_ends() {
    let mut net = Net::new(1);
    net.host(Side::B).listening = true;
    net.connect(Side::A);
    assert_eq!(net.state(Side::A), State::SynSent);
    net.step();
    assert_eq!(net.state(Side::B), State::SynRecv);
    net.step();
    assert_eq!(net.state(Side::A), State::Established);
    net.step();
    assert_eq!(net.state(Side::B), State::Established);
    assert_eq!(net.log.len(), 3);
    assert_eq!(net.log[0].header.flags, Flags::SYN);
    assert_eq!(net.log[1].header.flags, Flags::SYN | Flags::ACK);
    assert_eq!(net.log[2].header.flags, Flags::ACK);
    let options = &net.log[1].header.options;
    assert_eq!(options.mss, Some(1460));
    assert_eq!(options.window_scale, Some(7));
    assert!(options.timestamps.is_some());
    assert_eq!(net.tcb(Side::A).mss(), 1448);
    assert_eq!(net.tcb(Side::B).mss(), 1448);
    net.finish_clean();
}

#[test]
fn simultaneous_open_establishes_both_ends() {
    let mut net = Net::new(2);
    net.connect(Side::A);
    net.connect(Side::B);
    net.step();
    assert_eq!(net.state(Side::B), State::SynRecv);
    net.step();
    assert_eq!(net.state(Side::A), State::SynRecv);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::Established);
    assert_eq!(net.state(Side::B), State::Established);
    net.send(Side::A, b"ping");
    net.send(Side::B, b"pong");
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.recv(Side::B), b"ping");
    assert_eq!(net.recv(Side::A), b"pong");
    net.finish_clean();
}

#[test]
fn active_close_goes_through_fin_wait_and_time_wait() {
    let mut net = Net::established(3);
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    assert_eq!(net.state(Side::A), State::FinWait1);
    net.step();
    assert_eq!(net.state(Side::B), State::CloseWait);
    net.step();
    assert_eq!(net.state(Side::A), State::FinWait2);
    net.call(Side::B, |tcb, cx| tcb.close(cx));
    assert_eq!(net.state(Side::B), State::LastAck);
    net.step();
    assert_eq!(net.state(Side::A), State::TimeWait);
    net.step();
    assert_eq!(net.state(Side::B), State::Close);
    net.run_for(Duration::from_secs(59));
    assert_eq!(net.state(Side::A), State::TimeWait);
    net.run_for(Duration::from_secs(2));
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.count(Side::A, Counter::TcpExtTW), 1);
    assert_eq!(net.count(Side::A, Counter::TcpCurrEstab), 0);
    assert_eq!(net.count(Side::B, Counter::TcpCurrEstab), 0);
    net.finish_clean();
}

#[test]
fn simultaneous_close_goes_through_closing() {
    let mut net = Net::established(4);
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.close(cx));
    net.call(Side::B, |tcb, cx| tcb.close(cx));
    net.step();
    assert_eq!(net.state(Side::B), State::Closing);
    net.step();
    assert_eq!(net.state(Side::A), State::Closing);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::TimeWait);
    assert_eq!(net.state(Side::B), State::TimeWait);
    net.finish_clean();
}

#[test]
fn a_fin_that_acknowledges_a_fin_in_fin_wait_1_leads_to_time_wait() {
    let mut net = Net::established(5);
    net.run_for(Duration::from_millis(100));
    net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    net.step();
    // B's ACK of the FIN is lost; B's own FIN acknowledges it as well.
    net.lose_in_flight();
    net.call(Side::B, |tcb, cx| tcb.shutdown_write(cx));
    net.step();
    assert_eq!(net.state(Side::A), State::TimeWait);
    net.finish_clean();
}

#[test]
fn a_half_closed_connection_carries_data_in_the_other_direction() {
    let mut net = Net::established(6);
    net.send(Side::A, b"request");
    net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.recv(Side::B), b"request");
    let mut buf = [0; 8];
    assert_eq!(net.call(Side::B, |tcb, cx| tcb.recv(cx, &mut buf, false)), Ok(0));
    let ready = net.tcb(Side::B).readiness();
    assert!(ready.contains(Readiness::READ | Readiness::RDHUP | Readiness::WRITE));
    assert!(!ready.contains(Readiness::HUP));
    let again = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&b"x"[..]], false));
    assert_eq!(again, Err(SendError::BrokenPipe));
    let body = [7; 100_000];
    let mut sent = 0;
    let mut got = std::vec::Vec::new();
    while got.len() < body.len() {
        if let Ok(n) = net.call(Side::B, |tcb, cx| tcb.send(cx, &[&body[sent..]], false)) {
            sent += n;
        }
        assert!(net.step());
        got.extend(net.recv(Side::A));
    }
    assert_eq!(got, body);
    net.call(Side::B, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::TimeWait);
    assert_eq!(net.state(Side::B), State::Close);
    net.finish_clean();
}

#[test]
fn a_syn_to_a_closed_port_is_answered_by_a_reset() {
    let mut net = Net::new(7);
    net.connect(Side::A);
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::Close);
    assert_eq!(net.tcb(Side::A).take_error(), Some(TcpError::ConnectionRefused));
    assert_eq!(net.log[1].header.flags, Flags::RST | Flags::ACK);
    assert_eq!(net.count(Side::A, Counter::TcpAttemptFails), 1);
    net.finish_clean();
}

#[test]
fn a_reset_keeps_received_data_readable() {
    let mut net = Net::established(8);
    net.send(Side::B, b"last words");
    net.run_for(Duration::from_millis(20));
    net.call(Side::B, |tcb, cx| tcb.abort(cx));
    net.run_for(Duration::from_millis(20));
    assert_eq!(net.state(Side::A), State::Close);
    let ready = net.tcb(Side::A).readiness();
    assert!(ready.contains(Readiness::READ | Readiness::WRITE | Readiness::HUP | Readiness::ERROR));
    assert_eq!(net.recv(Side::A), b"last words");
    let mut buf = [0; 4];
    let reset = Err(RecvError::Connection(TcpError::ConnectionReset));
    let mut read = |net: &mut Net| net.call(Side::A, |tcb, cx| tcb.recv(cx, &mut buf, false));
    // `Net::recv` has read until the error, which cleared the error.
    assert_ne!(read(&mut net), reset);
    assert_eq!(read(&mut net), Ok(0));
    let sent = net.call(Side::A, |tcb, cx| tcb.send(cx, &[&b"x"[..]], false));
    assert_eq!(sent, Err(SendError::BrokenPipe));
    assert_eq!(net.count(Side::A, Counter::TcpEstabResets), 1);
    net.finish_clean();
}

/// Returns a network whose A is in `state`.
fn in_state(state: State) -> Net {
    let mut net = Net::new(9);
    match state {
        State::SynSent => net.connect(Side::A),
        State::SynRecv => {
            net.connect(Side::A);
            net.connect(Side::B);
            net.step();
            net.step();
            net.lose_in_flight();
        }
        _ => net.open(),
    }
    let fin_from_a = |net: &mut Net| net.call(Side::A, |tcb, cx| tcb.shutdown_write(cx));
    let fin_from_b = |net: &mut Net| net.call(Side::B, |tcb, cx| tcb.shutdown_write(cx));
    match state {
        State::FinWait1 => fin_from_a(&mut net),
        State::FinWait2 => {
            fin_from_a(&mut net);
            net.run_for(Duration::from_millis(50));
        }
        State::CloseWait => {
            fin_from_b(&mut net);
            net.run_for(Duration::from_millis(50));
        }
        State::LastAck => {
            fin_from_b(&mut net);
            net.run_for(Duration::from_millis(50));
            fin_from_a(&mut net);
        }
        State::Closing => {
            fin_from_b(&mut net);
            fin_from_a(&mut net);
            net.run_until(|net| net.state(Side::A) == State::Closing);
        }
        _ => {}
    }
    net.lose_in_flight();
    assert_eq!(net.state(Side::A), state);
    net
}

/// States of a connection that has a control block and has not ended. (TIME-WAIT has a smaller
/// object.)
const WITH_BLOCK: [State; 8] = [
    State::SynSent,
    State::SynRecv,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::LastAck,
    State::Closing,
];

#[test]
fn a_reset_with_the_exact_sequence_number_ends_a_connection_in_every_state() {
    for state in WITH_BLOCK {
        let mut net = in_state(state);
        let mut rst = net.forge(Side::A);
        rst.flags = Flags::RST | Flags::ACK;
        if state == State::SynSent {
            rst.ack = net.tcb(Side::A).snd_nxt;
        }
        net.inject(Side::A, &rst, b"");
        assert_eq!(net.state(Side::A), State::Close, "{state}");
        let error = match state {
            State::SynSent | State::SynRecv => TcpError::ConnectionRefused,
            State::CloseWait => TcpError::BrokenPipe,
            _ => TcpError::ConnectionReset,
        };
        assert_eq!(net.tcb(Side::A).take_error(), Some(error), "{state}");
        assert_eq!(net.host(Side::A).drops, [DropReason::TcpReset]);
        net.finish_clean();
    }
}

#[test]
fn an_inexact_reset_in_the_window_is_challenged() {
    for state in WITH_BLOCK.into_iter().filter(|&state| state != State::SynSent) {
        let mut net = in_state(state);
        let before = net.log.len();
        let mut rst = net.forge(Side::A);
        rst.flags = Flags::RST;
        rst.seq += 1000;
        net.inject(Side::A, &rst, b"");
        assert_eq!(net.state(Side::A), state);
        let answer = net.sent_by(Side::A, before);
        assert_eq!(answer.len(), 1, "{state}");
        assert_eq!(answer[0].header.flags, Flags::ACK);
        net.finish_clean();
    }
}

#[test]
fn a_syn_in_a_synchronized_state_is_challenged() {
    for state in WITH_BLOCK.into_iter().filter(|state| state.is_synchronized()) {
        let mut net = in_state(state);
        let before = net.log.len();
        let mut syn = net.forge(Side::A);
        syn.flags = Flags::SYN;
        net.inject(Side::A, &syn, b"");
        // A second SYN at the same time exceeds the rate limit of challenge ACKs.
        net.inject(Side::A, &syn, b"");
        assert_eq!(net.state(Side::A), state);
        let answer = net.sent_by(Side::A, before);
        assert_eq!(answer.len(), 1, "{state}");
        assert_eq!(answer[0].header.flags, Flags::ACK);
        net.finish_clean();
    }
}

#[test]
fn an_abort_that_discards_unread_data_is_an_error_for_the_reader() {
    let mut net = Net::established(31);
    net.send(Side::B, b"unread");
    net.call(Side::B, |tcb, cx| tcb.shutdown_write(cx));
    net.run_for(Duration::from_millis(100));
    assert_eq!(net.state(Side::A), State::CloseWait);
    net.call(Side::A, |tcb, cx| tcb.abort(cx));
    let mut bytes = [0; 8];
    let read = net.call(Side::A, |tcb, cx| tcb.recv(cx, &mut bytes, false));
    assert_eq!(read, Err(RecvError::Connection(TcpError::Aborted)));
}
