select h."position" from :"schema".horizon h
