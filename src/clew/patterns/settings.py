"""The settings of the commands for photos, one class each: signatures, flags, help, checks and
run.toml come from these. Imports nothing heavy."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from clew.base.commands import Cached, TrainingHardware, Watched, check_gpu_name
from clew.base.errors import InputError
from clew.base.progress import Reporter
from clew.base.settings import (
    check_exists,
    check_folders,
    check_least,
    check_numbers,
    check_positive,
    check_weight,
)
from clew.patterns.results_file import USUAL_UNKNOWN
from clew.storage.run_file import NeverFromFile, UrlNeverFromFile

if TYPE_CHECKING:
    from clew.patterns.trained.model import PatternModel

LIBRARY = Path("patterns")  # the default folder for sets


@dataclass(frozen=True, kw_only=True)
class InLibrary:
    """Where the sets are.

    Args:
        library: Folder that contains your sets.
    """

    library: str | Path = LIBRARY


@dataclass(frozen=True, kw_only=True)
class OfModel(InLibrary):
    """The trained classifier to use.

    Args:
        model: Folder or URL of a trained classifier.
        name: Name of a set; its newest model is used. [default: the only set]
    """

    model: "str | Path | PatternModel | None" = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """Where a classifier runs.

    Args:
        device: cpu, cuda or cuda:1. [default: the GPU if there is one]
    """

    device: str | None = None

    def __post_init__(self) -> None:
        check_gpu_name(self.device)


@dataclass(frozen=True, kw_only=True)
class Judging(OnDevice):
    """Which predictions are listed, and which are doubtful or unknown.

    Args:
        top_k: Number of classes to list per photo.
        threshold: Mark photos below this confidence as doubtful.
        unknown: Mark photos as unknown that are unlike every class: less typical than this share of
            the validation photos. 0 marks none.
    """

    top_k: int = 3
    threshold: float = 0.6
    unknown: float = USUAL_UNKNOWN

    def __post_init__(self) -> None:
        rules = {
            "top_k": (
                self.top_k >= 1,
                "it must be 1 or more: the number of top predictions to report per photo.",
            ),
            "threshold": (
                0 <= self.threshold <= 1,
                "it must be a probability from 0 to 1. Photos with a lower confidence are marked "
                "as doubtful.",
            ),
            "unknown": (
                0 <= self.unknown < 1,
                "it must be 0 (no photo is unknown) or more, and less than 1: about this share of "
                "the photos that do show a known class is marked as unknown too.",
            ),
        }
        for name, (is_valid, rule) in rules.items():
            if not is_valid:
                raise InputError(rule, setting=name, value=getattr(self, name))
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class OnPage:
    """The page on which a person decides.

    Args:
        web: Review on a page in the browser instead of the terminal.
        port: Port for the page; 0 picks any free port.
        browser: Open the page in the browser.
    """

    web: bool = False
    port: int = 0
    browser: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TrainingHardware, Cached, Watched):
    """What `train` takes.

    Args:
        data: Folder with one subfolder per class, with or without train, val and test folders,
            instead of a set.
        name: Name of the set to train. [default: the only set, unless `data` is given]
        out: Folder or URL for the model, its metrics and its report. [default: trained, or the
            set's own]
        overwrite: Start over instead of resuming; photos are kept.
        start_from: Folder or URL of an earlier model to start from. [default: the set's last
            model]
        log_to: Log settings and metrics to Weights & Biases or MLflow.
        library: Folder that contains your sets.
        split: Percentages for training, validation and test, if the photos are not already in
            train, val and test folders.
        image_size: Side length, in pixels, to resize photos to. [default: depends on the photos,
            128 to 224; from scratch 32 to 128]
        cache: Where to keep decoded photos.
        network: Network: lite0 (EfficientNet-Lite0, pretrained on ImageNet), tiny, small, standard,
            large, or timm:NAME for a timm network. [default: lite0; from scratch standard, or small
            without a GPU]
        pretrained: Start from timm's pretrained weights, for a timm network.
        from_scratch: Start from random weights instead of pretrained ones or a set's last model.
        epochs: Number of epochs. [default: 20 for a pretrained network, 30 from scratch, or more
            for few photos]
        minutes: Time for training and evaluation without a GPU. Only for the pretrained network,
            and if the number of epochs is not given. [default: 5]
        lr: Peak learning rate. [default: depends on the batch size]
        patience: Stop after this many epochs without a better validation accuracy; 0 disables early
            stopping. [default: a third of the epochs, at least 20]
        weight_decay: Weight decay of AdamW.
        warmup: Learning-rate warm-up, as a fraction of all steps.
        focal_loss: Use focal loss, which puts more weight on photos that are still misclassified.
        label_smoothing: Label smoothing: 0.1 lowers the target probability of the true class to
            about 0.9.
        class_weights: Weight the classes inversely to their frequency, so that all count equally.
        augment: Augment the training photos.
        rand_augment: RandAugment: number of operations per photo and their magnitude, 0 to 30.
            [default: 2,9]
        mixup: Mixup alpha; 0 disables Mixup. [default: 0.2]
        crop: Random resized crops: the smallest fraction of a photo's area that a crop keeps; 1
            disables them. [default: 0.35 for a pretrained network, otherwise 1]
        flip: Random horizontal flips. [default: if flipped photos look like the originals]
        seed: Seed for weights, photo order and augmentation.
        channels_last: Use the channels-last memory format. [default: if faster]
        batch_size: Photos per batch, over all processes. [default: the fastest]
        should_stop: Called after every step; when it returns True, the run saves a checkpoint and
            stops.
    """

    data: str | Path | None = field(default=None, kw_only=False)
    name: str | None = None
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    overwrite: bool = False
    start_from: str | Path | None = None
    log_to: Literal["wandb", "mlflow"] | None = None
    library: str | Path = LIBRARY
    split: str = "70/10/20"
    image_size: int | None = None
    cache: Literal["auto", "ram", "disk"] = "auto"
    network: str | None = None
    pretrained: bool = False
    from_scratch: bool = False
    epochs: int | None = None
    minutes: float | None = None
    lr: float | None = None
    patience: int | None = None
    weight_decay: float = 0.0001
    warmup: float = 0.1
    focal_loss: bool = False
    label_smoothing: float = 0.1
    class_weights: bool = False
    augment: bool = True
    rand_augment: str | None = None
    mixup: float | None = None
    crop: float | None = None
    flip: bool | None = None
    seed: int = 0
    # Decoded photos are not opened by shard.
    max_cache_batches: int | None = field(default=None, init=False)


@dataclass(frozen=True, kw_only=True)
class EvaluateSettings(OfModel, OnDevice, Watched):
    """What `evaluate` takes.

    Args:
        data: Folder with one subfolder per class.
        out: Folder or URL for the metrics and the report. [default: evaluated/DATA beside the
            model]
        num_workers: Number of threads that prefetch photos. [default: one per core]
        should_stop: Called after every photo; when it returns True, the evaluation stops and
            nothing is written.
    """

    data: str | Path = field(kw_only=False)
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    num_workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class IdentifySettings(OfModel, Judging, OnDevice):
    """What `identify` takes.

    Args:
        photos: A folder of photos, or one photo.
        out: Folder for the results. [default: identified/FOLDER beside the model, or here if that
            is at a URL]
        copy_to: Copy the photos to this folder, with one subfolder per class; nothing is
            overwritten.
        thumbnails: Number of photos to show on the page and the contact sheets.
        review: Afterwards, review each doubtful photo.
        web: Review on a page in the browser instead of the terminal.
        reporter: Called with progress events. [default: the log]
    """

    photos: str | Path = field(kw_only=False)
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    copy_to: Annotated[str | Path | None, UrlNeverFromFile] = None
    thumbnails: int = 500
    review: bool = False
    web: bool = False
    reporter: Reporter | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self, "thumbnails")


@dataclass(frozen=True, kw_only=True)
class RecognizeSettings(OfModel, Judging, OnDevice):
    """What `recognize` takes.

    Args:
        image: The photo.
        multiscale: Scan windows of several sizes to find and locate small objects in the photo.
    """

    image: str | Path = field(kw_only=False)
    multiscale: bool = False


@dataclass(frozen=True, kw_only=True)
class ReviewSettings(OnPage, InLibrary):
    """What `review_photos` takes.

    Args:
        name: Name of the set. [default: the only one]
        model: Folder or URL of a trained classifier, instead of a set.
        move: Move the photos into their classes instead of copying them.
        every: Also show confident predictions, and photos that were skipped before.
        identified: Folder written by "clew patterns identify". [default: the newest one with photos
            left to review]
        data: Folder to add the photos to, with one subfolder per class. [default: the set's, or the
            one that the classifier was trained on]
    """

    name: str | None = field(default=None, kw_only=False)
    model: str | Path | None = None
    move: bool = False
    every: bool = False
    identified: str | Path | None = None
    data: str | Path | None = None


@dataclass(frozen=True, kw_only=True)
class OfPhotos(InLibrary, OnDevice, Watched):
    """Photos that are compared with each other.

    Args:
        data: Folder with one subfolder per class.
        name: Name of a set, instead of a folder. [default: the only set]
        out: Folder for the features. [default: that of "clew patterns clean"]
        num_workers: Number of threads that read photos and compute features. [default: one per
            core]
        should_stop: Called now and then; when it returns True, what was computed is saved, and the
            search stops.
    """

    data: str | Path | None = None
    name: str | None = None
    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    num_workers: int | None = None


@dataclass(frozen=True, kw_only=True)
class CleanSettings(OnPage, OfPhotos):
    """What `clean_photos` takes.

    Args:
        data: Folder with one subfolder per class, with or without train and test folders above.
        out: Folder for the findings, the journal of changes and removed photos. [default:
            DATA-clean beside the data; for a set, "clean" in its folder]
        web: Decide about the findings on a page in the browser.
        undo: Undo this many of the latest changes, and do nothing else.
    """

    data: str | Path | None = field(default=None, kw_only=False)
    undo: int = 0


@dataclass(frozen=True, kw_only=True)
class SimilarSettings(OfPhotos):
    """What `find_similar` takes.

    Args:
        image: The photo to compare with; it need not be in the folder.
        top_k: Number of photos to list.
    """

    image: str | Path = field(kw_only=False)
    top_k: int = 10


@dataclass(frozen=True, kw_only=True)
class ExportSettings(OfModel):
    """What `export` takes.

    Args:
        out: The file to write; with the extension .pt2 it is a torch.export program instead of
            ONNX. [default: model.onnx beside the model]
        web: Folder for a page that classifies photos in the browser, with the model and
            onnxruntime-web, which is fetched with npm. [default: no page]
        overwrite: Overwrite an existing file.
    """

    out: Annotated[str | Path | None, UrlNeverFromFile] = None
    web: Annotated[str | Path | None, UrlNeverFromFile] = None
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class ServeSettings(OfModel, Judging, OnDevice):
    """What `serve` takes.

    Args:
        host: Address to listen at. Any other than this machine's own (127.0.0.1, ::1, localhost)
            requires API keys.
        port: Port to listen at; 0 is any free one.
        api_keys_file: File with the API keys that clients may use, one per line.
        api_keys_env: Environment variable that contains API keys, separated by commas. [default:
            none]
        allow_anonymous: Accept requests without an API key at any address.
        allowed_hosts: Further names of this server that clients may use, such as a proxy's.
        max_waiting: Number of photos that may wait; more are refused with status 429.
        max_body_bytes: Maximum size of a photo.
        max_corrections: Number of corrected photos to keep until they are reviewed.
        drain_seconds: Time for running requests to finish after Ctrl-C or SIGTERM.
        reporter: Called with progress events. [default: the log]
    """

    host: Annotated[str, NeverFromFile] = "127.0.0.1"
    port: int = 8000
    api_keys_file: Annotated[str | Path | None, NeverFromFile] = None
    api_keys_env: Annotated[str | None, NeverFromFile] = None
    allow_anonymous: Annotated[bool, NeverFromFile] = False
    allowed_hosts: Annotated[Sequence[str], NeverFromFile] = ()
    max_waiting: int = 32
    max_body_bytes: int = 20_000_000
    max_corrections: int = 10_000
    drain_seconds: float = 20.0
    reporter: Reporter | None = None

    def __post_init__(self) -> None:
        check_numbers(self)
        super().__post_init__()
        check_positive(self, "max_waiting", "max_body_bytes", "max_corrections")
        check_weight(self, "drain_seconds")


@dataclass(frozen=True, kw_only=True)
class FlowSettings(InLibrary, OnDevice):
    """What `run_flow` takes.

    Args:
        name: Name of the set; it is created if it does not exist.
        sources: Folders to import, each with one subfolder per class.
        identify: Folder of photos to identify after training.
        review: Afterwards, review each doubtful photo.
        web: Review on a page in the browser instead of the terminal.
        epochs: Number of epochs. A new value alone does not train the set again. [default: 30, or
            more for few photos]
        threads: CPU threads to use. [default: all cores, or fewer if that is faster while other
            processes use them]
    """

    name: str = field(kw_only=False)
    sources: Sequence[str | Path] = ()
    identify: str | Path | None = None
    review: bool = False
    web: bool = False
    epochs: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least("epochs", self.epochs)
        check_least("threads", self.threads)
        check_folders(*self.sources)
        check_exists("identify", self.identify)
