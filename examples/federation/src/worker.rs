//! The Rust worker.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gcodec::compress::{Codec, Feedback};
use gcodec::frame::{Reduction, UpdateHeader};
use gcodec::stream::{Body, EncodeOptions, Event};
use gcodec::{Reader, Writer};

use crate::Result;
use crate::data::{Digits, batch};
use crate::model::{Numbers, manifest};
use crate::wire::{Timed, blocks, limits, metadata, numbers};

/// Time that a worker waits for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Trains with the aggregator at `address` until the stream ends; returns the weights.
///
/// # Errors
/// If no aggregator answers, if it refuses the worker or disconnects, and if its stream is invalid.
pub fn run(address: &str, name: &str) -> Result<Numbers> {
    let digits = Digits::read()?;
    let manifest = manifest()?;
    let socket = TcpStream::connect(address).map_err(|e| format!("{address}: {e}"))?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut writer = Writer::new(&socket, EncodeOptions::default().with_index(false));
    writer.metadata(&metadata([("name", name.into()), ("program", "Rust, by hand".into())]))?;

    let until = Cell::new(None);
    let mut reader = Reader::new(Timed::new(&socket, &until), limits());
    let (mut said, mut shard) = (BTreeMap::new(), Vec::new());
    let (mut weights, mut feedback) = (None, Feedback::new());
    loop {
        until.set(Some(Instant::now() + PATIENCE));
        let header = match reader.next_event()?.ok_or("the aggregator's stream was truncated")? {
            Event::Frame(_, Body::Metadata(m)) => {
                said.extend(m.entries);
                if let Some(why) = said.get("refused") {
                    return Err(format!("the aggregator refused: {why}").into());
                }
                continue;
            }
            Event::Frame(_, Body::Update(part)) => {
                let update = numbers(&part, &manifest)?;
                match &mut weights {
                    None => weights = Some(update),
                    Some(weights) => weights.subtract(&update),
                }
                part.header
            }
            Event::Frame(_, Body::End(_)) => break,
            _ => continue,
        };
        let Some(weights) = &weights else { continue };
        if shard.is_empty() {
            shard = digits.shard(number(&said, "shard")?, number(&said, "shards")?)?;
        }
        let (sender, world): (u64, u64) = (number(&said, "sender")?, number(&said, "world")?);
        // Step `n` subtracted from the weights of round `n` gives the weights of round `n + 1`.
        let step = if header.reduction == Reduction::None { header.step } else { header.step + 1 };
        let (loss, gradient) = weights.gradient(&batch(&shard, step));
        if step.is_multiple_of(50) {
            println!(
                "round {step}: loss {loss:.4} on {} digits of {}",
                batch(&shard, step).len(),
                shard.len()
            );
        }
        let codec = format!("{},seed={}", said.get("codec").ok_or("no codec")?, step * world + sender);
        let update = blocks(&gradient, codec.parse()?, Some(&mut feedback))?;
        let mine =
            UpdateHeader::default().with_step(step).with_sender(sender).with_world(world).with_label(codec);
        writer.update(&mine, &manifest, &update)?;
    }
    let weights = weights.ok_or("the aggregator sent no weights")?;
    writer.metadata(&metadata([("says", "weights".into())]))?;
    let header = UpdateHeader::default().with_sender(number(&said, "sender")?).with_label("weights".into());
    writer.update(&header, &manifest, &blocks(&weights, Codec::Raw, None)?)?;
    writer.finish()?;
    Ok(weights)
}

fn number<T: std::str::FromStr>(said: &BTreeMap<String, String>, key: &str) -> Result<T> {
    let value = said.get(key).ok_or_else(|| format!("the aggregator did not send {key}"))?;
    value.parse().map_err(|_| format!("{key} is {value:?}, not a number").into())
}
