//! TLS by rustls over sockets of a stack (feature `tokio`), with a certificate that signs itself.
//!
//! Run it with `cargo run -p quietline --example tls_rustls`. It prints:
//!
//! ```text
//! TLSv1_3, certificate of server.test
//! 1000000 bytes echoed
//! the server has closed the session
//! ```

use std::{error::Error, io, sync::Arc};

use quietline::{
    Stack, Wire, WireConfig,
    tokio::{TcpListener, TcpStream},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{ClientConfig, RootCertStore, ServerConfig, pki_types::ServerName},
};

const NAME: &str = "server.test";
const BYTES: usize = 1_000_000;

/// Returns the configurations of a server with a new certificate, and of a client that trusts it.
fn configs() -> Result<(ServerConfig, ClientConfig), Box<dyn Error>> {
    let own = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = own.cert.der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone())?;
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], own.signing_key.into())?;
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok((server, client))
}

/// Echoes one session until the client ends its direction.
async fn echo(listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<()> {
    let (stream, _) = listener.accept().await?;
    let (mut from, mut to) = split(acceptor.accept(stream).await?);
    copy(&mut from, &mut to).await?;
    to.shutdown().await
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse()?).build()?;
    let (server_config, client_config) = configs()?;
    let listener = TcpListener::bind(&server, "10.0.0.2:443")?;
    let served = tokio::spawn(echo(listener, TlsAcceptor::from(Arc::new(server_config))));

    let stream = TcpStream::connect(&client, "10.0.0.2:443".parse()?).await?;
    let connector = TlsConnector::from(Arc::new(client_config));
    let session = connector.connect(ServerName::try_from(NAME)?, stream).await?;
    let version = session.get_ref().1.protocol_version().ok_or("no version")?;
    println!("{version:?}, certificate of {NAME}");

    let (mut from, mut to) = split(session);
    let sent: Arc<[u8]> = (0..BYTES).map(|place| place.to_le_bytes()[0]).collect();
    let data = Arc::clone(&sent);
    let writer = tokio::spawn(async move {
        to.write_all(&data).await?;
        to.shutdown().await
    });
    let mut echoed = Vec::new();
    from.read_to_end(&mut echoed).await?;
    writer.await??;
    println!("{} bytes echoed", if echoed == *sent { echoed.len() } else { 0 });
    served.await??;
    println!("the server has closed the session");
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?.block_on(run())
}
