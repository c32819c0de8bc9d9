"""A solver and a verifier on one page, as a graph of LangGraph.

In this folder: rolecall train team.yaml workflow.function=langgraph_team.py:run
"""

from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages


class State(TypedDict):
    task: str
    messages: Annotated[list[AnyMessage], add_messages]
    approved: bool


def solve(state: State) -> dict:
    return {"messages": [ChatOpenAI(model="solver").invoke(state["messages"])]}


def verify(state: State) -> dict:
    shown = f"{state['task']}\n\n[solver]\n{state['messages'][-1].content}"
    verdict = ChatOpenAI(model="verifier").invoke(shown).content
    told = HumanMessage(f"[verifier]\n{verdict}")
    return {"messages": [told], "approved": "<verify>approve</verify>" in verdict}


def after_solving(state: State) -> str:
    is_second = sum(isinstance(message, AIMessage) for message in state["messages"]) > 1
    return END if is_second else "verify"


graph = StateGraph(State)
graph.add_node("solve", solve)
graph.add_node("verify", verify)
graph.add_edge(START, "solve")
graph.add_conditional_edges("solve", after_solving, ["verify", END])
graph.add_conditional_edges("verify", lambda state: END if state["approved"] else "solve")
team = graph.compile()


def run(task: dict) -> str:
    question = [HumanMessage(task["prompt"])]
    end = team.invoke({"task": task["prompt"], "messages": question, "approved": False})
    return [message.content for message in end["messages"] if isinstance(message, AIMessage)][-1]
