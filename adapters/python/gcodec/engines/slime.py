"""Weight sync of slime through a store: its two hooks around the disk transport.

    GCODEC_STORE=s3://bucket/run                               # trainer and engines
    --update-weight-mode full --update-weight-transport disk --update-weight-disk-dir /dev/shm/weights
    --update-weight-local-checkpoint-dir /local/checkpoint
    --custom-update-weight-post-write-path gcodec.engines.slime.publish
    --sglang-custom-pull-weights-pre-read-hook gcodec.engines.slime.pull

slime writes each version as a whole checkpoint to a folder of the trainer's host. `publish` puts the delta
into the store. On each host of an engine, `pull` recreates the folder from the version that it pulled last.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from gcodec.engines.checkpoints import checkpoint
from gcodec.errors import InputError
from gcodec.store import Follower, Store

STORE = "GCODEC_STORE"
"""The variable with the address of the store."""
_VERSION = "slime_version"

_stores: dict[str, Store] = {}
_followers: dict[str, Follower] = {}
_weights: dict[str, dict[str, torch.Tensor]] = {}


def publish(args: Any, version_dir: str, rollout_engines: Any) -> None:
    """Publishes the checkpoint in `version_dir`, on rank 0; slime calls it on every rank.

    Raises:
        InputError: the folder has no whole checkpoint, or `GCODEC_STORE` is not set.
        ConflictError: another trainer publishes to the store.
    """
    del args, rollout_engines
    if torch.distributed.is_initialized() and torch.distributed.get_rank() != 0:
        return
    # slime calls the hook once for the folder of all versions, before the first.
    version = Path(version_dir).name.removeprefix("weight_v")
    if version.isdigit():
        _store().publish(checkpoint(version_dir), meta={_VERSION: str(int(version))})


def pull(source_dir: str, target_version: int) -> None:
    """Creates the folder of version `target_version` in `source_dir`, completely or not at all.

    Raises:
        InputError: the store has no such version, or `GCODEC_STORE` is not set.
        FormatError, IoError: the store is corrupt, or cannot be reached. No folder is created.
    """
    folder = Path(source_dir) / f"weight_v{target_version:06}"
    # Version 0 is the checkpoint that the engine has loaded. slime calls the hook in several processes.
    if target_version == 0 or folder.exists():
        return
    from safetensors.torch import save_file

    store, address = _store(), os.environ[STORE]
    number = next((v.version for v in store.log(64) if v.meta.get(_VERSION) == str(target_version)), None)
    if number is None:
        raise InputError(f"{address} has no version {target_version} among its newest 64", kind="no-version")
    follower = _followers.setdefault(address, Follower(store))
    weights = _weights.setdefault(address, {})
    if update := follower.stage(number):
        update.apply(weights.__setitem__)
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".gcodec-"))
    try:
        save_file(weights, made / "model.safetensors")
        (made / "model.safetensors.index.json").write_text(_index(weights))
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        # Another process made the folder first.
        if not folder.exists():
            raise


def _index(weights: dict[str, torch.Tensor]) -> str:
    import json

    total = sum(tensor.nbytes for tensor in weights.values())
    return json.dumps({"metadata": {"total_size": total}, "weight_map": {name: "model.safetensors" for name in weights}})


def _store() -> Store:
    address = os.environ.get(STORE)
    if not address:
        raise InputError(f"set {STORE} to the address of the store")
    return _stores.setdefault(address, Store(address))
