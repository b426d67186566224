"""The plain way: one `torch.load` a sample, PyG's collate a layer, a Python loop over the layers,
single precision, Adam. The networks are clew's own in size and in what they compute."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINEConv


class Files(Dataset):
    def __init__(self, folder, count, with_graphs):
        self.folder, self.count, self.with_graphs = folder, count, with_graphs

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        sample = torch.load(self.folder / f"{index}.pt")
        if self.with_graphs:
            graphs = torch.load(self.folder / f"{index}_graphs.pt")
            sample["graphs"] = [
                Data(x=x.float(), edge_index=edges, edge_attr=weights.float())
                for x, edges, weights in graphs
            ]
        return sample


def collate(samples):
    batch = {
        "sequence": torch.stack([sample["sequence"].float() for sample in samples]),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }
    if "graphs" in samples[0]:
        layers = len(samples[0]["graphs"])
        batch["layers"] = [
            Batch.from_data_list([sample["graphs"][layer] for sample in samples])
            for layer in range(layers)
        ]
    return batch


class PlainLSTM(nn.Module):
    def __init__(self, dim=4096, width=128, hidden=128, extra=0, dropout=0.2):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.project = nn.Linear(dim, width)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(
            width + extra, hidden, 2, batch_first=True, bidirectional=True, dropout=dropout
        )
        self.head = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
        )

    def forward(self, batch):
        return self.classify(self.read_states(batch)), 0.0

    def read_states(self, batch):
        return self.dropout(self.project(self.norm(batch["sequence"])))

    def classify(self, sequence):
        _, (ends, _) = self.lstm(sequence)
        return self.head(torch.cat([ends[-2], ends[-1]], dim=1)).squeeze(1)


class PlainGNN(PlainLSTM):
    def __init__(self, features=64, gnn_hidden=64, extra=64):
        super().__init__(extra=extra)
        self.norm_nodes = nn.LayerNorm(features, elementwise_affine=False)
        self.first = GINEConv(make_mlp(features, gnn_hidden), edge_dim=1)
        self.second = GINEConv(make_mlp(gnn_hidden, gnn_hidden), edge_dim=1)

    def forward(self, batch):
        read = [self.read_layer(graphs)[0] for graphs in batch["layers"]]
        states = self.read_states(batch)
        return self.classify(torch.cat([states, torch.stack(read, dim=1)], dim=2)), 0.0

    def read_layer(self, graphs):
        x = self.norm_nodes(graphs.x)
        hidden = self.first(x, graphs.edge_index, graphs.edge_attr)
        hidden = self.second(hidden, graphs.edge_index, graphs.edge_attr)
        last = graphs.ptr[1:] - 1
        return hidden[last], x, last


class PlainGVAE(PlainGNN):
    def __init__(self, features=64, gnn_hidden=64, latent=32):
        super().__init__(features, gnn_hidden, extra=2 * latent)
        self.latent = nn.Linear(gnn_hidden, 2 * latent)
        self.decoder = nn.Sequential(
            nn.Linear(latent, gnn_hidden), nn.ReLU(), nn.Linear(gnn_hidden, 2 * features)
        )

    def forward(self, batch):
        latents, losses = [], []
        for graphs in batch["layers"]:
            read, x, last = self.read_layer(graphs)
            latent = self.latent(read)
            mean, log_variance = latent.chunk(2, dim=1)
            sample = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
            target = torch.cat([x[last], look(x, graphs)[last]], dim=1)
            losses.append(0.001 * kl + 0.1 * F.mse_loss(self.decoder(sample), target))
            latents.append(latent)
        states = self.read_states(batch)
        logits = self.classify(torch.cat([states, torch.stack(latents, dim=1)], dim=2))
        return logits, torch.stack(losses).mean()


def look(x, graphs):
    """For every token the mean of the tokens that it looks at, by attention."""
    source, target = graphs.edge_index
    sums = torch.zeros_like(x).index_add(0, target, x[source] * graphs.edge_attr)
    weights = x.new_zeros(len(x), 1).index_add(0, target, graphs.edge_attr)
    return sums / weights.clamp(min=1e-6)


def make_mlp(features, hidden):
    return nn.Sequential(
        nn.Linear(features, hidden),
        nn.LayerNorm(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
    )


class OlderLSTM(PlainLSTM):
    """As the older system had it: the states go into the LSTM as wide as they are."""

    def __init__(self, dim=4096):
        super().__init__(dim, width=dim)
        self.project = nn.Identity()


NETWORKS = {"lstm": PlainLSTM, "gnn_det": PlainGNN, "gvae": PlainGVAE, "older lstm": OlderLSTM}


class PlainRun:
    """Trains epoch after epoch; `time_epoch` gives seconds, and those of the steps alone."""

    def __init__(self, name, folder, count, batch_size, device):
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("highest")
        self.device = device
        self.network = NETWORKS[name]().to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        files = Files(folder, count, with_graphs="lstm" not in name)
        self.loader = DataLoader(files, batch_size, shuffle=True, collate_fn=collate)

    def time_epoch(self):
        start, steps = time.perf_counter(), 0.0
        for batch in self.loader:
            begun = time.perf_counter()
            self.step(batch)
            steps += time.perf_counter() - begun
        return time.perf_counter() - start, steps

    def step(self, batch):
        batch = {name: move(value, self.device) for name, value in batch.items()}
        logits, extra = self.network(batch)
        loss = F.binary_cross_entropy_with_logits(logits, batch["label"]) + extra
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def move(value, device):
    return [part.to(device) for part in value] if isinstance(value, list) else value.to(device)
