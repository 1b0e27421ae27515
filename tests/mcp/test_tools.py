"""The three tools over the wire: what is listed, what a call returns, what goes on in the background."""

import asyncio
import time
import unittest

from server import ERAS, LEGACY, NEW, Case, Marker, bash, machine, text

from mcp import MCPError


class Listing(Case):
    async def test_the_three_tools_are_listed_in_a_fixed_order_the_same_in_both_eras(self):
        listed = []
        for era in (*ERAS, "auto"):
            async with self.client(era=era) as client:
                listed.append([(await client.list_tools()).tools for _ in range(2)])
        tools = listed[0][0]
        self.assertTrue(all(one == tools for pair in listed for one in pair))
        self.assertEqual([tool.name for tool in tools], ["bash", "bash_output", "bash_kill"])
        self.assertEqual(
            [list(tool.input_schema["properties"]) for tool in tools],
            [
                [
                    "command",
                    "description",
                    "timeoutMs",
                    "workdir",
                    "run_in_background",
                    "sandbox_permissions",
                    "justification",
                ],
                ["task_id", "wait_ms"],
                ["task_id"],
            ],
        )
        for tool in tools:
            self.assertEqual(tool.meta, {"anthropic/alwaysLoad": True})
            self.assertIsNone(tool.output_schema)
            self.assertEqual(tool.input_schema["type"], "object")
            self.assertTrue(tool.description)

    async def test_annotations_say_what_each_tool_does(self):
        def hints(tool):
            said = tool.annotations.model_dump(by_alias=True, exclude_none=True)
            return {key: value for key, value in said.items() if key.endswith("Hint")}

        for args, open_world in ((), False), (("--network", "host"), True):
            async with self.client(*args) as client:
                said = {tool.name: hints(tool) for tool in (await client.list_tools()).tools}
            self.assertEqual(
                said,
                {
                    "bash": {
                        "readOnlyHint": False,
                        "destructiveHint": True,
                        "idempotentHint": False,
                        "openWorldHint": open_world,
                    },
                    "bash_output": {
                        "readOnlyHint": True,
                        "destructiveHint": False,
                        "idempotentHint": False,
                        "openWorldHint": False,
                    },
                    "bash_kill": {
                        "readOnlyHint": False,
                        "destructiveHint": True,
                        "idempotentHint": True,
                        "openWorldHint": False,
                    },
                },
            )

    async def test_the_era_is_the_one_that_the_client_speaks(self):
        for era, version in ((LEGACY, "2025-11-25"), (NEW, NEW), ("auto", NEW)):
            async with self.client(era=era) as client:
                self.assertEqual(client.protocol_version, version)
                if era != NEW:
                    # A pinned version asks for no description of the server.
                    self.assertEqual(client.server_info.name, "cofferdam")
                    self.assertEqual(
                        client.server_capabilities.experimental, {"codex/sandbox-state-meta": {}}
                    )


class Calls(Case):
    async def test_a_result_is_text_and_the_machines_copy_is_meta(self):
        for era in ERAS:
            async with self.client(era=era) as client:
                result = await client.call_tool("bash", bash("printf out; printf err >&2; exit 3"))
                self.assertEqual(text(result), "out\n[stderr]\nerr\n[exit code: 3]")
                self.assertEqual(len(result.content), 1)
                self.assertFalse(result.is_error)
                self.assertIsNone(result.structured_content)
                self.assertEqual(machine(result)["exitCode"], 3)
                self.assertEqual(machine(result)["stdout"]["text"], "out")
                self.assertEqual(
                    result.meta["cofferdam/card"],
                    {"card": "terminal", "output": text(result), "exitCode": 3},
                )

    async def test_structured_content_comes_only_when_asked_for(self):
        async with self.client("--structured") as client:
            result = await client.call_tool("bash", bash("printf out"))
        self.assertEqual(text(result), "out")
        self.assertEqual(result.structured_content, machine(result))

    async def test_wrong_arguments_are_an_error_result_that_names_each(self):
        for era in ERAS:
            async with self.client(era=era) as client:
                result = await client.call_tool("bash", {"timeoutMs": "soon"})
                self.assertTrue(result.is_error)
                self.assertEqual(
                    text(result),
                    'invalid arguments: missing required "command"; missing required "description";'
                    ' "timeoutMs" must be a number',
                )
                self.assertEqual(text(await client.call_tool("bash", bash("printf ok"))), "ok")

    async def test_an_unknown_tool_is_a_protocol_error_and_the_server_goes_on(self):
        for era in ERAS:
            async with self.client(era=era) as client:
                with self.assertRaises(MCPError) as raised:
                    await client.call_tool("zsh", bash("true"))
                self.assertEqual(raised.exception.error.code, -32602)
                self.assertEqual(raised.exception.error.message, 'unknown tool "zsh"')
                self.assertEqual(text(await client.call_tool("bash", bash("printf ok"))), "ok")

    async def test_calls_run_side_by_side(self):
        async with self.client(era=NEW) as client:
            # Each waits for the other's file.
            def meet(mine, other):
                wait = f"touch /tmp/{mine}; for i in $(seq 100); do [ -e /tmp/{other} ] && break; sleep 0.1; done"
                return client.call_tool("bash", bash(f"{wait}; [ -e /tmp/{other} ]"))

            marker = Marker().seconds
            results = await asyncio.gather(meet(f"a-{marker}", f"b-{marker}"), meet(f"b-{marker}", f"a-{marker}"))
            self.assertEqual([machine(result)["exitCode"] for result in results], [0, 0])
            await client.call_tool("bash", bash(f"rm -f /tmp/?-{marker}"))


class Progress(Case):
    async def test_progress_rises_strictly_while_a_command_runs(self):
        for era in ERAS:
            told = []

            async def note(progress, total, message):
                told.append((progress, total, message))

            async with self.client(era=era) as client:
                await client.call_tool(
                    "bash", bash("printf 12345; sleep 2.2"), progress_callback=note
                )
                count = len(told)
                await client.call_tool("bash", bash("true"), progress_callback=note)
            self.assertEqual(len(told), count, "a short call tells nothing")
            self.assertIn(count, (2, 3))
            numbers = [progress for progress, _, _ in told]
            self.assertEqual(numbers, sorted(set(numbers)))
            self.assertEqual(told[-1][2], f"running, {int(numbers[-1])} s, 5 bytes of output")


class Cancelling(Case):
    async def test_a_cancelled_call_leaves_no_process(self):
        for era in ERAS:
            marker = Marker()
            async with self.client(era=era) as client:
                call = asyncio.create_task(
                    client.call_tool(
                        "bash", bash(f"(setsid sleep {marker.seconds} &); sleep {marker.seconds}")
                    )
                )
                self.assertTrue(await marker.appears())
                call.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await call
                self.assertTrue(await marker.vanishes())
                self.assertEqual(text(await client.call_tool("bash", bash("printf ok"))), "ok")


class Background(Case):
    async def test_a_task_is_polled_and_killed(self):
        for era in ERAS:
            marker = Marker()
            async with self.client(era=era) as client:
                started = await client.call_tool(
                    "bash", bash(f"echo first; sleep {marker.seconds}", run_in_background=True)
                )
                self.assertEqual(machine(started)["task"], "bash-1")
                self.assertTrue(await marker.appears())
                poll = {"task_id": "bash-1", "wait_ms": 5000}
                self.assertEqual(text(await client.call_tool("bash_output", poll)), "first\n[status: running]")
                del poll["wait_ms"]
                self.assertEqual(
                    text(await client.call_tool("bash_output", poll)), "(no new output)\n[status: running]"
                )
                killed = await client.call_tool("bash_kill", poll)
                self.assertEqual(text(killed), "killed background task bash-1")
                self.assertEqual(marker.processes(), [])
                again = await client.call_tool("bash_kill", poll)
                self.assertEqual(text(again), "task bash-1 had already finished")
                self.assertFalse(again.is_error)
                self.assertEqual(
                    text(await client.call_tool("bash_output", poll)), "(no new output)\n[status: killed]"
                )

    async def test_the_end_of_a_task_is_told_once_with_the_next_result(self):
        async with self.client() as client:
            await client.call_tool("bash", bash("exit 4", run_in_background=True))
            await asyncio.sleep(1)
            first = await client.call_tool("bash", bash("printf one"))
            self.assertEqual(
                [block.text for block in first.content],
                [
                    "one",
                    "background bash task bash-1 finished [status: completed, exit code: 4]."
                    " Read its output with bash_output.",
                ],
            )
            second = await client.call_tool("bash", bash("printf two"))
            self.assertEqual([block.text for block in second.content], ["two"])

    async def test_what_was_denied_to_a_task_is_told_once_when_it_has_settled(self):
        for era in ERAS:
            async with self.client(era=era) as client:
                made = self.workspace / "made"
                await client.call_tool(
                    "bash", bash(f"touch '{made}'; sleep 1; exit 3", run_in_background=True)
                )
                read = lambda **more: client.call_tool("bash_output", {"task_id": "bash-1", **more})
                first = text(await read(wait_ms=5000))
                self.assertEqual(
                    first, f"[stderr]\ntouch: cannot touch '{made}': Read-only file system\n[status: running]"
                )
                self.assertEqual(
                    text(await read(wait_ms=5000)),
                    "(no new output)\n[status: completed, exit code: 3]\n"
                    "[sandbox: file access denied under read-only mode]\n"
                    f"[sandbox: blocked write {made}; allowed under workspace-write]\n"
                    "[sandbox: escalation available — retry this exact command once with sandbox_permissions"
                    " (the narrowest wider mode that suffices) + justification; the approval prompt asks the user]",
                )
                self.assertEqual(
                    text(await read()), "(no new output)\n[status: completed, exit code: 3]"
                )

    async def test_a_read_that_waits_returns_with_output_or_the_end_and_not_before(self):
        async with self.client() as client:
            read = lambda **more: client.call_tool("bash_output", {"task_id": "bash-1", **more})
            await client.call_tool(
                "bash", bash("sleep 1; echo one; sleep 1; exit 0", run_in_background=True)
            )
            started = time.monotonic()
            none = text(await read(wait_ms=200))
            self.assertEqual(none, "(no new output)\n[status: running]")
            self.assertGreaterEqual(time.monotonic() - started, 0.2)
            self.assertEqual(text(await read(wait_ms=30_000)), "one\n[status: running]")
            self.assertEqual(
                text(await read(wait_ms=30_000)), "(no new output)\n[status: completed, exit code: 0]"
            )
            self.assertLess(time.monotonic() - started, 15)
            for wrong in (-1, "soon"):
                self.assertTrue((await read(wait_ms=wrong)).is_error)

    async def test_a_poll_that_shows_the_end_needs_no_notice(self):
        async with self.client() as client:
            await client.call_tool("bash", bash("exit 4", run_in_background=True))
            await asyncio.sleep(1)
            poll = await client.call_tool("bash_output", {"task_id": "bash-1"})
            self.assertEqual(
                [block.text for block in poll.content],
                ["(no new output)\n[status: completed, exit code: 4]"],
            )

    async def test_a_command_that_takes_long_goes_on_in_the_background(self):
        for era in ERAS:
            async with self.client("--yield-ms", "700", era=era) as client:
                result = await client.call_tool("bash", bash("echo early; sleep 2; echo late; exit 5"))
                self.assertFalse(result.is_error)
                self.assertIn("early", text(result))
                self.assertIn("bash-1", text(result))
                self.assertEqual(machine(result)["task"], "bash-1")
                end = await client.call_tool("bash_output", {"task_id": "bash-1", "wait_ms": 5000})
                self.assertIn("late", text(end))
                if "[status: running]" in text(end):
                    end = await client.call_tool("bash_output", {"task_id": "bash-1", "wait_ms": 5000})
                self.assertTrue(text(end).endswith("[status: completed, exit code: 5]"))

    async def test_yielding_can_be_turned_off(self):
        async with self.client("--yield-ms", "0") as client:
            result = await client.call_tool("bash", bash("sleep 1; printf done"))
            self.assertEqual(text(result), "done")

    async def test_two_servers_dont_reach_each_others_tasks(self):
        for era in ERAS:
            marker = Marker()
            async with self.client(era=era) as one, self.client(era=era) as other:
                await one.call_tool("bash", bash(f"sleep {marker.seconds}", run_in_background=True))
                for tool in ("bash_output", "bash_kill"):
                    refused = await other.call_tool(tool, {"task_id": "bash-1"})
                    self.assertTrue(refused.is_error)
                    self.assertEqual(text(refused), 'unknown bash task "bash-1"')
                self.assertTrue(await marker.appears())
                reached = await one.call_tool("bash_kill", {"task_id": "bash-1"})
                self.assertEqual(text(reached), "killed background task bash-1")


if __name__ == "__main__":
    unittest.main()
