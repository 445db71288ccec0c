"""Whom the client trusts, and as whom it presents itself: an SSL context from what the profile says."""

from __future__ import annotations

import ssl

from profiles.errors import ProfileError
from profiles.models import Tls


def context_of(tls: Tls) -> ssl.SSLContext:
    """A client context: verified against the system's authorities, or against `ca`, or (only by name) not at all.

    Raises ProfileError naming the file that cannot be used.
    """
    context = _trusting(tls)
    if tls.cert is not None:
        try:
            # A password would be asked for on the terminal, in the middle of a run: an empty one fails instead.
            context.load_cert_chain(tls.cert, tls.key, password="")
        except (OSError, ValueError) as exc:
            where = tls.cert if tls.key is None else f"{tls.cert}, {tls.key}"
            raise ProfileError(where, "tls.cert", f"not a usable certificate and key ({_why(exc)})", _PEM) from None
    return context


_PEM = "give PEM files, the key without a password"


def _trusting(tls: Tls) -> ssl.SSLContext:
    if not tls.verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        return ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError) as exc:
        raise ProfileError(str(tls.ca), "tls.ca", f"no usable authorities ({_why(exc)})", "give a PEM file") from None


def _why(exc: BaseException) -> str:
    return getattr(exc, "strerror", None) or str(exc)
