//! QUIC by quinn over UDP sockets of a stack (feature `tokio`): [`Socket`] is all that quinn needs.
//!
//! Run it with `cargo run -p quietline --example quic_quinn`. It prints:
//!
//! ```text
//! 1000000 bytes over a QUIC stream, echoed
//! ```

use std::{error::Error, io, net::SocketAddr, pin::Pin, sync::Arc, task};

use quietline::{Readiness, SendMessage, Stack, Wire, WireConfig, tokio::UdpSocket};
use quinn::{
    AsyncUdpSocket, ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, UdpPoller,
    rustls::RootCertStore,
    udp::{EcnCodepoint, RecvMeta, Transmit},
};

const BYTES: usize = 1_000_000;

/// A UDP socket of the stack as quinn uses it: one datagram for each call, with its ECN mark.
#[derive(Debug)]
struct Socket(UdpSocket);

/// One of the tasks that wait until the socket is writable.
#[derive(Debug)]
struct Writable(Arc<Socket>);

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let mut message = SendMessage::to(transmit.contents, transmit.destination);
        message.control.tos = transmit.ecn.map(|ecn| ecn as u8);
        message.control.segment = transmit.segment_size.and_then(|size| size.try_into().ok());
        self.0.as_nonblocking().send_message(&message).map(drop)
    }

    fn poll_recv(
        &self,
        task: &mut task::Context<'_>,
        bufs: &mut [io::IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> task::Poll<io::Result<usize>> {
        let receive = || self.0.as_nonblocking().recv_message(&mut bufs[0]);
        let received = task::ready!(self.0.poll_read(task, receive))?;
        meta[0].addr = received.source;
        (meta[0].len, meta[0].stride) = (received.len, received.len);
        meta[0].ecn = EcnCodepoint::from_bits(received.tos & 3);
        meta[0].dst_ip = Some(received.destination);
        task::Poll::Ready(Ok(1))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        32
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl UdpPoller for Writable {
    fn poll_writable(
        self: Pin<&mut Self>,
        task: &mut task::Context<'_>,
    ) -> task::Poll<io::Result<()>> {
        self.0.0.as_nonblocking().poll_ready(Readiness::WRITE, task).map(|_| Ok(()))
    }
}

fn endpoint(stack: &Stack, at: &str, server: Option<ServerConfig>) -> io::Result<Endpoint> {
    let socket = Arc::new(Socket(UdpSocket::bind(stack, at)?));
    let runtime = Arc::new(TokioRuntime);
    Endpoint::new_with_abstract_socket(EndpointConfig::default(), server, socket, runtime)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse()?).build()?;
    let own = rcgen::generate_simple_self_signed(["server.test".to_owned()])?;
    let certificate = own.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let config = ServerConfig::with_single_cert(vec![certificate], own.signing_key.into())?;
    let server = endpoint(&server, "10.0.0.2:443", Some(config))?;
    let client = endpoint(&client, "10.0.0.1:0", None)?;

    let echo = tokio::spawn(async move {
        let connection = server.accept().await?.await.ok()?;
        let (mut to, mut from) = connection.accept_bi().await.ok()?;
        to.write_all(&from.read_to_end(BYTES).await.ok()?).await.ok()?;
        to.finish().ok()?;
        to.stopped().await.ok()
    });
    let config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    let connection = client.connect_with(config, "10.0.0.2:443".parse()?, "server.test")?.await?;
    let (mut to, mut from) = connection.open_bi().await?;
    let sent: Vec<u8> = (0..BYTES).map(|place| place.to_le_bytes()[0]).collect();
    to.write_all(&sent).await?;
    to.finish()?;
    assert_eq!(from.read_to_end(BYTES).await?, sent);
    println!("{BYTES} bytes over a QUIC stream, echoed");
    echo.await?.ok_or("the server has failed")?;
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()?
        .block_on(run())
}
