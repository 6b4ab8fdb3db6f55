"""Measure this box."""

from .options import Json


def step(as_json: Json = False) -> None:
    """Time"""
