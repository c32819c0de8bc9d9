"""One agent with a tool, with Google's client, which calls the tool itself and keeps the chat.

In this folder: rolecall train tools.yaml workflow.function=google_sdk.py:run
"""

from google import genai
from google.genai import types


def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


def run(task: dict) -> str:
    config = types.GenerateContentConfig(tools=[add])
    with genai.Client() as client:
        chat = client.chats.create(model="solver", config=config)
        chat.send_message(task["prompt"])
        return chat.send_message("Check this, and end with the number.").text
