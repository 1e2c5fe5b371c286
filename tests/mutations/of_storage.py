"""Mistakes in the log and in progress."""

from mutations.mutation import Mutation

LOG = "postgres/migrations/001_milepost/1_log.sql"
PROGRESS = "postgres/migrations/001_milepost/2_progress.sql"
OPERATING = "postgres/migrations/001_milepost/4_operating.sql"
PULLING = "postgres/migrations/001_milepost/5_pulling.sql"

STORAGE = (
    Mutation(
        "an append with an expected version that is wrong is let pass",
        LOG,
        "if expected <> -2 and expected <> last and not (expected = -1 and last > 0) then",
        "if expected <> -2 and expected > last and not (expected = -1 and last > 0) then",
        (
            "log/test_append.py::test_a_wrong_version_writes_nothing",
            "log/test_append.py::test_of_two_appends_with_the_same_expectation_one_wins",
        ),
    ),
    Mutation(
        "an append that is sent again is written again, when it also expects a version",
        LOG,
        "        if result.outcome is not null then\n            return result;",
        "        if result.outcome is not null and expected = -2 then\n            return result;",
        ("log/test_append.py::TestIds::test_a_repeated_append_with_an_expected_version_is_a_duplicate",),
    ),
    Mutation(
        "an id that comes again with other content counts as the same message",
        LOG,
        "where m.type <> n.type or m.data <> coalesce(n.data, 'null')",
        "where m.type <> n.type",
        ("log/test_sql_function.py::test_a_known_id_is_an_outcome",),
    ),
    Mutation(
        "several streams are locked in the order of the caller",
        LOG,
        '            order by b.stream collate "C"\n',
        "",
        ("log/test_append.py::TestMany::test_streams_are_locked_in_one_order",),
    ),
    Mutation(
        "of an append to several streams a part stays when one is refused",
        LOG,
        "            if result.outcome not in ('appended', 'duplicate') then\n"
        "                raise exception using errcode = 'MP001';\n"
        "            end if;\n",
        "",
        ("log/test_append.py::TestMany::test_one_wrong_version_undoes_all",),
    ),
    Mutation(
        "the horizon passes an append that has not committed",
        "log/postgres/horizon.py",
        "while self._samples and self._samples[0].open.isdisjoint(still_open):",
        "while self._samples:",
        ("log/test_horizon.py::test_an_append_between_the_two_halves_of_a_sample",),
    ),
    Mutation(
        "a page ends after its first message that is too large, and the rest is lost",
        "log/postgres/reader.py",
        "        if not cut:\n",
        "        if not cut or len(numbers) < size:\n",
        ("log/test_read.py::test_pages_are_bounded_in_bytes",),
    ),
    Mutation(
        "a star in a type stands for several dotted parts",
        "log/query.py",
        'spelled = {"*": "[^.]+", ">": ".+"}',
        'spelled = {"*": ".+", ">": ".+"}',
        ("log/test_read.py::test_types_and_patterns",),
    ),
    Mutation(
        "whoever had the lane before may still write",
        PROGRESS,
        "          and c.revision = exchange.revision and c.epoch = exchange.epoch\n",
        "          and c.revision = exchange.revision\n",
        ("progress/test_postgresql.py::TestRevisions::test_a_revision_that_comes_again_with_another_owner",),
    ),
    Mutation(
        "cursors that are written together are not compared with who has the lane",
        PROGRESS,
        "        where c.epoch = g.epoch\n        order by",
        "        order by",
        ("progress/test_postgresql.py::TestRevisions::test_a_revision_that_comes_again_with_another_owner",),
    ),
    Mutation(
        "a lane of another life of the server may still write",
        PROGRESS,
        '          and exists (select from :"schema".server_life l where l.token = exchange.life);\n    else',
        "        ;\n    else",
        ("progress/test_lives.py::test_a_lane_is_not_written",),
    ),
    Mutation(
        "of cursors that are written together those of another life are written too",
        PROGRESS,
        "        where g.life = present and (sees_now",
        "        where (sees_now",
        ("progress/test_lives.py::test_of_lanes_that_are_written_together_those_of_another_life_are_missing",),
    ),
    Mutation(
        "who reads the log of another life takes lanes",
        "progress/postgres/queries/lanes.sql",
        " or c.life <> %(log_life)s::uuid",
        "",
        ("progress/test_lives.py::test_nothing_is_taken_by_who_reads_the_log_of_another_life",),
    ),
    Mutation(
        "a move that was reckoned before a crash is made after it",
        OPERATING,
        '    perform :"schema".require_life(life), :"schema".write_through();',
        '    perform :"schema".write_through();',
        ("progress/test_lives.py::test_a_move_is_refused",),
    ),
    Mutation(
        "a worker that has expired keeps its lanes",
        PROGRESS,
        '        where e.beat + e.lease < :"schema".clock()\n',
        '        where e.beat + 2 * e.lease < :"schema".clock()\n',
        ("progress/test_leases.py::test_an_expired_owner_is_replaced_and_learns_it",),
    ),
    Mutation(
        "a success does not end the failures in a row",
        PROGRESS,
        "    set streak = case when succeeded > 0 then 0 else s.streak end + failed,",
        "    set streak = s.streak + failed,",
        ("progress/test_progress.py::TestBreaker::test_it_is_of_all_lanes",),
    ),
    Mutation(
        "one message is given to two who pull",
        PULLING,
        "d.lane between 0 and 0 and d.state = 'waiting' and d.head\n          and d.\"position\" <= up_to\n",
        "d.lane between 0 and 0 and d.state in ('waiting', 'running') and d.head\n"
        '          and d."position" <= up_to\n',
        ("progress/test_pulling.py::TestConverting::test_a_loser_only_claims",),
    ),
    Mutation(
        "who pulls gets two of a key at a time",
        PULLING,
        '        where h."position" is null);\n',
        "        );\n",
        ("engine/test_pull.py::TestOrder::test_a_parked_one_that_is_retried_holds_its_key_again",),
    ),
    Mutation(
        "a claim is tried once too often",
        PULLING,
        "    set state = case when g.parks or d.attempts + 1 >= most then 'parked' else 'retrying' end,",
        "    set state = case when g.parks or d.attempts >= most then 'parked' else 'retrying' end,",
        ("engine/test_pull.py::TestClaims::test_an_expired_claim_ends_in_parked_at_the_limit",),
    ),
    Mutation(
        "a move forwards leaves the rows beyond it",
        OPERATING,
        '      and (d."position" > above and d."position" <= coalesce(up_to, 9223372036854775807)\n'
        '           or d."position" = any (followers));',
        '      and d."position" = any (followers);',
        ("engine/test_control.py::TestMove::test_rows_above_go_and_rows_below_stay",),
    ),
    Mutation(
        "lanes are moved while somebody has them",
        OPERATING,
        "    if opened.barrier is distinct from place_lanes.barrier or opened.barrier_until < "
        ':"schema".clock()\n'
        '        or (:"schema".stand(subscription, opened.lanes)).held\n',
        "    if opened.barrier is distinct from place_lanes.barrier\n",
        ("progress/test_placing.py::test_they_stay_while_a_live_worker_has_one",),
    ),
    Mutation(
        "what was read beyond a barrier is handed out",
        "log/query.py",
        "        return replace(self, high=position, messages=[each for each in self.messages if "
        "each.position <= position])",
        "        return self",
        ("log/test_segment.py::test_nothing_is_beyond_its_end",),
    ),
    Mutation(
        "who asks for deliveries of a key gets those of others",
        "progress/postgres/queries/deliveries.sql",
        "           and (%(key)s::text is null or d.key = %(key)s::text)\n",
        "",
        ("progress/test_deliveries.py::TestChoices::test_by_position_key_and_reason",),
    ),
    Mutation(
        "who lost a lane gives others its lanes too",
        "progress/leases.py",
        "                if leases.owners.get((subscription, lane)) == self._id:\n",
        "                if (subscription, lane) in leases.owners:\n",
        ("progress/test_leases.py::test_a_release_frees_only_what_is_ones_own",),
    ),
    Mutation(
        "an append tells whoever slept once",
        LOG,
        'if wake and exists (select from :"schema".sleeps where until > (select :"schema".clock())) then',
        'if wake and exists (select from :"schema".sleeps) then',
        ("log/test_wakeups.py::test_a_mark_makes_an_append_notify_until_it_has_passed",),
    ),
    Mutation(
        "who holds the horizon is read before how far the sequence is",
        "log/postgres/horizon.py",
        "        drawn = await self._drawn()\n"
        '        rows = await self._fetch(self._statements.get("sample_lockers"), {})\n',
        '        rows = await self._fetch(self._statements.get("sample_lockers"), {})\n'
        "        drawn = await self._drawn()\n",
        ("log/test_horizon.py::test_an_append_after_both_halves_of_a_sample",),
    ),
    Mutation(
        "what the log knew before the server restarted is still believed",
        "log/postgres/horizon.py",
        "                self._forget()\n",
        "                pass\n",
        ("log/test_horizon.py::test_what_was_known_in_another_generation_is_not_taken",),
    ),
    Mutation(
        "messages of a category whose name has the same hash are read too",
        "log/query.py",
        "return categories is None or categories.issuperset(map(category_of, {message.stream for "
        "message in page}))",
        "return True",
        ("log/test_read.py::test_categories_whose_hashes_collide",),
    ),
    Mutation(
        "a transaction goes on though a row that it requires has changed",
        PROGRESS,
        "    if unmet then\n",
        "    if unmet and moved is null then\n",
        ("progress/test_progress.py::TestMoves::test_what_is_required_is_done_or_nothing_is",),
    ),
    Mutation(
        "whoever holds a claim of before settles what others have",
        PULLING,
        "        where d.ctid = r.row_id and d.claim is not distinct from g.claim\n",
        "        where d.ctid = r.row_id\n",
        ("progress/test_pulling.py::test_a_claim_that_is_another_s_settles_nothing",),
    ),
    Mutation(
        "with an order, a claim of before settles what others have",
        PULLING,
        '        where d.subscription = opened.id and d."position" = g."position" and d.claim is '
        "not distinct from g.claim\n"
        "        limit 1\n"
        "        for no key update",
        '        where d.subscription = opened.id and d."position" = g."position"\n'
        "        limit 1\n"
        "        for no key update",
        ("progress/test_pulling.py::test_a_claim_that_is_another_s_settles_nothing",),
    ),
    Mutation(
        "a settlement that is asked for again was never refused",
        PULLING,
        "array(select unnest(places) except select unnest(known.refused))",
        "places",
        ("progress/test_pulling.py::test_who_asks_again_is_told_what_was_refused",),
    ),
)
