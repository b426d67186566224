"""Statistics for tables that hold up in peer review. Label 1 is the positive class, and a higher
score means more likely positive."""

from clew.metrics.calibration import (
    PlattScale,
    calibration_points,
    expected_calibration_error,
)
from clew.metrics.measures import (
    GroupedMeasures,
    Measures,
    area_under_risk_coverage,
    best_threshold,
    measure_groups,
    measure_scores,
    risk_coverage_points,
    roc_points,
    threshold_for_rate,
)
from clew.metrics.ranking import (
    RESAMPLES,
    Difference,
    auroc,
    bootstrap_auroc,
    bootstrap_aurocs,
    compare_paired,
    compare_seeds,
    draw_resamples,
)

__all__ = [
    "RESAMPLES",
    "Difference",
    "GroupedMeasures",
    "Measures",
    "PlattScale",
    "area_under_risk_coverage",
    "auroc",
    "best_threshold",
    "bootstrap_auroc",
    "bootstrap_aurocs",
    "calibration_points",
    "compare_paired",
    "compare_seeds",
    "draw_resamples",
    "expected_calibration_error",
    "measure_groups",
    "measure_scores",
    "risk_coverage_points",
    "roc_points",
    "threshold_for_rate",
]
