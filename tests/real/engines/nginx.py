"""nginx between client and server: the system's, in the foreground, with a configuration of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.real.engines.servers import Server, free_port

# How a reply is passed on. nginx speaks HTTP/1.0 to servers unless told otherwise. Then it sends on a buffer when it is
# full; but of a reply in chunks it sends on each chunk at once, whether it is told to buffer or not.
WAYS = {
    "open": "proxy_buffering off;",
    "chunked": 'proxy_http_version 1.1; proxy_set_header Connection "";',
    "held": "",  # as it comes: by the buffer, 4 KiB on most machines
    "whole": "proxy_buffers 8 512k; proxy_busy_buffers_size 512k; proxy_buffer_size 512k;",
}
_CONFIG = """\
daemon off;
master_process off;
error_log stderr;
pid {folder}/nginx.pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location = /health {{ return 200; }}
{locations}
  }}
}}
"""


@contextmanager
def nginx(roots: Mapping[str, str]) -> Iterator[str]:
    """The proxy's root. Under /WAY/NAME it passes on what `roots[NAME]` answers, the way WAY says."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    assert program, "nginx is not installed: apt-get install nginx-light (Debian), or brew install nginx"
    port = free_port()
    locations = []
    for way, how in WAYS.items():
        for name, root in roots.items():
            # Some servers send chunks in HTTP/1.0 too; from a proxy before it, one that holds replies gets none.
            back = root if way in ("open", "chunked") else f"http://127.0.0.1:{port}/open/{name}"
            locations.append(f"    location /{way}/{name}/ {{ {how} proxy_pass {back}/; }}")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nginx.conf"
        config.write_text(_CONFIG.format(folder=folder, port=port, locations="\n".join(locations)))
        with Server("nginx", [program, "-p", folder, "-e", "stderr", "-c", config], port) as server:
            yield server.ready().root
