//! The aggregator holds the weights, sums the workers' gradients round by round, and sends all workers the
//! same step.

mod event;
mod settings;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gcodec::block::CodedBlock;
use gcodec::compress::Codec;
use gcodec::error::FormatErrorKind;
use gcodec::file::AtomicFile;
use gcodec::frame::{Manifest, Metadata, Reduction, UpdateHeader, UpdatePart};
use gcodec::reduce::{Sum, SumOptions};
use gcodec::stream::{Body, EncodeOptions};
use gcodec::{Reader, Writer};

pub use self::event::Event;
pub use self::settings::{Config, Control};
use crate::Result;
use crate::data::Digits;
use crate::model::{Numbers, Score, manifest};
use crate::wire::{Timed, blocks, limits, metadata, numbers};

/// Codec of the steps, which are sparse. It is lossless here: a nonzero element is at least 2^-32, the grid
/// of steps, and values stay f32.
const STEP_CODEC: &str = "threshold:at=1e-10,values=f32";
/// Largest magnitude that an element of a gradient may have.
pub const LARGEST: f32 = 1000.0;
/// Connections open at one time, members or not.
pub const CONNECTIONS: usize = 32;
/// Steps that may wait for a member; a member with more does not keep up and is dropped.
const QUEUE: usize = 64;
/// Time for a worker to send its weights at the end, and for the first workers to join.
const ENDS: Duration = Duration::from_secs(120);

/// Result of the training.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Rounds.
    pub rounds: u64,
    /// Score before the first round.
    pub first: Score,
    /// Score after the last round.
    pub last: Score,
    /// Final weights.
    pub weights: Numbers,
    /// Workers that sent their weights at the end, and whether these are equal.
    pub same: BTreeMap<String, bool>,
    /// Bytes of the summed updates, as whole frames.
    pub received: u64,
}

/// An encoded update, shared by the members' queues.
struct Update {
    header: UpdateHeader,
    blocks: Vec<CodedBlock>,
}

struct Member {
    name: String,
    /// Number of the connection.
    connection: usize,
    socket: Arc<TcpStream>,
    /// Queue of the thread that writes to it; none once the last step is queued.
    queue: Option<SyncSender<Arc<Update>>>,
    missed: u32,
}

struct State {
    round: u64,
    weights: Numbers,
    sum: Sum<'static>,
    arrived: BTreeSet<u64>,
    members: BTreeMap<u64, Member>,
    finishing: bool,
    same: BTreeMap<String, bool>,
    received: u64,
}

struct Shared<'a> {
    config: &'a Config,
    control: &'a Control,
    manifest: Arc<Manifest>,
    state: Mutex<State>,
    changed: Condvar,
    closed: AtomicBool,
    connections: AtomicUsize,
    observe: &'a (dyn Fn(&Event) + Sync),
}

/// Reason for the end of a connection.
enum End {
    /// The peer or its connection is gone.
    Gone(String),
    /// The peer broke the protocol.
    Refused(String),
}

impl From<gcodec::Error> for End {
    fn from(e: gcodec::Error) -> Self {
        match &e {
            gcodec::Error::Io(io)
                if io.kind() == ErrorKind::TimedOut || io.kind() == ErrorKind::WouldBlock =>
            {
                Self::Refused("it does not send its name".into())
            }
            gcodec::Error::Io(_) => Self::Gone(e.to_string()),
            gcodec::Error::Format(f) if f.kind == FormatErrorKind::Truncated => Self::Gone(e.to_string()),
            _ => Self::Refused(e.to_string()),
        }
    }
}

/// Trains: accepts connections from `listener` until the rounds of `config` are over and `control` allows
/// the end.
///
/// # Errors
/// If the first workers do not join, if all workers stay away, if the record cannot be written, and if
/// `control` stops it.
pub fn run(
    listener: &TcpListener,
    config: &Config,
    control: &Control,
    observe: &(dyn Fn(&Event) + Sync),
) -> Result<Outcome> {
    if config.start_with == 0 || config.start_with > config.roster.len() {
        return Err("the number of first workers must be 1 to the length of the roster".into());
    }
    let digits = Digits::read()?;
    let manifest = manifest()?;
    let mut record = Writer::new(AtomicFile::create(&config.record)?, EncodeOptions::default());
    let weights = Numbers::random(1);
    record.metadata(&metadata([
        ("federation", "the weights, then a step for each round: subtract it".into()),
        ("roster", config.roster.join(" ")),
    ]))?;
    let first = anchor(0, &weights, config)?;
    record.update(&first.header, &manifest, &first.blocks)?;
    let shared = Shared {
        config,
        control,
        state: Mutex::new(State {
            round: 0,
            weights,
            sum: sum(&manifest),
            arrived: BTreeSet::new(),
            members: BTreeMap::new(),
            finishing: false,
            same: BTreeMap::new(),
            received: 0,
        }),
        manifest,
        changed: Condvar::new(),
        closed: AtomicBool::new(false),
        connections: AtomicUsize::new(0),
        observe,
    };
    listener.set_nonblocking(true)?;
    thread::scope(|scope| {
        scope.spawn(|| accept(scope, listener, &shared));
        let outcome = shared.train(&digits, record);
        shared.closed.store(true, Ordering::SeqCst);
        // Dropping the members drops their queues, which ends the writing threads.
        for member in std::mem::take(&mut shared.lock().members).into_values() {
            hang_up(&member.socket);
        }
        outcome
    })
}

fn sum(manifest: &Arc<Manifest>) -> Sum<'static> {
    Sum::new(manifest, SumOptions::default().with_limits(limits()))
}

/// Encodes the weights as an update for a worker that has none.
fn anchor(round: u64, weights: &Numbers, config: &Config) -> gcodec::Result<Update> {
    let world = config.roster.len() as u64;
    let header = UpdateHeader::default().with_step(round).with_world(world).with_label("weights".into());
    Ok(Update { header, blocks: blocks(weights, Codec::Raw, None)? })
}

fn hang_up(socket: &TcpStream) {
    // An error means that it is closed already, which is the goal.
    let _ = socket.shutdown(Shutdown::Both);
}

fn accept<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    listener: &TcpListener,
    shared: &'scope Shared<'_>,
) {
    let mut connection = 0;
    while !shared.closed.load(Ordering::SeqCst) {
        let Ok((socket, address)) = listener.accept() else {
            // No connection is waiting, or one broke off before it began.
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        connection += 1;
        if shared.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS {
            shared.connections.fetch_sub(1, Ordering::SeqCst);
            shared.say(&Event::Refused { who: address.to_string(), why: "too many connections".into() });
            continue;
        }
        scope.spawn(move || {
            shared.serve(scope, connection, socket, address);
            shared.connections.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

impl Shared<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state, or a short time.
    fn wait<'g>(&self, state: MutexGuard<'g, State>, until: Instant) -> Result<MutexGuard<'g, State>> {
        if self.control.give_up.load(Ordering::SeqCst) {
            return Err("training was stopped".into());
        }
        let left = until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
        Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    fn say(&self, event: &Event) {
        (self.observe)(event);
    }

    /// Runs all rounds, and the end of training.
    fn train(&self, digits: &Digits, mut record: Writer<AtomicFile>) -> Result<Outcome> {
        let begun = Instant::now();
        let mut state = self.lock();
        let first = state.weights.score(digits.test());
        while state.members.len() < self.config.start_with {
            if begun.elapsed() > ENDS {
                return Err(
                    format!("{} of {} workers joined", state.members.len(), self.config.start_with).into()
                );
            }
            state = self.wait(state, begun + ENDS)?;
        }
        drop(state);
        for round in 0.. {
            if round >= self.config.rounds && !self.control.go_on.load(Ordering::SeqCst) {
                break;
            }
            if round % 50 == 0 {
                let score = self.lock().weights.score(digits.test());
                self.say(&Event::Score { round, score });
            }
            let begun = Instant::now();
            let (event, step) = self.round(begun)?;
            self.say(&event);
            record.update(&step.header, &self.manifest, &step.blocks)?;
            thread::sleep(self.config.pace.saturating_sub(begun.elapsed()));
        }
        record.finish()?.commit()?;
        self.finish(digits, first)
    }

    /// Runs one round: the mean of the updates that arrive in time, and the step for all members.
    fn round(&self, begun: Instant) -> Result<(Event, Arc<Update>)> {
        let deadline = begun + self.config.deadline;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let all = state.members.keys().all(|number| state.arrived.contains(number));
            if !state.arrived.is_empty() && (all || now >= deadline) {
                break;
            }
            if now >= begun + ENDS {
                return Err(format!("no worker took part in round {} within {ENDS:?}", state.round).into());
            }
            let until = if now < deadline { deadline } else { begun + ENDS };
            state = self.wait(state, until)?;
        }
        let state = &mut *state;
        let reduced = std::mem::replace(&mut state.sum, sum(&self.manifest)).finish(true)?;
        let step = Numbers::from_tensors(&reduced.tensors()?)?.step(self.config.rate);
        let label = format!("{} times the mean of {}", self.config.rate, self.config.codec);
        let update = Arc::new(Update {
            header: reduced.header.with_label(label),
            blocks: blocks(&step, STEP_CODEC.parse()?, None)?,
        });
        state.weights.subtract(&step);
        let arrived = std::mem::take(&mut state.arrived);
        let mut left_out = Vec::new();
        let mut dropped = Vec::new();
        for (number, member) in &mut state.members {
            member.missed = if arrived.contains(number) { 0 } else { member.missed + 1 };
            if member.missed > 0 {
                left_out.push(member.name.clone());
            }
            let sent = member.queue.as_ref().map(|queue| queue.try_send(Arc::clone(&update)));
            let why = match sent {
                Some(Err(TrySendError::Full(_))) => "it does not read its steps",
                _ if member.missed >= self.config.patience => "it missed too many rounds",
                _ => continue,
            };
            dropped.push((*number, why));
        }
        let round = state.round;
        for (number, why) in dropped {
            self.drop_member(state, number, why.into());
        }
        state.round += 1;
        let took_part = arrived.iter().filter_map(|n| self.config.roster.get(*n as usize).cloned()).collect();
        Ok((Event::Round { round, took_part, left_out }, update))
    }

    /// Ends the members' streams and waits for their weights.
    fn finish(&self, digits: &Digits, first: Score) -> Result<Outcome> {
        let until = Instant::now() + ENDS;
        let mut state = self.lock();
        state.finishing = true;
        state.members.values_mut().for_each(|member| member.queue = None);
        while !state.members.is_empty() && Instant::now() < until {
            state = self.wait(state, until)?;
        }
        let last = state.weights.score(digits.test());
        self.say(&Event::Score { round: state.round, score: last });
        Ok(Outcome {
            rounds: state.round,
            first,
            last,
            weights: state.weights.clone(),
            same: state.same.clone(),
            received: state.received,
        })
    }

    fn drop_member(&self, state: &mut State, number: u64, why: String) {
        if let Some(member) = state.members.remove(&number) {
            hang_up(&member.socket);
            self.say(&Event::Left { name: member.name, round: state.round, why });
            self.changed.notify_all();
        }
    }

    /// Serves one connection from its beginning to its end.
    fn serve<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        connection: usize,
        socket: TcpStream,
        address: SocketAddr,
    ) {
        let socket = Arc::new(socket);
        let (mut who, mut number) = (address.to_string(), None);
        let end = self.converse(scope, connection, &socket, &mut who, &mut number);
        if let (Err(End::Refused(why)), None) = (&end, number) {
            // An error means that the peer is gone.
            let _ = self.tell(&socket, why);
        }
        // Frees the name, unless a newer connection has taken it.
        let mut state = self.lock();
        let member = number.filter(|n| state.members.get(n).is_some_and(|m| m.connection == connection));
        let over = state.finishing || self.closed.load(Ordering::SeqCst);
        match end {
            Ok(()) if over => {}
            Ok(()) => {
                if let Some(number) = member {
                    self.drop_member(&mut state, number, "it ended its stream".into());
                }
            }
            Err(End::Gone(why)) => match member {
                Some(number) => self.drop_member(&mut state, number, why),
                // It was dropped before, which is already reported, or it never sent a name.
                None if number.is_some() || over => {}
                None => self.say(&Event::Refused { who, why }),
            },
            Err(End::Refused(why)) => self.say(&Event::Refused { who, why }),
        }
        if let Some(number) = member {
            state.members.remove(&number);
        }
        self.changed.notify_all();
        hang_up(&socket);
    }

    /// Sends the reason to a refused peer.
    fn tell(&self, socket: &TcpStream, why: &str) -> Result<()> {
        socket.set_write_timeout(Some(Duration::from_secs(1)))?;
        let mut writer = Writer::new(socket, EncodeOptions::default().with_index(false));
        writer.metadata(&metadata([("refused", why.into())]))?;
        writer.finish()?;
        Ok(())
    }

    fn converse<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        connection: usize,
        socket: &Arc<TcpStream>,
        who: &mut String,
        number: &mut Option<u64>,
    ) -> Result<(), End> {
        socket.set_nonblocking(false).map_err(gcodec::Error::from)?;
        socket.set_nodelay(true).map_err(gcodec::Error::from)?;
        let until = Cell::new(Some(Instant::now() + self.config.hello));
        let mut reader = Reader::new(Timed::new(socket, &until), limits());
        let (mut last, mut final_weights) = (None, false);
        while let Some(event) = reader.next_event()? {
            let gcodec::stream::Event::Frame(frame, body) = event else { continue };
            let refuse = |why: String| {
                Err(End::Refused(format!("{why} (its frame {} at byte {:#x})", frame.number, frame.offset)))
            };
            match (body, *number) {
                (Body::Metadata(said), None) => {
                    let Some(said_name) = said.entries.get("name") else {
                        return refuse("it does not send its name".into());
                    };
                    let name: String = said_name.chars().take(40).collect();
                    *who = format!("{name:?} ({who})");
                    match self.join(scope, connection, socket, &name, who, &said) {
                        Ok(place) => *number = Some(place),
                        Err(why) => return refuse(why),
                    }
                    until.set(None);
                }
                (Body::Metadata(said), Some(_)) => {
                    final_weights = said.entries.get("says").is_some_and(|says| says == "weights");
                }
                (Body::Update(_), None) => return refuse("an update before a name".into()),
                (Body::Update(part), Some(sender)) => {
                    let read = match numbers(&part, &self.manifest) {
                        Ok(read) => read,
                        Err(e) => return refuse(e.to_string()),
                    };
                    let taken = match final_weights {
                        true => self.take_weights(connection, sender, &read),
                        false => self.take(connection, sender, &part, &read, &mut last, frame.len()),
                    };
                    if let Err(why) = taken {
                        return refuse(why);
                    }
                }
                (Body::End(_), _) => return Ok(()),
                (Body::Manifest(_), _) => {}
                _ => return refuse("a frame that workers do not send".into()),
            }
        }
        Ok(())
    }

    /// Makes a peer a member, and sends it its metadata and the weights.
    fn join<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        connection: usize,
        socket: &Arc<TcpStream>,
        name: &str,
        who: &str,
        said: &Metadata,
    ) -> Result<u64, String> {
        let Some(place) = self.config.roster.iter().position(|known| known == name) else {
            return Err("this name is not on the roster".into());
        };
        let mut state = self.lock();
        if state.finishing {
            return Err("training is over".into());
        }
        let number = place as u64;
        if state.members.contains_key(&number) {
            return Err("a worker of this name is already connected".into());
        }
        let anchor = anchor(state.round, &state.weights, self.config).map_err(|e| e.to_string())?;
        let welcome = metadata([
            ("sender", number.to_string()),
            ("world", self.config.roster.len().to_string()),
            ("shard", (place % self.config.start_with).to_string()),
            ("shards", self.config.start_with.to_string()),
            ("codec", self.config.codec.clone()),
        ]);
        let (queue, steps) = sync_channel(QUEUE);
        let to = Arc::clone(socket);
        scope.spawn(move || {
            if self.send(&to, &welcome, &anchor, &steps).is_err() {
                // The reading thread sees the closed connection.
                hang_up(&to);
            }
        });
        let socket = Arc::clone(socket);
        let queue = Some(queue);
        state.members.insert(number, Member { name: name.into(), connection, socket, queue, missed: 0 });
        let program = said.entries.get("program").map_or("", String::as_str).chars().take(80).collect();
        self.say(&Event::Joined { who: who.into(), program, round: state.round });
        self.changed.notify_all();
        Ok(number)
    }

    /// Sends a member the weights, and steps as they are queued.
    fn send(
        &self,
        socket: &TcpStream,
        welcome: &Metadata,
        anchor: &Update,
        steps: &Receiver<Arc<Update>>,
    ) -> gcodec::Result<()> {
        socket.set_write_timeout(Some(ENDS))?;
        let mut writer = Writer::new(socket, EncodeOptions::default().with_index(false));
        writer.metadata(welcome)?;
        writer.update(&anchor.header, &self.manifest, &anchor.blocks)?;
        for update in steps {
            writer.update(&update.header, &self.manifest, &update.blocks)?;
        }
        writer.finish()?;
        Ok(())
    }

    /// Adds a gradient to the sum of the round; a late gradient is dropped.
    fn take(
        &self,
        connection: usize,
        sender: u64,
        part: &UpdatePart<'_>,
        read: &Numbers,
        last: &mut Option<u64>,
        bytes: u64,
    ) -> Result<(), String> {
        let header = &part.header;
        if header.sender != sender {
            return Err(format!("it is sender {sender}, its update says {}", header.sender));
        }
        if header.reduction != Reduction::None || header.round != 0 {
            return Err("an update that is not one worker's gradient of one step".into());
        }
        let world = self.config.roster.len() as u64;
        if header.world != world {
            return Err(format!("there are {world} senders, its update says {}", header.world));
        }
        if let Some(tensor) = read.beyond(LARGEST) {
            return Err(format!("{tensor} has an element that is not finite, or beyond {LARGEST}"));
        }
        let mut state = self.lock();
        let Some(member) = state.members.get(&sender).filter(|m| m.connection == connection) else {
            return Ok(());
        };
        let name = member.name.clone();
        if header.step > state.round || last.is_some_and(|last| header.step <= last) {
            return Err(format!("an update of round {} in round {}", header.step, state.round));
        }
        *last = Some(header.step);
        // Every worker starts one more round before it learns that the last one is over.
        if state.finishing {
            return Ok(());
        }
        // After a reconnection within a round, the first update counts.
        if header.step < state.round || state.arrived.contains(&sender) {
            self.say(&Event::Late { name, round: header.step });
            return Ok(());
        }
        state.sum.add(part, 1.0).map_err(|e| e.to_string())?;
        state.arrived.insert(sender);
        state.received += bytes;
        self.changed.notify_all();
        Ok(())
    }

    /// Compares a member's final weights with the aggregator's.
    fn take_weights(&self, connection: usize, sender: u64, read: &Numbers) -> Result<(), String> {
        let mut state = self.lock();
        if !state.finishing {
            return Err("weights before the end".into());
        }
        let Some(member) = state.members.get(&sender).filter(|m| m.connection == connection) else {
            return Ok(());
        };
        let (name, equal) = (member.name.clone(), read.same_bits(&state.weights));
        self.say(&Event::Weights { name: name.clone(), equal });
        state.same.insert(name, equal);
        Ok(())
    }
}
