//! curl against `quietline serve http`: 256 MiB in both directions, with equal digests, over every
//! kind of link.
//!
//! Not here: speed. `bench-peers` measures it.

use anyhow::{Result, ensure};
use netns_tests::{Content, LINKS, Lab, Link, STACK, sha256};

/// Enough to wrap a 16-bit window and every queue many times, and enough to wrap sequence numbers
/// from an initial one in the upper sixteenth.
const BULK_BYTES: usize = 256 << 20;

/// Downloads and uploads the bulk content over one link and compares digests.
fn transfer_both_ways(test: &str, link: Link) -> Result<()> {
    let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
    let root = lab.file("root");
    std::fs::create_dir(&root)?;
    let content = Content::create(&root, "bulk", BULK_BYTES, 1)?;
    let root_text = root.display().to_string();
    let mut server = lab.serve(&link, &["http", "--dir", &root_text, "--upload"])?;

    let down = lab.file("down").display().to_string();
    lab.curl(&["--fail", "-o", &down, &format!("http://{STACK}/bulk")])?.success()?;
    ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
    std::fs::remove_file(&down)?;

    let bulk = content.path.display().to_string();
    lab.curl(&["--fail", "-T", &bulk, &format!("http://{STACK}/up")])?.success()?;
    ensure!(sha256(&root.join("up"))? == content.sha256, "the upload differs");

    server.assert_alive()?;
    server.interrupt()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_transfers_pass_at_mtu_1500_with_offload() -> Result<()> {
        transfer_both_ways("bulk_transfers_pass_at_mtu_1500_with_offload", LINKS[0])
    }

    #[test]
    fn bulk_transfers_pass_at_mtu_1500_without_offload() -> Result<()> {
        transfer_both_ways("bulk_transfers_pass_at_mtu_1500_without_offload", LINKS[1])
    }

    #[test]
    fn bulk_transfers_pass_at_mtu_9000_with_offload() -> Result<()> {
        transfer_both_ways("bulk_transfers_pass_at_mtu_9000_with_offload", LINKS[2])
    }

    #[test]
    fn bulk_transfers_pass_at_mtu_9000_without_offload() -> Result<()> {
        transfer_both_ways("bulk_transfers_pass_at_mtu_9000_without_offload", LINKS[3])
    }

    #[test]
    fn bulk_transfers_pass_over_a_tun() -> Result<()> {
        transfer_both_ways(
            "bulk_transfers_pass_over_a_tun",
            Link { kind: "tun", ..Link::default() },
        )
    }

    #[test]
    fn bulk_transfers_pass_over_two_cores() -> Result<()> {
        transfer_both_ways(
            "bulk_transfers_pass_over_two_cores",
            Link { cores: 2, ..Link::default() },
        )
    }

    #[test]
    fn eight_downloads_at_once_are_complete() -> Result<()> {
        let Some(lab) = Lab::open("eight_downloads_at_once_are_complete", &["curl"])? else {
            return Ok(());
        };
        let root = lab.file("root");
        std::fs::create_dir(&root)?;
        let content = Content::create(&root, "bulk", 16 << 20, 2)?;
        let root_text = root.display().to_string();
        let link = Link { cores: 2, ..Link::default() };
        let server = lab.serve(&link, &["http", "--dir", &root_text])?;
        let line = format!(
            "for i in 1 2 3 4 5 6 7 8; do curl -sSf --max-time 50 -o down$i http://{STACK}/bulk & done; \
             for job in $(jobs -p); do wait $job; done; sha256sum down* | cut -d' ' -f1 | sort -u"
        );
        ensure!(lab.shell(&line)?.trim() == content.sha256, "a download differs");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn one_connection_serves_one_hundred_requests() -> Result<()> {
        let name = "one_connection_serves_one_hundred_requests";
        let Some(lab) = Lab::open(name, &["curl"])? else { return Ok(()) };
        let root = lab.file("root");
        std::fs::create_dir(&root)?;
        Content::create(&root, "small", 4321, 3)?;
        let root_text = root.display().to_string();
        let server = lab.serve(&Link::default(), &["http", "--dir", &root_text])?;
        // curl prints the number of connections that each transfer opened: one for the first, none
        // after it.
        let url = format!("http://{STACK}/small?n=[1-100]");
        let format = "%{num_connects} %{size_download}\\n";
        let printed = lab.curl(&["--fail", "-o", "/dev/null", "-w", format, &url])?.success()?;
        let opened = printed.lines().filter(|line| line.starts_with('1')).count();
        let complete = printed.lines().filter(|line| line.ends_with(" 4321")).count();
        ensure!((opened, complete) == (1, 100), "{opened} connections, {complete} complete");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn bad_requests_are_refused_and_harm_nothing() -> Result<()> {
        let name = "bad_requests_are_refused_and_harm_nothing";
        let Some(lab) = Lab::open(name, &["curl"])? else { return Ok(()) };
        let root = lab.file("root");
        std::fs::create_dir(&root)?;
        std::fs::write(lab.file("secret"), "not yours")?;
        let content = Content::create(&root, "small", 1000, 4)?;
        let root_text = root.display().to_string();
        let mut server = lab.serve(&Link::default(), &["http", "--dir", &root_text])?;

        let base = format!("http://{STACK}");
        let code = |words: &[&str], path: &str| -> Result<String> {
            let url = format!("{base}{path}");
            let mut all = vec!["--path-as-is", "-o", "/dev/null", "-w", "%{http_code}"];
            all.extend_from_slice(words);
            all.push(&url);
            lab.curl(&all)?.success()
        };
        ensure!(code(&[], "/none")? == "404");
        ensure!(code(&[], "/../secret")?.starts_with('4'), "left the directory");
        ensure!(code(&[], "/%2e%2e/secret")?.starts_with('4'), "left the directory");
        let bulk = content.path.display().to_string();
        ensure!(code(&["-T", &bulk], "/up")?.starts_with('4'), "stored without --upload");
        ensure!(code(&[], "/small")? == "200");
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }
}
