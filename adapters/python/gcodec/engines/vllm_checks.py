"""Do vLLM's workers hold the trainer's weights, bit for bit? Each worker digests its own, on its device.

    llm = LLM(model=.., worker_extension_cls="gcodec.engines.vllm_checks.Worker")
    for line in differences(llm, trainer.state_dict()):
        print(line)        # model.layers.3.self_attn.k_proj.weight: other elements in rows 17 to 18

The digests cross the wire, the weights do not. The layout of a model (fused and tensor-parallel weights,
padded vocabularies) is taken from its vLLM layers. Layers that are not known here are an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from gcodec import check
from gcodec._tensors.trees import named_tensors
from gcodec.errors import InputError

_ROWS_SHOWN = 4


class Worker:
    """Methods of vLLM's workers, by `worker_extension_cls`."""

    model_runner: Any

    def gcodec_digests(self) -> list[dict[str, Any]]:
        """Returns the digests of the weights that this worker holds."""
        model = self.model_runner.get_model()
        return [asdict(one) for one in check.digest(_parameters(model), layout(model)).regions]

    def gcodec_rows(self, name: str, first: int, end: int) -> str:
        """Returns the digest of some rows of a tensor of the checkpoint, as far as this worker holds them."""
        model = self.model_runner.get_model()
        return check.rows(_parameters(model), name, first, end, layout(model))


def digests(llm: Any) -> check.Digests:
    """Returns the digests of the weights that the workers of an `LLM` hold.

    Raises:
        InputError: a worker's model has a layer whose layout is not known.
    """
    found = llm.collective_rpc("gcodec_digests")
    return check.merge(check.Digests(tuple(_region(one) for one in rank)) for rank in found)


def differences(llm: Any, weights: Any) -> list[str]:
    """Returns a line for each tensor that the workers of an `LLM` hold with other elements than `weights`, or
    not at all, with the ranges of rows that differ; none if all are equal.

    Args:
        llm: made with `worker_extension_cls="gcodec.engines.vllm_checks.Worker"`.
        weights: the checkpoint's tensors by name, as the trainer has them, on any device.

    Raises:
        InputError: as `digests`.
    """
    named = named_tensors(weights)
    return [_with_rows(llm, named, line) for line in check.digest(named).differences(digests(llm))]


def _with_rows(llm: Any, weights: dict[str, Any], line: str) -> str:
    name, _, what = line.rpartition(": ")
    if what != "other elements" or not weights[name].shape:
        return line

    def theirs(first: int, end: int) -> str:
        return check.add(llm.collective_rpc("gcodec_rows", args=(name, first, end)))

    own = {name: weights[name]}
    found = check.bisect(weights[name].shape[0], lambda first, end: check.rows(own, name, first, end), theirs, most=_ROWS_SHOWN)
    ranges = [str(first) if end == first + 1 else f"{first} to {end - 1}" for first, end in found]
    return f"{line} in rows {', '.join(ranges)}" if ranges else line


def _region(one: dict[str, Any]) -> check.Region:
    whole, offsets, shape = (tuple(one[key]) for key in ("whole", "offsets", "shape"))
    return check.Region(one["name"], one["dtype"], whole, offsets, shape, one["sum"])


def _parameters(model: Any) -> dict[str, Any]:
    """Returns the parameters by name; tied ones once."""
    return dict(model.named_parameters())


def layout(model: Any) -> check.Layout:
    """Returns what the parameters of a vLLM model on this rank hold of the checkpoint.

    Raises:
        InputError: a layer is not known here, or is quantised.
    """
    packed = getattr(model, "packed_modules_mapping", {})
    owners = {f"{path}.{name}" if path else name: (path, module) for path, module in model.named_modules() for name in module._parameters}
    return {name: list(_parts(name, parameter, *owners[name], packed)) for name, parameter in _parameters(model).items()}


def _parts(name: str, parameter: Any, path: str, module: Any, packed: dict[str, list[str]]) -> Iterator[check.Part]:
    kinds = [kind.__name__ for kind in type(module).__mro__]
    leaf = path.rpartition(".")[2]
    method = getattr(module, "quant_method", None)
    if method is not None and not any(kind.__name__.startswith("Unquantized") for kind in type(method).__mro__):
        raise InputError(f"{name}: the layout of {type(method).__name__} is not known: the layer is quantised")
    if "LinearBase" in kinds and not parameter.numel():
        raise InputError(f"{name}: vLLM packed the weights of the layer for the CPU, and removed them")
    if "VocabParallelEmbedding" in kinds:
        # The rest of the rows is padding.
        at = module.shard_indices
        own = at.org_vocab_end_index - at.org_vocab_start_index
        whole = (module.org_vocab_size, *parameter.shape[1:])
        yield check.Part(name, (slice(0, own),), shape=whole, offsets=(at.org_vocab_start_index, *(0,) * (len(whole) - 1)))
    elif "QKVParallelLinear" in kinds or "MergedColumnParallelLinear" in kinds:
        sources = packed.get(leaf)
        sizes = list(_sizes(module, kinds))
        if sources is None or len(sources) != len(sizes):
            raise InputError(f"{name}: the model does not say which {len(sizes)} tensors it holds")
        start = 0
        for source, (size, rank, world) in zip(sources, sizes, strict=True):
            own = size // world
            shape, offsets = (size, *parameter.shape[1:]), (rank * own, *(0,) * (parameter.dim() - 1))
            yield check.Part(_renamed(name, path, source), (slice(start, start + own),), shape=shape, offsets=offsets)
            start += own
        if start != parameter.shape[0]:
            raise InputError(f"{name}: {start} rows are known of {parameter.shape[0]}")
    elif "ColumnParallelLinear" in kinds or "RowParallelLinear" in kinds:
        dim = 0 if "ColumnParallelLinear" in kinds else 1
        if dim >= parameter.dim():
            # The bias of a row-parallel layer is whole on each rank.
            yield check.Part(name)
            return
        dims, first = list(parameter.shape), [0] * parameter.dim()
        first[dim] = module.tp_rank * dims[dim]
        dims[dim] *= module.tp_size
        yield check.Part(name, shape=tuple(dims), offsets=tuple(first))
    elif ("LinearBase" in kinds and "ReplicatedLinear" not in kinds) or "FusedMoE" in kinds:
        raise InputError(f"{name}: the layout of {type(module).__name__} is not known")
    else:
        yield check.Part(name)


def _sizes(module: Any, kinds: Iterable[str]) -> Iterator[tuple[int, int, int]]:
    """Returns the whole size of each tensor of a fused layer, and which of how many shares of it is here."""
    rank, world = module.tp_rank, module.tp_size
    if "QKVParallelLinear" not in kinds:
        yield from ((size, rank, world) for size in module.output_sizes)
        return
    yield module.total_num_heads * module.head_size, rank, world
    # With more ranks than heads, several ranks hold the same head.
    replicas = module.num_kv_head_replicas
    for head in (module.head_size, module.v_head_size):
        yield module.total_num_kv_heads * head, rank // replicas, world // replicas


def _renamed(name: str, path: str, leaf: str) -> str:
    parent = path.rpartition(".")[0]
    return f"{parent}.{leaf}{name[len(path) :]}" if parent else f"{leaf}{name[len(path) :]}"
