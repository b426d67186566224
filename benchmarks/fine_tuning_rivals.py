"""Fine-tuning EfficientNet-Lite0 as others would write it: a plain PyTorch loop, and timm's own
loader, network and optimizer. Each yields the images per second of whole epochs."""

import random
import time

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from clew.patterns.networks import build_network

SCALE, RATIO = (0.35, 1.0), (3 / 4, 4 / 3)


class Photos(Dataset):
    """Photos in class folders: decoded in every epoch, cropped, mirrored, scaled to [-1, 1]."""

    def __init__(self, folder, size):
        self.files = sorted(folder.glob("*/*"))
        self.classes = sorted({file.parent.name for file in self.files})
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, place):
        file = self.files[place]
        with Image.open(file) as photo:
            photo = photo.convert("RGB")
            cropped = photo.resize((self.size, self.size), Image.Resampling.BILINEAR, crop(photo))
        if random.random() < 0.5:
            cropped = cropped.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(cropped)).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1, self.classes.index(file.parent.name)


def crop(photo):
    area = photo.width * photo.height * random.uniform(*SCALE)
    ratio = np.exp(random.uniform(*np.log(RATIO)))
    width = min(photo.width, round((area * ratio) ** 0.5))
    height = min(photo.height, round((area / ratio) ** 0.5))
    left, top = random.randint(0, photo.width - width), random.randint(0, photo.height - height)
    return left, top, left + width, top + height


def plain_epochs(args, folder, batch):
    """fp32, one kernel at a time, a DataLoader with as many workers as there are cores."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    photos = Photos(folder, args.size)
    loader = DataLoader(
        photos,
        batch,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
        pin_memory=args.device == "cuda",
        persistent_workers=args.workers > 0,
    )
    network = build_network("lite0", classes=len(photos.classes), image_size=args.size)
    network.to(args.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4)

    def step(images, labels):
        images = images.to(args.device, non_blocking=True)
        labels = labels.to(args.device, non_blocking=True)
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels, label_smoothing=0.1).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    yield from epochs(args, loader, step)


def timm_epochs(args, folder, batch):
    """As in timm's train script: its dataset, loader with RandAugment, mixed precision and
    channels_last. Raises ImportError or RuntimeError where timm cannot be imported."""
    from timm import create_model
    from timm.data import create_dataset, create_loader
    from timm.optim import create_optimizer_v2

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    is_gpu = args.device == "cuda"
    dataset = create_dataset("", root=str(folder), is_training=True, batch_size=batch)
    loader = create_loader(
        dataset,
        (3, args.size, args.size),
        batch,
        is_training=True,
        use_prefetcher=is_gpu,
        scale=SCALE,
        ratio=RATIO,
        auto_augment="rand-m9-n2",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        num_workers=args.workers,
        device=torch.device(args.device),
        persistent_workers=args.workers > 0,
    )
    classes = len(sorted(folder.iterdir()))
    network = create_model("tf_efficientnet_lite0", num_classes=classes).to(args.device)
    network = network.to(memory_format=torch.channels_last).train()
    optimizer = create_optimizer_v2(network, "adamw", lr=3e-4, weight_decay=1e-4)

    def step(images, labels):
        images = images.to(args.device, memory_format=torch.channels_last)
        with torch.autocast(args.device, torch.bfloat16, enabled=is_gpu):
            logits = network(images)
        loss = F.cross_entropy(logits.float(), labels.to(args.device), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()

    yield from epochs(args, loader, step)


def epochs(args, loader, step):
    """The first epoch starts the workers and warms up; it is not counted."""
    for number in range(args.epochs):
        begun, count = time.perf_counter(), 0
        for images, labels in loader:
            step(images, labels)
            count += len(images)
        if args.device == "cuda":
            torch.cuda.synchronize()
        if number:
            yield count / (time.perf_counter() - begun)
