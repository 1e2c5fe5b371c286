-- Where a page ends, by sizes alone: at the last message, or, if all of them together are too large, where the sum of
-- their sizes reaches the limit. Where there is nothing, at its beginning: nothing is looked for a second time.
coalesce(
    (
        select coalesce(max(m."position"), %(low)s)
        from ({{sizes}}) m
        having coalesce(sum(m.size), 0) < %(bytes)s
    ),
    (
        select min(m."position")
        from (
            select m."position", sum(m.size) over (order by m."position" rows unbounded preceding) as bytes
            from ({{sizes}}) m
        ) m
        where m.bytes >= %(bytes)s
    )
)
