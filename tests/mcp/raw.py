"""A server without a client between, for lines that no client sends."""

import asyncio
import json
import os

from server import BINARY, Case, bash


class Raw:
    """A server at the other end of two pipes, without a client between."""

    def __init__(self, process):
        self.process = process

    async def send(self, *lines):
        for line in lines:
            if not isinstance(line, bytes):
                line = json.dumps(line).encode()
            self.process.stdin.write(line + b"\n")
        await self.process.stdin.drain()

    async def receive(self):
        line = await asyncio.wait_for(self.process.stdout.readline(), 10)
        return json.loads(line)

    async def answer(self, id):
        while True:
            message = await self.receive()
            if message.get("id") == id:
                return message


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-03-26",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class RawCase(Case):
    async def start(self, *args, **options):
        process = await asyncio.create_subprocess_exec(
            BINARY,
            "mcp",
            *args,
            cwd=self.workspace,
            env={**os.environ, **self.env},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            **options,
        )

        async def end():
            if process.returncode is None:
                process.kill()
                await process.wait()
            process.stdin.close()
            process._transport.close()

        self.addAsyncCleanup(end)
        return Raw(process)

    def call(self, id, command, **more):
        params = {"name": "bash", "arguments": bash(command, **more)}
        return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
