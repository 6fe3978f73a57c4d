//! The command line: bad input gets one clear line and exit code 2, and results are printed as JSON
//! on request.
//!
//! Not here: checks that need no process (unit tests of crate cli).

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Finished, Lab, Link, STACK, binary};

/// Runs `quietline` with these arguments, outside any namespace.
fn quietline(words: &str) -> Result<Finished> {
    let mut command = Command::new(binary()?);
    Finished::of(command.args(words.split_whitespace()))
}

/// Opens a connection to port 80 on which the server has answered, so that it is being served.
fn answered() -> Result<TcpStream> {
    let mut stream = TcpStream::connect((STACK, 80))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n")?;
    ensure!(stream.read(&mut [0; 1024])? > 0, "no answer");
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_one_line_and_exit_code_2() -> Result<()> {
        let serve = "serve echo --link tap:ql0 --address 10.77.0.2/24";
        let bad = [
            "frobnicate".to_owned(),
            "demo --no-such-flag".to_owned(),
            "serve".to_owned(),
            "serve echo".to_owned(),
            "serve no-such-service --link tap:ql0 --address 10.77.0.2/24".to_owned(),
            "serve echo --link tap:ql0".to_owned(),
            "serve echo --link nothing:ql0 --address 10.77.0.2/24".to_owned(),
            "serve echo --link tap: --address 10.77.0.2/24".to_owned(),
            "serve echo --link tap:a-name-far-too-long --address 10.77.0.2/24".to_owned(),
            "serve echo --link tap:ql0 --address 300.1.1.1/24".to_owned(),
            "serve echo --link tap:ql0 --address 10.77.0.2/33".to_owned(),
            format!("{serve} --mtu 10"),
            format!("{serve} --mtu lots"),
            format!("{serve} --cores 0"),
            format!("{serve} --port 70000"),
            format!("{serve} --peer 10.77.0.2/24"),
            format!("{serve} --gateway 10.99.0.1"),
            format!("{serve} --sysctl net.ipv4.no_such=1"),
            "connect 10.77.0.1 --link tap:ql0 --address 10.77.0.2/24".to_owned(),
        ];
        for words in bad {
            let ended = quietline(&words)?;
            let stderr = ended.stderr.trim_end();
            ensure!(ended.status.code() == Some(2), "{words}: {} {stderr}", ended.status);
            ensure!(stderr.lines().count() == 1, "{words}: more than one line: {stderr}");
            ensure!(ended.stdout.is_empty(), "{words}: printed {}", ended.stdout);
        }
        Ok(())
    }

    #[test]
    fn help_version_man_and_completions_are_printed() -> Result<()> {
        for words in ["--help", "--version", "serve --help", "man", "completions bash"] {
            let printed = quietline(words)?.success()?;
            ensure!(!printed.trim().is_empty(), "{words} printed nothing");
        }
        Ok(())
    }

    #[test]
    fn a_closed_pipe_causes_no_panic() -> Result<()> {
        let line = format!("'{}' man | head -c 10; exit ${{PIPESTATUS[0]}}", binary()?.display());
        let ended = Finished::of(Command::new("bash").args(["-c", &line]))?;
        ensure!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        Ok(())
    }

    #[test]
    fn a_link_in_use_is_reported_in_one_line() -> Result<()> {
        let Some(lab) = Lab::open("a_link_in_use_is_reported_in_one_line", &[])? else {
            return Ok(());
        };
        let first = lab.serve(&Link::default(), &["echo", "--port", "7"])?;
        let mut command = lab.namespace.command(binary()?);
        command.args(["serve", "echo", "--link=tap:ql0", &format!("--address={STACK}/24")]);
        let second = Finished::of(&mut command)?;
        ensure!(second.status.code() == Some(1), "{}: {}", second.status, second.stderr);
        ensure!(second.stderr.trim().lines().count() == 1, "more than one line: {}", second.stderr);
        first.interrupt()?;
        Ok(())
    }

    #[test]
    fn statistics_have_linux_names() -> Result<()> {
        let Some(lab) = Lab::open("statistics_have_linux_names", &["curl"])? else { return Ok(()) };
        std::fs::write(lab.file("hello"), "hello")?;
        let directory = lab.directory().display().to_string();
        let words = ["http", "--dir", &directory, "--stats"];
        let server = lab.serve(&Link::default(), &words)?;
        let url = format!("http://{STACK}/hello");
        ensure!(lab.curl(&["--fail", &url])?.success()? == "hello");
        let printed = server.interrupt()?;
        let all = format!("{}{}", printed.stdout, printed.stderr);
        for name in ["TcpPassiveOpens", "TcpInSegs", "TcpOutSegs", "IpInReceives"] {
            let line = all.lines().find(|line| line.contains(name));
            let line = line.with_context(|| format!("no {name} in:\n{all}"))?;
            let value = line.split_whitespace().find_map(|word| word.parse::<u64>().ok());
            ensure!(value.is_some_and(|value| value > 0), "{line}");
        }
        Ok(())
    }

    #[test]
    fn statistics_are_printed_while_a_server_runs() -> Result<()> {
        let name = "statistics_are_printed_while_a_server_runs";
        let Some(lab) = Lab::open(name, &["ping"])? else { return Ok(()) };
        let server = lab.serve(&Link::default(), &["echo", "--stats=0.2"])?;
        lab.namespace.tool("ping", &format!("-n -q -c 3 -i 0.2 -W 2 {STACK}"))?;
        server.signal(rustix::process::Signal::USR1)?;
        std::thread::sleep(Duration::from_millis(500));
        let printed = server.interrupt()?.success()?;
        let reports: Vec<_> = printed.split("#echo ").skip(1).collect();
        ensure!(reports.len() >= 4, "{} reports:\n{printed}", reports.len());
        let last = reports.last().context("a report")?;
        ensure!(last.contains("IcmpInEchos                     3"), "{last}");
        // Without --stats=all a counter that is zero has no row.
        let zero = last.lines().find(|line| line.split_whitespace().skip(1).eq(["0"]));
        ensure!(zero.is_none(), "{zero:?}");
        Ok(())
    }

    #[test]
    fn connections_that_end_with_the_server_are_not_counted_as_failed() -> Result<()> {
        let name = "connections_that_end_with_the_server_are_not_counted_as_failed";
        let Some(lab) = Lab::open(name, &[])? else { return Ok(()) };
        let directory = lab.directory().display().to_string();
        for service in [&["echo", "--port=80"][..], &["http", "--dir", &directory]] {
            let server = lab.serve(&Link::default(), &[service, &["--json"]].concat())?;
            let held =
                lab.namespace.enter(|| (0..5).map(|_| answered()).collect::<Result<Vec<_>>>())?;
            let ended = server.interrupt()?;
            let report: serde_json::Value = serde_json::from_str(&ended.stdout)?;
            ensure!(report["connections"] == 5 && report["failed"] == 0, "{report}");
            ensure!(!ended.stderr.contains("connection failed"), "{}", ended.stderr);
            drop(held);
        }
        Ok(())
    }

    #[test]
    fn a_capture_that_fails_loses_no_statistics() -> Result<()> {
        let name = "a_capture_that_fails_loses_no_statistics";
        let Some(lab) = Lab::open(name, &["ping"])? else { return Ok(()) };
        let words = ["echo", "--stats", "--pcap=/dev/full"];
        let server = lab.serve(&Link::default(), &words)?;
        lab.namespace.tool("ping", &format!("-n -q -c 3 -i 0.2 -W 2 {STACK}"))?;
        // The warning is printed when the error occurs.
        let warned = server.stderr_so_far();
        ensure!(warned.contains("cannot write /dev/full: No space left on device"), "{warned}");
        let ended = server.interrupt()?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        ensure!(ended.stderr.contains("the capture /dev/full is incomplete"), "{}", ended.stderr);
        ensure!(ended.stdout.contains("IcmpInEchos"), "no statistics: {}", ended.stdout);
        Ok(())
    }

    #[test]
    fn results_are_json_on_request() -> Result<()> {
        let Some(lab) = Lab::open("results_are_json_on_request", &["curl"])? else { return Ok(()) };
        std::fs::write(lab.file("hello"), "hello")?;
        let directory = lab.directory().display().to_string();
        let words = ["http", "--dir", &directory, "--stats", "--json"];
        let server = lab.serve(&Link::default(), &words)?;
        let url = format!("http://{STACK}/hello");
        ensure!(lab.curl(&["--fail", &url])?.success()? == "hello");
        let printed = server.interrupt()?.stdout;
        let report: serde_json::Value = serde_json::from_str(&printed)
            .with_context(|| format!("not one JSON object: {printed}"))?;
        ensure!(report.is_object(), "not an object: {printed}");
        ensure!(printed.contains("TcpPassiveOpens"), "no counters in {printed}");
        Ok(())
    }
}
