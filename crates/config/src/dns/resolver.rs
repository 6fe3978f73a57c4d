//! The resolver: the names to ask for, the servers to ask, the time to wait, and the answers that
//! count.
//!
//! One attempt asks one server for both families over one new socket, whose port and whose two ids
//! are random (RFC 5452). Answers that do not fit are ignored until the time is over; after
//! [`MISFITS_MAX`] of them the attempt ends, because another host is guessing ids. The servers are
//! asked in their order, and all of them again for each further attempt.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use quietline::Stack;

use super::{
    message::{Answer, Question},
    network::{Network, StackNetwork},
};

/// Number of answers to other questions after which an attempt ends.
const MISFITS_MAX: u32 = 32;

/// Largest answer over UDP: queries have no EDNS option that would allow more (RFC 1035 §4.2.1).
const ANSWER_BYTES_MAX: usize = 512;

/// Configuration of a resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name servers with their ports, the preferred one first.
    pub servers: Vec<SocketAddr>,
    /// Domains that are appended to a name: before it is asked for as it is, if it has no dot, and
    /// afterwards otherwise. A name with a final dot is only asked for as it is.
    pub search: Vec<String>,
    /// Names whose addresses are known, in lower case.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    /// Time to wait for the answers of one server. Default 5 s, as resolv.conf(5).
    pub timeout: Duration,
    /// Number of times that every server is asked. Default 2.
    pub attempts: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            search: Vec::new(),
            hosts: BTreeMap::new(),
            timeout: Duration::from_secs(5),
            attempts: 2,
        }
    }
}

/// Reason why a name has no address. `Display` is one line without a full stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The text is not a domain name.
    #[error("{name} is not a host name")]
    BadName {
        /// The text.
        name: String,
    },
    /// No server is configured.
    #[error("cannot look up {name}: no name server is known")]
    NoServer {
        /// The name.
        name: String,
    },
    /// A server says that the name does not exist.
    #[error("{name} does not exist, says the name server {server}")]
    NoSuchName {
        /// The name.
        name: String,
        /// The server.
        server: SocketAddr,
    },
    /// The name exists and has no address.
    #[error("{name} has no IP address, says the name server {server}")]
    NoAddress {
        /// The name.
        name: String,
        /// The server.
        server: SocketAddr,
    },
    /// No server has given a usable answer.
    #[error("cannot look up {name}: {reasons}")]
    NoAnswer {
        /// The name.
        name: String,
        /// Reason of each server, in the last attempt.
        reasons: String,
    },
}

/// A stub resolver.
#[derive(Clone, Debug, Default)]
pub struct Resolver {
    config: Config,
}

/// Result of asking one server for one name.
enum Asked {
    Addresses(Vec<IpAddr>),
    NoSuchName,
    NoAddress,
    Failure(String),
}

impl Resolver {
    /// Creates a resolver.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self { config }
    }

    /// Returns the addresses that the configuration itself gives for a name.
    #[must_use]
    pub fn known(&self, name: &str) -> Option<&[IpAddr]> {
        let name = name.trim_end_matches('.').to_lowercase();
        self.config.hosts.get(&name).map(Vec::as_slice)
    }

    /// Looks up a name over the sockets of `stack`, and returns its addresses: those of the
    /// configuration, or the IPv6 addresses and then the IPv4 addresses of the first server with an
    /// answer.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn lookup(&self, stack: &Stack, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        self.lookup_by(&mut StackNetwork::new(stack), name)
    }

    pub(crate) fn lookup_by<N: Network>(
        &self,
        network: &mut N,
        name: &str,
    ) -> Result<Vec<IpAddr>, LookupError> {
        if let Some(addresses) = self.known(name) {
            return Ok(addresses.to_vec());
        }
        let own = || name.to_owned();
        if Question::new(0, name, true).is_none() {
            return Err(LookupError::BadName { name: own() });
        }
        if self.config.servers.is_empty() {
            return Err(LookupError::NoServer { name: own() });
        }
        // The error of the name as it was given is the one to report.
        let mut refused = None;
        for candidate in self.candidates(name) {
            let is_given = candidate.trim_end_matches('.') == name.trim_end_matches('.');
            match self.ask_all(network, &candidate) {
                Ok(addresses) => return Ok(addresses),
                Err(error @ LookupError::NoAnswer { .. }) => return Err(error),
                Err(error) if is_given => refused = Some(error),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| LookupError::BadName { name: own() }))
    }

    /// Returns the names to ask for, in order.
    fn candidates(&self, name: &str) -> Vec<String> {
        if name.ends_with('.') {
            return vec![name.to_owned()];
        }
        let search = self.config.search.iter().map(|domain| format!("{name}.{domain}"));
        // A name that becomes too long is not asked for.
        let mut names: Vec<_> =
            search.filter(|name| Question::new(0, name, true).is_some()).collect();
        let place = if name.contains('.') { 0 } else { names.len() };
        names.insert(place, name.to_owned());
        names
    }

    fn ask_all<N: Network>(&self, network: &mut N, name: &str) -> Result<Vec<IpAddr>, LookupError> {
        let mut reasons = Vec::new();
        for _ in 0..self.config.attempts.max(1) {
            reasons.clear();
            for &server in &self.config.servers {
                let own = || name.to_owned();
                match ask(network, server, name, self.config.timeout) {
                    Asked::Addresses(addresses) => return Ok(addresses),
                    Asked::NoSuchName => {
                        return Err(LookupError::NoSuchName { name: own(), server });
                    }
                    Asked::NoAddress => return Err(LookupError::NoAddress { name: own(), server }),
                    Asked::Failure(reason) => reasons.push(format!("{server}: {reason}")),
                }
            }
        }
        Err(LookupError::NoAnswer { name: name.to_owned(), reasons: reasons.join("; ") })
    }
}

/// Asks one server for both families.
fn ask<N: Network>(network: &mut N, server: SocketAddr, name: &str, timeout: Duration) -> Asked {
    let first = network.random();
    let second = loop {
        let id = network.random();
        if id != first {
            break id;
        }
    };
    let ids = [(first, false), (second, true)];
    let questions = ids.map(|(id, is_v4)| Question::new(id, name, is_v4));
    let [Some(v6), Some(v4)] = questions else {
        return Asked::Failure("not a name".to_owned());
    };
    match exchange(network, server, &[v6, v4], timeout) {
        Ok(answers) => judge(answers),
        Err(reason) => Asked::Failure(reason),
    }
}

/// Joins the answers about IPv6 and IPv4. An answer is `None` if the time was over before.
fn judge(answers: [Option<Answer>; 2]) -> Asked {
    let mut addresses = Vec::new();
    let (mut is_missing, mut no_such_name, mut failure) = (false, false, None);
    for answer in answers {
        match answer {
            Some(Answer::Addresses(found)) => addresses.extend(found),
            // Some servers say so of a type that the name lacks, although it has the other type.
            Some(Answer::NoSuchName) => no_such_name = true,
            Some(Answer::Failure(code)) => failure = Some(code),
            Some(Answer::Truncated) => failure = Some("a truncated answer over TCP".to_owned()),
            None => is_missing = true,
        }
    }
    match (failure, is_missing) {
        _ if !addresses.is_empty() => Asked::Addresses(addresses),
        _ if no_such_name => Asked::NoSuchName,
        (Some(failure), _) => Asked::Failure(failure),
        (None, true) => Asked::Failure("no answer".to_owned()),
        (None, false) => Asked::NoAddress,
    }
}

/// Sends both questions, and waits for their answers.
fn exchange<N: Network>(
    network: &mut N,
    server: SocketAddr,
    questions: &[Question; 2],
    timeout: Duration,
) -> Result<[Option<Answer>; 2], String> {
    let text = |error: std::io::Error| error.to_string();
    let end = network.now() + timeout;
    let socket = network.open(server).map_err(text)?;
    for question in questions {
        network.send(&socket, &question.bytes()).map_err(text)?;
    }
    let mut answers = [None, None];
    let mut misfits = 0;
    // One byte more than an answer may have.
    let mut buffer = [0; ANSWER_BYTES_MAX + 1];
    while answers.iter().any(Option::is_none) {
        let left = end.saturating_sub(network.now());
        if left.is_zero() {
            break;
        }
        let Some(len) = network.receive(&socket, &mut buffer, left).map_err(text)? else { break };
        let bytes = &buffer[..len];
        let fits = |question: &Question| question.read(bytes);
        let found =
            questions.iter().map(fits).enumerate().find_map(|(at, found)| Some((at, found?)));
        match found {
            Some((at, Answer::Truncated)) => {
                answers[at] = Some(over_tcp(network, server, &questions[at], end)?);
            }
            Some((at, answer)) => answers[at] = Some(answer),
            None => {
                misfits += 1;
                if misfits == MISFITS_MAX {
                    return Err("many answers to other questions".to_owned());
                }
            }
        }
    }
    Ok(answers)
}

/// Repeats a question over TCP (RFC 7766 §5).
fn over_tcp<N: Network>(
    network: &mut N,
    server: SocketAddr,
    question: &Question,
    end: Duration,
) -> Result<Answer, String> {
    let left = end.saturating_sub(network.now());
    let answer = network.exchange(server, &question.bytes(), left);
    let answer = answer.map_err(|error| format!("over TCP: {error}"))?;
    question.read(&answer).ok_or_else(|| "over TCP: an answer to another question".to_owned())
}

#[cfg(test)]
mod tests;
