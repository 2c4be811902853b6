"""What must hold of all messages of secure rounds, whatever is lost: a judge that reads them as a thief does.

Checked over the attempts of one base version:

- A vector that was sent has the masks that its neighbours' keys give, and its own (with the devices' secrets,
  which only a simulation has).
- No two vectors have the same masks: no key is announced for two attempts.
- Of one device, never a threshold of shares of both secrets; no neighbour tells both.
- A device that has revealed shares does so for one attempt.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lichen_lab.simulation.secure_rounds.driver import (
    SimulatedCoordinator,
    SimulatedDevice,
    Transcript,
)
from protocol.secure_aggregation.keys import own_mask_key, pair_mask_keys
from protocol.secure_aggregation.masks import add_mask
from protocol.secure_aggregation.messages import KeysAnnounced, MaskedUpdate, Revealed, SharesDelivered
from protocol.secure_aggregation.ring import packed


@dataclass(frozen=True)
class PlayedAttempt:
    """An attempt that was played, with the devices as they were at its end."""

    coordinator: SimulatedCoordinator
    devices: Mapping[str, SimulatedDevice]
    transcript: Transcript


def violations(attempts: Iterable[PlayedAttempt]) -> list[str]:
    """What does not hold, in words; empty if all holds."""
    played = list(attempts)
    found = [words for one in played for words in (*_wrongly_masked(one), *_told_twice(one))]
    return found + list(_reused(played)) + list(_revealed_again(played))


def _wrongly_masked(played: PlayedAttempt) -> Iterator[str]:
    """Vectors that do not have exactly the agreed masks."""
    attempt = played.coordinator.attempt
    partners = {
        receiver: set(message.sealed)
        for _, receiver, message in played.transcript.sent
        if isinstance(message, SharesDelivered)
    }
    for sender, _, message in played.transcript.sent:
        if not isinstance(message, MaskedUpdate):
            continue
        device = played.devices[sender]
        secrets, keys = device.state.secrets, device.state.keys
        if secrets is None or device.state.attempt != attempt:
            continue
        total_N = device.vector_N.copy()
        add_mask(total_N, own_mask_key(attempt, sender, secrets.seed))
        publics = {name: keys[name].mask for name in partners.get(sender, ())}
        for name, key in pair_mask_keys(attempt, sender, secrets.mask, publics).items():
            add_mask(total_N, key, minus=sender > name)
        if packed(total_N, device.rules.options.ring_bits) != message.masked:
            yield f"{attempt.words}: the vector of {sender!r} does not have the agreed masks"


def _told_twice(played: PlayedAttempt) -> Iterator[str]:
    """Shares of both secrets of one device."""
    seeds: defaultdict[str, set[str]] = defaultdict(set)
    masks: defaultdict[str, set[str]] = defaultdict(set)
    for sender, _, message in played.transcript.sent:
        if isinstance(message, Revealed):
            for name in message.seeds:
                seeds[name].add(sender)
            for name in message.masks:
                masks[name].add(sender)
    for name in sorted(seeds.keys() & masks.keys()):
        if both := sorted(seeds[name] & masks[name]):
            words = played.coordinator.attempt.words
            yield f"{words}: {both[0]!r} has told both shares of {name!r}"


def _reused(played: Iterable[PlayedAttempt]) -> Iterator[str]:
    """Keys that were announced for two attempts: their masks would be the same, but for the attempt."""
    attempts: defaultdict[bytes, set[bytes]] = defaultdict(set)
    holders: dict[bytes, str] = {}
    for one in played:
        for sender, _, message in one.transcript.sent:
            if isinstance(message, KeysAnnounced):
                attempts[message.keys.mask].add(message.attempt)
                if holders.setdefault(message.keys.mask, sender) != sender:
                    yield f"{sender!r} and {holders[message.keys.mask]!r} have the same key"
    for key, those in attempts.items():
        if len(those) > 1:
            yield f"{holders[key]!r} has used one key for {len(those)} attempts: a mask is reused"
    for one in played:
        vectors: Counter[str] = Counter(
            sender
            for sender, _ in {(s, m.masked) for s, _, m in one.transcript.sent if isinstance(m, MaskedUpdate)}
        )
        for sender, count in sorted(vectors.items()):
            if count > 1:
                yield f"{one.coordinator.attempt.words}: {sender!r} has masked {count} vectors alike"


def _revealed_again(played: Iterable[PlayedAttempt]) -> Iterator[str]:
    """Devices that have helped to open two sums from one base."""
    opened: defaultdict[tuple[str, str], set[bytes]] = defaultdict(set)
    for one in played:
        for sender, _, message in one.transcript.sent:
            if isinstance(message, Revealed):
                opened[sender, one.coordinator.attempt.base].add(message.attempt)
    for (device, _), attempts in sorted(opened.items()):
        if len(attempts) > 1:
            yield f"{device!r} has revealed shares in {len(attempts)} attempts from one version"
