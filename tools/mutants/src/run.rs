//! Runs the tests on each mistake, the quickest first, until one fails.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use gcodec_packaging::Result;
use gcodec_packaging::programs::each_of;
use serde_json::Value;

use crate::tree::Tree;

/// Test programs of the library.
const PROGRAMS: &[&str] =
    &["--lib", "--test=wire", "--test=compressors", "--test=properties", "--test=memory"];
/// Number of tests, or batches of tests, that run at once.
const AT_ONCE: usize = 2;
/// Longest test that is used, in seconds.
const LONGEST: f64 = 8.0;
/// Seconds of tests that run in one process.
const BATCH: f64 = 0.15;
/// Kibibytes of address space that a test may take.
const MEMORY: u64 = 8 << 20;

/// What the tests make of a mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// A test fails.
    Killed,
    /// A test takes several times as long.
    Slow,
    Survived,
    /// No test runs it.
    NotReached,
    /// It does not compile.
    NotCompiled,
}

impl End {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Killed, "killed"),
        (Self::Slow, "slow"),
        (Self::Survived, "survived"),
        (Self::NotReached, "not reached"),
        (Self::NotCompiled, "not compiled"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(end, _)| *end == self).map_or("", |(_, name)| name)
    }
}

/// Ends of mistakes by their keys ([`Located::key`](crate::tree::Located::key)) and their number among equal
/// keys.
pub(crate) type Results = BTreeMap<(String, usize), End>;

struct Test {
    program: PathBuf,
    name: String,
    seconds: f64,
}

/// Returns the names of the mistakes, which outlive changes elsewhere.
pub(crate) fn names(tree: &Tree) -> Vec<(String, usize)> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut name = |key: String| {
        let number = seen.entry(key.clone()).or_default();
        *number += 1;
        (key, *number)
    };
    tree.mutants.iter().map(|m| name(m.key())).collect()
}

/// What the threads share.
struct State {
    waiting: VecDeque<usize>,
    results: Results,
    /// Tests that noticed mistakes, the latest last, by function and by file.
    noticed: HashMap<String, Vec<usize>>,
    log: File,
}

impl State {
    fn note(&mut self, name: &(String, usize), end: End) -> Result<()> {
        writeln!(self.log, "{}\t{}\t{}", end.name(), name.1, name.0)?;
        self.results.insert(name.clone(), end);
        Ok(())
    }

    /// Returns the tests that noticed mistakes nearby.
    fn near(&self, places: &[String; 2]) -> [Vec<usize>; 2] {
        places.each_ref().map(|place| self.noticed.get(place).cloned().unwrap_or_default())
    }

    fn remember(&mut self, places: [String; 2], tests: &[usize]) {
        for place in places {
            let noticed = self.noticed.entry(place).or_default();
            noticed.retain(|test| !tests.contains(test));
            noticed.extend(tests.iter().take(4));
            let surplus = noticed.len().saturating_sub(6);
            noticed.drain(..surplus);
        }
    }
}

/// Runs the tests on the wanted mistakes. `kept`: results that need not be found again.
pub(crate) fn run(tree: &Tree, wanted: &[usize], seconds: f64, kept: Results) -> Result<Results> {
    let names = names(tree);
    let tests = timed(tree, listed(tree)?)?;
    println!("{} tests, {:.0} seconds", tests.len(), tests.iter().map(|t| t.seconds).sum::<f64>());
    let reaching = reaching(tree, &tests)?;
    let log = OpenOptions::new().create(true).append(true).open(log_of(tree))?;
    let mut state = State { waiting: VecDeque::new(), results: kept, noticed: HashMap::new(), log };
    for &number in wanted {
        match tree.mutants[number].is_dropped {
            true => state.note(&names[number], End::NotCompiled)?,
            false if state.results.contains_key(&names[number]) => {}
            false => state.waiting.push_back(number),
        }
    }
    let (total, start) = (state.waiting.len(), Instant::now());
    let state = Mutex::new(state);
    let next = || -> Result<Option<usize>> {
        let number = state.lock().map_err(|e| e.to_string())?.waiting.pop_front();
        let Some(number) = number else { return Ok(None) };
        let mutant = &tree.mutants[number];
        let places = [format!("{}:{}", mutant.file, mutant.mutant.function), mutant.file.clone()];
        // A test that noticed a mistake nearby is likely to notice this one.
        let near = state.lock().map_err(|e| e.to_string())?.near(&places);
        let mut own = reaching[number].clone();
        let rank = |test: &usize| near.iter().position(|n| n.contains(test)).unwrap_or(near.len());
        own.sort_by(|a, b| rank(a).cmp(&rank(b)).then(tests[*a].seconds.total_cmp(&tests[*b].seconds)));
        let (end, by) = try_one(tree, number, &own, &tests, seconds)?;
        let mut state = state.lock().map_err(|e| e.to_string())?;
        state.remember(places, &by);
        state.note(&names[number], end)?;
        Ok(Some(state.waiting.len()))
    };
    let work = || -> std::result::Result<(), String> {
        while let Some(left) = next().map_err(|e| e.to_string())? {
            if left % 100 == 0 {
                println!("{left} of {total} left after {:.0} s", start.elapsed().as_secs_f64());
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    Ok(state.into_inner().map_err(|e| e.to_string())?.results)
}

fn log_of(tree: &Tree) -> PathBuf {
    tree.folder.with_extension("results")
}

/// Returns the results of earlier runs.
pub(crate) fn earlier(tree: &Tree) -> Result<Results> {
    let mut results = Results::new();
    let Ok(text) = fs::read_to_string(log_of(tree)) else { return Ok(results) };
    for line in text.lines() {
        let mut fields = line.splitn(3, '\t');
        let (Some(end), Some(nth), Some(key)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let end = End::ALL.iter().find(|(_, name)| *name == end).ok_or("an unknown result")?.0;
        results.insert((key.to_owned(), nth.parse()?), end);
    }
    Ok(results)
}

/// Builds the test programs, and returns their tests.
fn listed(tree: &Tree) -> Result<Vec<Test>> {
    let mut args = vec!["test", "--quiet", "-p", "gcodec", "--no-run", "--message-format=json"];
    args.extend(PROGRAMS);
    let output = tree.cargo(&args).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the tests of the copy do not compile".into());
    }
    let mut tests = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: Value = serde_json::from_str(line)?;
        let Some(program) = message["executable"].as_str() else { continue };
        let list = Command::new(program).args(["--list", "--format=terse"]).output()?.stdout;
        let names = String::from_utf8(list)?;
        let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| Test { program: program.into(), name: name.into(), seconds: 0.0 }));
    }
    Ok(tests)
}

/// Runs each test alone on the copy without mistakes, and returns those that pass quickly.
fn timed(tree: &Tree, tests: Vec<Test>) -> Result<Vec<Test>> {
    let times = each_of(AT_ONCE, &tests, |test| {
        let start = Instant::now();
        let passed = output(tree, &test.program, &[&test.name], LONGEST, |_| ())?;
        Ok(passed.filter(|o| o.status.success()).map(|_| start.elapsed().as_secs_f64()))
    })?;
    let mut used = Vec::new();
    for (mut test, seconds) in tests.into_iter().zip(times) {
        match seconds {
            Some(seconds) => {
                if seconds > 1.0 {
                    println!("{seconds:.1} s: {}", test.name);
                }
                test.seconds = seconds;
                used.push(test);
            }
            None => println!("not used, since it fails or takes long: {}", test.name),
        }
    }
    Ok(used)
}

/// Returns for each mistake the tests that run it.
fn reaching(tree: &Tree, tests: &[Test]) -> Result<Vec<Vec<usize>>> {
    let folder = tree.folder.join("reached");
    _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let numbers: Vec<usize> = (0..tests.len()).collect();
    let reached = each_of(AT_ONCE, &numbers, |&number| {
        let (test, file) = (&tests[number], folder.join(number.to_string()));
        // To record takes longer; what was reached until then counts.
        output(tree, &test.program, &[&test.name], 30.0, |c| _ = c.env("GCODEC_MUTANTS_REACHED", &file))?;
        Ok(fs::read(&file).unwrap_or_default())
    })?;
    let mut reaching = vec![Vec::new(); tree.mutants.len()];
    for (number, bytes) in reached.iter().enumerate() {
        for mutant in bytes.as_chunks::<4>().0 {
            let mutant = usize::try_from(u32::from_le_bytes(*mutant))?;
            if let Some(tests) = reaching.get_mut(mutant) {
                tests.push(number);
            }
        }
    }
    Ok(reaching)
}

/// Runs tests on a mistake, in order, until they fail or have taken `most` seconds; also returns those that
/// failed.
fn try_one(
    tree: &Tree,
    number: usize,
    own: &[usize],
    tests: &[Test],
    most: f64,
) -> Result<(End, Vec<usize>)> {
    if own.is_empty() {
        return Ok((End::NotReached, Vec::new()));
    }
    let (mut spent, mut at) = (0.0, 0);
    while at < own.len() && (spent < most || at == 0) {
        let program = &tests[own[at]].program;
        let (mut batch, mut seconds) = (vec![own[at]], tests[own[at]].seconds);
        while let Some(&next) = own.get(at + batch.len())
            && tests[next].program == *program
            && seconds + tests[next].seconds < BATCH
        {
            seconds += tests[next].seconds;
            batch.push(next);
        }
        let names: Vec<&str> = batch.iter().map(|&test| tests[test].name.as_str()).collect();
        let limit = 3.0 + 5.0 * seconds;
        let output =
            output(tree, program, &names, limit, |c| _ = c.env("GCODEC_MUTANT", number.to_string()))?;
        match output {
            Some(output) if output.status.success() => {}
            Some(output) if output.status.code().is_some() => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let failed =
                    |test: &&usize| text.contains(&format!("test {} ... FAILED", tests[**test].name));
                return Ok((End::Killed, batch.iter().filter(failed).copied().collect()));
            }
            // Ended by a signal: out of memory or of time.
            _ => return Ok((End::Slow, if batch.len() == 1 { batch } else { Vec::new() })),
        }
        spent += seconds;
        at += batch.len();
    }
    Ok((End::Survived, Vec::new()))
}

/// Runs tests of a program; `None` if they take more than `seconds` of processor time, or much more of time.
fn output(
    tree: &Tree,
    program: &Path,
    names: &[&str],
    seconds: f64,
    prepare: impl Fn(&mut Command),
) -> Result<Option<Output>> {
    let limits =
        format!("ulimit -c 0; ulimit -t {:.0}; ulimit -v {MEMORY}; exec \"$0\" \"$@\"", seconds.ceil());
    let mut command = Command::new("sh");
    command.args(["-c", &limits]).arg(program).args(["--exact", "--test-threads=1"]).args(names);
    command.current_dir(&tree.folder).stdin(Stdio::null()).stderr(Stdio::null());
    prepare(&mut command);
    // A quarter of proptest's number: most mistakes show in the first few.
    command.env("PROPTEST_CASES", "64");
    // A pipe would fill up: a failing test may print all of its input.
    let mut said = tempfile::tempfile()?;
    command.stdout(said.try_clone()?);
    let mut child = command.spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            let mut stdout = Vec::new();
            said.rewind()?;
            said.read_to_end(&mut stdout)?;
            return Ok(Some(Output { status, stdout, stderr: Vec::new() }));
        }
        if start.elapsed().as_secs_f64() > 20.0 + 4.0 * seconds {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(if start.elapsed().as_millis() < 100 { 2 } else { 20 }));
    }
}
