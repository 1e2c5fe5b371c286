select :"schema".beat(%(worker)s::text, %(group)s::text, %(program)s::text, %(lease)s::interval)
