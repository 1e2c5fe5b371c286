select i.log from :"schema".identity i
