use std::{
    fs::{self, File},
    io::ErrorKind,
    net::UdpSocket,
    os::{
        fd::AsFd as _,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    panic::resume_unwind,
    process::Command,
    thread,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, mkdirat, openat, renameat, unlinkat},
    io::Errno,
    thread::capabilities,
};

use super::*;

/// Runs `test` on a new thread, so that its sandbox does not affect other tests.
fn alone(test: impl FnOnce() + Send + 'static) {
    if let Err(panic) = thread::spawn(test).join() {
        resume_unwind(panic);
    }
}

#[test]
fn one_line_names_all_missing_mechanisms() {
    assert_eq!(warning(&[]), None);
    let line = warning(&[Mechanism::Landlock, Mechanism::Seccomp]).expect("a warning");
    assert!(
        line.contains("Landlock") && line.contains("seccomp") && !line.contains('\n'),
        "{line}"
    );
}

#[test]
fn dropping_capabilities_empties_all_sets_of_the_thread() {
    alone(|| {
        capabilities::drop_all().expect("dropping capabilities needs no privilege");
        let sets = capabilities(None).expect("capget");
        assert!(sets.effective.is_empty() && sets.permitted.is_empty());
        assert!(sets.inheritable.is_empty());
    });
}

#[test]
fn only_the_directory_can_be_opened() {
    // This thread has no sandbox and removes the directory at the end.
    let dir = tempfile::tempdir().expect("a place");
    let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
    alone(move || {
        fs::create_dir(&inside).expect("a directory");
        fs::write(inside.join("file"), "text").expect("a file");
        fs::write(&outside, "text").expect("a file");
        let open = File::open(&outside).expect("a file");
        let directory = File::open(&inside).expect("a directory");
        let files = Files { directory: Some(directory.as_fd()), upload: false };
        if !files::restrict(files).expect("rules") {
            return eprintln!("skipped: this kernel has no Landlock");
        }
        assert_eq!(fs::read(inside.join("file")).expect("a file of the directory"), b"text");
        let refused = fs::read(&outside).expect_err("another file");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        let refused = fs::write(inside.join("new"), "text").expect_err("no upload");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
        // Files that were opened before stay open, such as that of a capture.
        assert_eq!(open.metadata().expect("an open file").len(), 4);
    });
}

#[test]
fn an_upload_is_stored_and_replaced_in_the_sandbox() {
    let dir = tempfile::tempdir().expect("a place");
    let directory = File::open(dir.path()).expect("a directory");
    alone(move || {
        let files = Files { directory: Some(directory.as_fd()), upload: true };
        enter_on(Threads::Caller, files).expect("a sandbox");
        let open = |name, flags| openat(&directory, name, OFlags::WRONLY | flags, Mode::RUSR);
        open(".", OFlags::TMPFILE).expect("a file without a name");
        open("a", OFlags::CREATE).expect("a file");
        renameat(&directory, "a", &directory, "b").expect("another name");
        unlinkat(&directory, "b", AtFlags::empty()).expect("removed");
        mkdirat(&directory, "c", Mode::RWXU).expect_err("a directory");
    });
}

#[test]
fn other_system_calls_are_refused_and_threads_start() {
    alone(|| {
        let missing = enter_on(Threads::Caller, Files::default()).expect("a sandbox");
        if missing.contains(&Mechanism::Seccomp) {
            return eprintln!("skipped: this kernel has no seccomp filters");
        }
        let refused = UdpSocket::bind("127.0.0.1:0").expect_err("no new socket");
        assert_eq!(refused.raw_os_error(), Some(Errno::PERM.raw_os_error()));
        // A new thread inherits the sandbox.
        let opened = thread::spawn(|| File::open("/proc/self/status").map(drop));
        let refused = opened.join().expect("a thread").expect_err("no file");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    });
}

#[test]
fn file_system_calls_are_allowed_only_if_a_directory_is_served() {
    let allowed = |files| calls::allowed(files).expect("rules");
    let directory = File::open("/").expect("a directory");
    let reading = Files { directory: Some(directory.as_fd()), upload: false };
    let storing = Files { upload: true, ..reading };
    assert!(!allowed(Files::default()).contains_key(&libc::SYS_openat));
    assert!(allowed(reading).contains_key(&libc::SYS_openat));
    assert!(!allowed(reading).contains_key(&libc::SYS_linkat));
    assert!(allowed(storing).contains_key(&libc::SYS_linkat));
    assert!(calls::DEADLY.iter().all(|call| !allowed(storing).contains_key(call)));
}

/// Environment variable that marks the child process, which runs the sandboxed part of the test.
const CHILD: &str = "QUIETLINE_TEST_EXECUTES";

#[test]
fn executing_a_program_terminates_the_process() {
    if std::env::var_os(CHILD).is_some() {
        enter_on(Threads::All, Files::default()).expect("a sandbox");
        panic!("still there: {}", Command::new("true").exec());
    }
    let test = "sandbox::tests::executing_a_program_terminates_the_process";
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args(["--exact", test]).env(CHILD, "1").output();
    let status = output.expect("a process").status;
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status:?}");
}
