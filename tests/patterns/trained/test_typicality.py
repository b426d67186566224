"""The exported form of typicality gives the numbers of the model's own."""

import numpy as np
import torch

from clew.patterns.trained.unknown import calibrate, fit_space


def test_typicality_is_the_same_when_exported() -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 40)
    features = generator.normal(size=(160, 24)).astype(np.float32)
    features += 2 * generator.normal(size=(4, 24)).astype(np.float32)[labels]
    unknown = calibrate(fit_space(features[::2], labels[::2]), features[1::2])
    assert unknown is not None
    others = generator.normal(size=(50, 24)).astype(np.float32) * 3
    seen = np.concatenate([features, others])
    found = unknown(torch.from_numpy(seen)).numpy()
    expected = unknown.typicality(seen)
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert expected.min() < 0.05 < expected.max()
