"""Proofs about a schedule, without running it: each program once, in an order that ends whatever messages take.

Ranks wait for data alone, never for time, so that one order in which all actions can happen proves that all timings
end. Transfers are proved for the strictest transport: a SEND does not return before the other side posted its RECV, and
a RECV not before all have come that were posted more than `OUTSTANDING` before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tessera.errors import PipelineError
from tessera.sharding.exchange.communicator import OUTSTANDING
from tessera.sharding.pipeline.actions import PROGRAMS, Action, Kind, PipelineSchedule, is_split, needs, producer


def verify(schedule: PipelineSchedule, activations: int | None = None) -> PipelineSchedule:
    """The schedule itself, if it breaks no rule; `activations` bounds what a rank may keep.

    Rules: "placement" (a stage's actions stand on its rank), "once" (each F, B and W of each stage and microbatch),
    "order" (F before B before W on a rank, GATHER before all of them), "transfers" (a RECV for each SEND, in one order,
    before its reader), "deadlock" and "memory".
    Raises PipelineError, which names the rule and the actions.
    """
    _placement(schedule)
    _once(schedule)
    _order(schedule)
    _transfers(schedule)
    for _ in ordered(schedule):
        pass
    if activations is not None:
        _memory(schedule, activations)
    return schedule


def ordered(schedule: PipelineSchedule) -> Iterator[tuple[int, Action]]:
    """(rank, action) in an order in which everything can happen.

    Raises PipelineError ("deadlock") where there is none.
    """
    split = is_split(schedule)
    moved = any(action.kind == "SEND" for actions in schedule.ranks for action in actions)
    ahead = _ahead(schedule)
    position = [0] * len(schedule.ranks)
    done: set[Action] = set()
    waiting = list(range(len(schedule.ranks)))
    while waiting:
        progress = False
        for rank in waiting:
            actions = schedule.ranks[rank]
            while position[rank] < len(actions):
                action = actions[position[rank]]
                if not all(other in done for other in _before(action, schedule, split, moved, ahead)):
                    break
                done.add(action)
                position[rank] += 1
                progress = True
                yield rank, action
        waiting = [rank for rank in waiting if position[rank] < len(schedule.ranks[rank])]
        if not progress and waiting:
            raise _deadlock(schedule, position, waiting, done, split, moved, ahead)


def _ahead(schedule: PipelineSchedule) -> dict[Action, Action]:
    """Of each RECV the SEND that must have been for it to be posted: that of the one `OUTSTANDING` before it."""
    found = {}
    for _, receives in _messages(schedule):
        for index, receive in enumerate(receives[OUTSTANDING:]):
            found[receive] = _send_of(receives[index])
    return found


def _messages(schedule: PipelineSchedule) -> Iterator[tuple[list[Action], list[Action]]]:
    """For each pair of ranks, one of which sends to the other, its SENDs and RECVs in the order of each side."""
    pairs: dict[tuple[int, int], tuple[list[Action], list[Action]]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.kind == "SEND":
                pairs.setdefault((rank, schedule.rank_of(_receive(action).stage)), ([], []))[0].append(action)
            elif action.kind == "RECV":
                pairs.setdefault((schedule.rank_of(_send_of(action).stage), rank), ([], []))[1].append(action)
    yield from pairs.values()


def _before(
    action: Action, schedule: PipelineSchedule, split: bool, moved: bool, ahead: Mapping[Action, Action]
) -> list[Action]:
    """What must have happened before an action, beside the actions that its rank has before it."""
    if action.kind == "SEND":
        return [_receive(action)]
    if action.kind == "RECV":
        return [ahead[action]] if action in ahead else []
    if action.kind not in PROGRAMS:
        return []
    found = needs(action, schedule.stages, split)
    if not moved:
        return found
    own = schedule.rank_of(action.stage)
    return [_send_to(action) if schedule.rank_of(other.stage) != own else other for other in found]


def _receive(send: Action) -> Action:
    """The RECV that a SEND is for."""
    return Action("RECV", send.stage + (1 if send.of == "F" else -1), send.microbatch, send.of)


def _send_of(receive: Action) -> Action:
    """The SEND that a RECV is for."""
    return Action("SEND", receive.stage + (-1 if receive.of == "F" else 1), receive.microbatch, receive.of)


def _send_to(reader: Action) -> Action:
    """The SEND that a program on another rank waits for."""
    forward = reader.kind == "F"
    return Action("SEND", reader.stage + (-1 if forward else 1), reader.microbatch, "F" if forward else "B")


def _deadlock(
    schedule: PipelineSchedule,
    position: list[int],
    waiting: list[int],
    done: set[Action],
    split: bool,
    moved: bool,
    ahead: Mapping[Action, Action],
) -> PipelineError:
    stuck = []
    for rank in waiting:
        action = schedule.ranks[rank][position[rank]]
        missing = [str(other) for other in _before(action, schedule, split, moved, ahead) if other not in done]
        stuck.append(f"rank {rank} at {action} waits for {', '.join(missing)}")
    return PipelineError(f"{schedule.name}: deadlock: {'; '.join(stuck)}")


def _placement(schedule: PipelineSchedule) -> None:
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if not 0 <= action.stage < schedule.stages or schedule.rank_of(action.stage) != rank:
                raise PipelineError(f"{schedule.name}: placement: {action} stands on rank {rank}")


def _once(schedule: PipelineSchedule) -> None:
    found: Counter[tuple[str, int, int]] = Counter()
    for _, action in schedule.programs():
        for part in action.kind:
            found[part, action.stage, action.microbatch] += 1
    wanted = {
        (part, stage, microbatch)
        for part in "FBW"
        for stage in range(schedule.stages)
        for microbatch in range(schedule.microbatches)
    }
    for part, stage, microbatch in sorted(wanted | set(found)):
        times = found[part, stage, microbatch] if (part, stage, microbatch) in wanted else 0
        if times != 1 or (part, stage, microbatch) not in wanted:
            count = found[part, stage, microbatch]
            raise PipelineError(f"{schedule.name}: once: {part}{microbatch}.{stage} happens {count} times")


def _order(schedule: PipelineSchedule) -> None:
    for rank, actions in enumerate(schedule.ranks):
        seen: dict[tuple[str, int, int], int] = {}
        for index, action in enumerate(actions):
            if action.kind in PROGRAMS:
                for part in action.kind:
                    seen[part, action.stage, action.microbatch] = index
        for (part, stage, microbatch), index in seen.items():
            earlier = {"B": "F", "W": "B"}.get(part)
            if earlier and seen[earlier, stage, microbatch] > index:
                message = f"{part}{microbatch}.{stage} comes before {earlier}{microbatch}.{stage}"
                raise PipelineError(f"{schedule.name}: order: rank {rank}: {message}")
        for index, action in enumerate(actions):
            if action.kind == "GATHER" and any(("F", action.stage) == each[:2] for each in actions[:index]):
                raise PipelineError(f"{schedule.name}: order: rank {rank}: {action} comes after F of its stage")


def _transfers(schedule: PipelineSchedule) -> None:
    """Schedules of programs alone have none; where there are some, all messages must have both ends."""
    moves = Counter(action for actions in schedule.ranks for action in actions if action.kind in ("SEND", "RECV"))
    if not moves:
        return
    split = is_split(schedule)
    wanted: set[Action] = set()
    for rank, action in schedule.programs():
        source = producer(action, schedule.stages, split)
        if source is not None and schedule.rank_of(source.stage) != rank:
            send = _send_to(action)
            wanted |= {send, _receive(send)}
    for move in sorted(wanted | set(moves)):
        if moves[move] != (move in wanted):
            raise PipelineError(f"{schedule.name}: transfers: {move} happens {moves[move]} times")
    for rank, actions in enumerate(schedule.ranks):
        place = {action: index for index, action in enumerate(actions)}
        for action in actions:
            if action.kind not in ("SEND", "RECV"):
                continue
            kind: Kind = "F" if action.of == "F" else "B" if split else "BW"
            program = Action(kind, action.stage, action.microbatch)
            early, late = (program, action) if action.kind == "SEND" else (action, program)
            if place[late] < place[early]:
                raise PipelineError(f"{schedule.name}: transfers: rank {rank}: {late} comes before {early}")
    for sends, receives in _messages(schedule):
        for send, receive in zip(sends, receives, strict=True):
            if _receive(send) != receive:
                expected = _receive(send)
                raise PipelineError(f"{schedule.name}: transfers: {receive} is posted where {expected} comes first")


def _memory(schedule: PipelineSchedule, activations: int) -> None:
    for rank, actions in enumerate(schedule.ranks):
        kept = 0
        for action in actions:
            kept += (action.kind == "F") - ("W" in action.kind and action.kind in PROGRAMS)
            if kept > activations:
                raise PipelineError(
                    f"{schedule.name}: memory: rank {rank} keeps {kept} activations at {action}, not {activations}"
                )
