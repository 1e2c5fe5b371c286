select :"schema".position_before(%(since)s)
