//! The corpus of the fuzz target `receive`: defines its seeds, and plays every input of it, in
//! different modes.
//!
//! `UPDATE_CORPUS=1 cargo test -p quietline-sim --test hostile` writes the seeds to
//! `fuzz/corpus/receive`. Other files there are inputs that once found a fault, under names that
//! describe it. `PLAY=FILE` plays one input alone.

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use sim::{
        hostile::{self, Outcome},
        modes::{self, Settings},
    };

    /// Step codes, as `hostile` decodes them.
    const RAW: u8 = 0;
    const PACKET: u8 = 1;
    const SEGMENT: u8 = 2;
    const ICMP_ERROR: u8 = 4;
    const ECHO: u8 = 5;
    const ARP: u8 = 6;
    const TIME: u8 = 7;
    const ACCEPT: u8 = 8;
    const SEND: u8 = 9;
    const RECEIVE: u8 = 10;
    const CONTROL: u8 = 11;
    const OPEN: u8 = 12;
    const CONNECT: u8 = 13;
    const AGAIN: u8 = 14;
    const MODE: u8 = 15;

    /// A handshake with all options, then an accept.
    const ESTABLISH: &[u8] = &[OPEN, 0, 0x7f, ACCEPT];
    const ACK: u8 = 0x10;
    const PSH_ACK: u8 = 0x18;
    const FIN_ACK: u8 = 0x11;
    const SYN: u8 = 0x02;
    const SYN_ACK: u8 = 0x12;
    const RST: u8 = 0x04;

    /// The next segment of the first connection, unmodified, with a length code.
    const fn next(flags: u8, len: u8) -> [u8; 8] {
        [SEGMENT, 0, flags, 0, 0, len, 0x7f, 0]
    }

    /// A segment of the first connection with modified sequence and acknowledgment numbers.
    const fn bent(flags: u8, seq: u8, ack: u8, len: u8) -> [u8; 8] {
        [SEGMENT, 0, flags, seq, ack, len, 0x7f, 0]
    }

    /// 45 times 20 bytes.
    const FULL: u8 = 115;
    /// Two milliseconds, and one second.
    const SHORT: [u8; 2] = [TIME, 21];
    const SECOND: [u8; 2] = [TIME, 30];
    const ALL: [u8; 4] = [RECEIVE, 0, 0x40, 0];

    /// The last frame again, with a bit of its IP header or of its ports changed and its checksums
    /// corrected.
    const fn again(at: u8) -> [u8; 4] {
        [AGAIN, 0, 14 + at, 0x81]
    }

    /// Setting 0: Ethernet, MTU 1,500, plenty of memory.
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let established = |steps: &[&[u8]]| [&[0], ESTABLISH, &steps.concat()].concat();
        vec![
            ("arp-request", vec![0, ARP, 2, 0, 0, 0]),
            ("arp-reply-unasked", vec![0, ARP, 1, 0, 0, 0]),
            ("arp-announcement", vec![0, ARP, 2, 2, 0, 6, ARP, 2, 0, 1, 0]),
            ("arp-probe", vec![0, ARP, 2, 0, 7, 0]),
            ("arp-silence", vec![0, MODE, 200, CONNECT, 0, 0, TIME, 33]),
            ("echo", vec![0, ECHO, 0, 56, 0, ECHO, 5, 0xc0, 0]),
            ("echo-spoofed", vec![0, ECHO, 0, 8, 1, ECHO, 0, 8, 2, ECHO, 0, 8, 4, ECHO, 0, 8, 6]),
            ("echo-broadcast", vec![0, ECHO, 0, 8, 0x08, ECHO, 0, 8, 0x10, ECHO, 0, 8, 0x18]),
            ("raw-truncated", vec![0, RAW, 3, 1, 2, 3, 1, RAW, 4, 0x45, 0, 0, 60, 0, 0, 0]),
            ("raw-vlan", vec![0, RAW, 4, 0, 1, 8, 0, 0, 0, 3]),
            ("ip-fragment", vec![0, PACKET, 17, 0x40, 4, 1, 2, 3, 4, 0, PACKET, 6, 0x80, 3, 0, 0]),
            (
                "ip-options",
                vec![0, PACKET, 1, 0xc0, 4, 7, 3, 4, 0, 8, 8, 0, 0xf7, 0xff, 0, 0, 0, 0, 0],
            ),
            ("ip-unknown-protocol", vec![0, PACKET, 132, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0]),
            (
                "ip-not-ours",
                vec![0, PACKET, 17, 0x28, 0, 0, PACKET, 17, 0x30, 0, 0, PACKET, 17, 6, 0, 0],
            ),
            ("ip-bare-link", vec![1, ECHO, 0, 8, 0, OPEN, 0, 0, RAW, 1, 0x60, RAW, 1, 0x10]),
            ("syn", vec![0, OPEN, 0, 0]),
            (
                "syn-flood",
                vec![0, OPEN, 0, 0, OPEN, 1, 1, OPEN, 2, 3, OPEN, 3, 7, OPEN, 4, 15, TIME, 37],
            ),
            ("data", established(&[&next(PSH_ACK, 73), &ALL])),
            (
                "data-both-ways",
                established(&[&next(ACK, FULL), &[SEND, 0, 0x40, 0], &next(ACK, 0), &ALL]),
            ),
            (
                "data-out-of-order",
                established(&[&bent(ACK, 0x61, 0, FULL), &next(ACK, FULL), &SHORT, &ALL]),
            ),
            ("data-overlapping", established(&[&next(ACK, FULL), &bent(ACK, 0x81, 0, FULL), &ALL])),
            (
                "data-beyond-window",
                established(&[&bent(ACK, 0xbf, 0, 73), &bent(ACK, 0xc0, 0, 73)]),
            ),
            ("data-paged", established(&[&[MODE, 64], &next(ACK, FULL), &next(ACK, 73), &ALL])),
            (
                "data-in-a-batch",
                established(&[
                    &[MODE, 3],
                    &next(ACK, FULL),
                    &next(ACK, FULL),
                    &next(FIN_ACK, FULL),
                    &next(ACK, 0),
                    &ALL,
                    &ALL,
                ]),
            ),
            (
                "data-of-two-connections-in-a-batch",
                established(&[
                    &[OPEN, 1, 0x7f, ACCEPT, MODE, 3],
                    &next(ACK, FULL),
                    &[SEGMENT, 1, ACK, 0, 0, FULL, 0x7f, 0],
                    &next(PSH_ACK, FULL),
                    &[SEGMENT, 1, PSH_ACK, 0, 0, FULL, 0x7f, 0],
                    &ALL,
                    &[RECEIVE, 1, 0x40, 0],
                ]),
            ),
            (
                "data-to-the-backlog",
                established(&[
                    &[MODE, 2],
                    &next(ACK, FULL),
                    &next(ACK, FULL),
                    &[SEND, 0, 0x10, 0],
                    &ALL,
                ]),
            ),
            (
                "fin",
                established(&[&next(FIN_ACK, 73), &ALL, &ALL, &[CONTROL, 0, 11], &next(ACK, 0)]),
            ),
            (
                "fin-ours-first",
                established(&[
                    &[CONTROL, 0, 0],
                    &next(ACK, 0),
                    &next(FIN_ACK, 0),
                    &[CONTROL, 0, 11, TIME, 36],
                ]),
            ),
            (
                "fin-both",
                established(&[&[CONTROL, 0, 0], &bent(FIN_ACK, 0, 0x40, 0), &next(ACK, 0)]),
            ),
            (
                "time-wait-reopened",
                established(&[
                    &[CONTROL, 0, 0],
                    &next(FIN_ACK, 0),
                    &[OPEN, 0, 0x7f, ACCEPT],
                    &next(ACK, 73),
                ]),
            ),
            ("rst", established(&[&next(RST, 0)])),
            ("rst-in-window", established(&[&bent(RST, 0x28, 0, 0), &bent(RST, 0xc1, 0, 0)])),
            ("syn-in-connection", established(&[&next(SYN, 0), &next(SYN_ACK, 0)])),
            (
                "ack-of-nothing",
                established(&[
                    &bent(ACK, 0, 0x3f, 0),
                    &bent(ACK, 0, 0x5f, 0),
                    &bent(ACK, 0, 0xdf, 0),
                ]),
            ),
            ("timestamps-old", established(&[&[SEGMENT, 0, ACK, 0, 0, FULL, 0x7f, 0xf9], &SHORT])),
            (
                "window-zero",
                established(&[
                    &[SEGMENT, 0, ACK, 0, 0, 0, 0, 0, SEND, 0, 0x20, 0],
                    &SECOND,
                    &SECOND,
                    &next(ACK, 0),
                ]),
            ),
            (
                "sack-blocks",
                established(&[
                    &[SEND, 0, 0x60, 0],
                    &[SEGMENT, 0, ACK, 0, 0x48, 0, 0x7f, 0xfc],
                    &SECOND,
                ]),
            ),
            (
                "options-raw",
                established(&[&[SEGMENT, 0, ACK, 0, 0, 66, 0x7f, 5, 6, 8, 10, 2, 0, 253, 3]]),
            ),
            (
                "duplicate-acks",
                established(&[
                    &[SEND, 0, 0x60, 0],
                    &bent(ACK, 0, 0x68, 0),
                    &bent(ACK, 0, 0x68, 0),
                    &bent(ACK, 0, 0x68, 0),
                    &SHORT,
                ]),
            ),
            (
                "retransmission",
                established(&[&[SEND, 0, 0x20, 0], &[TIME, 39], &[TIME, 39], &[TIME, 39]]),
            ),
            (
                "connect",
                vec![0, CONNECT, 0, 0, SEGMENT, 0, SYN_ACK, 0, 0, 0, 0x7f, 7, SEND, 0, 1, 0],
            ),
            ("connect-refused", vec![0, CONNECT, 0, 0, SEGMENT, 0, RST | ACK, 0, 0, 0, 0, 0]),
            (
                "connect-simultaneous",
                vec![
                    0, CONNECT, 0, 0, SEGMENT, 0, SYN, 0, 0, 0, 0x7f, 7, SEGMENT, 0, ACK, 0, 0, 0,
                    0x7f, 0,
                ],
            ),
            ("connect-unanswered", vec![0, CONNECT, 0, 0, TIME, 38, TIME, 38, CONTROL, 0, 4]),
            ("icmp-unreachable", vec![0, CONNECT, 0, 0, ICMP_ERROR, 0, 0x03, 1, 0, 0, 0xff]),
            (
                "icmp-frag-needed",
                established(&[
                    &[SEND, 0, 0x40, 0],
                    &[ICMP_ERROR, 0, 0x03, 4, 2, 0x58, 0xf0],
                    &SECOND,
                ]),
            ),
            (
                "icmp-out-of-window",
                established(&[&[SEND, 0, 0, 100], &[ICMP_ERROR, 0, 0x03, 4, 2, 0x58, 1]]),
            ),
            (
                "icmp-short-quote",
                established(&[&[SEND, 0, 0, 100], &[ICMP_ERROR, 0, 0x0b, 0, 0, 0, 0]]),
            ),
            (
                "memory-short",
                [
                    &[8],
                    ESTABLISH,
                    &[SEND, 0, 0xff, 0xff],
                    &next(ACK, FULL),
                    &[SEND, 0, 0xff, 0xff],
                    &SECOND,
                ]
                .concat(),
            ),
            (
                "small-limits",
                [
                    &[32],
                    ESTABLISH,
                    &[MODE, 8],
                    &next(ACK, FULL),
                    &next(ACK, FULL),
                    &next(ACK, FULL),
                    &next(ACK, FULL),
                    &next(ACK, FULL),
                    &ALL,
                    &[SEND, 0, 0xff, 0xff],
                    &next(FIN_ACK, FULL),
                    &[CONTROL, 0, 11],
                    &SECOND,
                ]
                .concat(),
            ),
            (
                "two-cores",
                [
                    &[128],
                    ESTABLISH,
                    &next(ACK, FULL),
                    &[SEND, 0, 0xff, 0xff],
                    &SECOND,
                    &[CONTROL, 0, 11],
                ]
                .concat(),
            ),
            (
                "small-mtu",
                [&[2], ESTABLISH, &[SEND, 0, 0xff, 0xff], &next(ACK, 0), &next(ACK, 0), &SECOND]
                    .concat(),
            ),
            (
                "again-bit",
                established(&[
                    &next(PSH_ACK, 73),
                    &[AGAIN, 0, 40, 0x81, AGAIN, 0, 47, 1, AGAIN, 0, 54, 64],
                ]),
            ),
            // Fields that may differ between two packets of a flow, then each field that may not,
            // and back.
            (
                "repeated-headers",
                established(&[
                    &next(ACK, FULL),
                    &next(PSH_ACK, FULL),
                    &[5, 8].map(again).concat(),
                    &[0, 0, 1, 1, 6, 6, 9, 9, 15, 15, 19, 19, 21, 21, 23, 23].map(again).concat(),
                    &next(PSH_ACK, FULL),
                    &ALL,
                ]),
            ),
            (
                "listener-closed",
                vec![
                    0, OPEN, 0, 0, OPEN, 1, 0, CONTROL, 0, 15, OPEN, 2, 0, CONTROL, 0, 15, OPEN, 3,
                    0,
                ],
            ),
            ("keepalive", established(&[&[CONTROL, 0, 10, TIME, 35, TIME, 35, TIME, 35]])),
            ("linger-zero", established(&[&[SEND, 0, 1, 0, CONTROL, 0, 16 | 7, CONTROL, 0, 11]])),
        ]
    }

    fn corpus() -> PathBuf {
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/receive"))
    }

    #[test]
    fn seeds_are_in_the_corpus() {
        for (name, seed) in seeds() {
            let path = corpus().join(name);
            if std::env::var_os("UPDATE_CORPUS").is_some() {
                fs::create_dir_all(corpus()).expect("a directory for the corpus");
                fs::write(&path, &seed).expect("a seed is written");
            }
            let committed = fs::read(&path).unwrap_or_default();
            assert_eq!(committed, seed, "{name}: run with UPDATE_CORPUS=1");
        }
    }

    #[test]
    fn every_input_of_the_corpus_passes() {
        if let Ok(path) = std::env::var("PLAY") {
            hostile::run(&fs::read(path).expect("PLAY names an input"));
            return;
        }
        let failed = modes::failures(&corpus(), |input, settings| {
            hostile::run_in(input, settings);
        });
        assert_eq!(failed, [""; 0]);
    }

    fn play(name: &str) -> Outcome {
        let seeds = seeds();
        let seed = seeds.iter().find(|(known, _)| *known == name);
        hostile::run_in(&seed.unwrap_or_else(|| panic!("no seed {name}")).1, &Settings::default())
    }

    #[test]
    fn seeds_reach_the_code_they_are_named_for() {
        assert_eq!(play("syn").established, 1);
        assert_eq!(play("data").received, 10);
        assert_eq!(play("data-out-of-order").received, 536 + 900);
        assert_eq!(play("data-overlapping").received, 900 - 536 + 900);
        assert_eq!(play("data-in-a-batch").received, 2700);
        assert_eq!(play("data-of-two-connections-in-a-batch").received, 4 * 900);
        assert!(play("data-both-ways").sent >= 0x4000);
        assert_eq!(play("time-wait-reopened").established, 2);
        assert_eq!(play("connect").established, 1);
        assert!(play("retransmission").sent > 0x2000);
    }
}
