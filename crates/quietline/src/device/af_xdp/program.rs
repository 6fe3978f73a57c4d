//! The XDP program: five instructions, one of them two slots long, which direct the frames of the
//! device's queues to its sockets, and all other frames to the kernel.
//!
//! Above: `AfXdp::open`. Linux: bpf(2), Documentation/bpf/map_xskmap.rst, `bpf_xdp_link_attach`.
//!
//! The program is attached by a link, which is a descriptor: when it is closed, also because the
//! process was killed, the kernel detaches the program from the interface. Nothing is pinned.
//!
//! Not here: frames (the program does not read them), the sockets.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::super::interface::Interface;
use super::super::setup_error::SetupError;
use super::abi::{
    BPF_FUNC_REDIRECT_MAP, BPF_LINK_CREATE, BPF_MAP_CREATE, BPF_MAP_TYPE_XSKMAP,
    BPF_MAP_UPDATE_ELEM, BPF_OBJ_NAME_LEN, BPF_PROG_LOAD, BPF_PROG_TYPE_XDP, BPF_XDP, Insn,
    LinkCreate, MapCreate, MapUpdate, ProgLoad, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE,
    XDP_MD_RX_QUEUE_INDEX, XDP_PASS,
};

/// Name of the program and its map, as `bpftool` and `ip link` show it.
const NAME: [u8; BPF_OBJ_NAME_LEN] = *b"quietline_xsk\0\0\0";

/// License of the program. Its helpers need no other.
const LICENSE: &[u8; 18] = b"Apache-2.0 OR MIT\0";

/// Hook that the program is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// On socket buffers: works with every driver.
    Generic,
    /// In the driver.
    Native,
}

/// The loaded program and its map, not attached.
#[derive(Debug)]
pub(super) struct Program {
    map: OwnedFd,
    program: OwnedFd,
}

/// The attachment of the program to an interface. Dropping it detaches the program.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
}

impl Program {
    /// Loads the program, with room for sockets of queues below `queues`.
    ///
    /// # Errors
    /// Without the privilege, or if the kernel has no XSKMAP.
    pub(super) fn load(queues: u32) -> Result<Self, SetupError> {
        let map = create_map(queues).map_err(|e| refused("make a map of AF_XDP sockets", e))?;
        let program =
            load(&instructions(map.as_raw_fd())).map_err(|e| refused("load an XDP program", e))?;
        Ok(Self { map, program })
    }

    /// Directs the frames of `queue` to `socket`.
    pub(super) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let value = number(socket.as_raw_fd());
        let mut update = MapUpdate {
            map_fd: number(self.map.as_raw_fd()),
            key: address_of(&queue),
            value: address_of(&value),
            ..MapUpdate::default()
        };
        // SAFETY: the kernel reads a key and a value of four bytes each, the sizes that the map was
        // created with; both live until the call returns.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
    }

    /// Attaches the program to an interface.
    pub(super) fn attach(&self, interface: &Interface, hook: Hook) -> Result<Attached, Errno> {
        let mut create = LinkCreate {
            prog_fd: number(self.program.as_raw_fd()),
            target_ifindex: interface.index,
            attach_type: BPF_XDP,
            flags: match hook {
                Hook::Generic => XDP_FLAGS_SKB_MODE,
                Hook::Native => XDP_FLAGS_DRV_MODE,
            },
        };
        // SAFETY: the attribute has no pointers.
        unsafe { bpf_fd(BPF_LINK_CREATE, &mut create) }.map(|link| Attached { _link: link })
    }
}

/// Returns `redirect_map(sockets, ctx->rx_queue_index, XDP_PASS)`. The last argument is the action
/// for a queue without a socket.
fn instructions(map: c_int) -> [Insn; 6] {
    /// `dst = *(u32 *)(src + offset)`.
    const LOAD_WORD: u8 = 0x61;
    /// `dst = immediate`, 64 bits in two slots. A source of 1 means that the immediate is a map's
    /// descriptor.
    const LOAD_IMMEDIATE: u8 = 0x18;
    /// `dst = immediate`.
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    [
        Insn::new(LOAD_WORD, 2, 1, XDP_MD_RX_QUEUE_INDEX, 0),
        Insn::new(LOAD_IMMEDIATE, 1, 1, 0, map),
        Insn::new(0, 0, 0, 0, 0),
        Insn::new(MOVE, 3, 0, 0, XDP_PASS),
        Insn::new(CALL, 0, 0, 0, BPF_FUNC_REDIRECT_MAP),
        Insn::new(EXIT, 0, 0, 0, 0),
    ]
}

fn create_map(entries: u32) -> Result<OwnedFd, Errno> {
    let mut create = MapCreate {
        map_type: BPF_MAP_TYPE_XSKMAP,
        key_size: 4,
        value_size: 4,
        max_entries: entries,
        map_name: NAME,
        ..MapCreate::default()
    };
    // SAFETY: the attribute has no pointers.
    unsafe { bpf_fd(BPF_MAP_CREATE, &mut create) }
}

fn load(instructions: &[Insn]) -> Result<OwnedFd, Errno> {
    let mut load = ProgLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: u32::try_from(instructions.len()).map_err(|_| Errno::TOOBIG)?,
        insns: address_of(&instructions[0]),
        license: address_of(LICENSE),
        prog_name: NAME,
        expected_attach_type: BPF_XDP,
        ..ProgLoad::default()
    };
    // SAFETY: the pointers refer to `insn_cnt` instructions and to a zero-terminated text, which
    // live until the call returns; the log has length zero and is not written.
    unsafe { bpf_fd(BPF_PROG_LOAD, &mut load) }
}

/// Runs a command that returns a descriptor, close-on-exec as all descriptors of bpf(2).
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_fd<T>(command: c_int, attribute: &mut T) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller keeps the contract of `bpf`.
    let fd = unsafe { bpf(command, attribute) }?;
    // SAFETY: the kernel has just created the descriptor, and no other code uses it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bpf(2).
///
/// # Safety
/// `T` must be the structure of `command`, and the targets of its pointers must be valid for the
/// command until the call returns.
unsafe fn bpf<T>(command: c_int, attribute: &mut T) -> Result<c_int, Errno> {
    let attribute: *mut T = attribute;
    // SAFETY: the kernel reads and writes at most the given size, which is the attribute's; the
    // caller guarantees the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute, size_of::<T>()) };
    match c_int::try_from(result) {
        Ok(value) if value >= 0 => Ok(value),
        _ => {
            let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            Err(Errno::from_raw_os_error(number))
        }
    }
}

/// Returns a pointer in the form of the kernel's structures.
fn address_of<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>().expose_provenance() as u64
}

/// Returns a descriptor as an unsigned field.
const fn number(fd: c_int) -> u32 {
    fd.cast_unsigned()
}

fn refused(step: &str, errno: Errno) -> SetupError {
    let error = SetupError::system(step, errno.raw_os_error());
    match errno {
        Errno::PERM | Errno::ACCESS => {
            error.with_hint("needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF (run as root)")
        }
        Errno::NOSYS => error.with_hint("the kernel has no bpf(2) (CONFIG_BPF_SYSCALL)"),
        Errno::INVAL => {
            error.with_hint("the kernel has no AF_XDP (CONFIG_XDP_SOCKETS) or is older than 5.9")
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_those_of_the_manual() {
        let little = cfg!(target_endian = "little");
        let codes = instructions(7).map(|insn| insn.code);
        assert_eq!(codes, [0x61, 0x18, 0, 0xb7, 0x85, 0x95]);
        let registers = instructions(7).map(|insn| insn.registers);
        assert_eq!(
            registers,
            if little { [0x12, 0x11, 0, 3, 0, 0] } else { [0x21, 0x11, 0, 0x30, 0, 0] }
        );
        assert_eq!(instructions(7)[1].immediate, 7);
        assert_eq!(instructions(7)[0].offset, 16);
    }
}
