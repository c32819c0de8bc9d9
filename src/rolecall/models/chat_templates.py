"""Chat templates that a policy names in place of its base's own."""

from __future__ import annotations

from pathlib import Path

PLAIN = "plain"
# A turn of the assistant ends with the model's end-of-text token, so that the model stops there.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:\n{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% endif %}"
)


def read_chat_template(name: str) -> str:
    """Return the Jinja text of `plain` or of a file. Raises ValueError where it cannot be read."""
    if name == PLAIN:
        return PLAIN_TEMPLATE
    try:
        return Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(
            f"chat_template {name!r} cannot be read: {reason}; write {PLAIN} or the path of a "
            "Jinja file"
        ) from error
