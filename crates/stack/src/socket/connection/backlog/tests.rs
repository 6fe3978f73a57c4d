//! Tests of the conditions under which segments of the backlog are joined, and of the resulting
//! segments.

use pkt::{Domain, DomainConfig, Ecn};
use tcp::{Options, SeqNum};

use super::*;

fn pool() -> Pool {
    Domain::new(DomainConfig { max_bytes: 16 << 20 }).pool()
}

/// Builds a segment of `payload` at `seq` that acknowledges 500.
fn segment(pool: &mut Pool, seq: u32, payload: &[u8]) -> Segment {
    let mut packet = pool.alloc().expect("the pool has memory");
    assert_eq!(packet.append(pool, payload), payload.len());
    let header = SegmentHeader {
        seq: SeqNum(seq),
        ack: SeqNum(500),
        flags: Flags::ACK,
        window: 100,
        ..SegmentHeader::default()
    };
    Segment { header, packet }
}

#[test]
fn joining_keeps_the_newer_acknowledgment_and_window() {
    let mut pool = pool();
    for (ack, expected) in [(700, (700, 9)), (500, (500, 9)), (300, (500, 100))] {
        let mut tail = segment(&mut pool, 1000, b"abc");
        let mut next = segment(&mut pool, 1003, b"def");
        next.header.ack = SeqNum(ack);
        next.header.window = 9;
        next.header.flags |= Flags::PSH;
        assert!(tail.join(&mut pool, next).is_ok());
        assert_eq!((tail.header.ack.0, tail.header.window), expected);
        assert_eq!(tail.header.flags, Flags::ACK | Flags::PSH);
        assert_eq!(tail.packet.to_vec(), b"abcdef");
    }
}

#[test]
fn a_joined_segment_has_the_size_and_number_of_its_segments() {
    let mut pool = pool();
    let mut tail = segment(&mut pool, 0, &[1; 1400]);
    for number in 1..4 {
        let next = segment(&mut pool, number * 1400, &[1; 1400]);
        assert!(tail.join(&mut pool, next).is_ok());
    }
    let last = segment(&mut pool, 4 * 1400, &[1; 10]);
    assert!(tail.join(&mut pool, last).is_ok());
    let gso = tail.packet.meta().gso;
    assert_eq!((gso.kind, gso.size, gso.segs), (GsoKind::TcpV4, 1400, 5));
    assert_eq!(tail.packet.len(), 5610);
}

#[test]
fn segments_that_differ_are_not_joined() {
    let mut pool = pool();
    type Change = fn(&mut Segment);
    let changes: [(&str, Change); 10] = [
        ("a reduced window", |next| next.header.flags |= Flags::CWR),
        ("a gap", |next| next.header.seq += 1),
        ("an overlap", |next| next.header.seq = SeqNum(1002)),
        ("a reset", |next| next.header.flags |= Flags::RST),
        ("a SYN", |next| next.header.flags |= Flags::SYN),
        ("urgent data", |next| next.header.flags |= Flags::URG),
        ("a segment without ACK", |next| next.header.flags -= Flags::ACK),
        ("an ECN echo", |next| next.header.flags |= Flags::ECE),
        ("another timestamp", |next| next.header.options.timestamps = Some((1, 2))),
        ("a congestion mark", |next| next.packet.meta_mut().ecn = Ecn::Ce),
    ];
    for (what, change) in changes {
        let mut tail = segment(&mut pool, 1000, b"abc");
        let mut next = segment(&mut pool, 1003, b"def");
        change(&mut next);
        let Err(next) = tail.join(&mut pool, next) else { panic!("{what} was joined") };
        assert_eq!((tail.packet.len(), next.packet.len()), (3, 3), "{what}");
    }
}

#[test]
fn segments_with_equal_options_are_joined() {
    let mut pool = pool();
    let options = Options { timestamps: Some((7, 8)), ..Options::default() };
    let mut tail = segment(&mut pool, 1000, b"abc");
    let mut next = segment(&mut pool, 1003, b"def");
    tail.header.options = options.clone();
    next.header.options = options;
    assert!(tail.join(&mut pool, next).is_ok());
}

#[test]
fn no_segment_is_joined_after_a_fin() {
    let mut pool = pool();
    let mut tail = segment(&mut pool, 1000, b"abc");
    let mut fin = segment(&mut pool, 1003, b"de");
    fin.header.flags |= Flags::FIN;
    assert!(tail.join(&mut pool, fin).is_ok());
    assert!(tail.header.flags.contains(Flags::FIN));
    for seq in [1005, 1006] {
        let behind = segment(&mut pool, seq, b"x");
        assert!(tail.join(&mut pool, behind).is_err());
    }
}

#[test]
fn a_duplicate_ack_is_not_joined() {
    let mut pool = pool();
    let mut tail = segment(&mut pool, 1000, b"");
    let again = segment(&mut pool, 1000, b"");
    assert!(tail.join(&mut pool, again).is_err());
    let data = segment(&mut pool, 1000, b"data");
    assert!(
        tail.join(&mut pool, data).is_err(),
        "a segment without data was joined, which may be a duplicate ACK"
    );
    let mut newer = segment(&mut pool, 1000, b"");
    newer.header.ack = SeqNum(600);
    assert!(tail.join(&mut pool, newer).is_ok());
}

#[test]
fn joined_segments_have_at_most_65_535_bytes() {
    let mut pool = pool();
    let mut tail = segment(&mut pool, 0, &[1; 40_000]);
    let next = segment(&mut pool, 40_000, &[1; 30_000]);
    let Err(next) = tail.join(&mut pool, next) else {
        panic!("70,000 bytes were joined to one segment")
    };
    assert_eq!((tail.packet.len(), next.packet.len()), (40_000, 30_000));
}
