//! A model: its bytes, its id, and encoding and decoding of values (spec, models/lgc-conv1d.md).

use std::collections::HashMap;
use std::sync::Arc;

use gcodec::Dtype;
use gcodec::block::ModelId;
use gcodec::frame::{self, Weights};
use gcodec::internal::element::{decode_f32s, encode_f32s};

use crate::error::{Error, Result};
use crate::layer::{Conv, Layer, Signal};
use crate::network::{MAX_LAYERS, Network, check};

/// Name of the format in a model frame.
pub const FORMAT: &str = "lgc-conv1d/1";
const MAGIC: [u8; 8] = *b"lgc-c1d\x01";
const MAX_DECODERS: usize = 4096;

/// Limits on an untrusted model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a model. Default: 64 MiB.
    pub max_bytes: u64,
    /// Elements of a layer's output, 4 bytes each. Default: 2^28.
    pub max_elements: u64,
    /// Multiplications of one encoding or decoding. Default: 2^38, some minutes.
    pub max_multiplications: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 64 << 20, max_elements: 1 << 28, max_multiplications: 1 << 38 }
    }
}

impl Limits {
    /// Sets [`Limits::max_bytes`].
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets [`Limits::max_elements`].
    #[must_use]
    pub fn with_max_elements(mut self, elements: u64) -> Self {
        self.max_elements = elements;
        self
    }

    /// Sets [`Limits::max_multiplications`].
    #[must_use]
    pub fn with_max_multiplications(mut self, multiplications: u64) -> Self {
        self.max_multiplications = multiplications;
        self
    }
}

/// A decoder's use of the innovation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Innovation {
    /// No innovation: the ring variant.
    None = 0,
    /// The innovation is a channel of the last layers, as in the paper.
    Channel = 1,
    /// The innovation is a channel, and its exact values replace the decoder's at their positions.
    Replace = 2,
}

/// An encoder and its decoders, one for each worker or one for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    innovation: Innovation,
    encoder: Network,
    decoders: Vec<Network>,
    /// Values per column of codes: the product of the encoder's strides.
    unit: usize,
    channels: usize,
    bytes: Vec<u8>,
    id: ModelId,
    limits: Limits,
}

impl Model {
    /// Returns a model with these layers.
    ///
    /// # Errors
    /// [`Error::Input`] if the layers do not fit each other or a number is out of its range.
    pub fn new(innovation: Innovation, encoder: Vec<Layer>, decoders: Vec<Vec<Layer>>) -> Result<Self> {
        let mut out = MAGIC.to_vec();
        out.extend([innovation as u8, 0]);
        let count = u16::try_from(decoders.len()).map_err(|_| Error::Input("number of decoders"))?;
        out.extend(count.to_le_bytes());
        let mut rounded = encoder;
        round(&mut rounded);
        write(&mut out, &rounded)?;
        let mut rounded_decoders = decoders;
        for layers in &mut rounded_decoders {
            round(layers);
            write(&mut out, layers)?;
        }
        Self::join(innovation, rounded, rounded_decoders, out, &Limits::default()).map_err(Error::Input)
    }

    /// Reads a model and checks its layers like [`Self::new`].
    ///
    /// # Errors
    /// [`Error::Model`] if the bytes are not a model, [`Error::Limit`] if there are too many. Memory grows
    /// with the bytes present.
    pub fn from_bytes(bytes: &[u8], limits: &Limits) -> Result<Self> {
        check("max_bytes", bytes.len() as u64, limits.max_bytes)?;
        let mut reader = Reader { bytes, at: 0 };
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(Error::Model { what: "wrong magic or version", offset: 0 });
        }
        let innovation = match reader.u8()? {
            0 => Innovation::None,
            1 => Innovation::Channel,
            2 => Innovation::Replace,
            _ => return Err(reader.wrong("innovation")),
        };
        if reader.u8()? != 0 {
            return Err(reader.wrong("reserved byte"));
        }
        let decoder_count = reader.u16()?;
        let encoder = reader.network()?;
        let decoders = (0..decoder_count).map(|_| reader.network()).collect::<Result<Vec<_>>>()?;
        if reader.at != bytes.len() {
            return Err(reader.wrong("bytes left over"));
        }
        Self::join(innovation, encoder, decoders, bytes.to_vec(), limits)
            .map_err(|what| Error::Model { what, offset: bytes.len() as u64 })
    }

    /// Returns the model of a frame that carries its weights.
    ///
    /// # Errors
    /// [`Error::MissingModel`] if the frame only has the location of the weights; [`Error::WrongModel`] if
    /// they have another hash; [`Error::Input`] if they have another format; the errors of
    /// [`Self::from_bytes`].
    pub fn from_frame(frame: &frame::Model, limits: &Limits) -> Result<Self> {
        match &frame.weights {
            Weights::Inline(bytes) => Self::fetched(frame, bytes, limits),
            Weights::At(_) => Err(Error::MissingModel(frame.id)),
        }
    }

    /// Returns the model of a frame, from the bytes found at the frame's location.
    ///
    /// # Errors
    /// The errors of [`Self::from_frame`].
    pub fn fetched(frame: &frame::Model, bytes: &[u8], limits: &Limits) -> Result<Self> {
        if frame.format != FORMAT {
            return Err(Error::Input("a model of another format"));
        }
        check("max_bytes", bytes.len() as u64, limits.max_bytes)?;
        let found = id_of(bytes);
        if found != frame.id {
            return Err(Error::WrongModel { expected: frame.id, found });
        }
        Self::from_bytes(bytes, limits)
    }

    fn join(
        innovation: Innovation,
        encoder: Vec<Layer>,
        decoders: Vec<Vec<Layer>>,
        bytes: Vec<u8>,
        limits: &Limits,
    ) -> Result<Self, &'static str> {
        if !(1..=MAX_DECODERS).contains(&decoders.len()) {
            return Err("number of decoders");
        }
        let (encoder, unit, channels) = Network::encoder(encoder)?;
        let decoders =
            decoders.into_iter().map(|layers| Network::decoder(layers, unit, channels, innovation));
        let decoders = decoders.collect::<Result<_, _>>()?;
        let (id, limits) = (id_of(&bytes), limits.clone());
        Ok(Self { innovation, encoder, decoders, unit, channels, bytes, id, limits })
    }

    /// Returns the hash of the model's bytes.
    pub fn id(&self) -> ModelId {
        self.id
    }

    /// Returns the model's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns a frame that carries the weights.
    pub fn frame(&self, name: &str) -> frame::Model {
        frame::Model::inline(FORMAT, name, self.bytes.clone())
    }

    /// Returns a frame with the location of the weights.
    pub fn reference(&self, name: &str, location: &str) -> frame::Model {
        frame::Model {
            id: self.id,
            format: FORMAT.to_owned(),
            name: name.to_owned(),
            weights_len: self.bytes.len() as u64,
            weights: Weights::At(location.to_owned()),
        }
    }

    /// Returns the decoders' use of an innovation.
    pub fn innovation(&self) -> Innovation {
        self.innovation
    }

    /// Returns the encoder.
    pub fn encoder(&self) -> &Network {
        &self.encoder
    }

    /// Returns the number of values per column of codes.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Returns the decoders.
    pub fn decoders(&self) -> &[Network] {
        &self.decoders
    }

    /// Returns the decoder of a sender: the only one, or the one with the sender's number.
    ///
    /// # Errors
    /// [`Error::Input`] if the sender has none.
    pub fn decoder_of(&self, sender: u64) -> Result<&Network> {
        let number = if self.decoders.len() == 1 { 0 } else { usize::try_from(sender).unwrap_or(usize::MAX) };
        self.decoders.get(number).ok_or(Error::Input("the model has no decoder for this sender"))
    }

    /// Returns the shape of the codes for this many values: channels and columns.
    pub fn code_shape(&self, values: usize) -> [u64; 2] {
        [self.channels as u64, values.div_ceil(self.unit) as u64]
    }

    /// Encodes values; the codes have the shape [`Self::code_shape`], row-major.
    ///
    /// # Errors
    /// [`Error::NotFinite`] or [`Error::Limit`].
    pub fn encode(&self, values: &[f32]) -> Result<Vec<f32>> {
        let columns = values.len().div_ceil(self.unit) * self.unit;
        check("max_elements", columns as u64, self.limits.max_elements)?;
        let mut data = values.to_vec();
        data.resize(columns, 0.0);
        Ok(self.encoder.run(Signal { channels: 1, columns, data }, &[], &self.limits)?.data)
    }

    /// Decodes the `values` values of a sender. `innovation`: exact values that the sender transmits, as
    /// ascending positions and numbers; a model without innovation takes none.
    ///
    /// # Errors
    /// [`Error::Input`] if the number of codes differs from [`Self::code_shape`], a code is not finite, a
    /// position is out of range, or the sender has no decoder; [`Error::NotFinite`] or [`Error::Limit`].
    pub fn decode(
        &self,
        sender: u64,
        codes: &[f32],
        values: usize,
        innovation: &[(usize, f32)],
    ) -> Result<Vec<f32>> {
        let decoder = self.decoder_of(sender)?;
        let [channels, columns] = self.code_shape(values).map(|d| d as usize);
        if codes.len() as u64 != (channels as u64).saturating_mul(columns as u64) {
            return Err(Error::Input("the number of codes does not fit the number of values"));
        }
        if !codes.iter().chain(innovation.iter().map(|(_, x)| x)).all(|x| x.is_finite()) {
            return Err(Error::Input("a code or an innovation that is not finite"));
        }
        if self.innovation == Innovation::None && !innovation.is_empty() {
            return Err(Error::Input("an innovation for a model that takes none"));
        }
        check("max_elements", values as u64, self.limits.max_elements)?;
        let mut extra = vec![0.0; values];
        for &(place, x) in innovation {
            *extra.get_mut(place).ok_or(Error::Input("an innovation outside the values"))? = x;
        }
        let codes = Signal { channels, columns, data: codes.to_vec() };
        let mut decoded = decoder.run(codes, &extra, &self.limits)?.data;
        if self.innovation == Innovation::Replace {
            innovation.iter().for_each(|&(place, x)| decoded[place] = x);
        }
        Ok(decoded)
    }
}

/// Returns the hash that identifies a model.
fn id_of(bytes: &[u8]) -> ModelId {
    frame::Model::inline(FORMAT, "", bytes.to_vec()).id
}

/// Rounds the numbers of layers that are stored as binary16.
fn round(layers: &mut [Layer]) {
    for layer in layers {
        if let Layer::Conv(conv) | Layer::Transposed(conv) = layer
            && conv.half
        {
            for numbers in [Some(&mut conv.weights), conv.bias.as_mut()].into_iter().flatten() {
                // The buffer has room for all numbers and the type is a float, so this cannot fail.
                let _ = gcodec::internal::element::round_f32s(Dtype::F16, numbers);
            }
        }
    }
}

const HAS_BIAS: u8 = 1;
const HALF: u8 = 2;

fn write(out: &mut Vec<u8>, layers: &[Layer]) -> Result<()> {
    if !(1..=MAX_LAYERS).contains(&layers.len()) {
        return Err(Error::Input("number of layers"));
    }
    out.push(layers.len() as u8);
    for layer in layers {
        match layer {
            Layer::Conv(conv) | Layer::Transposed(conv) => {
                conv.check_sizes().map_err(Error::Input)?;
                out.push(if matches!(layer, Layer::Conv(_)) { 1 } else { 2 });
                out.extend((conv.inputs as u16).to_le_bytes());
                out.extend((conv.outputs as u16).to_le_bytes());
                out.extend([conv.kernel as u8, conv.stride as u8, conv.before as u8]);
                out.push(u8::from(conv.bias.is_some()) * HAS_BIAS + u8::from(conv.half) * HALF);
                for numbers in [Some(&conv.weights), conv.bias.as_ref()].into_iter().flatten() {
                    let dtype = if conv.half { Dtype::F16 } else { Dtype::F32 };
                    let start = out.len();
                    out.resize(start + dtype.bits() as usize / 8 * numbers.len(), 0);
                    encode_f32s(dtype, numbers, 0, &mut out[start..])?;
                }
            }
            Layer::LeakyRelu(slope) => {
                out.push(3);
                out.extend(slope.to_le_bytes());
            }
            Layer::Crop => out.push(4),
            Layer::Innovation => out.push(5),
        }
    }
    Ok(())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn wrong(&self, what: &'static str) -> Error {
        Error::Model { what, offset: self.at as u64 }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let bytes = self.bytes[self.at..].get(..len).ok_or(self.wrong("it ends too early"))?;
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn network(&mut self) -> Result<Vec<Layer>> {
        let count = self.u8()?;
        if !(1..=MAX_LAYERS).contains(&count.into()) {
            return Err(self.wrong("number of layers"));
        }
        (0..count).map(|_| self.layer()).collect()
    }

    fn layer(&mut self) -> Result<Layer> {
        match self.u8()? {
            1 => Ok(Layer::Conv(self.conv()?)),
            2 => Ok(Layer::Transposed(self.conv()?)),
            3 => Ok(Layer::LeakyRelu(f32::from_le_bytes(self.array()?))),
            4 => Ok(Layer::Crop),
            5 => Ok(Layer::Innovation),
            _ => Err(self.wrong("kind of a layer")),
        }
    }

    fn conv(&mut self) -> Result<Conv> {
        let [inputs, outputs] = [self.u16()?, self.u16()?].map(usize::from);
        let [kernel, stride, before, flags] = self.array()?;
        let [kernel, stride, before] = [kernel, stride, before].map(usize::from);
        if flags & !(HAS_BIAS | HALF) != 0 {
            return Err(self.wrong("reserved flags"));
        }
        let half = flags & HALF != 0;
        let mut conv =
            Conv { inputs, outputs, kernel, stride, before, weights: Vec::new(), bias: None, half };
        conv.check_sizes().map_err(|what| self.wrong(what))?;
        conv.weights = self.numbers(inputs * outputs * kernel, half)?;
        if flags & HAS_BIAS != 0 {
            conv.bias = Some(self.numbers(outputs, half)?);
        }
        Ok(conv)
    }

    fn numbers(&mut self, count: usize, half: bool) -> Result<Vec<f32>> {
        let dtype = if half { Dtype::F16 } else { Dtype::F32 };
        // The bytes are checked before memory is allocated.
        let bytes = self.take(count * dtype.bits() as usize / 8)?;
        let mut numbers = vec![0.0; count];
        decode_f32s(dtype, bytes, 0, &mut numbers)?;
        Ok(numbers)
    }
}

/// Models by their ids, for a reader of latent codes.
#[derive(Debug, Clone, Default)]
pub struct Models {
    known: HashMap<ModelId, Arc<Model>>,
}

impl Models {
    /// Returns an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds a model.
    pub fn add(&mut self, model: Arc<Model>) {
        self.known.insert(model.id(), model);
    }

    /// Returns the model with this id.
    ///
    /// # Errors
    /// [`Error::MissingModel`].
    pub fn get(&self, id: ModelId) -> Result<&Arc<Model>> {
        self.known.get(&id).ok_or(Error::MissingModel(id))
    }
}
