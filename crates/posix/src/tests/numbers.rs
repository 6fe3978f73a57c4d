//! The numbers of `abi` are those of the C library.

use crate::abi;

macro_rules! same {
    ($($name:ident),* $(,)?) => {
        $(assert_eq!(i64::from(abi::$name), i64::from(libc::$name), stringify!($name));)*
    };
}

#[test]
fn numbers_are_those_of_the_c_library() {
    same!(AF_UNSPEC, AF_INET, AF_INET6, SOCK_STREAM, SOCK_NONBLOCK, SOCK_CLOEXEC);
    same!(SHUT_RD, SHUT_WR, SHUT_RDWR, F_GETFL, F_SETFL, O_RDWR, O_NONBLOCK);
    same!(MSG_OOB, MSG_PEEK, MSG_TRUNC, MSG_DONTWAIT, MSG_EOR, MSG_WAITALL, MSG_ERRQUEUE);
    same!(MSG_NOSIGNAL, MSG_MORE, MSG_FASTOPEN);
    same!(POLLIN, POLLPRI, POLLOUT, POLLERR, POLLHUP, POLLNVAL, POLLRDNORM, POLLWRNORM, POLLRDHUP);
    same!(EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD);
    let bits = |bits: i32| bits.cast_unsigned();
    assert_eq!(abi::EPOLLIN, bits(libc::EPOLLIN));
    assert_eq!(abi::EPOLLOUT, bits(libc::EPOLLOUT));
    assert_eq!(abi::EPOLLERR, bits(libc::EPOLLERR));
    assert_eq!(abi::EPOLLHUP, bits(libc::EPOLLHUP));
    assert_eq!(abi::EPOLLET, bits(libc::EPOLLET));
    assert_eq!(abi::EPOLLONESHOT, bits(libc::EPOLLONESHOT));
    assert_eq!(abi::EPOLLEXCLUSIVE, bits(libc::EPOLLEXCLUSIVE));
    assert_eq!(abi::EPOLLWAKEUP, bits(libc::EPOLLWAKEUP));
    assert_eq!((abi::FIONREAD, abi::FIONBIO), (libc::FIONREAD, libc::FIONBIO));
    assert_eq!(abi::SIOCOUTQ, libc::TIOCOUTQ);
}

#[test]
fn numbers_are_found_by_name() {
    assert_eq!(abi::number_of("MSG_FASTOPEN"), Some(0x2000_0000));
    assert_eq!(abi::number_of("PF_INET"), Some(2));
    assert_eq!(abi::number_of("SOL_TCP"), Some(6));
    assert_eq!(abi::number_of("SIOCATMARK"), Some(0x8905));
    assert_eq!(abi::number_of("MSG_NONE"), None);
}
