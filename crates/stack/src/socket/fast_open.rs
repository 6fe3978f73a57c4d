//! Fast Open state of a host: cookies of servers, keys of the host's own cookies, and detection of
//! paths that drop Fast Open segments.
//!
//! Below: `tcp::open::fast_open`, the protocol. Above: `connection::connect`, which queries this
//! state, connections, which report results, and `listener::early`, which uses the keys.
//! RFC 7413 §4.1.3; Linux: tcp_fastopen_cache_get, tcp_fastopen_active_disable.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use pkt::Instant;
use tcp::{Cookie, FastOpen, FastOpenKeys, FastOpenResult};

use crate::{
    base::secrets::HashKey,
    sysctl::{FastOpenKey, Sysctls},
};

/// Bits of `tcp_fastopen`.
pub(crate) mod mode {
    /// Use Fast Open in connects that request it.
    pub(crate) const CLIENT: u32 = 0x1;
    /// Use Fast Open in listeners that request it.
    pub(crate) const SERVER: u32 = 0x2;
    /// Send data in the SYN without a cookie.
    pub(crate) const CLIENT_NO_COOKIE: u32 = 0x4;
    /// Accept data in the SYN without a cookie.
    pub(crate) const SERVER_NO_COOKIE: u32 = 0x200;
    /// Use Fast Open in every listener, requested or not.
    pub(crate) const SERVER_ALL: u32 = 0x400;
}

/// Maximum number of cached servers.
const SERVERS_MAX: usize = 1024;

/// MSS assumed for a server that has never announced one: only the MSS of this host is a limit, as
/// in Linux. Only data without a cookie is sent to such a server (RFC 7413 §4.1.3 would allow 536
/// bytes with one).
const MSS_UNKNOWN: u16 = u16::MAX;

/// Unit of the time for which Fast Open to a server is paused. After n consecutive lost SYNs with
/// data or cookie (n at least 2), the pause lasts 2^n units, at most 2^10.
const LOSS_PAUSE: Duration = Duration::from_secs(60);

/// Form of the cookie request to a server without a known cookie. A server that does not answer the
/// standard form is asked once in the experimental form that precedes RFC 7413; after that only in
/// the standard form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Standard,
    Experimental,
    /// The standard form, because both have been refused.
    Refused,
}

/// Cached information about one server.
#[derive(Clone, Copy, Debug)]
struct Server {
    cookie: Option<Cookie>,
    mss: u16,
    /// Form of the next cookie request.
    request: Request,
    /// Number of consecutive SYNs with data or cookie that were answered only without them.
    losses: u32,
    /// Time of the last update.
    at: Instant,
}

/// Suspicion that paths of this host drop Fast Open segments: how often it arose, and until when it
/// disables Fast Open.
#[derive(Clone, Copy, Debug, Default)]
struct Blackhole {
    times: u32,
    until: Option<Instant>,
}

/// Fast Open state of a host.
#[derive(Debug)]
pub(crate) struct FastOpenMemory {
    /// Key of cookies unless `tcp_fastopen_key` specifies another.
    secret: HashKey,
    /// Cached servers. Locked only by connects and handshakes with Fast Open, and by a flush.
    servers: Mutex<BTreeMap<IpAddr, Server>>,
    blackhole: Mutex<Blackhole>,
}

impl FastOpenMemory {
    pub(crate) fn new(secret: HashKey) -> Self {
        Self { secret, servers: Mutex::default(), blackhole: Mutex::default() }
    }

    /// Returns the keys of cookies: `own`, the keys of the listener, if present, or else those of
    /// the host.
    pub(crate) fn keys(&self, sysctls: &Sysctls, own: Option<FastOpenKey>) -> FastOpenKeys {
        match own.or(sysctls.tcp_fastopen_key) {
            Some(keys) => FastOpenKeys::new(&keys.primary, keys.backup.as_ref()),
            None => FastOpenKeys::new(&self.secret.0, None),
        }
    }

    /// Returns the Fast Open behavior of a connect to `remote`. `no_cookie` is the socket's option.
    pub(crate) fn connect(
        &self,
        sysctls: &Sysctls,
        remote: IpAddr,
        no_cookie: bool,
        now: Instant,
    ) -> FastOpen {
        if sysctls.tcp_fastopen & mode::CLIENT == 0 || self.is_suspected(sysctls, now) {
            return FastOpen::Off;
        }
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let server = servers.get(&remote);
        if server.is_some_and(|server| server.is_paused(now)) {
            return FastOpen::Off;
        }
        let peer_mss = server.map_or(MSS_UNKNOWN, |server| server.mss);
        if no_cookie || sysctls.tcp_fastopen & mode::CLIENT_NO_COOKIE != 0 {
            return FastOpen::Connect { cookie: None, peer_mss };
        }
        match server.and_then(|server| server.cookie) {
            Some(cookie) => FastOpen::Connect { cookie: Some(cookie), peer_mss },
            None => FastOpen::Ask {
                experimental: server.is_some_and(|server| server.request == Request::Experimental),
            },
        }
    }

    /// Records the result of a handshake with `remote`.
    pub(crate) fn learn(&self, remote: IpAddr, result: &FastOpenResult, now: Instant) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if servers.len() >= SERVERS_MAX && !servers.contains_key(&remote) {
            let oldest = servers.iter().min_by_key(|(_, server)| server.at).map(|(ip, _)| *ip);
            oldest.and_then(|oldest| servers.remove(&oldest));
        }
        let unknown = Server {
            cookie: None,
            mss: MSS_UNKNOWN,
            request: Request::Standard,
            losses: 0,
            at: now,
        };
        let server = servers.entry(remote).or_insert(unknown);
        server.at = now;
        if result.peer_mss != 0 {
            server.mss = result.peer_mss;
        }
        match (result.refused, server.request) {
            _ if result.cookie.is_some() => server.cookie = result.cookie,
            (Some(false), Request::Standard) => server.request = Request::Experimental,
            (Some(true), _) => server.request = Request::Refused,
            _ => {}
        }
        server.losses = if result.syn_dropped { server.losses.saturating_add(1) } else { 0 };
    }

    /// Disables Fast Open, because a connection suspects that the path drops its segments: for
    /// `tcp_fastopen_blackhole_timeout_sec`, doubled with each repetition up to 64 times the
    /// setting. Returns false if the setting is 0 (Linux: tcp_fastopen_active_disable).
    pub(crate) fn suspect(&self, sysctls: &Sysctls, now: Instant) -> bool {
        let timeout = sysctls.tcp_fastopen_blackhole_timeout_sec;
        if timeout.is_zero() {
            return false;
        }
        let mut blackhole = self.blackhole.lock().unwrap_or_else(PoisonError::into_inner);
        blackhole.until = Some(now + timeout * (1 << blackhole.times.min(6)));
        blackhole.times += 1;
        true
    }

    /// Clears the cached servers (`ip tcp_metrics flush`).
    pub(crate) fn forget(&self) {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Returns whether Fast Open was disabled and that time has passed, so that a connection opened
    /// now tests the path.
    pub(crate) fn is_retry_due(&self, now: Instant) -> bool {
        let blackhole = self.blackhole.lock().unwrap_or_else(PoisonError::into_inner);
        blackhole.until.is_some_and(|until| now >= until)
    }

    /// Clears the suspicion after a successful test.
    pub(crate) fn clear_suspicion(&self) {
        *self.blackhole.lock().unwrap_or_else(PoisonError::into_inner) = Blackhole::default();
    }

    fn is_suspected(&self, sysctls: &Sysctls, now: Instant) -> bool {
        if sysctls.tcp_fastopen_blackhole_timeout_sec.is_zero() {
            return false;
        }
        let blackhole = self.blackhole.lock().unwrap_or_else(PoisonError::into_inner);
        blackhole.until.is_some_and(|until| now < until)
    }
}

impl Server {
    fn is_paused(&self, now: Instant) -> bool {
        self.losses > 1 && now < self.at + LOSS_PAUSE * (1 << self.losses.min(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: FastOpen = FastOpen::Ask { experimental: false };
    const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn memory() -> (FastOpenMemory, Sysctls, Instant) {
        (FastOpenMemory::new(HashKey([1; 16])), Sysctls::default(), Instant::from_secs(1000))
    }

    #[test]
    fn the_cookie_of_a_server_is_requested_once_and_then_used() {
        let (memory, sysctls, now) = memory();
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), ASK);
        let cookie = Cookie::new(&[7; 8]);
        let result = FastOpenResult { cookie, peer_mss: 1000, ..FastOpenResult::default() };
        memory.learn(SERVER, &result, now);
        let expected = FastOpen::Connect { cookie, peer_mss: 1000 };
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), expected);
        let without = FastOpen::Connect { cookie: None, peer_mss: 1000 };
        assert_eq!(memory.connect(&sysctls, SERVER, true, now), without);
        let off = Sysctls { tcp_fastopen: 0, ..sysctls };
        assert_eq!(memory.connect(&off, SERVER, false, now), FastOpen::Off);
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_once_in_the_experimental_form() {
        let (memory, sysctls, now) = memory();
        let ask = || memory.connect(&sysctls, SERVER, false, now);
        let refuse = |experimental| {
            let refused = Some(experimental);
            memory.learn(SERVER, &FastOpenResult { refused, ..FastOpenResult::default() }, now);
        };
        assert_eq!(ask(), ASK);
        refuse(false);
        assert_eq!(ask(), FastOpen::Ask { experimental: true });
        refuse(true);
        for _ in 0..3 {
            assert_eq!(ask(), ASK);
            refuse(false);
        }
    }

    #[test]
    fn two_lost_syns_pause_fast_open_to_the_server() {
        let (memory, sysctls, now) = memory();
        let lost = FastOpenResult { syn_dropped: true, ..FastOpenResult::default() };
        memory.learn(SERVER, &lost, now);
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), ASK, "one loss caused a pause");
        memory.learn(SERVER, &lost, now);
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), FastOpen::Off);
        assert_eq!(memory.connect(&sysctls, SERVER, false, now + LOSS_PAUSE * 4), ASK);
    }

    #[test]
    fn a_blackhole_disables_fast_open_for_all_servers_temporarily() {
        let (memory, mut sysctls, now) = memory();
        assert!(!memory.suspect(&sysctls, now), "the detection is on by default");
        sysctls.tcp_fastopen_blackhole_timeout_sec = Duration::from_secs(10);
        for pause in [10, 20] {
            assert!(memory.suspect(&sysctls, now));
            let then = |seconds| now + Duration::from_secs(seconds);
            let at = |seconds| memory.connect(&sysctls, SERVER, false, then(seconds));
            assert_eq!(at(pause - 1), FastOpen::Off);
            assert_eq!(at(pause), ASK);
            assert!(!memory.is_retry_due(then(pause - 1)) && memory.is_retry_due(then(pause)));
        }
        memory.clear_suspicion();
        assert!(memory.suspect(&sysctls, now));
        let at = now + Duration::from_secs(10);
        assert_eq!(
            memory.connect(&sysctls, SERVER, false, at),
            ASK,
            "the timeout did not return to its initial value"
        );
    }

    #[test]
    fn the_number_of_cached_servers_is_bounded() {
        let (memory, _, now) = memory();
        let cookie = Cookie::new(&[7; 8]);
        let result = FastOpenResult { cookie, ..FastOpenResult::default() };
        for index in 0..5000u32 {
            let remote = IpAddr::V4(std::net::Ipv4Addr::from_bits(index));
            memory.learn(remote, &result, now + Duration::from_secs(index.into()));
        }
        assert_eq!(memory.servers.lock().unwrap().len(), SERVERS_MAX);
    }
}
