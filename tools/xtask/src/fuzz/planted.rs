//! Planted bugs: which fuzz target finds each of some likely mistakes, and after how many executions. All are
//! compiled into one copy of the tree; an environment variable turns one on.

use std::fs;
use std::path::Path;
use std::process::Command;

use gcodec_packaging::programs::each_of;
use gcodec_packaging::{Result, root};

use super::{AT_ONCE, Folders, Outcome, Target, build, report_failure, run_one};
use crate::programs::conformance;

/// A mistake: in `file`, the expression `right` is replaced by `wrong`.
struct Bug {
    what: &'static str,
    file: &'static str,
    /// Occurs once in the file.
    right: &'static str,
    wrong: &'static str,
}

const BUGS: &[Bug] = &[
    Bug {
        what: "a position may be one past the last element",
        file: "src/codes/rice.rs",
        right: "position >= n",
        wrong: "position > n",
    },
    Bug {
        what: "bytes may follow the last gap",
        file: "src/codes/rice.rs",
        right: "zeros >= 8",
        wrong: "false",
    },
    Bug {
        what: "the sum of gaps wraps at 2^64",
        file: "src/block/support/sparse.rs",
        right: "sum.saturating_add(gap)",
        wrong: "sum.wrapping_add(gap)",
    },
    Bug {
        what: "the padding of a bitmap is not checked",
        file: "src/block/support/sparse.rs",
        right: "bytes.last().is_some_and(|last| last >> (n % 8) != 0)",
        wrong: "false",
    },
    Bug {
        what: "a declared amount of memory is not limited",
        file: "src/limits.rs",
        right: "self.memory.take(MEMORY, bytes, offset)?",
        wrong: "()",
    },
    Bug {
        what: "checksums are not compared",
        file: "src/bits/mod.rs",
        right: "Err(Error::format(FormatErrorKind::ChecksumMismatch { stored, computed }, offset))",
        wrong: "Ok(())",
    },
    Bug {
        what: "old contents of a buffer stay between blocks",
        file: "src/stream/buffers.rs",
        right: "self.data[bytes].fill(0)",
        wrong: "()",
    },
    Bug {
        what: "a push decoder forgets a byte when it moves its buffer",
        file: "src/stream/byte_queue.rs",
        right: "self.bytes.copy_within(self.start..self.end, 0)",
        wrong: "self.bytes.copy_within((self.start + 1).min(self.end)..self.end, 0)",
    },
    Bug {
        what: "AVX2 encodes a symbol without correcting the quotient",
        file: "src/arch/rans/avx2.rs",
        right: "_mm256_andnot_si256(_mm256_cmpgt_epi32(f, rest), step)",
        wrong: "_mm256_setzero_si256()",
    },
    Bug {
        what: "negative floats have the ranks of positive ones",
        file: "src/tensor/element/mod.rs",
        right: "if bits & self.sign != 0 { !bits } else { bits | self.sign }",
        wrong: "bits | self.sign",
    },
    Bug {
        what: "the tensors that an index lists for a block are not compared",
        file: "src/file/parts.rs",
        right: "(scope.first(), scope.tensors()) != (block.first, block.tensors)",
        wrong: "false",
    },
    Bug {
        what: "a part after a lost part continues the update",
        file: "src/stream/salvage.rs",
        right: "_ = self.parser.suspend_update()",
        wrong: "()",
    },
    Bug {
        what: "an annotated frame lacks its last byte",
        file: "tools/cli/src/annotate/mod.rs",
        right: "start + info.len() as usize",
        wrong: "start + info.len() as usize - 1",
    },
];

/// Environment variable with the number of the bug to turn on, from 1.
const VARIABLE: &str = "GCODEC_PLANTED";

/// Text of the module `fuzzing` in the copy's library, before its other items.
const SWITCH: &str = "
    /// Whether a planted bug is on.
    pub fn planted(number: usize) -> bool {
        static ON: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let read = || std::env::var(\"GCODEC_PLANTED\").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        *ON.get_or_init(read) == number
    }
";

/// Runs each target on each bug, or on `one` of them, until it is found, at most for `seconds`; true if each
/// is found by a target, and the tree without bugs by none.
pub(super) fn run(targets: &[&Target], one: Option<usize>, seconds: f64) -> Result<bool> {
    let tree = root().join("target/planted");
    copy_with_bugs(&tree)?;
    let seeds = tree.join("fuzz/seeds");
    let into = ["seeds", "--into"].map(str::to_owned).into_iter().chain([seeds.display().to_string()]);
    let args: Vec<String> = into.chain(targets.iter().map(|t| t.name.to_owned())).collect();
    if !conformance(&args.iter().map(String::as_str).collect::<Vec<_>>())? {
        return Ok(false);
    }
    build(&tree, targets)?;
    let bugs: Vec<usize> = (0..=BUGS.len()).filter(|&bug| one.is_none_or(|one| bug == one)).collect();
    let runs: Vec<(usize, &Target)> =
        bugs.iter().flat_map(|&bug| targets.iter().map(move |target| (bug, *target))).collect();
    let outcomes = each_of(AT_ONCE, &runs, |&(bug, target)| {
        let prepare = |command: &mut Command| _ = command.env(VARIABLE, bug.to_string()).arg("-seed=1");
        run_one(&fresh_folders(&tree, &seeds, bug, target)?, target, seconds, prepare)
    })?;
    println!("| planted bug | {} |", targets.iter().map(|t| t.name).collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(targets.len()));
    let mut passed = true;
    for (&bug, row) in bugs.iter().zip(outcomes.chunks(targets.len())) {
        let found =
            |o: &Outcome| if o.failed { o.executions.to_string() } else { format!("({})", o.executions) };
        let cells: Vec<String> = row.iter().map(found).collect();
        let what = bug.checked_sub(1).map_or("none", |bug| BUGS[bug].what);
        println!("| {bug}: {what} | {} |", cells.join(" | "));
        if bug == 0 {
            row.iter().for_each(report_failure);
        }
        passed &= row.iter().any(|o| o.failed) == (bug > 0);
    }
    Ok(passed)
}

/// Returns folders for one run, whose corpus has the seeds alone.
fn fresh_folders(tree: &Path, seeds: &Path, bug: usize, target: &Target) -> Result<Folders> {
    let runs = tree.join("fuzz/runs").join(bug.to_string());
    let corpus = runs.join("corpus").join(target.name);
    if corpus.exists() {
        fs::remove_dir_all(&corpus)?;
    }
    fs::create_dir_all(&corpus)?;
    for seed in fs::read_dir(seeds.join(target.name))? {
        let seed = seed?;
        fs::copy(seed.path(), corpus.join(seed.file_name()))?;
    }
    Ok(Folders { tree: tree.to_owned(), corpus: runs.join("corpus"), artifacts: runs.join("artifacts") })
}

/// Copies the tracked files of this tree, and plants all bugs in the copy.
fn copy_with_bugs(tree: &Path) -> Result<()> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output()?;
    if !listed.status.success() {
        return Err("git cannot list the tracked files".into());
    }
    for name in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let (from, to) = (root().join(name), tree.join(name));
        // A file that was deleted, but not yet from the index.
        let Ok(mut contents) = fs::read(&from) else { continue };
        if BUGS.iter().any(|bug| bug.file == name) || name == "src/lib.rs" {
            contents = planted(name, &String::from_utf8(contents)?)?.into_bytes();
        }
        // An unchanged file keeps its time, so that it is not compiled again.
        if fs::read(&to).ok().as_ref() != Some(&contents) {
            fs::create_dir_all(to.parent().unwrap_or(tree))?;
            fs::write(&to, contents)?;
        }
    }
    Ok(())
}

/// Returns the text of a file with its bugs.
fn planted(name: &str, text: &str) -> Result<String> {
    if name == "src/lib.rs" {
        let module = "pub mod fuzzing {";
        return Ok(text.replacen(module, &format!("{module}{SWITCH}"), 1));
    }
    let library = if name.starts_with("src/") { "crate" } else { "gcodec" };
    let mut text = text.to_owned();
    for (bug, number) in BUGS.iter().zip(1..).filter(|(bug, _)| bug.file == name) {
        let Bug { what, file, right, wrong } = bug;
        if text.matches(right).count() != 1 {
            return Err(format!("{file}: the place of the planted bug `{what}` is not there once").into());
        }
        let both = format!("(if {library}::fuzzing::planted({number}) {{ {wrong} }} else {{ {right} }})");
        text = text.replacen(right, &both, 1);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_one_place() {
        for bug in BUGS {
            let text = fs::read_to_string(root().join(bug.file)).unwrap();
            let copy = planted(bug.file, &text).unwrap();
            assert!(copy.contains(bug.wrong) && copy.contains(bug.right), "{}", bug.what);
        }
        let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
        assert!(planted("src/lib.rs", &library).unwrap().contains("pub fn planted("));
    }
}
