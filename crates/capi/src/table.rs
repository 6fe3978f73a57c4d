//! The descriptors of this library: numbers that stand for sockets and epoll sets.
//!
//! The numbers begin far above those of the kernel, so that a call of the C library with a number
//! of this library fails with `EBADF` and does not reach a file. Linux: the descriptor table of a
//! process.

use std::{
    collections::BTreeSet,
    ffi::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
};

use posix::{Datagram, EpollSet, Socket, Watched};
use ql::Stack;
use stack::Errno;

/// The first number: above every limit of open files (`fs.nr_open` is at most 2^30 less a page).
pub(crate) const BASE: c_int = 1 << 30;

/// Largest number of descriptors.
const COUNT_MAX: usize = 1 << 24;

/// Object behind a descriptor.
#[derive(Debug)]
pub(crate) enum Object {
    Stream(Holder<Socket>),
    Datagram(Holder<Datagram>),
    Epoll(Epoll),
}

/// A socket and its stack.
#[derive(Debug)]
pub(crate) struct Holder<S> {
    pub(crate) socket: S,
    pub(crate) stack: Stack,
    /// Epoll sets that have the descriptor.
    sets: Mutex<Vec<Weak<Object>>>,
}

/// An epoll set.
#[derive(Debug, Default)]
pub(crate) struct Epoll {
    set: Mutex<EpollSet<c_int>>,
    /// Stacks without workers whose sockets the set has had: a thread that waits runs them.
    manual: Mutex<Vec<Stack>>,
}

impl<S> Holder<S> {
    pub(crate) const fn new(stack: Stack, socket: S) -> Self {
        Self { socket, stack, sets: Mutex::new(Vec::new()) }
    }
}

/// The open descriptors.
struct Table {
    objects: Vec<Option<Arc<Object>>>,
    /// Places in `objects` without an object.
    free: BTreeSet<usize>,
}

static TABLE: RwLock<Table> = RwLock::new(Table { objects: Vec::new(), free: BTreeSet::new() });

fn place(fd: c_int) -> Option<usize> {
    usize::try_from(fd.checked_sub(BASE)?).ok()
}

/// Opens the lowest free number.
pub(crate) fn insert(object: Object) -> Result<c_int, Errno> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let place = match table.free.pop_first() {
        Some(place) => place,
        None if table.objects.len() >= COUNT_MAX => return Err(Errno::EMFILE),
        None => {
            table.objects.push(None);
            table.objects.len() - 1
        }
    };
    table.objects[place] = Some(Arc::new(object));
    c_int::try_from(place).map(|place| BASE + place).map_err(|_| Errno::EMFILE)
}

/// Returns the object behind a number.
pub(crate) fn find(fd: c_int) -> Result<Arc<Object>, Errno> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    place(fd).and_then(|place| table.objects.get(place)?.clone()).ok_or(Errno::EBADF)
}

/// Closes a number, and removes it from its epoll sets.
pub(crate) fn remove(fd: c_int) -> Result<Arc<Object>, Errno> {
    let object = {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        let place = place(fd).ok_or(Errno::EBADF)?;
        let object = table.objects.get_mut(place).and_then(Option::take).ok_or(Errno::EBADF)?;
        table.free.insert(place);
        object
    };
    if let Some(sets) = object.sets() {
        for set in sets.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if let Some(set) = set.upgrade()
                && let Object::Epoll(epoll) = &*set
            {
                epoll.lock().forget(fd);
            }
        }
    }
    Ok(object)
}

impl Epoll {
    pub(crate) fn lock(&self) -> MutexGuard<'_, EpollSet<c_int>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the stack of a socket that the set has.
    pub(crate) fn note_stack(&self, stack: Option<&Stack>) {
        let Some(stack) = stack.filter(|stack| stack.is_manual()) else { return };
        let host = |stack: &Stack| stack.with_host(|host, _| Arc::as_ptr(host));
        let mut manual = self.manual.lock().unwrap_or_else(PoisonError::into_inner);
        if !manual.iter().any(|known| host(known) == host(stack)) {
            manual.push(stack.clone());
        }
    }

    pub(crate) fn manual_stacks(&self) -> Vec<Stack> {
        self.manual.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Object {
    fn sets(&self) -> Option<&Mutex<Vec<Weak<Self>>>> {
        match self {
            Self::Stream(holder) => Some(&holder.sets),
            Self::Datagram(holder) => Some(&holder.sets),
            Self::Epoll(_) => None,
        }
    }

    /// Notes that an epoll set has the descriptor of this socket.
    pub(crate) fn joins(&self, set: &Arc<Self>) {
        if let Some(sets) = self.sets() {
            let mut sets = sets.lock().unwrap_or_else(PoisonError::into_inner);
            sets.retain(|known| known.strong_count() > 0);
            if !sets.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(set))) {
                sets.push(Arc::downgrade(set));
            }
        }
    }

    /// The socket as observers see it.
    pub(crate) fn watched(&self) -> Option<&dyn Watched> {
        match self {
            Self::Stream(holder) => Some(&holder.socket),
            Self::Datagram(holder) => Some(&holder.socket),
            Self::Epoll(_) => None,
        }
    }

    /// The stack of a socket.
    pub(crate) fn stack(&self) -> Option<&Stack> {
        match self {
            Self::Stream(holder) => Some(&holder.stack),
            Self::Datagram(holder) => Some(&holder.stack),
            Self::Epoll(_) => None,
        }
    }

    /// The events of the object, as bits of poll(2).
    pub(crate) fn poll_events(&self) -> i16 {
        match self {
            Self::Stream(holder) => holder.socket.poll_events(),
            Self::Datagram(holder) => holder.socket.poll_events(),
            // Not a socket.
            Self::Epoll(_) => libc::POLLNVAL,
        }
    }
}
