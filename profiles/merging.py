"""Laying one document over another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of these keys only one may be given, so that an overlay that names one of them replaces the other.
_EITHER = {
    "auth": ("env", "file"),
    "workload": ("use", "prompts"),
    "launch": ("command", "engine"),
    "before_point": ("post", "command"),
}
_ENGINES_OWN = ("model", "program", "args", "options")  # of a launch: means nothing beside a command


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` over it: maps merge deeply, lists and scalars replace, null deletes. Neither is changed."""
    merged = dict(base)
    for key, value in overlay.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def overlay_sweep(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`merge` for whole sweep documents, knowing which of their keys exclude each other."""
    base = displace(base, overlay)
    for section in ("endpoint", "arms"):
        below, above = base.get(section), overlay.get(section)
        if not isinstance(below, Mapping) or not isinstance(above, Mapping):
            continue
        if section == "endpoint":
            base[section] = displace(below, above)
        else:
            base[section] = {
                name: displace(arm, above[name])
                if isinstance(arm, Mapping) and isinstance(above.get(name), Mapping)
                else arm
                for name, arm in below.items()
            }
    return merge(base, overlay)


def displace(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` without what `overlay` replaces under another name: the other of two exclusive keys (a url or a launch
    too), and headers that differ only in case."""
    kept = dict(base)
    for key, other in (("url", "launch"), ("launch", "url")):
        if overlay.get(key) is not None:
            kept.pop(other, None)
    if isinstance(kept.get("launch"), list):  # a command, to which a map may add
        kept["launch"] = {"command": kept["launch"]}
    if isinstance(launch := overlay.get("launch"), Mapping) and launch.get("command") is not None:
        kept["launch"] = {k: v for k, v in (kept.get("launch") or {}).items() if k not in _ENGINES_OWN}
    for key, pair in _EITHER.items():
        below, above = kept.get(key), overlay.get(key)
        if (
            isinstance(below, Mapping)
            and isinstance(above, Mapping)
            and any(above.get(name) is not None for name in pair)
        ):
            kept[key] = {name: value for name, value in below.items() if name not in pair}
    below, above = kept.get("headers"), overlay.get("headers")
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        replaced = {name.lower() for name in above}
        kept["headers"] = {name: value for name, value in below.items() if name.lower() not in replaced}
    return kept
