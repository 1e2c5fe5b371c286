-- What the horizon relies on, where it does not hold: a line for a person each.
select format('sequence %%s has CACHE %%s: positions would be drawn ahead and messages lost; run: alter sequence %%s cache 1',
              s.seqrelid::regclass, s.seqcache, s.seqrelid::regclass)
from pg_sequence s
where s.seqrelid = to_regclass(format('%%I.messages_position_seq', :'schema'::text))
  and s.seqcache <> 1
union all
select format('column position of %%I.messages is not drawn by its own default inside the INSERT: messages would be lost',
              :'schema'::text)
where not exists (
    select from pg_attribute a
    where a.attrelid = to_regclass(format('%%I.messages', :'schema'::text))
      and a.attname = 'position' and a.attidentity = 'a')
union all
select format('%%I.messages has no sequence of its own for position', :'schema'::text)
where pg_get_serial_sequence(format('%%I.messages', :'schema'::text), 'position')
      is distinct from format('%%I.messages_position_seq', :'schema'::text)
union all
select format('%%I.%%I is missing: appends of an older snapshot would not be noticed', :'schema'::text, wanted.name)
from unnest(array['messages_stream_version', 'messages_id']) as wanted(name)
where not exists (
    select from pg_constraint c
    where c.conrelid = to_regclass(format('%%I.messages', :'schema'::text))
      and c.conname = wanted.name and c.contype = 'u')
