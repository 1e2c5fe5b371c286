-- A success ends a streak of failures.
select :"schema".judge(%(subscription)s::bigint, 1, 0, 0, 1)
