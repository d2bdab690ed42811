"""Draws a plan: an ordinary day of a store, into which two or three faults are woven."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from tests.endurance.generator.plan import Plan, Step, Strike
from tests.kit.fault_vocabulary import (
    CLOCK_JUMPS_S,
    OF_PROCESSES,
    TABLES,
    USER_CODE,
    WRITTEN_BY,
    Fault,
    places_of,
)

FAULTS = tuple(fault for fault in Fault if fault not in OF_PROCESSES)
SERVICES = ("publisher", "delay", "check", "maintenance", "member", "inbox")
ROUNDS = {
    "publisher": "publish", "delay": "deliver", "check": "check", "maintenance": "maintain",
    "member": "consume", "inbox": "consume", "operator": "rebuild",
}  # fmt: skip
# What a day may be about; the numbers say how often its deeds are drawn.
DAYS: tuple[dict[str, int], ...] = (
    {"send": 5, "publish": 5, "wait": 2, "consume": 1},
    {"send": 3, "delayed": 3, "publish": 4, "deliver": 4, "wait": 3},
    {"prepare": 4, "commit": 4, "rollback": 1, "publish": 4, "check": 2, "wait": 2},
    {"try": 5, "publish": 3, "send": 1, "wait": 1, "check": 1},
    {"send": 4, "publish": 4, "consume": 5, "wait": 2},
    {"send": 3, "delayed": 2, "prepare": 2, "commit": 2, "try": 1, "publish": 5, "deliver": 2,
     "check": 1, "consume": 2, "wait": 2},
)  # fmt: skip
# Places in `deeds.PAUSES_S`.
SHORT, RETRY, LONG, DAYS_PASS = (0, 1, 2), (3, 4), 5, 7
# Of one topic; a handler fails on the first one.
SENT_TOGETHER = ((0, 2, 4), (3, 1, 5))
# Those whose clocks decide something, the most often first.
BY_THE_CLOCK = (
    "delay",
    "delay",
    "delay",
    "publisher",
    "maintenance",
    "check",
    "member",
    "producer",
)
MIN_STEPS, MAX_STEPS = 4, 12
Weave = Callable[["_Draft"], None]


def drawn_plan(seed: int) -> Plan:
    """The plan of a seed."""
    draw = random.Random(seed)
    faults = draw.sample(FAULTS, draw.choice((2, 2, 3)))
    draft = _Draft(draw)
    for fault in faults:
        _WEAVES[fault](draft)
    settings = {"default_topic_queue_nums": draw.choice((1, 1, 2))}
    return Plan(seed, tuple(faults), tuple(draft.steps), settings)


class _Draft:
    """Steps to which faults are added."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.day = draw, draw.choice(DAYS)
        self.steps = [self.step() for _ in range(draw.randint(MIN_STEPS, MAX_STEPS))]

    def step(self, do: str | None = None, role: str | None = None) -> Step:
        """One deed of the day."""
        do = do or self.draw.choices([*self.day], [*self.day.values()])[0]
        return Step(do, self.who(role or _role(do, self.draw)), self._number(do))

    def who(self, role: str) -> str:
        return f"{role}{self.draw.randint(0, 1)}" if role in (*SERVICES, "producer") else role

    def _number(self, do: str) -> int:
        if do == "wait":
            return self.draw.choice((*SHORT, *RETRY, LONG))
        return self.draw.randint(0, 11)

    def place(self, first: int = 0) -> int:
        """A place between the steps."""
        return self.draw.randint(first, len(self.steps))

    def put(self, at: int, *steps: Step) -> int:
        """Insert steps; the place after them."""
        self.steps[at:at] = steps
        return at + len(steps)

    def put_around(self, first: Step, *last: Step) -> None:
        """One step, and others later."""
        at = self.put(self.place(), first)
        self.put(min(at + self.draw.randint(1, 5), len(self.steps)), *last)

    def some(self, *likely: Step) -> tuple[Step, ...]:
        """What others do: a few deeds of the day, and what is likely to hurt."""
        deeds = [self.step() for _ in range(self.draw.randint(0, 3))]
        deeds += [step for step in likely if self.draw.random() < 0.8]
        return tuple(deeds)

    def struck(self, fault: Fault, roles: tuple[str, ...], places: tuple[str, ...] = ()) -> int:
        """Strike a step of one of these roles, or a new one; its place among the steps."""
        role = self.draw.choice(roles)
        able = [at for at, step in enumerate(self.steps) if _is_able(step, role)]
        if not able or self.draw.random() < 0.5:
            new = self.step(ROUNDS.get(role, "send"), role)
            able = [self.put(self.place(), *self.maybe(self.scene(role)), new) - 1]
        at = self.draw.choice(able)
        step = self.steps[at]
        place = self.draw.choice(places or self.likely_places(role))
        strike = Strike(fault, place, self.draw.choice((1, 1, 1, 2, 3)))
        self.steps[at] = replace(step, strike=strike)
        return at

    def maybe(self, steps: list[Step]) -> list[Step]:
        """These steps, half of the time."""
        return steps if self.draw.random() < 0.5 else []

    def likely_places(self, role: str) -> tuple[str, ...]:
        """All places of a role, or those right before its commits, where most is open."""
        if self.draw.random() < 0.5:
            return places_of(role)
        return (*(f"before {table}" for table in WRITTEN_BY[role]), *USER_CODE.get(role, ()))

    def scene(self, role: str) -> list[Step]:
        """What gives a process of this role something to do."""
        kinds = {"delay": ["delayed", "delayed"], "check": ["prepare"]}.get(role, [])
        steps = [self.step(do, "producer") for do in kinds]
        if not kinds:
            numbers = self.draw.choice(SENT_TOGETHER)
            steps = [Step("send", self.who("producer"), number) for number in numbers]
        pause = {"delay": 1, "check": 2}.get(role)
        after = [] if role == "publisher" else [Step("publish", self.who("publisher"))]
        return [*steps, *after, *([] if pause is None else [Step("wait", what=pause)])]

    def meanwhile(self, at: int, *likely: Step) -> None:
        """Let others work while a step that was struck stands still."""
        strike = self.steps[at].strike
        assert strike is not None
        meanwhile = self.some(*likely)
        self.steps[at] = replace(self.steps[at], strike=replace(strike, meanwhile=meanwhile))


def role_of(who: str) -> str:
    """The kind of a process, by its name."""
    return who.rstrip("01")


def rival(who: str) -> str:
    """The other process of its kind."""
    return who if who[-1:] not in "01" else who[:-1] + ("1" if who[-1] == "0" else "0")


def _role(do: str, draw: random.Random) -> str:
    roles = {"publish": "publisher", "deliver": "delay", "check": "check", "wait": "",
             "maintain": "maintenance", "rebuild": "operator"}  # fmt: skip
    if do == "consume":
        return draw.choice(("member", "inbox"))
    return roles.get(do, "producer")


def _is_able(step: Step, role: str) -> bool:
    return step.strike is None and role_of(step.who) == role


# --- how each fault looks -----------------------------------------------------------------------


def _kill(draft: _Draft) -> None:
    draft.struck(Fault.KILL, ("producer", *SERVICES))


def _stop(draft: _Draft) -> None:
    at = draft.struck(Fault.STOP, ("producer", *SERVICES))
    step = draft.steps[at]
    likely = [draft.step("send", "producer"), replace(step, who=rival(step.who), strike=None)]
    if draft.draw.random() < 0.4:
        likely.append(Step("wait", what=draft.draw.choice((*RETRY, LONG))))
    draft.meanwhile(at, *likely)


def _clock(draft: _Draft) -> None:
    role = draft.draw.choice(BY_THE_CLOCK)
    who, jump = draft.who(role), draft.draw.randint(1, len(CLOCK_JUMPS_S))
    work = Step(ROUNDS.get(role, "send"), who, draft.draw.randint(0, 11))
    steps = [*draft.scene(role), work, Step("clock", who, jump), work, Step("clock", who, 0)]
    steps += [*draft.scene(role), work]
    if draft.draw.random() < 0.5:
        steps.append(Step("restart", who))
    draft.put(draft.place(), *steps)


def _disk(do: str) -> Weave:
    def weave(draft: _Draft) -> None:
        table = draft.draw.randrange(len(TABLES))
        draft.put_around(Step(do, "disk", table), Step("heal", "disk"))

    return weave


def _parked(draft: _Draft) -> None:
    """A publisher finds no space in a topic, and tries again after a while."""
    who, number = draft.who("publisher"), draft.draw.randint(0, 11)
    topics = TABLES.index("topics/")
    send = Step("send", draft.who("producer"), number)
    last = Step("publish", who if draft.draw.random() < 0.8 else rival(who))
    pause = Step("wait", what=draft.draw.choice(RETRY))
    if draft.draw.random() < 0.5:
        meanwhile = (*draft.some(send, Step("publish", rival(last.who))), pause)
        table = draft.draw.choice(WRITTEN_BY["publisher"])
        last = replace(last, strike=Strike(Fault.STOP, f"before {table}", 1, meanwhile))
        pause = Step("wait", what=draft.draw.choice(SHORT))
    # Each publisher pauses by what it has seen itself, so one of them may try later.
    both = [Step("publish", rival(who))] if draft.draw.random() < 0.75 else []
    steps = [send, Step("no space", "disk", topics), Step("publish", who), *both,
             Step("heal", "disk"), *draft.some(), pause, draft.step("send"), last,
             *draft.maybe([send, Step("publish", last.who)])]  # fmt: skip
    draft.put(draft.place(), *steps)


def _lost_answer(draft: _Draft) -> None:
    role = draft.draw.choice(("producer", *SERVICES))
    tables = tuple(f"after {table}" for table in WRITTEN_BY[role])
    draft.struck(Fault.LOST_ANSWER, (role,), tables)


def _damage(do: str) -> Weave:
    def weave(draft: _Draft) -> None:
        draft.put(draft.place(len(draft.steps) // 2), Step(do, "disk", draft.draw.randint(0, 59)))

    return weave


def _older_store(draft: _Draft) -> None:
    """A copy that was taken while the store was used, one table after the other."""
    send = draft.step("send")
    meanwhile = draft.some(send, draft.step("publish"))
    copy = Step("copy", "operator", draft.draw.randint(0, 3), meanwhile=meanwhile)
    # What is sent now takes the place of what the copy lacks.
    draft.put_around(copy, Step("restore", "operator"), *draft.maybe([send]))


def _older_table(draft: _Draft) -> None:
    draft.put_around(
        Step("copy", "operator"), Step("restore table", "operator", draft.draw.randint(0, 11))
    )


def _keyed(draft: _Draft) -> None:
    """Two tries under one key, the second one while the first one is on its way."""
    key = draft.draw.randint(0, 1)
    first, second = (
        Step("try", f"producer{n}", key + 2 * draft.draw.randint(0, 2)) for n in (0, 1)
    )
    place = draft.draw.choice(places_of("producer"))
    strike = Strike(Fault.STOP, place, 1, draft.some(second))
    draft.put(draft.place(), replace(first, strike=strike))
    if draft.draw.random() < 0.5:
        draft.put(draft.place(), replace(second, what=key + 2 * draft.draw.randint(0, 2)))


def _slow(role: tuple[str, ...], place: str) -> Weave:
    def weave(draft: _Draft) -> None:
        at = draft.struck(Fault.STOP, role, (place,))
        who = rival(draft.steps[at].who)
        pause = Step("wait", what=draft.draw.choice((*RETRY, LONG)))
        draft.meanwhile(at, pause, Step(draft.steps[at].do, who))

    return weave


def _base_exception(draft: _Draft) -> None:
    role = draft.draw.choice(("check", "member", "inbox"))
    place = "listener" if role == "check" else "handler"
    draft.struck(Fault.BASE_EXCEPTION, (role,), (place,))


def _retention(draft: _Draft) -> None:
    """Days pass, and retention takes what has ended."""
    who = draft.who("producer")
    steps = [
        replace(draft.step("prepare"), who=who),
        Step("wait", what=2),
        *draft.maybe([draft.step("check")]),
    ]
    for _ in range(draft.draw.randint(2, 3)):
        steps += [Step("publish", draft.who("publisher")), Step("wait", what=DAYS_PASS),
                  Step("maintain", draft.who("maintenance"))]  # fmt: skip
    at = draft.put(draft.place(), *steps)
    draft.put(draft.place(at), replace(draft.step("commit"), who=who))


def _rebuild(draft: _Draft) -> None:
    """An operator rebuilds a topic that a group has read."""
    send, number = Step("send", draft.who("producer"), 2), draft.draw.randint(1, 3)
    publish, consume = Step("publish", draft.who("publisher")), draft.step("consume")
    steps = [send, publish]
    if draft.draw.random() < 0.5:
        # An older copy of the topic lacks what was sent since.
        copy, older = Step("copy", "operator"), Step("restore table", "operator", 3)
        steps += [copy, *[send] * number, publish, *draft.maybe([consume]), older]
    steps += [*[send] * draft.draw.randint(0, 3), publish, consume]
    steps += [Step("rebuild", "operator", 0), send, publish, consume]
    draft.put(draft.place(len(draft.steps) // 2), *steps)


_WEAVES: dict[Fault, Weave] = {
    Fault.KILL: _kill,
    Fault.STOP: _stop,
    Fault.CLOCK: _clock,
    Fault.NO_SPACE: _disk("no space"),
    Fault.IO_ERROR: _disk("io error"),
    Fault.LOST_ANSWER: _lost_answer,
    Fault.FILE_EMPTIED: _damage("empty"),
    Fault.FILE_REMOVED: _damage("remove"),
    Fault.OLDER_STORE: _older_store,
    Fault.OLDER_TABLE: _older_table,
    Fault.KEYED_AT_ONCE: _keyed,
    Fault.SLOW_LISTENER: _slow(("check",), "listener"),
    Fault.SLOW_HANDLER: _slow(("member", "inbox"), "handler"),
    Fault.BASE_EXCEPTION: _base_exception,
    Fault.RETENTION: _retention,
    Fault.PARKED_TOPIC: _parked,
    Fault.REBUILD: _rebuild,
}
