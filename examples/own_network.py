"""Train your own network on clew's engine: all it needs is a forward that returns logits.

Usage: python examples/own_network.py preprocessed_data results_own
"""

import sys

# --8<-- [start:code]
from torch import nn

from clew.datasets import SPLIT_NAMES, Loader
from clew.datasets import PreprocessedLSTMMapDataset as Samples
from clew.engine import Classifier, fit


class LastLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))

    def forward(self, batch):
        return self.head(batch["sequence"][:, -1].float())


folder, out = sys.argv[1:] or ("preprocessed_data", "results_own")
train, val, test = (Loader(Samples(folder, split=s), 32, shuffle=s == "train") for s in SPLIT_NAMES)
dim = train.dataset[0]["sequence"].shape[-1]
print(fit(Classifier(LastLayer(dim)), train, val, test=test, output_dir=out).test)
# --8<-- [end:code]
