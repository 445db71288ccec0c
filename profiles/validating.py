"""Checking a document against a model, with refusals said in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from profiles.errors import ProfileError, Refusal, did_you_mean

M = TypeVar("M", bound=BaseModel)

_TYPES = {
    "string_type": ("text", "write text, in quotes if it looks like a number"),
    "int_type": ("a whole number", "write a whole number, without quotes"),
    "int_from_float": ("a whole number", "write a whole number, without a point"),
    "float_type": ("a number", "write a number, without quotes"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "dict_type": ("a map of keys and values", "write its keys below it, indented"),
    "model_type": ("a map of keys and values", "write its keys below it, indented"),
    "tuple_type": ("a list", "write a list"),
}
_BOUNDS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}
_BOUND_WORDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def validate(model: type[M], document: Any, place: Callable[[tuple[str, ...]], tuple[str, str | None]]) -> M:
    """`document` as a `model`. Raises ProfileError on its first fault; `place` turns a path into (where, key)."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=True)[0]
    path = tuple(str(step) for step in fault["loc"] if step != "[key]")
    refusal = fault.get("ctx", {}).get("error")
    if isinstance(refusal, Refusal) and refusal.key is not None:
        path = (*path, refusal.key)
    problem, remedy = _in_words(fault)
    where, key = place(path)
    raise ProfileError(where, key, problem, remedy)


def _in_words(fault: Any) -> tuple[str, str]:
    kind, context = fault["type"], fault.get("ctx", {})
    refusal = context.get("error")
    if isinstance(refusal, Refusal):
        return refusal.problem, refusal.remedy
    if kind == "missing":
        return "this key is missing", "add it"
    if kind in _TYPES:
        wanted, remedy = _TYPES[kind]
        return f"this should be {wanted}, but is {_kind_of(fault['input'])}", remedy
    if kind in _BOUNDS:
        bound = _BOUNDS[kind]
        wanted = f"{_BOUND_WORDS[bound]} {_number(context[bound])}"
        return f"this should be {wanted}, but is {_number(fault['input'])}", f"choose a value {wanted}"
    if kind == "literal_error":
        known = [word.strip().strip("'") for word in context["expected"].replace(" or ", ",").split(",")]
        value = fault["input"]
        remedy = did_you_mean(value, known) if isinstance(value, str) else f"use one of: {', '.join(known)}"
        return f"this should be one of {', '.join(known)}", remedy
    return fault["msg"][:1].lower() + fault["msg"][1:], "correct the value"


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _kind_of(value: object) -> str:
    if value is None:
        return "empty"
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a map",
    }
    return names.get(type(value), type(value).__name__)
