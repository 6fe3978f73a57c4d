//! Lists of poll, and epoll sets.

use std::sync::{Arc, Mutex};

use stack::Errno;
use sync::{Watch, WatchKey};

use super::net::{Net, SERVICE, at};
use crate::{
    Datagram, EpollEvent, EpollSet, PollEntry, SendDatagram, Watched, abi, limit_of_ms, poll,
    watch::Observers,
};

const ET: u32 = abi::EPOLLET;

/// A socket whose news the test makes.
#[derive(Default)]
struct Fake(Mutex<Observers>);

impl Fake {
    fn has_news(&self) {
        self.0.lock().unwrap().notify();
    }
}

impl Watched for Fake {
    fn watch(&self, key: WatchKey, watch: Arc<dyn Watch>) -> bool {
        self.0.lock().unwrap().add(None, key, watch)
    }

    fn unwatch(&self, key: WatchKey) -> bool {
        self.0.lock().unwrap().remove(None, key)
    }
}

const fn event(events: u32, data: u64) -> Option<EpollEvent> {
    Some(EpollEvent { events, data })
}

/// A set with the entry 5.
fn set(events: u32) -> (EpollSet<i32>, Fake) {
    let (mut set, socket) = (EpollSet::default(), Fake::default());
    set.control(abi::EPOLL_CTL_ADD, 5, &socket, event(events, 7)).unwrap();
    (set, socket)
}

/// Events that the set reports when 5 has these bits.
fn collect(set: &EpollSet<i32>, ready: u32) -> Vec<u32> {
    let events = set.collect(8, |key| (key == 5).then_some(ready));
    assert!(events.iter().all(|event| event.data == 7));
    events.iter().map(|event| event.events).collect()
}

#[test]
fn poll_ignores_negative_descriptors_and_reports_closed_ones() {
    let entry = |fd, events| PollEntry { fd, events, revents: -1 };
    let mut entries = [entry(-1, abi::POLLIN), entry(3, 0), entry(4, abi::POLLIN), entry(5, 0)];
    let events_of = |fd| match fd {
        3 => None,
        4 => Some(abi::POLLIN | abi::POLLRDNORM | abi::POLLHUP),
        _ => Some(abi::POLLIN),
    };
    assert_eq!(poll(&mut entries, events_of), 2);
    let revents = entries.map(|entry| entry.revents);
    assert_eq!(revents, [0, abi::POLLNVAL, abi::POLLIN | abi::POLLHUP, 0]);
}

#[test]
fn a_negative_timeout_is_no_limit() {
    assert_eq!(limit_of_ms(-1), None);
    assert_eq!(limit_of_ms(0), Some(std::time::Duration::ZERO));
    assert_eq!(limit_of_ms(20), Some(std::time::Duration::from_millis(20)));
}

#[test]
fn a_level_triggered_entry_is_reported_again_while_it_is_ready() {
    let (set, socket) = set(abi::EPOLLIN);
    assert_eq!(collect(&set, 0), []);
    socket.has_news();
    assert_eq!(collect(&set, abi::EPOLLIN | abi::EPOLLOUT), [abi::EPOLLIN]);
    assert_eq!(collect(&set, abi::EPOLLIN), [abi::EPOLLIN]);
    assert_eq!(collect(&set, 0), []);
    socket.has_news();
    assert_eq!(collect(&set, abi::EPOLLHUP), [abi::EPOLLHUP], "always asked for");
}

#[test]
fn an_edge_triggered_entry_is_reported_once_for_each_piece_of_news() {
    let (set, socket) = set(abi::EPOLLIN | ET);
    assert_eq!(collect(&set, abi::EPOLLIN), [abi::EPOLLIN]);
    assert_eq!(collect(&set, abi::EPOLLIN), []);
    socket.has_news();
    assert_eq!(collect(&set, abi::EPOLLIN), [abi::EPOLLIN], "more bytes have come");
    socket.has_news();
    assert_eq!(collect(&set, 0), []);
    assert_eq!(collect(&set, abi::EPOLLIN), []);
}

#[test]
fn a_one_shot_entry_is_reported_until_it_is_armed_again() {
    let (mut set, socket) = set(abi::EPOLLIN | abi::EPOLLONESHOT);
    assert_eq!(collect(&set, abi::EPOLLIN), [abi::EPOLLIN]);
    socket.has_news();
    assert_eq!(collect(&set, abi::EPOLLIN | abi::EPOLLERR), []);
    set.control(abi::EPOLL_CTL_MOD, 5, &socket, event(abi::EPOLLIN | ET, 7)).unwrap();
    assert_eq!(collect(&set, abi::EPOLLIN), [abi::EPOLLIN]);
    assert_eq!(collect(&set, abi::EPOLLIN), []);
    set.control(abi::EPOLL_CTL_MOD, 5, &socket, event(abi::EPOLLIN | ET, 7)).unwrap();
    assert_eq!(collect(&set, abi::EPOLLIN), [abi::EPOLLIN], "a change reports again");
}

#[test]
fn epoll_ctl_refuses_what_linux_refuses() {
    let (mut set, socket) = set(abi::EPOLLIN);
    let other = Fake::default();
    let mut control = |operation, key, events| {
        let socket = if key == 5 { &socket } else { &other };
        set.control(operation, key, socket, events)
    };
    assert_eq!(control(abi::EPOLL_CTL_ADD, 5, event(1, 7)), Err(Errno::EEXIST));
    assert_eq!(control(abi::EPOLL_CTL_MOD, 6, event(1, 7)), Err(Errno::ENOENT));
    assert_eq!(control(abi::EPOLL_CTL_DEL, 6, None), Err(Errno::ENOENT));
    assert_eq!(control(abi::EPOLL_CTL_ADD, 6, None), Err(Errno::EFAULT));
    assert_eq!(control(9, 6, event(1, 7)), Err(Errno::EINVAL));
    let exclusive = abi::EPOLLEXCLUSIVE | abi::EPOLLIN;
    assert_eq!(control(abi::EPOLL_CTL_MOD, 5, event(exclusive, 7)), Err(Errno::EINVAL));
    let one_shot = exclusive | abi::EPOLLONESHOT;
    assert_eq!(control(abi::EPOLL_CTL_ADD, 6, event(one_shot, 7)), Err(Errno::EINVAL));
    assert_eq!(control(abi::EPOLL_CTL_ADD, 6, event(exclusive, 7)), Ok(()));
    assert_eq!(control(abi::EPOLL_CTL_MOD, 6, event(1, 7)), Err(Errno::EINVAL));
    assert_eq!(control(abi::EPOLL_CTL_DEL, 5, None), Ok(()));
    set.forget(6);
    assert_eq!(set.collect(8, |_| Some(1)), []);
}

#[test]
fn a_small_wait_reaches_every_entry_in_turn() {
    let mut set = EpollSet::default();
    for key in 0..3 {
        let socket = Fake::default();
        set.control(abi::EPOLL_CTL_ADD, key, &socket, event(abi::EPOLLIN, key)).unwrap();
    }
    let wait = || set.collect(1, |_| Some(abi::EPOLLIN))[0].data;
    assert_eq!([wait(), wait(), wait(), wait()], [0, 1, 2, 0]);
}

#[test]
fn a_wait_examines_only_the_sockets_with_news() {
    const SOCKETS: u64 = 10_000;
    let mut set = EpollSet::default();
    let sockets: Vec<_> = (0..SOCKETS).map(|_| Fake::default()).collect();
    for (key, socket) in (0..).zip(&sockets) {
        set.control(abi::EPOLL_CTL_ADD, key, socket, event(abi::EPOLLIN, key)).unwrap();
    }
    assert_eq!(set.collect(8, |_| None), []);
    sockets[4711].has_news();
    let mut examined = Vec::new();
    let events = set.collect(8, |key| {
        examined.push(key);
        Some(abi::EPOLLIN)
    });
    assert_eq!((events.len(), examined), (1, vec![4711]));
    assert_eq!(events[0].data, 4711);
}

/// Events of one socket in a set, as its readiness says.
fn events_of(set: &EpollSet<i32>, poll_events: impl Fn() -> i16) -> u32 {
    let events = set.collect(8, |_| Some(u32::from(poll_events().cast_unsigned())));
    events.first().map_or(0, |event| event.events)
}

#[test]
fn a_socket_that_is_watched_before_it_connects_reports_each_change() {
    let mut net = Net::new();
    let socket = net.fresh(true);
    let mut set = EpollSet::default();
    let wanted = event(abi::EPOLLIN | abi::EPOLLOUT | ET, 0);
    set.control(abi::EPOLL_CTL_ADD, 3, &socket, wanted).unwrap();
    let look = |set: &EpollSet<i32>| events_of(set, || socket.poll_events());
    assert_eq!(look(&set), abi::EPOLLOUT | abi::EPOLLHUP, "as Linux reports a fresh socket");
    assert_eq!(look(&set), 0);
    assert_eq!(net.connect(&socket, SERVICE), "EINPROGRESS");
    net.poll();
    assert_eq!(look(&set), abi::EPOLLOUT);
    let peer = net.accept();
    assert_eq!(look(&set), 0);
    for _ in 0..2 {
        assert_eq!(net.send(&peer, b"abc", 0), "3");
        net.poll();
        assert_eq!(look(&set), abi::EPOLLIN | abi::EPOLLOUT, "each arrival is news");
    }
    net.peers.push(peer);
    net.close_peer(true);
    assert_ne!(look(&set) & abi::EPOLLERR, 0);
    socket.disconnect(&net.host, &mut net.cx).unwrap();
    assert_eq!(look(&set) & abi::EPOLLHUP, abi::EPOLLHUP, "a new state is news");
}

#[test]
fn a_listener_that_is_watched_before_it_listens_reports_a_connection() {
    let mut net = Net::new();
    let socket = net.fresh(true);
    let mut set = EpollSet::default();
    set.control(abi::EPOLL_CTL_ADD, 3, &socket, event(abi::EPOLLIN, 0)).unwrap();
    let look = |set: &EpollSet<i32>| events_of(set, || socket.poll_events());
    assert_eq!(look(&set), abi::EPOLLHUP);
    socket.bind(&net.host, &mut net.cx, at("127.0.0.1:81")).unwrap();
    socket.listen(&net.host, &mut net.cx, 8).unwrap();
    assert_eq!(look(&set), 0);
    let client = net.connecting("127.0.0.1:81");
    assert_eq!(look(&set), abi::EPOLLIN);
    drop(client);
}

#[test]
fn a_datagram_socket_that_is_watched_before_it_is_bound_reports_datagrams() {
    let mut net = Net::new();
    let kind = abi::SOCK_DGRAM | abi::SOCK_NONBLOCK;
    let [socket, sender] = [(); 2].map(|()| Datagram::open(abi::AF_INET, kind, 0).unwrap());
    let mut set = EpollSet::default();
    set.control(abi::EPOLL_CTL_ADD, 3, &socket, event(abi::EPOLLIN | ET, 0)).unwrap();
    let look = |set: &EpollSet<i32>| events_of(set, || socket.poll_events());
    assert_eq!(look(&set), 0);
    socket.bind(&net.host, &mut net.cx, at("127.0.0.1:53")).unwrap();
    let call = SendDatagram::new(0, Some(at("127.0.0.1:53")), Default::default());
    for _ in 0..2 {
        let bufs = [std::io::IoSlice::new(b"query")];
        call.step(&sender, &net.host, &mut net.cx, &bufs).unwrap();
        net.poll();
        assert_eq!(look(&set), abi::EPOLLIN);
        assert_eq!(look(&set), 0);
    }
    socket.close(&net.host, &mut net.cx).unwrap();
    assert_eq!(events_of(&set, || abi::POLLIN), 0, "a closed socket has left the set");
}

#[test]
fn a_change_of_the_interest_takes_the_place_of_the_former_one() {
    let mut net = Net::new();
    let socket = net.connected();
    let mut set = EpollSet::default();
    set.control(abi::EPOLL_CTL_ADD, 3, &socket, event(abi::EPOLLOUT, 1)).unwrap();
    let report = |set: &EpollSet<i32>| {
        set.collect(8, |_| Some(u32::from(socket.poll_events().cast_unsigned())))
    };
    assert_eq!(report(&set), [EpollEvent { events: abi::EPOLLOUT, data: 1 }]);
    set.control(abi::EPOLL_CTL_MOD, 3, &socket, event(abi::EPOLLIN, 2)).unwrap();
    assert_eq!(report(&set), []);
    let peer = net.peers.pop().unwrap();
    assert_eq!(net.send(&peer, b"abc", 0), "3");
    net.poll();
    assert_eq!(report(&set), [EpollEvent { events: abi::EPOLLIN, data: 2 }]);
    set.control(abi::EPOLL_CTL_DEL, 3, &socket, None).unwrap();
    assert_eq!(report(&set), []);
}
