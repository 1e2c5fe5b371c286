-- Before anybody can store a horizon of the new life, which needs its token.
select :"schema".life()
