"""Two processes under torchrun, over an S3 server, train what one process trains over folders."""

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import clew
from clew.storage.places import open_place
from tests.forking import fork
from tests.hallucination.detectors.training.dying import torchrun
from tests.hallucination.detectors.training.making import write_learnable
from tests.object_server import upload

SETTINGS: dict[str, Any] = {
    "networks": ("lstm",),
    "epochs": 3,
    "batch_size": 16,
    "dropout": 0.0,  # processes draw different random numbers
    "lstm_hidden": 4,
    "num_lstm_layers": 1,
    "num_workers": 0,
    "device": "cpu",
    "amp": False,
    "compile": False,
}
FLAGS = (
    "--no-run-gnn-det --no-run-gvae --epochs 3 --batch-size 16 --dropout 0 --lstm-hidden 4 "
    "--num-lstm-layers 1 --num-workers 0 --device cpu --no-amp --no-compile"
)


@pytest.mark.slow
def test_two_processes_over_s3_train_the_network_of_one_even_if_one_dies(
    s3_url: str, tmp_path: Path
) -> None:
    data = write_learnable(tmp_path / "data")
    clew.train(preprocessed_dir=data, out=tmp_path / "one", **SETTINGS)
    samples, out = upload(data, f"{s3_url}/samples"), f"{s3_url}/results"
    words = ("train", "--preprocessed-dir", samples, "--cache-dir", tmp_path / "cache")
    words = (*words, "--out", out, *FLAGS.split(), "--overwrite")

    process = fork(torchrun, tuple(map(str, words)), tmp_path)
    process.start()
    process.join(300)
    output, errors = ((tmp_path / f"{name}.txt").read_text() for name in ("stdout", "stderr"))
    assert process.exitcode == 0, errors
    # None if torchrun ends the other process before it has noticed.
    sentences = [line for line in errors.splitlines() if line.startswith("clew: ")]
    lost = "clew: another training process has ended or lost its connection: "
    assert len(sentences) <= 1 and all(one.startswith(lost) for one in sentences), errors
    assert "resuming after step 11 " in output
    open_place(out).child("lstm").fetch("last.safetensors", tmp_path / "two.safetensors")
    one = load_file(tmp_path / "one/lstm/last.safetensors")
    two = load_file(tmp_path / "two.safetensors")
    for name, value in one.items():
        if name.startswith("model/"):
            assert value.allclose(two[name], atol=1e-5), name
    assert clew.load_detector(f"{out}/lstm").name == "lstm"
