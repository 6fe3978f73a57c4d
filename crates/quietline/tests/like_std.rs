//! Runs the same program on the kernel's sockets and on quietline's, and checks that all calls have
//! equal results.

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, IoSlice, IoSliceMut, Read, Write},
        net::{Shutdown, SocketAddr},
        thread,
        time::{Duration, Instant},
    };

    use quietline::{Stack, Wire, WireConfig};

    /// Results of the calls, one line each.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Answers(Vec<String>);

    impl Answers {
        fn note<T: std::fmt::Debug>(&mut self, call: &str, result: std::io::Result<T>) {
            self.0.push(match result {
                Ok(value) => format!("{call}: {value:?}"),
                Err(error) => format!("{call}: {:?}", error.kind()),
            });
        }
    }

    /// Times allowed for segments and their acknowledgments to arrive, tried one after the other.
    /// Both stacks take microseconds on an idle machine. Results that differ are repeated with more
    /// time; results that still differ after seconds are an error.
    const MOMENTS: [Duration; 3] =
        [Duration::from_millis(30), Duration::from_millis(300), Duration::from_secs(3)];

    /// Repeats a nonblocking call until it succeeds.
    fn until_ready<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
        let begin = Instant::now();
        loop {
            match call() {
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock
                        && begin.elapsed() < Duration::from_secs(10) =>
                {
                    thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    /// The program, for any pair of types with the interface of `std::net`.
    macro_rules! program {
        ($name:ident, $stream:ty, $listener:ty) => {
            fn $name(
                bind: impl Fn() -> $listener,
                connect: impl Fn(SocketAddr) -> std::io::Result<$stream>,
                moment: Duration,
            ) -> Answers {
                let wait = || thread::sleep(moment);
                let mut answers = Answers::default();
                let pair = || {
                    let listener = bind();
                    let to = listener.local_addr().unwrap();
                    let client = connect(to).unwrap();
                    let server = listener.accept().unwrap().0;
                    for stream in [&client, &server] {
                        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    }
                    (client, server)
                };
                let mut buf = [0; 16];

                let (mut a, b) = pair();
                answers.note("shut for writing", a.shutdown(Shutdown::Write));
                answers.note("shut for writing again", a.shutdown(Shutdown::Write));
                answers.note("write after shutdown", a.write(b"x"));
                answers.note("the peer reads the end", (&b).read(&mut buf));
                answers.note("the peer reads the end again", (&b).read(&mut buf));
                answers.note("the peer peeks at the end", b.peek(&mut buf));
                answers.note("the peer still writes", (&b).write(b"later"));
                answers.note("read the peer's data", a.read(&mut buf));
                drop(b);
                answers.note("read the peer's end", a.read(&mut buf));
                wait();
                answers.note("shut after both ends", a.shutdown(Shutdown::Both));
                answers.note("error after both ends", a.take_error().map(|e| e.is_none()));

                let (mut a, mut b) = pair();
                answers.note("shut for reading", a.shutdown(Shutdown::Read));
                answers.note("read after shutdown", a.read(&mut buf));
                answers.note("the peer writes after the shutdown", b.write(b"data"));
                wait();
                answers.note("read the data after the shutdown", a.read(&mut buf));
                answers.note("read the end after the data", a.read(&mut buf));
                answers.note("the other direction works", a.write(b"yes"));
                answers.note("the peer reads it", b.read(&mut buf));

                let (mut a, mut b) = pair();
                answers.note("shut both ways", a.shutdown(Shutdown::Both));
                answers.note("read after shutdown", a.read(&mut buf));
                answers.note("write after shutdown", a.write(b"x"));
                answers.note("the peer reads the end", b.read(&mut buf));
                answers.note("the peer writes to a closed stream", b.write(b"x"));
                wait();
                answers.note("the peer writes again", b.write(b"x"));
                answers.note("the peer reads after the error", b.read(&mut buf));

                let (mut a, mut b) = pair();
                a.write_all(b"unread").unwrap();
                b.write_all(b"hello").unwrap();
                wait();
                drop(b);
                wait();
                answers.note("data before a reset", a.read(&mut buf));
                answers.note("the reset", a.read(&mut buf));
                answers.note("read after the reset", a.read(&mut buf));
                answers.note("write after a reset", a.write(b"x"));
                answers.note("shut after a reset", a.shutdown(Shutdown::Write));

                let (mut a, mut b) = pair();
                a.write_all(b"unread").unwrap();
                wait();
                drop(b);
                wait();
                let error = |e: Option<std::io::Error>| e.map(|e| e.kind());
                answers.note("take the error", a.take_error().map(error));
                answers.note("take the error again", a.take_error().map(error));
                answers.note("read without an error", a.read(&mut buf));
                answers.note("peek without an error", a.peek(&mut buf));
                answers.note("write without an error", a.write(b"x"));

                let (a, c) = pair();
                b = c;
                drop(a);
                answers.note("the end", b.read(&mut buf));
                answers.note("the first write", b.write(b"x"));
                wait();
                answers.note("the second", b.write(b"x"));
                answers.note("read after a broken pipe", b.read(&mut buf));

                let (mut a, b) = pair();
                answers.note("write nothing", a.write(&[]));
                a.set_nonblocking(true).unwrap();
                answers.note("read without data", a.read(&mut buf));
                answers.note("peek without data", a.peek(&mut buf));
                answers
                    .note("vectored", a.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b"c")]));
                let (mut one, mut two) = ([0; 1], [0; 9]);
                let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                wait();
                answers.note("vectored", (&b).read_vectored(&mut bufs));
                answers.note("zero timeout", a.set_read_timeout(Some(Duration::ZERO)));
                b.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                answers.note("timeout", (&b).read(&mut buf));
                let chunk = vec![0; 1 << 20];
                let full = loop {
                    if let Err(error) = a.write(&chunk) {
                        break error;
                    }
                };
                answers.note("full", Err::<(), _>(full));
                answers.note("shut with a full buffer", a.shutdown(Shutdown::Write));
                answers.note("write then", a.write(b"x"));

                let listener = bind();
                listener.set_nonblocking(true).unwrap();
                answers.note("accept without a connection", listener.accept().map(|_| ()));
                let to = listener.local_addr().unwrap();
                let a = connect(to).unwrap();
                let (b, peer) = until_ready(|| listener.accept()).unwrap();
                answers.note("addresses", Ok(peer == a.local_addr().unwrap()));
                answers.note("addresses", Ok(b.local_addr().unwrap() == a.peer_addr().unwrap()));
                b.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                answers.note("an accepted stream waits", (&b).read(&mut buf));
                let left = connect(to).unwrap();
                drop(listener);
                wait();
                answers.note("read a connection that is not accepted", (&left).read(&mut buf));
                answers.note("refused", connect(to).map(|_| ()));
                answers.note("write without the listener", (&a).write(b"x"));
                answers.note("read without the listener", until_ready(|| (&b).read(&mut buf)));

                let (mut a, b) = pair();
                b.set_nodelay(true).unwrap();
                answers.note("no delay", b.nodelay());
                let clone = b.try_clone().unwrap();
                drop(b);
                answers.note("a clone keeps it open", (&clone).write(b"x"));
                answers.note("read from the clone", a.read(&mut buf));
                a.write_all(b"y").unwrap();
                answers.note("both ways", (&clone).read(&mut buf));
                drop(clone);
                answers.note("dropping the last clone closes the stream", a.read(&mut buf));
                answers
            }
        };
    }

    program!(run_on_kernel, std::net::TcpStream, std::net::TcpListener);
    program!(run_on_quietline, quietline::TcpStream, quietline::TcpListener);

    #[test]
    fn every_call_has_the_result_of_the_kernel() {
        let kernel = |moment| {
            let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            run_on_kernel(bind, std::net::TcpStream::connect, moment)
        };
        let (left, right) = Wire::pair(&WireConfig::default()).unwrap();
        let host = |device, address: &str| {
            Stack::builder().device(device).address(address.parse().unwrap()).build().unwrap()
        };
        let (client, server) = (host(left, "10.0.0.1/24"), host(right, "10.0.0.2/24"));
        let ours = |moment| {
            run_on_quietline(
                || quietline::TcpListener::bind(&server, "10.0.0.2:0").unwrap(),
                |to| quietline::TcpStream::connect(&client, to),
                moment,
            )
        };
        let mut rounds = MOMENTS.iter().map(|&moment| (kernel(moment), ours(moment)));
        let mut round = rounds.next().expect("three rounds");
        while round.0 != round.1 {
            for (kernel, ours) in round.0.0.iter().zip(&round.1.0) {
                println!("{kernel:50} {ours}");
            }
            let Some(longer) = rounds.next() else { panic!("{round:?}") };
            round = longer;
        }
    }
}
