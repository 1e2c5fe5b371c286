-- All that is remembered of the log: what it had come to, and its newest message then.
select f.log, f.horizon, f."position", f.id from :"schema".followed f order by f.horizon desc
