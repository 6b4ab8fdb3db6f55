"""Kinds of files, encodings, and JSON that is not quite JSON."""

import gzip
import json

import zstandard

from .case import Case, Problem, chat, ended, lines, table

ONE, TWO = chat("One?", "Uno."), chat("Two?", "Dos.")
BOM = b"\xef\xbb\xbf"
PAIR = [{"prompt": "One?", "completion": "Uno."}, {"prompt": "Two?", "completion": "Dos."}]

FILES = [
    Case(
        seen="huggingface/datasets#7222",
        name="a key that is null in early rows and text later",
        data=lines({**ONE, "note": None}, {**TWO, "note": "late"}),
        trained=ended("Uno.", "Dos."),
        notes={"ignored_keys": 1},
    ),
    Case(
        seen="huggingface/datasets#7664",
        name="texts that look like dates and schemas",
        data=lines(chat("2024-01-02", "string, datetime: timestamp[s]"), chat("7", "7.0")),
        trained=ended("string, datetime: timestamp[s]", "7.0"),
    ),
    Case(
        seen="hiyouga/LlamaFactory#8805",
        name="one array of all rows",
        data=json.dumps([ONE, TWO], indent=2).encode(),
        trained=ended("Uno.", "Dos."),
        file_name="alpaca_en_demo.json",
    ),
    Case(
        seen="oobabooga/textgen#4325",
        name="an array in another script",
        data=json.dumps([chat("Привет?", "Да, вода.")], ensure_ascii=False).encode(),
        trained=ended("Да, вода."),
    ),
    Case(
        seen="hiyouga/LlamaFactory#1082",
        name="an array of which one item has a list where the others have text",
        data=b'[{"instruction": "a", "output": "b"},\n {"instruction": "a", "output": ["b"]}]',
        problems=(Problem(line=2, code="bad_content", said="(item 2): output is a list"),),
    ),
    Case(
        seen="hiyouga/LlamaFactory#1784",
        name="rows whose other columns differ",
        data=lines({"text": "A weir.", "stars": 3}, {"text": "A dam.", "id": "x", "repo": None}),
        trained=ended("A weir.", "A dam."),
        notes={"ignored_keys": 2},
    ),
    Case(
        seen="huggingface/dataset-viewer#2601",
        name="a row without a column that the others have",
        data=lines({**PAIR[0], "label": "a"}, PAIR[1]),
        trained=ended("Uno.", "Dos."),
        notes={"ignored_keys": 1},
    ),
    Case(
        seen="huggingface/datasets#6460",
        name="lines in a file of a strange name",
        data=lines(ONE, TWO),
        trained=ended("Uno.", "Dos."),
        file_name="pickle.data",
    ),
    Case(
        seen="openai/openai-python#383",
        name="lines in a .txt",
        data=lines(*PAIR),
        trained=ended("Uno.", "Dos."),
        file_name="train.txt",
    ),
    Case(
        seen="openai/openai-python#415",
        name="prompts and completions as an array",
        data=json.dumps(PAIR).encode(),
        trained=ended("Uno.", "Dos."),
    ),
    Case(
        seen="CSHaitao/LexiLaw#44",
        name="objects spread over lines",
        data=json.dumps(ONE, indent=2).encode() + b"\n" + json.dumps(TWO, indent=2).encode(),
        refused="first object is spread over several lines; write one object a line",
    ),
    Case(
        seen="capitalone/DataProfiler#105",
        name="rows inside an object, spread over lines",
        data=json.dumps({"data": [ONE, TWO]}, indent=1).encode(),
        refused="spread over several lines",
    ),
    Case(
        seen="huggingface/datasets#372",
        name="rows inside an object, on one line",
        data=json.dumps({"version": 1, "data": [ONE, TWO]}).encode(),
        problems=(Problem(line=1, code="unknown_format", said="in its key 'data'? Write that"),),
    ),
    Case(
        seen="microsoft/graphrag#2424",
        name="blank lines between rows",
        data=b"\n" + lines(ONE) + b"\n  \n" + lines(TWO),
        trained=ended("Uno.", "Dos."),
    ),
    Case(
        seen="wardi/jsonlines#84",
        name="an empty last line, and one without its line feed",
        data=lines(ONE) + b"\r\n" + lines(TWO).rstrip(),
        trained=ended("Uno.", "Dos."),
    ),
    Case(
        seen="wardi/jsonlines#35",
        name="lines that end with carriage return and line feed",
        data=lines(ONE, TWO).replace(b"\n", b"\r\n"),
        trained=ended("Uno.", "Dos."),
    ),
    Case(
        seen="OkGoDoIt/OpenAI-API-dotnet#59",
        name="a byte order mark",
        data=BOM + lines(PAIR[0]),
        trained=ended("Uno."),
    ),
    Case(
        seen="WangRongsheng/MedQA-ChatGLM#2",
        name="a byte order mark before an array",
        data=BOM + json.dumps([ONE]).encode(),
        trained=ended("Uno."),
    ),
    Case(
        seen="wbolster/jsonlines#68",
        name="two files with marks, one behind the other",
        data=BOM + lines(ONE) + BOM + lines(TWO),
        trained=ended("Uno.", "Dos."),
    ),
    Case(
        seen="chroblert/WindowsVulnScan#2",
        name="UTF-16 with a mark",
        data=lines(ONE).decode().encode("utf-16"),
        refused="is UTF-16; write it as UTF-8",
    ),
    Case(
        seen="huggingface/transformers#8886",
        name="bytes of half a character",
        data=lines(ONE, b'{"text": "\xed\xa0\xbd"}'),
        problems=(Problem(line=2, code="invalid_json", said="Convert it with iconv"),),
    ),
    Case(
        seen="openai/tiktoken#82",
        name="an escape of half a character",
        data=lines(ONE, rb'{"text": "\udbc0"}'),
        problems=(Problem(line=2, code="invalid_json", said="half of a pair of escapes"),),
    ),
    Case(
        seen="volcengine/OpenViking#3988",
        name="Unicode's own line ends inside a text",
        data=lines(chat("One?", "a\u2028b\u2029c\u0085d")),
        trained=ended("a\u2028b\u2029c\u0085d"),
    ),
    Case(
        seen="aqlaboratory/openfold-3#167",
        name="NaN in a column that is not read",
        data=lines(ONE, b'{"text": "A dam.", "resolution": NaN}'),
        problems=(Problem(line=2, code="invalid_json", said="NaN is no JSON; write null"),),
    ),
    Case(
        seen="langwatch/langwatch#1558",
        name="NaN where pandas had no text",
        data=b'{"prompt": "One?", "completion": NaN}',
        problems=(Problem(line=1, code="invalid_json", said="column 34"),),
    ),
    Case(
        seen="josdejong/lossless-json#244",
        name="a key twice in one object",
        data=lines(ONE, b'{"prompt": "a", "completion": "b", "completion": "c"}'),
        problems=(Problem(line=2, code="duplicate_key", said="the key 'completion' comes twice"),),
    ),
    Case(
        seen="openai-php/client#107",
        name="keys without quotes, and quotes inside a text",
        data=lines(
            b'{"prompt": "How?", completion: "So."}',
            b'{"prompt": "How?", "completion": "called as" tik-tak" so"}',
        ),
        problems=(
            Problem(line=1, code="invalid_json", said="column 20"),
            Problem(line=2, code="invalid_json", said="column 46"),
        ),
    ),
    Case(
        seen="openai/openai-python#426",
        name="lines that are texts of objects",
        data=lines(json.dumps(PAIR[0])),
        problems=(Problem(line=1, code="not_an_object", said="the row is a string"),),
    ),
    Case(
        seen="longzw1997/Open-GroundingDino#96",
        name="several objects in a line",
        data=lines(ONE).strip() + lines(TWO).strip() + b"\n" + lines(ONE),
        problems=(Problem(line=1, code="invalid_json", said="one object a line, each ended by"),),
    ),
    Case(
        seen="huggingface/autotrain-advanced#425",
        name="a table with commas",
        data=b"text,label\nA weir.,1\n",
        problems=(
            Problem(line=1, code="invalid_json", said="is the file CSV"),
            Problem(line=2, code="invalid_json", said="this line with 'A weir.,1'"),
        ),
        file_name="train.csv",
    ),
    Case(
        seen="nicolaus-huang/ProcessPainter#4",
        name="a pointer of Git LFS in the file's place",
        data=b"version https://git-lfs.github.com/spec/v1\noid sha256:1e08\nsize 886\n",
        refused="is a pointer of Git LFS, not the data; fetch it",
    ),
    Case(
        seen="google-research-datasets/natural-questions#24",
        name="gzip that is cut off",
        data=gzip.compress(lines(*[ONE] * 999), mtime=0)[:-20],
        refused="gzip data is damaged or cut off",
    ),
    Case(
        seen="ai-dynamo/aiperf#1262",
        name="gzip with wrong bytes inside",
        data=gzip.compress(lines(*[ONE] * 9), mtime=0)[:30] + b"\xff" * 40,
        refused="gzip data is damaged or cut off",
    ),
    Case(
        seen="huggingface/datasets#2572",
        name="lines packed with zstd",
        data=zstandard.compress(lines(ONE, TWO)),
        trained=ended("Uno.", "Dos."),
        file_name="FreeLaw_Opinions.jsonl.zst",
    ),
    Case(
        seen="huggingface/datasets#3060",
        name="a packed file that ends before its end",
        data=zstandard.compress(lines(*[ONE] * 999))[:-9],
        refused="zstd data is damaged or cut off (the last frame does not end)",
    ),
    Case(
        seen="ai-dynamo/aiperf#1449",
        name="zstd whose beginning is damaged",
        data=b"\x28\xb5\x2f\xfd" + b"\xff" * 40,
        refused="zstd data is damaged or cut off",
    ),
    Case(
        seen="huggingface/datasets#6689",
        name="a file that is called zstd and is none",
        data=lines(ONE),
        trained=ended("Uno."),
        file_name="train.jsonl.zst",
    ),
    Case(
        seen="huggingface/datasets#5422",
        name="a table of rows, of which one has no text",
        data=table([{"text": "A weir."}, {"text": None}, {"text": "A dam."}]),
        problems=(Problem(line=0, code="unknown_format", said="row 2: the row's format"),),
        file_name="train.parquet",
    ),
]
