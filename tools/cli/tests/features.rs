//! Builds with and without the features: the commands that each has, and the message of one that it lacks.

mod common;

use common::Dir;

/// Commands, what each is given here, and their features.
const COMMANDS: [(&str, &str, bool); 8] = [
    ("view x.gcu", "view", cfg!(feature = "view")),
    ("publish st x.npz", "store", cfg!(feature = "store")),
    ("pull st -o x.npz", "store", cfg!(feature = "store")),
    ("log st", "store", cfg!(feature = "store")),
    ("fold st 1 2", "store", cfg!(feature = "store")),
    ("gc st", "store", cfg!(feature = "store")),
    ("completions bash", "packaging", cfg!(feature = "packaging")),
    ("man", "packaging", cfg!(feature = "packaging")),
];

#[test]
fn a_missing_command_names_its_feature() {
    let dir = Dir::new();
    for (line, feature, is_built) in COMMANDS {
        let command = line.split(' ').next().unwrap();
        let message =
            format!("error: built without `{feature}`: `gcodec {command}` needs `--features {feature}`");
        for line in [line.to_owned(), format!("{command} --help"), format!("--quiet help {command}")] {
            let run = dir.run(&line);
            assert_eq!(run.err.starts_with(&message), !is_built, "{line}: {}", run.err);
            assert!(is_built || (run.code == 2 && run.err.lines().count() == 1), "{line}: {}", run.err);
        }
    }
    dir.fails(2, "unrecognized subcommand", "publsh st x.npz");
}

#[test]
fn help_lists_the_commands_of_the_build() {
    let dir = Dir::new();
    for option in ["-h", "--help", "help"] {
        let help = dir.well(option).out();
        for (line, _, is_built) in COMMANDS {
            let command = format!("  {} ", line.split(' ').next().unwrap());
            assert_eq!(help.lines().any(|line| line.starts_with(&command)), is_built, "{command}: {help}");
        }
        let is_full = COMMANDS.iter().all(|(.., is_built)| *is_built);
        assert_eq!(help.contains("Not in this build: "), !is_full, "{help}");
    }
}

#[test]
#[cfg(not(feature = "cloud"))]
fn a_bucket_needs_the_cloud() {
    let dir = Dir::new();
    for line in ["log s3://bucket/run", "pull gs://bucket/run -o x.npz", "log http://127.0.0.1:1/run"] {
        dir.fails(2, "built without `cloud`: ", line);
    }
    assert!(!dir.run("log file:///no/such/folder").err.contains("cloud"));
}

#[test]
#[cfg(feature = "packaging")]
fn completions_and_pages_know_the_commands() {
    let dir = Dir::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = dir.well(&format!("completions {shell}")).out();
        assert!(["encode", "topk", "powersgd"].iter().all(|word| script.contains(word)), "{shell}");
        assert_eq!(script.contains("publish"), cfg!(feature = "store"), "{shell}");
    }
    dir.well("man pages");
    assert!(dir.path("pages/gcodec-encode.1").exists());
    assert_eq!(dir.path("pages/gcodec-publish.1").exists(), cfg!(feature = "store"));
    assert!(dir.well("man").out().contains("gcodec"));
}
