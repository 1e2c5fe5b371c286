select date_part('epoch', :"schema".clock())
