//! The seccomp filters: the system calls that a running stack needs.
//!
//! There are three filters; the kernel applies the strictest result. Calls that no thread of this
//! process has a reason for terminate the process with SIGSYS, which the shell and the audit log
//! report. Every other call that is not in the lists below fails with EPERM, so that a new C
//! library that tries another call continues, and strace shows the call. clone3(2) fails with
//! ENOSYS, so that the C library falls back to clone(2), whose flags a filter can check: with
//! clone3 a thread could create a user namespace and have all capabilities in it.
//!
//! The system calls of the data path have no rules about their arguments: from Linux 5.11 on the
//! kernel caches the result for such calls and does not run the filters.

use std::collections::BTreeMap;

use anyhow::Context as _;
use libc::{c_int, c_long};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

use super::{Files, Threads, is_lack};

/// Calls for frames, events and standard streams, and for their descriptors.
const DESCRIPTORS: &[c_long] = &[
    libc::SYS_close,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_lseek,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Calls for threads, signals, time, memory and random keys.
const PROCESS: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
];

/// Older forms of these calls, on processors that have them.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Calls that read files below `--dir`.
const READING: &[c_long] = &[
    libc::SYS_faccessat,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_statx,
];

/// Calls that store files below `--dir`. Newer architectures only have renameat2.
const STORING: &[c_long] =
    &[libc::SYS_linkat, libc::SYS_renameat, libc::SYS_renameat2, libc::SYS_unlinkat];

/// Calls that execute programs, take control of other processes or change the machine.
pub(super) const DEADLY: &[c_long] = &[
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_setns,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// ioctls for terminal detection and width, for unsent bytes of a socket, and for a check that a
/// tap queue still has its interface.
const IOCTLS: &[u64] = &[libc::TCGETS, libc::TIOCGWINSZ, libc::TIOCOUTQ, TUNGETIFF];

/// Number of TUNGETIFF in include/uapi/linux/if_tun.h: `_IOR('T', 210, unsigned int)`.
const TUNGETIFF: u64 = 0x8004_54d2;

/// prctls for thread and memory names, and for the timer slack of a worker.
const PRCTLS: &[c_int] = &[libc::PR_SET_NAME, libc::PR_SET_TIMERSLACK, libc::PR_SET_VMA];

pub(super) type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Sets the filters. `false`: the kernel has no filters, or this processor is not supported.
pub(super) fn restrict(threads: Threads, files: Files<'_>) -> anyhow::Result<bool> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(false) };
    for program in programs(files, arch)? {
        let applied = match threads {
            Threads::All => apply_filter_all_threads(&program),
            #[cfg(test)]
            Threads::Caller => seccompiler::apply_filter(&program),
        };
        match applied {
            Ok(()) => {}
            Err(Error::Seccomp(error) | Error::Prctl(error)) if is_lack(&error) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Returns the filters in the order in which they are set: the last one refuses further filters.
fn programs(files: Files<'_>, arch: TargetArch) -> anyhow::Result<[BpfProgram; 3]> {
    let errno = |errno: c_int| SeccompAction::Errno(errno.unsigned_abs());
    let deadly = unconditional(DEADLY).collect();
    let clone3 = unconditional(&[libc::SYS_clone3]).collect();
    let filters = [
        SeccompFilter::new(deadly, SeccompAction::Allow, SeccompAction::KillProcess, arch),
        SeccompFilter::new(clone3, SeccompAction::Allow, errno(libc::ENOSYS), arch),
        SeccompFilter::new(allowed(files)?, errno(libc::EPERM), SeccompAction::Allow, arch),
    ];
    let [deadly, clone3, allowed] = filters.map(|filter| {
        let filter = filter.context("a list of system calls")?;
        BpfProgram::try_from(filter).context("a filter of system calls")
    });
    Ok([deadly?, clone3?, allowed?])
}

/// Returns the allowed calls, with the rules about their arguments.
pub(super) fn allowed(files: Files<'_>) -> anyhow::Result<Rules> {
    let mut lists = vec![DESCRIPTORS, PROCESS, OLDER];
    if files.directory.is_some() {
        lists.push(READING);
    }
    if files.upload {
        lists.push(STORING);
    }
    let mut rules: Rules = lists.into_iter().flat_map(unconditional).collect();
    // Allowed here, because EPERM of this filter would override the ENOSYS of the filter for
    // clone3.
    rules.insert(libc::SYS_clone3, Vec::new());
    rules.insert(libc::SYS_clone, vec![rule(&[thread_flags()?])?]);
    let executable = u64::from(libc::PROT_EXEC.unsigned_abs());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![rule(&[argument(2, SeccompCmpOp::MaskedEq(executable), 0)?])?]);
    }
    rules.insert(libc::SYS_ioctl, one_of(1, IOCTLS.iter().copied())?);
    let options = PRCTLS.iter().map(|option| u64::from(option.unsigned_abs()));
    rules.insert(libc::SYS_prctl, one_of(0, options)?);
    // abort(3) signals its own thread.
    rules.insert(libc::SYS_tgkill, one_of(0, [u64::from(std::process::id())])?);
    rules.insert(libc::SYS_setsockopt, vec![rule(&read_timeout()?)?]);
    Ok(rules)
}

/// Allows a thread in the namespaces of its parent.
fn thread_flags() -> anyhow::Result<SeccompCondition> {
    let namespaces = libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWUTS;
    let seen = u64::from((libc::CLONE_THREAD | namespaces).cast_unsigned());
    argument(0, SeccompCmpOp::MaskedEq(seen), u64::from(libc::CLONE_THREAD.cast_unsigned()))
}

/// Allows SO_RCVTIMEO, which limits a wait for signals (`signal`).
fn read_timeout() -> anyhow::Result<[SeccompCondition; 2]> {
    let number = |number: c_int| u64::from(number.unsigned_abs());
    Ok([
        argument(1, SeccompCmpOp::Eq, number(libc::SOL_SOCKET))?,
        argument(2, SeccompCmpOp::Eq, number(libc::SO_RCVTIMEO))?,
    ])
}

fn unconditional(calls: &[c_long]) -> impl Iterator<Item = (i64, Vec<SeccompRule>)> {
    calls.iter().map(|call| (*call, Vec::new()))
}

/// Returns rules that allow a call if argument `index` has one of these values.
fn one_of(index: u8, values: impl IntoIterator<Item = u64>) -> anyhow::Result<Vec<SeccompRule>> {
    values.into_iter().map(|value| rule(&[argument(index, SeccompCmpOp::Eq, value)?])).collect()
}

fn rule(conditions: &[SeccompCondition]) -> anyhow::Result<SeccompRule> {
    SeccompRule::new(conditions.to_vec()).context("a rule about arguments")
}

/// Returns a condition on the low 32 bits of an argument: the kernel reads only those of these
/// arguments.
fn argument(index: u8, compare: SeccompCmpOp, value: u64) -> anyhow::Result<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, compare, value)
        .context("a condition about an argument")
}
