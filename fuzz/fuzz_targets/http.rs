//! Request heads and chunked bodies of the server `quietline serve http`.
//!
//! The first byte of the input selects heads, bodies, or heads that arrive in pieces; the rest is
//! the data of a client. `http/parts.rs` includes the parsers and checks their properties.
//!
//! The parsers are private to the command, which has no library. Their files are therefore included
//! here.

#![no_main]
#![expect(dead_code, reason = "files of the command, of which only the parsers run here")]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/cli/src/endpoint/stream.rs"]
mod endpoint;
#[path = "http/parts.rs"]
mod http;
#[path = "../../crates/cli/src/serve/meter.rs"]
mod meter;
#[path = "http/script.rs"]
mod script;

fuzz_target!(|data: &[u8]| {
    let Some((&what, data)) = data.split_first() else { return };
    match what % 3 {
        0 => http::head(data),
        1 => http::body(data),
        _ => http::pieces(data),
    }
});
