"""What the builders share: a data folder as a tensorflow-datasets set, without TensorFlow.

What makes it work without TensorFlow (tensorflow-datasets 4.9.10): pictures are handed over as
paths, so their encoded bytes are copied and never re-encoded; numeric features name numpy dtypes;
the info is a plain `DatasetInfo` (`dataset_info_from_configs` would look for tfds' own metadata
files); and reading is `as_data_source`, never `as_dataset`. Text features come back as bytes.
tfds would decode pictures by its own rules, without EXIF; `read` skips that and opens them by
`trace_jax.images`, like every other reader.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds
from PIL import Image

from trace_jax import images
from trace_jax.data import manifest
from trace_jax.data import rows as row_schema
from trace_jax.data.rows import Row
from trace_jax.errors import FaultsError, UserError
from trace_jax.types import SPLITS

_VERSION = re.compile(r"\d+\.\d+\.\d+")


class FolderBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
    """One data folder. Features: image, the searchable fields of a row, and `row`, its JSON.

    Attributes:
      kinds: kinds of data folder it takes.
    """

    VERSION = tfds.core.Version("1.0.0")  # replaced by the config's, the version of the data
    kinds: ClassVar[tuple[str, ...]] = ()
    # tfds looks beside this file for checksums of downloads; there are none, and its search needs
    # a package (importlib_resources) that it does not require itself.
    code_path = None

    def __init__(self, *, folder: str | Path, **kwargs: Any) -> None:
        self._data = manifest.read(folder)
        info = self._data.info
        if info.kind not in self.kinds:
            raise UserError(
                f"{folder}: holds {info.kind}; {self.name} takes {' or '.join(self.kinds)}."
            )
        if not _VERSION.fullmatch(info.version):
            raise UserError(
                f"{folder}/{manifest.INFO_FILE}: version {info.version!r} is not of the form "
                "1.0.0, which tensorflow-datasets asks for"
            )
        config = tfds.core.BuilderConfig(
            name=info.name, version=tfds.core.Version(info.version), description=info.kind
        )
        super().__init__(config=config, **kwargs)

    @abc.abstractmethod
    def searchable(self) -> dict[str, Any]:
        """tfds features of the fields that can be searched."""

    @abc.abstractmethod
    def fields(self, row: Row) -> dict[str, Any]:
        """Those fields of one row."""

    def rows_by_split(self) -> dict[str, list[str]]:
        """The folder's rows as JSON lines, by split."""
        rows: dict[str, list[str]] = {}
        for row in self._data.rows:
            rows.setdefault(row.split, []).append(row_schema.dumps(row))
        return rows

    def _info(self) -> tfds.core.DatasetInfo:
        text = tfds.features.Text
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"Data folder {self._data.info.name} ({self._data.info.kind}).",
            features=tfds.features.FeaturesDict(
                {"image": tfds.features.Image(), "row": text(), **self.searchable()}
            ),
            disable_shuffling=True,  # rows stay in the manifest's order
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager
        present = {row.split for row in self._data.rows}
        return {split: self._generate_examples(split) for split in SPLITS if split in present}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, row in enumerate(self._data.rows):
            if row.split == split:
                image = str(self._data.path(row))
                yield number, {"image": image, "row": row_schema.dumps(row), **self.fields(row)}


def prepare(maker: type[FolderBuilder], folder: str | Path, data_dir: str | Path) -> Any:
    """Writes a data folder as ArrayRecord under `data_dir`, or finds it there.

    Raises:
      FaultsError: the folder has faults; a picture that does not open is one.
      UserError: `data_dir` holds another state of the same name and version.
    """
    faults = manifest.check(folder)
    if faults:
        raise FaultsError(f"{folder}: not written as a tensorflow-datasets set", faults)
    builder = maker(folder=folder, data_dir=str(data_dir), file_format="array_record")
    builder.download_and_prepare()
    for split, wanted in builder.rows_by_split().items():
        stored = builder.as_data_source(split=split, decoders=_raw())
        if [stored[n]["row"].decode() for n in range(len(stored))] != wanted:
            raise UserError(
                f"{builder.data_path}: holds other rows of the same name and version. "
                "Raise the version in dataset.json, or delete that folder."
            )
    return builder


def read(builder: FolderBuilder, split: str) -> Sequence[tuple[Any, Image.Image]]:
    """Random access to one split's rows and their pictures, opened by the one rule."""
    kind = builder.kinds[0]
    return _Rows(builder.as_data_source(split=split, decoders=_raw()), kind)


class _Rows(Sequence[tuple[Any, Image.Image]]):
    def __init__(self, source: Any, kind: str) -> None:
        self._source, self._kind = source, kind

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        raw = self._source[range(len(self))[index]]
        row, faults = row_schema.loads(raw["row"].decode(), self._kind)
        if row is None:
            raise FaultsError(f"row {index} is damaged", faults)
        return row, images.decode_rgb(raw["image"])


def _raw() -> dict[str, Any]:
    return {"image": tfds.decode.SkipDecoding()}
