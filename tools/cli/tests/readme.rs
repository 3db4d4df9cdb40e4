//! The sessions in the project's README and on the page about dumps are what the command line prints.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The sessions of a page: each command with the lines that it prints.
fn session(page: &str) -> Vec<(&str, Vec<&str>)> {
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in blocks.flat_map(str::lines) {
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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a command of a session, and compares what it prints with the page. A last line `...` stands for the
/// rest.
fn repeat(command: &str, printed: &[&str], folder: &Path) {
    let args = command.split(' ').flat_map(|arg| match arg.starts_with("tools/") {
        true => vec![root().join(arg).display().to_string()],
        false => matching(arg.trim_matches('\''), folder),
    });
    let output = Command::new(env!("CARGO_BIN_EXE_gcodec"))
        .args(args)
        .env_remove("COLUMNS")
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let mut said: Vec<&str> = said.lines().map(without_time).collect();
    let mut printed: Vec<&str> = printed.iter().map(|line| without_time(line)).collect();
    if printed.last() == Some(&"...") {
        printed.pop();
        said.truncate(printed.len());
    }
    assert_eq!(said, printed, "gcodec {command}");
}

/// Expands, like a shell, a name with one `*` of a gradient.
fn matching(arg: &str, folder: &Path) -> Vec<String> {
    let Some((start, end)) = arg.strip_prefix("gradients/").and_then(|name| name.split_once('*')) else {
        return vec![arg.to_owned()];
    };
    let entries = std::fs::read_dir(folder.join("gradients")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names
        .filter(|n| n.starts_with(start) && n.ends_with(end))
        .map(|n| format!("gradients/{n}"))
        .collect();
    names.sort();
    names
}

#[test]
fn the_session_repeats() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let folder = folder("session");
    let commands = session(&readme);
    assert_eq!(commands.len(), 3);
    for (command, printed) in commands {
        repeat(command, &printed, &folder);
    }
}

#[cfg(unix)]
#[test]
fn the_page_on_dumps_repeats() {
    let gradients = root().join("../shared/gradients");
    let Ok(gradients) = gradients.canonicalize() else {
        println!("skipped: {} is not there", gradients.display());
        return;
    };
    let page = std::fs::read_to_string(root().join("docs/inspect.md")).unwrap();
    let folder = folder("dumps");
    std::os::unix::fs::symlink(gradients, folder.join("gradients")).unwrap();
    // The two files that the page says were damaged.
    let demo = root().join("tools/cli/gradients/digits_convnet_step0030_worker0.safetensors");
    let mut nan = std::fs::read(demo).unwrap();
    let at = nan.len() - 4000;
    nan[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(folder.join("grad_nan_step30.safetensors"), nan).unwrap();
    let commands = session(&page);
    assert!(commands.len() > 10, "{}", commands.len());
    for (command, printed) in commands {
        if command.contains("damaged.gcu") {
            let mut bytes = std::fs::read(folder.join("steps.gcu")).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            std::fs::write(folder.join("damaged.gcu"), bytes).unwrap();
        }
        repeat(command, &printed, &folder);
    }
}
