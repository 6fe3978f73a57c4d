//! Threads that accept connections and serve them: started when needed, kept for the next connection, bounded.
//!
//! A thread that has accepted a connection serves it itself, so nobody has to be woken in between, and a thread that polls for the next
//! connection takes its first bytes along. Some threads wait at any time while the bound is not reached: the one that leaves the wait last
//! starts another first. At the bound the rest waits in the accept queue, where the stack limits it.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Stack of a connection thread. A service keeps its buffers on the heap; what is left is call frames down
/// through the stack's send path. A thousand connections then reserve 256 MB of address space and touch a
/// few pages each.
pub(super) const STACK_BYTES: usize = 256 * 1024;

/// Most threads that wait for a connection: one that has served its own ends when there are as many already.
const WAITING_MAX: usize = 8;

/// What the threads of a pool do, one after the other for each connection.
pub(super) trait Service: Send + Sync + 'static {
    /// A connection.
    type Connection;

    /// Waits for the next connection. An error is for good.
    fn accept(&self) -> io::Result<Self::Connection>;

    /// Serves it to its end.
    fn serve(&self, connection: Self::Connection);

    /// The system had no thread to give: until one of those that serve is done nobody accepts.
    fn is_short(&self, error: &io::Error);

    /// Accepting failed for good, in every thread that waits.
    fn fail(&self, error: io::Error);
}

/// The threads of one listener.
pub(super) struct Pool<S> {
    service: S,
    threads_max: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    /// Threads that exist or are about to.
    threads: usize,
    /// Threads of those that wait for a connection, or are about to.
    waiting: usize,
}

impl<S: Service> Pool<S> {
    /// Starts to serve, with at most `threads_max` connections at once.
    pub(super) fn start(threads_max: usize, service: S) -> io::Result<()> {
        let counts = Mutex::new(Counts { threads: 1, waiting: 1 });
        Arc::new(Self { service, threads_max, counts }).spawn()
    }

    /// Starts a thread that is counted already.
    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let pool = Arc::clone(self);
        let thread = thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || pool.run()).map(drop)
    }

    /// A thread's life: one connection after the other, until enough others wait.
    fn run(self: &Arc<Self>) {
        loop {
            match self.service.accept() {
                Ok(connection) => {
                    self.leave_the_wait();
                    self.service.serve(connection);
                    if !self.wait_again() {
                        return;
                    }
                }
                Err(error) => return self.service.fail(error),
            }
        }
    }

    /// The calling thread has a connection. If nobody waits for the next one, a thread is started for it.
    fn leave_the_wait(self: &Arc<Self>) {
        let mut counts = self.lock();
        counts.waiting -= 1;
        if counts.waiting > 0 || counts.threads >= self.threads_max {
            return;
        }
        counts.threads += 1;
        counts.waiting += 1;
        drop(counts);
        if let Err(error) = self.spawn() {
            let mut counts = self.lock();
            counts.threads -= 1;
            counts.waiting -= 1;
            drop(counts);
            self.service.is_short(&error);
        }
    }

    /// The calling thread has served its connection. False: enough others wait.
    fn wait_again(&self) -> bool {
        let mut counts = self.lock();
        if counts.waiting >= WAITING_MAX {
            counts.threads -= 1;
            return false;
        }
        counts.waiting += 1;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Connections are numbers that come by a channel; its end is the listener's.
    struct Numbers<F> {
        listener: Mutex<mpsc::Receiver<usize>>,
        serve: F,
        failed: mpsc::Sender<io::Error>,
    }

    impl<F: Fn(usize) + Send + Sync + 'static> Service for Numbers<F> {
        type Connection = usize;

        fn accept(&self) -> io::Result<usize> {
            let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
            listener.recv().map_err(|_| io::Error::other("closed"))
        }

        fn serve(&self, connection: usize) {
            (self.serve)(connection);
        }

        fn is_short(&self, error: &io::Error) {
            panic!("{error}");
        }

        fn fail(&self, error: io::Error) {
            let _ = self.failed.send(error);
        }
    }

    /// The way to connect, and where it is told that accepting failed.
    fn start(
        max: usize,
        serve: impl Fn(usize) + Send + Sync + 'static,
    ) -> (mpsc::Sender<usize>, mpsc::Receiver<io::Error>) {
        let (connect, listener) = mpsc::channel();
        let (failed, failures) = mpsc::channel();
        let service = Numbers { listener: Mutex::new(listener), serve, failed };
        Pool::start(max, service).expect("a thread");
        (connect, failures)
    }

    #[test]
    fn connections_are_served_at_the_same_time_up_to_the_bound() {
        let barrier = Barrier::new(8);
        let (done, results) = mpsc::channel();
        let (connect, _failures) = start(8, move |number| {
            // Passes only if all eight run at once.
            barrier.wait();
            done.send(number).expect("receiver");
        });
        (0..8).for_each(|number| connect.send(number).expect("a listener"));
        let mut seen: Vec<usize> =
            (0..8).map(|_| results.recv_timeout(LIMIT).expect("all ran")).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn the_bound_holds_and_nothing_is_lost() {
        let (running, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
        let (done, results) = mpsc::channel();
        let seen_most = Arc::clone(&most);
        let (connect, failures) = start(3, move |number| {
            seen_most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            done.send(number).expect("receiver");
        });
        (0..200).for_each(|number| connect.send(number).expect("a listener"));
        let mut seen: Vec<usize> =
            (0..200).map(|_| results.recv_timeout(LIMIT).expect("all ran")).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= 3);
        drop(connect);
        assert_eq!(failures.recv_timeout(LIMIT).expect("the end").to_string(), "closed");
    }

    /// A burst leaves as many threads as may wait, and no more.
    #[test]
    fn threads_that_nobody_needs_end() {
        let barrier = Arc::new(Barrier::new(WAITING_MAX * 4));
        let at_once = Arc::clone(&barrier);
        let (connect, failures) = start(usize::MAX, move |_| {
            at_once.wait();
        });
        (0..WAITING_MAX * 4).for_each(|number| connect.send(number).expect("a listener"));
        drop(connect);
        // Each thread that waits is told of the end; the pool goes with the last one, and with it the way to tell.
        assert!((1..=WAITING_MAX).contains(&failures.iter().count()));
        assert_eq!(Arc::strong_count(&barrier), 1);
    }
}
