//! A bound of the memory of one stack, as the settings that keep it.
//!
//! Above: [`StackBuilder::memory`](super::StackBuilder::memory). Below: settings of the stack, each
//! of which is enforced and counted where its memory is allocated.
//!
//! Not here: the bound of the packet memory of the whole process (`memory`).

use stack::base::config_error::ConfigError;

/// Smallest budget, in bytes.
const BYTES_MIN: usize = 1 << 20;

/// Unit of the settings of memory, in bytes.
const PAGE: usize = 4096;

/// Memory of a connection without data, in bytes, rounded up: its control block and its entry in
/// the table (docs/benchmarks.md).
const CONNECTION: usize = 4096;

/// Memory of one stack, for [`StackBuilder::memory`](crate::StackBuilder::memory).
///
/// | share | setting | for |
/// |---|---|---|
/// | 1/2 | `net.ipv4.tcp_mem` | data of TCP connections; pressure from 3/8 on |
/// | 1/4 | `net.quietline.tcp_max_connections` | connections, 4 KiB each |
/// | 1/8 | `net.ipv4.udp_mem` | received datagrams |
/// | 1/16 | `net.ipv4.ipfrag_high_thresh`, `net.ipv6.ip6frag_high_thresh` | fragments |
/// | the rest | | packets in queueing disciplines and devices, routes, neighbors |
///
/// One connection has at most an eighth of the budget in each direction (`net.ipv4.tcp_rmem`,
/// `net.ipv4.tcp_wmem`). Connections in TIME-WAIT and without an application take at most half of
/// the connections (`net.ipv4.tcp_max_tw_buckets`, `net.ipv4.tcp_max_orphans`).
///
/// ```
/// use quietline::{Budget, Stack};
///
/// # fn main() -> std::io::Result<()> {
/// let stack = Stack::builder().memory(Budget::megabytes(16)).build()?;
/// assert_eq!(stack.sysctl("net.quietline.tcp_max_connections")?, "1024");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    bytes: usize,
}

impl Budget {
    /// Returns a budget of `megabytes` times 1,048,576 bytes.
    #[must_use]
    pub const fn megabytes(megabytes: usize) -> Self {
        Self::bytes(megabytes.saturating_mul(1 << 20))
    }

    /// Returns a budget of `bytes`, at least 1 MiB.
    #[must_use]
    pub const fn bytes(bytes: usize) -> Self {
        Self { bytes }
    }

    /// Returns the settings that keep the budget.
    pub(super) fn settings(self) -> Result<[(&'static str, String); 9], ConfigError> {
        let bytes = self.bytes;
        if bytes < BYTES_MIN {
            return Err(ConfigError::new("memory", bytes, format!("{BYTES_MIN} bytes or more")));
        }
        // A setting is a number below 2^31, which no share of less than 16 GiB exceeds.
        let number = |value: usize| value.min(i32::MAX as usize);
        let pages = |share: usize| number(share / PAGE);
        let connections = number(bytes / 4 / CONNECTION);
        let buffer = number(bytes / 8);
        let (receive, send) = (buffer.min(131_072), buffer.min(16_384));
        let fragments = number(bytes / 32).to_string();
        let tcp = [bytes / 4, bytes / 8 * 3, bytes / 2].map(pages);
        let udp = [bytes / 16, bytes / 32 * 3, bytes / 8].map(pages);
        let three = |[low, middle, high]: [usize; 3]| format!("{low} {middle} {high}");
        Ok([
            ("net.ipv4.tcp_mem", three(tcp)),
            ("net.ipv4.udp_mem", three(udp)),
            ("net.ipv4.tcp_rmem", three([4096, receive, buffer])),
            ("net.ipv4.tcp_wmem", three([4096, send, buffer])),
            ("net.quietline.tcp_max_connections", connections.to_string()),
            ("net.ipv4.tcp_max_tw_buckets", (connections / 2).to_string()),
            ("net.ipv4.tcp_max_orphans", (connections / 2).to_string()),
            ("net.ipv4.ipfrag_high_thresh", fragments.clone()),
            ("net.ipv6.ip6frag_high_thresh", fragments),
        ])
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::*;
    use crate::{Stack, TcpListener, TcpStream};

    fn stack(budget: Budget) -> Stack {
        Stack::builder().memory(budget).manual().build().expect("a stack")
    }

    fn count(stack: &Stack, name: &str) -> u64 {
        stack.counters().get(name).expect("a counter")
    }

    /// Connects nonblocking, over loopback.
    fn connect(stack: &Stack) -> io::Result<TcpStream> {
        let to = "127.0.0.1:80".parse().expect("an address");
        let stream = TcpStream::connect_nonblocking(stack, to)?;
        stream.set_nonblocking(true)?;
        let _ = stack.poll();
        Ok(stream)
    }

    #[test]
    fn a_small_budget_is_refused() {
        let error =
            Stack::builder().memory(Budget::bytes(BYTES_MIN - 1)).build().expect_err("small");
        assert_eq!(error.to_string(), "memory 1048575: expected 1048576 bytes or more");
    }

    #[test]
    fn the_settings_of_any_budget_are_allowed() {
        for bytes in [BYTES_MIN, 16 << 20, 3 << 30, usize::MAX] {
            let stack = stack(Budget::bytes(bytes));
            let most = bytes / 4 / CONNECTION;
            let limit = stack.sysctl("net.quietline.tcp_max_connections").expect("a setting");
            assert_eq!(limit, most.min(i32::MAX as usize).to_string());
        }
    }

    #[test]
    fn connections_beyond_the_budget_are_refused_and_counted() {
        let stack = stack(Budget::megabytes(1));
        let listener = TcpListener::bind(&stack, "127.0.0.1:80").expect("free");
        listener.set_nonblocking(true).expect("open");
        let mut streams = Vec::new();
        let error = loop {
            match connect(&stack) {
                Ok(stream) => streams.push(stream),
                Err(error) => break error,
            }
            streams.extend(listener.accept().map(|(stream, _)| stream));
            assert!(streams.len() < 1000, "no limit");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS), "{error}");
        // Both ends of a connection over loopback count.
        assert_eq!((stack.connections(), count(&stack, "SocketConnectionLimit")), (64, 1));
        drop(streams.split_off(60));
        let _ = stack.poll();
        stack.set_sysctl("net.quietline.tcp_max_connections", "0").expect("a setting");
        connect(&stack).expect("no limit any more");
        stack.set_sysctl("net.quietline.tcp_max_connections", "1").expect("a setting");
        drop((streams, listener));
    }

    #[test]
    fn connections_shrink_before_one_is_refused() {
        let budget = 4 << 20;
        let stack = stack(Budget::bytes(budget));
        let listener = TcpListener::bind(&stack, "127.0.0.1:80").expect("free");
        listener.set_nonblocking(true).expect("open");
        let (mut streams, mut written) = (Vec::new(), 0);
        let bytes = vec![7; 64 << 10];
        for _ in 0..60 {
            let mut stream = connect(&stack).expect("room for a connection");
            let accepted = listener.accept().expect("established").0;
            for _ in 0..100 {
                written += stream.write(&bytes).unwrap_or(0);
                let _ = stack.poll();
            }
            streams.push((stream, accepted));
        }
        // No data was read, so all of it is in the queues of the stack.
        assert!(written <= budget / 2 + 2 * 60 * 4096, "{written} bytes of {budget}");
        assert!(written > budget / 8, "{written} bytes of {budget}");
        assert!(count(&stack, "TcpExtTCPMemoryPressures") > 0, "no pressure");
        assert_eq!(count(&stack, "SocketConnectionLimit"), 0);
    }
}
