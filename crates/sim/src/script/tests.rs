//! The interpreter itself: a wrong script fails, and the message names the line.

use super::run;

/// A connection accepted by the host, then `rest`.
fn accepted(rest: &str) -> String {
    format!(
        "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1460,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,wscale 7>
+0.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
{rest}"
    )
}

fn fails(rest: &str) -> (u32, String) {
    let failure = run("test.pkt", &accepted(rest)).expect_err("a script that must fail");
    (failure.line, failure.text)
}

#[test]
fn a_script_that_is_fulfilled_passes() {
    let trace = run(
        "test.pkt",
        &accepted(
            "+0 < P. 1:101(100) ack 1 win 257
+0 > . 1:1(0) ack 101
+0 read(4, ..., 200) = 100
+0...0.050 read(4, ..., 200) = 10
+0.050 < P. 101:111(10) ack 1 win 257
+0 > . 1:1(0) ack 111
+0 write(4, ..., 3000) = 3000
+0 > P. 1:3001(3000) ack 111
+0.01 < . 111:111(0) ack 3001 win 257
+0 %{ assert tcpi_state == TCP_ESTABLISHED and TcpPassiveOpens == 1 }%",
        ),
    );
    assert!(trace.is_ok(), "{}", trace.unwrap_err());
}

#[test]
fn a_wrong_field_is_named() {
    let (line, text) = fails("+0 write(4, ..., 10) = 10\n+0 > . 1:11(10) ack 1");
    assert_eq!(line, 9);
    assert!(text.starts_with("flags: expected ., came P."), "{text}");
    let (_, text) = fails("+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1 win 7");
    assert!(text.starts_with("win: expected 7, came "), "{text}");
    let (_, text) = fails("+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1 <nop,nop>");
    assert!(text.starts_with("options: expected nop,nop, came"), "{text}");
}

#[test]
fn a_wrong_time_is_named() {
    let (line, text) = fails("+0 write(4, ..., 10) = 10\n+0.1 > P. 1:11(10) ack 1");
    assert_eq!(line, 9);
    assert!(text.starts_with("sent at 0.100000, expected at 0.200000"), "{text}");
    let (_, text) = fails("+0 > P. 1:11(10) ack 1");
    assert!(text.starts_with("nothing came until"), "{text}");
}

#[test]
fn an_unexpected_segment_fails_the_next_event_or_the_end() {
    let (line, text) = fails("+0 write(4, ..., 10) = 10\n+0.1 read(4, ..., 10) = -1 EAGAIN (x)");
    assert_eq!(line, 9);
    assert!(text.starts_with("not expected: 0.100000 > P. 1:11(10) ack 1 win "), "{text}");
    let (line, text) = fails("+0 write(4, ..., 10) = 10");
    assert_eq!(line, 0);
    assert!(text.contains("not expected"), "{text}");
}

#[test]
fn results_and_blocking_of_calls_are_compared() {
    let (line, text) = fails("+0 read(4, ..., 10) = 10");
    assert_eq!((line, text.as_str()), (8, "the call blocks"));
    let (_, text) = fails("+0 write(9, ..., 10) = 10");
    assert_eq!(text, "expected 10, the call returned -1 EBADF (Bad file descriptor)");
    let (_, text) = fails("+0...1 read(4, ..., 10) = 10\n+0.1 < P. 1:11(10) ack 1 win 257");
    assert!(text.contains("returned at 0.200000, expected 1.100000"), "{text}");
    let (line, text) = fails("+0...1 read(4, ..., 10) = 10");
    assert_eq!((line, text.as_str()), (8, "the call has not returned"));
}

#[test]
fn assertions_and_settings_are_checked() {
    let (line, text) = fails("+0 %{ assert tcpi_snd_cwnd == 11 }%");
    assert_eq!((line, text.as_str()), (8, "assert tcpi_snd_cwnd == 11: tcpi_snd_cwnd is 10"));
    let failure = run("x", "`sysctl -q net.ipv4.tcp_nothing=1`\n0 socket(...) = 3").unwrap_err();
    assert_eq!((failure.line, failure.text.as_str()), (1, "net.ipv4.tcp_nothing: no such setting"));
    let failure = run("x", "--no_such=1\n0 socket(...) = 3").unwrap_err();
    assert_eq!((failure.line, failure.text.as_str()), (1, "--no_such=1: no such option"));
}
