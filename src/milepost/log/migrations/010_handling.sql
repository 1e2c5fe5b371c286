-- How long handlers and consumers take, as workers tell it.
-- oldest: 1

-- Both count from a worker's beginning; what grew between two looks is what was measured between them.
alter table :"schema".reports
    add column attempts bigint not null default 0,  -- that have ended
    add column handling_seconds float8 not null default 0,  -- that these took, together
    add column latencies float8[] not null default '{}';  -- of what was pulled: some that stand for the last ones
