//! Kills commands while they write. A replaced file must be the old or the complete new one, and an appended
//! file must keep its old contents.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gcodec::Limits;
use gcodec::file::{File, recover};
use gcodec::stream::{Event, SliceReader};

use super::scratch::{Scratch, has, must};
use super::{Section, sources, thousands};
use crate::Result;
use crate::programs::gcodec;

/// A command and its target.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// Arguments without the target's.
    pub(crate) args: String,
    pub(crate) target: &'static str,
    pub(crate) appends: bool,
    pub(crate) old: Vec<u8>,
    /// Contents of the target after an undisturbed run.
    pub(crate) new: Vec<u8>,
}

impl Job {
    pub(crate) fn command(&self, program: &Path, folder: &Path) -> Command {
        let mut command = Command::new(program);
        self.on(&mut command, folder);
        command
    }

    /// Adds the arguments, and discards the output.
    pub(crate) fn on(&self, command: &mut Command, folder: &Path) {
        command.args(self.args.split_whitespace()).args(["-o", self.target, "--quiet"]);
        command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
}

/// Returns the commands that write, with their inputs in `scratch`: `rows` rows of real data.
pub(crate) fn jobs(scratch: &Scratch, program: &Path, rows: u64) -> Result<Vec<Job>> {
    for (name, skip) in [("old", 0), ("new", 1)] {
        let tensor = sources::digits(skip, rows)?;
        let shape = [rows as usize, 64];
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.into(), tensor.data())?;
        scratch.write(&format!("{name}.safetensors"), &safetensors::serialize([("w", view)], None)?)?;
    }
    let run = |args: &str| must(program, scratch.root(), args).map(drop);
    run("encode old.safetensors -o first.gcu --codec natural -q")?;
    run("encode new.safetensors -o second.gcu --codec natural -q --sender 1")?;
    run("encode new.safetensors -o sync.gcu --codec delta --base old.safetensors -q")?;
    let job = |name, args: &str, target, old: &str, appends| -> Result<Job> {
        let old = scratch.read(old)?;
        let mut job = Job { name, args: args.into(), target, appends, old, new: Vec::new() };
        scratch.write(target, &job.old)?;
        if !job.command(program, scratch.root()).status()?.success() {
            return Err(format!("{name} fails undisturbed").into());
        }
        job.new = scratch.read(target)?;
        match job.new == job.old {
            true => Err(format!("{name} changes nothing").into()),
            false => Ok(job),
        }
    };
    Ok(vec![
        job("encode", "encode new.safetensors --codec lossless", "out.gcu", "first.gcu", false)?,
        job(
            "encode --append",
            "encode new.safetensors --codec lossless --append",
            "log.gcu",
            "first.gcu",
            true,
        )?,
        job(
            "decode --base",
            "decode sync.gcu --base old.safetensors",
            "now.safetensors",
            "old.safetensors",
            false,
        )?,
        job("reduce", "reduce first.gcu second.gcu", "sum.gcu", "second.gcu", false)?,
        job("recover", "recover sync.gcu", "saved.gcu", "first.gcu", false)?,
    ])
}

/// State of a target after a kill.
#[derive(Default)]
struct Tally {
    runs: u64,
    killed: u64,
    old: u64,
    new: u64,
    /// Appended in part: all old data is readable, the rest is refused or recovered.
    torn: u64,
    temporary: u64,
    wrong: Vec<String>,
}

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let mut section = Section::new(
        "Kills",
        "Commands that replace a file or append to it are killed by SIGKILL: at random times, and at \
         each system call that opens, writes, links, renames, flushes, truncates or removes a file (by \
         `strace`, kind by kind and call by call until the command completes). The target must then \
         be the old file or the complete new one. A file that was appended to may also have a part \
         of the new segment: all old contents are readable, the rest is refused as `truncated`, \
         `recover` saves every complete frame, and appending to the saved file works. A new file has no \
         name while it is written, where the system has such files. Otherwise, and between its link and \
         the rename that replaces the target, it is called `.NAME.RANDOM.tmp`, and a kill can leave it. \
         The same command, run again, writes the new file.",
        &[
            "Command",
            "Killed",
            "runs",
            "killed",
            "old file",
            "new file",
            "partly appended",
            "temporary files left",
            "wrong",
        ],
    );
    if !cfg!(unix) {
        section.skipped("there is no SIGKILL here");
        return Ok(vec![section]);
    }
    let program = gcodec()?;
    let scratch = Scratch::new("crash")?;
    // Large enough for several write calls: about 80 or 150 kB of floats.
    let jobs = jobs(&scratch, &program, if quick { 300 } else { 600 })?;
    let kills = if quick { 20 } else { 200 };
    for job in &jobs {
        let tally = at_random(job, &program, &scratch, kills)?;
        report(&mut section, job, "at random", tally);
    }
    if !has("strace") {
        section.skipped("killing at exact system calls needs strace: apt-get install strace");
        return Ok(vec![section]);
    }
    for job in &jobs {
        match at_calls(job, &program, &scratch, quick)? {
            Some(tally) => report(&mut section, job, "at each call", tally),
            None => section.skipped("strace cannot trace here (no permission for ptrace?)"),
        }
    }
    Ok(vec![section])
}

fn report(section: &mut Section, job: &Job, how: &str, tally: Tally) {
    for wrong in tally.wrong.iter().take(5) {
        section.wrong(format!("{}: {wrong}", job.name));
    }
    let counts = [tally.runs, tally.killed, tally.old, tally.new, tally.torn, tally.temporary];
    let counts = counts.into_iter().chain([tally.wrong.len() as u64]).map(thousands);
    section.row([job.name.to_owned(), how.to_owned()].into_iter().chain(counts));
}

/// Kills at times that are spread over a run's length.
fn at_random(job: &Job, program: &Path, scratch: &Scratch, kills: u64) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        scratch.write(job.target, &job.old)?;
        let start = Instant::now();
        job.command(program, scratch.root()).status()?;
        longest = longest.max(start.elapsed());
    }
    // Kills that come too late do not count: at most three times as many runs.
    for turn in 0..3 * kills {
        if tally.killed == kills {
            break;
        }
        scratch.write(job.target, &job.old)?;
        let share = f64::from(gcodec::compress::random::word(7, 0, turn)) / 2f64.powi(32);
        let mut child = job.command(program, scratch.root()).spawn()?;
        std::thread::sleep(longest.mul_f64(share));
        // A finished process cannot be killed; the next line reports its end.
        child.kill()?;
        let status = child.wait()?;
        tally.runs += 1;
        tally.killed += u64::from(status.code().is_none());
        check(job, program, scratch, &mut tally, &format!("{:.2} of the time", share))?;
    }
    Ok(tally)
}

/// System calls that change files or their metadata.
const CALLS: &[&str] = &[
    "write",
    "rename",
    "fsync",
    "linkat",
    "ftruncate",
    "openat",
    "fchmod",
    "lseek",
    "close",
    "unlink",
    "pwrite64",
    "writev",
    "fdatasync",
    "renameat2",
    "copy_file_range",
    "exit_group",
];

/// Kills at the first call of each kind, at the second, and so on, until the command completes. `None` if
/// tracing is impossible. The quick form takes the first kinds, and the first calls of each.
fn at_calls(job: &Job, program: &Path, scratch: &Scratch, quick: bool) -> Result<Option<Tally>> {
    let mut tally = Tally::default();
    let (kinds, most) = if quick { (3, 3) } else { (CALLS.len(), 1000) };
    for kind in &CALLS[..kinds] {
        for call in 1..=most {
            scratch.write(job.target, &job.old)?;
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e"]).arg(format!("trace={kind}"));
            strace.arg("-e").arg(format!("inject={kind}:signal=KILL:when={call}")).arg(program);
            job.on(&mut strace, scratch.root());
            let status = strace.status()?;
            // Strace ends like its child: by the signal, or with its exit code.
            if status.code().is_some_and(|code| code != 0) {
                return Ok(None);
            }
            tally.runs += 1;
            tally.killed += u64::from(status.code().is_none());
            check(job, program, scratch, &mut tally, &format!("{kind} {call}"))?;
            if status.success() {
                break;
            }
        }
    }
    match tally.killed {
        0 => Err(format!("{}: no call was killed", job.name).into()),
        _ => Ok(Some(tally)),
    }
}

/// Checks the files after a kill, and runs the command again.
fn check(job: &Job, program: &Path, scratch: &Scratch, tally: &mut Tally, when: &str) -> Result<()> {
    let found = scratch.read(job.target)?;
    let mut wrong = |what: String| tally.wrong.push(format!("{when}: {what}"));
    if found == job.old {
        tally.old += 1;
    } else if found == job.new {
        tally.new += 1;
    } else if job.appends && found.starts_with(&job.old) && job.new.starts_with(&found) {
        tally.torn += 1;
        if let Err(what) = torn(&job.old, &found) {
            wrong(what);
        }
    } else {
        wrong(format!("{} bytes that are neither the old file nor the new one", found.len()));
    }
    let left = scratch.temporary()?;
    let prefix = format!(".{}.", job.target);
    if let Some(strange) = left.iter().find(|name| !(name.starts_with(&prefix) && name.ends_with(".tmp"))) {
        wrong(format!("a file called {strange} is left"));
    }
    tally.temporary += left.len() as u64;
    // Runs it again beside the leftover files.
    if job.appends && found != job.old {
        if found == job.new {
            return Ok(());
        }
        let refused = job.command(program, scratch.root()).status()?;
        if refused.code() != Some(3) || scratch.read(job.target)? != found {
            tally.wrong.push(format!("{when}: appending to a torn file gives {refused}"));
        }
        // Exit code 1 reports that something was lost.
        let recover = ["recover", job.target, "-o", "repaired.gcu", "-q"];
        Command::new(program).args(recover).current_dir(scratch.root()).status()?;
        std::fs::rename(scratch.path("repaired.gcu"), scratch.path(job.target))?;
    }
    let again = job.command(program, scratch.root()).status()?;
    let now = scratch.read(job.target)?;
    let done = match job.appends && found != job.old {
        // The saved stream may contain the new update already.
        true => File::open(&now, Limits::default()).is_ok_and(|file| file.updates().len() >= 2),
        false => now == job.new,
    };
    if !again.success() || !done {
        tally.wrong.push(format!("{when}: the next run gives {again}, {} bytes", now.len()));
    }
    scratch.remove_temporary()?;
    Ok(())
}

/// Checks a partly appended file: everything old is readable, then the error is `truncated`; `recover` saves
/// all old frames and the complete new ones.
pub(crate) fn torn(old: &[u8], found: &[u8]) -> Result<(), String> {
    let frames = |bytes: &[u8]| {
        let mut frames = Vec::new();
        for event in SliceReader::new(bytes, Limits::default()) {
            match event {
                Ok(Event::Frame(info, _)) => {
                    frames.push(bytes[info.offset as usize..(info.offset + info.len()) as usize].to_vec());
                }
                Ok(_) => {}
                Err(e) => return (frames, Some(e)),
            }
        }
        (frames, None)
    };
    let (before, error) = frames(old);
    if error.is_some() {
        return Err("the old file was not whole".into());
    }
    let (after, error) = frames(found);
    if !after.starts_with(&before) {
        return Err("old frames are not read any more".into());
    }
    match &error {
        Some(e) if e.name() == "truncated" && e.location().is_some() => {}
        other => return Err(format!("a torn tail gives {other:?}")),
    }
    let saved = recover(found, &Limits::default(), Vec::new()).map_err(|e| e.to_string())?;
    let (kept, error) = frames(&saved.stream);
    let payload = |frames: &[Vec<u8>]| -> Vec<Vec<u8>> {
        // Kinds 5 and 0x8002: end and index, which are rewritten.
        frames.iter().filter(|f| ![[5, 0], [2, 0x80]].contains(&[f[4], f[5]])).cloned().collect()
    };
    if error.is_some() || payload(&kept) != payload(&after) {
        return Err(format!("{} frames were saved of {} whole ones", kept.len(), after.len()));
    }
    Ok(())
}
