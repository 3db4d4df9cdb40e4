//! Starts everything on one machine: an aggregator, workers as processes, one of which is killed and
//! restarted, and peers that send garbage.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use gcodec::compress::random;
use gcodec::stream::{Body, EncodeOptions, Event as Frame, SliceReader};
use gcodec::{Limits, Writer};

use crate::Result;
use crate::aggregator::{self, Config, Control, Event, Outcome};
use crate::data::root;
use crate::model::{Numbers, manifest};
use crate::wire::{metadata, numbers};

/// Rounds before the first fault.
const QUIET: u64 = 40;
/// Rounds that the restarted worker takes part in before the end.
const BACK: usize = 20;
/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// Library of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `torch_worker.py`
    Torch,
    /// `jax_worker.py`
    Jax,
    /// [`crate::worker`]
    Rust,
}

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Workers by name. The first is killed and restarted.
    pub workers: Vec<(String, Kind)>,
    /// Path of this program, for the Rust workers.
    pub program: PathBuf,
    /// A Python with gcodec, PyTorch and JAX; required by workers that use them.
    pub python: Option<PathBuf>,
    /// Command line of `gcodec` and its first arguments, which opens the record. None: only the library
    /// reads it.
    pub command: Option<Vec<String>>,
    /// Configuration of the training. Its roster is replaced.
    pub config: Config,
    /// Whether to print all events.
    pub print: bool,
}

/// A check and its result.
#[derive(Debug, Clone)]
pub struct Check {
    /// Condition that must hold.
    pub what: &'static str,
    /// Whether it holds.
    pub holds: bool,
    /// Measured values.
    pub found: String,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {}: {}", if self.holds { "ok    " } else { "FAILED" }, self.what, self.found)
    }
}

/// A child process that is killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has already exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Finds a Python that has gcodec, for the workers written in it. Tries `$GCODEC_PYTHON`, the environment
/// that `cargo xtask python` makes beside this program's build, and `$GCODEC_VENV` or
/// `~/.cache/gcodec/venv`.
///
/// # Errors
/// If none has gcodec, PyTorch and JAX; the message says how to make one.
pub fn find_python() -> Result<PathBuf> {
    let env = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.parent()?.join("python/env/bin/python")));
    let venv = env("GCODEC_VENV").or_else(|| Some(env("HOME")?.join(".cache/gcodec/venv")));
    let places = [env("GCODEC_PYTHON"), beside, venv.map(|v| v.join("bin/python"))];
    let probe =
        "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('gcodec', 'torch', 'jax'))))";
    for python in places.iter().flatten() {
        let run = Command::new(python).args(["-c", probe]).stderr(Stdio::null()).status();
        if run.is_ok_and(|status| status.success()) {
            return Ok(python.clone());
        }
    }
    let tried: Vec<_> = places.iter().flatten().map(|p| p.display().to_string()).collect();
    Err(format!(
        "no Python with gcodec, PyTorch and JAX (tried {}). `cargo xtask python` makes one: 6 GB, once per machine. \
         Or set GCODEC_PYTHON, or use only Rust workers: `launch --rust-only`",
        tried.join(", ")
    )
    .into())
}

impl Launch {
    /// Runs everything and returns the checks.
    ///
    /// # Errors
    /// If the run does not reach its end.
    pub fn run(&self) -> Result<Vec<Check>> {
        let mut config = self.config.clone();
        config.roster = self.workers.iter().map(|(name, _)| name.clone()).collect();
        config.start_with = config.roster.len();
        // A fourth member, which will send garbage.
        config.roster.push("guest".into());
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        self.line("launch", &format!("the aggregator listens on {address}"));
        let (control, (tell, told)) = (Control::default(), channel());
        control.go_on.store(true, Ordering::SeqCst);
        let mut stage = Stage { told, seen: Vec::new(), workers: Vec::new() };
        let outcome = thread::scope(|scope| {
            let (config, control, listener) = (&config, &control, &listener);
            let training = scope.spawn(move || {
                let observe = |event: &Event| {
                    let usual = matches!(event, Event::Round { left_out, .. } if left_out.is_empty());
                    if !usual {
                        self.line("aggregator", &event.to_string());
                    }
                    // An error means that the run has failed and stopped listening.
                    let _ = tell.send(event.clone());
                };
                aggregator::run(listener, config, control, &observe)
            });
            let played = self.play(address, &mut stage);
            let ended = training.is_finished();
            control.give_up.store(played.is_err(), Ordering::SeqCst);
            control.go_on.store(false, Ordering::SeqCst);
            let outcome = training.join().map_err(|_| "the aggregator panicked")?;
            // Reports the first error.
            if ended { outcome.and_then(|outcome| played.map(|()| outcome)) } else { played.and(outcome) }
        })?;
        let mut exits = Vec::new();
        for (name, process) in &mut stage.workers {
            exits.push((name.clone(), process.0.wait()?.success()));
        }
        let mut seen = stage.seen;
        seen.extend(stage.told.try_iter());
        self.checks(&outcome, &seen, &exits)
    }

    /// Causes the faults while the aggregator trains.
    fn play(&self, address: SocketAddr, stage: &mut Stage) -> Result<()> {
        for (name, kind) in &self.workers {
            stage.workers.push((name.clone(), self.start(address, name, *kind)?));
        }
        stage.until(|e| matches!(e, Event::Round { round, .. } if *round >= QUIET))?;

        self.line("launch", "a peer connects without a name and sends garbage");
        let nameless = garbage(address, None)?;
        stage.until(|e| matches!(e, Event::Refused { who, .. } if *who == nameless.to_string()))?;
        self.line("launch", "a peer connects as mallory, a name that is not on the roster");
        garbage(address, Some("mallory"))?;
        stage.until(|e| matches!(e, Event::Refused { who, .. } if who.contains("mallory")))?;
        self.line("launch", "a peer joins as guest, receives the weights, and then sends garbage");
        garbage(address, Some("guest"))?;
        stage.until(|e| matches!(e, Event::Refused { who, .. } if who.contains("guest")))?;

        let (victim, kind) = &self.workers[0];
        self.line("launch", &format!("{victim} is killed"));
        // Dropping kills it and waits for it.
        drop(stage.workers.remove(0));
        stage.until(|e| matches!(e, Event::Left { name, .. } if name == victim))?;
        for _ in 0..5 {
            stage.until(|e| matches!(e, Event::Round { took_part, .. } if !took_part.contains(victim)))?;
        }
        self.line("launch", &format!("{victim} is restarted"));
        stage.workers.insert(0, (victim.clone(), self.start(address, victim, *kind)?));
        for _ in 0..BACK {
            stage.until(|e| matches!(e, Event::Round { took_part, .. } if took_part.contains(victim)))?;
        }
        Ok(())
    }

    /// Starts a worker and prints its output.
    fn start(&self, address: SocketAddr, name: &str, kind: Kind) -> Result<Process> {
        let script = match kind {
            Kind::Rust => None,
            Kind::Torch => Some("torch_worker.py"),
            Kind::Jax => Some("jax_worker.py"),
        };
        let mut command = match script {
            None => {
                let mut command = Command::new(&self.program);
                command.arg("worker");
                command
            }
            Some(script) => {
                let mut command = Command::new(self.python.as_ref().ok_or("no Python")?);
                command.arg("-u").arg(root().join("examples/federation").join(script));
                command
            }
        };
        let command = command.args(["--connect", &address.to_string(), "--name", name]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let pipes: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|p| Box::new(p) as _), child.stderr.take().map(|p| Box::new(p) as _)];
        for pipe in pipes.into_iter().flatten() {
            let (name, print) = (name.to_owned(), self.print);
            // The thread ends with the pipe.
            thread::spawn(move || {
                for line in BufReader::new(pipe).lines().map_while(std::result::Result::ok).filter(|_| print)
                {
                    println!("{name:>10} | {line}");
                }
            });
        }
        Ok(Process(child))
    }

    fn line(&self, who: &str, text: &str) {
        if self.print {
            println!("{who:>10} | {text}");
        }
    }

    fn checks(&self, outcome: &Outcome, seen: &[Event], exits: &[(String, bool)]) -> Result<Vec<Check>> {
        let mut checks = Vec::new();
        let mut check = |what, holds, found: String| checks.push(Check { what, holds, found });
        let names: Vec<&String> = self.workers.iter().map(|(name, _)| name).collect();
        let (first, last) = (outcome.first, outcome.last);
        check(
            "the loss falls to less than a third",
            last.loss < first.loss / 3.0,
            format!(
                "{:.4} to {:.4} in {} rounds; test accuracy {:.1} % to {:.1} %",
                first.loss,
                last.loss,
                outcome.rounds,
                100.0 * first.accuracy,
                100.0 * last.accuracy
            ),
        );
        let same: Vec<_> = names.iter().filter(|n| outcome.same.get(**n) == Some(&true)).collect();
        check(
            "all hold the same weights, bit for bit",
            same.len() == names.len() && outcome.same.len() == names.len(),
            format!("equal to the aggregator's: {same:?}"),
        );
        check("the workers exit with success", exits.iter().all(|(_, well)| *well), format!("{exits:?}"));
        let victim = names[0];
        let joined =
            |e: &&Event| matches!(e, Event::Joined { who, .. } if who.starts_with(&format!("{victim:?}")));
        let without = |e: &&Event| matches!(e, Event::Round { took_part, .. } if !took_part.contains(victim));
        let (times, rounds) = (seen.iter().filter(joined).count(), seen.iter().filter(without).count());
        check(
            "a worker is killed and comes back",
            times == 2 && rounds > 0,
            format!("{victim} joined {times} times, and {rounds} rounds went on without it"),
        );
        let refusals: Vec<String> = seen
            .iter()
            .filter_map(|e| match e {
                Event::Refused { who, why } => Some(format!("{who}: {why}")),
                _ => None,
            })
            .collect();
        let by_name = |name: &str| refusals.iter().any(|r| r.starts_with(name) && r.contains("at byte"));
        check(
            "peers that send garbage are refused, with their name and the byte offset",
            refusals.len() == 3 && by_name("127.0.0.1") && by_name("\"mallory\"") && by_name("\"guest\""),
            format!("\n          {}", refusals.join("\n          ")),
        );
        let elements = Numbers::zeros().0.iter().map(Vec::len).sum::<usize>();
        let sent: usize = seen
            .iter()
            .map(|e| if let Event::Round { took_part, .. } = e { took_part.len() } else { 0 })
            .sum();
        let each = outcome.received as f64 / sent.max(1) as f64;
        check(
            "updates are small",
            each * 20.0 < 4.0 * elements as f64,
            format!("{each:.0} bytes for a gradient of {elements} elements, {} as f32", 4 * elements),
        );
        let (rounds, weights) = replay(&self.config.record)?;
        check(
            "the record leads to the same weights",
            rounds == outcome.rounds && weights.same_bits(&outcome.weights),
            format!("{} steps in {}", rounds, self.config.record.display()),
        );
        for (what, tool) in [("gcodec verify", &["verify"][..]), ("gcodec inspect", &["inspect", "--coding"])]
        {
            let Some([program, first @ ..]) = self.command.as_deref() else { continue };
            let mut command = Command::new(program);
            let output =
                command.args(first).args(tool).arg(&self.config.record).current_dir(root()).output()?;
            let text = String::from_utf8_lossy(if output.status.success() {
                &output.stdout
            } else {
                &output.stderr
            })
            .into_owned();
            let head: Vec<&str> = text.lines().take(8).collect();
            check(what, output.status.success(), format!("\n          {}", head.join("\n          ")));
        }
        Ok(checks)
    }
}

/// Events of the aggregator, and the workers.
struct Stage {
    told: Receiver<Event>,
    seen: Vec<Event>,
    workers: Vec<(String, Process)>,
}

impl Stage {
    /// Waits for an event. Fails if a worker exits before it.
    fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            for (name, process) in &mut self.workers {
                if let Some(status) = process.0.try_wait()? {
                    return Err(format!("{name} exited too early: {status}").into());
                }
            }
            let event = match self.told.recv_timeout(Duration::from_millis(100)) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err("the aggregator ended".into()),
            };
            let found = wanted(&event);
            self.seen.push(event);
            if found {
                return Ok(());
            }
        }
        Err(format!("no such event within {PATIENCE:?}").into())
    }
}

/// Connects, sends a name if given, and sends garbage after the answer. Returns its own address.
fn garbage(address: SocketAddr, name: Option<&str>) -> Result<SocketAddr> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    if let Some(name) = name {
        let mut writer = Writer::new(&socket, EncodeOptions::default());
        writer.metadata(&metadata([("name", name.into()), ("program", "noise".into())]))?;
        socket.read_exact(&mut [0; 16])?;
    }
    let mut words = vec![0; 1 << 12];
    random::words(7, 0, 0, &mut words);
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    // The aggregator may close before it has read everything.
    let _ = socket.write_all(&bytes);
    Ok(socket.local_addr()?)
}

/// Returns the number of steps of a record, and the final weights.
fn replay(record: &Path) -> Result<(u64, Numbers)> {
    let (bytes, manifest) = (std::fs::read(record)?, manifest()?);
    let mut reader = SliceReader::new(&bytes, Limits::default());
    let (mut steps, mut weights) = (0, None);
    while let Some(event) = reader.next_event()? {
        let Frame::Frame(_, Body::Update(part)) = event else { continue };
        let update = numbers(&part, &manifest)?;
        match &mut weights {
            None => weights = Some(update),
            Some(weights) => {
                weights.subtract(&update);
                steps += 1;
            }
        }
    }
    Ok((steps, weights.ok_or("the record has no weights")?))
}

/// Finds `gcodec` of this checkout: `$GCODEC_CLI`, Cargo if it started this program, or a file beside this
/// program.
pub fn find_command() -> Option<Vec<String>> {
    if let Ok(chosen) = std::env::var("GCODEC_CLI") {
        return Some(vec![chosen]);
    }
    if let Ok(cargo) = std::env::var("CARGO") {
        let args = ["run", "--quiet", "--release", "--package", "gcodec-cli", "--bin", "gcodec", "--"];
        return Some(std::iter::once(cargo).chain(args.map(String::from)).collect());
    }
    let beside = std::env::current_exe().ok()?.parent()?.join("gcodec");
    Some(vec![beside.exists().then_some(beside)?.to_str()?.to_owned()])
}
