"""Where the layers of a vLLM model hold the tensors of its checkpoint.

Fused q, k and v, merged columns, tensor-parallel shards, padded vocabularies and stacked experts are read
where they are. vLLM's CPU kernels pack weights: experts in blocks of 16 rows, which are read in place, and
int4, of which a copy in the checkpoint's order is made, one parameter at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gcodec import check
from gcodec.errors import InputError

UNUSED = ".weight_shape"
"""The end of names of tensors that vLLM loads and does not use: a fused layer keeps that of its last part."""

_BLOCK = 16
"""Rows that vLLM's CPU kernels hold together, the columns of all of them one after another."""

_Shares = list[tuple[int, int, int]]
"""The whole size of each tensor of a fused layer, and which of how many shares of it is here."""


def layout(model: Any) -> check.Layout:
    """Returns what the parameters of a vLLM model on this rank hold of the checkpoint, as `held` gives them.

    Raises:
        InputError: a layer is not known here.
    """
    packed = getattr(model, "packed_modules_mapping", {})
    return {name: list(_parts(name, parameter, *_owner(model, name), packed)) for name, parameter in model.named_parameters()}


def held(model: Any, name: str) -> Any:
    """Returns a parameter of a vLLM model in the shape that its layout describes."""
    parameter, (_, module) = model.get_parameter(name), _owner(model, name)
    if "RoutedExperts" in kinds_of(module) and _experts_are_blocks(name, module):
        count, rows, columns = parameter.shape
        return parameter.view(count, rows // _BLOCK, columns, _BLOCK)
    if name.endswith("weight_packed") and _is_int4_of_the_cpu(module):
        return _nibbles_by_row(parameter)
    return parameter


def _owner(model: Any, name: str) -> tuple[str, Any]:
    path = name.rpartition(".")[0]
    return path, model.get_submodule(path)


def kinds_of(module: Any) -> list[str]:
    """Returns the names of an object's classes: layers are known by them, so that no engine is imported."""
    return [kind.__name__ for kind in type(module).__mro__]


def _parts(name: str, parameter: Any, path: str, module: Any, packed: dict[str, list[str]]) -> Iterator[check.Part]:
    kinds = kinds_of(module)
    if name.endswith(UNUSED):
        return
    if "RoutedExperts" in kinds:
        yield from _experts(name, parameter, path, module)
        return
    int4 = _is_int4_of_the_cpu(module) and name.endswith(("weight_packed", "weight_scale"))
    if not int4 and not name.endswith(".bias"):
        _check_not_quantised(name, module)
    if "LinearBase" in kinds and not parameter.numel():
        raise InputError(f"{name}: vLLM packed the weights of the layer for the CPU, and removed them")
    if "VocabParallelEmbedding" in kinds:
        yield vocabulary(name, parameter, module)
    elif "LinearBase" not in kinds:
        if "FusedMoE" in kinds:
            raise InputError(f"{name}: the layout of {type(module).__name__} is not known")
        yield check.Part(name)
    elif not int4:
        yield from linear(name, tuple(parameter.shape), path, module, packed, *_ranks(module))
    elif module.scheme.group_size == -1:
        raise InputError(f"{name}: int4 with one scale for each row is not known")
    else:
        shape = tuple(parameter.shape[::-1])
        if name.endswith("weight_packed"):
            shape = (parameter.shape[0] * _BLOCK, parameter.shape[1] // 2 // 8)
        for part in linear(name, shape, path, module, packed, *_ranks(module)):
            # Scales lie in the order of their columns.
            yield part if name.endswith("weight_packed") else _transposed(part)


def _ranks(module: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    own = getattr(module, "tp_rank", 0), getattr(module, "tp_size", 1)
    return own, own


def _transposed(part: check.Part) -> check.Part:
    index = (slice(None), *part.index) if part.index else ()
    return check.Part(part.name, index, axes=(1, 0), shape=part.shape, offsets=part.offsets)


def _check_not_quantised(name: str, module: Any) -> None:
    method = getattr(module, "quant_method", None)
    if method is not None and not any(kind.startswith("Unquantized") for kind in kinds_of(method)):
        raise InputError(f"{name}: the layout of {type(method).__name__} is not known: the layer is quantised")


def vocabulary(name: str, parameter: Any, module: Any) -> check.Part:
    """Returns the part of an embedding that a rank has."""
    # The rest of the rows is padding.
    at = module.shard_indices
    own = at.org_vocab_end_index - at.org_vocab_start_index
    whole = (module.org_vocab_size, *parameter.shape[1:])
    return check.Part(name, (slice(0, own),), shape=whole, offsets=(at.org_vocab_start_index, *(0,) * (len(whole) - 1)))


def linear(
    name: str, shape: tuple[int, ...], path: str, module: Any, packed: dict[str, list[str]], own: tuple[int, int], heads: tuple[int, int]
) -> Iterator[check.Part]:
    """Returns the parts of a linear layer's parameter, of the checkpoint's order of dimensions.

    own, heads: rank and size of the layer's group, and of that which k and v are divided by.
    """
    kinds = kinds_of(module)
    if "QKVParallelLinear" in kinds or "MergedColumnParallelLinear" in kinds:
        shares = _shares(module, own, heads) if "QKVParallelLinear" in kinds else [(size, *own) for size in module.output_sizes]
        yield from _fused(name, shape, path, shares, packed)
    elif "ColumnParallelLinear" in kinds or "RowParallelLinear" in kinds:
        dim = 0 if "ColumnParallelLinear" in kinds else 1
        if dim >= len(shape):
            # The bias of a row-parallel layer is whole on each rank.
            yield check.Part(name)
            return
        dims, first = list(shape), [0] * len(shape)
        first[dim] = own[0] * dims[dim]
        dims[dim] *= own[1]
        yield check.Part(name, shape=tuple(dims), offsets=tuple(first))
    elif "ReplicatedLinear" in kinds:
        yield check.Part(name)
    else:
        raise InputError(f"{name}: the layout of {type(module).__name__} is not known")


def _fused(name: str, shape: tuple[int, ...], path: str, shares: _Shares, packed: dict[str, list[str]]) -> Iterator[check.Part]:
    sources = packed.get(path.rpartition(".")[2])
    if sources is None or len(sources) != len(shares):
        raise InputError(f"{name}: the model does not say which {len(shares)} tensors it holds")
    start = 0
    for source, (size, rank, world) in zip(sources, shares, strict=True):
        own = size // world
        whole, offsets = (size, *shape[1:]), (rank * own, *(0,) * (len(shape) - 1))
        yield check.Part(_renamed(name, path, source), (slice(start, start + own),), shape=whole, offsets=offsets)
        start += own
    if start != shape[0]:
        raise InputError(f"{name}: {start} rows are known of {shape[0]}")


def _shares(module: Any, own: tuple[int, int], heads: tuple[int, int]) -> _Shares:
    # With more ranks than heads, several ranks hold the same head.
    replicas, count = module.num_kv_head_replicas, module.total_num_kv_heads
    others = [(count * head, heads[0] // replicas, heads[1] // replicas) for head in (module.head_size, module.v_head_size)]
    return [(module.total_num_heads * module.head_size, *own), *others]


def _renamed(name: str, path: str, leaf: str) -> str:
    parent = path.rpartition(".")[0]
    return f"{parent}.{leaf}{name[len(path) :]}" if parent else f"{leaf}{name[len(path) :]}"


def _experts(name: str, parameter: Any, path: str, module: Any) -> Iterator[check.Part]:
    """Returns the parts of stacked experts: gate and up one after another in w13, and down in w2."""
    kind, config = name.rpartition(".")[2], module.moe_config
    blocks = _experts_are_blocks(name, module)
    own, whole = config.intermediate_size_per_partition, config.intermediate_size
    usual = own * config.tp_size == whole and config.hidden_dim == config.hidden_dim_unpadded
    if not usual or config.num_experts != config.num_logical_experts or kind not in ("w13_weight", "w2_weight"):
        raise InputError(f"{name}: experts that are padded, repeated or have more than weights are not known")
    hidden, first = config.hidden_dim, config.tp_rank * own
    # Half of w13 is more than `own` rows if vLLM pads them.
    names = [(module.ckpt_gate_proj_name, 0), (module.ckpt_up_proj_name, parameter.shape[1] // 2)]
    parent = path.removesuffix(".routed_experts")
    for expert, local in _local_experts(module):
        if kind == "w2_weight":
            down = check.Part(f"{parent}.{expert}.{module.ckpt_down_proj_name}.weight", shape=(hidden, whole), offsets=(0, first))
            yield from _of_expert(down, local, 0, hidden, own, blocks)
            continue
        for source, start in names:
            part = check.Part(f"{parent}.{expert}.{source}.weight", shape=(whole, hidden), offsets=(first, 0))
            yield from _of_expert(part, local, start, own, hidden, blocks)


def _of_expert(part: check.Part, local: int, start: int, rows: int, columns: int, blocks: bool) -> Iterator[check.Part]:
    """Returns the parts of an expert's matrix, which begins at row `start` of the stack's."""
    assert part.offsets is not None
    if not blocks:
        yield check.Part(part.name, (local, slice(start, start + rows), slice(0, columns)), shape=part.shape, offsets=part.offsets)
        return
    for block in range(start // _BLOCK, -(-(start + rows) // _BLOCK)):
        begin, end = max(start, block * _BLOCK), min(start + rows, (block + 1) * _BLOCK)
        index = (local, block, slice(0, columns), slice(begin - block * _BLOCK, end - block * _BLOCK))
        offsets = (part.offsets[0] + begin - start, part.offsets[1])
        yield check.Part(part.name, index, axes=(1, 0), shape=part.shape, offsets=offsets)


def _local_experts(module: Any) -> list[tuple[int, int]]:
    """Returns the experts of this rank, and their places in the stack."""
    places = module.expert_map
    if places is None:
        return [(expert, expert) for expert in range(module.moe_config.num_experts)]
    return [(expert, place) for expert, place in enumerate(places.tolist()[: module.moe_config.num_experts]) if place >= 0]


def _experts_are_blocks(name: str, module: Any) -> bool:
    """Whether vLLM packed experts in blocks of rows; InputError if it shuffled them in another way."""
    _check_not_quantised(name, module)
    method = module.quant_method
    backend = method.unquantized_backend.name
    if backend in ("TRITON", "BATCHED_TRITON"):
        return False
    kernel: Any = getattr(method.moe_kernel, "fused_experts", None)
    if backend == "CPU" and getattr(kernel, "isa", None) == "vec" and not kernel._use_zentorch:
        return True
    raise InputError(f"{name}: the layout of experts for {method.unquantized_backend.value}, {type(kernel).__name__}, is not known")


def _is_int4_of_the_cpu(module: Any) -> bool:
    """Whether it is a layer of compressed-tensors' int4, packed by vLLM for the CPU."""
    scheme = getattr(module, "scheme", None)
    kernel = getattr(scheme, "kernel", None)
    return "CompressedTensorsWNA16" in kinds_of(scheme) and "CPUWNA16LinearKernel" in kinds_of(kernel) and not module.use_w4a8


def _nibbles_by_row(packed: Any) -> Any:
    """Returns int4 weights as the checkpoint has them, eight of a row in an i32, of those that the CPU's
    kernel packed: for each block of 16 rows and each column, the nibbles of these rows in two i32."""
    import torch

    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    nibbles = packed.view(packed.shape[0], -1, 2, 1) >> shifts & 15
    rows = nibbles.flatten(2).transpose(1, 2).flatten(0, 1).unflatten(1, (-1, 8))
    # Different bits of an i32: their sum is their union, and wraps into the sign.
    return (rows << shifts).sum(2, dtype=torch.int32)
