//! Threads that accept connections and serve them: started on demand, reused for further
//! connections, and limited in number.
//!
//! The thread that accepts a connection also serves it, so no other thread has to be woken, and a
//! thread that polls for the next connection receives its first bytes in the same poll. While the
//! limit is not reached, some threads always wait for connections: the last one that leaves the
//! wait first starts another. At the limit further connections wait in the accept queue, which the
//! stack limits.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Stack of a connection thread. Services keep their buffers on the heap, so the stack only holds
/// call frames down through the stack's send path. A thousand connections reserve 256 MB of address
/// space and touch a few pages each.
pub(super) const STACK_BYTES: usize = 256 * 1024;

/// Most threads that wait for a connection. A thread that has served its connection ends when that
/// many already wait.
const WAITING_MAX: usize = 8;

/// A service that pool threads run, one connection after the other.
pub(super) trait Service: Send + Sync + 'static {
    /// Type of accepted connections.
    type Connection;

    /// Waits for the next connection. An error is permanent.
    fn accept(&self) -> io::Result<Self::Connection>;

    /// Serves a connection until it ends.
    fn serve(&self, connection: Self::Connection);

    /// Reports that the system refused to start a thread: no connection is accepted until a serving
    /// thread is done.
    fn report_shortage(&self, error: &io::Error);

    /// Reports a permanent failure of accept. Called by every waiting thread.
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
    /// Threads that exist or are being started.
    threads: usize,
    /// Threads that wait for a connection or are about to.
    waiting: usize,
}

impl<S: Service> Pool<S> {
    /// Starts to serve at most `threads_max` connections at the same time.
    pub(super) fn start(threads_max: usize, service: S) -> io::Result<()> {
        let counts = Mutex::new(Counts { threads: 1, waiting: 1 });
        Arc::new(Self { service, threads_max, counts }).spawn()
    }

    /// Starts a thread that is already counted.
    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        let pool = Arc::clone(self);
        let thread = thread::Builder::new().name("connection".to_owned()).stack_size(STACK_BYTES);
        thread.spawn(move || pool.run()).map(drop)
    }

    /// Body of a pool thread: serves one connection after the other, until enough other threads
    /// wait.
    fn run(self: &Arc<Self>) {
        loop {
            match self.service.accept() {
                Ok(connection) => {
                    self.end_wait();
                    self.service.serve(connection);
                    if !self.resume_wait() {
                        return;
                    }
                }
                Err(error) => return self.service.fail(error),
            }
        }
    }

    /// Ends the wait of the calling thread, which has accepted a connection. If no other thread
    /// waits, starts one.
    fn end_wait(self: &Arc<Self>) {
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
            self.service.report_shortage(&error);
        }
    }

    /// Resumes the wait of the calling thread, which has served its connection. False: enough other
    /// threads wait.
    fn resume_wait(&self) -> bool {
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

    /// A service whose connections are numbers from a channel. The end of the channel is a failure
    /// of accept.
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

        fn report_shortage(&self, error: &io::Error) {
            panic!("{error}");
        }

        fn fail(&self, error: io::Error) {
            let _ = self.failed.send(error);
        }
    }

    /// Starts a pool. Returns the channel that delivers connections, and the channel of accept
    /// failures.
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
    fn connections_are_served_concurrently_up_to_the_limit() {
        let barrier = Barrier::new(8);
        let (done, results) = mpsc::channel();
        let (connect, _failures) = start(8, move |number| {
            // Passes only if all eight connections are served at the same time.
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
    fn the_thread_limit_holds_and_every_connection_is_served() {
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

    /// After a burst, the threads beyond [`WAITING_MAX`] end.
    #[test]
    fn surplus_threads_end_after_a_burst() {
        let barrier = Arc::new(Barrier::new(WAITING_MAX * 4));
        let at_once = Arc::clone(&barrier);
        let (connect, failures) = start(usize::MAX, move |_| {
            at_once.wait();
        });
        (0..WAITING_MAX * 4).for_each(|number| connect.send(number).expect("a listener"));
        drop(connect);
        // Every waiting thread reports the end. The last one drops the pool, and with it the sender
        // of the channel.
        assert!((1..=WAITING_MAX).contains(&failures.iter().count()));
        assert_eq!(Arc::strong_count(&barrier), 1);
    }
}
