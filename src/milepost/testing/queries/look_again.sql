-- Workers look for what is due.
select :"schema".act(s.id) from :"schema".subscriptions s
