"""gcodec: the wire format for compressed model updates (gradients, pseudo-gradients, weight deltas).

    data = gcodec.encode({"w": gradient}, gcodec.TopK(density=0.01, values="bf16"))
    tensors = gcodec.decode(data, framework="torch")

`Writer` and `Reader` handle streams of updates, `File` gives random access, `inspect` reports on a stream,
`stats` on tensors. `safe_open`, `load_file` and `save_file` are those of safetensors, for streams, too.
`Options` lists the options of all functions that compress.
"""

from gcodec import check, cuda, store
from gcodec._native import Tensor, __version__, num_threads, set_num_threads
from gcodec.codecs import (
    CODECS,
    Chunked,
    Codec,
    Delta,
    Demo,
    Dither,
    Int8,
    Lossless,
    Natural,
    PowerSgd,
    Qsgd,
    RandK,
    Raw,
    Sbc,
    Sidco,
    Sign,
    Stc,
    TernGrad,
    Threshold,
    TopK,
)
from gcodec.errors import DeviceError, FormatError, GcodecError, InputError, IoError, LimitError, UnsupportedError
from gcodec.feedback import Dgc, Feedback
from gcodec.file import File, FileUpdate
from gcodec.header import UpdateHeader
from gcodec.limits import Limits
from gcodec.loading import load_file, safe_open, save_file
from gcodec.oneshot import decode, encode
from gcodec.options import Options
from gcodec.patches import Patch, Patches, patches
from gcodec.reduction import reduce
from gcodec.report import FrameReport, ManifestReport, Report, TensorReport, UpdateReport, inspect
from gcodec.shards import Shard, shards
from gcodec.statistics import Stats, stats
from gcodec.stream import Decoder, Reader, Update, Writer

__all__ = [
    "CODECS",
    "Chunked",
    "Codec",
    "Decoder",
    "Delta",
    "Demo",
    "DeviceError",
    "Dgc",
    "Dither",
    "Feedback",
    "File",
    "FileUpdate",
    "FormatError",
    "FrameReport",
    "GcodecError",
    "InputError",
    "Int8",
    "IoError",
    "LimitError",
    "Limits",
    "Lossless",
    "ManifestReport",
    "Natural",
    "Options",
    "Patch",
    "Patches",
    "PowerSgd",
    "Qsgd",
    "RandK",
    "Raw",
    "Reader",
    "Report",
    "Sbc",
    "Shard",
    "Sidco",
    "Sign",
    "Stats",
    "Stc",
    "Tensor",
    "TensorReport",
    "TernGrad",
    "Threshold",
    "TopK",
    "UnsupportedError",
    "Update",
    "UpdateHeader",
    "UpdateReport",
    "Writer",
    "__version__",
    "check",
    "cuda",
    "decode",
    "encode",
    "inspect",
    "load_file",
    "num_threads",
    "patches",
    "reduce",
    "safe_open",
    "save_file",
    "set_num_threads",
    "shards",
    "stats",
    "store",
]
