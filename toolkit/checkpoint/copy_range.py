"""Bytes from file to file without passing through this process, where the kernel can do that."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from toolkit.errors import CheckpointError

CHUNK = 32 << 20  # how often progress is reported
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY)
_BLOCK = 4 << 20


def copy_range(path: Path, start: int, count: int, file: FileIO) -> Iterator[int]:
    """Append `count` bytes of `path`, from byte `start` on, to `file`; yields what is done."""
    with path.open("rb", buffering=0) as source:
        while count:
            done = _copy_some(source, start, min(count, CHUNK), file)
            if not done:
                raise CheckpointError(str(path), ["became shorter while it was read"])
            yield done
            start, count = start + done, count - done


def _copy_some(source: FileIO, start: int, count: int, file: FileIO) -> int:
    try:
        return os.copy_file_range(source.fileno(), file.fileno(), count, start)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    data = os.pread(source.fileno(), min(count, _BLOCK), start)
    write_all(file, memoryview(data))
    return len(data)


def write_all(file: FileIO, data: memoryview) -> None:
    """An unbuffered write may stop early, for instance where the disk becomes full."""
    while data:
        data = data[file.write(data) :]
