-- Makes sure that appends find a mark.
select :"schema".mark_sleep(%(mark)s::interval, %(cover)s::interval)
