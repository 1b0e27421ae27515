"""Escalations: who is asked, and that nothing runs unless someone allowed it."""

import asyncio
import fcntl
import json
import os
import pty
import termios
import unittest

from raw import INITIALIZE, INITIALIZED, RawCase
from server import BINARY, ERAS, LEGACY, NEW, Case, answering, bash, escalating, machine, text, until

import mcp_types

ALLOW = {"decision": "allow once"}


class Elicitation(Case):
    async def test_an_accepted_question_lets_one_call_run(self):
        for era in ERAS:
            self.fresh()
            asked = []
            callback = answering("accept", ALLOW, asked)
            async with self.client(era=era, elicitation_callback=callback) as client:
                command = f"touch '{self.workspace}/made' && printf done"
                result = await client.call_tool("bash", escalating(command))
                self.assertEqual((text(result), result.is_error), ("done", False))
                self.assertEqual(machine(result)["sandbox"]["mode"], "workspace-write")
                self.assertTrue((self.workspace / "made").exists())
                self.assertEqual(len(asked), 1)
                # The grant is used up: the next one asks anew.
                await client.call_tool("bash", escalating(command))
                self.assertEqual(len(asked), 2)
                plain = await client.call_tool("bash", bash("true"))
                self.assertEqual(machine(plain)["sandbox"]["mode"], "read-only")
            message = asked[0].message
            for part in (command, "workspace-write", "The test needs to write", str(self.workspace)):
                self.assertIn(part, message)
            self.assertEqual(
                asked[0].requested_schema,
                {
                    "type": "object",
                    "properties": {
                        "decision": {
                            "type": "string",
                            "title": "Decision",
                            "enum": ["reject", "allow once"],
                            "default": "reject",
                        }
                    },
                    "required": ["decision"],
                },
            )
            resolved = [event for event in self.events() if event["type"] == "approval/resolved"]
            self.assertIn("allowed-once", [event["outcome"] for event in resolved])
            self.assertEqual({event["by"] for event in resolved}, {"MCP client mcp 0.1.0"})

    async def refused(self, era, expected, **options):
        self.fresh()
        async with self.client(era=era, **options) as client:
            result = await client.call_tool("bash", escalating(f"touch '{self.workspace}/made'"))
            self.assertTrue(result.is_error)
            self.assertEqual(text(result), expected)
            self.assertFalse((self.workspace / "made").exists())
            self.assertEqual(text(await client.call_tool("bash", bash("printf ok"))), "ok")

    async def test_a_declined_question_and_a_form_left_at_its_default_reject(self):
        for era in ERAS:
            for action, content in (
                ("decline", None),
                ("accept", {"decision": "reject"}),
                ("accept", {}),
                ("accept", {"decision": "allow"}),
            ):
                await self.refused(
                    era,
                    'the user rejected escalating this command to "workspace-write"',
                    elicitation_callback=answering(action, content),
                )

    async def test_a_cancelled_question_runs_nothing(self):
        for era in ERAS:
            await self.refused(
                era,
                'approval for escalating to "workspace-write" was cancelled',
                elicitation_callback=answering("cancel"),
            )

    async def test_a_client_without_forms_has_no_approval_channel(self):
        for era in ERAS:
            await self.refused(
                era,
                'sandbox escalation to "workspace-write" requires approval, but no approval channel is available',
            )

    async def test_a_mode_that_is_not_wider_asks_nobody(self):
        for era in ERAS:
            asked = []
            callback = answering("accept", ALLOW, asked)
            async with self.client("--mode", "workspace-write", era=era, elicitation_callback=callback) as client:
                result = await client.call_tool("bash", escalating("true"))
                self.assertEqual(
                    text(result),
                    'sandbox escalation to "workspace-write" is not strictly wider than this call\'s'
                    ' current "workspace-write" mode',
                )
                self.assertEqual(asked, [])

    async def test_a_call_that_is_cancelled_while_it_asks_runs_nothing(self):
        waiting = asyncio.Event()

        async def never(_context, _params):
            waiting.set()
            await asyncio.sleep(3600)

        async with self.client(era=LEGACY, elicitation_callback=never) as client:
            call = asyncio.create_task(
                client.call_tool("bash", escalating(f"touch '{self.workspace}/made'"))
            )
            await waiting.wait()
            call.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await call
            self.assertEqual(text(await client.call_tool("bash", bash("printf ok"))), "ok")
        self.assertFalse((self.workspace / "made").exists())
        resolved = [event for event in self.events() if event["type"] == "approval/resolved"]
        self.assertEqual([event["outcome"] for event in resolved], ["cancelled"])


class Declared(RawCase):
    async def test_only_a_client_that_declares_forms_is_asked(self):
        for version, elicitation, is_asked in (
            ("2025-06-18", {}, True),
            ("2025-11-25", {"form": {}}, True),
            ("2025-11-25", {"form": {}, "url": {}}, True),
            ("2025-11-25", {"url": {}}, False),
            ("2025-11-25", None, False),
            ("2025-03-26", {}, False),
        ):
            server = await self.start()
            capabilities = {} if elicitation is None else {"elicitation": elicitation}
            params = {**INITIALIZE["params"], "protocolVersion": version, "capabilities": capabilities}
            call = self.call(
                1,
                f"touch '{self.workspace}/made'",
                sandbox_permissions="workspace-write",
                justification="The test needs it",
            )
            await server.send({**INITIALIZE, "params": params}, INITIALIZED)
            await server.answer("hello")
            await server.send(call)
            message = await server.receive()
            self.assertEqual(message.get("method") == "elicitation/create", is_asked, (version, elicitation))
            if is_asked:
                # A client that can't ask after all.
                error = {"code": -32603, "message": "nobody is there"}
                await server.send({"jsonrpc": "2.0", "id": message["id"], "error": error})
                message = await server.answer(1)
            self.assertEqual(
                message["result"]["content"][0]["text"],
                'sandbox escalation to "workspace-write" requires approval, but no approval channel is available',
            )
        self.assertFalse((self.workspace / "made").exists())


class State(Case):
    """The sealed state of the era without server requests, as a client that lies would use it."""

    async def test_a_state_is_good_for_one_run_of_the_very_call_that_it_was_made_for(self):
        async with self.client(era=NEW, elicitation_callback=answering("decline")) as client:
            call = lambda arguments, **more: client.session.call_tool(
                "bash", arguments, allow_input_required=True, **more
            )
            made = self.workspace / "made"
            arguments = escalating(f"echo x >> '{made}'")

            async def ask():
                required = await call(arguments)
                self.assertIsInstance(required, mcp_types.InputRequiredResult)
                self.assertEqual(list(required.input_requests), ["approval"])
                return required.request_state

            accepted = {"approval": mcp_types.ElicitResult(action="accept", content=ALLOW)}
            # An answer without a state, with a made-up one, and for other calls.
            state = await ask()
            for other, brought in (
                (arguments, None),
                (arguments, "rs1.AAAA.AAAA"),
                (arguments, state[:-1] + ("A" if state[-1] != "A" else "B")),
                (escalating(f"echo y >> '{made}'"), state),
                ({**arguments, "workdir": "/"}, state),
                ({**arguments, "sandbox_permissions": "danger-full-access"}, state),
                ({**arguments, "justification": "Another reason"}, state),
            ):
                again = await call(other, input_responses=accepted, request_state=brought)
                self.assertIsInstance(again, mcp_types.InputRequiredResult, (other, brought))
                self.assertFalse(made.exists())
            # The call itself, once.
            result = await call(arguments, input_responses=accepted, request_state=state)
            self.assertIsInstance(result, mcp_types.CallToolResult)
            self.assertEqual(made.read_text(), "x\n")
            replayed = await call(arguments, input_responses=accepted, request_state=state)
            self.assertIsInstance(replayed, mcp_types.InputRequiredResult)
            self.assertEqual(made.read_text(), "x\n")
            # A state without an answer to the question is none.
            state = await ask()
            empty = await call(arguments, input_responses={}, request_state=state)
            self.assertEqual(text(empty), 'approval for escalating to "workspace-write" was cancelled')
            self.assertEqual(made.read_text(), "x\n")

    async def test_a_state_of_another_server_is_not_good(self):
        made = self.workspace / "made"
        arguments = escalating(f"echo x >> '{made}'")
        accepted = {"approval": mcp_types.ElicitResult(action="accept", content=ALLOW)}
        callback = answering("decline")
        async with self.client(era=NEW, elicitation_callback=callback) as one:
            required = await one.session.call_tool("bash", arguments, allow_input_required=True)
            async with self.client(era=NEW, elicitation_callback=callback) as other:
                again = await other.session.call_tool(
                    "bash",
                    arguments,
                    allow_input_required=True,
                    input_responses=accepted,
                    request_state=required.request_state,
                )
            self.assertIsInstance(again, mcp_types.InputRequiredResult)
            self.assertFalse(made.exists())


class OutOfBand(Case):
    async def waiting(self):
        """The one question that waits."""
        found = []

        def look():
            found[:] = json.loads(self.run_cofferdam("approvals", "--json").stdout)
            return found

        self.assertTrue(await until(look, 10))
        self.assertEqual(len(found), 1)
        return found[0]

    async def test_a_person_at_another_terminal_approves_or_rejects(self):
        for era in ERAS:
            for verb in ("approve", "reject"):
                self.fresh()
                async with self.client("--approval", "elicit,queue", era=era) as client:
                    command = f"touch '{self.workspace}/made' && printf done"
                    call = asyncio.create_task(client.call_tool("bash", escalating(command)))
                    question = await self.waiting()
                    self.assertEqual(
                        (question["command"], question["from"], question["to"], question["justification"]),
                        (command, "read-only", "workspace-write", "The test needs to write"),
                    )
                    shown = self.run_cofferdam("approvals").stdout
                    self.assertIn(command, shown)
                    self.assertIn(f"cofferdam approve {question['id']}", shown)
                    self.assertFalse((self.workspace / "made").exists())
                    answered = self.run_cofferdam(verb, question["id"])
                    self.assertEqual((answered.returncode, answered.stderr), (0, ""))
                    result = await call
                    if verb == "approve":
                        self.assertEqual(text(result), "done")
                    else:
                        self.assertEqual(
                            text(result), 'the user rejected escalating this command to "workspace-write"'
                        )
                    self.assertEqual((self.workspace / "made").exists(), verb == "approve")
                    again = self.run_cofferdam(verb, question["id"])
                    self.assertEqual(again.returncode, 125)
                    self.assertEqual(
                        again.stderr,
                        f'cofferdam: nothing waits under "{question["id"]}"; `cofferdam approvals` lists what does\n',
                    )
        resolved = [event for event in self.events() if event["type"] == "approval/resolved"]
        for event in resolved:
            self.assertRegex(event["by"], r"^\S+ \(uid \d+\) by cofferdam (approve|reject), pid \d+, (at \S+|without a terminal)$")
        self.assertEqual(self.run_cofferdam("approvals").stdout, "nothing waits\n")

    async def test_a_command_of_the_server_can_neither_see_nor_answer_the_question(self):
        """Not even one that runs without confinement."""
        async with self.client("--approval", "queue", "--mode", "read-only") as client:
            made = self.workspace / "made"
            call = asyncio.create_task(client.call_tool("bash", escalating(f"touch '{made}'")))
            question = await self.waiting()
            inner = f"XDG_RUNTIME_DIR='{self.runtime}' '{BINARY}' approve {question['id']}"
            tried = await client.call_tool("bash", bash(inner))
            self.assertEqual(machine(tried)["exitCode"], 125, text(tried))
            self.assertFalse(made.exists())
            self.assertFalse(call.done())
            self.assertEqual(self.run_cofferdam("reject", question["id"]).returncode, 0)
            await call
            self.assertFalse(made.exists())

    async def test_a_cancelled_call_takes_its_question_back(self):
        async with self.client("--approval", "queue") as client:
            call = asyncio.create_task(client.call_tool("bash", escalating("true")))
            await self.waiting()
            call.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await call
            empty = lambda: self.run_cofferdam("approvals").stdout == "nothing waits\n"
            self.assertTrue(await until(empty, 10))

    async def test_progress_says_how_to_answer(self):
        told = []

        async def note(_progress, _total, message):
            told.append(message)

        async with self.client("--approval", "queue") as client:
            call = asyncio.create_task(
                client.call_tool("bash", escalating("sleep 1.2"), progress_callback=note)
            )
            question = await self.waiting()
            self.assertTrue(await until(lambda: told, 10))
            self.assertRegex(
                told[-1], f"^waiting for an approval: cofferdam approve {question['id']}, \\d+ s$"
            )
            self.run_cofferdam("approve", question["id"])
            await call
        self.assertRegex(told[-1], r"^running, \d+ s, 0 bytes of output$")

    async def test_never_asks_nobody(self):
        asked = []
        callback = answering("accept", ALLOW, asked)
        async with self.client("--approval", "never,elicit", elicitation_callback=callback) as client:
            result = await client.call_tool("bash", escalating("true"))
        self.assertEqual(
            text(result),
            'sandbox escalation to "workspace-write" requires approval, but no approval channel is available',
        )
        self.assertEqual(asked, [])


class Terminal(RawCase):
    """The person at the controlling terminal of the server."""

    async def ask(self, typed, ahead=b""):
        """What a call gets when `typed` is typed after the question was shown, and what was shown."""
        self.fresh()
        person, terminal = pty.openpty()
        try:
            os.write(person, ahead)

            def control():
                os.setsid()
                fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

            server = await self.start("--approval", "terminal", preexec_fn=control)
            await server.send(INITIALIZE, INITIALIZED)
            call = self.call(
                1,
                f"touch '{self.workspace}/made' && printf done",
                sandbox_permissions="workspace-write",
                justification="The test\x1b[2K needs it",
            )
            await server.send(call)
            shown = b""
            while b"anything else rejects it: " not in shown:
                shown += await asyncio.to_thread(os.read, person, 65536)
            self.assertFalse((self.workspace / "made").exists())
            os.write(person, typed)
            result = (await server.answer(1))["result"]
            server.process.stdin.close()
            await server.process.wait()
            return result["content"][0]["text"], shown.decode()
        finally:
            os.close(person)
            os.close(terminal)

    async def test_only_the_whole_word_typed_after_the_question_allows(self):
        rejected = 'the user rejected escalating this command to "workspace-write"'
        for typed, ahead, expected in (
            (b"allow\n", b"", "done"),
            (b"y\n", b"", rejected),
            (b"\n", b"", rejected),
            (b"\n", b"allow\n", rejected),
        ):
            result, shown = await self.ask(typed, ahead)
            self.assertEqual(result, expected, typed)
            self.assertEqual((self.workspace / "made").exists(), expected == "done")
            self.assertIn(f"touch '{self.workspace}/made' && printf done", shown)
            self.assertIn("The model says: The test\\u{1b}[2K needs it", shown)

    async def test_a_server_without_a_terminal_has_no_approval_channel(self):
        server = await self.start("--approval", "terminal", start_new_session=True)
        call = self.call(
            1, "true", sandbox_permissions="workspace-write", justification="The test needs it"
        )
        await server.send(INITIALIZE, INITIALIZED, call)
        self.assertEqual(
            (await server.answer(1))["result"]["content"][0]["text"],
            'sandbox escalation to "workspace-write" requires approval, but no approval channel is available',
        )


class ClientPolicy(Case):
    """What the client's own policy, sent with a call, leaves of the mode."""

    def state(self, *entries, network="restricted"):
        profile = {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": list(entries)},
            "network": network,
        }
        return {"codex/sandbox-state-meta": {"permissionProfile": profile, "sandboxCwd": self.workspace.as_uri()}}

    @staticmethod
    def special(kind, access):
        return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}

    async def test_the_narrower_of_both_policies_holds_for_the_call(self):
        read = self.special("root", "read")
        write = self.special("project_roots", "write")
        for era in ERAS:
            async with self.client("--mode", "workspace-write", era=era) as client:
                for meta, mode in (
                    (None, "workspace-write"),
                    (self.state(read, write), "workspace-write"),
                    (self.state(read), "read-only"),
                    ({"codex/sandbox-state-meta": {}}, "read-only"),
                    ({"codex/sandbox-state-meta": "what"}, "read-only"),
                    ({"codex/sandbox-state-meta": {"permissionProfile": {"type": "disabled"}}}, "workspace-write"),
                ):
                    result = await client.call_tool("bash", bash("true"), meta=meta)
                    self.assertEqual(machine(result)["sandbox"]["mode"], mode, meta)

    async def test_an_escalation_beyond_the_clients_policy_asks_nobody(self):
        asked = []
        callback = answering("accept", ALLOW, asked)
        for era in ERAS:
            async with self.client(era=era, elicitation_callback=callback) as client:
                result = await client.call_tool(
                    "bash", escalating("true"), meta=self.state(self.special("root", "read"))
                )
                self.assertEqual(
                    text(result),
                    'sandbox escalation to "workspace-write" is wider than "read-only", the widest mode'
                    " that the client allows",
                )
        self.assertEqual(asked, [])

    async def test_what_no_mode_of_the_server_forbids_is_refused(self):
        hidden = {"path": {"type": "path", "path": "/etc"}, "access": "none"}
        async with self.client() as client:
            meta = self.state(self.special("root", "read"), hidden)
            result = await client.call_tool("bash", bash(f"touch '{self.workspace}/ran'"), meta=meta)
            self.assertEqual(machine(result)["error"]["code"], "CLIENT_POLICY")
            # What runs already can still be read and killed.
            await client.call_tool("bash", bash("sleep 60", run_in_background=True))
            killed = await client.call_tool("bash_kill", {"task_id": "bash-1"}, meta=meta)
            self.assertEqual(text(killed), "killed background task bash-1")
        self.assertTrue(result.is_error)
        self.assertEqual(
            text(result),
            "the client's policy hides /etc, which no mode of this server does; run this command with"
            " the client's own shell",
        )
        self.assertFalse((self.workspace / "ran").exists())


if __name__ == "__main__":
    unittest.main()
