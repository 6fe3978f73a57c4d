//! Lists of poll, and epoll sets.

use stack::Errno;

use super::net::Net;
use crate::{EpollEvent, EpollSet, PollEntry, abi, limit_of_ms, poll};

const ET: u32 = abi::EPOLLET;

/// A set with the entry 5.
fn set(events: u32) -> EpollSet<i32> {
    let mut set = EpollSet::default();
    set.control(abi::EPOLL_CTL_ADD, 5, Some(EpollEvent { events, data: 7 })).unwrap();
    set
}

/// Events that the set reports when 5 has these bits and this progress.
fn collect(set: &mut EpollSet<i32>, ready: u32, progress: u64) -> Vec<u32> {
    let events = set.collect(8, |key| (key == 5).then_some((ready, progress)));
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
fn a_level_triggered_entry_is_reported_again() {
    let mut set = set(abi::EPOLLIN);
    assert_eq!(collect(&mut set, 0, 0), []);
    assert_eq!(collect(&mut set, abi::EPOLLIN | abi::EPOLLOUT, 0), [abi::EPOLLIN]);
    assert_eq!(collect(&mut set, abi::EPOLLIN, 0), [abi::EPOLLIN]);
    assert_eq!(collect(&mut set, abi::EPOLLHUP, 0), [abi::EPOLLHUP], "always asked for");
}

#[test]
fn an_edge_triggered_entry_is_reported_once_for_each_arrival() {
    let mut set = set(abi::EPOLLIN | ET);
    assert_eq!(collect(&mut set, abi::EPOLLIN, 10), [abi::EPOLLIN]);
    assert_eq!(collect(&mut set, abi::EPOLLIN, 10), []);
    assert_eq!(collect(&mut set, abi::EPOLLIN, 20), [abi::EPOLLIN], "more bytes have come");
    assert_eq!(collect(&mut set, 0, 20), []);
    assert_eq!(collect(&mut set, abi::EPOLLIN, 20), [abi::EPOLLIN], "a new edge");
}

#[test]
fn a_one_shot_entry_is_reported_until_it_is_armed_again() {
    let mut set = set(abi::EPOLLIN | abi::EPOLLONESHOT);
    assert_eq!(collect(&mut set, abi::EPOLLIN, 0), [abi::EPOLLIN]);
    assert_eq!(collect(&mut set, abi::EPOLLIN | abi::EPOLLERR, 0), []);
    let event = EpollEvent { events: abi::EPOLLIN | ET, data: 7 };
    set.control(abi::EPOLL_CTL_MOD, 5, Some(event)).unwrap();
    assert_eq!(collect(&mut set, abi::EPOLLIN, 0), [abi::EPOLLIN]);
    set.control(abi::EPOLL_CTL_MOD, 5, Some(event)).unwrap();
    assert_eq!(collect(&mut set, abi::EPOLLIN, 0), [abi::EPOLLIN], "a change reports again");
}

#[test]
fn epoll_ctl_refuses_what_linux_refuses() {
    let event = |events| Some(EpollEvent { events, data: 7 });
    let mut set = set(abi::EPOLLIN);
    assert_eq!(set.control(abi::EPOLL_CTL_ADD, 5, event(1)), Err(Errno::EEXIST));
    assert_eq!(set.control(abi::EPOLL_CTL_MOD, 6, event(1)), Err(Errno::ENOENT));
    assert_eq!(set.control(abi::EPOLL_CTL_DEL, 6, None), Err(Errno::ENOENT));
    assert_eq!(set.control(abi::EPOLL_CTL_ADD, 6, None), Err(Errno::EFAULT));
    assert_eq!(set.control(9, 6, event(1)), Err(Errno::EINVAL));
    let exclusive = abi::EPOLLEXCLUSIVE | abi::EPOLLIN;
    assert_eq!(set.control(abi::EPOLL_CTL_MOD, 5, event(exclusive)), Err(Errno::EINVAL));
    let one_shot = exclusive | abi::EPOLLONESHOT;
    assert_eq!(set.control(abi::EPOLL_CTL_ADD, 6, event(one_shot)), Err(Errno::EINVAL));
    assert_eq!(set.control(abi::EPOLL_CTL_ADD, 6, event(exclusive)), Ok(()));
    assert_eq!(set.control(abi::EPOLL_CTL_MOD, 6, event(1)), Err(Errno::EINVAL));
    assert_eq!(set.control(abi::EPOLL_CTL_DEL, 5, None), Ok(()));
    set.forget(6);
    assert_eq!(set.collect(8, |_| Some((1, 0))), []);
}

#[test]
fn a_small_wait_reaches_every_entry_in_turn() {
    let mut set = EpollSet::default();
    for key in 0..3 {
        let event = EpollEvent { events: abi::EPOLLIN, data: key };
        set.control(abi::EPOLL_CTL_ADD, key, Some(event)).unwrap();
    }
    let mut wait = || set.collect(1, |_| Some((abi::EPOLLIN, 0)))[0].data;
    assert_eq!([wait(), wait(), wait(), wait()], [0, 1, 2, 0]);
}

#[test]
fn bytes_that_arrive_and_bytes_that_are_acknowledged_are_progress() {
    let mut net = Net::new();
    let socket = net.connected();
    let before = socket.progress(&net.host, &mut net.cx);
    assert_eq!(net.send(&socket, b"abcd", 0), "4");
    net.poll();
    assert_eq!(socket.progress(&net.host, &mut net.cx), before + 4);
    assert_eq!(net.fresh(true).progress(&net.host, &mut net.cx), 0);
}
