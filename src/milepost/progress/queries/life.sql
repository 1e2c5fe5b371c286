-- The present life of the server that keeps progress.
select :"schema".life()
