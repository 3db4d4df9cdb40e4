//! One bit per value.

/// A row of bits, least significant bit of each byte first. Padding bits are zero.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bits {
    len: u64,
    bytes: Vec<u8>,
}

impl Bits {
    /// Takes `bytes` as `len` bits. Returns `None` if the number of bytes differs from `len / 8` rounded up,
    /// or if a padding bit is set.
    pub fn from_bytes(len: u64, bytes: Vec<u8>) -> Option<Self> {
        Self::is_valid(len, &bytes).then_some(Self { len, bytes })
    }

    /// Whether `bytes` are `len` bits with zero padding.
    pub(crate) fn is_valid(len: u64, bytes: &[u8]) -> bool {
        let padding = match len % 8 {
            0 => 0,
            used => bytes.last().map_or(0, |last| last >> used),
        };
        bytes.len() as u64 == len.div_ceil(8) && padding == 0
    }

    /// The number of bits.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bits, eight to a byte.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Bit `index`; false beyond the end.
    pub fn get(&self, index: usize) -> bool {
        self.bytes.get(index / 8).is_some_and(|b| b >> (index % 8) & 1 == 1)
    }
}

impl FromIterator<bool> for Bits {
    fn from_iter<I: IntoIterator<Item = bool>>(iter: I) -> Self {
        let (mut iter, mut bits) = (iter.into_iter(), Self::default());
        bits.bytes.reserve(iter.size_hint().0 / 8);
        loop {
            let (mut byte, mut here) = (0, 0u32);
            for bit in iter.by_ref().take(8) {
                byte |= u8::from(bit) << here;
                here += 1;
            }
            if here > 0 {
                bits.bytes.push(byte);
                bits.len += u64::from(here);
            }
            if here < 8 {
                break;
            }
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_padding_are_checked() {
        assert_eq!(
            Bits::from_bytes(9, vec![0xff, 1]).map(|b| (b.len(), b.get(8), b.get(9))),
            Some((9, true, false))
        );
        assert_eq!(Bits::from_bytes(9, vec![0xff, 2]), None);
        assert_eq!(Bits::from_bytes(9, vec![0xff]), None);
        assert_eq!(Bits::from_bytes(8, vec![0xff, 0]), None);
        assert_eq!(Bits::from_bytes(0, vec![]), Some(Bits::default()));
        assert!(Bits::default().is_empty() && !Bits::from_bytes(1, vec![1]).unwrap().is_empty());
        assert!(!Bits::from_bytes(8, vec![0xff]).unwrap().get(8));
        assert_eq!(Bits::from_bytes(1, vec![]), None);
        let bits: Bits = (0..17).map(|i| i % 3 == 0).collect();
        assert_eq!(Bits::from_bytes(17, bits.as_bytes().to_vec()), Some(bits));
    }
}
