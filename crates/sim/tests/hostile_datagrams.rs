//! The corpus of the fuzz target `datagrams`: defines its seeds, and plays them and random inputs.
//!
//! `UPDATE_CORPUS=1 cargo test -p quietline-sim --test hostile_datagrams` writes the seeds to
//! `fuzz/corpus/datagrams`. Other files there are inputs that once found a fault, under names that
//! describe it. `PLAY=FILE` plays one input alone.

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use sim::hostile_datagrams::{self, Outcome};

    /// Step codes, as `hostile_datagrams` decodes them.
    const DATAGRAM: u8 = 1;
    const ERROR: u8 = 3;
    const REPLY: u8 = 4;
    const QUERY: u8 = 5;
    const OPEN: u8 = 6;
    const CONNECT: u8 = 7;
    const SEND: u8 = 8;
    const RECEIVE: u8 = 10;
    const BATCH: u8 = 11;
    const MEMBERSHIP: u8 = 13;
    const CLOSE: u8 = 14;
    const TIME: u8 = 15;

    /// Addresses, as `pick_address` reads them: port 53, scope 1, the address.
    const ANY_V4: [u8; 3] = [0, 1, 2];
    const ANY_V6: [u8; 3] = [0, 1, 8];
    const PEER_V4: [u8; 3] = [0, 1, 0];
    const PEER_V6: [u8; 3] = [0, 1, 6];
    const GROUP_V4: [u8; 3] = [0, 1, 3];
    const GROUP_V6: [u8; 3] = [0, 1, 9];

    /// A valid datagram from port 53 to port 53 of the host, over IPv4 or IPv6.
    const fn datagram(v6: u8) -> [u8; 8] {
        [DATAGRAM, v6, 0, 0, 0x5a, 5, 7, 0]
    }

    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let open = |local: [u8; 3]| [&[OPEN, 0][..], &local].concat();
        let send = |to: [u8; 3]| [&[SEND, 0, 0, 0, 100][..], &to, &[0x5a]].concat();
        let join = |group: [u8; 3]| [&[MEMBERSHIP, 0, 0][..], &group].concat();
        let connect = |to: [u8; 3]| [&[CONNECT, 0][..], &to].concat();
        let receive = vec![RECEIVE, 0, 0];
        let run = |parts: &[Vec<u8>]| [vec![0], parts.concat()].concat();
        vec![
            ("v4", run(&[open(ANY_V4), datagram(0).into(), receive.clone(), send(PEER_V4)])),
            ("v6", run(&[open(ANY_V6), datagram(1).into(), receive.clone(), send(PEER_V6)])),
            (
                "dual",
                run(&[
                    open(ANY_V6),
                    datagram(0).into(),
                    datagram(1).into(),
                    vec![BATCH, 0, 4],
                    send(PEER_V4),
                    connect(PEER_V6),
                    datagram(1).into(),
                    receive.clone(),
                ]),
            ),
            (
                "groups",
                run(&[
                    open(ANY_V6),
                    join(GROUP_V6),
                    join(GROUP_V4),
                    vec![QUERY, 0, 10, 12, 0, QUERY, 1, 10, 28, 0],
                    vec![TIME, 100],
                    vec![DATAGRAM, 3, 0, 0, 0x5a, 5, 7, 0, DATAGRAM, 2, 0, 0, 0x5a, 5, 7, 0],
                    vec![BATCH, 0, 4],
                    send(GROUP_V6),
                    send(GROUP_V4),
                    vec![CLOSE, 0],
                ]),
            ),
            (
                "ping",
                run(&[
                    vec![OPEN, 3, 0, 1, 2],
                    send(PEER_V4),
                    vec![REPLY, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0],
                    receive.clone(),
                    vec![ERROR, 0x88, 0, 0, 10, 0],
                ]),
            ),
            (
                "errors",
                run(&[
                    open(ANY_V6),
                    connect(PEER_V6),
                    send(PEER_V6),
                    vec![ERROR, 1, 0, 0, 10, 0],
                    receive.clone(),
                    vec![ERROR, 0x0d, 0, 0, 200, 0],
                    receive,
                ]),
            ),
        ]
    }

    fn corpus() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/datagrams")
    }

    #[test]
    fn the_corpus_holds() {
        if let Some(file) = std::env::var_os("PLAY") {
            println!("{:?}", hostile_datagrams::run(&fs::read(file).expect("a readable file")));
            return;
        }
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            fs::create_dir_all(corpus()).expect("a directory");
            for (name, seed) in seeds() {
                fs::write(corpus().join(name), seed).expect("a writable file");
            }
        }
        for entry in fs::read_dir(corpus()).expect("the corpus") {
            let path = entry.expect("an entry").path();
            println!("{}", path.display());
            hostile_datagrams::run(&fs::read(path).expect("a readable file"));
        }
        for (name, seed) in seeds() {
            assert_eq!(fs::read(corpus().join(name)).ok().as_ref(), Some(&seed), "{name}");
        }
    }

    #[test]
    fn the_seeds_reach_the_sockets() {
        let mut sum = Outcome::default();
        for (name, seed) in seeds() {
            let outcome = hostile_datagrams::run(&seed);
            println!("{name}: {outcome:?}");
            sum.received += outcome.received;
            sum.sent += outcome.sent;
        }
        assert!(sum.received >= 8, "{sum:?}");
        assert!(sum.sent >= 7, "{sum:?}");
    }

    #[test]
    fn random_inputs_hold() {
        let mut rng = tcp::Rng::new(17);
        let mut received = 0;
        for number in 0..400 {
            // A socket of each family is open, so that more packets reach one.
            let mut input: Vec<u8> = vec![u8::try_from(rng.below(256)).expect("a byte")];
            input.extend([OPEN, 0].into_iter().chain(ANY_V6));
            input.extend([OPEN, 0].into_iter().chain([1, 1, 2]));
            let bytes = (0..rng.below(1500)).map(|_| u8::try_from(rng.below(256)).expect("a byte"));
            input.extend(bytes);
            println!("input {number}: {} bytes", input.len());
            received += hostile_datagrams::run(&input).received;
        }
        assert!(received > 50, "{received} datagrams were received");
    }
}
