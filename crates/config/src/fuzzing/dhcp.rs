//! A DHCP server that answers anything at any time, on a link that comes and goes.
//!
//! The first byte of an input is the seed of the client. Each further step is one byte, modulo 5,
//! and its data:
//!
//! | step | data | effect |
//! |---|---|---|
//! | 0 | two bytes | so many seconds pass |
//! | 1 | none | the link comes up |
//! | 2 | one byte | result of further address checks |
//! | 3 | a byte for the length, bytes | a datagram |
//! | 4 | kind, last byte of the address, options as in step 3 | an answer to the last message |

use std::{net::Ipv4Addr, time::Duration};

use super::Input;
use crate::dhcp::{Action, Checked, Client, ClientConfig, Lease, Loss};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

/// Maximum number of steps of a run.
const STEPS_MAX: u32 = 64;

/// Largest message that a server must accept (RFC 2131 §2).
const MESSAGE_BYTES_MAX: usize = 576;

/// Options that an answer with bit 3 of its kind has: server 10.0.0.1, mask /24, an hour.
const USUAL: [u8; 18] = [54, 4, 10, 0, 0, 1, 1, 4, 255, 255, 255, 0, 51, 4, 0, 0, 14, 16];

/// Plays one input.
///
/// # Panics
/// If the client sends without a limit or too long messages, or uses a lease that no host should.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let seed = input.next_u8().into();
    let client = Client::new(&ClientConfig::default(), MAC, Duration::ZERO, seed);
    let mut run =
        Run { client, now: Duration::ZERO, xid: [0; 4], check: Checked::Free, sent: 0, used: None };
    run.step();
    for _ in 0..STEPS_MAX {
        let Some(step) = input.byte() else { break };
        match step % 5 {
            0 => run.pass(input.next_u16()),
            1 => run.client.link_up(run.now),
            2 => {
                let results = [Checked::Free, Checked::InUse, Checked::Failed];
                run.check = results[usize::from(input.next_u8()) % results.len()];
            }
            3 => run.client.receive(run.now, input.counted()),
            _ => {
                let answer = run.answer(&mut input);
                run.client.receive(run.now, &answer);
            }
        }
        run.carry_out();
        // A lease counts from its request, so it may have ended when its answer arrives.
        run.step();
    }
    run.client.release();
    run.carry_out();
    assert_eq!((run.client.deadline(), &run.used), (None, &None), "after the release");
}

/// A client, and what its owner knows.
struct Run {
    client: Client,
    now: Duration,
    /// Transaction id of the last message.
    xid: [u8; 4],
    check: Checked,
    /// Messages sent.
    sent: u64,
    /// Lease that the owner has configured.
    used: Option<Lease>,
}

impl Run {
    fn step(&mut self) {
        self.client.advance(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.client.next_action() {
            match action {
                Action::Send { bytes, .. } => {
                    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{} bytes", bytes.len());
                    self.xid.copy_from_slice(&bytes[4..8]);
                    self.sent += 1;
                }
                Action::Check(lease) => {
                    assert!(self.used.is_none(), "{lease} is checked beside another lease");
                    check_lease(&lease);
                    self.client.checked(self.now, self.check);
                }
                Action::Configure(lease) | Action::Renewed(lease) => {
                    check_lease(&lease);
                    self.used = Some(lease);
                }
                Action::Remove(lease, loss) => {
                    let used = self.used.take().expect("a lease is in use");
                    assert_eq!(used.address, lease.address, "{loss:?}");
                    assert!(loss != Loss::Expired || lease.lifetime.is_some(), "{lease} expired");
                }
            }
        }
        assert_eq!(self.client.lease(), self.used.as_ref(), "the lease in use");
    }

    /// Lets time pass from deadline to deadline.
    fn pass(&mut self, seconds: u16) {
        let (before, seconds) = (self.sent, u64::from(seconds));
        let end = self.now + Duration::from_secs(seconds);
        while let Some(at) = self.client.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.step();
            let sent = self.sent - before;
            // A minute between extensions, T1 to T2 and expiry, and 3 s between DISCOVERs.
            assert!(sent <= 12 + seconds / 3, "{sent} messages in {seconds} s");
        }
        self.now = end;
    }

    /// Returns an answer to the last message.
    fn answer(&self, input: &mut Input<'_>) -> Vec<u8> {
        let (kind, last) = (input.next_u8(), input.next_u8());
        let mut bytes = vec![0; 236];
        bytes[..3].copy_from_slice(&[2, 1, 6]);
        bytes[4..8].copy_from_slice(&self.xid);
        bytes[16..20].copy_from_slice(&[10, 0, 0, last]);
        bytes[28..34].copy_from_slice(&MAC);
        bytes.extend([99, 130, 83, 99, 53, 1, kind & 7]);
        if kind & 8 != 0 {
            bytes.extend(USUAL);
        }
        bytes.extend(input.counted());
        bytes.push(255);
        bytes
    }
}

/// Checks that a host can use the values of a lease.
fn check_lease(lease: &Lease) {
    let ip = lease.address.addr();
    let is_host = !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast());
    assert!(is_host && ip != Ipv4Addr::BROADCAST, "{lease}");
    match lease.lifetime {
        Some(lifetime) => {
            assert!(lifetime >= Duration::from_secs(10), "{lease}");
            assert!(lease.renewal < lease.rebinding && lease.rebinding < lifetime, "{lease:?}");
        }
        None => assert_eq!(lease.renewal, Duration::MAX, "{lease}"),
    }
    assert!(lease.routes.len() <= 64 && lease.dns.len() <= 8 && lease.search.len() <= 8);
    assert!(lease.mtu.is_none_or(|mtu| mtu >= 576), "{:?}", lease.mtu);
    let names = lease.search.iter().chain(&lease.domain).chain(&lease.hostname);
    for name in names {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        assert!(!name.is_empty() && name.bytes().all(is_plain), "{name:?}");
    }
}
