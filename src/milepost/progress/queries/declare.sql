select :"schema".declare_subscriptions(
    %(definitions)s::jsonb, %(program)s::text, %(worker)s::text, %(lease)s::interval
)::text
