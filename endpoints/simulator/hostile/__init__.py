"""The hostile server: each named case is one thing that servers and gateways do to clients, and what a correct client
then reports. `serve` plays one case; `python -m endpoints.simulator.hostile --table` writes all of them down."""

from endpoints.simulator.hostile.cases import names
from endpoints.simulator.hostile.server import serve

__all__ = ["names", "serve"]
