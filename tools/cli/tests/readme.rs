//! The session in the project's README is what the command line prints.

use std::path::Path;
use std::process::Command;

/// The lines of the README's session: each command with the lines that it prints.
fn session(readme: &str) -> Vec<(&str, Vec<&str>)> {
    let block = readme.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in block.expect("a console block").lines() {
        match (line.strip_prefix("$ gcodec "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, Vec::new())),
            (None, Some((_, printed))) => printed.push(line),
            (None, None) => panic!("a session begins with a command: {line}"),
        }
    }
    commands
}

/// A line without the seconds at its end, which differ from run to run.
fn without_time(line: &str) -> &str {
    match line.strip_suffix(" s").and_then(|start| start.rsplit_once(", ")) {
        Some((start, seconds)) if seconds.parse::<f64>().is_ok() => start,
        _ => line,
    }
}

#[test]
fn the_session_repeats() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("session");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let commands = session(&readme);
    assert_eq!(commands.len(), 3);
    for (command, printed) in commands {
        let args = command.split(' ').map(|arg| match arg.starts_with("tools/") {
            true => root.join(arg).display().to_string(),
            false => arg.trim_matches('\'').to_owned(),
        });
        let output =
            Command::new(env!("CARGO_BIN_EXE_gcodec")).args(args).current_dir(&folder).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let said: Vec<&str> = said.lines().map(without_time).collect();
        assert_eq!(said, printed.into_iter().map(without_time).collect::<Vec<_>>(), "gcodec {command}");
    }
}
