//! The state machine of a DHCPv4 client (RFC 2131 §4.4, figure 5).
//!
//! ```text
//!  Init ─► Selecting ─► Requesting ─► Checking ─► Bound ─T1► Renewing ─T2► Rebinding ─► Init
//!          DISCOVER     REQUEST       probe       ▲          REQUEST       REQUEST      expired
//!                                     by ARP      └────ACK───┼─────────────┤
//!                                                 link up ─► Rebooting ────┘
//!                                                            REQUEST
//! ```
//!
//! Above: `service`, which passes datagrams and times and carries out [`Action`]s. Below: `message`
//! for the format, `lease` for the judgement of values.
//!
//! Time is a [`Duration`] since any start, and randomness comes from a seed, so a run can be
//! repeated. An answer counts only if its transaction id, its link address and its state fit;
//! everything else is ignored, and the pending request is repeated when its time has come.
//!
//! Differs from RFC 2131 §4.4.1: the first DISCOVER is not delayed by 1 to 10 s unless
//! [`ClientConfig::start_delay_max`] says so, because the start of one program is not the start of
//! a building. The first acceptable OFFER is taken.

use std::{collections::VecDeque, net::Ipv4Addr, time::Duration};

use dhcproto::v4::MessageType;

use super::{
    lease::Lease,
    message::{Answer, Kind, Request},
};

#[cfg(test)]
mod tests;

/// First interval between two transmissions, and the largest one (RFC 2131 §4.1).
const INTERVAL: Duration = Duration::from_secs(4);
const INTERVAL_MAX: Duration = Duration::from_secs(64);

/// Largest random time that is added to an interval or subtracted from it (RFC 2131 §4.1).
const JITTER: Duration = Duration::from_secs(1);

/// Number of REQUESTs for an offered address, before the client starts again: 4 + 8 + 16 + 32 s
/// (RFC 2131 §3.1 (5) says four, 60 s).
const REQUESTS_MAX: u32 = 4;

/// Shortest interval between two requests for an extension (RFC 2131 §4.4.5).
const EXTENSION_INTERVAL_MIN: Duration = Duration::from_secs(60);

/// Number of REQUESTs for a remembered lease (INIT-REBOOT): 4 + 8 s. Without an answer the lease is
/// used to its end (RFC 2131 §3.2 (4)). The time is near the 10 s of the ISC client.
const REBOOTS_MAX: u32 = 2;

/// Pause after DECLINE (RFC 2131 §3.1 (5)).
const DECLINE_PAUSE: Duration = Duration::from_secs(10);

/// Pause after an address that could not be checked, doubled each time up to the largest one.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(320);

/// Largest pause between two attempts that a server refuses.
const REFUSAL_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Part of T1 by which the renewal may be early, so that clients which started together do not
/// renew together (RFC 2131 §4.4.5).
const EARLY_PART: u32 = 16;

/// Identity of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientId {
    /// Type 1 and the link address (RFC 2132 §9.14).
    #[default]
    LinkAddress,
    /// An identity association and a DUID (RFC 4361 §6.1), as a DHCPv6 client has. Without a DUID,
    /// one is made from the link address (DUID-LL, RFC 8415 §11.4).
    Duid {
        /// Identity association (IAID) of the device.
        iaid: u32,
        /// DHCP unique identifier of the host.
        duid: Option<Vec<u8>>,
    },
    /// Any bytes, at least two.
    Bytes(Vec<u8>),
}

impl ClientId {
    /// Returns the bytes of option 61.
    #[must_use]
    pub fn bytes(&self, mac: [u8; 6]) -> Vec<u8> {
        match self {
            Self::LinkAddress => [&[1][..], &mac].concat(),
            Self::Duid { iaid, duid } => {
                let own = || [&[0, 3, 0, 1][..], &mac].concat();
                let duid = duid.clone().unwrap_or_else(own);
                [&[255][..], &iaid.to_be_bytes(), &duid].concat()
            }
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// Configuration of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Identity of the client.
    pub client_id: ClientId,
    /// Name of the host that the server may register (option 12).
    pub hostname: Option<String>,
    /// Largest random delay of the first DISCOVER.
    pub start_delay_max: Duration,
}

/// Step that the owner of a client carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram from port 68 to port 67.
    Send {
        /// Payload.
        bytes: Vec<u8>,
        /// Receiver.
        to: Destination,
    },
    /// Give the device this address and probe for it by ARP (RFC 5227), then call
    /// [`Client::checked`].
    Check(Lease),
    /// Use this lease: its address was checked, or it is the present address with other options.
    Configure(Lease),
    /// The lease is used further and has the same values as before: it was extended, or no server
    /// has answered the request for it after the link came up.
    Renewed(Lease),
    /// Give up the address and everything that came with it.
    Remove(Lease, Loss),
}

/// Result of [`Action::Check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// No other station has the address.
    Free,
    /// Another station has the address.
    InUse,
    /// The address could not be checked: the device is down, for example.
    Failed,
}

/// Receiver of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// 255.255.255.255.
    Broadcast,
    /// A server, from the address of the lease.
    Server(Ipv4Addr),
}

/// Reason why an address was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its lifetime has ended, and no server has extended it.
    Expired,
    /// A server has refused to extend it (DHCPNAK).
    Refused,
    /// The client was stopped.
    Released,
}

/// Transmissions of one message.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    xid: u32,
    /// Time of the first transmission.
    started: Duration,
    /// Number of transmissions.
    sent: u32,
    /// Time of the next one.
    due: Duration,
}

/// A lease in use.
#[derive(Clone, Debug)]
struct Held {
    lease: Lease,
    renew_at: Duration,
    rebind_at: Duration,
    expires_at: Duration,
}

/// States of RFC 2131, figure 5. `Checking` is the ARP probe between REQUESTING and BOUND.
#[derive(Debug)]
enum State {
    Init {
        due: Duration,
    },
    Selecting(Exchange),
    Requesting(Exchange, Lease),
    /// The lease counts from `since`.
    Checking {
        lease: Lease,
        since: Duration,
    },
    Bound(Held),
    Renewing(Exchange, Held),
    Rebinding(Exchange, Held),
    /// The link has come up again, and the servers are asked whether the lease is still right
    /// (INIT-REBOOT and REBOOTING of RFC 2131).
    Rebooting(Exchange, Held),
    Stopped,
}

/// The DHCP client of one device.
#[derive(Debug)]
pub struct Client {
    mac: [u8; 6],
    client_id: Vec<u8>,
    hostname: Option<String>,
    rng: fastrand::Rng,
    state: State,
    actions: VecDeque<Action>,
    /// Refusals since the last lease.
    refusals: u32,
    /// Addresses in a row that could not be checked.
    failures: u32,
}

impl Client {
    /// Creates a client that begins at `now` to look for a server.
    #[must_use]
    pub fn new(config: &ClientConfig, mac: [u8; 6], now: Duration, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let delay = below(&mut rng, config.start_delay_max);
        Self {
            mac,
            client_id: config.client_id.bytes(mac),
            hostname: config.hostname.clone(),
            rng,
            state: State::Init { due: now + delay },
            actions: VecDeque::new(),
            refusals: 0,
            failures: 0,
        }
    }

    /// Returns the next step to carry out.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the time at which [`advance`](Self::advance) has work; `None` if there is none.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let due = match &self.state {
            State::Init { due } => *due,
            State::Selecting(exchange) | State::Requesting(exchange, _) => exchange.due,
            State::Bound(held) => held.renew_at,
            State::Renewing(exchange, held) => exchange.due.min(held.rebind_at),
            State::Rebinding(exchange, held) | State::Rebooting(exchange, held) => {
                exchange.due.min(held.expires_at)
            }
            State::Checking { .. } | State::Stopped => return None,
        };
        (due != Duration::MAX).then_some(due)
    }

    /// Returns the lease in use.
    #[must_use]
    pub const fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Bound(held)
            | State::Renewing(_, held)
            | State::Rebinding(_, held)
            | State::Rebooting(_, held) => Some(&held.lease),
            _ => None,
        }
    }

    /// Carries out what is due: the next transmission, the next state.
    pub fn advance(&mut self, now: Duration) {
        if self.expire(now) {
            return;
        }
        match core::mem::replace(&mut self.state, State::Stopped) {
            State::Init { due } if now >= due => self.discover(now),
            State::Selecting(exchange) if now >= exchange.due => {
                let exchange = self.again(exchange, now);
                self.send_discover(exchange, now);
                self.state = State::Selecting(exchange);
            }
            State::Requesting(exchange, _)
                if now >= exchange.due && exchange.sent >= REQUESTS_MAX =>
            {
                self.discover(now);
            }
            State::Requesting(exchange, lease) if now >= exchange.due => {
                let exchange = self.again(exchange, now);
                self.send_request(exchange, &lease, now);
                self.state = State::Requesting(exchange, lease);
            }
            State::Bound(held) | State::Renewing(_, held) if now >= held.rebind_at => {
                let exchange = self.extend(None, now, held.expires_at);
                self.send_extension(exchange, &held.lease, now, Destination::Broadcast);
                self.state = State::Rebinding(exchange, held);
            }
            State::Bound(held) if now >= held.renew_at => {
                let exchange = self.extend(None, now, held.rebind_at);
                self.send_extension(
                    exchange,
                    &held.lease,
                    now,
                    Destination::Server(held.lease.server),
                );
                self.state = State::Renewing(exchange, held);
            }
            State::Renewing(exchange, held) if now >= exchange.due => {
                let exchange = self.extend(Some(exchange), now, held.rebind_at);
                self.send_extension(
                    exchange,
                    &held.lease,
                    now,
                    Destination::Server(held.lease.server),
                );
                self.state = State::Renewing(exchange, held);
            }
            State::Rebinding(exchange, held) if now >= exchange.due => {
                let exchange = self.extend(Some(exchange), now, held.expires_at);
                self.send_extension(exchange, &held.lease, now, Destination::Broadcast);
                self.state = State::Rebinding(exchange, held);
            }
            State::Rebooting(exchange, held)
                if now >= exchange.due && exchange.sent >= REBOOTS_MAX =>
            {
                self.actions.push_back(Action::Renewed(held.lease.clone()));
                self.state = State::Bound(held);
            }
            State::Rebooting(exchange, held) if now >= exchange.due => {
                let exchange = self.again(exchange, now);
                self.send_reboot(exchange, &held.lease, now);
                self.state = State::Rebooting(exchange, held);
            }
            state => self.state = state,
        }
    }

    /// Takes note that the link has come up again, perhaps to another network. The client asks the
    /// servers whether its lease is still right (INIT-REBOOT, RFC 2131 §4.3.2), or begins at once
    /// to look for a lease.
    pub fn link_up(&mut self, now: Duration) {
        if self.expire(now) {
            return;
        }
        match core::mem::replace(&mut self.state, State::Stopped) {
            State::Bound(held)
            | State::Renewing(_, held)
            | State::Rebinding(_, held)
            | State::Rebooting(_, held) => {
                let due = now + self.interval(0);
                let exchange = Exchange { xid: self.rng.u32(..), started: now, sent: 1, due };
                self.send_reboot(exchange, &held.lease, now);
                self.state = State::Rebooting(exchange, held);
            }
            State::Init { .. } | State::Selecting(_) | State::Requesting(..) => self.discover(now),
            state @ (State::Checking { .. } | State::Stopped) => self.state = state,
        }
    }

    /// Processes a datagram that arrived on port 68.
    pub fn receive(&mut self, now: Duration, bytes: &[u8]) {
        // A datagram may have waited while the lifetime ended.
        self.expire(now);
        let Some(answer) = Answer::read(bytes) else { return };
        let xid = match &self.state {
            State::Selecting(exchange)
            | State::Requesting(exchange, _)
            | State::Renewing(exchange, _)
            | State::Rebinding(exchange, _)
            | State::Rebooting(exchange, _) => exchange.xid,
            State::Init { .. } | State::Checking { .. } | State::Bound(_) | State::Stopped => {
                return;
            }
        };
        if answer.xid != xid || answer.mac != self.mac {
            return;
        }
        match answer.kind {
            Kind::Offer => self.on_offer(now, &answer),
            Kind::Ack => self.on_ack(&answer),
            Kind::Nak => self.on_nak(now, &answer),
        }
    }

    /// Takes the result of [`Action::Check`].
    pub fn checked(&mut self, now: Duration, result: Checked) {
        let (lease, since) = match core::mem::replace(&mut self.state, State::Stopped) {
            State::Checking { lease, since } => (lease, since),
            state => {
                self.state = state;
                return;
            }
        };
        match result {
            Checked::Free => {
                (self.refusals, self.failures) = (0, 0);
                self.actions.push_back(Action::Configure(lease.clone()));
                self.state = State::Bound(self.held(lease, since));
            }
            Checked::InUse => {
                let xid = self.rng.u32(..);
                let request = Request {
                    requested: Some(lease.address.addr()),
                    server: Some(lease.server),
                    ..self.request(MessageType::Decline, xid, 0)
                };
                self.send(&request, Destination::Broadcast);
                self.state = State::Init { due: now + DECLINE_PAUSE };
            }
            Checked::Failed => {
                let pause = FAILURE_PAUSE * (1 << self.failures.min(8));
                self.failures = self.failures.saturating_add(1);
                self.state = State::Init { due: now + pause.min(FAILURE_PAUSE_MAX) };
            }
        }
    }

    /// Ends the client: returns a lease in use to its server.
    pub fn release(&mut self) {
        match core::mem::replace(&mut self.state, State::Stopped) {
            State::Bound(held)
            | State::Renewing(_, held)
            | State::Rebinding(_, held)
            | State::Rebooting(_, held) => {
                let xid = self.rng.u32(..);
                let request = Request {
                    ciaddr: held.lease.address.addr(),
                    server: Some(held.lease.server),
                    ..self.request(MessageType::Release, xid, 0)
                };
                self.send(&request, Destination::Server(held.lease.server));
                self.actions.push_back(Action::Remove(held.lease, Loss::Released));
            }
            _ => {}
        }
    }
}

impl Client {
    fn on_offer(&mut self, now: Duration, answer: &Answer) {
        let State::Selecting(Exchange { xid, .. }) = self.state else { return };
        let Ok(lease) = Lease::of(answer) else { return };
        let due = now + self.interval(0);
        let exchange = Exchange { xid, started: now, sent: 1, due };
        self.send_request(exchange, &lease, now);
        self.state = State::Requesting(exchange, lease);
    }

    fn on_ack(&mut self, answer: &Answer) {
        let Ok(lease) = Lease::of(answer) else { return };
        let is_same = |own: &Lease| own.address.addr() == lease.address.addr();
        match &self.state {
            State::Requesting(exchange, own) if is_same(own) && own.server == lease.server => {
                self.actions.push_back(Action::Check(lease.clone()));
                self.state = State::Checking { lease, since: exchange.started };
            }
            State::Renewing(exchange, held)
                if is_same(&held.lease) && held.lease.server == lease.server =>
            {
                self.extended(exchange.started, held.lease.clone(), lease);
            }
            State::Rebinding(exchange, held) | State::Rebooting(exchange, held)
                if is_same(&held.lease) =>
            {
                self.extended(exchange.started, held.lease.clone(), lease);
            }
            _ => {}
        }
    }

    fn extended(&mut self, since: Duration, before: Lease, lease: Lease) {
        self.refusals = 0;
        self.actions.push_back(match lease.configures_like(&before) {
            true => Action::Renewed(lease.clone()),
            false => Action::Configure(lease.clone()),
        });
        self.state = State::Bound(self.held(lease, since));
    }

    fn on_nak(&mut self, now: Duration, answer: &Answer) {
        let Some(server) = answer.server else { return };
        let lost = match &self.state {
            State::Requesting(_, lease) if lease.server == server => None,
            State::Renewing(_, held) if held.lease.server == server => Some(held.lease.clone()),
            State::Rebinding(_, held) | State::Rebooting(_, held) => Some(held.lease.clone()),
            _ => return,
        };
        if let Some(lease) = lost {
            self.actions.push_back(Action::Remove(lease, Loss::Refused));
        }
        // The first refusal is answered at once: the client has probably moved to another network.
        let pause = match self.refusals {
            0 => Duration::ZERO,
            refusals => Duration::from_secs(1 << (refusals - 1).min(6)).min(REFUSAL_PAUSE_MAX),
        };
        self.refusals += 1;
        self.state = State::Init { due: now + pause };
        self.advance(now);
    }

    /// Gives up an address whose lifetime has ended. Returns whether it has.
    fn expire(&mut self, now: Duration) -> bool {
        let lease = match &self.state {
            State::Bound(held)
            | State::Renewing(_, held)
            | State::Rebinding(_, held)
            | State::Rebooting(_, held)
                if now >= held.expires_at =>
            {
                held.lease.clone()
            }
            _ => return false,
        };
        self.actions.push_back(Action::Remove(lease, Loss::Expired));
        self.discover(now);
        true
    }

    fn discover(&mut self, now: Duration) {
        let due = now + self.interval(0);
        let exchange = Exchange { xid: self.rng.u32(..), started: now, sent: 1, due };
        self.send_discover(exchange, now);
        self.state = State::Selecting(exchange);
    }

    /// Returns the exchange after one more transmission.
    fn again(&mut self, exchange: Exchange, now: Duration) -> Exchange {
        let due = now + self.interval(exchange.sent);
        Exchange { sent: exchange.sent + 1, due, ..exchange }
    }

    /// Returns the interval after `sent` earlier transmissions: twice the one before, with jitter.
    fn interval(&mut self, sent: u32) -> Duration {
        let interval = INTERVAL.saturating_mul(1 << sent.min(8)).min(INTERVAL_MAX);
        interval - JITTER + below(&mut self.rng, 2 * JITTER)
    }

    /// Returns the exchange of the next request for an extension. `until` is the end of the state:
    /// half of the time until then passes before the next one (RFC 2131 §4.4.5).
    fn extend(&mut self, before: Option<Exchange>, now: Duration, until: Duration) -> Exchange {
        let half = until.saturating_sub(now) / 2;
        let due = now + half.max(EXTENSION_INTERVAL_MIN);
        match before {
            Some(exchange) => Exchange { sent: exchange.sent + 1, due, ..exchange },
            None => Exchange { xid: self.rng.u32(..), started: now, sent: 1, due },
        }
    }

    fn held(&mut self, lease: Lease, since: Duration) -> Held {
        let early = below(&mut self.rng, lease.renewal / EARLY_PART);
        let at = |time: Duration| since.saturating_add(time);
        let renew_at = match lease.renewal {
            Duration::MAX => Duration::MAX,
            renewal => at(renewal - early),
        };
        let rebind_at = at(lease.rebinding);
        let expires_at = lease.lifetime.map_or(Duration::MAX, at);
        Held { lease, renew_at, rebind_at, expires_at }
    }

    fn send_discover(&mut self, Exchange { xid, started, .. }: Exchange, now: Duration) {
        let secs = seconds(now.saturating_sub(started));
        let request = self.request(MessageType::Discover, xid, secs);
        self.send(&request, Destination::Broadcast);
    }

    fn send_request(&mut self, exchange: Exchange, lease: &Lease, now: Duration) {
        let secs = seconds(now.saturating_sub(exchange.started));
        let request = Request {
            requested: Some(lease.address.addr()),
            server: Some(lease.server),
            ..self.request(MessageType::Request, exchange.xid, secs)
        };
        self.send(&request, Destination::Broadcast);
    }

    /// Sends a REQUEST of INIT-REBOOT, which names the address and no server (RFC 2131 §4.3.2).
    ///
    /// Differs from RFC 2131 §4.1: the source of the packet is the address of the lease and not
    /// 0.0.0.0, because the device keeps the address until a server refuses it.
    fn send_reboot(&mut self, exchange: Exchange, lease: &Lease, now: Duration) {
        let secs = seconds(now.saturating_sub(exchange.started));
        let request = Request {
            requested: Some(lease.address.addr()),
            ..self.request(MessageType::Request, exchange.xid, secs)
        };
        self.send(&request, Destination::Broadcast);
    }

    /// Sends a REQUEST of RENEWING or REBINDING, which names the address as the client's own.
    fn send_extension(
        &mut self,
        exchange: Exchange,
        lease: &Lease,
        now: Duration,
        to: Destination,
    ) {
        let secs = seconds(now.saturating_sub(exchange.started));
        let request = Request {
            ciaddr: lease.address.addr(),
            broadcast: false,
            ..self.request(MessageType::Request, exchange.xid, secs)
        };
        self.send(&request, to);
    }

    fn request(&self, kind: MessageType, xid: u32, secs: u16) -> Request {
        Request {
            kind,
            xid,
            secs,
            broadcast: matches!(kind, MessageType::Discover | MessageType::Request),
            ciaddr: Ipv4Addr::UNSPECIFIED,
            mac: self.mac,
            client_id: self.client_id.clone(),
            hostname: self.hostname.clone(),
            requested: None,
            server: None,
        }
    }

    fn send(&mut self, request: &Request, to: Destination) {
        self.actions.push_back(Action::Send { bytes: request.bytes(), to });
    }
}

fn seconds(time: Duration) -> u16 {
    u16::try_from(time.as_secs()).unwrap_or(u16::MAX)
}

/// Returns a random duration below `limit`, or zero if `limit` is zero.
fn below(rng: &mut fastrand::Rng, limit: Duration) -> Duration {
    let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(rng.u64(..micros.max(1)))
}
