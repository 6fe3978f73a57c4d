//! Programs in C and Python against the library, dynamic and static, and under valgrind.

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        path::{Path, PathBuf},
        process::Command,
    };

    const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

    /// The folder of the libraries that cargo has built for this test.
    fn libraries() -> PathBuf {
        let test = std::env::current_exe().expect("a path");
        test.parent().expect("a folder").to_owned()
    }

    /// Whether a program is missing. In CI, where no test may be skipped, it must not be.
    fn lacks(program: &str) -> bool {
        if Command::new(program).arg("--version").output().is_ok() {
            return false;
        }
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{program} is missing");
        println!("skipped: {program} is missing");
        true
    }

    /// Runs a command, and returns what it prints.
    #[track_caller]
    fn run(command: &mut Command) -> String {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
        String::from_utf8(output.stdout).expect("text")
    }

    /// Compiles a C program of this crate and links it with the library.
    #[track_caller]
    fn compile(source: &str, name: &str, link: &[&OsStr]) -> PathBuf {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"];
        let source = Path::new(FOLDER).join(source);
        run(Command::new("cc")
            .args(flags)
            .arg("-I")
            .arg(Path::new(FOLDER).join("include"))
            .arg(source)
            .args(link)
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program));
        program
    }

    fn shared() -> [std::ffi::OsString; 4] {
        let folder = libraries();
        let mut rpath = std::ffi::OsString::from("-Wl,-rpath,");
        rpath.push(&folder);
        ["-L".into(), folder.into(), "-lquietline".into(), rpath]
    }

    #[track_caller]
    fn compile_shared(source: &str, name: &str) -> PathBuf {
        let link = shared();
        let link: Vec<&OsStr> = link.iter().map(AsRef::as_ref).collect();
        compile(source, name, &link)
    }

    #[test]
    fn a_c_program_calls_the_shared_library() {
        let program = compile_shared("tests/c/calls.c", "calls");
        assert_eq!(run(&mut Command::new(program)), "ok\n");
    }

    #[test]
    fn a_c_program_calls_the_static_library() {
        let library = libraries().join("libquietline.a");
        let program = compile("tests/c/calls.c", "calls-static", &[library.as_ref()]);
        assert_eq!(run(&mut Command::new(program)), "ok\n");
    }

    #[test]
    fn valgrind_finds_no_error_and_no_leak_in_the_c_program() {
        if lacks("valgrind") {
            return;
        }
        let program = compile_shared("tests/c/calls.c", "calls-valgrind");
        let printed = run(Command::new("valgrind")
            .args(["--quiet", "--error-exitcode=99", "--leak-check=full"])
            .args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"])
            .arg(program));
        assert_eq!(printed, "ok\n");
    }

    #[test]
    fn the_echo_server_answers() {
        let program = compile_shared("examples/echo_server.c", "echo_server");
        assert_eq!(run(&mut Command::new(program)), "the server answers \"hello\"\n");
    }

    #[test]
    fn python_calls_the_library() {
        if lacks("python3") {
            return;
        }
        let script = Path::new(FOLDER).join("tests/smoke.py");
        let library = libraries().join("libquietline.so");
        assert_eq!(run(Command::new("python3").arg(script).arg(library)), "ok\n");
    }
}
