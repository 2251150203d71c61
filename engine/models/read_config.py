"""A `config.json` that remembers what a model was built from, so that two nodes can tell whether they built the same one."""

import json
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any


class ReadConfig(Mapping[str, Any]):
    """The values of `config`. Whoever asks for one makes it count: whatever a family reads changes its numbers."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self._asked.add(key)
        return self._config[key]

    def __contains__(self, key: object) -> bool:
        self._asked.add(str(key))
        return key in self._config

    def __iter__(self) -> Iterator[str]:
        self._asked.update(self._config)
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)

    def digest(self) -> str:
        """Return a digest of all that was asked for, and of what was not there."""
        asked = {key: self._config[key] for key in self._asked if key in self._config}
        return blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=16).hexdigest()
