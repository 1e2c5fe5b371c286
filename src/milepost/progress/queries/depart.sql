delete from :"schema".serving v where v.worker = %(worker)s::text
