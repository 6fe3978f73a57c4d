//! A relay of streams in memory, in the virtual time of a paused runtime.

use std::time::Duration;

use ::tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::{sleep, timeout},
};

use super::*;

/// An end that records its abort.
struct End {
    stream: DuplexStream,
    aborted: bool,
}

impl AsyncRead for End {
    fn poll_read(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(task, buf)
    }
}

impl AsyncWrite for End {
    fn poll_write(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(task, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(task)
    }
}

impl RelayEnd for End {
    fn abort(&mut self) {
        self.aborted = true;
    }
}

/// Returns the far ends of a relay, and its two ends.
fn ends() -> (DuplexStream, DuplexStream, End, End) {
    let ((client, a), (server, b)) = (duplex(100), duplex(100));
    let end = |stream| End { stream, aborted: false };
    (client, server, end(a), end(b))
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_an_idle_relay_restarts_with_every_byte() {
    let (mut client, _server, mut a, mut b) = ends();
    let limits = RelayLimits::default().with_idle(Some(Duration::from_secs(60)));
    let began = Instant::now();
    let sender = async {
        for _ in 0..5 {
            sleep(Duration::from_secs(50)).await;
            client.write_all(b"x").await.unwrap();
        }
    };
    let (result, ()) = ::tokio::join!(relay(&mut a, &mut b, &limits), sender);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed().as_secs(), 5 * 50 + 60);
    assert!(a.aborted && b.aborted);
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_relay_has_a_limit_of_its_own() {
    let (mut client, mut server, mut a, mut b) = ends();
    let limits = RelayLimits::default().with_half_closed(Some(Duration::from_secs(10)));
    let began = Instant::now();
    let ends = async {
        sleep(Duration::from_secs(3600)).await;
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0; 4]).await.unwrap(), 0);
        sleep(Duration::from_secs(9)).await;
        server.write_all(b"late").await.unwrap();
        let mut late = [0; 4];
        client.read_exact(&mut late).await.unwrap();
    };
    let (result, ()) = ::tokio::join!(relay(&mut a, &mut b, &limits), ends);
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed().as_secs(), 3600 + 9 + 10);
}

#[tokio::test(start_paused = true)]
async fn both_ends_of_the_stream_end_the_relay() {
    let (mut client, mut server, mut a, mut b) = ends();
    let limits = RelayLimits::default().with_buffer_bytes(7);
    let (sent, answered) = (vec![1; 1000], vec![2; 300]);
    let ends = async {
        let (mut received, mut answer) = (Vec::new(), Vec::new());
        let request = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            client.read_to_end(&mut answer).await.unwrap();
        };
        let response = async {
            server.read_to_end(&mut received).await.unwrap();
            server.write_all(&answered).await.unwrap();
            server.shutdown().await.unwrap();
        };
        ::tokio::join!(request, response);
        assert!(received == sent && answer == answered);
    };
    let (result, ()) = ::tokio::join!(relay(&mut a, &mut b, &limits), ends);
    assert_eq!(result.unwrap(), Relayed { a_to_b: 1000, b_to_a: 300 });
    assert!(!a.aborted && !b.aborted);
}

#[tokio::test(start_paused = true)]
async fn an_error_aborts_both_ends() {
    let (client, server, mut a, mut b) = ends();
    drop(server);
    let mut client = client;
    client.write_all(b"x").await.unwrap();
    let limits = RelayLimits::default();
    let result = timeout(Duration::from_secs(1), relay(&mut a, &mut b, &limits));
    assert_eq!(result.await.unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    assert!(a.aborted && b.aborted);
}
