"""The vocabulary of the tiny models: every byte, and common words built up letter by letter."""

from __future__ import annotations

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = """
the of and to in is it as was with be by on not he his but at are this have from or had an they which one you were all
her she there would their we him been has when who will no more if out so up said what its about than into them can only
other time new some could these two may first then do any like my now over such our man even most made after also did
many off before must well back through years much where your way down should because long each just state those people
too little world good very year still see own work men day get here between
""".split()  # noqa: SIM905


def byte_letters() -> dict[int, str]:
    """The printable letter that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


def vocabulary() -> tuple[list[str], list[str]]:
    """(tokens, merges): all bytes, then common words built up letter by letter."""
    letters = byte_letters()
    tokens, merges = [letters[b] for b in range(256)], []
    known = set(tokens)
    for word in WORDS:
        for text in (" " + word, word):
            pieces = "".join(letters[b] for b in text.encode())
            left = pieces[0]
            for letter in pieces[1:]:
                if left + letter not in known:
                    known.add(left + letter)
                    tokens.append(left + letter)
                    merges.append(f"{left} {letter}")
                left += letter
    return tokens, merges
