"""Pairs of answers in the forms that people have them in, and pairs that are none."""

from .case import Case, Problem, chat, ended, lines, said_by

ASK = said_by("user", "2 + 2?")
GOOD, BAD = said_by("assistant", "4"), said_by("assistant", "5")
DPO = {"objective": "dpo"}
TURNS = [{"from": "human", "value": "2 + 2?"}]

PREFERENCES = [
    Case(
        seen="hiyouga/LlamaFactory#5455",
        name="pairs of alpaca",
        data=lines(
            {"instruction": "Choose.", "input": "A or B?", "chosen": "A.", "rejected": "B."}
        ),
        options=DPO,
        trained=ended("A.", "B."),
    ),
    Case(
        seen="Flossiee/HonestyLLM#7",
        name="pairs of sharegpt",
        data=lines(
            {
                "conversations": TURNS,
                "chosen": {"from": "gpt", "value": "4"},
                "rejected": {"from": "gpt", "value": "5"},
            }
        ),
        options=DPO,
        trained=ended("4", "5"),
    ),
    Case(
        seen="ml-explore/mlx-lm#417",
        name="messages that are asked, and answers as texts",
        data=lines({"messages": [ASK], "chosen": "4", "rejected": "5"}),
        options=DPO,
        trained=ended("4", "5"),
    ),
    Case(
        seen="OpenRLHF/OpenRLHF#909",
        name="the prompt apart, and the prompt in both answers",
        data=lines(
            {"prompt": [ASK], "chosen": [GOOD], "rejected": [BAD]},
            {"chosen": [ASK, GOOD], "rejected": [ASK, BAD]},
        ),
        options=DPO,
        trained=ended("4", "5", "4", "5"),
        notes={"duplicate": 1},
    ),
    Case(
        seen="NVIDIA-NeMo/RL#1027",
        name="answers that do not end with the assistant",
        data=lines({"chosen": [ASK, GOOD], "rejected": [ASK, said_by("user", "5")]}),
        options=DPO,
        problems=(Problem(line=1, code="no_assistant", said="rejected: no assistant turn"),),
    ),
    Case(
        seen="modelscope/ms-swift#2008",
        name="another column of the prompt",
        data=lines({"raw_prompt": "q", "prompt": "2 + 2?", "chosen": "4", "rejected": "5"}),
        options=DPO,
        trained=ended("4", "5"),
        notes={"ignored_keys": 1},
    ),
    Case(
        seen="modelscope/ms-swift#1922",
        name="columns of other names",
        data=lines({"query": "2 + 2?", "response": "4", "rejected_response": "5"}),
        options={
            **DPO,
            "columns": {"prompt": "query", "chosen": "response", "rejected": "rejected_response"},
        },
        trained=ended("4", "5"),
    ),
    Case(
        seen="Yifan-Song793/ETO#14",
        name="two answers that are one",
        data=lines({"prompt": "2 + 2?", "chosen": "4", "rejected": "4"}),
        options=DPO,
        problems=(Problem(line=1, code="same_answers", said="neither is better"),),
    ),
    Case(
        seen="QwenLM/Qwen3-Coder#224",
        name="an object of objects without keys",
        data=b'{ {"prompt": "Prompt"}, {"chosen": "a"}, {"rejected": "b"} }\n',
        options=DPO,
        problems=(Problem(line=1, code="invalid_json", said="expected a string key"),),
    ),
    Case(
        seen="kaito-project/aikit#826",
        name="a row of one answer among pairs",
        data=lines({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}, chat("2 + 2?", "4")),
        problems=(Problem(line=2, code="wrong_kind", said="dpo learns from pairs"),),
    ),
    Case(
        seen="hiyouga/LlamaFactory#6730",
        name="a talk that is answered before its two answers",
        data=lines({"messages": [ASK, GOOD], "chosen": "4", "rejected": "5"}),
        options=DPO,
        problems=(Problem(line=1, code="prompt_answered", said="leave that turn out"),),
    ),
]
