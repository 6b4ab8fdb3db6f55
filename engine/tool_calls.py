"""Tools and calls of them, in every form that rows have them in, as one form. Pure.

A call becomes `{"type": "function", "function": {"name", "arguments"}}` with the arguments as an
object; a tool stays the object that it is.
"""

from collections.abc import Mapping
from typing import Any

from .row_json import read_value
from .row_types import Unusable, kind


def read_calls(item: Mapping[str, Any], role: str, where: str) -> tuple[Mapping[str, Any], ...]:
    """The calls of a turn: `tool_calls`, or the one `function_call` of before there were tools.

    Raises Unusable.
    """
    calls, old = item.get("tool_calls"), item.get("function_call")
    if old is not None:
        if calls:
            raise Unusable("bad_tool_calls", f"{where} has tool_calls and function_call; keep one")
        calls = [{"function": old}]
    if calls is None or calls == []:
        return ()
    if role != "assistant":
        raise Unusable("bad_tool_calls", f"{where}: tool_calls belong to assistant turns only")
    if not isinstance(calls, list):
        raise Unusable("bad_tool_calls", f"{where}.tool_calls is {kind(calls)}; wanted a list")
    return tuple(_read_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls))


def calls_in_text(text: str, where: str) -> list[Mapping[str, Any]]:
    """The calls that a turn's text holds as JSON: an object, or a list of them."""
    calls = read_value(text, where)
    return [{"function": call} for call in (calls if isinstance(calls, list) else [calls])]


def read_tools(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The `tools` of a row, objects as they are, or the `functions` of before there were tools.

    They may be written as a string of JSON; an empty one says that there are none. Raises Unusable.
    """
    tools, old = row.get("tools"), row.get("functions")
    if old is not None:
        if tools:
            raise Unusable("bad_tools", "the row has tools and functions; keep one of them")
        tools = _objects(old, "functions")
        return tuple({"type": "function", "function": tool} for tool in tools)
    return _objects(tools, "tools")


def _objects(items: Any, name: str) -> tuple[Mapping[str, Any], ...]:
    if isinstance(items, str):
        items = read_value(items, name) if items.strip() else None
    if items is None:
        return ()
    if not isinstance(items, list):
        raise Unusable("bad_tools", f"{name} is {kind(items)}; wanted a list of objects")
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise Unusable("bad_tools", f"{name}[{i}] is {kind(item)}; wanted an object")
    return tuple(items)


def _read_call(call: Any, where: str) -> dict[str, Any]:
    if isinstance(call, dict) and "function" not in call and "name" in call:
        flat = {key: call[key] for key in ("name", "arguments") if key in call}
        call = {key: value for key, value in call.items() if key not in flat} | {"function": flat}
    function: Any = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable("bad_tool_calls", f"{where}: wanted an object with function.name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        named = f"{where}.function.arguments"
        arguments = read_value(arguments, named) if arguments.strip() else {}
    if not isinstance(arguments, dict):
        message = f"{where}.function.arguments is {kind(arguments)}; wanted an object"
        raise Unusable("bad_arguments", message)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}
