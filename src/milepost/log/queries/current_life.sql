select l.token from :"schema".server_life l
