"""Reading a small text file that a user named."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import ProfileError


def read_text(path: Path, limit: int) -> str:
    """The UTF-8 text of `path` (a byte order mark is dropped), of at most `limit` bytes.

    Raises ProfileError when it is missing, a directory, unreadable, too large or not UTF-8.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise ProfileError(where, None, "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise ProfileError(where, None, "this is a directory", "name a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the path is not valid"
        raise ProfileError(
            where, None, f"the file cannot be read ({reason})", "check the path and its rights"
        ) from None
    if len(data) > limit:
        raise ProfileError(where, None, f"the file is larger than {limit:,} bytes", "check that it is the right file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ProfileError(where, None, f"line {line} is not UTF-8 text", "save the file as UTF-8") from None


def user_path(text: str) -> Path:
    """The path `text` means, with `~` as the user's home. Raises ProfileError where there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ProfileError(text, None, "there is no such home directory", "write the whole path") from None
