//! An encoder writes the same bytes to any kind of output, and removes the bytes of a call that fails.

use gcodec::block::BlockOptions;
use gcodec::frame::UpdateHeader;
use gcodec::stream::{EncodeOptions, Encoder, Output};

/// An output of fixed size, like a buffer of another language's object.
struct Fixed {
    memory: Box<[u8]>,
    len: usize,
}

impl Output for Fixed {
    fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }

    fn append(&mut self, bytes: &[u8]) {
        self.memory[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

/// Writes each block as an update in parts, with failing updates in between, and the end of the stream.
fn write(out: &mut dyn Output) {
    let manifest = crate::streams::manifest();
    let blocks = crate::streams::blocks();
    let mut encoder = Encoder::new(EncodeOptions::default().with_part_bytes(1000));
    let mut written = 0;
    for block in &blocks {
        let options = BlockOptions::default();
        let before = out.bytes().len();
        let header = UpdateHeader::default();
        match encoder.update(out, &header, &manifest, &[(block, options)]) {
            Ok(()) => written += 1,
            Err(_) => assert_eq!(out.bytes().len(), before),
        }
        let (len, offset) = (out.bytes().len(), encoder.offset());
        let out_of_order = [(block, options), (block, options)];
        assert!(encoder.update(out, &header, &manifest, &out_of_order).is_err() || block.add);
        assert!(block.add || (out.bytes().len(), encoder.offset()) == (len, offset));
    }
    assert!(written > 10);
    encoder.finish(out);
}

#[test]
fn any_output_gets_the_same_bytes() {
    let mut expected = vec![7; 3];
    write(&mut expected);
    let mut fixed = Fixed { memory: vec![0; expected.len()].into(), len: 0 };
    fixed.append(&[7; 3]);
    write(&mut fixed);
    assert_eq!(fixed.bytes(), expected);
    assert_eq!(
        gcodec::stream::SliceReader::new(&expected[3..], Default::default()).filter(Result::is_err).count(),
        0
    );
}
