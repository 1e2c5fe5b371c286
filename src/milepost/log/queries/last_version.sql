select :"schema".last_version(%(stream)s::text)
