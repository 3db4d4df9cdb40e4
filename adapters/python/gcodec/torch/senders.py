"""What may take the place of a codec in an exchange, and its settings as text."""

from __future__ import annotations

from typing import Any

from gcodec._handshake import Tensors
from gcodec.codecs import Codec, spec_of
from gcodec.errors import InputError
from gcodec.feedback import Dgc, Feedback
from gcodec.options import Chosen
from gcodec.torch.index_sets import SETS
from gcodec.torch.lgc import Lgc
from gcodec.torch.names import own
from gcodec.torch.ranks import Ranks
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.schedule import Schedule
from gcodec.torch.sets import SharedSet


def check_codec(
    codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc, options: Chosen, tensors: Tensors, ranks: Ranks
) -> None:
    """Raises InputError if a codec does not fit the other options, its tensors or the ranks."""
    rules, feedback = options.rules or {}, options.feedback
    if isinstance(codec, (Dgc, *SETS)) and isinstance(feedback, Feedback):
        raise InputError(f"{type(codec).__name__} holds its own residuals: it takes no feedback")
    if isinstance(codec, SETS):
        if feedback is False:
            raise InputError(f"{type(codec).__name__} needs its residuals: feedback cannot be False")
    elif isinstance(codec, Dgc):
        if rules:
            raise InputError("Dgc takes no rules: it compresses every tensor in the same way")
        own(codec.state_dict()["tensors"], tensors)
        if ranks.ready:
            check_workers(codec, ranks.world)
    else:
        for one in (codec, *rules.values()):
            if spec_of(one).partition(":")[0] == "delta":
                raise InputError("deltas have no mean: use another codec than delta")


def check_workers(codec: Dgc, world: int) -> None:
    """Raises InputError if the codec clips for another number of ranks."""
    workers = codec.settings["workers"]
    if codec.settings["clip"] is not None and workers != world:
        raise InputError(f"Dgc clips for {workers} workers, and the group has {world}: set workers={world}")


def text_of(codec: Codec | str | Dgc | ScaleCom | SharedSet | Lgc | Schedule) -> Any:
    """Returns the settings of a codec for the comparison between ranks."""
    if isinstance(codec, Schedule):
        return [(first, text_of(stage)) for first, stage in sorted(codec.stages.items())]
    if isinstance(codec, Dgc):
        return codec.settings
    return str(codec) if isinstance(codec, SETS) else spec_of(codec)
