-- Every subscription, by group and name.
select s."group", s.name from :"schema".subscriptions s order by 1, 2
