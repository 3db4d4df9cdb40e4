"""Compressed gradients between the processes of PyTorch.

    ddp = DistributedDataParallel(model)
    state = gcodec.torch.State(model, gcodec.TopK(density=0.01))
    ddp.register_comm_hook(state, gcodec.torch.hook)

`State` and `hook` replace DistributedDataParallel's all-reduce. `Average` averages gradients when it is
called, for other trainers. `DiLoCo` exchanges pseudo-gradients after a number of local steps. `Sharded`
compresses the gradients of `fully_shard` (FSDP2, HSDP). Each rank sums the same frames in the order of the
ranks, so all ranks get the same bits. Before the first exchange, ranks compare their codecs, tensors and
versions.

Any backend of `torch.distributed` works. With NCCL, frames are copied to the GPU for the exchange, and back.
Gradients on a GPU are compressed there if the codec runs on devices.
"""

from typing import TYPE_CHECKING, Any

from gcodec.torch.average import Average
from gcodec.torch.ddp import State, hook
from gcodec.torch.diloco import DiLoCo
from gcodec.torch.lgc import Lgc
from gcodec.torch.ranks import Profile
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.schedule import Schedule
from gcodec.torch.sets import SharedSet

if TYPE_CHECKING:
    from gcodec.torch.fsdp import Sharded

__all__ = ["Average", "DiLoCo", "Lgc", "Profile", "ScaleCom", "Schedule", "Sharded", "SharedSet", "State", "hook"]


def __getattr__(name: str) -> Any:
    # FSDP2 and DTensor take a second to import.
    if name == "Sharded":
        from gcodec.torch.fsdp import Sharded

        return Sharded
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
