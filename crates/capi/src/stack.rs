//! Stacks: building, running and freeing them.

use std::{
    ffi::{c_char, c_int},
    fmt::Display,
    os::fd::{FromRawFd as _, OwnedFd},
    str::FromStr,
};

use ql::{
    Stack, StackBuilder,
    device::{Tun, TunConfig, TunFdConfig, TunKind},
};
use quietline_config::{Host, dhcp};

use crate::boundary::{Failure, answer, caught, handle, last_text, one, one_mut, string, zero};

/// A stack that is being built.
#[derive(Debug)]
pub struct QlBuilder {
    /// `None` after a panic within a method of the builder.
    builder: Option<StackBuilder>,
    /// Devices with a DHCP client, from a host file.
    dhcp: Vec<(String, dhcp::ClientConfig)>,
}

/// A running stack.
#[derive(Debug)]
pub struct QlStack {
    pub(crate) stack: Stack,
    /// Keeps the leases of the devices.
    _dhcp: Option<dhcp::Service>,
}

impl QlBuilder {
    /// Passes the builder through one of its methods.
    fn change(&mut self, change: impl FnOnce(StackBuilder) -> StackBuilder) -> Result<(), Failure> {
        let builder = self.builder.take();
        self.builder = Some(change(builder.ok_or(Failure::number(libc::EINVAL))?));
        Ok(())
    }
}

/// Returns a line of text about the last call of this thread that has failed to build a stack, to
/// open a device or to set a value. The text is valid until the next such call.
#[unsafe(no_mangle)]
pub extern "C" fn ql_error() -> *const c_char {
    last_text()
}

/// Returns a builder of a stack with loopback, 127.0.0.1 and ::1.
#[unsafe(no_mangle)]
pub extern "C" fn ql_builder_new() -> *mut QlBuilder {
    handle(|| Ok(Box::new(QlBuilder { builder: Some(Stack::builder()), dhcp: Vec::new() })))
}

/// Returns a builder of the stack that `text` describes, in TOML (docs/host-file.md), and opens its
/// devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_from_toml(text: *const c_char) -> *mut QlBuilder {
    handle(|| {
        // SAFETY: (d).
        let host = Host::parse(unsafe { string(text) }?).map_err(Failure::invalid)?;
        let builder = host.open(|_| {}).map_err(|error| {
            let errno = error.error.errno();
            Failure::text(errno, error)
        })?;
        Ok(Box::new(QlBuilder { builder: Some(builder), dhcp: host.dhcp_clients() }))
    })
}

/// Passes the builder behind a handle through one of its methods, with the value that `parse`
/// returns. An error leaves the builder as it was.
///
/// # Safety
/// `builder` is as (a).
unsafe fn change<T>(
    builder: *mut QlBuilder,
    parse: impl FnOnce() -> Result<T, Failure>,
    change: impl FnOnce(StackBuilder, T) -> StackBuilder,
) -> c_int {
    answer(|| {
        // SAFETY: (a); a builder is used by one thread at a time.
        let builder = unsafe { one_mut(builder) }?;
        let value = parse()?;
        builder.change(|own| change(own, value)).map(zero)
    })
}

/// Parses a text of the program.
///
/// # Safety
/// `text` is as (d).
unsafe fn parsed<T: FromStr>(name: &str, text: *const c_char) -> Result<T, Failure>
where
    T::Err: Display,
{
    // SAFETY: (d).
    let text = unsafe { string(text) }?;
    text.parse().map_err(|error| Failure::invalid(format!("{name} {text}: {error}")))
}

/// Sets the name of the stack in messages and thread names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_name(builder: *mut QlBuilder, name: *const c_char) -> c_int {
    // SAFETY: (a) and (d).
    unsafe { change(builder, || string(name), |own, name| own.name(name)) }
}

/// Adds a tap with the interface name `name`, which is created and exists as long as the stack.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_tap(builder: *mut QlBuilder, name: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { add_tun(builder, name, TunConfig::tap) }
}

/// Adds a tun with the interface name `name`, as `ql_builder_tap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_tun(builder: *mut QlBuilder, name: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { add_tun(builder, name, TunConfig::tun) }
}

/// # Safety
/// As (a) and (d).
unsafe fn add_tun(
    builder: *mut QlBuilder,
    name: *const c_char,
    config: impl FnOnce(&str) -> TunConfig,
) -> c_int {
    answer(|| {
        // SAFETY: (a) and (d).
        let (builder, name) = unsafe { (one_mut(builder)?, string(name)?) };
        let device = Tun::create(&config(name)).map_err(|error| {
            let errno = error.errno();
            Failure::text(errno, error)
        })?;
        builder.change(|own| own.device(device)).map(zero)
    })
}

/// Adds a tun or tap of a descriptor of /dev/net/tun that is attached to its interface. `is_tap`
/// says which of both it is. An `mtu` of 0 reads the MTU from the kernel. The library closes the
/// descriptor, also if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_fd(
    builder: *mut QlBuilder,
    fd: c_int,
    is_tap: c_int,
    mtu: u32,
) -> c_int {
    answer(|| {
        // SAFETY: F_GETFD takes its arguments by value.
        if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(Failure::number(libc::EBADF));
        }
        // SAFETY: the descriptor is open, and the caller gives it to this call.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: (a).
        let builder = unsafe { one_mut(builder) }?;
        let kind = if is_tap == 0 { TunKind::Tun } else { TunKind::Tap };
        let config = TunFdConfig { mtu: (mtu != 0).then_some(mtu), ..TunFdConfig::default() };
        let device = Tun::from_fds(kind, vec![fd], &config).map_err(|error| {
            let errno = error.errno();
            Failure::text(errno, error)
        })?;
        builder.change(|own| own.device(device)).map(zero)
    })
}

/// Adds an address with its prefix length to the last device: "10.0.0.1/24".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_address(
    builder: *mut QlBuilder,
    address: *const c_char,
) -> c_int {
    // SAFETY: (a) and (d).
    unsafe { change(builder, || parsed("address", address), StackBuilder::address) }
}

/// Adds the default route of the address family of `gateway`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_gateway(
    builder: *mut QlBuilder,
    gateway: *const c_char,
) -> c_int {
    // SAFETY: (a) and (d).
    unsafe { change(builder, || parsed("gateway", gateway), StackBuilder::gateway) }
}

/// Adds a route in the syntax of `ip route add`: "192.0.2.0/24 via 10.0.0.2 metric 7".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_route(builder: *mut QlBuilder, route: *const c_char) -> c_int {
    // SAFETY: (a) and (d).
    unsafe { change(builder, || parsed("route", route), StackBuilder::add_route) }
}

/// Sets a setting by its name (docs/sysctl.md). A name that does not exist and a value that is not
/// allowed are errors of `ql_builder_build`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_sysctl(
    builder: *mut QlBuilder,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: (a) and (d).
    unsafe {
        let parse = || Ok((string(name)?, string(value)?));
        change(builder, parse, |own, (name, value)| own.sysctl(name, value))
    }
}

/// Sets the number of cores, 1 to 64. Default: 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_cores(builder: *mut QlBuilder, cores: u16) -> c_int {
    // SAFETY: (a).
    unsafe { change(builder, || Ok(cores), StackBuilder::cores) }
}

/// Bounds the memory of the stack, in bytes: packets, buffers and connections together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_memory(builder: *mut QlBuilder, bytes: usize) -> c_int {
    // SAFETY: (a).
    unsafe { change(builder, || Ok(ql::Budget::bytes(bytes)), StackBuilder::memory) }
}

/// Starts no worker threads: the stack runs in `ql_stack_poll`, in socket calls and in calls of
/// ports only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_manual(builder: *mut QlBuilder) -> c_int {
    // SAFETY: (a).
    unsafe { change(builder, || Ok(()), |own, ()| own.manual()) }
}

/// Adds a device to the builder behind a handle.
///
/// # Safety
/// `builder` is as (a).
pub(crate) unsafe fn add_device(
    builder: *mut QlBuilder,
    device: ql::Attachment,
) -> Result<(), Failure> {
    // SAFETY: (a).
    let builder = unsafe { one_mut(builder) }?;
    builder.change(|own| own.device(device))
}

/// Builds the stack and frees the builder, also if the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_build(builder: *mut QlBuilder) -> *mut QlStack {
    handle(|| {
        if builder.is_null() {
            return Err(Failure::number(libc::EFAULT));
        }
        // SAFETY: not null, by (a) a handle of `handle`, and the caller gives it to this call.
        let QlBuilder { builder, dhcp } = *unsafe { Box::from_raw(builder) };
        let stack = builder.ok_or(Failure::number(libc::EINVAL))?.build()?;
        let service = match dhcp.is_empty() {
            true => None,
            false => Some(dhcp::Service::start(&stack, &dhcp, |_| {})?),
        };
        Ok(Box::new(QlStack { stack, _dhcp: service }))
    })
}

/// Frees a builder without building a stack. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_builder_free(builder: *mut QlBuilder) {
    // SAFETY: (a), and this is the last call with the handle.
    unsafe { free(builder) }
}

/// Ends a stack: its connections are aborted, and calls on its sockets fail. The sockets still have
/// to be closed. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_stack_free(stack: *mut QlStack) {
    // SAFETY: (a).
    if let Some(stack) = unsafe { stack.as_ref() } {
        let _ = caught(|| {
            stack.stack.shutdown();
            Ok(())
        });
    }
    // SAFETY: (a), and this is the last call with the handle.
    unsafe { free(stack) }
}

/// Drops the object behind a handle.
///
/// # Safety
/// As (a), and no other call uses the handle.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    // SAFETY: not null, a pointer of `Box::into_raw` by (a), and used for the last time.
    let object = unsafe { Box::from_raw(handle) };
    let _ = caught(|| {
        drop(object);
        Ok(())
    });
}

/// Runs all pending work of a stack without workers. Returns the time in nanoseconds after which
/// the stack must be polled again, even if no frame arrives; `INT64_MAX` if no timer is armed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_stack_poll(stack: *const QlStack) -> i64 {
    answer(|| {
        // SAFETY: (a).
        let stack = unsafe { one(stack) }?;
        let next = stack.stack.poll();
        Ok(next.map_or(i64::MAX, |next| i64::try_from(next.as_nanos()).unwrap_or(i64::MAX)))
    })
}

/// Changes a setting of a running stack, as `sysctl -w` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_stack_set_sysctl(
    stack: *const QlStack,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    answer(|| {
        // SAFETY: (a) and (d).
        let (stack, name, value) = unsafe { (one(stack)?, string(name)?, string(value)?) };
        stack.stack.set_sysctl(name, value)?;
        Ok(0)
    })
}

/// Reads a counter by the name that nstat prints (docs/counters.md). `ENOENT` for a name that does
/// not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ql_stack_counter(
    stack: *const QlStack,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: (a), (d) and (c).
        let (stack, name, value) = unsafe { (one(stack)?, string(name)?, one_mut(value)?) };
        *value = stack.stack.counters().get(name).ok_or(Failure::number(libc::ENOENT))?;
        Ok(0)
    })
}
