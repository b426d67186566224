"""A model's folder from somebody else: its code is never run, and what is wrong is one error."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from clew.base.errors import InputError
from clew.hallucination.capture import load_model
from clew.hallucination.llm.prompts import Encoder, Prompt
from clew.hallucination.traces.token_texts import read_token_texts
from tests.builders import save_tiny_model, tiny_tokenizer

CODE = "from pathlib import Path\nPath({mark!r}).touch()\n"
EDITS: dict[str, Any] = {
    "no heads": ("config.json", {"num_attention_heads": 0}),
    "text for a number": ("config.json", {"hidden_size": "x"}),
    "list for a name": ("config.json", {"model_type": ["x"]}),
    "number for settings": ("config.json", {"quantization_config": 5}),
    "unknown type": ("config.json", {"dtype": "float99"}),
    "many labels": ("config.json", {"num_labels": 10**9}),
    "many layers inside": ("config.json", {"text_config": {"num_hidden_layers": 10**9}}),
    "invalid tokenizer": ("tokenizer.json", {"model": None}),
    "no layers": ("config.json", {"num_hidden_layers": 0}),
    "text for a token": ("generation_config.json", {"eos_token_id": "x"}),
    "text for a length": ("tokenizer_config.json", {"model_max_length": "x"}),
    "invalid generation": ("generation_config.json", [1]),
    "invalid config": ("config.json", [1]),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def edit(path: Path, change: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content = content | change if isinstance(change, dict) else change
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture
def mark(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once the code beside the model has run. All questions are answered yes."""
    mark = tmp_path / "code was run"
    (folder / "evil.py").write_text(CODE.format(mark=str(mark)), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    return mark


def test_code_of_a_model_is_never_run(folder: Path, mark: Path) -> None:
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    edit(folder / "config.json", {"model_type": "evil", "auto_map": names})
    with pytest.raises(InputError, match="could not be loaded .*custom code"):
        load_model(str(folder), device="cpu")
    assert not mark.exists()


def test_code_of_a_tokenizer_is_never_run(folder: Path, mark: Path) -> None:
    (folder / "tokenizer.json").unlink()
    edit(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Words", None]}})
    edit(folder / "tokenizer_config.json", {"tokenizer_class": "Words"})
    assert read_token_texts([7], None, str(folder), None)[0] == ["#7"]
    assert not mark.exists()


def test_pickled_weights_run_nothing(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    call = f"cos\nmkdir\n(S{str(tmp_path / 'made')!r}\ntR.".encode()
    (folder / "pytorch_model.bin").write_bytes(call)
    with pytest.raises(InputError, match="could not be loaded"):
        load_model(str(folder), device="cpu")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", EDITS)
def test_edited_model_is_one_error(folder: Path, name: str) -> None:
    file, change = EDITS[name]
    edit(folder / file, change)
    with pytest.raises(InputError, match="could not be loaded"):
        load_model(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1 ", "unexpected end of template"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{{ 'a' * 10000000 }}", "10,000,000 characters"),
    ],
)
def test_chat_template_that_fails_is_one_error(template: str, reason: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    prompts = Encoder(tokenizer, Prompt(template="{question}", chat=True), 100)
    with pytest.raises(InputError, match=rf"chat template cannot be used \(.*{reason}"):
        list(prompts.tokenize(["who?"]))
