"""Mistakes in the server, the client, the console and the command."""

from mutations.mutation import Mutation

OUTSIDE = (
    Mutation(
        "a token opens everything, whatever its roles",
        "server/access/entrance.py",
        "    if role not in visitor.roles:",
        "    if not visitor.roles:",
        ("server/test_access.py::TestRoles::test_each_request_takes_its_role",),
    ),
    Mutation(
        "a token that was revoked still opens",
        "server/access/queries/tokens_in_force.sql",
        " where revoked is null order by id",
        " order by id",
        ("server/test_access.py::TestTokens::test_one_revoked_elsewhere_opens_nothing",),
    ),
    Mutation(
        "tokens can be guessed without an end",
        "server/access/attempts.py",
        "if len(recent) >= MOST else 0.0",
        "if len(recent) > MOST else 0.0",
        ("server/test_access.py::TestAttempts::test_too_many",),
    ),
    Mutation(
        "a server without tokens listens to other machines",
        "server/hosts.py",
        "    if client and not is_loopback(client):",
        "    if not client:",
        ("server/test_hosts.py::test_from_another_machine",),
    ),
    Mutation(
        "a page of another site may use a local server",
        "server/hosts.py",
        '    if origin is not None and _authority(origin) != header(scope, b"host"):',
        '    if origin is None and header(scope, b"host") is None:',
        ("server/test_hosts.py::test_from_a_page_of_another_site",),
    ),
    Mutation(
        "a body has no limit unless it says its length",
        "server/body.py",
        "        if self._size > self._limits.body_bytes:\n",
        '        if len(event.get("body", b"")) > self._limits.body_bytes:\n',
        ("server/test_limits.py::TestBodies::test_without_a_length",),
    ),
    Mutation(
        "an error that nobody foresaw tells its words",
        "server/problems.py",
        '    words="It is a fault of the server, whose log says more: try again, or tell its operator",\n',
        "",
        ("server/test_problems.py::test_an_error_that_nobody_foresaw_tells_nothing",),
    ),
    Mutation(
        "a page that is just full says that there is more",
        "server/http/gathering.py",
        "            if len(found) == limit or (found",
        "            if len(found) + 1 >= limit or (found",
        ("server/test_read.py::test_a_page_that_is_just_full_has_no_more",),
    ),
    Mutation(
        "somebody else comes back in the place of a consumer",
        "server/websocket/hall.py",
        "    return remote.address == address and remote.visitor == visitor",
        "    return remote.address == address",
        ("server/websocket/test_ends.py::test_nobody_else_comes_back_in_its_place",),
    ),
    Mutation(
        "a delivery is settled a second time",
        "server/websocket/remote.py",
        "            if delivery is None or number in known:\n",
        "            if delivery is None:\n",
        ("server/websocket/test_frames.py::test_deliveries_are_settled",),
    ),
    Mutation(
        "what is open when a consumer leaves counts as an attempt",
        "server/websocket/remote.py",
        "            case Fate.LEAVES:\n                self.consumer.leave()",
        "            case Fate.LEAVES:\n                self.consumer.lose(VANISHED)",
        ("server/websocket/test_frames.py::test_who_leaves_gives_back_what_is_open",),
    ),
    Mutation(
        "who comes back is not told what was lost meanwhile",
        "server/websocket/conversation.py",
        "        if lost := self.remote.take_lost():\n"
        "            await self._wire.send(Lost(deliveries=lost))\n"
        "\n",
        "        self.remote.take_lost()\n\n",
        ("server/websocket/test_ends.py::test_who_comes_back_is_told_what_was_lost_meanwhile",),
    ),
    Mutation(
        "what a connection lost before its answer is not said again",
        "client/settlements.py",
        "        again = [each for each in self._unsure if each.delivery.id in still_open]",
        "        again = list[Settlement]()",
        ("client/test_cuts.py::test_a_consumer_comes_back_with_what_it_has",),
    ),
    Mutation(
        "an append without ids is sent again though it may be there",
        "client/requests.py",
        "                    if unsure and not request.repeatable:",
        "                    if unsure and not request.repeatable and not problems:",
        ("client/test_reaching.py::test_what_cannot_be_repeated_is_not",),
    ),
)
