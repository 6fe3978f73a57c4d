//! HTTP/1.1 by hyper over sockets of a stack (feature `tokio`): a small answer and a large one.
//!
//! Run it with `cargo run -p quietline --example http_hyper`. It prints:
//!
//! ```text
//! GET /hello: 200 OK, 5 bytes
//! GET /bulk: 200 OK, 67108864 bytes
//! GET /other: 404 Not Found, 0 bytes
//! ```

use std::{convert::Infallible, error::Error, io};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    Request, Response, StatusCode, body::Incoming, client, header, server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use quietline::{
    Stack, Wire, WireConfig,
    tokio::{TcpListener, TcpStream},
};

const BULK_BYTES: usize = 64 << 20;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = match request.uri().path() {
        "/hello" => Some(Bytes::from_static(b"hello")),
        "/bulk" => Some(Bytes::from(vec![7; BULK_BYTES])),
        _ => None,
    };
    let status = if body.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let mut response = Response::new(Full::new(body.unwrap_or_default()));
    *response.status_mut() = status;
    Ok(response)
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(async move {
            let service = service_fn(answer);
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse()?).build()?;
    tokio::spawn(serve(TcpListener::bind(&server, "10.0.0.2:80")?));

    let stream = TcpStream::connect(&client, "10.0.0.2:80".parse()?).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for path in ["/hello", "/bulk", "/other"] {
        let request = Request::get(path).header(header::HOST, "10.0.0.2");
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("GET {path}: {status}, {} bytes", body.len());
        assert!(body.len() <= 5 || body.iter().all(|byte| *byte == 7));
    }
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?.block_on(run())
}
