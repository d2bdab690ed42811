"""Draws a plan: an ordinary day of a store, into which two or three faults are woven."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.endurance.generator.plan import Plan, Step, Strike
from tests.endurance.generator.world import GROUP, KEYS, KEYS_IN, OTHER_SETTINGS
from tests.kit.fault_vocabulary import (
    CLOCK_JUMPS_S,
    OF_PROCESSES,
    PASSED_BY,
    TABLES,
    USER_CODE,
    WRITTEN_BY,
    Fault,
    places_of,
    requests_of,
)
from txmq.ground.fail_points import FailPoint

FAULTS = tuple(fault for fault in Fault if fault not in OF_PROCESSES)
SERVICES = (
    "publisher", "delay", "check", "maintenance", "member", "inbox", "ordered", "packer",
)  # fmt: skip
PAIRS = (*SERVICES, "producer", "operator", "payer")
ROUNDS = {
    "publisher": "publish", "delay": "deliver", "check": "check", "maintenance": "maintain",
    "member": "consume", "inbox": "consume", "operator": "rebuild", "payer": "pay",
    "ordered": "consume", "packer": "receive",
}  # fmt: skip
# What a day may be about; the numbers say how often its deeds are drawn.
DAYS: tuple[dict[str, int], ...] = (
    {"send": 5, "publish": 5, "wait": 2, "consume": 1},
    {"send": 3, "delayed": 3, "publish": 4, "deliver": 4, "wait": 3},
    {"prepare": 4, "commit": 4, "rollback": 1, "publish": 4, "check": 2, "wait": 2},
    {"try": 5, "publish": 3, "send": 1, "wait": 1, "check": 1},
    {"send": 4, "publish": 4, "consume": 5, "receive": 2, "wait": 2},
    {"send": 4, "publish": 4, "receive": 5, "wait": 4},
    {"send": 3, "delayed": 2, "prepare": 2, "commit": 2, "try": 1, "publish": 5, "deliver": 2,
     "check": 1, "consume": 2, "receive": 1, "wait": 2},
)  # fmt: skip
# The commands of operators, those that rewrite most the most often.
COMMANDS = (
    "erase", "erase", "rebuild", "rebuild", "reset", "delete", "retain", "retype", "backup",
    "restore backup", "upgrade", "resolve", "resume", "recall",
)  # fmt: skip
# Where a command stands still with its work half done.
PLACES_OF_COMMANDS = {
    "rebuild": (
        str(FailPoint.PAYLOAD_WRITTEN),
        "before topics/",
        "looked topics/",
        "after topics/",
    ),
    "erase": ("before half", "after half", "before topics/", "after topics/"),
}
# A word that stands for many faults is drawn the more often.
WEIGHTS = {
    Fault.COMMAND_IN_COMMAND: 4, Fault.OTHER_ENGINE: 3, Fault.FOREIGN_ROW: 3, Fault.USER_CODE: 3,
    Fault.CONFIGURATION: 2, Fault.SLOW_CHANGE: 2, Fault.STORE_BACK: 2, Fault.FILE_REMOVED: 2,
}  # fmt: skip
# A number that a deed may take apart.
ANY = 2**31
# Places in `deeds.PAUSES_S`.
SHORT, RETRY, LONG, DAYS_PASS = (0, 1, 2), (3, 4), 5, 7
# Of one topic; a handler fails on the one that is a multiple of three.
SENT_TOGETHER = ((0, 2, 4), (3, 1, 5), (2, 0, 4), (1, 3, 5))
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
    faults = _words(draw, draw.choice((2, 2, 3)))
    draft = _Draft(draw)
    for fault in faults:
        _WEAVES[fault](draft)
    settings = {"default_topic_queue_nums": draw.choice((1, 1, 2)), **draft.settings}
    return Plan(seed, tuple(faults), tuple(draft.steps), settings)


def _words(draw: random.Random, count: int) -> list[Fault]:
    words: list[Fault] = []
    while len(words) < count:
        left = [fault for fault in FAULTS if fault not in words]
        words += draw.choices(left, [WEIGHTS.get(fault, 1) for fault in left])
    return words


class _Draft:
    """Steps to which faults are added, and what the store sets for them."""

    def __init__(self, draw: random.Random) -> None:
        self.settings: dict[str, Any] = {}
        self.draw, self.day = draw, draw.choice(DAYS)
        self.steps = [self.step() for _ in range(draw.randint(MIN_STEPS, MAX_STEPS))]

    def step(self, do: str | None = None, role: str | None = None) -> Step:
        """One deed of the day."""
        do = do or self.draw.choices([*self.day], [*self.day.values()])[0]
        return Step(do, self.who(role or _role(do, self.draw)), self._number(do))

    def who(self, role: str) -> str:
        return f"{role}{self.draw.randint(0, 1)}" if role in PAIRS else role

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

    def lives(self) -> list[Step]:
        """A transaction is asked about in vain; its end comes too late, and it is resumed."""
        who, number = self.who("producer"), self.draw.choice((7, 8))
        asked = [Step("wait", what=3), self.step("check"), self.step("publish")]
        steps = [Step("prepare", who, number), *asked * 4]
        end = Step("commit" if self.draw.random() < 0.7 else "rollback", who)
        return [*steps, end, *self.maybe([self.step("publish")]), self.step("resume")]

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
             "maintain": "maintenance", "pay": "payer", "receive": "packer",
             **dict.fromkeys(COMMANDS, "operator")}  # fmt: skip
    if do == "consume":
        return draw.choice(("member", "inbox", "ordered"))
    if do == "work":
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
        damage = Step(do, "disk", draft.draw.randint(0, 59))
        if do == "remove" and draft.draw.random() < 0.5:
            _put_back(draft, damage)
        else:
            draft.put(draft.place(len(draft.steps) // 2), damage)

    return weave


def _put_back(draft: _Draft, damage: Step) -> None:
    """What was removed is put back, after topics got some of it and have lost it by their age."""
    who, half = draft.who("producer"), draft.draw.randint(0, 1)
    killed = Step("publish", draft.who("publisher"), strike=Strike(Fault.KILL, "after topics/"))
    both = [Step("prepare", who, 0), Step("commit", who), killed, Step("remove", "disk", 6 * half)]
    late = [Step("wait", what=LONG), draft.step("maintain")]
    retain = [_retain(draft)] if draft.draw.random() < 0.8 else []
    steps = [draft.step("send"), draft.step("publish"), *retain,
             *(both if draft.draw.random() < 0.7 else [damage]), draft.step("publish"),
             *draft.maybe([*late, draft.step("send"), draft.step("publish"), *late]),
             Step("put back", "disk")]  # fmt: skip
    draft.put(draft.place(), *steps)


def _retain(draft: _Draft) -> Step:
    return Step("retain", "operator0", draft.draw.randint(0, 1))


def _older_store(draft: _Draft) -> None:
    """A copy that was taken while the store was used, one table after the other."""
    send = draft.step("send")
    meanwhile = draft.some(send, draft.step("publish"))
    copy = Step("copy", "operator", draft.draw.randint(0, 3), meanwhile=meanwhile)
    # What is sent now takes the place of what the copy lacks.
    end = Step("stop all", "operator")
    draft.put_around(copy, end, Step("restore", "operator"), *draft.maybe([send]))


def _older_table(draft: _Draft) -> None:
    back = Step("restore table", "operator", draft.draw.randint(0, 11))
    draft.put_around(Step("copy", "operator"), Step("stop all", "operator"), back)


def _store_back(draft: _Draft) -> None:
    """The store, or a table, is an older copy at once, under all who live and stand still."""
    do = draft.draw.choice(("restore", "restore", "restore table"))
    back = Step(do, "operator", draft.draw.randint(0, 11))
    who = draft.who("producer")
    before = [*draft.maybe([draft.step("send")]), *draft.maybe([Step("publish", "publisher0")])]
    prepared = draft.maybe([Step("prepare", who, draft.draw.randint(0, 11))])
    after = [Step("commit", who)] if prepared else [draft.step("send")]
    draft.put(draft.place(), *before, Step("copy", "operator"), *draft.some(), *prepared)
    if draft.draw.random() < 0.3:
        at = draft.struck(Fault.STOP, ("producer", "publisher", "member", "delay"))
        draft.meanwhile(at, back)
    else:
        at = draft.put(draft.place(len(draft.steps) // 2), back) - 1
    draft.put(at + 1, *after)


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


def _user_code(draft: _Draft) -> None:
    """A listener or a member is slow, or its process ends, between two calls of the user's code."""
    role = draft.draw.choice(("check", "member", "inbox", "inbox", "ordered", "packer", "packer"))
    if role == "check":
        at = draft.struck(Fault.STOP, (role,), USER_CODE[role])
    else:
        # Both join and share the queues, each third of a lease.
        draft.settings["consumer_lease_s"] = 60.0
        both = [Step(ROUNDS[role], f"{role}{n}") for n in (0, 1)]
        share = [
            *both,
            *draft.scene(role),
            Step("wait", what=3),
            *both,
            Step("wait", what=3),
            *both,
        ]
        shared = share if draft.draw.random() < 0.7 else []
        at = draft.put(draft.place(), *shared, *draft.scene(role), _by_hand(draft, role)) - 1
    who = rival(draft.steps[at].who)
    late = Step("wait", what=draft.draw.choice((2, 2, *RETRY)))
    publish = Step("publish", draft.who("publisher"))
    takes_over = [publish, late, Step("deliver", draft.who("delay")), publish,
                  Step(draft.steps[at].do, who)]  # fmt: skip
    if draft.draw.random() < 0.3:
        draft.settings["file_reserved_time_h"] = 1.0
        takes_over.insert(-1, Step("clock", who, draft.draw.randint(1, len(CLOCK_JUMPS_S))))
        takes_over.insert(0, Step("wait", what=LONG - 1))
    strike = draft.steps[at].strike
    assert strike is not None
    if strike.fault is Fault.STOP:
        draft.meanwhile(at, *takes_over)
    else:
        draft.put(at + 1, *takes_over)


def _by_hand(draft: _Draft, role: str) -> Step:
    """A member polls, sends back, applies and commits; it stops, or ends, between two of these."""
    fault = draft.draw.choice((Fault.STOP, Fault.STOP, Fault.KILL))
    if role in ("member", "inbox"):
        do, places = "work", USER_CODE[role][1:]
    else:
        do, places = ROUNDS[role], USER_CODE[role]
    return Step(do, draft.who(role), strike=Strike(fault, draft.draw.choice(places)))


def _base_exception(draft: _Draft) -> None:
    role = draft.draw.choice(("check", "member", "inbox", "ordered", "packer"))
    at = draft.struck(Fault.BASE_EXCEPTION, (role,), USER_CODE[role])
    strike = draft.steps[at].strike
    assert strike is not None
    if strike.place in USER_CODE["member"][1:]:
        draft.steps[at] = replace(draft.steps[at], do="work")


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
        end = Step("stop all", "operator")
        steps += [copy, *[send] * number, publish, *draft.maybe([consume]), end, older]
    steps += [*[send] * draft.draw.randint(0, 3), publish, consume]
    steps += [Step("rebuild", "operator", 0), send, publish, consume]
    draft.put(draft.place(len(draft.steps) // 2), *steps)


def _command_in_command(draft: _Draft) -> None:
    """A command stops, or ends, at one of its commits, and another one comes between."""
    draw, number = draft.draw, draft.draw.randint(0, 11)
    first, second = (
        Step(draw.choice(COMMANDS), f"operator{n}", draw.choice((number, draw.randint(0, 11))))
        for n in (0, 1)
    )
    steps = [Step("send", draft.who("producer"), number), draft.step("send", "producer"),
             *draft.maybe([draft.step("delayed")]), *draft.maybe([draft.step("prepare")]),
             *draft.maybe([Step("remove", "disk", 6 * draw.randint(0, 3))]),
             draft.step("publish"), *draft.maybe([draft.step("consume")])]  # fmt: skip
    if first.do == "rebuild":
        # There must be something to repair.
        first = replace(first, what=number)
        steps.append(Step("lose rows", "stranger", number))
    if second.do == "restore backup" or first.do == "restore backup":
        steps += [Step("backup", "operator0"), *draft.some()]
    places = ("before ", "after ", "looked ", *map(str, PASSED_BY["operator"]), "copied")
    meanwhile = draft.some(second, draft.step("publish"), second)
    if second.do == "retype":
        meanwhile += tuple(draft.maybe([Step("lose answer", "disk", 0)]))
    fault = Fault.STOP if draw.random() < 0.8 else Fault.KILL
    likely = PLACES_OF_COMMANDS.get(first.do, places[:4])
    place = draw.choice(likely if draw.random() < 0.8 else places)
    hit = draw.choice((1, 1, 1, 2, 3, 4))
    strike = Strike(fault, place, hit, meanwhile if fault is Fault.STOP else ())
    steps += [replace(first, strike=strike), *draft.maybe([second]), *draft.maybe([first])]
    steps += [*draft.maybe([Step("wait", what=LONG), Step("maintain", "maintenance0")]),
              *draft.maybe([Step("put back", "disk")])]  # fmt: skip
    if second.do in ("retype", "retain", "delete") and draw.random() < 0.5:
        who = draft.who("producer")
        sends = [Step(do, who, second.what) for do in ("send", "try", "try", "prepare")]
        draft.put(draft.place(), draw.choice(sends))
        at = draft.struck(Fault.STOP, ("producer", "producer", "publisher"))
        draft.meanwhile(at, second, *draft.maybe([Step("lose answer", "disk", 0)]))
    draft.put(draft.place(), *steps)


def _configuration(draft: _Draft) -> None:
    """Processes restart one by one, with other keys of claims and other settings."""
    draft.settings["claim_keys"] = {GROUP: KEYS_IN}
    for _ in range(draft.draw.randint(1, 4)):
        who = draft.who(draft.draw.choice(("producer", "producer", *SERVICES)))
        number = draft.draw.randrange(len(KEYS) * len(OTHER_SETTINGS))
        work = draft.step(ROUNDS.get(role_of(who), "send"), role_of(who))
        draft.put_around(Step("configure", who, number), replace(work, who=who))


def _other_engine(draft: _Draft) -> None:
    for _ in range(draft.draw.randint(1, 3)):
        meanwhile = draft.some(*draft.maybe([draft.step("publish"), draft.step("maintain")]))
        step = Step("other engine", "stranger", draft.draw.randrange(ANY), meanwhile=meanwhile)
        paid = [draft.step("pay") for _ in range(draft.draw.randint(0, 2))]
        after = [*draft.maybe([Step("wait", what=2), draft.step("check")]),
                 *draft.maybe([draft.step("reset")])]  # fmt: skip
        draft.put(draft.place(len(draft.steps) // 3), *paid, step, *after)


def _foreign_row(draft: _Draft) -> None:
    if draft.draw.random() < 0.5:
        draft.settings["claim_keys"] = {GROUP: KEYS_IN}
    draft.put(0, draft.step("send"), *draft.maybe(draft.lives()))
    for _ in range(draft.draw.randint(1, 6)):
        row = Step("foreign row", "stranger", draft.draw.randrange(ANY))
        draft.put(draft.place(1), row, *draft.maybe([draft.step("publish")]))
    draft.steps += draft.maybe([draft.step("prepare"), Step("wait", what=2), draft.step("check")])


def _pause_in_commit(draft: _Draft) -> None:
    """A process stops between two requests of a commit, others work, and logs are cleaned."""
    draft.settings |= {"checkpoint_interval": draft.draw.choice((1, 2, 3, 25)),
                       "log_reserved_time_s": 1.0}  # fmt: skip
    role = draft.draw.choice(("producer", "producer", *SERVICES))
    at = draft.struck(Fault.STOP, (role,), requests_of(role))
    maintain = draft.step("maintain")
    draft.meanwhile(at, Step("wait", what=LONG), maintain, Step("wait", what=2), maintain)
    draft.put(at, *draft.maybe([draft.step("publish"), draft.step("publish")]))


def _slow_change(draft: _Draft) -> None:
    """A change takes minutes; then its end comes, or its producer hangs or is gone."""
    if draft.draw.random() < 0.4:
        at = draft.struck(Fault.STOP, ("payer",), USER_CODE["payer"])
        draft.meanwhile(at, *_renewed(draft, 1))
        return
    who = draft.who("producer")
    end = draft.draw.choice(("commit", "commit", "rollback", "restart", "wait"))
    last = Step("wait", what=3) if end == "wait" else Step(end, who, draft.draw.randint(0, 11))
    steps = [Step("prepare", who, draft.draw.randint(0, 11)), *_renewed(draft, 0), last]
    draft.put(draft.place(), *steps, *draft.maybe([Step("wait", what=3), draft.step("check")]))


def _renewed(draft: _Draft, what: int) -> list[Step]:
    steps = []
    for _ in range(draft.draw.randint(1, 5)):
        steps += [Step("wait", what=draft.draw.choice(SHORT)), Step("renew", "threads", what),
                  *draft.maybe([draft.step("check")]), *draft.some()]  # fmt: skip
    return steps


def _witnesses(draft: _Draft) -> None:
    """They look on at any step, also while somebody stands still."""
    for _ in range(draft.draw.randint(1, 3)):
        look = Step(draft.draw.choice(("verify", "verify", "doctor")), "witness")
        if draft.draw.random() < 0.5:
            draft.put(draft.place(), look)
        else:
            draft.meanwhile(draft.struck(Fault.STOP, ("producer", *SERVICES)), look)


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
    Fault.USER_CODE: _user_code,
    Fault.BASE_EXCEPTION: _base_exception,
    Fault.RETENTION: _retention,
    Fault.PARKED_TOPIC: _parked,
    Fault.REBUILD: _rebuild,
    Fault.COMMAND_IN_COMMAND: _command_in_command,
    Fault.CONFIGURATION: _configuration,
    Fault.OTHER_ENGINE: _other_engine,
    Fault.FOREIGN_ROW: _foreign_row,
    Fault.PAUSE_IN_COMMIT: _pause_in_commit,
    Fault.STORE_BACK: _store_back,
    Fault.WITNESSES: _witnesses,
    Fault.SLOW_CHANGE: _slow_change,
}
