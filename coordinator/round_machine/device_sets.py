"""Sets of devices that are never changed, and cost the same to extend at any size. Pure.

The round machine makes a new state for each event. A set that was extended from another shares its list of
names and knows how many of them are its own: one more device costs O(1), and the earlier set stays as it was.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import filterfalse, islice
from typing import Any, Final, Self

from pydantic_core import core_schema


class _Names:
    """Names, each with a text, in the order in which they were added. It only grows."""

    __slots__ = ("places", "texts", "values")

    def __init__(self, items: Iterable[tuple[str, str]]) -> None:
        known = dict(items)
        self.values, self.texts = list(known), list(known.values())
        self.places = {name: n for n, name in enumerate(self.values)}

    def extended(self, count: int, items: Mapping[str, str]) -> "_Names":
        """The first ``count`` names and these; the object itself if nothing follows there yet."""
        if not count or len(self.values) != count:
            return _Names((*self.items(count), *items.items()))
        for name, text in items.items():
            self.places[name] = len(self.values)
            self.texts.append(text)
            self.values.append(name)
        return self

    def items(self, count: int) -> Iterator[tuple[str, str]]:
        """The first ``count`` names with their texts. Safe while the object grows."""
        return islice(zip(self.values, self.texts, strict=False), count)


class _Devices:
    """The first devices of a :class:`_Names`."""

    __slots__ = ("_count", "_names")

    def __init__(self, names: _Names, count: int) -> None:
        self._names = names
        self._count = count

    def __contains__(self, device: object) -> bool:
        return isinstance(device, str) and self._names.places.get(device, self._count) < self._count

    @property
    def has(self) -> Callable[[str], bool]:
        """The fastest test for a name, good until the next change of any set; for loops over many."""
        places = self._names.places
        return places.__contains__ if len(places) == self._count else self.__contains__

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        """Sorted, so that no result depends on the order of arrival."""
        return iter(sorted(self.unsorted()))

    def __repr__(self) -> str:
        return repr(list(self))

    def __deepcopy__(self, _memo: object) -> Self:
        """It never changes, so a copy is itself."""
        return self

    def unsorted(self) -> Iterator[str]:
        """All devices, in any order: cheaper than to sort them."""
        return islice(self._names.values, self._count)

    def not_in(self, others: "_Devices") -> Iterator[str]:
        """Those that are not among the others, in any order; without a call for each device."""
        return filterfalse(others.has, self.unsorted())

    def first(self, count: int) -> tuple[str, ...]:
        """The first devices by name."""
        return tuple(heapq.nsmallest(count, self.unsorted()))


class DeviceSet(_Devices, AbstractSet[str]):
    """A set of devices. Iteration is sorted."""

    __slots__ = ()

    def __init__(self, devices: Iterable[str] = (), names: _Names | None = None, count: int = 0) -> None:
        if names is None:
            names = _Names((device, "") for device in devices)
            count = len(names.values)
        super().__init__(names, count)

    def adding(self, devices: Iterable[str]) -> "DeviceSet":
        """The set with these devices, too; the set itself if it has all of them. Costs O(len(devices))."""
        fresh = {device: "" for device in devices if device not in self}
        if not fresh:
            return self
        return DeviceSet(names=self._names.extended(self._count, fresh), count=self._count + len(fresh))

    def without(self, devices: AbstractSet[str]) -> "DeviceSet":
        """The set without these devices; the set itself if it has none of them. Costs O(len(self))."""
        if not any(device in self for device in devices):
            return self
        return DeviceSet(device for device in self.unsorted() if device not in devices)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return _schema(_set_of, list)


class DeviceWords(_Devices, Mapping[str, str]):
    """A text for each of some devices. Iteration is sorted."""

    __slots__ = ()

    def __init__(
        self, words: Iterable[tuple[str, str]] = (), names: _Names | None = None, count: int = 0
    ) -> None:
        if names is None:
            names = _Names(words)
            count = len(names.values)
        super().__init__(names, count)

    def __getitem__(self, device: str) -> str:
        if device not in self:
            raise KeyError(device)
        return self._names.texts[self._names.places[device]]

    def adding(self, words: Mapping[str, str]) -> "DeviceWords":
        """With these texts, too. Costs O(len(words)), or O(len(self)) if one of them replaces another."""
        if any(device in self for device in words):
            return DeviceWords((*self._names.items(self._count), *words.items()))
        if not words:
            return self
        return DeviceWords(names=self._names.extended(self._count, words), count=self._count + len(words))

    def without(self, devices: Iterable[str]) -> "DeviceWords":
        """Without these devices; itself if it has none of them. Costs O(len(self)) if it has one."""
        gone = {device for device in devices if device in self}
        if not gone:
            return self
        return DeviceWords(one for one in self._names.items(self._count) if one[0] not in gone)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return _schema(_words_of, _pairs)


NONE: Final = DeviceSet()
NO_WORDS: Final = DeviceWords()


def _schema(read: Any, write: Any) -> core_schema.CoreSchema:
    """From a collection or a JSON list, to a sorted JSON list."""
    return core_schema.no_info_plain_validator_function(
        read, serialization=core_schema.plain_serializer_function_ser_schema(write)
    )


def _set_of(devices: Any) -> DeviceSet:
    if isinstance(devices, DeviceSet):
        return devices
    if isinstance(devices, str) or not all(isinstance(device, str) for device in devices):
        raise ValueError("not a list of device names")
    return DeviceSet(devices)


def _words_of(words: Any) -> DeviceWords:
    if isinstance(words, DeviceWords):
        return words
    pairs = words.items() if isinstance(words, Mapping) else words
    if not all(isinstance(text, str) for device, word in pairs for text in (device, word)):
        raise ValueError("not a list of device names, each with a text")
    return DeviceWords((device, word) for device, word in pairs)


def _pairs(words: DeviceWords) -> list[list[str]]:
    return [[device, words[device]] for device in words]
