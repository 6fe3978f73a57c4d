//! Fast Open's memory: the cookies of servers, the keys of our own, and the suspicion of a path that swallows them.
//!
//! Below: `tcp::open::fast_open`, which speaks it. Above: `connection::connect` asks, connections report. RFC 7413 §4.1.3; Linux:
//! tcp_fastopen_cache_get, tcp_fastopen_active_disable.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use pkt::Instant;
use tcp::{Cookie, FastOpen, FastOpenKeys, FastOpenNews};

use crate::{
    base::secrets::HashKey,
    sysctl::{FastOpenKey, Sysctls},
};

/// Bits of `tcp_fastopen`.
pub(crate) mod mode {
    /// Connect with Fast Open where the application asks for it.
    pub(crate) const CLIENT: u32 = 0x1;
    /// Listen with Fast Open where the application asks for it.
    pub(crate) const SERVER: u32 = 0x2;
    /// Send data in the SYN without a cookie.
    pub(crate) const CLIENT_NO_COOKIE: u32 = 0x4;
    /// Take data in the SYN without a cookie.
    pub(crate) const SERVER_NO_COOKIE: u32 = 0x200;
    /// Every listener, whether its application asks for it or not.
    pub(crate) const SERVER_ALL: u32 = 0x400;
}

/// Servers remembered.
const SERVERS_MAX: usize = 1024;

/// The MSS of a server that has never announced one: no bound but our own, as in Linux. Only data without a cookie goes to such
/// a server (RFC 7413 §4.1.3 would have 536 bytes with one).
const MSS_UNKNOWN: u16 = u16::MAX;

/// How long a server whose SYNs with cookies were lost twice is left alone; doubled by each further loss.
const LOSS_PAUSE: Duration = Duration::from_secs(60);

/// How a server without a known cookie is asked for one: one that has not answered is asked once in the form of before RFC
/// 7413, and if it does not answer that either, as ever after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Standard,
    Experimental,
    /// The standard one: both have been refused.
    Refused,
}

/// What is known of one server.
#[derive(Clone, Copy, Debug)]
struct Server {
    cookie: Option<Cookie>,
    mss: u16,
    /// The form in which it is asked for a cookie.
    request: Request,
    /// SYNs with data or cookie in a row that were answered only without.
    losses: u32,
    /// When it was last heard of, or lost.
    at: Instant,
}

/// Suspicion of the paths of this host.
#[derive(Clone, Copy, Debug, Default)]
struct Blackhole {
    times: u32,
    until: Option<Instant>,
}

/// See the module head.
#[derive(Debug)]
pub(crate) struct FastOpenMemory {
    /// Key of cookies unless `tcp_fastopen_key` gives another.
    secret: HashKey,
    /// Locked by connects and handshakes with Fast Open only.
    servers: Mutex<BTreeMap<IpAddr, Server>>,
    blackhole: Mutex<Blackhole>,
}

impl FastOpenMemory {
    pub(crate) fn new(secret: HashKey) -> Self {
        Self { secret, servers: Mutex::default(), blackhole: Mutex::default() }
    }

    /// The keys of our cookies; `own` are the listener's.
    pub(crate) fn keys(&self, sysctls: &Sysctls, own: Option<FastOpenKey>) -> FastOpenKeys {
        match own.or(sysctls.tcp_fastopen_key) {
            Some(keys) => FastOpenKeys::new(&keys.primary, keys.backup.as_ref()),
            None => FastOpenKeys::new(&self.secret.0, None),
        }
    }

    /// What a connect to `remote` does. `no_cookie` is the socket's own wish.
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

    /// A handshake with `remote` has ended.
    pub(crate) fn learn(&self, remote: IpAddr, news: &FastOpenNews, now: Instant) {
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
        if news.peer_mss != 0 {
            server.mss = news.peer_mss;
        }
        match (news.refused, server.request) {
            _ if news.cookie.is_some() => server.cookie = news.cookie,
            (Some(false), Request::Standard) => server.request = Request::Experimental,
            (Some(true), _) => server.request = Request::Refused,
            _ => {}
        }
        server.losses = if news.syn_dropped { server.losses.saturating_add(1) } else { 0 };
    }

    /// A connection suspects that the path swallows what belongs to Fast Open: nobody speaks it for
    /// `tcp_fastopen_blackhole_timeout_sec`, and for twice as long each time that it happens again. False when that is 0
    /// (Linux: tcp_fastopen_active_disable).
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

    /// Nothing is known any more (`ip tcp_metrics flush`).
    pub(crate) fn forget(&self) {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Fast Open has been suspected, and what is opened at this moment will show whether rightly.
    pub(crate) fn is_on_trial(&self, now: Instant) -> bool {
        let blackhole = self.blackhole.lock().unwrap_or_else(PoisonError::into_inner);
        blackhole.until.is_some_and(|until| now >= until)
    }

    /// It was not rightly.
    pub(crate) fn acquit(&self) {
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
    fn a_server_is_asked_once_and_then_believed() {
        let (memory, sysctls, now) = memory();
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), ASK);
        let cookie = Cookie::new(&[7; 8]);
        let news = FastOpenNews { cookie, peer_mss: 1000, ..FastOpenNews::default() };
        memory.learn(SERVER, &news, now);
        let expected = FastOpen::Connect { cookie, peer_mss: 1000 };
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), expected);
        let without = FastOpen::Connect { cookie: None, peer_mss: 1000 };
        assert_eq!(memory.connect(&sysctls, SERVER, true, now), without);
        let off = Sysctls { tcp_fastopen: 0, ..sysctls };
        assert_eq!(memory.connect(&off, SERVER, false, now), FastOpen::Off);
    }

    #[test]
    fn a_server_that_does_not_answer_is_asked_once_in_the_older_form() {
        let (memory, sysctls, now) = memory();
        let ask = || memory.connect(&sysctls, SERVER, false, now);
        let refuse = |experimental| {
            let refused = Some(experimental);
            memory.learn(SERVER, &FastOpenNews { refused, ..FastOpenNews::default() }, now);
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
    fn a_server_whose_syns_are_lost_is_left_alone_for_longer_and_longer() {
        let (memory, sysctls, now) = memory();
        let lost = FastOpenNews { syn_dropped: true, ..FastOpenNews::default() };
        memory.learn(SERVER, &lost, now);
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), ASK, "once is chance");
        memory.learn(SERVER, &lost, now);
        assert_eq!(memory.connect(&sysctls, SERVER, false, now), FastOpen::Off);
        assert_eq!(memory.connect(&sysctls, SERVER, false, now + LOSS_PAUSE * 4), ASK);
    }

    #[test]
    fn a_blackhole_turns_it_off_everywhere_for_a_while() {
        let (memory, mut sysctls, now) = memory();
        assert!(!memory.suspect(&sysctls, now), "off by default");
        sysctls.tcp_fastopen_blackhole_timeout_sec = Duration::from_secs(10);
        for pause in [10, 20] {
            assert!(memory.suspect(&sysctls, now));
            let then = |seconds| now + Duration::from_secs(seconds);
            let at = |seconds| memory.connect(&sysctls, SERVER, false, then(seconds));
            assert_eq!(at(pause - 1), FastOpen::Off);
            assert_eq!(at(pause), ASK);
            assert!(!memory.is_on_trial(then(pause - 1)) && memory.is_on_trial(then(pause)));
        }
        memory.acquit();
        assert!(memory.suspect(&sysctls, now));
        let at = now + Duration::from_secs(10);
        assert_eq!(memory.connect(&sysctls, SERVER, false, at), ASK, "as the first time");
    }

    #[test]
    fn the_memory_is_bounded() {
        let (memory, _, now) = memory();
        let cookie = Cookie::new(&[7; 8]);
        let news = FastOpenNews { cookie, ..FastOpenNews::default() };
        for index in 0..5000u32 {
            let remote = IpAddr::V4(std::net::Ipv4Addr::from_bits(index));
            memory.learn(remote, &news, now + Duration::from_secs(index.into()));
        }
        assert_eq!(memory.servers.lock().unwrap().len(), SERVERS_MAX);
    }
}
