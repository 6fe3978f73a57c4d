use std::net::Ipv4Addr;

use dhcproto::{
    Decodable as _, Decoder, Encodable as _,
    v4::{DhcpOption, Message, MessageType, Opcode, OptionCode},
};
use proptest::prelude::*;

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 50);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A client, its time, and the messages that it has sent.
struct Run {
    client: Client,
    now: Duration,
    sent: Vec<(Duration, Message, Destination)>,
    /// Actions other than messages.
    done: Vec<Action>,
    /// Result of the ARP probe.
    check: Checked,
}

impl Run {
    fn new(seed: u64) -> Self {
        let client = Client::new(&ClientConfig::default(), MAC, secs(100), seed);
        let mut run = Self {
            client,
            now: secs(100),
            sent: Vec::new(),
            done: Vec::new(),
            check: Checked::Free,
        };
        run.step();
        run
    }

    /// Carries out everything that is due now.
    fn step(&mut self) {
        self.client.advance(self.now);
        self.carry_out();
    }

    fn carry_out(&mut self) {
        while let Some(action) = self.client.next_action() {
            match action {
                Action::Send { bytes, to } => {
                    let message = Message::decode(&mut Decoder::new(&bytes)).expect("a message");
                    assert_eq!(message.chaddr(), MAC);
                    self.sent.push((self.now, message, to));
                }
                Action::Check(lease) => {
                    self.done.push(Action::Check(lease));
                    self.client.checked(self.now, self.check);
                }
                other => self.done.push(other),
            }
        }
    }

    /// Lets time pass until `end`, from deadline to deadline.
    fn run_until(&mut self, end: Duration) {
        while let Some(at) = self.client.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.step();
        }
        self.now = end;
    }

    fn receive(&mut self, message: &Message) {
        self.client.receive(self.now, &message.to_vec().expect("an encodable message"));
        self.carry_out();
    }

    /// Returns the type of the last message.
    fn last(&self) -> MessageType {
        let (_, message, _) = self.sent.last().expect("a message");
        kind(message)
    }

    /// Returns an answer to the last message with these options.
    fn answer(&self, kind: MessageType, options: &[DhcpOption]) -> Message {
        let (_, request, _) = self.sent.last().expect("a message");
        let none = Ipv4Addr::UNSPECIFIED;
        let mut answer = Message::new_with_id(request.xid(), none, ADDRESS, none, none, &MAC);
        answer.set_opcode(Opcode::BootReply);
        let given = [
            DhcpOption::MessageType(kind),
            DhcpOption::ServerIdentifier(SERVER),
            DhcpOption::SubnetMask(Ipv4Addr::new(255, 255, 255, 0)),
            DhcpOption::AddressLeaseTime(3600),
        ];
        for option in given.iter().chain(options) {
            answer.opts_mut().insert(option.clone());
        }
        answer
    }

    /// Gets a lease.
    fn bind(&mut self) {
        self.receive(&self.answer(MessageType::Offer, &[]));
        assert_eq!(self.last(), MessageType::Request);
        self.receive(&self.answer(MessageType::Ack, &[]));
    }

    /// Lets the link come up again.
    fn link_up(&mut self) {
        self.client.link_up(self.now);
        self.carry_out();
    }

    fn address(&self) -> Option<Ipv4Addr> {
        self.client.lease().map(|lease| lease.address.addr())
    }
}

fn kind(message: &Message) -> MessageType {
    message.opts().msg_type().expect("a type")
}

#[test]
fn a_lease_is_offered_requested_checked_and_used() {
    let mut run = Run::new(1);
    let (_, discover, to) = &run.sent[0];
    assert_eq!((kind(discover), *to), (MessageType::Discover, Destination::Broadcast));
    assert!(discover.flags().broadcast());
    run.bind();
    let (_, request, to) = &run.sent[1];
    assert_eq!(*to, Destination::Broadcast);
    let option = |code| request.opts().get(code).cloned();
    let requested = DhcpOption::RequestedIpAddress(ADDRESS);
    assert_eq!(option(OptionCode::RequestedIpAddress), Some(requested));
    assert_eq!(option(OptionCode::ServerIdentifier), Some(DhcpOption::ServerIdentifier(SERVER)));
    assert_eq!(request.xid(), run.sent[0].1.xid());
    assert!(matches!(&run.done[..], [Action::Check(_), Action::Configure(_)]), "{:?}", run.done);
    assert_eq!(run.address(), Some(ADDRESS));
}

/// RFC 2131 §4.1: 4, 8, 16, 32, 64, 64 s, each less or more a second.
#[test]
fn discovers_are_repeated_at_growing_intervals() {
    let mut run = Run::new(2);
    run.run_until(secs(600));
    let times: Vec<_> = run.sent.iter().map(|(at, ..)| at.as_millis()).collect();
    let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, wanted) in gaps.iter().zip([4_000, 8_000, 16_000, 32_000, 64_000, 64_000, 64_000]) {
        assert!((wanted - 1000..=wanted + 1000).contains(gap), "{gaps:?}");
    }
    let (_, last, _) = run.sent.last().expect("several");
    assert!(last.secs() > 100 && last.xid() == run.sent[0].1.xid());
    let other = Run::new(3);
    assert_ne!(other.sent[0].1.xid(), run.sent[0].1.xid(), "another seed, another id");
}

#[test]
fn four_requests_without_an_answer_lead_back_to_discover() {
    let mut run = Run::new(4);
    run.receive(&run.answer(MessageType::Offer, &[]));
    run.run_until(secs(100 + 70));
    let kinds: Vec<_> = run.sent.iter().map(|(_, message, _)| kind(message)).collect();
    assert_eq!(kinds[1..5], [MessageType::Request; 4]);
    assert_eq!(kinds[5], MessageType::Discover);
    assert_ne!(run.sent[5].1.xid(), run.sent[0].1.xid());
}

#[test]
fn a_lease_is_renewed_with_its_server_then_with_any_then_lost() {
    let mut run = Run::new(5);
    run.bind();
    run.sent.clear();
    run.run_until(secs(100 + 3600));
    let (t1, t2) = (secs(100 + 1800), secs(100 + 3150));
    let (first, message, to) = &run.sent[0];
    assert!((t1 - secs(1800 / 16)..=t1).contains(first), "{first:?}");
    assert_eq!(*to, Destination::Server(SERVER));
    assert_eq!(message.ciaddr(), ADDRESS);
    assert!(!message.flags().broadcast());
    for code in [OptionCode::ServerIdentifier, OptionCode::RequestedIpAddress] {
        assert_eq!(message.opts().get(code), None, "RFC 2131 §4.3.2");
    }
    for (at, message, to) in &run.sent[..run.sent.len() - 1] {
        let expected = if *at < t2 { Destination::Server(SERVER) } else { Destination::Broadcast };
        assert_eq!((*to, kind(message)), (expected, MessageType::Request), "{at:?}");
    }
    let gaps = run.sent.windows(2).map(|pair| pair[1].0 - pair[0].0);
    let last = run.sent.len() - 2;
    assert!(
        gaps.enumerate().all(|(at, gap)| gap >= secs(60) || at == last || run.sent[at + 1].0 == t2)
    );
    assert!(matches!(run.done.last(), Some(Action::Remove(_, Loss::Expired))), "{:?}", run.done);
    assert_eq!((run.last(), run.address()), (MessageType::Discover, None));
    assert_eq!(run.sent.last().map(|(at, ..)| *at), Some(secs(100 + 3600)));
}

#[test]
fn a_lease_counts_from_the_request_and_an_extension_from_its_request() {
    let mut run = Run::new(6);
    run.receive(&run.answer(MessageType::Offer, &[]));
    run.now += secs(3);
    run.receive(&run.answer(MessageType::Ack, &[]));
    run.run_until(secs(100 + 1800));
    assert_eq!(run.last(), MessageType::Request);
    let asked = run.sent.last().expect("a request").0;
    run.now = asked + secs(2);
    run.receive(&run.answer(MessageType::Ack, &[]));
    assert!(matches!(run.done.last(), Some(Action::Renewed(_))), "{:?}", run.done);
    let next = run.client.deadline().expect("a renewal");
    assert!((secs(1800 - 1800 / 16)..=secs(1800)).contains(&(next - asked)), "{next:?}");
}

#[test]
fn an_extension_with_other_options_is_configured() {
    let mut run = Run::new(7);
    run.bind();
    run.run_until(secs(100 + 1800));
    let dns = DhcpOption::DomainNameServer(vec![OTHER]);
    run.receive(&run.answer(MessageType::Ack, &[dns]));
    let Some(Action::Configure(lease)) = run.done.last() else { panic!("{:?}", run.done) };
    assert_eq!(lease.dns, [OTHER]);
}

#[test]
fn another_server_extends_a_lease_only_in_rebinding() {
    let mut run = Run::new(8);
    run.bind();
    let by_other = |run: &Run| run.answer(MessageType::Ack, &[DhcpOption::ServerIdentifier(OTHER)]);
    run.run_until(secs(100 + 1800));
    run.receive(&by_other(&run));
    assert!(!matches!(run.done.last(), Some(Action::Renewed(_))));
    run.run_until(secs(100 + 3150));
    run.receive(&by_other(&run));
    assert!(matches!(run.done.last(), Some(Action::Renewed(lease)) if lease.server == OTHER));
}

/// RFC 2131 §3.1 (5).
#[test]
fn an_address_of_another_station_is_declined_and_asked_for_after_a_pause() {
    let mut run = Run::new(9);
    run.check = Checked::InUse;
    run.bind();
    let (_, decline, to) = run.sent.last().expect("a message");
    assert_eq!((kind(decline), *to), (MessageType::Decline, Destination::Broadcast));
    assert_eq!(decline.ciaddr(), Ipv4Addr::UNSPECIFIED);
    let requested = Some(&DhcpOption::RequestedIpAddress(ADDRESS));
    assert_eq!(decline.opts().get(OptionCode::RequestedIpAddress), requested);
    assert_eq!(run.address(), None);
    assert_eq!(run.client.deadline(), Some(secs(110)));
    run.run_until(secs(110));
    assert_eq!(run.last(), MessageType::Discover);
}

/// RFC 2131 §4.3.2, table 5: INIT-REBOOT names the address, no server, and has no `ciaddr`.
#[test]
fn a_lease_is_asked_for_again_when_its_link_comes_up() {
    let mut run = Run::new(16);
    run.bind();
    run.now += secs(600);
    run.link_up();
    let (_, request, to) = run.sent.last().expect("a message");
    assert_eq!((kind(request), *to), (MessageType::Request, Destination::Broadcast));
    assert_eq!(request.ciaddr(), Ipv4Addr::UNSPECIFIED);
    let requested = Some(&DhcpOption::RequestedIpAddress(ADDRESS));
    assert_eq!(request.opts().get(OptionCode::RequestedIpAddress), requested);
    assert_eq!(request.opts().get(OptionCode::ServerIdentifier), None);
    assert_eq!(run.address(), Some(ADDRESS), "the lease is used meanwhile");
    let mut elsewhere = run.answer(MessageType::Ack, &[]);
    elsewhere.set_yiaddr(Ipv4Addr::new(10, 0, 0, 51));
    run.receive(&elsewhere);
    assert!(!matches!(run.done.last(), Some(Action::Renewed(_))), "another address");
    // Any server may answer.
    run.receive(&run.answer(MessageType::Ack, &[DhcpOption::ServerIdentifier(OTHER)]));
    assert!(matches!(run.done.last(), Some(Action::Renewed(lease)) if lease.server == OTHER));
    let next = run.client.deadline().expect("a renewal");
    assert!((secs(1800 - 1800 / 16)..=secs(1800)).contains(&(next - run.now)), "{next:?}");
}

#[test]
fn a_lease_of_another_network_is_refused_when_its_link_comes_up() {
    let mut run = Run::new(17);
    run.bind();
    run.link_up();
    run.receive(&run.answer(MessageType::Nak, &[DhcpOption::ServerIdentifier(OTHER)]));
    assert!(matches!(run.done.last(), Some(Action::Remove(_, Loss::Refused))), "{:?}", run.done);
    assert_eq!((run.last(), run.address()), (MessageType::Discover, None));
}

/// RFC 2131 §3.2 (4).
#[test]
fn without_an_answer_a_lease_is_used_to_its_end_after_its_link_came_up() {
    let mut run = Run::new(18);
    run.bind();
    run.sent.clear();
    run.link_up();
    run.run_until(secs(100 + 20));
    assert_eq!(run.sent.len(), 2);
    assert!(matches!(run.done.last(), Some(Action::Renewed(_))), "its routes are added again");
    assert_eq!(run.address(), Some(ADDRESS));
    run.run_until(secs(100 + 3600));
    assert!(matches!(run.done.last(), Some(Action::Remove(_, Loss::Expired))), "{:?}", run.done);
    // A lease that has ended while the link was down is not asked for.
    let mut late = Run::new(19);
    late.bind();
    late.now = secs(100 + 3600);
    late.link_up();
    assert!(matches!(late.done.last(), Some(Action::Remove(_, Loss::Expired))));
    assert_eq!(late.last(), MessageType::Discover);
}

#[test]
fn a_client_that_waits_begins_at_once_when_its_link_comes_up() {
    let mut run = Run::new(20);
    run.run_until(secs(600));
    let before = run.sent.len();
    run.link_up();
    assert_eq!((run.sent.len(), run.last()), (before + 1, MessageType::Discover));
    run.client.release();
    run.link_up();
    assert_eq!(run.sent.len(), before + 1, "a stopped client stays stopped");
}

#[test]
fn an_address_that_cannot_be_checked_is_asked_for_again_at_growing_pauses() {
    let mut run = Run::new(21);
    run.check = Checked::Failed;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        run.bind();
        assert_eq!(run.last(), MessageType::Request, "the server is not told");
        let failed = run.now;
        run.now = run.client.deadline().expect("a pause");
        pauses.push((run.now - failed).as_secs());
        run.step();
        assert_eq!(run.last(), MessageType::Discover);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 320]);
    run.check = Checked::Free;
    run.bind();
    assert_eq!(run.address(), Some(ADDRESS));
}

#[test]
fn a_refusal_starts_again_at_once_and_then_at_growing_pauses() {
    let mut run = Run::new(10);
    let mut pauses = Vec::new();
    for _ in 0..9 {
        run.receive(&run.answer(MessageType::Offer, &[]));
        let before = run.now;
        run.receive(&run.answer(MessageType::Nak, &[]));
        while run.last() != MessageType::Discover {
            run.now = run.client.deadline().expect("a pause");
            run.step();
        }
        pauses.push((run.now - before).as_secs());
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn a_refused_extension_takes_the_address() {
    let mut run = Run::new(11);
    run.bind();
    run.run_until(secs(100 + 1800));
    let stranger = run.answer(MessageType::Nak, &[DhcpOption::ServerIdentifier(OTHER)]);
    run.receive(&stranger);
    assert_eq!(run.address(), Some(ADDRESS), "another server has no say before T2");
    run.receive(&run.answer(MessageType::Nak, &[]));
    assert!(matches!(run.done.last(), Some(Action::Remove(_, Loss::Refused))));
    assert_eq!((run.last(), run.address()), (MessageType::Discover, None));
}

#[test]
fn a_stopped_client_returns_its_lease() {
    let mut run = Run::new(12);
    run.bind();
    run.client.release();
    run.carry_out();
    let (_, release, to) = run.sent.last().expect("a message");
    assert_eq!((kind(release), *to), (MessageType::Release, Destination::Server(SERVER)));
    assert_eq!(release.ciaddr(), ADDRESS);
    assert!(matches!(run.done.last(), Some(Action::Remove(_, Loss::Released))));
    assert_eq!(run.client.deadline(), None);
    let mut idle = Run::new(13);
    idle.client.release();
    idle.carry_out();
    assert_eq!(idle.sent.len(), 1, "without a lease there is nothing to return");
}

#[test]
fn answers_that_do_not_fit_are_ignored() {
    let mut run = Run::new(14);
    let mut wrong_id = run.answer(MessageType::Offer, &[]);
    wrong_id.set_xid(wrong_id.xid().wrapping_add(1));
    let mut wrong_mac = run.answer(MessageType::Offer, &[]);
    wrong_mac.set_chaddr(&[2, 0, 0, 0, 0, 8]);
    let early_ack = run.answer(MessageType::Ack, &[]);
    let early_nak = run.answer(MessageType::Nak, &[]);
    let short = run.answer(MessageType::Offer, &[DhcpOption::AddressLeaseTime(1)]);
    let mut no_host = run.answer(MessageType::Offer, &[]);
    no_host.set_yiaddr(Ipv4Addr::BROADCAST);
    for message in [wrong_id, wrong_mac, early_ack, early_nak, short, no_host] {
        run.receive(&message);
        assert_eq!((run.sent.len(), run.address()), (1, None), "{message}");
    }
    run.receive(&run.answer(MessageType::Offer, &[]));
    let mut other_address = run.answer(MessageType::Ack, &[]);
    other_address.set_yiaddr(Ipv4Addr::new(10, 0, 0, 51));
    run.receive(&other_address);
    let other_server = run.answer(MessageType::Ack, &[DhcpOption::ServerIdentifier(OTHER)]);
    run.receive(&other_server);
    assert!(run.done.is_empty());
    run.receive(&run.answer(MessageType::Ack, &[]));
    assert_eq!(run.address(), Some(ADDRESS));
}

#[test]
fn a_host_that_slept_through_its_lease_gives_it_up_at_once() {
    let mut run = Run::new(15);
    run.bind();
    run.now = secs(100_000);
    run.receive(&run.answer(MessageType::Ack, &[]));
    assert!(matches!(run.done.last(), Some(Action::Remove(_, Loss::Expired))));
    assert_eq!(run.last(), MessageType::Discover);
}

/// RFC 2132 §9.14, RFC 4361 §6.1.
#[test]
fn identities_have_the_form_of_their_rfc() {
    assert_eq!(ClientId::LinkAddress.bytes(MAC), [1, 2, 0, 0, 0, 0, 7]);
    let duid = ClientId::Duid { iaid: 5, duid: None };
    assert_eq!(duid.bytes(MAC), [255, 0, 0, 0, 5, 0, 3, 0, 1, 2, 0, 0, 0, 0, 7]);
    let own = ClientId::Duid { iaid: 5, duid: Some(vec![9, 9]) };
    assert_eq!(own.bytes(MAC), [255, 0, 0, 0, 5, 9, 9]);
}

proptest! {
    /// A server that answers anything at any time neither makes the client send without a limit,
    /// nor leaves it with an address whose lifetime has ended.
    #[test]
    fn a_hostile_server_gets_bounded_answers(
        seed: u64,
        answers in prop::collection::vec((0_u8..8, 0_u32..5000, 0_u64..400, any::<u16>()), 1..80),
    ) {
        let mut run = Run::new(seed);
        for (kind, lifetime, pause, noise) in answers {
            let before = run.sent.len();
            run.run_until(run.now + secs(pause));
            // A minute between extensions, T1 to T2 and expiry, and 3 s between DISCOVERs.
            prop_assert!(run.sent.len() - before <= 12 + usize::try_from(pause / 5)?);
            if noise % 8 == 1 {
                run.link_up();
            }
            let kind = match kind {
                0 | 1 => MessageType::Offer,
                2..=4 => MessageType::Ack,
                5 => MessageType::Nak,
                _ => MessageType::Discover,
            };
            let lifetime = DhcpOption::AddressLeaseTime(lifetime);
            let mut bytes = run.answer(kind, &[lifetime]).to_vec()?;
            if noise % 4 == 0 {
                let at = usize::from(noise) % bytes.len();
                bytes[at] ^= 0xff;
            }
            run.client.receive(run.now, &bytes);
            run.carry_out();
            // A lease counts from its request, so it may have ended when its answer arrives.
            run.step();
            if run.client.lease().is_some() {
                prop_assert!(run.client.deadline().is_some_and(|at| at > run.now));
            }
        }
    }
}
