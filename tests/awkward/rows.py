"""Rows of every format: roles, contents, weights, and what is no format at all."""

import json

from .case import Case, Problem, chat, ended, lines, said_by

ONE = chat("One?", "Uno.")


def turns(*pairs: tuple[str, str], **rest: object) -> dict[str, object]:
    """A row of sharegpt: who said what."""
    return {"conversations": [{"from": by, "value": text} for by, text in pairs], **rest}


ROWS = [
    Case(
        seen="hiyouga/LlamaFactory#2381",
        name="a tag that is misspelt",
        data=lines(turns(("human", "a"), ("gpt", "b")), turns(("hummany", "a"), ("gpt", "b"))),
        problems=(
            Problem(line=2, code="unknown_role", said="from 'hummany'; wanted system, human"),
        ),
    ),
    Case(
        seen="hiyouga/LlamaFactory#10606",
        name="a tag that nobody knows, in two rows of three",
        data=lines(
            turns(("human", "3 + 4?"), ("not_a_role", "7")),
            ONE,
            turns(("human", "3 + 4?"), ("not_a_role", "7")),
        ),
        problems=(
            Problem(line=1, code="unknown_role", said="conversations[1] is from 'not_a_role'"),
            Problem(line=3, code="unknown_role", said="conversations[1] is from 'not_a_role'"),
        ),
    ),
    Case(
        seen="hiyouga/LlamaFactory#2481",
        name="roles and contents with names of their own beside them",
        data=lines({"prompt_id": "f0e3", "prompt": "One?", **ONE}),
        trained=ended("Uno."),
        notes={"ignored_keys": 1},
    ),
    Case(
        seen="hiyouga/LlamaFactory#6878",
        name="sharegpt with user and assistant",
        data=lines(turns(("user", "a"), ("assistant", "b"), ("human", "c"), ("gpt", "d"))),
        trained=ended("b", "d"),
    ),
    Case(
        seen="axolotl-ai-cloud/axolotl#752",
        name="some answers are the assistant's, others gpt's",
        data=lines(turns(("human", "a"), ("assistant", "b")), turns(("human", "a"), ("gpt", "c"))),
        trained=ended("b", "c"),
    ),
    Case(
        seen="Tencent/AngelSlim#7",
        name="turns with role instead of from",
        data=lines({"conversations": [said_by("user", "a"), said_by("assistant", "b")]}),
        trained=ended("b"),
    ),
    Case(
        seen="modelscope/ms-swift#5831",
        name="turns that do not come in pairs",
        data=lines(
            chat("a", "b", "c"), chat("a", said_by("user", "and"), said_by("assistant", "b"))
        ),
        trained=ended("b", "b"),
    ),
    Case(
        seen="microsoft-foundry/fine-tuning#23",
        name="two answers in a row",
        data=lines(chat("a", "b", said_by("assistant", "c"))),
        trained=ended("b", "c"),
    ),
    Case(
        seen="tloen/alpaca-lora#239",
        name="a number for an answer",
        data=lines(
            {"instruction": "2 + 2?", "output": "4"}, {"instruction": "3 + 3?", "output": 6}
        ),
        problems=(Problem(line=2, code="bad_content", said="output is a number; wanted a string"),),
    ),
    Case(
        seen="hiyouga/LlamaFactory#4249",
        name="an object for an answer",
        data=lines({"instruction": "Extract.", "input": "x", "output": {"a": None, "b": 57}}),
        problems=(Problem(line=1, code="bad_content", said="output is an object"),),
    ),
    Case(
        seen="hiyouga/LlamaFactory#3555",
        name="two answers, the better one first",
        data=lines({"instruction": "a", "input": "", "output": ["good", "bad"], "history": []}),
        problems=(Problem(line=1, code="bad_content", said="output is a list"),),
    ),
    Case(
        seen="openai/openai-cookbook#73",
        name="a number for a content",
        data=lines(chat("a", said_by("assistant", 3.5))),
        problems=(Problem(line=1, code="bad_content", said="messages[1].content is a number"),),
    ),
    Case(
        seen="hiyouga/LlamaFactory#9618",
        name="not one row of use, for several reasons",
        data=lines({"a": 1}, {"b": 2}, ONE["messages"], chat("a"), chat("a", "")),
        problems=(
            Problem(line=1, code="unknown_format", said="keys seen: a"),
            Problem(line=2, code="unknown_format", said="keys seen: b"),
            Problem(line=3, code="not_an_object", said="the row is a list"),
            Problem(line=4, code="no_assistant", said="nothing to learn"),
            Problem(line=5, code="empty_assistant", said="the assistant says nothing"),
        ),
    ),
    Case(
        seen="openai/openai-cookbook#2524",
        name="weights that are numbers",
        data=lines(
            chat("a", said_by("assistant", "b", weight=0), "c", said_by("assistant", "d", weight=1))
        ),
        trained=ended("d"),
    ),
    Case(
        seen="fw-ai/cookbook#387",
        name="a weight of 0 on an answer among others",
        data=lines(chat("a", "b", "c", said_by("assistant", "d", weight=0), "e", "f")),
        trained=ended("b", "f"),
    ),
    Case(
        seen="fw-ai/cookbook#387",
        name="true or false where others have weights",
        data=lines(
            chat("a", said_by("assistant", "b", trainable=False), "c", said_by("assistant", "d"))
        ),
        trained=ended("d"),
    ),
    Case(
        seen="openai/openai-cookbook#1074",
        name="a weight between 0 and 1",
        data=lines(chat("a", said_by("assistant", "b", weight=0.5))),
        problems=(Problem(line=1, code="bad_weight", said="weight 0.5; wanted 0 or 1"),),
    ),
    Case(
        seen="openai/openai-cookbook#1549",
        name="a picture among the parts",
        data=lines(
            chat(
                said_by(
                    "user",
                    [
                        {"type": "text", "text": "What is it?"},
                        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                    ],
                ),
                "A weir.",
            )
        ),
        problems=(Problem(line=1, code="not_text", said="content[1] has type 'image_url'"),),
    ),
    Case(
        seen="Blaizzy/mlx-vlm#284",
        name="contents as lists of text parts, for a template that wants strings",
        data=lines(chat(said_by("user", [{"type": "text", "text": "One?"}]), "Uno.")),
        trained=ended("Uno."),
    ),
    Case(
        seen="MicrosoftDocs/azure-docs#110314",
        name="empty prompts, for a voice to learn",
        data=lines({"prompt": "", "completion": "The wheel turns."}),
        trained=ended("The wheel turns."),
    ),
    Case(
        seen="huggingface/trl#2541",
        name="prompt and completion without a column of text",
        data=lines({"prompt": "One?", "completion": "Uno."}),
        trained=ended("Uno."),
    ),
    Case(
        seen="unslothai/unsloth#252",
        name="alpaca rows that bring their rendered text",
        data=lines({"instruction": "a", "input": "", "output": "b", "text": "### a: b"}),
        trained=ended("b"),
        notes={"ignored_keys": 1},
    ),
    Case(
        seen="OpenRLHF/OpenRLHF#860",
        name="input and output alone",
        data=lines({"input": "One?", "output": "Uno.", "reward": 0.5}),
        problems=(Problem(line=1, code="unknown_format", said="keys seen: input, output, reward"),),
    ),
    Case(
        seen="ml-explore/mlx-examples#1088",
        name="a bare list of messages as a row",
        data=lines(ONE["messages"]),
        problems=(Problem(line=1, code="unknown_format", said="is it a message? A row is"),),
    ),
    Case(
        seen="simplescaling/s1#39",
        name="columns of other names",
        data=lines({"question": "One?", "solution": "Uno.", "cot_type": "math"}),
        options={"columns": {"prompt": "question", "completion": "solution"}},
        trained=ended("Uno."),
        notes={"ignored_keys": 1},
    ),
    Case(
        seen="huggingface/autotrain-advanced#423",
        name="a column that some rows do not have",
        data=lines({"body": "A weir."}, {"text": "A dam."}),
        options={"columns": {"text": "body"}},
        problems=(Problem(line=2, code="missing_column", said="no column 'body', which is to"),),
    ),
    Case(
        seen="huggingface/open-r1#454",
        name="no column of text, and a mapping that does not fit",
        data=lines(ONE),
        options={"columns": {"text": "message"}},
        problems=(Problem(line=1, code="missing_column", said="keys seen: messages"),),
    ),
    Case(
        seen="agentscope-ai/Trinity-RFT#252",
        name="messages as a string of JSON",
        data=lines({"messages": json.dumps(ONE["messages"])}, {"messages": "[{]"}),
        problems=(Problem(line=2, code="bad_arguments", said="messages is not valid JSON"),),
    ),
    Case(
        seen="ml-explore/mlx-examples#1243",
        name="a chat for a model without a chat template",
        data=lines(ONE),
        template=None,
        problems=(Problem(line=1, code="no_template", said="the model has no chat template"),),
    ),
]
