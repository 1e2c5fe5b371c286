select :"schema".declare_subscriptions(%(definitions)s::jsonb, %(program)s::text)::text
