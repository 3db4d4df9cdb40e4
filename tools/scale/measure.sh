#!/usr/bin/env bash
# Measures what `gcodec-scale sweep` needs, on gradients of the public set: docs/scale/sizes.json and speeds.json.
# tools/scale/measure.sh [FOLDER OF GRADIENTS]; `python3` needs torch and safetensors.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
gradients=$(realpath "${1:-../shared/gradients}")
cargo build --release -p gcodec-cli
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
large=gpt_step0300_worker0_8_times.safetensors
python3 tools/scale/large.py "$gradients/gpt_step0300_worker0.safetensors" 8 "$folder/$large"
plan() {
    local out=$1
    shift
    "$root/target/release/gcodec" plan "$@" --workers 64 --link 1Gbit --compute 1s --json > "$folder/plan.json"
    mv "$folder/plan.json" "$root/docs/scale/$out"
}
cd "$gradients"
plan sizes.json resnet_step0200_worker{0,1,2,3}.safetensors
cd "$folder"
plan speeds.json "$large"
