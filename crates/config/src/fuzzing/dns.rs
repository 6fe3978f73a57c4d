//! Name servers that answer anything.
//!
//! Bit 0 of the first byte of an input selects a name with or without a dot. Whenever the resolver
//! waits for an answer, one step of the input is read, a byte modulo 5 and its data:
//!
//! | step | data | effect |
//! |---|---|---|
//! | 0 | none | no answer comes in time |
//! | 1 | a byte for the length, bytes | a datagram, or an answer over TCP |
//! | 2 | flags (two bytes), number of answers, records as in step 1 | an answer to the last query |
//! | 3 | as step 2 | an answer to the query before |
//! | 4 | none | an error of the socket |
//!
//! After the end of the input no answer comes.

use std::{io, net::SocketAddr, time::Duration};

use super::Input;
use crate::dns::{Config, LookupError, Resolver, network::Network};

/// Name servers, attempts, and names that are asked for one name.
const SERVERS: u8 = 2;
const ATTEMPTS: u32 = 2;
const CANDIDATES: u32 = 2;

/// Maximum number of addresses taken from the two answers of a server.
const ADDRESSES_MAX: usize = 64;

/// Plays one input.
///
/// # Panics
/// If the resolver asks or listens without a limit, or returns a result that no caller can use.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let name = if input.next_u8() & 1 == 0 { "www" } else { "www.example" };
    let config = Config {
        servers: (1..=SERVERS).map(|last| ([10, 0, 0, last], 53).into()).collect(),
        search: vec!["example".to_owned()],
        attempts: ATTEMPTS,
        ..Config::default()
    };
    let mut network = Fed { input, now: Duration::ZERO, next: 0, queries: Vec::new(), opened: 0 };
    match Resolver::new(config).lookup_by(&mut network, name) {
        Ok(addresses) => {
            assert!((1..=ADDRESSES_MAX).contains(&addresses.len()), "{}", addresses.len());
        }
        Err(LookupError::BadName { .. } | LookupError::NoServer { .. }) => {
            panic!("{name} is valid")
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.chars().any(char::is_control), "{text:?}");
        }
    }
    let limit = u32::from(SERVERS) * ATTEMPTS * CANDIDATES;
    assert!(network.opened <= limit, "{} sockets", network.opened);
}

/// A network whose answers are read from the input.
struct Fed<'a> {
    input: Input<'a>,
    now: Duration,
    next: u16,
    /// Queries of the open socket, the latest one last.
    queries: Vec<Vec<u8>>,
    opened: u32,
}

impl Fed<'_> {
    /// Returns the next answer; `None` if none comes in time.
    fn answer(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(step) = self.input.byte() else { return Ok(None) };
        Ok(match step % 5 {
            0 => None,
            1 => Some(self.input.counted().to_vec()),
            2 => Some(self.fitting(0)),
            3 => Some(self.fitting(1)),
            _ => return Err(io::ErrorKind::ConnectionRefused.into()),
        })
    }

    /// Returns an answer to a query, counted from the latest one.
    fn fitting(&mut self, back: usize) -> Vec<u8> {
        let query = self.queries.iter().rev().nth(back).or_else(|| self.queries.last());
        let mut bytes = query.cloned().unwrap_or_default();
        let (flags, count) = (self.input.next_u16() | 0x8000, self.input.next_u8());
        bytes[2..4].copy_from_slice(&flags.to_be_bytes());
        bytes[7] = count;
        bytes.extend(self.input.counted());
        bytes
    }
}

impl Network for Fed<'_> {
    type Socket = ();

    fn now(&self) -> Duration {
        self.now
    }

    fn random(&mut self) -> u16 {
        self.next = self.next.wrapping_add(40_503);
        self.next
    }

    fn open(&mut self, _: SocketAddr) -> io::Result<()> {
        self.queries.clear();
        self.opened += 1;
        Ok(())
    }

    fn send(&mut self, (): &(), bytes: &[u8]) -> io::Result<()> {
        self.queries.push(bytes.to_vec());
        Ok(())
    }

    fn receive(
        &mut self,
        (): &(),
        buffer: &mut [u8],
        limit: Duration,
    ) -> io::Result<Option<usize>> {
        let Some(bytes) = self.answer()? else {
            self.now += limit;
            return Ok(None);
        };
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        Ok(Some(len))
    }

    fn exchange(&mut self, _: SocketAddr, query: &[u8], limit: Duration) -> io::Result<Vec<u8>> {
        self.queries.push(query.to_vec());
        let answer = self.answer()?;
        self.queries.pop();
        answer.ok_or_else(|| {
            self.now += limit;
            io::ErrorKind::TimedOut.into()
        })
    }
}
