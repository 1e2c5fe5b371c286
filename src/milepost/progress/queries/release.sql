-- The last revision of an owner that leaves in good order, with nothing more to write. Its worker has nothing more of it.
with let_go as (
    update :"schema".serving v set lanes = array_remove(v.lanes, %(lane)s::integer)
    where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text and %(lane)s::integer = any (v.lanes)
)
insert into :"schema".cursors (subscription, lane, revision, epoch, released, "position", ahead)
select c.subscription, c.lane, c.revision + 1, c.epoch, true, c."position", c.ahead
from :"schema".cursors c
where c.subscription = %(subscription)s::bigint and c.lane = %(lane)s::integer
  and c.revision = %(revision)s::bigint and c.epoch = %(epoch)s::bigint
  and exists (select from :"schema".server_life l where l.token = %(life)s::uuid)
returning revision
