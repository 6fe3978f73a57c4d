//! Threads that serve connections: started when needed, kept for the next connection, bounded.
//!
//! A connection never waits for another one while the bound is not reached, because a server may hold
//! thousands of idle connections. `submit` blocks at the bound, so the rest waits in the accept queue, where
//! the stack limits it.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Stack of a connection thread. A service keeps its buffers on the heap; what is left is call frames down
/// through the stack's send path. A thousand connections then reserve 256 MB of address space and touch a
/// few pages each.
const STACK_BYTES: usize = 256 * 1024;

/// How long an unused thread waits for another connection.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// A pool whose threads run `serve` on each submitted item.
pub(super) struct Pool<T> {
    shared: Arc<Shared<T>>,
    threads_max: usize,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Something was queued.
    work: Condvar,
    /// A thread became free.
    room: Condvar,
    serve: Box<dyn Fn(T) + Send + Sync>,
}

struct State<T> {
    queue: VecDeque<T>,
    /// Threads that exist.
    threads: usize,
    /// Threads waiting for work. `queue.len() <= idle` whenever the lock is free: every queued item has a thread on its way.
    idle: usize,
}

impl<T: Send + 'static> Pool<T> {
    /// An empty pool that grows to `threads_max` threads.
    pub(super) fn new(threads_max: usize, serve: impl Fn(T) + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { queue: VecDeque::new(), threads: 0, idle: 0 });
        let (work, room) = (Condvar::new(), Condvar::new());
        Self { shared: Arc::new(Shared { state, work, room, serve: Box::new(serve) }), threads_max }
    }

    /// Gives an item to a thread; waits while all `threads_max` are busy. Fails, and drops the item, when
    /// the system has no thread left to give.
    pub(super) fn submit(&self, item: T) -> io::Result<()> {
        let mut state = self.shared.lock();
        loop {
            if state.idle > state.queue.len() {
                state.queue.push_back(item);
                drop(state);
                self.shared.work.notify_one();
                return Ok(());
            }
            if state.threads < self.threads_max {
                state.threads += 1;
                break;
            }
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || shared.run(item)).map(drop).inspect_err(|_| {
            self.shared.lock().threads -= 1;
        })
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life: its first item, then whatever comes until nothing does.
    fn run(&self, first: T) {
        (self.serve)(first);
        while let Some(item) = self.next() {
            (self.serve)(item);
        }
    }

    fn next(&self) -> Option<T> {
        let mut state = self.lock();
        state.idle += 1;
        self.room.notify_one();
        loop {
            if let Some(item) = state.queue.pop_front() {
                state.idle -= 1;
                return Some(item);
            }
            let (guard, wait) =
                self.work.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if wait.timed_out() && state.queue.is_empty() {
                state.idle -= 1;
                state.threads -= 1;
                // `submit` may be waiting for `idle` and now finds room for a thread instead.
                self.room.notify_one();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[test]
    fn items_run_at_the_same_time_up_to_the_bound() {
        let barrier = Arc::new(Barrier::new(8));
        let (done, results) = mpsc::channel();
        let pool = {
            let barrier = Arc::clone(&barrier);
            Pool::new(8, move |item: usize| {
                // Passes only if all eight run at once.
                barrier.wait();
                done.send(item).expect("receiver");
            })
        };
        (0..8).for_each(|item| pool.submit(item).expect("thread"));
        let mut seen: Vec<usize> = (0..8)
            .map(|_| results.recv_timeout(Duration::from_secs(10)).expect("all ran"))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn the_bound_holds_and_nothing_is_lost() {
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (done, results) = mpsc::channel();
        let pool = {
            let most = Arc::clone(&most);
            Pool::new(3, move |item: usize| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                done.send(item).expect("receiver");
            })
        };
        (0..200).for_each(|item| pool.submit(item).expect("thread"));
        let mut seen: Vec<usize> = (0..200)
            .map(|_| results.recv_timeout(Duration::from_secs(10)).expect("all ran"))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= 3);
    }
}
