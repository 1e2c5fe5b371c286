select date_part('epoch', :"schema".clock() - clock_timestamp())
