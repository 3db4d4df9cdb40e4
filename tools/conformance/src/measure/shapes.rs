//! Shapes of the gradients of well-known networks, with the names that their libraries give.

/// A tensor's name and shape.
pub(super) type Shape = (String, Vec<u64>);

fn named(name: impl Into<String>, shape: impl Into<Vec<u64>>) -> Shape {
    (name.into(), shape.into())
}

/// Returns a weight and a bias for each of its rows.
fn linear(name: &str, shape: [u64; 2]) -> [Shape; 2] {
    [named(format!("{name}.weight"), shape), named(format!("{name}.bias"), [shape[0]])]
}

/// Returns the weight and the bias of a normalisation.
fn norm(name: &str, width: u64) -> [Shape; 2] {
    ["weight", "bias"].map(|part| named(format!("{name}.{part}"), [width]))
}

/// Returns ResNet50's 161 tensors, as in torchvision.
pub(super) fn resnet50() -> Vec<Shape> {
    let mut tensors = Vec::new();
    let mut conv = |conv: String, bn: String, shape: [u64; 4]| {
        tensors.push(named(format!("{conv}.weight"), shape));
        tensors.extend(norm(&bn, shape[0]));
    };
    conv("conv1".into(), "bn1".into(), [64, 3, 7, 7]);
    let mut input = 64;
    for (layer, (blocks, width)) in (1..).zip([(3, 64), (4, 128), (6, 256), (3, 512)]) {
        for block in 0..blocks {
            let within = |name: &str| format!("layer{layer}.{block}.{name}");
            conv(within("conv1"), within("bn1"), [width, input, 1, 1]);
            conv(within("conv2"), within("bn2"), [width, width, 3, 3]);
            conv(within("conv3"), within("bn3"), [width * 4, width, 1, 1]);
            if block == 0 {
                conv(within("downsample.0"), within("downsample.1"), [width * 4, input, 1, 1]);
            }
            input = width * 4;
        }
    }
    tensors.extend(linear("fc", [1000, 2048]));
    tensors
}

/// Returns the tensors of WideResNet-28-10 for ten classes (arXiv 1605.07146).
pub(super) fn wide_resnet() -> Vec<Shape> {
    let mut tensors = vec![named("conv1.weight", [16, 3, 3, 3])];
    let mut input = 16;
    for (group, width) in (1..).zip([160, 320, 640]) {
        for block in 0..4 {
            let within = |name: &str| format!("block{group}.layer.{block}.{name}");
            tensors.extend(norm(&within("bn1"), input));
            tensors.push(named(within("conv1.weight"), [width, input, 3, 3]));
            tensors.extend(norm(&within("bn2"), width));
            tensors.push(named(within("conv2.weight"), [width, width, 3, 3]));
            if block == 0 {
                tensors.push(named(within("convShortcut.weight"), [width, input, 1, 1]));
            }
            input = width;
        }
    }
    tensors.extend(norm("bn1", input));
    tensors.extend(linear("fc", [10, input]));
    tensors
}

/// Returns the tensors of two LSTM layers of 650 units between an embedding of 10,000 words and as many
/// outputs: the medium network for the Penn Treebank of arXiv 1409.2329.
pub(super) fn word_lstm() -> Vec<Shape> {
    let (words, units) = (10_000, 650);
    let mut tensors = vec![named("encoder.weight", [words, units])];
    for layer in 0..2 {
        for of in ["ih", "hh"] {
            tensors.push(named(format!("rnn.weight_{of}_l{layer}"), [4 * units, units]));
            tensors.push(named(format!("rnn.bias_{of}_l{layer}"), [4 * units]));
        }
    }
    tensors.extend(linear("decoder", [words, units]));
    tensors
}

/// Returns the 199 tensors of BERT, base, as in transformers.
pub(super) fn bert() -> Vec<Shape> {
    let (hidden, inner) = (768, 3072);
    let embeddings = [("word", 30_522), ("position", 512), ("token_type", 2)];
    let mut tensors: Vec<Shape> = embeddings
        .map(|(name, rows)| named(format!("embeddings.{name}_embeddings.weight"), [rows, hidden]))
        .into();
    tensors.extend(norm("embeddings.LayerNorm", hidden));
    for layer in 0..12 {
        let within = |name: &str| format!("encoder.layer.{layer}.{name}");
        for name in ["query", "key", "value"] {
            tensors.extend(linear(&within(&format!("attention.self.{name}")), [hidden, hidden]));
        }
        tensors.extend(linear(&within("attention.output.dense"), [hidden, hidden]));
        tensors.extend(norm(&within("attention.output.LayerNorm"), hidden));
        tensors.extend(linear(&within("intermediate.dense"), [inner, hidden]));
        tensors.extend(linear(&within("output.dense"), [hidden, inner]));
        tensors.extend(norm(&within("output.LayerNorm"), hidden));
    }
    tensors.extend(linear("pooler.dense", [hidden, hidden]));
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_their_known_numbers_of_parameters() {
        let counts = |shapes: Vec<Shape>| -> (usize, u64) {
            (shapes.len(), shapes.iter().map(|(_, shape)| shape.iter().product::<u64>()).sum())
        };
        assert_eq!(counts(resnet50()), (161, 25_557_032));
        assert_eq!(counts(wide_resnet()).1, 36_479_194);
        assert_eq!(counts(word_lstm()).1, 19_780_400);
        assert_eq!(counts(bert()), (199, 109_482_240));
    }
}
