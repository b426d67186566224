"""A scorer for inspect_ai (pip install inspect-ai): the risk that a sample's answer is
hallucinated, of a detector, or of a reader that compares it with its sources."""

import asyncio
import math
from pathlib import Path

from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from clew.hallucination.workflow import scorer as make_scorer


@scorer(metrics=[mean(), stderr()])
def hallucination_risk(
    detector: str | Path = "grounded",
    *,
    source: str = "source",
    model: str | Path | None = None,
    device: str = "auto",
) -> Scorer:
    """The risk of every answer, from 0 to 1: the mean is the expected share of hallucinated ones.

    Args:
        detector: Folder of a detector; or grounded, the built-in reader, or the folder of a reader.
        source: Where the sample's metadata has what the answer is to be supported by: a text, or a
            list of texts.
        model: The detector's model, if it is in another place now.
        device: auto, cpu, cuda or cuda:1.

    Returns:
        A scorer. An answer that cannot be checked is unscored, and says why.
    """
    find_risks = make_scorer(detector, model=model, device=device)

    async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001
        given = state.metadata.get(source)
        text = "\n\n".join(map(str, given)) if isinstance(given, list) else given
        answer = state.output.completion
        row = {"question": [state.input_text], "answer": [answer], "source": [text]}
        found = await asyncio.to_thread(find_risks, row)
        about = {name: values[0] for name, values in found.items()}
        if math.isnan(about["risk"]):
            return Score.unscored(reason=about["state"], answer=answer, explanation=about["reason"])
        return Score(
            value=about["risk"],
            answer=answer,
            explanation=f"{about['risk_level']} risk",
            metadata=about,
        )

    return score
