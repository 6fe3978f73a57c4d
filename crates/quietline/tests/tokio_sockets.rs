//! The sockets of the feature `tokio` over a wire in memory, on runtimes with one thread and with
//! several.

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        io::{ErrorKind, IoSlice},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
        time::Duration,
    };

    use quietline::{
        Impairment, Readiness, ReceiveMessage, SendMessage, Stack, Wire, WireConfig,
        device::{PacketPort, PortConfig},
        tokio::{TcpListener, TcpStream, UdpSocket},
    };
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, ReadBuf, unix::AsyncFd},
        runtime::Builder,
        time::{sleep, timeout},
    };

    const SERVER: &str = "10.0.0.2:80";

    fn stacks_with(config: &WireConfig) -> (Stack, Stack) {
        let (left, right) = Wire::pair(config).unwrap();
        let client = Stack::builder().device(left).address("10.0.0.1/24".parse().unwrap());
        let server = Stack::builder().device(right).address("10.0.0.2/24".parse().unwrap());
        (client.build().unwrap(), server.build().unwrap())
    }

    fn stacks() -> (Stack, Stack) {
        stacks_with(&WireConfig::default())
    }

    /// Runs a test on a runtime with one thread, and on one with two workers.
    fn on_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.worker_threads(2).enable_time().build().unwrap();
            let limit = Duration::from_secs(60);
            runtime.block_on(async { timeout(limit, test()).await.expect("the test hangs") });
        }
    }

    async fn connected(client: &Stack, server: &Stack) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(server, "10.0.0.2:0").unwrap();
        let to = listener.local_addr().unwrap();
        let (stream, accepted) = tokio::join!(TcpStream::connect(client, to), listener.accept());
        let ((accepted, peer), stream) = (accepted.unwrap(), stream.unwrap());
        assert_eq!(peer, stream.local_addr().unwrap());
        (stream, accepted)
    }

    #[test]
    fn bytes_pass_in_both_directions() {
        on_both(|| async {
            let (client, server) = stacks();
            let (mut stream, mut accepted) = connected(&client, &server).await;
            let sent: Vec<u8> = (0..4_000_000_u32).map(|place| place.to_le_bytes()[0]).collect();
            let data = sent.clone();
            let echo = tokio::spawn(async move {
                let (mut from, mut to) = accepted.split();
                tokio::io::copy(&mut from, &mut to).await.unwrap();
                accepted.shutdown().await.unwrap();
            });
            let (mut from, mut to) = stream.split();
            let mut echoed = Vec::new();
            let write = async {
                to.write_all(&data).await.unwrap();
                to.shutdown().await.unwrap();
            };
            let (read, ()) = tokio::join!(from.read_to_end(&mut echoed), write);
            assert_eq!(read.unwrap(), sent.len());
            assert!(echoed == sent);
            echo.await.unwrap();
        });
    }

    #[test]
    fn calls_that_do_not_wait() {
        on_both(|| async {
            let (client, server) = stacks();
            let (stream, accepted) = connected(&client, &server).await;
            let mut buf = [0; 8];
            assert_eq!(accepted.try_read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            assert_eq!(accepted.ready(Readiness::WRITE).await.unwrap(), Readiness::WRITE);
            assert_eq!(stream.try_write(b"abc").unwrap(), 3);
            let parts = [IoSlice::new(b"de"), IoSlice::new(b"f")];
            assert_eq!(stream.try_write_vectored(&parts).unwrap(), 3);
            accepted.readable().await.unwrap();
            let mut peeked = 0;
            while peeked < 6 {
                peeked = accepted.peek(&mut buf).await.unwrap();
            }
            let mut read = ReadBuf::new(&mut buf);
            let count = std::future::poll_fn(|task| accepted.poll_peek(task, &mut read)).await;
            assert_eq!((count.unwrap(), read.filled()), (6, &b"abcdef"[..]));
            assert_eq!(accepted.try_read(&mut buf).unwrap(), 6);
            drop(stream);
            accepted.readable().await.unwrap();
            assert_eq!(accepted.try_read(&mut buf).unwrap(), 0);
        });
    }

    #[test]
    fn owned_halves_belong_to_two_tasks() {
        on_both(|| async {
            let (client, server) = stacks();
            let (stream, mut accepted) = connected(&client, &server).await;
            let (mut from, mut to) = stream.into_split();
            let reader = tokio::spawn(async move {
                let mut all = Vec::new();
                from.read_to_end(&mut all).await.unwrap();
                (from, all)
            });
            to.write_all(b"request").await.unwrap();
            let mut buf = [0; 7];
            accepted.read_exact(&mut buf).await.unwrap();
            drop(to);
            assert_eq!(accepted.read(&mut buf).await.unwrap(), 0, "dropping the half sends FIN");
            accepted.write_all(b"answer").await.unwrap();
            drop(accepted);
            assert_eq!(reader.await.unwrap().1, b"answer");

            let (first, second) = connected(&client, &server).await;
            let ((from, to), (other, _)) = (first.into_split(), second.into_split());
            let refused = other.reunite(to).unwrap_err();
            let stream = from.reunite(refused.1).unwrap();
            assert!(stream.take_error().unwrap().is_none());
            let blocking = stream.into_blocking().unwrap();
            assert!(!blocking.nonblocking());
        });
    }

    #[test]
    fn a_connection_that_fails() {
        on_both(|| async {
            let (client, server) = stacks();
            let refused = TcpStream::connect(&client, SERVER.parse().unwrap()).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            let (mut stream, accepted) = connected(&client, &server).await;
            let reader = tokio::spawn(async move { stream.read(&mut [0]).await });
            sleep(Duration::from_millis(5)).await;
            accepted.abort();
            assert_eq!(reader.await.unwrap().unwrap_err().kind(), ErrorKind::ConnectionReset);
        });
    }

    #[test]
    fn several_tasks_accept() {
        on_both(|| async {
            let (client, server) = stacks();
            let listener = Arc::new(TcpListener::bind(&server, SERVER).unwrap());
            let accepted = Arc::new(AtomicUsize::new(0));
            let tasks: Vec<_> = (0..3)
                .map(|_| {
                    let (listener, accepted) = (Arc::clone(&listener), Arc::clone(&accepted));
                    tokio::spawn(async move {
                        while let Ok((mut stream, _)) = listener.accept().await {
                            accepted.fetch_add(1, Ordering::Relaxed);
                            stream.write_all(b"x").await.unwrap();
                        }
                    })
                })
                .collect();
            for _ in 0..50 {
                let mut stream =
                    TcpStream::connect(&client, SERVER.parse().unwrap()).await.unwrap();
                assert_eq!(stream.read(&mut [0; 4]).await.unwrap(), 1);
            }
            listener.as_nonblocking().close();
            for task in tasks {
                task.await.unwrap();
            }
            assert_eq!(accepted.load(Ordering::Relaxed), 50);
        });
    }

    /// A future that is dropped loses no byte, takes no connection, and is not woken any more.
    #[test]
    fn futures_that_are_dropped_take_nothing() {
        on_both(|| async {
            let (client, server) = stacks();
            let listener = TcpListener::bind(&server, SERVER).unwrap();
            assert!(timeout(Duration::from_millis(5), listener.accept()).await.is_err());
            let stream = TcpStream::connect(&client, SERVER.parse().unwrap()).await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            for _ in 0..100 {
                let mut buf = [0; 16];
                let mut read = Box::pin(accepted.read(&mut buf));
                assert!(poll_once(read.as_mut()).is_none());
                drop(read);
                let _ = stream.try_write(b"ab").unwrap();
                let mut got = 0;
                while got < 2 {
                    let mut buf = [0; 16];
                    got += timeout(Duration::from_secs(5), accepted.read(&mut buf[got..]))
                        .await
                        .unwrap()
                        .unwrap();
                }
            }
            let wakes = Arc::new(Count::default());
            let waker = Waker::from(Arc::clone(&wakes));
            let mut ready = Box::pin(accepted.readable());
            assert!(ready.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(ready);
            drop(waker);
            assert_eq!(Arc::strong_count(&wakes), 1, "the waker of a dropped future is kept");
            stream.try_write(b"x").unwrap();
            accepted.readable().await.unwrap();
            assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        });
    }

    #[derive(Debug, Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// An idle connection wakes no task; a request and its answer wake each task once.
    #[test]
    fn there_is_no_wake_without_news() {
        const ROUNDS: u64 = 100;
        on_both(|| async {
            let (client, server) = stacks();
            let (mut stream, mut accepted) = connected(&client, &server).await;
            let calls = |stack: &Stack| stack.counters().get("SocketWatchCalls").unwrap();
            let before = calls(&client) + calls(&server);
            let echo = tokio::spawn(async move {
                let mut buf = [0; 1];
                while accepted.read_exact(&mut buf).await.is_ok() {
                    accepted.write_all(&buf).await.unwrap();
                }
            });
            for _ in 0..ROUNDS {
                stream.write_all(b"x").await.unwrap();
                stream.read_exact(&mut [0]).await.unwrap();
            }
            // The last acknowledgment may be delayed.
            sleep(Duration::from_millis(100)).await;
            let after = calls(&client) + calls(&server);
            assert!(after - before <= 2 * ROUNDS, "{} wakes", after - before);
            sleep(Duration::from_millis(50)).await;
            assert_eq!(calls(&client) + calls(&server), after, "an idle connection wakes");
            drop(stream);
            echo.await.unwrap();
        });
    }

    /// Losses and a delay: the task that writes is woken for space, and the one that reads for
    /// data, until all bytes have arrived.
    #[test]
    fn a_lossy_wire_loses_no_wake() {
        on_both(|| async {
            let mut config = WireConfig::default();
            let lossy = Impairment { loss: 0.01, ..Impairment::default() };
            (config.forward, config.backward) = (lossy, lossy);
            config.forward.delay = Duration::from_millis(1);
            let (client, server) = stacks_with(&config);
            let (mut stream, mut accepted) = connected(&client, &server).await;
            let writer = tokio::spawn(async move {
                for number in 0..200_u8 {
                    stream.write_all(&[number; 10_000]).await.unwrap();
                }
            });
            let mut all = Vec::new();
            accepted.read_to_end(&mut all).await.unwrap();
            writer.await.unwrap();
            assert!(
                (0..200).all(|n| all[n * 10_000..][..10_000].iter().all(|b| usize::from(*b) == n))
            );
            assert_eq!(all.len(), 2_000_000);
        });
    }

    #[test]
    fn datagrams_pass_in_both_directions() {
        on_both(|| async {
            let (client, server) = stacks();
            let receiver = Arc::new(UdpSocket::bind(&server, "10.0.0.2:7").unwrap());
            let sender = UdpSocket::bind(&client, "10.0.0.1:0").unwrap();
            sender.connect("10.0.0.2:7").unwrap();
            assert_eq!(sender.peer_addr().unwrap(), receiver.local_addr().unwrap());
            let echo = tokio::spawn({
                let receiver = Arc::clone(&receiver);
                async move {
                    let mut buf = [0; 100];
                    for _ in 0..100 {
                        let (len, from) = receiver.recv_from(&mut buf).await.unwrap();
                        receiver.send_to(&buf[..len], from).await.unwrap();
                    }
                }
            });
            let mut buf = [0; 100];
            for number in 0..100 {
                assert_eq!(sender.send(&[number; 10]).await.unwrap(), 10);
                assert_eq!(sender.recv(&mut buf).await.unwrap(), 10);
                assert_eq!(buf[0], number);
            }
            echo.await.unwrap();
            let mut never = Box::pin(receiver.recv(&mut buf));
            assert!(poll_once(never.as_mut()).is_none());
            drop(never);
            let messages = [SendMessage::new(b"one"), SendMessage::new(b"two")];
            assert_eq!(sender.send_batch(&messages).await.unwrap(), 2);
            receiver.readable().await.unwrap();
            let (mut first, mut second) = ([0; 10], [0; 10]);
            let mut got = 0;
            while got < 2 {
                let mut batch = [ReceiveMessage::new(&mut first), ReceiveMessage::new(&mut second)];
                got += receiver.recv_batch(&mut batch[got..]).await.unwrap();
            }
            assert!(first.starts_with(b"one") && second.starts_with(b"two"));
        });
    }

    #[test]
    fn the_end_of_a_stack_ends_its_tasks() {
        on_both(|| async {
            let (client, server) = stacks();
            let listener = TcpListener::bind(&server, SERVER).unwrap();
            let (mut stream, _accepted) = connected(&client, &server).await;
            let reads = tokio::spawn(async move { stream.read(&mut [0]).await });
            let accepts = tokio::spawn(async move { listener.accept().await.map(drop) });
            sleep(Duration::from_millis(5)).await;
            client.shutdown();
            server.shutdown();
            assert!(reads.await.unwrap().is_err() && accepts.await.unwrap().is_err());
        });
    }

    /// Sends the frames of a port to another one, until the stack of the first one has ended.
    async fn carry(from: Arc<AsyncFd<PacketPort>>, to: Arc<AsyncFd<PacketPort>>) {
        let mut frame = [0; 1500];
        while !from.get_ref().is_closed() {
            let mut ready = from.readable().await.unwrap();
            let drained = ready.get_inner().drain(16, |lent| {
                let len = lent.copy_to(&mut frame);
                to.get_ref().inject(&[&frame[..len]])
            });
            if drained.is_ok_and(|drained| drained == 0) {
                ready.clear_ready();
            }
        }
    }

    #[test]
    fn tasks_carry_the_frames_of_ports() {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let test = async {
            let stack = |number| {
                let (device, port) = PacketPort::ip(&PortConfig::default()).unwrap();
                let address = format!("10.0.0.{number}/24").parse().unwrap();
                let stack = Stack::builder().device(device).address(address).build().unwrap();
                // SAFETY: a port owns its descriptor and keeps it open.
                let port = unsafe { AsyncFd::register(port) };
                (stack, Arc::new(port.unwrap()))
            };
            let ((client, left), (server, right)) = (stack(1), stack(2));
            let there = tokio::spawn(carry(Arc::clone(&left), Arc::clone(&right)));
            let back = tokio::spawn(carry(right, left));
            let (mut stream, mut accepted) = connected(&client, &server).await;
            let sent = vec![7; 300_000];
            let sends = tokio::spawn(async move {
                stream.write_all(&sent).await.unwrap();
                stream.shutdown().await.unwrap();
                stream
            });
            let mut received = Vec::new();
            accepted.read_to_end(&mut received).await.unwrap();
            assert_eq!(received.len(), 300_000);
            drop((sends.await.unwrap(), accepted, client, server));
            there.await.unwrap();
            back.await.unwrap();
        };
        let limit = Duration::from_secs(60);
        runtime.block_on(async { timeout(limit, test).await.expect("the test hangs") });
    }
}
