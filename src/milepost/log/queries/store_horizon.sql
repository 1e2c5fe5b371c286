update :"schema".horizon h set "position" = %(position)s where h."position" < %(position)s
