"""Wrong input is refused before PyTorch is imported, which takes seconds on a fast machine and a
minute on a busy one."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

FILES = Path(__file__).parent.parent / "compatibility" / "files_8b887bb"
# Forks one process per command; whoever imports a slow library says so and ends.
SCRIPT = """
import json, os, sys

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "transformers", "datasets"):
            os.write(2, f"imported {name}".encode())
            os._exit(99)

sys.meta_path.insert(0, Slow())
from clew.cli import build_app, main
import typer.main
import clew.hallucination.capture.config
import clew.hallucination.comparison

command = typer.main.get_command(build_app())
typer.main.get_command = lambda _: command
for line in sys.stdin:
    words, (reading, writing) = json.loads(line), os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 1), os.dup2(writing, 2)
        sys.argv, code = ["clew", *words], 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([code, text[-600:]]), flush=True)
"""
# Commands, and what the message must contain. DETECTOR is a folder with a detector.json.
CASES = """
extract --num-samples -3 | --num-samples is -3: it must be 1 or more
extract --questions fatcs | did you mean "facts"?
extract --engine vllm --dry-run | --engine is "vllm": a dry run and a cluster use clew's own engine
extract --questions missing.jsonl | no such file or folder
extract --questions table.csv --columns question=Nope | has no column "Nope"
extract --questions table.csv --answers given | no column with answers
extract --questions table.csv --label-values foo | "foo" has no "="
extract --model smollm | did you mean "smollm2"?
extract --model ./missing | there is no folder "./missing"
extract --model missing.gguf | there is no file "missing.gguf"
extract --model samples | a folder without config.json
extract --model nobody/nothing | HF_HUB_OFFLINE is set
extract --device cudaa | unknown device
extract --dtype float23 | choose from: auto, float32
extract --device-map missing.json | there is no such file
extract --gpu h1000 --dry-run | unknown GPU
extract --gpu h100 | add --dry-run
extract --workers 3 | workers are processes of a cluster
extract --threads 0 | --threads is 0
extract --out table.csv | is not a folder
extract --out table.csv/inside | is not a folder
extract --basis missing | there is no folder "
extract --part 3/2 | 3/2
extract --prompt nothing | {question}
extract --max-new-tokens 0 | it must be 1 or more
extract --config missing.toml | missing.toml
inspect missing | missing
inspect table.csv | table.csv
label missing | the folder does not exist
label traces --judge-url x | --judge-model
label traces --next | go together
label traces --next --detector missing | there is no such file or folder
label traces --out table.csv/inside | is not a folder
preprocess missing | the folder does not exist
preprocess traces --scores-file missing.csv | missing.csv
preprocess traces --scores-file table.csv | table.csv
preprocess traces --split 50/20 | 50/20
plan --preprocessed-dir sample | did you mean "samples"?
plan --epochs 0 | it must be 1 or more
plan --device cudaa | choose from: cpu, cuda
train --preprocessed-dir missing | there is no folder "
train --preprocessed-dir samples --epochs 0 | --epochs is 0
train --preprocessed-dir samples --batch-size -1 | --batch-size is -1
train --preprocessed-dir samples --device cudaa | choose from: cpu, cuda
train --preprocessed-dir samples --output-dir table.csv | is not a folder
train --preprocessed-dir samples --dropout 3 | --dropout is 3
train --preprocessed-dir samples --label-smoothing 2 | --label-smoothing is 2
train --data-pattern missing --scores-file scores.csv | nothing matches it: give a store
train --data-pattern traces --scores-file missing.csv | there is no such file
train --data-pattern traces | traces have no labels
compare --preprocessed-dir missing | there is no folder "
compare --preprocessed-dir samples --methods perplexityy | did you mean "perplexity"?
compare --preprocessed-dir samples --methods lstm,nope | unknown method "nope"
compare --preprocessed-dir samples --seeds 0 | --seeds is 0
compare --preprocessed-dir samples --folds 1 | give 3 or more
compare --preprocessed-dir samples --device cudaa | choose from: cpu, cuda
compare --preprocessed-dir samples --epochs 0 | --epochs is 0
compare --preprocessed-dir samples --workers 2 | workers are processes of a cluster
compare --train-on samples --test-on missing | there is no folder "
compare --stores samples | two or more different folders
ask hello --detector missing | there is no such file or folder
ask hello --detector traces | there is no detector in "traces"
ask hello --detector DETECTOR --model ./missing | there is no folder "./missing"
ask hello --device cudaa | unknown device
ask hello --temperature -1 | -1
ask hello --max-new-tokens 0 | it must be 1 or more
ask --questions missing.csv | no such file or folder
score --questions missing.csv --detector DETECTOR | no such file or folder
score --questions table.csv --detector DETECTOR | no column with answers
score --questions given.csv --detector missing | there is no such file or folder
score --questions given.csv --detector DETECTOR --out risks.foo | its format is unknown
score --questions given.csv --detector DETECTOR --out table.csv/risks.csv | is not a folder
score --questions given.csv --detector DETECTOR --columns answer=Nope | has no column "Nope"
check --source missing.txt --answer x | missing.txt
check --source empty.txt --answer x | there is no source
check --source table.csv --answer x --reader missing | reader.json
check --source table.csv --answer x --device cudaa | unknown device
calibrate missing --labeled given.csv | there is no such file or folder
calibrate traces --labeled given.csv | there is no detector.json
calibrate DETECTOR | give either
calibrate DETECTOR --labeled missing.csv | no such file or folder
calibrate DETECTOR --labeled table.csv | no column with answers
calibrate DETECTOR --labeled given.csv --out table.csv | is not a folder
adapt missing --labeled given.csv --out new | there is no such file or folder
adapt DETECTOR --out new | give labeled answers
adapt DETECTOR --labeled missing.csv --out new | no such file or folder
adapt DETECTOR --labeled table.csv --out new | no column with answers
show missing --id 1 | the folder does not exist
serve missing | there is no such file or folder
serve traces | there is no detector in "traces"
serve DETECTOR --port 9999999 | choose one from 1024
serve DETECTOR --port BUSY | it cannot be used
serve DETECTOR --max-rows 0 | it must be 1 or more
serve DETECTOR --host 0.0.0.0 | Give API keys
serve DETECTOR --reader missing | reader.json
serve DETECTOR --traces missing | there is no folder "
serve DETECTOR --comparisons missing | there is no folder "
serve DETECTOR --api-keys-file missing | missing
serve DETECTOR --feedback-file missing/feedback.jsonl | its folder does not exist
verify missing | the folder does not exist
convert missing --out new | not a folder
patterns create a/b | a/b
patterns create colours --library library | colours
patterns import colours missing --library library | missing
patterns info nope --library library | nope
patterns clean | Or give a folder of photos as DATA.
patterns clean missing | there is no folder "
patterns clean table.csv | "table.csv" is a file: give the folder
patterns similar missing.jpg --data photos | there is no photo
patterns similar photos/red/0.png --data missing | there is no folder "
patterns train --data missing | there is no folder "
patterns train --data photos --batch-size 0 | --batch-size is 0
patterns train --data photos --device cudaa | choose from: cpu, cuda
patterns train --data photos --output-dir table.csv | is not a folder
patterns train --data photos --minutes 0 | --minutes is 0.0: it must be greater than 0
patterns train --data photos --minutes -3 | --minutes is -3.0: it must be greater than 0
patterns train --data photos --split 70/10 | --split is "70/10": use TRAIN/VALIDATION/TEST
patterns train --data photos --split 70/20/20 | such as --split 70/15/15: 70/20/20 sums to 110.
patterns train --data photos --rand-augment 2 | --rand-augment is "2": use N,M
patterns train --data photos --rand-augment 2,99 | --rand-augment (M) is 99.0: it must be from 0
patterns train --data photos --image-size 5 | --image-size is 5: it must be from 16 to 1024
patterns train --data photos --crop 3 | --crop is 3.0: it must be greater than 0
patterns train --data photos --network resnet | unknown network "resnet": choose from: lite0
patterns train --data photos --network tiny --pretrained | "tiny" has no pretrained weights
patterns train --data photos --label-smoothing 2 | --label-smoothing is 2.0
patterns train --data table.csv | "table.csv" is a file: give the folder that contains
patterns train nope --library library | nope
patterns evaluate --model missing --data photos | missing
patterns identify missing --name colours --library library | FOLDER is "missing": there is no such
patterns identify photos --name nope --library library | nope
patterns identify photos --name colours --library library --device cudaa | choose from: cpu
patterns recognize missing.jpg --name colours --library library | IMAGE is "missing.jpg": there
patterns recognize photos/red/0.png --name nope --library library | nope
patterns review nope --library library | nope
patterns serve --name nope --library library | nope
patterns serve --name colours --library library --port BUSY | it cannot be used
patterns export --name nope --library library --out new.onnx | nope
patterns export --name colours --library library --out table.csv/new.onnx | is not a folder
patterns flow new --from missing --library library | there is no folder "
patterns flow new --from photos --library library --epochs 0 | --epochs is 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    shutil.copytree(FILES / "library" / "colours" / "photos", tmp_path / "photos")
    (tmp_path / "table.csv").write_text("Frage,thing\na,b\nc,d\n")
    (tmp_path / "given.csv").write_text("question,answer,label\nq,a,correct\nr,b,hallucinated\n")
    (tmp_path / "scores.csv").write_text("question_id,score\nx,1\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "DETECTOR").mkdir()
    (tmp_path / "DETECTOR" / "detector.json").write_text("{}")
    return tmp_path


@pytest.mark.slow
def test_wrong_input_is_refused_before_slow_imports(folder: Path) -> None:
    pytest.importorskip("fastapi")
    cases = [tuple(line.split(" | ")) for line in CASES.strip().splitlines()]
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        lines = [json.dumps(command.replace("BUSY", port).split()) for command, _ in cases]
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            env={**os.environ, "COLUMNS": "400", "HF_HUB_OFFLINE": "1"},
        )
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    wrong = [
        (command, expected, code, text)
        for (command, expected), (code, text) in zip(cases, told, strict=True)
        if code not in (1, 2) or expected not in text
    ]
    assert wrong == [], "\n".join(map(str, wrong))
