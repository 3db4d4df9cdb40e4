"""Names that have a prefix on one side only, such as `module.` of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gcodec._native import WRAPPERS, without_prefix
from gcodec.errors import InputError

_KNOWN = ("module.", "_orig_mod.", "model.")
_PREFIXES = (*_KNOWN, *(prefix for prefix in WRAPPERS if prefix not in _KNOWN), *(f"{one}{other}" for one in _KNOWN for other in _KNOWN if one != other))


def counterparts(names: Iterable[str], here: Collection[str], prefix: str) -> dict[str, str]:
    """Returns for each of `names` the name in `here` that is the same without a prefix, if there is one.

    The prefix is left out on the side where more names match then, or on both. An inner name may begin with
    it, too: `model.layers.0` here may be `model.model.layers.0` there.

    Raises:
        InputError: two names are the same without the prefix.
    """
    names = list(names)
    best: dict[str, str] = {}
    plain = {name: name for name in here}
    without: dict[str, str] = {}
    for name in here:
        if without.setdefault(without_prefix(name, prefix), name) != name:
            raise InputError(f"without {prefix!r}, two tensors have the name {without_prefix(name, prefix)!r}")
    for known, cut in ((plain, False), (without, False), (plain, True), (without, True)):
        keys = {name: without_prefix(name, prefix) if cut else name for name in names}
        found = {name: known[key] for name, key in keys.items() if key in known}
        if len(found) > len(best) and len(set(found.values())) == len(found):
            best = found
    return best


def hint(names: Iterable[str], here: Collection[str], advice: str = "give strip_prefix={!r}") -> str:
    """Returns the end of a message about names that are not in `here`: the prefix without which all of them
    are, if there is one. advice: how to leave it out."""
    names = list(names)
    if not here or not names:
        return ""
    # If one side has a prefix before all names, the order of the names is the same.
    one, other = sorted((min(here), min(names)), key=len)
    first = other[: len(other) - len(one)]
    for prefix in ([first] if first.endswith(".") else []) + list(_PREFIXES):
        try:
            found = counterparts(names, here, prefix)
        except InputError:
            continue
        if len(found) == len(names) and any(name != own for name, own in found.items()):
            return f": all names match without `{prefix}`" + (advice and "; " + advice.format(prefix))
    return ""
