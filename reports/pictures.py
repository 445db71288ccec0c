"""Charts as pictures, rendered without a browser and without the network."""

from __future__ import annotations

from functools import cache
from typing import Any

import altair as alt
import vl_convert


def svg(spec: dict[str, Any]) -> str:
    """A Vega-Lite declaration as SVG. The renderer is told that no address may be loaded."""
    return str(vl_convert.vegalite_to_svg(spec, vl_version=_version(), allowed_base_urls=[]))


def png(spec: dict[str, Any], scale: float = 2) -> bytes:
    """A Vega-Lite declaration as PNG with `scale` pixels per CSS pixel."""
    return bytes(vl_convert.vegalite_to_png(spec, vl_version=_version(), scale=scale, allowed_base_urls=[]))


@cache
def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script (about 0.9 MB) that sets window.vegaEmbed."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_version())).replace(
        "</script", "<\\/script"
    )


def _version() -> str:
    """The Vega-Lite version Altair writes, as vl-convert names it: 'v6.4.1' -> '6.4'."""
    return ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
