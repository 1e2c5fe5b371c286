"""The parts of `milepost run`: the supervisor of processes, their reports, and the health server."""
