use clap::CommandFactory as _;

use super::*;

fn parse(line: &str) -> Result<Option<Cli>, Failure> {
    Cli::from_arguments(line.split(' ').map(OsString::from))
}

fn refusal(line: &str) -> String {
    match parse(line) {
        Err(Failure::Usage(message)) => message,
        other => panic!("{line}: expected a usage failure, got {other:?}"),
    }
}

#[test]
fn argument_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_full_serve_line_parses() {
    let line = "quietline serve http --dir /srv --link tap:ql0 --address 10.7.0.2/24 --peer \
                10.7.0.1/24 --gateway 10.7.0.1 --cores 2 --mtu 9000 --no-vnet-hdr --port 8080 --queues 1 \
                --sysctl net.quietline.dev.ql0.rps_cpus=3 --stats --json";
    let Ok(Some(Cli { command: Command::Serve(args), .. })) = parse(line) else {
        panic!("refused");
    };
    assert_eq!((args.port(), args.link.cores, args.link.mtu), (8080, Some(2), Some(9000)));
    assert_eq!(args.link.queues, Some(1));
    assert!(args.link.no_vnet_hdr && args.observe.stats.is_some() && args.observe.json);
}

#[test]
fn the_host_file_stands_before_or_behind_the_command() {
    for line in [
        "quietline --config host.toml serve echo",
        "quietline serve --config host.toml echo",
        "quietline serve echo --config host.toml --dns 10.0.0.1 --dns [fd00::1]:5353",
    ] {
        let Ok(Some(Cli { command: Command::Serve(args), .. })) = parse(line) else {
            panic!("{line}: refused");
        };
        assert_eq!(args.link.config, Some("host.toml".into()), "{line}");
        assert_eq!(args.link.link, None);
    }
}

#[test]
fn a_full_lab_line_parses() {
    let line = "quietline lab gro-batch --quick --runs 40 --seed 7 --json --report dir";
    let Ok(Some(Cli { command: Command::Lab(args), .. })) = parse(line) else { panic!("refused") };
    let Some(LabCommand::GroBatch(args)) = args.command else { panic!("another command") };
    assert_eq!((args.quick, args.runs, args.seed, args.output.json), (true, Some(40), 7, true));
    assert!(refusal("quietline lab tsq --runs 5").contains("an even number"));
}

#[test]
fn a_service_listens_on_its_well_known_port_by_default() {
    let line = "quietline serve --link kernel chargen";
    let Ok(Some(Cli { command: Command::Serve(args), .. })) = parse(line) else {
        panic!("refused");
    };
    assert_eq!(args.port(), 19);
}

#[test]
fn refusals_are_one_line() {
    for line in [
        "quietline",
        "quietline frobnicate",
        "quietline demo --seconds 0",
        "quietline demo --workload nothing",
        "quietline serve http --link tap:ql0 --address 10.0.0.2/24",
        "quietline serve echo",
        "quietline serve echo --link tap:ql0 --address 10.0.0.300/24",
        "quietline serve echo --link tap:ql0 --address 10.0.0.2",
        "quietline serve echo --link bridge:x --address 10.0.0.2/24",
        "quietline serve echo --link tap:ql0 --address 10.0.0.2/24 --mtu 40",
        "quietline serve echo --link tap:ql0 --address 10.0.0.2/24 --mtu 87",
        "quietline connect 10.0.0.1 0 --link tap:ql0",
        "quietline connect example http --link tap:ql0",
        "quietline serve echo --link kernel --gateway 10.0.0",
        "quietline serve echo --link kernel --stats=often",
        "quietline serve http --dir /srv --link kernel --max-per-peer 0",
        "quietline serve http --dir /srv --link kernel --upload-max -1",
        "quietline demo --seed -1",
        "quietline --config host.toml demo",
        "quietline sysctl --config host.toml",
        "quietline connect 10.0.0.1 80 --link tap:ql0 --address 10.0.0.2/24 --dns x",
    ] {
        let message = refusal(line);
        assert!(!message.is_empty() && !message.contains('\n'), "{line}: {message}");
    }
}

#[test]
fn a_missing_prefix_length_is_reported_with_a_suggestion() {
    let message = refusal("quietline serve echo --link tap:ql0 --address 10.0.0.2");
    assert!(message.contains("--address") && message.contains("10.0.0.2/24"), "{message}");
}

#[test]
fn a_refusal_includes_suggestions() {
    let message = refusal("quietline serve echo --link kernel --stat");
    assert!(message.contains("'--stat'") && message.contains("'--stats'"), "{message}");
    let message = refusal("quietline serv");
    assert!(message.contains("'serve'") && !message.contains("Usage"), "{message}");
    let message = refusal("quietline demo --workload rr-2");
    assert!(message.contains("possible values") && message.contains("'rr-1'"), "{message}");
}

#[test]
fn refusals_name_allowed_values_and_not_types() {
    for (line, expected) in [
        ("quietline connect 10.0.0.1 0 --link kernel", "expected a number from 1 to 65535"),
        ("quietline serve echo --link kernel --port x", "expected a number from 1 to 65535"),
        ("quietline serve echo --link kernel --cores 99", "expected a number from 1 to 64"),
        ("quietline serve echo --link kernel --max-per-peer x", "a number from 1 to 1000000"),
        ("quietline demo --seed x", "expected a number from 0 to 18446744073709551615"),
        ("quietline serve echo --link kernel --gateway x", "expected an IP address"),
    ] {
        assert!(refusal(line).contains(expected), "{line}: {}", refusal(line));
    }
}

/// Rows of the tables of docs/mechanisms.md whose last column is a command: the row's beginning and
/// the command.
fn commands_of_mechanisms() -> Vec<(&'static str, &'static str)> {
    let mut rows = Vec::new();
    let mut in_table = false;
    for line in include_str!("../../../../docs/mechanisms.md").lines() {
        if line.starts_with("| setting |") {
            in_table = line.ends_with("| command |");
        } else if !line.starts_with('|') {
            in_table = false;
        } else if in_table && !line.starts_with("|---") {
            let cell = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
            rows.push((line.get(..60).unwrap_or(line), cell.trim_matches('`')));
        }
    }
    rows
}

#[test]
fn every_row_of_the_mechanisms_names_a_command_that_works() {
    let rows = commands_of_mechanisms();
    assert!(rows.len() > 70, "{} rows", rows.len());
    for (row, command) in rows {
        if let Some(test) = command.strip_prefix("cargo test -p ") {
            let (package, test) = test.split_once(' ').expect("a test");
            let tests = match package {
                "quietline-stack" => include_str!("../../../stack/tests/napi.rs"),
                "quietline-tcp" => include_str!("../../../tcp/src/congestion/hystart.rs"),
                other => panic!("{row}: tests of {other} are not known here"),
            };
            assert!(tests.contains(&format!("fn {test}")), "{row}: no test {test}");
            continue;
        }
        let Ok(Some(cli)) = parse(&format!("quietline {command}")) else {
            panic!("{row}: {command} is refused: {:?}", parse(&format!("quietline {command}")));
        };
        let (settings, link) = match cli.command {
            Command::Demo(args) => {
                let compared = args.compare.into_iter().flat_map(|compare| {
                    let name = compare.name;
                    compare.values.into_iter().map(move |value| (name.clone(), value))
                });
                let set = args.sysctl.into_iter().map(|own| (own.name, own.value));
                (set.chain(compared).collect::<Vec<_>>(), None)
            }
            Command::Serve(args) => {
                let set = args.link.sysctl.iter().map(|own| (own.name.clone(), own.value.clone()));
                (set.collect(), Some(args))
            }
            Command::Lab(args) => {
                assert!(args.command.is_some(), "{row}: {command} names no experiment");
                continue;
            }
            other => panic!("{row}: {command} shows no mechanism: {other:?}"),
        };
        for (name, value) in settings {
            let checked = crate::settings::check_value("--sysctl", &name, &value);
            assert!(checked.is_ok(), "{row}: {name}={value}: {checked:?}");
        }
        if let Some(args) = link {
            let checked = args.link.check(&args.observe);
            assert!(checked.is_ok(), "{row}: {command}: {checked:?}");
        }
    }
}
