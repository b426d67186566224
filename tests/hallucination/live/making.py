"""Captured answers for tests of the live parts: their samples, and the same answers passed through
the model again from their token ids."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clew.base.progress import ignore_event
from clew.hallucination.detectors import Detector
from clew.hallucination.detectors.calibration import Companions, make_detector
from clew.hallucination.detectors.data import StoredAnswers
from clew.hallucination.detectors.probes.fitting import to_numpy
from clew.hallucination.detectors.probes.registry import PROBES
from clew.hallucination.detectors.registry import NETWORKS, NetworkSettings, configure
from clew.hallucination.detectors.training.samples import PreprocessedData, read_sizes
from clew.hallucination.live.features import Answer, LiveFeatures
from clew.hallucination.llm.decoder import Decoder
from clew.hallucination.llm.models import LoadedModel
from clew.hallucination.llm.observe import ModelObserver, full_columns, record_fully
from clew.hallucination.samples.answers import AnswerFeatures
from clew.hallucination.samples.preprocess import choose_shape, preprocess_store
from clew.hallucination.samples.source import PreprocessConfig, SampleShape, TraceSource
from clew.hallucination.traces import TraceBatchLoader
from clew.hallucination.traces.compact import load_basis
from clew.loading.buffers import BufferPool
from clew.metrics.calibration import PlattScale
from tests.builders import VOCABULARY, make_decoder, tiny_loaded

SPLITS = ("train", "validation", "test")


def preprocess_tiny(store: Path, out: Path) -> PreprocessConfig:
    """Samples of a tiny capture; every third answer counts as hallucinated."""
    out.mkdir()
    scores = out / "scores.csv"
    with scores.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("question_id", "score"))
        for trace in TraceBatchLoader(store).iter_traces():
            writer.writerow((trace["question_id"], float(trace["global_example_id"] % 3 > 0)))
    config = PreprocessConfig(
        store=store, scores_file=scores, out=out / "samples", top_k=3, node_dim=3, workers=1
    )
    preprocess_store(config, ignore_event)
    return config


def read_traces(store: Path) -> dict[int, Any]:
    """All traces of a store by their number."""
    return {trace["global_example_id"]: trace for trace in TraceBatchLoader(store).iter_traces()}


def split_tokens(trace: Any) -> tuple[list[int], list[int]]:
    """The token ids of the prompt and of the answer."""
    tokens, prompt = trace["tokens"].tolist(), trace["prompt_length"]
    return tokens[:prompt], tokens[prompt:]


def pass_again(
    store: Path, loaded: LoadedModel, config: PreprocessConfig, traces: Sequence[Any]
) -> LiveFeatures:
    """The features of captured answers, from one pass over their tokens."""
    decoder = make_decoder(loaded, basis=load_basis(store, None), edges=4)
    prompts, answers = zip(*map(split_tokens, traces), strict=True)
    scores, record = decoder.record(prompts, answers)
    passed = [
        Answer(
            prompt=prompt,
            tokens=answer,
            logprobs=logprobs,
            entropies=entropies,
            stop_reason=trace["stop_reason"],
            question=trace["question"],
            text=trace["answer"],
        )
        for prompt, answer, (logprobs, entropies), trace in zip(
            prompts, answers, scores, traces, strict=True
        )
    ]
    shape = sample_shape(config)
    return LiveFeatures(record, passed, shape, pass_maps=lambda s: pass_maps(decoder, s))


def sample_shape(config: PreprocessConfig) -> SampleShape:
    return choose_shape(config, TraceSource(config.store))


def pass_maps(decoder: Decoder, sequences: Sequence[Sequence[int]]) -> np.ndarray:
    observer = ModelObserver(decoder.model)
    return full_columns(record_fully(decoder.model, observer, sequences))["attentions"]


def ending_model(folder: Path) -> Path:
    """A tiny model that ends most of its answers, which random models do not."""
    model, tokenizer = tiny_loaded()
    model.generation_config.eos_token_id = list(range(0, VOCABULARY, 6))
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fit_detector(name: str, samples: Path) -> Detector:
    """A detector of this method on tiny samples; a network keeps its random weights."""
    data = AnswerFeatures(samples)
    labels = data.labels["validation"]
    fitted: dict[str, Any] = {"calibration": PlattScale.fit(labels, labels + 0.1)}
    if name in NETWORKS:
        kind = NETWORKS[name]
        dataset = PreprocessedData(folder=samples).open(kind.samples, "train")
        config = configure(kind, read_sizes(dataset), NetworkSettings())
        torch.manual_seed(3)
        fitted |= {"network": kind.network(config).eval(), "config": config}
    else:
        scorer = PROBES[name].fit(data, seed=0).scorer
        scores = to_numpy(scorer.score(data, "validation"))
        fitted |= {"scorer": scorer, "calibration": PlattScale.fit(labels, scores)}
    family = "network" if name in NETWORKS else "probe"
    method = Detector(name=name, title=name, family=family, threshold=0.5, metrics={}, **fitted)
    return make_detector(method, Companions.fit(data)).to("cpu")


def stored_risks(detector: Detector, samples: Path, split: str) -> list[float | None]:
    """The risks of stored answers, as a comparison would compute them."""
    if detector.samples is None:
        answers = StoredAnswers(AnswerFeatures(samples), split)
        return [risk.risk for risk in detector.assess(answers)]
    dataset = PreprocessedData(folder=samples).open(detector.samples, split)
    batch = dataset.samples.read_batch(np.arange(len(dataset)), BufferPool())
    return detector.score(batch).tolist()
