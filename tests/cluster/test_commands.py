"""Commands that spread their work over a cluster give what they give without one."""

from pathlib import Path
from typing import Any

import pytest

import clew
from clew.base.progress import Event, WorkersAdvanced
from tests.events import pick
from tests.hallucination.labels.judge_server import Reply, judge_server
from tests.stores import assert_same_store
from tests.workspace import QUESTIONS, inside

pytestmark = pytest.mark.slow

ON_CLUSTER: dict[str, Any] = {"cluster": "ray", "workers": 2}


@pytest.fixture(autouse=True)
def there(nodes: Any, workspace: Path) -> Any:  # noqa: ARG001 - it must run
    with inside(workspace):
        yield


def test_preprocess_on_a_cluster_gives_the_same_samples(
    compact_store: Path, tmp_path: Path
) -> None:
    events: list[Event] = []
    scores = tmp_path / "scores.csv"
    rows = [
        f"{trace['question_id']},{n % 2}"
        for n, trace in enumerate(clew.TraceBatchLoader(compact_store))
    ]
    scores.write_text("\n".join(["question_id,score", *rows]))
    given: dict[str, Any] = {"scores_file": scores}
    one = clew.preprocess(compact_store, out=tmp_path / "one", workers=1, **given)
    given["reporter"] = events.append
    two = clew.preprocess(compact_store, out=tmp_path / "two", **given, **ON_CLUSTER)
    assert (two.samples, two.made, two.splits) == (one.samples, one.made, one.splits)
    for kind in ("sequences", "graphs", "answers"):
        assert_same_store(tmp_path / "two" / kind, tmp_path / "one" / kind)
    splits = [(tmp_path / name / "splits.csv").read_text() for name in ("one", "two")]
    assert splits[0] == splits[1]
    assert pick(events, WorkersAdvanced)


def test_compare_and_score_on_a_cluster_give_the_same_results(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"methods": "perplexity,linear_probe,lookback", "seeds": 2}
    one = clew.compare(out=tmp_path / "one", **settings)
    two = clew.compare(out=tmp_path / "two", **settings, **ON_CLUSTER)
    measured = ["train_seconds", "ms_per_answer", "seconds"]
    tables = [result.to_pandas().drop(columns=measured, errors="ignore") for result in (one, two)]
    assert tables[0].equals(tables[1])
    detector = tmp_path / "one" / "detector"
    given: dict[str, Any] = {"detector": detector, "model": "my-model", "rows": 2, "threads": 1}
    here = clew.score(questions="traces_data", **given)
    there = clew.score(questions="traces_data", **given, **ON_CLUSTER)
    assert there.rows == here.rows and len(here.rows) == QUESTIONS


def test_a_judge_is_asked_by_the_workers_of_a_cluster(tmp_path: Path) -> None:
    def reply(graded: dict[str, Any], _: int) -> Reply:
        return Reply(content="YES" if len(graded["answer_to_grade"]) % 2 else "NO")

    with judge_server(reply) as judge:
        results = [
            clew.label(
                "traces_data",
                out=tmp_path / f"{name}.csv",
                judge_url=judge.url,
                judge_model="a judge",
                **where,
            )
            for name, where in (("one", {}), ("two", ON_CLUSTER))
        ]
    assert results[1].rows == results[0].rows
