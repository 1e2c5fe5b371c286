"""Small mistakes in the core, and in the rules about lives: each makes the simulation report something."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A mistake: in `file` it says `mistaken` for `original`, and that breaks something."""

    breaks: str
    file: str
    original: str
    mistaken: str
    kinds: tuple[str, ...] = ("ordered",)
    soon: bool = False
    """Whether a few schedules are enough."""

    def applied(self, text: str) -> str:
        """The text of the file with the mistake in it."""
        assert text.count(self.original) == 1, f"{self.file} has no longer, or not once:\n{self.original}"
        return text.replace(self.original, self.mistaken)


ROUTED = ("routed", "pinned")
MUTATIONS = (
    Mutation(
        "the cursor goes one too far",
        "window.py",
        "Cursor(unsettled[0] - 1,",
        "Cursor(unsettled[0],",
        soon=True,
    ),
    Mutation(
        "what is ahead of the cursor is one too long",
        "window.py",
        "(low + 1, high - 1) for low, high",
        "(low + 1, high) for low, high",
    ),
    Mutation(
        "what was done before the owner came is taken again",
        "lane_memory.py",
        "if position <= reach or (some_done and window.is_done(position)):",
        "if position <= reach:",
        soon=True,
    ),
    Mutation(
        "a window takes one too many",
        "lane_memory.py",
        "if room <= 0 or room_bytes",
        "if room < 0 or room_bytes",
    ),
    Mutation(
        "a key is forgotten: what follows does not wait",
        "lane_memory.py",
        "                if head is not None:\n",
        "                if False:\n",
        soon=True,
    ),
    Mutation(
        "what is out when the order changes does not hold its key",
        "lane_memory.py",
        "(head is not None and head.status in _BUSY_STATUSES) or self.keys.strays.hold(key)",
        "head is not None and head.status in _BUSY_STATUSES",
        ("reordered",),
        soon=True,
    ),
    Mutation(
        "a new message does not wait for what is stored of its key",
        "lane_memory.py",
        "                if has_rows:\n",
        "                if False:\n",
    ),
    Mutation(
        "what came back, and is in the queue twice, goes out twice",
        "queue.py",
        "                entry.status = STATUS_OPEN\n",
        "",
        soon=True,
    ),
    Mutation(
        "a claim that a transaction settles ends before it",
        "claims.py",
        "is_usual = is_usual and not self._committing",
        "is_usual = is_usual or bool(self._committing)",
        soon=True,
    ),
    Mutation(
        "a key is free too early: a failed message does not hold it",
        "lane_memory.py",
        'return row.state is not State.PARKED or self.settings.on_park == "block"',
        "return row.state is not State.RETRYING",
    ),
    Mutation(
        "a settled message lets a follower go that stored rows come before",
        "lane_memory.py",
        "if key in self.keys.stored and (following is None or following.row is None):",
        "if key in self.keys.stored and following is None:",
    ),
    Mutation(
        "a follower for which there may be no row is forgotten",
        "store_sync.py",
        "return entry.row is not None and entry.status not in (STATUS_ASIDE, STATUS_OPEN, STATUS_GUARDED)",
        "return entry.status not in (STATUS_ASIDE, STATUS_OPEN, STATUS_GUARDED)",
    ),
    Mutation(
        "a head's first follower is lost when it leaves memory",
        "lane_memory.py",
        "            self.keys.rebuild(key, [])\n            self.hold(key)\n",
        "            self.keys.heads.pop(key, None)\n            self.hold(key)\n",
        soon=True,
    ),
    Mutation(
        "a row runs before it is due",
        "lane_memory.py",
        "return row.due is None or row.due <= now",
        "return True",
    ),
    Mutation(
        "a row that is due is not awaited",
        "store_sync.py",
        "                self.note_row_due(step.move.row.due)\n",
        "                pass\n",
        ("local", "ordered"),
        soon=True,
    ),
    Mutation(
        "a poke is forgotten when an answer comes",
        "store_sync.py",
        "            self._due_after_exchange = min(due, self._due_after_exchange)\n",
        "            pass\n",
        ("local", "ordered", "routed", "pinned", "crossed"),
    ),
    Mutation(
        "an attempt is not counted",
        "retry.py",
        "attempts, total = row.attempts + more, row.total + more",
        "attempts, total = row.attempts, row.total",
        ("local",),
    ),
    Mutation(
        "a message is tried once too often",
        "retry.py",
        "if attempts >= self.attempts:",
        "if attempts > self.attempts:",
        ("local",),
        soon=True,
    ),
    Mutation(
        "a claim is not checked: whoever had it before may settle",
        "claims.py",
        "if entry.delivery is not delivery or (",
        "if entry.delivery is None or (",
        ("local",),
    ),
    Mutation(
        "a delivery times out while its transaction commits",
        "claims.py",
        "(self._overdue if timed[2] in self._committing else found).append(timed[2])",
        "found.append(timed[2])",
        ("local", "ordered"),
        soon=True,
    ),
    Mutation(
        "a transaction settles what a person has changed",
        "store_sync.py",
        "RowChange.of(row.position, row, None, required=True)",
        "RowChange.of(row.position, row, None)",
        ("local", "ordered"),
    ),
    Mutation(
        "nothing says that a message runs, after an owner vanished",
        "lane_memory.py",
        "bool(self.guards_left or self.settings.track_all), self.has_rows",
        "bool(self.settings.track_all), self.has_rows",
        ("local",),
        soon=True,
    ),
    Mutation(
        "what ended its process is not counted",
        "retry.py",
        "more=more, reason=PROCESS_VANISHED_REASON",
        "more=0, reason=PROCESS_VANISHED_REASON",
    ),
    Mutation(
        "what ended its process is tried again at once",
        "lane.py",
        "row = failed_row(blamed_row(loaded.row, now), now, self._lane_memory.settings.retry, self._random)",
        "row = failed_row(blamed_row(loaded.row, now), now, self._lane_memory.settings.retry, self._random, 0)",
    ),
    Mutation(
        "what only ran when a process vanished is blamed",
        "lane.py",
        "            if is_suspect(loaded.row):\n",
        "            if state.unclean or is_suspect(loaded.row):\n",
        soon=True,
    ),
    Mutation(
        "what ended its process is like any other when its time comes",
        "lane_memory.py",
        "suspect = is_suspect(row) or (",
        "suspect = (is_suspect(row) and row.state is State.RUNNING) or (",
    ),
    Mutation(
        "a suspect that nobody wants is like any other when somebody does",
        "routing/router.py",
        "cleared_row(row) if group and group.has_room else suspected_row(row)",
        "cleared_row(row)",
        ROUTED,
    ),
    Mutation(
        "what ran when a process vanished does not run alone",
        "lane.py",
        "if self._breaker.stalled or self.suspects:",
        "if self._breaker.stalled:",
        ("local", "ordered"),
    ),
    Mutation(
        "more than one is tried while stalled",
        "breaker.py",
        "return self.probe is None and now >= self.probe_at",
        "return now >= self.probe_at",
        ("local", "ordered"),
        soon=True,
    ),
    Mutation(
        "a success does not end a stall",
        "store_sync.py",
        "            self._breaker.succeeded()\n",
        "            pass\n",
        ("local", "ordered"),
    ),
    Mutation(
        "waiting rows have no limit",
        "store_sync.py",
        "_Quota(memory.settings.max_waiting - self._counts.waiting)",
        "_Quota(memory.settings.max_waiting)",
        soon=True,
    ),
    Mutation(
        "a message that a person skipped is handed out",
        "lane_memory.py",
        "if row.state is not State.SKIPPED or entry.status in (STATUS_OPEN, STATUS_GUARDED):",
        "if True:",
        ("local", "ordered"),
    ),
    Mutation(
        "a release counts what it interrupts as running still",
        "lane.py",
        "            self._end_starts(now)\n",
        "            pass\n",
        ("local", "ordered"),
        soon=True,
    ),
    Mutation(
        "an unrouted row is not brought back",
        "routing/router.py",
        "            self._lane_memory.keys.unknown[key] = None\n",
        "            pass\n",
        ROUTED,
        soon=True,
    ),
    Mutation(
        "a new consumer does not look for what waited for it",
        "routing/router.py",
        "                self._fall_behind(group, 0, None)\n",
        "                pass\n",
        ROUTED,
    ),
    Mutation(
        "a capacity is one too large",
        "routing/route.py",
        "return self.messages >= self.route.capacity or",
        "return self.messages > self.route.capacity or",
        ROUTED,
    ),
    Mutation(
        "messages spill over to a lower priority when the higher is full",
        "routing/routes.py",
        "return self._index.first(message.properties)",
        "return next((g for g in sorted(self._groups.values(), key=lambda g: (not g.has_room, -g.priority))"
        " if g.filter is None or g.filter.matches(message.properties)), None)",
        ROUTED,
    ),
    Mutation(
        "who came later goes first at equal priority",
        "routing/routes.py",
        "arrival=group.members[0].rank",
        "arrival=tuple(-number for number in group.members[0].rank)",
        ROUTED,
    ),
    Mutation(
        "what a consumer had when it vanished is not counted",
        "lane.py",
        "if delivery.entry.status == STATUS_OPEN], []",
        "if delivery.entry.status == STATUS_GUARDED], []",
        ROUTED,
        soon=True,
    ),
    Mutation(
        "a consumer that vanishes is no failure",
        "lane.py",
        "        if tried:\n            self._store_sync.count_failure(now)\n",
        "",
        ROUTED,
    ),
    Mutation(
        "a consumer's budget is not given back",
        "claims.py",
        "            self._routes.closed(delivery)\n",
        "            pass\n",
        ROUTED,
        soon=True,
    ),
    Mutation(
        "what waits for a pinned member is not looked at when it has room",
        "routing/pinned.py",
        "        self._show_head(member)\n        self.wake()\n",
        "        self.wake()\n",
        ("pinned",),
    ),
    Mutation(
        "what waits for a full member stays in the way of others when the window is full",
        "routing/router.py",
        "self._lane_memory.room() <= 0 and self._routes.share()",
        "False",
        ("pinned",),
    ),
    Mutation(
        "what is handed over in a full window is not looked at",
        "routing/pinned.py",
        "        if moved:\n            self._queue_anew(member)\n",
        "",
        ("pinned",),
    ),
    Mutation(
        "what waited for one that leaves is lost",
        "routing/pinned.py",
        "        for member in members:\n            self._queue_anew(member)\n",
        "",
        ("pinned",),
    ),
)

RULES = (
    Mutation(
        "a write is not compared with the life in which its lane was taken",
        "server.py",
        "        if life != self.store.life:\n            return Refused.STALE\n",
        "",
        ("lives",),
    ),
    Mutation(
        "a lane is released by an owner of another life",
        "server.py",
        "        if life != self.store.life:\n            return False\n",
        "",
        ("lives",),
    ),
    Mutation(
        "a lane is taken though the log is read in another life",
        "server.py",
        "if log_life != self.store.life:",
        "if False:",
        ("lives",),
    ),
    Mutation(
        "rows get the messages of another life",
        "server.py",
        "if rows and log_life != self.store.life:",
        "if False:",
        ("lives",),
    ),
    Mutation(
        "a page of another life is filled into a lane",
        "worker.py",
        "if holding is None or holding.log_life != page.life:",
        "if holding is None:",
        ("lives",),
    ),
    Mutation(
        "an owner that finds another life keeps its lanes",
        "worker.py",
        "            if holding.log_life != self.reads.life:\n",
        "            if False:\n",
        ("lives",),
    ),
)
"""Mistakes in what guards the store and its owners when it goes back.

The engine and the schema have these rules. Here the mistakes are made where the simulation follows them; a few
schedules find each.
"""
