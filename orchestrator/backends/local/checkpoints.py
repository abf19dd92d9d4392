"""Saved weights on disk: written whole or not at all, with a lifetime, and tied to the base model they belong to."""

import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson
import safetensors.torch
import tinker
from torch import Tensor

from orchestrator.backends.local.model import AdapterSpec
from orchestrator.backends.local.status_errors import bad_request, conflict, not_found
from orchestrator.disk import DISK, Disk, make_folder, sync_folder, write_error

Kind = Literal["weights", "sampler_weights"]

MODEL_ID = "run"
"""The owner part of every path of a run's checkpoints."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_PATH = re.compile(rf"(?:local|tinker)://(run)/(weights|sampler_weights)/({_NAME.pattern})")
_UNFINISHED = ".unfinished-"
_METADATA, _MODEL, _OPTIMIZER = "metadata.json", "model.safetensors", "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known about a checkpoint beside its tensors; times are Unix seconds."""

    base_model: str
    base_fingerprint: str
    adapter: AdapterSpec
    created_at: float
    expires_at: float | None
    """None: it stays until it is deleted."""
    user_metadata: Mapping[str, str]
    sha256: Mapping[str, str]
    """Of each tensor file's content, hexadecimal, by file name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A live checkpoint."""

    path: str
    directory: Path
    metadata: Metadata

    def weights(self) -> dict[str, Tensor]:
        """The saved weights, float32, by parameter name."""
        return _load(self.directory / _MODEL)

    def optimizer_state(self) -> dict[str, Tensor]:
        """The saved optimizer state. Raises ``tinker.BadRequestError`` when it was saved for sampling only."""
        if _OPTIMIZER not in self.metadata.sha256:
            raise bad_request(f"{self.path} holds no optimizer state: it can be loaded without optimizer only")
        return _load(self.directory / _OPTIMIZER)


class CheckpointStore:
    """The checkpoints of one run, at ``local://run/<kind>/<name>``, which is a directory under ``<root>``.

    Unlike the service, which gives every training client a model id of its own, a store has one, ``run``, for all
    processes of its run: what one of them saved the next finds under the same path, and saving it again is a conflict.
    ``tinker://run/...`` means the same as ``local://run/...``.

    A checkpoint is a directory that appears by one rename after its files are on disk, so a killed process leaves
    either all of it or nothing under its name. One process writes a store at a time: the run directory's lock sees to
    it. What has expired is gone for every purpose, and is removed when the store is opened. What the disk has damaged
    is not found either, so that an older checkpoint is taken; it is left for whoever wants to look at it.
    """

    def __init__(
        self, root: Path, *, now: Callable[[], float] = time.time, clear: bool = True, disk: Disk = DISK
    ) -> None:
        """Opens the store, clearing away what was left unfinished or has expired; ``now`` gives Unix seconds.

        With ``clear=False`` nothing is cleared away: for who only looks at the store.
        """
        self._root = root
        self._now = now
        self._disk = disk
        if not clear:
            return
        for directory in root.glob(f"{MODEL_ID}/*weights/*/"):
            if directory.name.startswith(_UNFINISHED) or self._has_expired(directory):
                self._remove(directory)

    def save(
        self,
        kind: Kind,
        name: str,
        *,
        base_model: str,
        base_fingerprint: str,
        adapter: AdapterSpec,
        weights: Mapping[str, Tensor],
        optimizer_state: Mapping[str, Tensor] | None = None,
        ttl_seconds: int | None = None,
        user_metadata: Mapping[str, str] | None = None,
        overwrite: bool = False,
    ) -> str:
        """Saves under ``name`` and gives the path.

        Raises:
            tinker.ConflictError: the name is taken by a live, undamaged checkpoint and not ``overwrite``.
            tinker.BadRequestError: the name cannot be part of a path, or ``ttl_seconds`` is not positive.
            JournalWriteError: the disk would not take it; nothing is saved under the name.
        """
        if not _NAME.fullmatch(name):
            raise bad_request(f"checkpoint name {name!r}: expected letters, digits, dots, dashes and underscores")
        if ttl_seconds is not None and ttl_seconds <= 0:
            raise bad_request(f"checkpoint {name}: ttl_seconds={ttl_seconds}, expected more than 0 or None")
        target = self._root / MODEL_ID / kind / name
        path = f"local://{MODEL_ID}/{kind}/{name}"
        if not overwrite and self._holds(path):
            raise conflict(f"{path} exists already: choose another name, adopt it, or overwrite", {"path": path})
        files = {_MODEL: safetensors.torch.save(dict(weights))}
        if optimizer_state is not None:
            files[_OPTIMIZER] = safetensors.torch.save(dict(optimizer_state))
        created_at = self._now()
        metadata = Metadata(
            base_model=base_model,
            base_fingerprint=base_fingerprint,
            adapter=adapter,
            created_at=created_at,
            expires_at=None if ttl_seconds is None else created_at + ttl_seconds,
            user_metadata=dict(user_metadata or {}),
            sha256={file: hashlib.sha256(content).hexdigest() for file, content in files.items()},
        )
        files[_METADATA] = orjson.dumps(asdict(metadata), option=orjson.OPT_INDENT_2)
        try:
            self._write_all(target, files)
        except OSError as error:
            raise write_error(target, error) from error
        return path

    def find(self, path: str) -> Checkpoint:
        """The live checkpoint of a ``local://`` path, or of a checkpoint directory of this or another run.

        Raises:
            tinker.NotFoundError: it was deleted, has expired, is damaged or never was.
        """
        checkpoint = self._find_unverified(path)
        for file, expected in checkpoint.metadata.sha256.items():
            try:
                with (checkpoint.directory / file).open("rb") as content:
                    found = hashlib.file_digest(content, "sha256").hexdigest()
            except FileNotFoundError as error:
                raise _damaged(path, checkpoint.directory / file, error) from error
            if found != expected:
                raise _damaged(path, checkpoint.directory / file, f"sha256 {found}, expected {expected}")
        return checkpoint

    def live(self) -> Iterator[Checkpoint]:
        """What this store holds and can read the metadata of; the tensors are not looked at."""
        for kind in get_args(Kind):
            for directory in (self._root / MODEL_ID / kind).glob("[!.]*/"):
                with suppress(tinker.NotFoundError):
                    yield self._find_unverified(f"local://{MODEL_ID}/{kind}/{directory.name}")

    def delete(self, path: str) -> None:
        """Deletes a checkpoint of this store, damaged or not.

        Raises:
            tinker.NotFoundError: it is gone already.
            tinker.BadRequestError: it belongs to another run.
        """
        if not _PATH.fullmatch(path):
            raise bad_request(f"{path}: only this run's own local:// checkpoints can be deleted")
        self._remove(self._find_unverified(path).directory)

    def _find_unverified(self, path: str) -> Checkpoint:
        directory = self._directory(path)
        if not directory.is_dir():
            raise not_found(f"{path}: no such checkpoint (looked for {directory}); it may have been deleted")
        try:
            metadata = _read_metadata(directory)
        except (FileNotFoundError, ValueError) as error:
            raise _damaged(path, directory / _METADATA, error) from error
        if self._expired(metadata):
            raise not_found(f"{path} has expired: it was kept until {metadata.expires_at} (Unix seconds)")
        return Checkpoint(path, directory, metadata)

    def _holds(self, path: str) -> bool:
        try:
            self.find(path)
        except tinker.NotFoundError:
            return False
        return True

    def _has_expired(self, directory: Path) -> bool:
        try:
            return self._expired(_read_metadata(directory))
        except (OSError, ValueError):  # damaged, or no checkpoint at all: whoever asks for it is told
            return False

    def _directory(self, path: str) -> Path:
        match = _PATH.fullmatch(path)
        return self._root.joinpath(*match.groups()) if match else Path(path)

    def _expired(self, metadata: Metadata) -> bool:
        return metadata.expires_at is not None and metadata.expires_at <= self._now()

    def _write_all(self, target: Path, files: Mapping[str, bytes]) -> None:
        make_folder(target.parent, disk=self._disk)
        unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))
        for file, content in files.items():
            self._write(unfinished / file, content)
        sync_folder(unfinished, disk=self._disk)
        if target.exists():
            self._remove(target)
        self._disk.rename(unfinished, target)
        sync_folder(target.parent, disk=self._disk)

    def _write(self, path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[self._disk.write(descriptor, rest, path) :]
            self._disk.sync(descriptor, path)
        finally:
            os.close(descriptor)

    def _remove(self, directory: Path) -> None:
        """Removes a checkpoint so that a kill on the way leaves it whole or unfinished, never half there."""
        doomed = directory.with_name(f"{_UNFINISHED}{directory.name}")
        if directory != doomed and not directory.name.startswith(_UNFINISHED):
            self._disk.rename(directory, doomed)
            directory = doomed
        shutil.rmtree(directory)
        sync_folder(directory.parent, disk=self._disk)


def sync(path: Path) -> None:
    """Makes a file's content, or a directory's renames and new entries, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _load(path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
    return tensors


def _read_metadata(directory: Path) -> Metadata:
    """Raises OSError or ValueError when it is missing or damaged."""
    fields = orjson.loads((directory / _METADATA).read_bytes())
    try:
        _check_types(fields)
        metadata = Metadata(**{**fields, "adapter": AdapterSpec(**fields["adapter"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected the fields of a checkpoint's metadata: {error!r}") from error
    if _MODEL not in metadata.sha256:
        raise ValueError(f"sha256 lists {sorted(metadata.sha256)}, expected {_MODEL} among them")
    return metadata


def _check_types(fields: Mapping[str, Any]) -> None:
    """Of the fields that are worked with whenever a store is opened. Raises KeyError or TypeError."""
    if not isinstance(fields["expires_at"], float | int | None):
        raise TypeError(f"expires_at is {fields['expires_at']!r}, expected a time or null")
    for name in ("sha256", "user_metadata"):
        if not isinstance(fields[name], dict):
            raise TypeError(f"{name} is {fields[name]!r}, expected an object")


def _damaged(path: str, file: Path, reason: object) -> tinker.NotFoundError:
    return not_found(f"{path} is damaged, so it counts as gone: {file}: {reason}; use an older checkpoint")
