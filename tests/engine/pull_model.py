"""What pulling is, without a database: every message is a row from the moment it is appended."""

from dataclasses import dataclass, field

ACTIVE = ("waiting", "running", "retrying")


@dataclass
class Row:
    """One message."""

    position: int
    key: str | None
    state: str = "waiting"
    attempts: int = 0
    total: int = 0
    due: float = 0.0
    expires: float = 0.0
    claim: str | None = None


@dataclass
class Model:
    """One subscription."""

    ordered: bool
    on_park: str
    attempts: int
    delay: float
    factor: float
    rows: dict[int, Row] = field(default_factory=dict)
    """By position, in order; what is done is not here."""
    now: float = 0.0

    def append(self, position: int, key: str) -> None:
        self.rows[position] = Row(position, key if self.ordered else None)

    def heads(self) -> dict[str, Row]:
        """Of each key the one that may run, or runs."""
        heads: dict[str, Row] = {}
        for row in self.rows.values():
            if row.key is None or not self._holds(row):
                continue
            if row.key not in heads or row.state == "running":
                heads[row.key] = row
        return heads

    def _holds(self, row: Row) -> bool:
        return row.state in ACTIVE or (row.state == "parked" and self.on_park == "block")

    def claimable(self) -> set[int]:
        """What can be claimed now."""
        heads = self.heads()
        return {
            row.position
            for row in self.rows.values()
            if (row.key is None or heads.get(row.key) is row)
            and (row.state == "waiting" or (row.state == "retrying" and row.due <= self.now))
        }

    def expire(self) -> None:
        """Claims whose time is over are attempts that failed."""
        for row in self.rows.values():
            if row.state == "running" and row.expires <= self.now:
                self.fail(row)

    def claim(self, position: int, claim: str, timeout: float) -> int:
        """Somebody has it; which attempt that is."""
        row = self.rows[position]
        row.state, row.claim, row.expires = "running", claim, self.now + timeout
        return row.attempts + 1

    def settle(self, position: int, claim: str, outcome: str, timeout: float) -> bool:
        """Whether the claim held."""
        row = self.rows.get(position)
        if row is None or row.claim != claim:
            return False
        match outcome:
            case "ack" | "skip":
                del self.rows[position]
            case "retry":
                self.fail(row)
            case "park":
                self.fail(row, parks=True)
            case "extend":
                row.expires = self.now + timeout
        return True

    def fail(self, row: Row, *, parks: bool = False) -> None:
        """One more attempt has failed."""
        row.attempts, row.total, row.claim = row.attempts + 1, row.total + 1, None
        row.state = "parked" if parks or row.attempts >= self.attempts else "retrying"
        row.due = self.now + self.delay * self.factor ** (row.attempts - 1)

    def retry(self, position: int) -> bool:
        """A person wants it tried now."""
        row = self.rows.get(position)
        if row is None or row.state not in ("parked", "retrying"):
            return False
        row.state, row.attempts, row.due = "retrying", 0, self.now
        return True

    def skip(self, position: int) -> bool:
        """A person passes it over. What is no row yet cannot be."""
        row = self.rows.get(position)
        if row is None or row.state not in ("parked", "retrying", "waiting"):
            return False
        row.state = "skipped"
        return True
