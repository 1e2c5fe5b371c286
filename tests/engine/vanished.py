"""Workers that are gone: what makes others take over without a wait for the lease."""

from milepost import Milepost
from support import qualified

EXPIRE = """
    with gone as (
        update {0}.workers set beat = beat - lease - interval '1 second' where strpos(id, %(pid)s) > 0
    )
    update {0}.serving set until = {0}.clock() - interval '1 second' where strpos(worker, %(pid)s) > 0
"""


async def expire(mp: Milepost, *pids: int) -> None:
    """End the leases of processes that are gone, as if their last beat had been so long ago."""
    for pid in pids:
        await mp.services.transactions.execute(qualified(EXPIRE, mp), {"pid": f"-{pid}-"})
