//! Our XDP program: five instructions, one of them two slots long, that hand the frames of our queues to our sockets, and everything else to the kernel.
//!
//! Above: `AfXdp::open`. Linux: bpf(2), Documentation/bpf/map_xskmap.rst, `bpf_xdp_link_attach`.
//!
//! The program is attached by a link, which is a descriptor: when it closes, also because the process was killed, the kernel
//! takes the program off the interface. Nothing is pinned.
//!
//! Not here: what a frame is (the program does not look), the sockets.

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

/// What `bpftool` and `ip link` show.
const NAME: [u8; BPF_OBJ_NAME_LEN] = *b"quietline_xsk\0\0\0";

/// The licence of the program. None of its helpers asks for another.
const LICENSE: &[u8; 18] = b"Apache-2.0 OR MIT\0";

/// Where the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hook {
    /// On finished socket buffers: works with every driver.
    Generic,
    /// In the driver.
    Native,
}

/// The program with its map, loaded but nowhere attached.
#[derive(Debug)]
pub(super) struct Program {
    map: OwnedFd,
    program: OwnedFd,
}

/// The program on an interface, for as long as this lives.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
}

impl Program {
    /// Loads it, with room for sockets on queues below `queues`.
    ///
    /// # Errors
    /// No privilege, or a kernel without XSKMAP.
    pub(super) fn load(queues: u32) -> Result<Self, SetupError> {
        let map = create_map(queues).map_err(|e| refused("make a map of AF_XDP sockets", e))?;
        let program =
            load(&instructions(map.as_raw_fd())).map_err(|e| refused("load an XDP program", e))?;
        Ok(Self { map, program })
    }

    /// Lets frames of `queue` go to `socket`.
    pub(super) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let value = number(socket.as_raw_fd());
        let mut update = MapUpdate {
            map_fd: number(self.map.as_raw_fd()),
            key: address_of(&queue),
            value: address_of(&value),
            ..MapUpdate::default()
        };
        // SAFETY: the kernel reads a key and a value of four bytes each, which is what the map was made for; both live until
        // the call returns.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut update) }.map(drop)
    }

    /// Puts it on an interface.
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

/// `redirect_map(sockets, ctx->rx_queue_index, XDP_PASS)`: the last argument is what to do where there is no socket.
fn instructions(map: c_int) -> [Insn; 6] {
    /// `dst = *(u32 *)(src + offset)`.
    const LOAD_WORD: u8 = 0x61;
    /// `dst = immediate`, 64 bits in two slots. A source of 1 means that the immediate is a map's descriptor.
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
    // SAFETY: the pointers are to `insn_cnt` instructions and to a text with a closing zero, which live until the call
    // returns; the log has no room and is not written.
    unsafe { bpf_fd(BPF_PROG_LOAD, &mut load) }
}

/// A command that answers with a descriptor, close-on-exec as all of bpf(2)'s are.
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_fd<T>(command: c_int, attribute: &mut T) -> Result<OwnedFd, Errno> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attribute) }?;
    // SAFETY: the kernel has just made it for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bpf(2).
///
/// # Safety
/// `T` is the structure of `command`, and what its pointers point to is as the command wants it until the call returns.
unsafe fn bpf<T>(command: c_int, attribute: &mut T) -> Result<c_int, Errno> {
    let attribute: *mut T = attribute;
    // SAFETY: the kernel reads and writes at most the given size, which is the attribute's; the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute, size_of::<T>()) };
    match c_int::try_from(result) {
        Ok(value) if value >= 0 => Ok(value),
        _ => {
            let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            Err(Errno::from_raw_os_error(number))
        }
    }
}

/// A pointer as the kernel takes it in a structure.
fn address_of<T: ?Sized>(value: &T) -> u64 {
    std::ptr::from_ref(value).cast::<u8>().expose_provenance() as u64
}

/// A descriptor in a field without sign.
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
