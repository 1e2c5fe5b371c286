-- Workers are to say what they have in hand; when that was asked.
select pg_notify(:'schema', 'ask'), :"schema".clock()
