-- A worker has nothing more of a lane.
update :"schema".serving v set lanes = array_remove(v.lanes, %(lane)s::integer)
where v.subscription = %(subscription)s::bigint and v.worker = %(worker)s::text and %(lane)s::integer = any (v.lanes)
