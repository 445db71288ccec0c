"""Filler prose: token i of a text is one piece, a space and a word, fixed by the text's seed and i alone."""

from __future__ import annotations

COMMON = (
    "the of and a to in is it that for was on are with as at be this have from or one by word but not what all were "
    "we when your can there use an each which she do how their if will up other about out many then them these so "
    "some her would make like him into time has look two more write go see number no way could people my than first "
    "water been call who its now find long down day did get come made may part over sound take only little work "
    "know place year live back give most very after thing our just name good sentence think say great where help "
    "through much before line right too mean old any same tell boy follow came want show also around form three "
    "small set put end does another well large must big even such because turn here why ask went men read need land "
    "different home us move try kind hand picture again change off play spell air away animal house point page "
    "letter mother answer found study still learn should world high every near add food between own below country "
    "plant last school father keep tree never start city earth eye light thought"
)
WORDS = COMMON.split()


def piece(seed: int, i: int) -> str:
    """Token i (from 0): a space and a word, at times with a comma or full stop; ASCII that needs no escape in JSON."""
    h = _hash(seed, i)
    word = WORDS[h % len(WORDS)]
    if i == 0 or _mark(_hash(seed, i - 1)) == ".":
        word = word.capitalize()
    return f" {word}{_mark(h)}"


def pieces(seed: int, start: int, count: int) -> str:
    """Tokens start … start + count - 1, joined."""
    return "".join(piece(seed, i) for i in range(start, start + count))


def _hash(seed: int, i: int) -> int:
    """24 bits, unrelated for neighbouring seeds and places."""
    x = (seed * 0x9E3779B97F4A7C15 ^ i * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    return ((x ^ x >> 31) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF) >> 40


def _mark(h: int) -> str:
    chance = h // len(WORDS) % 100
    return "." if chance < 8 else "," if chance < 16 else ""
