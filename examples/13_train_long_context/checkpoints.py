# SPDX-FileCopyrightText: 2026 The Tangram authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint: written under another name, then renamed, so that what has the name of a
checkpoint is whole. Shards are read by any number of ranks."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem

PART = ".part"
SETTINGS = "settings.json"


class CheckpointError(RuntimeError):
    """A checkpoint that could not be written or read, on all ranks."""


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step_{step:08d}"


def steps_in(folder: Path) -> list[int]:
    """Steps of whole checkpoints, in order."""
    found = (path for path in folder.glob("step_*") if path.suffix != PART and (path / SETTINGS).exists())
    return sorted(int(path.name.removeprefix("step_")) for path in found)


def save(folder: Path, step: int, state: dict[str, Any], settings: dict[str, Any], keep: int) -> Path:
    """Writes `state`, of all ranks, as the checkpoint before step `step`; of older ones the newest `keep - 1` stay.

    Raises CheckpointError on every rank where one could not write; then the checkpoints before stay as they are.
    """
    path = path_of(folder, step)
    part = path.with_suffix(PART)
    error, files = "", _Files()
    writer = dcp.FileSystemWriter(part, single_file_per_rank=True, sync_files=True, overwrite=True)
    try:
        _on_first_rank(lambda: _begin(part, settings))
        writer.fs = files
        dcp.save(state, storage_writer=writer)
        _on_first_rank(lambda: _finish(part, path))
    except CheckpointException as failed:
        reasons: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, files.error)
        error = "; ".join(f"rank {rank}: {reasons[rank] or _reason(e)}" for rank, e in sorted(failed.failures.items()))
    except _FirstRankFailed as failed:
        error = f"rank 0: {failed}"
    if error:
        dist.barrier()  # all have stopped writing
        if dist.get_rank() == 0:
            shutil.rmtree(part, ignore_errors=True)
        steps = steps_in(folder)
        before = f"{path_of(folder, steps[-1])} stays the last one" if steps else "there is none before it"
        raise CheckpointError(
            f"save: a checkpoint must be written whole (got {error}, path={path}); {before}: free space and start "
            "again with --resume"
        )
    if dist.get_rank() == 0:
        for old in steps_in(folder)[:-keep]:
            shutil.rmtree(path_of(folder, old), ignore_errors=True)
    return path


def load(folder: Path, state: dict[str, Any], settings: dict[str, Any]) -> int | None:
    """Reads the newest checkpoint into the tensors of `state`; returns the step to go on with, None: there is none.

    Raises CheckpointError where it was written with other settings, which are named, or cannot be read.
    """
    steps = steps_in(folder)
    if not steps:
        return None
    path = path_of(folder, steps[-1])
    wrote = json.loads((path / SETTINGS).read_text())
    differ = [
        f"{name}={settings[name]!r}, written with {wrote.get(name)!r}"
        for name in settings
        if wrote.get(name) != settings[name]
    ]
    if differ:
        raise CheckpointError(
            f"load: a run must resume with the settings it had (got {'; '.join(differ)}, path={path})"
        )
    try:
        dcp.load(state, checkpoint_id=path)
    except CheckpointException as failed:
        reasons = "; ".join(f"rank {rank}: {_reason(e)}" for rank, e in sorted(failed.failures.items()))
        raise CheckpointError(
            f"load: a checkpoint must be readable (got {reasons}, path={path}); remove it to resume from the one before"
        ) from None
    return steps[-1]


class _Files(FileSystem):
    """Remembers why a file could not be written: torch.save says where instead."""

    def __init__(self) -> None:
        super().__init__()
        self.error: str | None = None

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with self.remembered(), super().create_stream(path, mode) as stream:
            yield _Stream(stream, self) if "w" in mode else stream

    @contextlib.contextmanager
    def remembered(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or _reason(error)
            raise


class _Stream:
    def __init__(self, stream: Any, files: _Files) -> None:
        self._stream, self._files = stream, files

    def write(self, data: Any) -> int:
        with self._files.remembered():
            count: int = self._stream.write(data)
        return count

    def flush(self) -> None:
        with self._files.remembered():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _FirstRankFailed(OSError):
    pass


def _on_first_rank(action: Any) -> None:
    """Runs it on rank 0; its failure is that of all."""
    said: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            said = [_reason(error)]
    dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
    if said[0] is not None:
        raise _FirstRankFailed(said[0])


def _begin(part: Path, settings: dict[str, Any]) -> None:
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / SETTINGS).write_text(json.dumps(settings))


def _finish(part: Path, path: Path) -> None:
    for file in part.iterdir():
        _sync(file)
    shutil.rmtree(path, ignore_errors=True)
    os.replace(part, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Any) -> str:
    """In a line: failures come as exceptions, or with their tracebacks."""
    error = error[0] if isinstance(error, tuple) else error
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
