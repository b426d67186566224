"""clew extract"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clew.cli.long_runs import how_to_resume, log_to_stderr, stop_on_signal

_EPILOG = "Example: `clew extract --questions facts --num-samples 200 --out traces_data`"


class _Keep(StrEnum):
    compact = "compact"
    full = "full"


class _Cut(StrEnum):
    sentence = "sentence"
    line = "line"
    none = "none"


class _Quantize(StrEnum):
    bits4 = "4bit"
    bits8 = "8bit"


def register(app: typer.Typer) -> None:
    app.command(epilog=_EPILOG)(extract)


def extract(
    model: Annotated[
        str,
        typer.Option(
            help="A Hugging Face id, a local folder, a .gguf file, or smollm2 (embedded)."
        ),
    ] = "smollm2",
    questions: Annotated[
        str,
        typer.Option(
            help="A Hugging Face data set as name:config:split, a local folder or file (.jsonl, "
            ".json, .csv, .tsv, .parquet, .arrow), or facts (embedded)."
        ),
    ] = "facts",
    out: Annotated[Path, typer.Option(help="The store: a folder, made if need be.")] = Path(
        "traces_data"
    ),
    num_samples: Annotated[
        int | None, typer.Option(help="Use only the first N questions. [default: all]")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Traces per shard file.")] = 500,
    generation_batch: Annotated[
        int | None,
        typer.Option(help="Questions answered at a time. [default: what the memory holds]"),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The longest answer, in tokens.")] = 32,
    num_beams: Annotated[int, typer.Option(help="Beams of the search; 1 is greedy.")] = 1,
    prompt: Annotated[
        str | None,
        typer.Option(help="What the model is given, with {question} in it. [default: by model]"),
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Use the chat template. [default: if it has one]"),
    ] = None,
    cut: Annotated[
        _Cut,
        typer.Option(
            help="End an answer with its first sentence, its first line, or only when it ends."
        ),
    ] = (_Cut.sentence),
    keep: Annotated[
        _Keep,
        typer.Option(help="compact: what detectors need; full: every state and attention map."),
    ] = _Keep.compact,
    node_dim: Annotated[
        int, typer.Option(help="Numbers that each token's state is reduced to, per layer.")
    ] = 64,
    edges_per_token: Annotated[
        int, typer.Option(help="Strongest attention edges kept of every token and layer.")
    ] = 16,
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    quantize: Annotated[
        _Quantize | None, typer.Option(help='Load in 4 or 8 bits (needs "clew[quantize]").')
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Draw so many more answers a question; their text is stored.")
    ] = 0,
    sample_temperature: Annotated[
        float, typer.Option(help="How freely those are drawn; 1 is the model's own distribution.")
    ] = 1.0,
    part: Annotated[
        str, typer.Option(help="I/N: this process makes every N-th shard, beginning with the I-th.")
    ] = "1/1",
) -> None:
    """Run a language model over questions and record its internals, one trace an answer.

    A run that was stopped, killed or out of disk goes on where it was: give the same command.
    """
    console = Console(highlight=False, soft_wrap=True)
    log_to_stderr()
    from clew.cli.renderer import Renderer
    from clew.hallucination.capture import ExtractConfig
    from clew.hallucination.capture import extract as run_extract
    from clew.storage import Part

    config = ExtractConfig(
        model=model,
        questions=questions,
        out=out,
        num_samples=num_samples,
        batch_size=batch_size,
        generation_batch=generation_batch,
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        prompt=prompt,
        chat=chat,
        cut=cut.value,
        keep=keep.value,
        node_dim=node_dim,
        edges_per_token=edges_per_token,
        dtype=dtype,
        device=device,
        quantize=quantize.value if quantize else None,
        samples=samples,
        sample_temperature=sample_temperature,
        part=Part.parse(part),
    )
    with (
        stop_on_signal(console, "finishing the answers in hand") as stop,
        Renderer(console) as reporter,
    ):
        result = run_extract(config, reporter, stop)
    if result.finished:
        whose = "done" if config.part.count == 1 else f"part {config.part} is done"
        console.print(
            f"{whose}: {result.traces_stored:,} of {result.traces_planned:,} traces in {out}"
            f"{_left_out(result.skipped)}\nlook at them with: clew inspect {out}",
            markup=False,
        )
        return
    sentence = f"stopped with {result.traces_made:,} new traces on disk.{how_to_resume()}"
    console.print(sentence, markup=False)
    raise stop.exit()


def _left_out(skipped: int) -> str:
    return f" ({skipped:,} questions left out, named in its manifest)" if skipped else ""
