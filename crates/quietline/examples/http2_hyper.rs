//! HTTP/2 by hyper over one connection of a stack (feature `tokio`): many requests at a time, on a
//! runtime with one thread.
//!
//! Run it with `cargo run -p quietline --example http2_hyper`. It prints:
//!
//! ```text
//! 100 requests over one connection, 100 answers of 100000 bytes
//! ```

use std::{convert::Infallible, error::Error};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    Request, Response, Version, body::Incoming, client, server::conn::http2, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use quietline::{
    Stack, Wire, WireConfig,
    tokio::{TcpListener, TcpStream},
};

const REQUESTS: usize = 100;
const ANSWER_BYTES: usize = 100_000;

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let number = request.uri().path().trim_start_matches('/').parse().unwrap_or(0);
    Ok(Response::new(Full::new(Bytes::from(vec![number; ANSWER_BYTES]))))
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (left, right) = Wire::pair(&WireConfig::default())?;
    let client = Stack::builder().device(left).address("10.0.0.1/24".parse()?).build()?;
    let server = Stack::builder().device(right).address("10.0.0.2/24".parse()?).build()?;
    let listener = TcpListener::bind(&server, "10.0.0.2:80")?;
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let builder = http2::Builder::new(TokioExecutor::new());
        let served = builder.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        served.map_err(std::io::Error::other)
    });

    let stream = TcpStream::connect(&client, "10.0.0.2:80".parse()?).await?;
    let executor = TokioExecutor::new();
    let (sender, connection) =
        client::conn::http2::handshake(executor, TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let requests: Vec<_> = (0..REQUESTS)
        .map(|number| {
            let mut sender = sender.clone();
            tokio::spawn(async move {
                let request = Request::get(format!("http://10.0.0.2/{number}"));
                let request = request.body(Empty::<Bytes>::new()).expect("a valid request");
                let response = sender.send_request(request).await?;
                assert_eq!(response.version(), Version::HTTP_2);
                Ok::<_, hyper::Error>(response.into_body().collect().await?.to_bytes())
            })
        })
        .collect();
    let mut answers = 0;
    for (number, request) in requests.into_iter().enumerate() {
        let body = request.await??;
        let right = body.iter().all(|byte| usize::from(*byte) == number);
        answers += usize::from(right && body.len() == ANSWER_BYTES);
    }
    println!("{REQUESTS} requests over one connection, {answers} answers of {ANSWER_BYTES} bytes");
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().build()?.block_on(run())
}
