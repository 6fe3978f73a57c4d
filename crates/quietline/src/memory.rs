//! The packet memory of the process, and its bound.
//!
//! All stacks of a process share it. The bound reserves nothing: memory is allocated as packets
//! need it. At the bound, packets to be sent are dropped and counted (`DropReason::NoMemory`) and
//! devices stop receiving, before the machine or the cgroup runs out of memory and the kernel kills
//! the process. Default: a quarter of the machine's memory, or half of the limit of the process's
//! cgroup if that is less.
//!
//! Not here: the share that connections may hold (`net.ipv4.tcp_mem`), which follows from the
//! bound.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use stack::{Memory, base::config_error::ConfigError};

use crate::{housekeeping, pages::Pages};

/// Smallest bound, in bytes: a thread that sends takes slabs of 64 KiB and pages of 32 KiB.
const BYTES_MIN: usize = 16 << 20;

/// A limit of cgroup v1 from here on means no limit: it is `i64::MAX` rounded down to pages.
const CGROUP_V1_NO_LIMIT: u64 = 1 << 62;

static MEMORY: OnceLock<Memory> = OnceLock::new();

/// Returns the memory that every context and host of the process shares.
pub(crate) fn memory() -> &'static Memory {
    MEMORY.get_or_init(|| new(default_bytes()))
}

/// Fixes the bound of the process's packet memory, which otherwise happens when the first stack is
/// built. Uses the default of [`StackBuilder::packet_memory`](crate::StackBuilder::packet_memory)
/// unless a bound was set. Returns the bound in bytes.
///
/// The default depends on files of `/proc` and of the cgroup, so a program that gives up access to
/// files calls this function before.
pub fn decide_packet_memory() -> usize {
    memory().packets.max_bytes()
}

/// Sets the bound of the process's packet memory to `bytes`. Fails if another stack has fixed a
/// different bound, because its packets exist already.
pub(crate) fn set_limit(bytes: usize) -> Result<(), ConfigError> {
    if bytes < BYTES_MIN {
        let allowed = format!("{BYTES_MIN} bytes (16 MiB) or more");
        return Err(ConfigError::new("packet_memory", bytes, allowed));
    }
    let present = MEMORY.get_or_init(|| new(bytes)).packets.max_bytes();
    if present != bytes {
        let allowed = format!("{present} bytes, which another stack of this process decided");
        return Err(ConfigError::new("packet_memory", bytes, allowed));
    }
    Ok(())
}

fn new(bytes_max: usize) -> Memory {
    let memory = Memory::with_source(bytes_max, &Pages);
    memory.rcu.set_on_waiting(housekeeping::request);
    memory
}

fn default_bytes() -> usize {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let proc = |name: &str| read(&Path::new("/proc/self").join(name)).unwrap_or_default();
    let cgroup = cgroup_limit(&proc("cgroup"), &proc("mountinfo"), read);
    let info = rustix::system::sysinfo();
    let total = info.totalram.saturating_mul(u64::from(info.mem_unit));
    bytes_for(total, cgroup)
}

/// Returns the bound on a machine with `total` bytes, in a cgroup with limit `cgroup`.
fn bytes_for(total: u64, cgroup: Option<u64>) -> usize {
    let bytes = cgroup.map_or(total / 4, |limit| (total / 4).min(limit / 2));
    usize::try_from(bytes).unwrap_or(usize::MAX).max(BYTES_MIN)
}

/// Returns the smallest memory limit of the process's cgroup and its ancestors, in bytes. `cgroups`
/// and `mounts` are the contents of `/proc/self/cgroup` and `/proc/self/mountinfo` (proc(5),
/// cgroups(7)), of version 1 and 2.
fn cgroup_limit(
    cgroups: &str,
    mounts: &str,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let mut least = None;
    for mount in mounts.lines().filter_map(Mount::parse) {
        let own = cgroups.lines().find_map(|line| mount.cgroup_of(line));
        let own = mount.point.join(own.unwrap_or_default());
        for directory in own.ancestors().take_while(|path| path.starts_with(&mount.point)) {
            let text = read(&directory.join(mount.file)).unwrap_or_default();
            // The text "max" is not a number and means no limit.
            let limit = text.trim().parse::<u64>().ok().filter(|limit| *limit < CGROUP_V1_NO_LIMIT);
            least = least.into_iter().chain(limit).min();
        }
    }
    least
}

/// A mounted cgroup hierarchy that has the memory controller.
struct Mount<'a> {
    point: PathBuf,
    /// The cgroup at the mount point.
    root: &'a str,
    /// Version 1: `/proc/self/cgroup` names its controllers.
    is_v1: bool,
    file: &'static str,
}

impl<'a> Mount<'a> {
    /// Parses a line of mountinfo:
    /// `ID PARENT DEVICE ROOT POINT OPTIONS [FIELDS] - TYPE SOURCE SUPER_OPTIONS`.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, PathBuf::from(mount.next()?));
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        match kind {
            "cgroup2" => Some(Self { point, root, is_v1: false, file: "memory.max" }),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                Some(Self { point, root, is_v1: true, file: "memory.limit_in_bytes" })
            }
            _ => None,
        }
    }

    /// Returns the path below the mount point, if `line` of `/proc/self/cgroup` belongs to this
    /// hierarchy: `ID:CONTROLLERS:PATH`.
    fn cgroup_of(&self, line: &str) -> Option<PathBuf> {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_ours = match self.is_v1 {
            true => controllers.split(',').any(|controller| controller == "memory"),
            false => controllers.is_empty(),
        };
        // A process outside of the mounted root cannot see its own limit.
        let below = Path::new(path).strip_prefix(self.root).ok()?;
        is_ours.then(|| below.to_path_buf())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{BYTES_MIN, bytes_for, cgroup_limit, memory, set_limit};

    const GIB: u64 = 1 << 30;

    /// Returns the limit that the given files, with their contents, describe.
    fn limit(cgroups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        cgroup_limit(cgroups, mounts, |path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| String::from(*text))
        })
    }

    #[test]
    fn the_bound_is_the_least_of_a_quarter_of_the_machine_and_half_of_the_cgroup() {
        let bytes = |total, cgroup| u64::try_from(bytes_for(total, cgroup)).unwrap();
        assert_eq!(bytes(16 * GIB, None), 4 * GIB);
        assert_eq!(bytes(2 * GIB, None), GIB / 2);
        assert_eq!(bytes(16 * GIB, Some(GIB)), GIB / 2);
        assert_eq!(bytes(16 * GIB, Some(100 * GIB)), 4 * GIB);
        assert_eq!(bytes_for(0, Some(0)), BYTES_MIN);
    }

    #[test]
    fn version_2_takes_the_least_limit_up_to_the_mount_point() {
        let mounts = "24 1 0:21 / /proc rw - proc proc rw\n\
            30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("/sys/fs/cgroup/other/memory.max", "1\n"),
        ];
        assert_eq!(limit("0::/a/b\n", mounts, &files), Some(GIB));
        assert_eq!(limit("0::/\n", mounts, &files), None);
        assert_eq!(limit("0::/a/b\n", "", &files), None);
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_for_memory() {
        let mounts = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let cgroups = "5:cpu:/wrong\n4:memory:/box\n0::/new\n";
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "536870912\n"),
            ("/sys/fs/cgroup/memory/wrong/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(limit(cgroups, mounts, &files), Some(GIB / 2));
        assert_eq!(limit(cgroups, mounts, &files[..1]), None);
    }

    #[test]
    fn a_container_sees_its_own_cgroup_at_the_mount_point() {
        let mounts = "32 24 0:28 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "2147483648\n"),
        ];
        assert_eq!(limit("4:memory:/docker/1f/sub\n", mounts, &files), Some(GIB));
        // A cgroup namespace, or a process that was moved to another cgroup.
        assert_eq!(limit("4:memory:/\n", mounts, &files), Some(GIB));
    }

    #[test]
    fn the_first_stack_fixes_the_bound() {
        let present = memory().packets.max_bytes();
        assert!(present >= BYTES_MIN);
        assert!(set_limit(present).is_ok());
        let refused = set_limit(present + 1).expect_err("another bound");
        assert!(refused.to_string().contains("another stack of this process"), "{refused}");
        let refused = set_limit(BYTES_MIN - 1).expect_err("too little");
        assert!(refused.to_string().contains("16 MiB"), "{refused}");
    }
}
