"""Tools, calls of them in every form, and templates that are particular about them."""

from typing import Any

from .case import END, Case, Problem, chat, ended, lines, said_by, table

HEADER = "{{ '<|im_start|>' + message.role + '\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def looped(body: str) -> str:
    """A template with that body for every message, and the tools before the first."""
    tools = "{% if loop.first and tools %}{{ tools | tojson + '\n' }}{% endif %}"
    return "{% for message in messages %}" + tools + body + "{% endfor %}" + PROMPT


CALLS = "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
SHOWS_CALLS = looped(HEADER + "{{ message.content or '' }}" + CALLS + "{{ '<|im_end|>\n' }}")
ADDS_CONTENT = looped(HEADER + "{{ message.content + '' }}" + CALLS + "{{ '<|im_end|>\n' }}")
PRINTS_CONTENT = looped(HEADER + "{{ message.content }}" + CALLS + "{{ '<|im_end|>\n' }}")
ADDS_ARGUMENTS = looped(
    HEADER + "{{ message.content or '' }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.name + ' ' + call.function.arguments }}{% endfor %}{{ '<|im_end|>\n' }}"
)
NO_CALLS = looped(HEADER + "{{ message.content or '' }}{{ '<|im_end|>\n' }}")
TOOL = {"type": "function", "function": {"name": "depth", "parameters": {"type": "object"}}}
CALLED = '{"name": "depth", "arguments": {"gate": 3}}' + END


def call(arguments: Any = None, **rest: Any) -> dict[str, Any]:
    """A turn that calls a tool, without words."""
    function = {"name": "depth", "arguments": {"gate": 3} if arguments is None else arguments}
    calls = [{"id": "c1", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls, **rest}


def answer(content: Any = "4 m", **rest: Any) -> dict[str, Any]:
    """What the tool says."""
    return {"role": "tool", "tool_call_id": "c1", "content": content, **rest}


TALK = chat("How deep?", call(), answer(), said_by("assistant", "Four."), tools=[TOOL])
MOVES = chat(
    "Go.",
    {
        **call(),
        "tool_calls": [
            {"function": {"name": "move", "arguments": {"x": 0, "y": 1}}},
            {"function": {"name": "turn", "arguments": {"by": "left"}}},
        ],
    },
)
AT = [chat("When?", call({"time": "2025-08-01"})), chat("When?", call({"time": 1690876800}))]

TOOLS = [
    Case(
        seen="axolotl-ai-cloud/axolotl#2909",
        name="two tools with arguments of their own",
        data=lines(MOVES),
        template=SHOWS_CALLS,
        trained=(
            '{"name": "move", "arguments": {"x": 0, "y": 1}}'
            '{"name": "turn", "arguments": {"by": "left"}}' + END,
        ),
    ),
    Case(
        seen="axolotl-ai-cloud/axolotl#3136",
        name="an argument that is text in one row and a number in the next",
        data=lines(*AT),
        template=SHOWS_CALLS,
        trained=ended(
            '{"name": "depth", "arguments": {"time": "2025-08-01"}}',
            '{"name": "depth", "arguments": {"time": 1690876800}}',
        ),
    ),
    Case(
        seen="ml-explore/mlx-examples#995",
        name="arguments as a string of JSON, and no content",
        data=lines(chat("How deep?", call('{"gate": 3}'), tools=[TOOL])),
        template=SHOWS_CALLS,
        trained=(CALLED,),
    ),
    Case(
        seen="ijl/orjson#53",
        name="a whole number of 67 bits",
        data=lines(chat("Which?", call({"id": 147573952589676412927}))),
        template=SHOWS_CALLS,
        trained=ended('{"name": "depth", "arguments": {"id": 147573952589676412927}}'),
    ),
    Case(
        seen="ijl/orjson#308",
        name="the same inside a string of JSON",
        data=lines(chat("Which?", call('{"id": 9999999999999999999999}'))),
        template=SHOWS_CALLS,
        trained=ended('{"name": "depth", "arguments": {"id": 9999999999999999999999}}'),
    ),
    Case(
        seen="hiyouga/LlamaFactory#2529",
        name="calls and observations of sharegpt",
        data=lines(
            {
                "conversations": [
                    {"from": "human", "value": "How deep?"},
                    {"from": "function_call", "value": CALLED.removesuffix(END)},
                    {"from": "observation", "value": '{"m": 4}'},
                    {"from": "gpt", "value": "Four."},
                ],
                "tools": '[{"name": "depth"}]',
            }
        ),
        template=SHOWS_CALLS,
        trained=(CALLED, "Four." + END),
    ),
    Case(
        seen="OpenPipe/OpenPipe#338",
        name="function_call and functions, of before there were tools",
        data=lines(
            chat(
                "How deep?",
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "depth", "arguments": '{"gate": 3}'},
                },
                {"role": "function", "name": "depth", "content": "4 m"},
                "Four.",
                functions=[{"name": "depth"}],
            )
        ),
        template=SHOWS_CALLS,
        trained=(CALLED, "Four." + END),
    ),
    Case(
        seen="NovaSky-AI/SkyRL#1675",
        name="tools as a string of JSON",
        data=lines({**TALK, "tools": '[{"name": "depth"}]'}),
        template=SHOWS_CALLS,
        trained=(CALLED, "Four." + END),
    ),
    Case(
        seen="castform-ai/benchmax#34",
        name="a call with its name beside its id",
        data=lines(
            chat(
                "How deep?",
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c1", "name": "depth", "arguments": {"gate": 3}}],
                },
            )
        ),
        template=SHOWS_CALLS,
        trained=(CALLED,),
    ),
    Case(
        seen="cubist38/mlx-openai-server#205",
        name="null for the words beside a call",
        data=lines(TALK),
        template=SHOWS_CALLS,
        trained=(CALLED, "Four." + END),
    ),
    Case(
        seen="huggingface/transformers#45348",
        name="no content at all beside a call, and a template that adds to it",
        data=lines(chat("How deep?", {k: v for k, v in call().items() if k != "content"})),
        template=ADDS_CONTENT,
        trained=(CALLED,),
    ),
    Case(
        seen="huggingface/speech-to-speech#425",
        name="null beside a call, and a template that prints it",
        data=lines(chat("How deep?", call())),
        template=PRINTS_CONTENT,
        trained=(CALLED,),
    ),
    Case(
        seen="huggingface/transformers#45419",
        name="a template that takes arguments as text alone",
        data=lines(chat("How deep?", call())),
        template=ADDS_ARGUMENTS,
        trained=ended('depth {"gate": 3}'),
    ),
    Case(
        seen="NVIDIA-NeMo/Automodel#1640",
        name="a template that does not show calls",
        data=lines(chat("How deep?", call(), answer(), said_by("assistant", "Four."))),
        template=NO_CALLS,
        problems=(Problem(line=1, code="mask_not_proven", said="wanted 'depth'"),),
    ),
    Case(
        seen="sgl-project/sglang#22595",
        name="a tool's answer in parts",
        data=lines(
            chat("How deep?", call(), answer([{"type": "text", "text": "4 m"}]), "Four.")
            | {"tools": [TOOL]}
        ),
        template=SHOWS_CALLS,
        trained=(CALLED, "Four." + END),
    ),
    Case(
        seen="raullenchai/Rapid-MLX#731",
        name="a tool's answer to a call that nobody made",
        data=lines(chat("How deep?", call(), answer(tool_call_id="c9"), "Four.", tools=[TOOL])),
        template=SHOWS_CALLS,
        trained=(CALLED, "Four." + END),
        notes={"orphan_answer": 1},
    ),
    Case(
        seen="hiyouga/LlamaFactory#5483",
        name="arguments that are no JSON",
        data=lines(TALK, chat("How deep?", call("gate 3"))),
        template=SHOWS_CALLS,
        problems=(Problem(line=2, code="bad_arguments", said="arguments is not valid JSON"),),
    ),
    Case(
        seen="sgl-project/sglang#28035",
        name="arguments that are JSON, but no object",
        data=lines(chat("How deep?", call('["gate"]')), chat("How deep?", call('"gate"'))),
        template=SHOWS_CALLS,
        problems=(
            Problem(line=1, code="bad_arguments", said="arguments is a list; wanted an object"),
            Problem(line=2, code="bad_arguments", said="arguments is a string; wanted an object"),
        ),
    ),
    Case(
        seen="NVIDIA-NeMo/Automodel#2324",
        name="tools that are one object, and none at all",
        data=lines({**TALK, "tools": TOOL}, {**TALK, "tools": []}, {**TALK, "tools": "[not"}),
        template=SHOWS_CALLS,
        problems=(
            Problem(line=1, code="bad_tools", said="tools is an object; wanted a list of objects"),
            Problem(line=3, code="bad_arguments", said="tools is not valid JSON"),
        ),
    ),
    Case(
        seen="hiyouga/LlamaFactory#7547",
        name="tools that are a blank string",
        data=lines({**chat("One?", "Uno."), "tools": " "}),
        template=SHOWS_CALLS,
        trained=ended("Uno."),
    ),
    Case(
        seen="modelscope/ms-swift#10110",
        name="a table that gives every call the arguments of all",
        data=table([chat("Go.", call({"x": 0})), chat("Go.", call({"y": "left"}))]),
        template=SHOWS_CALLS,
        trained=ended(
            '{"name": "depth", "arguments": {"x": 0}}',
            '{"name": "depth", "arguments": {"y": "left"}}',
        ),
        file_name="train.parquet",
    ),
    Case(
        seen="modelscope/ms-swift#10125",
        name="a table of chats with and without tools",
        data=table([TALK, chat("One?", "Uno.")]),
        template=SHOWS_CALLS,
        trained=(CALLED, *ended("Four.", "Uno.")),
    ),
]
