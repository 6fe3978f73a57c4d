//! The shared object, loaded as packetdrill loads it.

use std::{
    ffi::{CString, c_char, c_int, c_void},
    io,
    mem::MaybeUninit,
    path::Path,
    ptr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use libc::socklen_t;
use quietline_packetdrill::Interface;

use crate::wire::{Segment, Version};

/// Port of the listener in every test.
const PORT: u16 = 8080;

/// One test at a time sets the environment.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

/// A stack behind its table. Every call is one of packetdrill's.
pub(crate) struct Library {
    table: Interface,
    version: Version,
    _alone: Option<MutexGuard<'static, ()>>,
}

// SAFETY: packetdrill calls the table from two threads; that is what is tested.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library and makes a stack for IPv4, with `PD_CTL` naming `control`.
    pub(crate) fn load(flags: &str, control: Option<&Path>) -> Self {
        Self::load_for(Version::Ipv4, flags, control)
    }

    /// Loads the library for packets and sockets of `version`.
    pub(crate) fn load_for(version: Version, flags: &str, control: Option<&Path>) -> Self {
        type Init = unsafe extern "C" fn(*const c_char, *mut Interface);
        let alone = ENVIRONMENT.lock().unwrap_or_else(PoisonError::into_inner);
        let test = std::env::current_exe().unwrap();
        let path = test.parent().unwrap().join("libquietline_packetdrill.so");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let flags = CString::new(flags).unwrap();
        let mut table = MaybeUninit::<Interface>::uninit();
        // SAFETY: the library is ours and has no constructors; the symbol has the type of the
        // interface; the environment is changed under the lock, and no other thread reads it
        // meanwhile.
        unsafe {
            match control {
                Some(control) => std::env::set_var("PD_CTL", control),
                None => std::env::remove_var("PD_CTL"),
            }
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!library.is_null(), "{path:?} can be loaded");
            let init = libc::dlsym(library, c"packetdrill_interface_init".as_ptr());
            assert!(!init.is_null(), "the entry point is exported");
            std::mem::transmute::<*mut c_void, Init>(init)(flags.as_ptr(), table.as_mut_ptr());
            Self { table: table.assume_init(), version, _alone: Some(alone) }
        }
    }

    /// Moves the calling thread into a network namespace of its own; false if it may not.
    pub(crate) fn enter_namespace() -> bool {
        // SAFETY: only the calling thread changes its network namespace, and it holds no socket.
        unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
    }

    /// A socket that listens at [`PORT`].
    pub(crate) fn listen(&self) -> c_int {
        let table = &self.table;
        let (family, len) = self.sockaddr();
        let mut address = [0u8; 28];
        address[..2].copy_from_slice(&u16::try_from(family).unwrap().to_ne_bytes());
        address[2..4].copy_from_slice(&PORT.to_be_bytes());
        // SAFETY: the table's userdata, and an address of the length given.
        unsafe {
            let fd = (table.socket)(table.userdata, family, libc::SOCK_STREAM, 0);
            assert!(fd >= 0);
            let address = address.as_ptr().cast();
            assert_eq!((table.bind)(table.userdata, fd, address, len), 0);
            assert_eq!((table.listen)(table.userdata, fd, 5), 0);
            fd
        }
    }

    /// Family of the sockets, and the length of an address.
    fn sockaddr(&self) -> (c_int, socklen_t) {
        match self.version {
            Version::Ipv4 => (libc::AF_INET, 16),
            Version::Ipv6 | Version::Ipv4Mapped => (libc::AF_INET6, 28),
        }
    }

    pub(crate) fn accept(&self, listener: c_int) -> c_int {
        let mut address = [0u8; 28];
        let mut len = 28;
        // SAFETY: the table's userdata, and room for an address of the length given.
        let fd = unsafe {
            let address = address.as_mut_ptr().cast();
            (self.table.accept)(self.table.userdata, listener, address, &raw mut len)
        };
        let peer = self.version.socket_peer();
        // The address follows the port, and in an IPv6 structure the flow label.
        let at = if peer.len() == 4 { 4 } else { 8 };
        assert_eq!((len, &address[at..at + peer.len()]), (self.sockaddr().1, &peer[..]));
        fd
    }

    pub(crate) fn read(&self, fd: c_int, len: usize) -> Result<Vec<u8>, i32> {
        let mut buf = vec![0; len];
        // SAFETY: the table's userdata, and a buffer of the length given.
        let got =
            unsafe { (self.table.read)(self.table.userdata, fd, buf.as_mut_ptr().cast(), len) };
        buf.truncate(checked(got)?);
        Ok(buf)
    }

    pub(crate) fn write(&self, fd: c_int, bytes: &[u8]) -> Result<usize, i32> {
        // SAFETY: the table's userdata, and a buffer of the length given.
        checked(unsafe {
            (self.table.write)(self.table.userdata, fd, bytes.as_ptr().cast(), bytes.len())
        })
    }

    pub(crate) fn close(&self, fd: c_int) -> c_int {
        // SAFETY: the table's userdata.
        unsafe { (self.table.close)(self.table.userdata, fd) }
    }

    /// A segment of the peer arrives.
    pub(crate) fn deliver(&self, segment: &Segment) {
        let packet = segment.to_packet(self.version, PORT);
        // SAFETY: the table's userdata, and a packet of the length given.
        let sent = unsafe {
            (self.table.netdev_send)(self.table.userdata, packet.as_ptr().cast(), packet.len())
        };
        assert_eq!(sent, 0);
    }

    /// The next segment that the stack emits.
    pub(crate) fn next_packet(&self) -> Segment {
        let mut buf = vec![0u8; 70_000];
        let (mut len, mut time) = (buf.len(), 0);
        // SAFETY: the table's userdata, and a buffer of the length given.
        let received = unsafe {
            let buf = buf.as_mut_ptr().cast();
            (self.table.netdev_receive)(self.table.userdata, buf, &raw mut len, &raw mut time)
        };
        assert_eq!(received, 0);
        assert!(len > 0, "a packet within ten seconds");
        assert!(time > 0, "a packet has its time");
        Segment::from_packet(self.version, &buf[..len])
    }

    pub(crate) fn sleep(&self, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap();
        // SAFETY: the table's userdata.
        unsafe { (self.table.usleep)(self.table.userdata, micros) };
    }

    /// The clock, in microseconds.
    pub(crate) fn micros(&self) -> i64 {
        let mut now = libc::timeval { tv_sec: 0, tv_usec: 0 };
        // SAFETY: the table's userdata, and room for a time.
        unsafe {
            (self.table.gettimeofday)(self.table.userdata, &raw mut now, ptr::null_mut());
        }
        now.tv_sec * 1_000_000 + now.tv_usec
    }

    /// Waits, in real time, until another thread of this process sleeps in a call: as packetdrill
    /// does.
    pub(crate) fn await_sleeper(&self) {
        // What that thread does before it sleeps takes microseconds; too early costs the test
        // nothing but its point.
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the table's userdata, for the last time.
        unsafe { (self.table.free)(self.table.userdata) };
    }
}

fn checked(result: isize) -> Result<usize, i32> {
    usize::try_from(result)
        .map_err(|_| io::Error::last_os_error().raw_os_error().expect("an errno"))
}
