"""Templates that refuse, lose or rewrite turns, and reasoning beside the words."""

from .case import Case, Problem, chat, ended, lines, said_by
from .tools import HEADER, PROMPT, looped

TEXT = "{{ message.content + '<|im_end|>\n' }}"
NO_SYSTEM = looped("{% if message.role != 'system' %}" + HEADER + TEXT + "{% endif %}")
ALTERNATES = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    + HEADER
    + TEXT
    + "{% endfor %}"
    + PROMPT
)
FORGETS_THOUGHTS = looped(
    HEADER + "{{ message.content if loop.last else message.content.split('</think>')[-1] }}"
    "{{ '<|im_end|>\n' }}"
)
SHOWS_REASONING = looped(
    HEADER + "{% if message.reasoning_content and loop.last %}"
    "{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}" + TEXT
)
EMPTY_THOUGHTS = looped(
    HEADER
    + "{% if message.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    + TEXT
)
MERGES_SYSTEM = (
    "{% for message in messages %}{% if message.role != 'system' %}"
    + HEADER
    + "{% if loop.index0 == 1 and messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}"
    "{% endif %}" + TEXT + "{% endif %}{% endfor %}" + PROMPT
)
DROPS_THE_SECOND = looped("{% if loop.index0 != 1 %}" + HEADER + TEXT + "{% endif %}")
SETS_REASONING = looped(
    HEADER
    + "{% if message.role == 'assistant' %}{% set parts = message.content.split('</think>') %}"
    "{% if loop.last and parts | length > 1 %}"
    "{{ '<think>\n' + parts[0].split('<think>')[-1] | trim + '\n</think>\n\n' }}{% endif %}"
    "{{ parts[-1] | trim + '<|im_end|>\n' }}{% else %}" + TEXT + "{% endif %}"
)
THOUGHT = "<think>hm</think>Uno."
SYSTEM = said_by("system", "Be brief.")
ONE = [said_by("user", "One?"), said_by("assistant", "Uno.")]
LAST = {"train_on": "last_assistant"}
EACH = {"train_on": "each_assistant"}

CHATS = [
    Case(
        seen="NVIDIA-NeMo/Automodel#3144",
        name="a system turn that the template drops",
        data=lines(chat(*ONE), chat(SYSTEM, *ONE)),
        template=NO_SYSTEM,
        problems=(Problem(line=2, code="turn_lost", said="loses or rewrites messages[0] (system"),),
    ),
    Case(
        seen="unslothai/unsloth#334",
        name="roles that do not alternate, for a template that wants it",
        data=lines(chat("a", "b"), chat("a", said_by("user", "b"), said_by("assistant", "c"))),
        template=ALTERNATES,
        problems=(Problem(line=2, code="template_error", said="roles must alternate"),),
    ),
    Case(
        seen="huggingface/alignment-handbook#93",
        name="a system turn for such a template",
        data=lines(chat(SYSTEM, *ONE)),
        template=ALTERNATES,
        problems=(Problem(line=1, code="template_error", said="roles must alternate"),),
        advice="put what the system says into the first turn of the user",
    ),
    Case(
        seen="NVIDIA-NeMo/Speech#16284",
        name="a turn that is lost although its words come again later",
        data=lines(chat(said_by("user", "yes"), said_by("user", "yes"), said_by("assistant", "b"))),
        template=DROPS_THE_SECOND,
        problems=(Problem(line=1, code="turn_lost", said="messages[1] (user)"),),
    ),
    Case(
        seen="verl-project/verl#7807",
        name="a template that takes reasoning out of earlier turns, all of them trained",
        data=lines(chat("One?", THOUGHT, "Two?", "Dos.")),
        template=FORGETS_THOUGHTS,
        problems=(Problem(line=1, code="turn_lost", said="so train that one alone"),),
    ),
    Case(
        seen="pytorch/torchtitan#2769",
        name="the same where the last turn alone is trained",
        data=lines(chat("One?", THOUGHT, "Two?", "<think>so</think>Dos.")),
        template=FORGETS_THOUGHTS,
        options=LAST,
        trained=ended("<think>so</think>Dos."),
        notes={"history_reasoning": 1},
    ),
    Case(
        seen="modelscope/ms-swift#4939",
        name="the same where the earlier turns have weight 0",
        data=lines(chat("One?", said_by("assistant", THOUGHT, weight=0), "Two?", "Dos.")),
        template=FORGETS_THOUGHTS,
        trained=ended("Dos."),
        notes={"history_reasoning": 1},
    ),
    Case(
        seen="axolotl-ai-cloud/axolotl#3088",
        name="a template that adds empty thoughts to the last answer alone",
        data=lines(chat("One?", "Uno."), chat("One?", "Uno.", "Two?", "Dos.")),
        template=EMPTY_THOUGHTS,
        problems=(
            Problem(line=2, code="template_rewrites_history", said="differently once the conver"),
        ),
    ),
    Case(
        seen="THUDM/slime#330",
        name="reasoning beside the words",
        data=lines(chat("One?", said_by("assistant", "Uno.", reasoning_content="hm"))),
        template=SHOWS_REASONING,
        trained=ended("<think>hm</think>Uno."),
    ),
    Case(
        seen="NVIDIA-NeMo/Automodel#1640",
        name="reasoning for a template that does not know it",
        data=lines(chat("One?", said_by("assistant", "Uno.", reasoning_content="hm, one"))),
        problems=(Problem(line=1, code="reasoning_lost", said="reasoning of messages[1]"),),
    ),
    Case(
        seen="fw-ai/cookbook#378",
        name="reasoning under another name",
        data=lines(chat("One?", said_by("assistant", "Uno.", thinking="hm"))),
        template=SHOWS_REASONING,
        trained=ended("<think>hm</think>Uno."),
    ),
    Case(
        seen="NVIDIA-NeMo/Automodel#2348",
        name="reasoning in a turn of sharegpt",
        data=lines(
            {
                "conversations": [
                    {"from": "human", "value": "One?"},
                    {"from": "gpt", "value": "Uno.", "reasoning_content": "hm"},
                ]
            }
        ),
        template=SHOWS_REASONING,
        trained=ended("<think>hm</think>Uno."),
    ),
    Case(
        seen="NVIDIA-NeMo/Automodel#2349",
        name="reasoning of earlier turns, which the template leaves out",
        data=lines(
            chat(
                "One?",
                said_by("assistant", "Uno.", reasoning_content="well"),
                "Two?",
                said_by("assistant", "Dos.", reasoning_content="so"),
            )
        ),
        template=SHOWS_REASONING,
        options=LAST,
        trained=ended("<think>so</think>Dos."),
        notes={"history_reasoning": 1},
    ),
    Case(
        seen="ggml-org/llama.cpp#25238",
        name="a template that trims what is said",
        data=lines(chat("Indent.", "    return 1\n")),
        template=looped(HEADER + "{{ message.content | trim }}{{ '<|im_end|>\n' }}"),
        trained=ended("return 1"),
        notes={"white_space_cut": 1},
    ),
    Case(
        seen="ggml-org/llama.cpp#5665",
        name="a template that puts the system's words into the user's turn",
        data=lines(chat(SYSTEM, *ONE)),
        template=MERGES_SYSTEM,
        trained=ended("Uno."),
    ),
    Case(
        seen="NVIDIA-NeMo/Speech#16284",
        name="reasoning in every turn, each turn in a row of its own",
        data=lines(chat("One?", THOUGHT, "Two?", "<think>so</think>Dos.")),
        template=FORGETS_THOUGHTS,
        options=EACH,
        trained=ended(THOUGHT, "<think>so</think>Dos."),
        notes={"history_reasoning": 1},
    ),
    Case(
        seen="huggingface/trl#4879",
        name="empty thoughts before every answer, as they are when the model answers",
        data=lines(chat("One?", "Uno.", "Two?", "Dos.")),
        template=EMPTY_THOUGHTS,
        options=EACH,
        trained=ended("<think></think>Uno.", "<think></think>Dos."),
    ),
    Case(
        seen="huggingface/trl#6363",
        name="a completion with the end of its reasoning alone",
        data=lines(chat("2 + 2?", "2+2 equals 4.\n</think>\n\nThe answer is 4.")),
        template=SETS_REASONING,
        trained=ended("<think>\n2+2 equals 4.\n</think>\n\nThe answer is 4."),
    ),
    Case(
        seen="axolotl-ai-cloud/axolotl#3098",
        name="reasoning without the line feeds that the template gives it",
        data=lines(chat("One?", THOUGHT, "Two?", "<think>so</think>Dos.")),
        template=SETS_REASONING,
        options=EACH,
        trained=ended("<think>\nhm\n</think>\n\nUno.", "<think>\nso\n</think>\n\nDos."),
        notes={"history_reasoning": 1, "white_space_cut": 1},
    ),
]
