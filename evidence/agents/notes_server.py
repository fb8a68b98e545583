"""An MCP server with the tools of plan.py, over standard input and output."""

from mcp.server import MCPServer
from plan import TOOLS

server = MCPServer("notes")
for tool in TOOLS:
    server.add_tool(tool)
server.run()
