"""What a device does in each stage of a secure round, and what it refuses. Pure.

A refusal changes no state: :class:`protocol.errors.Refused`, in words. The same message again is answered in
the same way; another one of the same stage is refused.
"""

from collections.abc import Iterator
from dataclasses import replace

from edge_agent.secure_aggregation import shared_noise
from edge_agent.secure_aggregation.events import (
    IDLE,
    AttemptEnded,
    DeliveryCame,
    HeldShares,
    MaskingCommand,
    MaskingInvited,
    MaskingOutcome,
    MaskingPhase,
    MaskingResumed,
    MaskingRules,
    MaskingState,
    MaskUpdate,
    RosterCame,
    SendMasked,
    SurvivorsCame,
    Tell,
    UpdateMasked,
)
from protocol.errors import Reason, Refused
from protocol.secure_aggregation.attempt import Attempt
from protocol.secure_aggregation.credentials import statement
from protocol.secure_aggregation.keys import (
    NONCE_BYTES,
    Secrets,
    ShareChannel,
    own_mask_key,
    pair_mask_keys,
    public_of,
)
from protocol.secure_aggregation.messages import (
    SHARES_BYTES,
    DeviceKeys,
    KeysAnnounced,
    Revealed,
    Roster,
    SecureMessage,
    SharesSent,
    Survivors,
)
from protocol.secure_aggregation.neighbours import MIN_DEVICES, graph_size
from protocol.secure_aggregation.shamir import SHARE_BYTES, split
from protocol.secure_aggregation.streams import stream_of


def invite(rules: MaskingRules, state: MaskingState, event: MaskingInvited) -> MaskingOutcome:
    """Announce fresh keys; an invitation to the present attempt says again what was said last."""
    if state.attempt == event.attempt:
        return resume(rules, state, MaskingResumed())
    if state.opened == event.attempt.base:
        raise Refused(
            Reason.DUPLICATE,
            f"{event.attempt.words}: this device has helped to open a sum of updates from the same version; "
            "the difference of two such sums could tell a single update, so it waits for the next version",
        )
    if rules.options.identities == "required" and (rules.signer is None or rules.authority is None):
        raise Refused(
            Reason.UNTRUSTED,
            f"{event.attempt.words}: keys are signed by identities, and this device has none; enrol it, "
            'or let the task say secure_aggregation.identities = "none"',
        )
    if state.ended == event.attempt.digest.hex():
        raise Refused(
            Reason.DUPLICATE,
            f"{event.attempt.words}: this device has given its part in it up, and waits for the next one",
        )
    shared_noise.check_spent(rules, state, event.attempt)
    new = replace(
        IDLE,
        phase=MaskingPhase.KEYS,
        attempt=event.attempt,
        secrets=Secrets.of(event.entropy),
        opened=state.opened,
        counted=state.counted,
        releases=state.releases,
    )
    return new, (Tell(_announcement(rules, new)),)


def share(rules: MaskingRules, state: MaskingState, event: RosterCame) -> MaskingOutcome:
    """Check the neighbours, and send each its shares."""
    attempt, secrets, roster = *_present(state, event.message), event.message
    _check_roster(rules, state, roster)
    names = sorted(roster.neighbours)
    threshold = graph_size(roster.devices, rules.options.max_lost).threshold
    draw = stream_of(secrets.shares)
    masks, seeds = (split(x, len(names), threshold, draw) for x in (secrets.mask, secrets.seed))
    channel, sealed = ShareChannel(attempt, secrets.cipher), {}
    for place, name in enumerate(names):
        nonce = event.nonces[place * NONCE_BYTES : (place + 1) * NONCE_BYTES]
        text = masks[place] + seeds[place]
        sealed[name] = channel.encrypt(rules.device, name, roster.neighbours[name].cipher, text, nonce)
    sent = SharesSent(attempt=attempt.digest, sealed=sealed)
    return replace(state, phase=MaskingPhase.SHARES, roster=roster, sent=sent), (Tell(sent),)


def same_roster(rules: MaskingRules, state: MaskingState, event: RosterCame) -> MaskingOutcome:
    """Sent again, or another one: then shares would be encrypted for other neighbours."""
    _present(state, event.message)
    if event.message != state.roster:
        raise Refused(Reason.DUPLICATE, f"{_words(state)}: a second roster, with other neighbours or keys")
    return resume(rules, state, MaskingResumed())


def mask(rules: MaskingRules, state: MaskingState, event: DeliveryCame) -> MaskingOutcome:
    """Open the neighbours' shares, and mask with those neighbours."""
    attempt, secrets = _present(state, event.message)
    sealed = event.message.sealed
    if strangers := sorted(sealed.keys() - state.keys.keys()):
        raise Refused(
            Reason.UNKNOWN_DEVICE, f"{attempt.words}: shares from {strangers[0]!r}, which is no neighbour"
        )
    _check_enough(rules, state, len(sealed), "neighbours have sent shares")
    channel, held = ShareChannel(attempt, secrets.cipher), {}
    for name in sorted(sealed):
        text = channel.decrypt(name, rules.device, state.keys[name].cipher, sealed[name])
        if len(text) != SHARES_BYTES:
            raise Refused(Reason.MALFORMED, f"{attempt.words}: shares of {len(text)} bytes from {name!r}")
        held[name] = HeldShares(text[:SHARE_BYTES], text[SHARE_BYTES:])
    new = replace(state, phase=MaskingPhase.MASKING, held=held)
    return new, (mask_plan(rules, new),)


def same_shares(rules: MaskingRules, state: MaskingState, event: DeliveryCame) -> MaskingOutcome:
    """Sent again; a delivery from other neighbours would need other masks."""
    _present(state, event.message)
    if event.message.sealed.keys() != state.held.keys():
        raise Refused(
            Reason.DUPLICATE, f"{_words(state)}: a second delivery of shares, from other neighbours"
        )
    return resume(rules, state, MaskingResumed())


def masked(rules: MaskingRules, state: MaskingState, event: UpdateMasked) -> MaskingOutcome:
    """The vector is on the disk, and is the only one of this attempt. One with noise is counted.

    Only one sum from a version can be opened, so a further attempt from the same one does not count.
    """
    attempt, _ = _secrets(state)
    counted = shared_noise.counted(rules, state, attempt)
    return replace(counted, phase=MaskingPhase.MASKED, masked=event.digest), (SendMasked(event.digest),)


def reveal(rules: MaskingRules, state: MaskingState, event: SurvivorsCame) -> MaskingOutcome:
    """For each neighbour one share: of its seed if its vector is in the sum, of its mask key if not."""
    attempt, _ = _present(state, event.message)
    delivered, lost = set(event.message.delivered), set(event.message.lost)
    listed = (*event.message.delivered, *event.message.lost)
    if both := sorted(delivered & lost):
        raise Refused(
            Reason.DUPLICATE,
            f"{attempt.words}: {both[0]!r} is listed as delivered and as lost: it asks for both its shares, "
            "with which its update could be read",
        )
    shared_noise.check_shared(rules, state, attempt, len(delivered))
    if delivered | lost != state.held.keys() or len(listed) != len(state.held):
        raise Refused(
            Reason.MALFORMED,
            f"{attempt.words}: the survivors do not list each of this device's {len(state.held)} "
            "neighbours once",
        )
    _check_enough(rules, state, len(delivered), "neighbours' vectors are in the sum")
    new = replace(state, phase=MaskingPhase.REVEALED, survivors=event.message, opened=attempt.base)
    return new, (Tell(revealed(new)),)


def same_survivors(_rules: MaskingRules, state: MaskingState, event: SurvivorsCame) -> MaskingOutcome:
    """Sent again; another list asks for the other share of some neighbour."""
    _present(state, event.message)
    if state.survivors is None or _sides(event.message) != _sides(state.survivors):
        raise Refused(
            Reason.DUPLICATE,
            f"{_words(state)}: a second list of survivors that differs from the first: it asks for the other "
            "share of a neighbour, with which its update could be read",
        )
    return state, (Tell(revealed(state)),)


def resume(rules: MaskingRules, state: MaskingState, _event: MaskingResumed) -> MaskingOutcome:
    """Say again what was said last; the state is as it was."""
    return state, tuple(_again(rules, state))


def end(_rules: MaskingRules, state: MaskingState, _event: AttemptEnded) -> MaskingOutcome:
    """Forget all secrets."""
    ended = "" if state.attempt is None else state.attempt.digest.hex()
    new = replace(IDLE, opened=state.opened, ended=ended, counted=state.counted, releases=state.releases)
    return new, ()


def mask_plan(rules: MaskingRules, state: MaskingState) -> MaskUpdate:
    """The keys of noise and masks: of two neighbours one adds the mask, and the other subtracts it.

    Raises:
        Refused: there is no key of noise, which the task asks for.
    """
    attempt, secrets = _secrets(state)
    noise = shared_noise.key_of(rules, secrets, attempt)
    publics = {name: state.keys[name].mask for name in sorted(state.held)}
    keys = pair_mask_keys(attempt, rules.device, secrets.mask, publics)
    return MaskUpdate(
        own=own_mask_key(attempt, rules.device, secrets.seed),
        added=tuple(key for name, key in keys.items() if rules.device < name),
        subtracted=tuple(key for name, key in keys.items() if rules.device > name),
        noise=noise,
    )


def revealed(state: MaskingState) -> Revealed:
    """The answer to the list of survivors that is on the disk."""
    attempt, _ = _secrets(state)
    survivors = state.survivors
    if survivors is None:
        raise ValueError("nothing was asked yet")
    return Revealed(
        attempt=attempt.digest,
        seeds={name: state.held[name].seed for name in survivors.delivered},
        masks={name: state.held[name].mask for name in survivors.lost},
    )


def _again(rules: MaskingRules, state: MaskingState) -> Iterator[MaskingCommand]:
    match state.phase:
        case MaskingPhase.KEYS:
            yield Tell(_announcement(rules, state))
        case MaskingPhase.SHARES if state.sent is not None:
            yield Tell(state.sent)
        case MaskingPhase.MASKING:
            yield mask_plan(rules, state)
        case MaskingPhase.MASKED:
            yield SendMasked(state.masked)
        case MaskingPhase.REVEALED:
            yield Tell(revealed(state))
        case _:
            pass


def _announcement(rules: MaskingRules, state: MaskingState) -> KeysAnnounced:
    """Own public keys; an ECDSA signature differs each time, and any of them is valid."""
    attempt, secrets = _secrets(state)
    cipher, mask_public = public_of(secrets.cipher), public_of(secrets.mask)
    keys = DeviceKeys(cipher=cipher, mask=mask_public)
    if rules.signer is not None:
        signature = rules.signer.sign(statement(attempt, rules.device, cipher, mask_public))
        keys = keys.model_copy(update={"signature": signature, "certificate": rules.signer.certificate})
    return KeysAnnounced(attempt=attempt.digest, keys=keys)


def _check_roster(rules: MaskingRules, state: MaskingState, roster: Roster) -> None:
    """Raise if these neighbours could not, or should not, protect this device."""
    attempt, secrets = _secrets(state)
    options, count = rules.options, len(roster.neighbours)
    if roster.devices < max(options.min_devices, MIN_DEVICES):
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"{attempt.words}: a roster of {roster.devices} devices; this task adds "
            f"{options.min_devices} or more",
        )
    size = graph_size(roster.devices, options.max_lost)
    if count != size.neighbours or rules.device in roster.neighbours:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"{attempt.words}: a roster of {count} neighbours among {roster.devices} devices; "
            f"{size.neighbours} others are needed, of which {size.threshold} must stay",
        )
    own = public_of(secrets.cipher), public_of(secrets.mask)
    if (roster.own.cipher, roster.own.mask) != own:
        raise Refused(Reason.UNTRUSTED, f"{attempt.words}: the roster has other keys for this device")
    keys = [*own, *(key for one in roster.neighbours.values() for key in (one.cipher, one.mask))]
    if len(set(keys)) != len(keys):
        raise Refused(Reason.DUPLICATE, f"{attempt.words}: a key is in the roster twice")
    if rules.authority is None:
        if options.identities == "required":
            raise Refused(
                Reason.UNTRUSTED,
                f"{attempt.words}: the neighbours' keys must be signed, and this device has no authority to "
                "verify them with",
            )
        return
    for name, one in roster.neighbours.items():
        signed = statement(attempt, name, one.cipher, one.mask)
        rules.authority.verify(name, one.certificate, one.signature, signed)


def _check_enough(rules: MaskingRules, state: MaskingState, count: int, what: str) -> None:
    devices = 0 if state.roster is None else state.roster.devices
    size = graph_size(devices, rules.options.max_lost)
    if count < size.threshold:
        raise Refused(
            Reason.OUT_OF_BOUNDS,
            f"{_words(state)}: {count} {what}, of {size.neighbours}; the threshold is {size.threshold}",
        )


def _present(state: MaskingState, message: SecureMessage) -> tuple[Attempt, Secrets]:
    """The attempt that a message must be of."""
    attempt, secrets = _secrets(state)
    if message.attempt != attempt.digest:
        raise Refused(
            Reason.WRONG_ROUND, f"a {type(message).__name__} of another attempt than {attempt.words}"
        )
    return attempt, secrets


def _secrets(state: MaskingState) -> tuple[Attempt, Secrets]:
    if state.attempt is None or state.secrets is None:
        raise ValueError("the device is in no attempt (a bug: the table has no such row)")
    return state.attempt, state.secrets


def _sides(message: Survivors) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(message.delivered), frozenset(message.lost)


def _words(state: MaskingState) -> str:
    return "no attempt" if state.attempt is None else state.attempt.words
