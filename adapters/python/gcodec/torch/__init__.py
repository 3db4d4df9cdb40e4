"""Compressed gradients between the processes of PyTorch.

    ddp = DistributedDataParallel(model)
    state = gcodec.torch.State(model, gcodec.TopK(density=0.01))
    ddp.register_comm_hook(state, gcodec.torch.hook)

`State` and `hook` replace DistributedDataParallel's all-reduce. `DiLoCo` exchanges pseudo-gradients after a
number of local steps. Each rank sums the same frames in the order of the ranks, so all ranks get the same
bits. Before the first exchange, ranks compare their codecs, tensors and versions.

Any backend of `torch.distributed` works. With NCCL, frames are copied to the GPU to travel, and back.
Gradients on a GPU are compressed there if the codec runs on devices.
"""

from gcodec.torch.ddp import State, hook
from gcodec.torch.diloco import DiLoCo
from gcodec.torch.ranks import Profile
from gcodec.torch.scalecom import ScaleCom
from gcodec.torch.schedule import Schedule

__all__ = ["DiLoCo", "Profile", "ScaleCom", "Schedule", "State", "hook"]
