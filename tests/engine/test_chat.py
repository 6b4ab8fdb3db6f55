"""Labels are the assistant's words and end tokens, proven by decoding; else a row is refused."""

import json
import signal
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from headrace.engine import template
from headrace.engine.chat import NOT_TRAINED, Example, RenderProblem, render
from headrace.engine.model_files import ModelError
from headrace.engine.row_types import Conversation
from headrace.engine.rows import parse_row
from tiny import CHAT_TEMPLATE, make_tokenizer

SYSTEM = {"role": "system", "content": "Answer in one word."}
HEADER = "{{ '<|im_start|>' + message['role'] + '\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def looped(body: str) -> str:
    """A template with that body for every message."""
    return "{% for message in messages %}" + body + "{% endfor %}" + PROMPT


MARKED = looped(
    HEADER + "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{{ '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
)
MARKED_TEXT_ALONE = MARKED.replace(
    "{{ '<|im_end|>' }}{% endgeneration %}", "{% endgeneration %}{{ '<|im_end|>' }}"
)
STRIPS_OLD_REASONING = looped(
    HEADER + "{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}"
    "{{ '<|im_end|>\n' }}"
)
SHOWS_TOOLS = looped(
    "{% if loop.first and tools %}{{ tools | tojson }}{% endif %}"
    + HEADER
    + "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str | None, **rest: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **rest}


def tokenizer(template: str = CHAT_TEMPLATE) -> Any:
    made = make_tokenizer()
    made.chat_template = template
    return made


def conversation(*messages: dict[str, Any], **rest: Any) -> Conversation:
    row = parse_row(json.dumps({"messages": list(messages), **rest}).encode())
    assert isinstance(row, Conversation), row
    return row


def trained(example: Example, made: Any = None) -> list[str]:
    """The labelled runs, decoded."""
    made = made or tokenizer()
    runs: list[list[int]] = [[]]
    for label in example.labels:
        if label != NOT_TRAINED:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [made.decode(run) for run in runs if run]


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, MARKED, MARKED_TEXT_ALONE])
def test_labels_are_the_assistants_words_with_their_end_token(template: str) -> None:
    row = conversation(SYSTEM, user("2 + 2?"), assistant("Four."), user("Sure?"), assistant("Yes!"))
    example = render(tokenizer(template), row)
    assert trained(example) == ["Four.<|im_end|>", "Yes!<|im_end|>"]
    assert all(
        label in (NOT_TRAINED, token)
        for token, label in zip(example.ids, example.labels, strict=True)
    )


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, MARKED])
def test_a_turn_of_weight_0_is_read_but_not_trained(template: str) -> None:
    row = conversation(user("a"), assistant("one", weight=0), user("b"), assistant("two"))
    example = render(tokenizer(template), row)
    assert trained(example) == ["two<|im_end|>"]
    assert "one" in tokenizer().decode(example.ids)


def test_ids_are_those_of_the_template_and_nothing_more() -> None:
    messages = [SYSTEM, user("Is it open?"), assistant("No.")]
    ids = render(tokenizer(), conversation(*messages)).ids
    assert ids == tokenizer().apply_chat_template(messages, tokenize=True, return_dict=False)


@pytest.mark.parametrize(
    "answer", ["Grüße, 日本 🙂", "two\nlines", "ends in space ", " leads", "é"]
)
def test_any_text_comes_back_from_the_labels(answer: str) -> None:
    example = render(tokenizer(), conversation(user("?"), assistant(answer)))
    assert trained(example) == [answer + "<|im_end|>"]


def test_prompt_of_the_labels_is_the_prompt_of_use() -> None:
    example = render(tokenizer(), conversation(user("Hi"), assistant("Ho")))
    prompt = tokenizer().apply_chat_template(
        [user("Hi")], add_generation_prompt=True, return_dict=False
    )
    first = next(i for i, label in enumerate(example.labels) if label != NOT_TRAINED)
    assert example.ids[:first] == prompt


def test_tool_calls_are_trained_and_tools_are_shown() -> None:
    tool = {"type": "function", "function": {"name": "depth", "parameters": {}}}
    call = {"type": "function", "function": {"name": "depth", "arguments": '{"gate": 3}'}}
    row = conversation(
        user("How deep?"),
        assistant("", tool_calls=[call]),
        {"role": "tool", "content": "4 m"},
        assistant("Four metres."),
        tools=[tool],
    )
    calls, answer = trained(render(tokenizer(SHOWS_TOOLS), row))
    assert json.loads(calls.removesuffix("<|im_end|>"))["arguments"] == {"gate": 3}
    assert answer == "Four metres.<|im_end|>"


def refusal(template: str, *messages: dict[str, Any], **rest: Any) -> RenderProblem:
    with pytest.raises(RenderProblem) as caught:
        render(tokenizer(template), conversation(*messages, **rest))
    return caught.value


def test_a_template_that_rewrites_history_is_refused_with_the_difference() -> None:
    thought = assistant("<think>hm</think>Four.")
    problem = refusal(STRIPS_OLD_REASONING, user("a"), thought, user("b"), assistant("Five."))
    assert problem.code == "turn_lost"
    late = looped(HEADER + "{{ message.content }}{% if loop.last %}{{ '!' }}{% endif %}<|im_end|>")
    problem = refusal(late, user("a"), assistant("one"), user("b"), assistant("two"))
    assert problem.code == "template_rewrites_history" and "'!<|im_end|>" in str(problem)


def test_a_template_that_keeps_the_last_turn_only_is_fine_for_one_turn() -> None:
    row = conversation(user("a"), assistant("<think>hm</think>Four."))
    example = render(tokenizer(STRIPS_OLD_REASONING), row)
    assert trained(example) == ["<think>hm</think>Four.<|im_end|>"]


def test_the_end_of_all_text_behind_the_last_turn_is_no_part_of_a_turn() -> None:
    ends_texts = CHAT_TEMPLATE + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
    made = tokenizer(ends_texts)
    made.eos_token = "<|endoftext|>"
    row = conversation(user("a"), assistant("one"), user("b"), assistant("two"))
    example = render(made, row)
    assert trained(example, made) == ["one<|im_end|>", "two<|im_end|>"]
    assert made.decode(example.ids).endswith("<|im_end|>\n<|endoftext|>")
    own_end = tokenizer("{% for m in messages %}{{ m.content + eos_token }}{% endfor %}")
    assert trained(render(own_end, row), own_end) == ["one<|im_end|>", "two<|im_end|>"]


def test_a_turn_without_an_end_token_is_refused() -> None:
    plain = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}" + (
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    assert refusal(plain, user("a"), assistant("b")).code == "no_end_token"


def test_the_header_of_the_next_turn_is_no_end_token() -> None:
    headers_only = looped(HEADER + "{{ message.content }}")
    problem = refusal(headers_only, user("a"), assistant("b"), user("c"), assistant("d"))
    assert problem.code == "no_end_token"


def test_a_template_that_drops_a_turn_is_refused() -> None:
    no_system = looped(
        "{% if message.role != 'system' %}" + HEADER + "{{ message.content }}<|im_end|>{% endif %}"
    )
    problem = refusal(no_system, SYSTEM, user("a"), assistant("b"))
    assert problem.code == "turn_lost" and "messages[0] (system)" in str(problem)


def test_a_template_that_ignores_tools_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "depth"}}
    assert refusal(CHAT_TEMPLATE, user("a"), assistant("b"), tools=[tool]).code == "tools_lost"
    call = assistant("b", tool_calls=[tool])
    assert refusal(CHAT_TEMPLATE, user("a"), call).code == "mask_not_proven"


def test_marks_that_miss_a_turn_are_refused() -> None:
    none = MARKED.replace("message['role'] == 'assistant'", "message['role'] == 'bot'")
    assert refusal(none, user("a"), assistant("b")).code == "marks_missing"


def test_the_reason_a_template_gives_is_passed_on() -> None:
    strict = "{{ raise_exception('roles must alternate') }}"
    problem = refusal(strict, user("a"), assistant("b"))
    assert problem.code == "template_error" and "roles must alternate" in str(problem)


ODD_TEMPLATES = {
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "MemoryError": "{{ 'x' * 10**15 }}",
    "division": "{{ 1 // 0 }}",
    "unsafe": "{{ messages.__class__.__mro__ }}",
    "no loader": "{% include '/etc/passwd' %}",
}


@pytest.mark.parametrize("name", ODD_TEMPLATES)
def test_whatever_a_template_raises_is_its_reason(name: str) -> None:
    problem = refusal(ODD_TEMPLATES[name] + CHAT_TEMPLATE, user("a"), assistant("b"))
    assert problem.code == "template_error" and name in str(problem)
    assert len(str(problem)) < 700


def test_a_template_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "RENDER_SECONDS", 0.2)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    made = make_tokenizer()
    made.chat_template = loop + CHAT_TEMPLATE
    with pytest.raises(ModelError, match="loop without end"):
        render(made, conversation(user("a"), assistant("b")))
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


def test_text_that_melts_into_the_template_is_refused() -> None:
    with pytest.raises(RenderProblem) as caught:
        render(merging_tokenizer(), conversation(user("a"), assistant("\n\nb")))
    assert caught.value.code == "merged_edge"
    row = conversation(user("a"), assistant("b\n\n"))
    made = merging_tokenizer()
    assert trained(render(made, row), made) == ["b\n\n<|im_end|>"]


def merging_tokenizer() -> Any:
    """The tiny tokenizer, with one more merge: two new lines are one token."""
    made = tokenizer()
    state = json.loads(made.backend_tokenizer.to_str())
    state["model"]["vocab"]["ĊĊ"] = len(made)
    state["model"]["merges"].insert(0, ["Ċ", "Ċ"])
    made._tokenizer = Tokenizer.from_str(json.dumps(state))
    return made


def test_a_second_beginning_of_text_is_refused() -> None:
    doubled = "{{ bos_token }}" + CHAT_TEMPLATE
    assert refusal(doubled, user("a"), assistant("b")).code == "double_bos"


def test_an_assistant_that_speaks_first_needs_a_prompt_or_weight_0() -> None:
    problem = refusal(CHAT_TEMPLATE, assistant("Welcome."), user("a"), assistant("b"))
    assert problem.code == "assistant_first"
    row = conversation(assistant("Welcome.", weight=0), user("a"), assistant("b"))
    assert trained(render(tokenizer(), row)) == ["b<|im_end|>"]


@pytest.mark.parametrize("answer", ["Three.", " leads", "\nbegins a line", "ends \n"])
def test_offsets_without_their_white_space_are_understood(answer: str) -> None:
    made = tokenizer()
    made.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    example = render(made, conversation(user("a"), assistant(answer)))
    assert trained(example, made) == [answer + "<|im_end|>"]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_tokenizer_that_spells_spaces_as_letters_is_understood(scheme: str) -> None:
    made = metaspace_tokenizer(scheme)
    row = conversation(user("How many?"), assistant("Three."), user("Sure?"), assistant("Yes!"))
    labels = [label for label in render(made, row).labels if label != NOT_TRAINED]
    spelled = "".join(made.convert_ids_to_tokens(labels))
    assert spelled.replace("▁", " ") == " Three. </s> Yes! </s>"


def metaspace_tokenizer(scheme: str) -> Any:
    """A tokenizer and a template in the manner of Llama 2."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    made.train_from_iterator(["[INST] How many? Sure? [/INST] Three. Yes!"], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=(
            "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
            "{{ '[INST] ' + message.content + ' [/INST]' }}"
            "{% else %}{{ ' ' + message.content + ' ' + eos_token }}{% endif %}{% endfor %}"
        ),
    )
