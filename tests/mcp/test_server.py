"""The life of a server: how it starts, what it survives, and that it leaves nothing behind."""

import asyncio
import base64
import json
import re
import signal
import unittest

from raw import INITIALIZE, INITIALIZED, RawCase
from server import ERAS, Case, Marker, bash, text


class Lines(RawCase):
    async def test_lines_that_are_no_messages_are_answered_and_cost_nothing_else(self):
        server = await self.start()
        junk = [
            b"hello",
            b"{",
            b"[]",
            b"17",
            b"\xff\xfe\x00",
            b"{}",
            b'{"jsonrpc":"2.0"}',
            b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
            b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
            b"[" * 100_000,
        ]
        for line in junk:
            await server.send(line)
            answer = await server.receive()
            self.assertIn(answer["error"]["code"], (-32700, -32600), line[:60])
        # Before the handshake: what nobody may answer is passed over, the rest is answered.
        await server.send(
            b"",
            INITIALIZED,
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}},
            {"jsonrpc": "2.0", "id": 9, "result": {}},
            {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
        )
        self.assertIn("error", await server.answer(3))
        await server.send(INITIALIZE)
        self.assertEqual((await server.answer("hello"))["result"]["protocolVersion"], "2025-03-26")
        await server.send(INITIALIZED)
        for line in junk:
            await server.send(line)
            self.assertIn("error", await server.receive())
        malformed = (
            ({}, -32602),
            (None, -32602),
            ({"name": 5}, -32602),
            ({"name": "bash", "arguments": 5}, -32602),
            ([], -32600),
            ("x", -32600),
        )
        for id, (params, code) in enumerate(malformed, 100):
            await server.send({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
            self.assertEqual((await server.answer(id))["error"]["code"], code, params)
        await server.send({"jsonrpc": "2.0", "id": 200, "method": "no/such"})
        self.assertEqual((await server.answer(200))["error"]["code"], -32601)
        await server.send(self.call(7, "printf ok"))
        self.assertEqual((await server.answer(7))["result"]["content"], [{"type": "text", "text": "ok"}])

    async def test_the_messages_of_a_batch_are_each_answered(self):
        server = await self.start()
        await server.send(INITIALIZE)
        await server.answer("hello")
        await server.send([self.call(1, "printf one"), self.call(2, "printf two")])
        answers = [await server.receive(), await server.receive()]
        self.assertEqual(
            {answer["id"]: answer["result"]["content"][0]["text"] for answer in answers}, {1: "one", 2: "two"}
        )

    async def test_every_revision_with_a_handshake_is_spoken(self):
        for version in ("2025-03-26", "2025-06-18", "2025-11-25"):
            server = await self.start()
            initialize = {**INITIALIZE, "params": {**INITIALIZE["params"], "protocolVersion": version}}
            await server.send(initialize)
            self.assertEqual((await server.answer("hello"))["result"]["protocolVersion"], version)
            await server.send(INITIALIZED, self.call(1, "printf ok"))
            self.assertEqual((await server.answer(1))["result"]["content"][0]["text"], "ok")


class End(RawCase):
    async def test_requests_before_the_end_of_input_are_answered(self):
        server = await self.start()
        await server.send(INITIALIZE, INITIALIZED, self.call(1, "printf ok"))
        server.process.stdin.close()
        self.assertEqual((await server.answer(1))["result"]["content"][0]["text"], "ok")
        self.assertEqual(await asyncio.wait_for(server.process.wait(), 10), 0)

    async def test_the_end_of_input_and_each_signal_leave_no_process(self):
        for how in ("input", signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            marker = Marker()
            server = await self.start()
            sleep = f"sleep {marker.seconds}"
            await server.send(
                INITIALIZE,
                INITIALIZED,
                self.call(1, f"(setsid {sleep} &); {sleep}"),
                self.call(2, sleep, run_in_background=True),
            )
            await server.answer(2)
            self.assertTrue(await marker.appears())
            if how == "input":
                server.process.stdin.close()
            else:
                server.process.send_signal(how)
            self.assertEqual(await asyncio.wait_for(server.process.wait(), 10), 0, how)
            self.assertEqual(marker.processes(), [], how)

    async def test_a_client_that_ends_leaves_no_process(self):
        for era in ERAS:
            marker = Marker()
            async with self.client(era=era) as client:
                for background in (True, False):
                    await client.call_tool(
                        "bash", bash(f"setsid sleep {marker.seconds} & echo", run_in_background=background)
                    )
                await client.call_tool("bash", bash(f"sleep {marker.seconds}", run_in_background=True))
                self.assertTrue(await marker.appears())
            self.assertTrue(await marker.vanishes(2))


    async def test_a_server_that_is_killed_leaves_no_process(self):
        marker = Marker()
        server = await self.start()
        sleep = f"sleep {marker.seconds}"
        await server.send(
            INITIALIZE,
            INITIALIZED,
            self.call(1, f"(setsid {sleep} &); {sleep}"),
            self.call(2, sleep, run_in_background=True),
        )
        await server.answer(2)
        self.assertTrue(await marker.appears())
        server.process.kill()
        await server.process.wait()
        self.assertTrue(await marker.vanishes(1))


class Environment(Case):
    async def test_a_command_gets_the_servers_environment_without_secrets_and_the_managed_one(self):
        self.env |= {"EDITOR": "vi", "PAGER": "less", "API_KEY": "1", "some_Secret": "2", "GH_TOKEN_X": "3"}
        self.env |= {"DSH_SESSION_ID": "another", "DSH_OTHER": "4"}
        for era in ERAS:
            async with self.client(era=era) as client:
                result = await client.call_tool("bash", bash("env -0 | base64 -w0"))
            pairs = base64.b64decode(text(result)).decode().split("\0")[:-1]
            found = dict(pair.split("=", 1) for pair in pairs)
            (log,) = (self.home / ".dsh/sessions").glob("*.jsonl")
            expected = {
                "DSH_HOME": str(self.home / ".dsh"),
                "DSH_SHELL": "1",
                "DSH_SESSION_ID": log.stem,
                "DSH_SESSION_JSONL": str(log),
            }
            self.assertEqual({key: value for key, value in found.items() if key.startswith("DSH_")}, expected)
            plain = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "EDITOR": "vi"}
            self.assertEqual({key: found.get(key) for key in plain}, plain)
            secret = re.compile("KEY|SECRET|TOKEN", re.IGNORECASE)
            self.assertEqual([key for key in found if secret.search(key)], [])
            log.unlink()


class Prompt(Case):
    MODE = "Shell commands of this session run under read-only mode."

    def switch(self, mode):
        (log,) = (self.home / ".dsh/sessions").glob("*.jsonl")
        event = {"at": 0, "type": "bash/sandbox-mode", "mode": mode, "by": "test"}
        with log.open("a") as file:
            file.write(json.dumps(event) + "\n")

    async def test_by_default_neither_the_mode_nor_a_switch_is_told(self):
        for era in ("legacy", "auto"):
            async with self.client(era=era) as client:
                self.assertIn("[exit code: N]", client.instructions)
                self.assertNotIn("read-only", client.instructions)
                self.switch("workspace-write")
                result = await client.call_tool("bash", bash("printf ok"))
                self.assertEqual([block.text for block in result.content], ["ok"])
                self.assertEqual(result.meta["cofferdam/result"]["sandbox"]["mode"], "workspace-write")
            for log in (self.home / ".dsh/sessions").glob("*.jsonl"):
                log.unlink()

    async def test_the_mode_and_each_switch_are_told_where_that_is_asked_for(self):
        for era in ("legacy", "auto"):
            async with self.client("--announce-mode", "always", era=era) as client:
                self.assertIn(self.MODE, client.instructions)
                first = await client.call_tool("bash", bash("printf ok"))
                self.assertEqual([block.text for block in first.content], ["ok"])
                self.switch("workspace-write")
                second = await client.call_tool("bash", bash("printf ok"))
                self.assertEqual(len(second.content), 2)
                self.assertTrue(
                    second.content[1].text.startswith(
                        "Shell commands of this session now run under workspace-write mode (before: read-only)."
                    )
                )
                third = await client.call_tool("bash", bash("printf ok"))
                self.assertEqual([block.text for block in third.content], ["ok"])
            for log in (self.home / ".dsh/sessions").glob("*.jsonl"):
                log.unlink()


class Sessions(RawCase):
    async def test_a_session_is_taken_up_again_with_its_mode(self):
        async with self.client("--mode", "workspace-write") as client:
            await client.call_tool("bash", bash("true"))
        (log,) = (self.home / ".dsh/sessions").glob("*.jsonl")
        switch = {"at": 0, "type": "bash/sandbox-mode", "mode": "read-only", "by": "test"}
        with log.open("a") as file:
            file.write(json.dumps(switch) + "\n")
        for era in ERAS:
            async with self.client("--mode", "workspace-write", "--session", log.stem, era=era) as client:
                result = await client.call_tool("bash", bash("printf $DSH_SESSION_ID"))
                self.assertEqual(text(result), log.stem)
                self.assertEqual(result.meta["cofferdam/result"]["sandbox"]["mode"], "read-only")

    async def test_a_switch_to_read_only_outlives_a_server_that_is_killed_in_mid_write(self):
        for rounds in range(3):
            one = await self.start("--mode", "workspace-write")
            await one.send(INITIALIZE, INITIALIZED, self.call(1, "touch before && printf $DSH_SESSION_ID"))
            id = (await one.answer(1))["result"]["content"][0]["text"]
            # Calls write events without a pause while a person switches, and then comes the end.
            for number in range(2, 40):
                await one.send(self.call(number, "true"))
            switched = await asyncio.to_thread(self.run_cofferdam, "session", "mode", id, "read-only")
            self.assertEqual(
                switched.stdout,
                "switched from workspace-write to read-only, effective with the next call\n",
            )
            await one.send(self.call(40, "true"))
            await asyncio.sleep(0.01 * rounds)
            one.process.kill()
            await one.process.wait()
            log = self.home / f".dsh/sessions/{id}.jsonl"
            with log.open("a") as file:
                # As a write ends that was cut short.
                file.write('{"at":1,"type":"bash/sandbox-mode","mode":"danger-full-acc')
            (self.workspace / "made").unlink(missing_ok=True)
            again = await self.start("--mode", "workspace-write", "--session", id)
            await again.send(INITIALIZE, INITIALIZED, self.call(1, "touch made"), self.call(2, "ls"))
            result = (await again.answer(1))["result"]
            self.assertEqual(result["_meta"]["cofferdam/result"]["sandbox"]["mode"], "read-only")
            self.assertFalse((self.workspace / "made").exists())
            # Switched back, the same command runs.
            self.run_cofferdam("session", "mode", id, "workspace-write")
            await again.send(self.call(3, "touch made"))
            await again.answer(3)
            self.assertTrue((self.workspace / "made").exists())
            again.process.stdin.close()
            await again.process.wait()

    async def test_a_narrower_switch_names_the_tasks_that_run_wider_until_they_end(self):
        server = await self.start("--mode", "workspace-write")
        await server.send(INITIALIZE, INITIALIZED, self.call(1, "sleep 600", run_in_background=True))
        await server.answer(1)
        (log,) = (self.home / ".dsh/sessions").glob("*.jsonl")
        first = self.run_cofferdam("session", "mode", log.stem, "read-only").stdout
        self.assertEqual(
            first,
            "switched from workspace-write to read-only, effective with the next call\n"
            "bash-1 still runs under workspace-write: sleep 600\n",
        )
        await server.send(self.call(2, "true"))
        result = (await server.answer(2))["result"]
        self.assertEqual(result["_meta"]["cofferdam/result"]["sandbox"]["mode"], "read-only")
        kill = {"name": "bash_kill", "arguments": {"task_id": "bash-1"}}
        await server.send({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": kill})
        await server.answer(3)
        self.run_cofferdam("session", "mode", log.stem, "workspace-write")
        again = self.run_cofferdam("session", "mode", log.stem, "read-only").stdout
        self.assertNotIn("bash-1", again)

    async def test_a_session_that_isnt_there_serves_nothing(self):
        refused = self.run_cofferdam("mcp", "--session", "0" * 32)
        self.assertEqual((refused.returncode, refused.stdout), (125, ""))
        self.assertIn(f'no session "{"0" * 32}"', refused.stderr)


if __name__ == "__main__":
    unittest.main()
