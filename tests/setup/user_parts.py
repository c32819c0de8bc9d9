"""Parts of a user's own with the mistakes that are made first."""

from rolecall.workflows.base import workflow


def sync_reward(episode, world):
    return {"team": 1.0}


class SyncReward:
    def __call__(self, episode, world):
        return {"team": 1.0}


class NoEnvironment:
    pass


async def async_parser(turn):
    return None


async def silent(team, task, world):
    await team.left(task.prompt)
    await team.right(task.prompt)
    await team.last(task.prompt)


def not_async(team, task, world):
    return team.left(task.prompt)


@workflow
async def fine(team, task, world):
    await team.left(task.prompt)
    await team.right(task.prompt)
    return await team.last(task.prompt)
