-- Upwards only, and not into another life of the server, where the same positions may be other messages.
update :"schema".horizon h
set "position" = %(position)s
where h."position" < %(position)s
  and exists (select from :"schema".server_life l where l.token = %(life)s)
