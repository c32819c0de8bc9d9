"""A server with SGLang's HTTP interface over a real small model of transformers and PEFT.

It refuses what SGLang's own sources do not name: keys of requests and of sampling parameters, a
second adapter of one name, an unknown one, a flush while it samples. It is no SGLang.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.engines.servers import Asked, Server, Told, serving

SAMPLING = {
    "max_new_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p",
    "frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos",
    "skip_special_tokens", "no_stop_trim", "sampling_seed", "logit_bias",
}  # fmt: skip
GENERATE = {"input_ids", "sampling_params", "return_logprob", "logprob_start_len", "lora_path"}


class StandIn:
    def __init__(self, folder: Path, *, context: int = 512) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.base = self.model
        self.context, self.label = context, "default"
        self.adapters: list[str] = []
        self.released: set[str] = set()
        self.lock = threading.Lock()  # requests and updates exclude each other
        self.unpaused = threading.Event()
        self.unpaused.set()
        self.forgetful = False  # says that it has loaded what it has not
        self.abort = False

    def __call__(self, asked: Asked) -> Any:
        name = asked.path.strip("/").replace("/", "_")
        try:
            return getattr(self, f"_{name}")(asked.body)
        except Refusal as error:
            return Told(400, {"error": {"message": str(error)}})

    def _health(self, body: dict) -> Told:
        return Told(200, b"")

    def _v1_models(self, body: dict) -> dict:
        return {"data": [{"id": "base", "max_model_len": self.context}]}

    def _generate(self, body: dict) -> dict:
        if unknown := set(body) - GENERATE or set(body["sampling_params"]) - SAMPLING:
            raise Refusal(f"unexpected keyword arguments {unknown}")
        if len(body["input_ids"]) >= self.context:
            raise Refusal("The input is longer than the model's context length")
        if len(body["input_ids"]) + body["sampling_params"]["max_new_tokens"] > self.context:
            raise Refusal("Requested token count exceeds the model's maximum context length")
        self.unpaused.wait(5.0)
        with self.lock, torch.no_grad():
            if self.released:
                raise Refusal(f"{self.released} are released")
            with self._adapted(body.get("lora_path")):
                return self._sampled(body)

    def _sampled(self, body: dict) -> dict:
        ids, how = list(body["input_ids"]), body["sampling_params"]
        num_prompt, said, reason = len(ids), [], {"type": "length"}
        generator = torch.Generator().manual_seed(how.get("sampling_seed", 0))
        while len(ids) - num_prompt < how["max_new_tokens"]:
            logits = self.model(torch.tensor([ids])).logits[0, -1]
            for number, bias in how.get("logit_bias", {}).items():
                logits[int(number)] += bias
            if how["temperature"] == 0.0:
                logprobs = logits.log_softmax(-1)
                token = int(logprobs.argmax())
            else:
                logprobs = (logits / how["temperature"]).log_softmax(-1)
                token = int(torch.multinomial(logprobs.exp(), 1, generator=generator))
            ids.append(token)
            said.append([float(logprobs[token]), token, None])
            text = self.tokenizer.decode(ids[num_prompt:])
            if token in how["stop_token_ids"] and len(said) < how["max_new_tokens"]:
                reason = {"type": "stop", "matched": token}
                break
            if token in how["stop_token_ids"]:
                break  # exactly at the limit SGLang says `length`
            if found := [stop for stop in how.get("stop") or [] if stop in text]:
                reason = {"type": "stop", "matched": found[0]}
                break
        if self.abort:
            reason = {"type": "abort", "message": "Abort by a test"}
        meta = {
            "id": "r", "finish_reason": reason, "prompt_tokens": num_prompt,
            "completion_tokens": len(said), "weight_version": self.label,
            "output_token_logprobs": said, "input_token_logprobs": self._inputs(body),
        }  # fmt: skip
        return {"text": self.tokenizer.decode(ids[num_prompt:]), "meta_info": meta}

    def _inputs(self, body: dict) -> list:
        """From `logprob_start_len` on; the first has none, and the temperature plays no part."""
        start, ids = body.get("logprob_start_len", -1), body["input_ids"]
        if start == -1:
            return []
        logprobs = self.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        scored = [
            [float(logprobs[i - 1, ids[i]]), ids[i], None] for i in range(start + 1, len(ids))
        ]
        return [[None, ids[start], None], *scored]

    @contextmanager
    def _adapted(self, name: str | None) -> Iterator[None]:
        if name is not None and name not in self.adapters:
            raise Refusal(f"Got LoRA adapter that has never been loaded: {name}")
        if name is not None:
            self.model.set_adapter(name)
            yield
        elif self.adapters:
            with self.model.disable_adapter():
                yield
        else:
            yield

    def _update_weights_from_disk(self, body: dict) -> dict | Told:
        assert set(body) <= {"model_path", "weight_version", "flush_cache"}
        files = sorted(Path(body["model_path"]).glob("*.safetensors"))
        if not files:
            return Told(400, {"success": False, "message": "Failed to update weights: no files"})
        with self.lock:
            if not self.forgetful:
                for file in files:
                    self.base.load_state_dict(load_file(file), strict=False)
            self.label = body["weight_version"]
        return {"success": True, "message": "Succeeded", "num_paused_requests": 0}

    def _load_lora_adapter(self, body: dict) -> dict | Told:
        name = body["lora_name"]
        if name in self.adapters:
            return Told(400, {"success": False, "error_message": f"{name} is already loaded"})
        with self.lock:
            if isinstance(self.model, PeftModel):
                self.model.load_adapter(body["lora_path"], name)
            else:
                self.model = PeftModel.from_pretrained(self.model, body["lora_path"], name)
            self.model.eval()
            self.adapters.append(name)
        return {"success": True, "loaded_adapters": dict.fromkeys(self.adapters, "path")}

    def _unload_lora_adapter(self, body: dict) -> dict | Told:
        name = body["lora_name"]
        if name not in self.adapters:
            return Told(400, {"success": False, "error_message": f"{name} is not loaded"})
        with self.lock:
            self.adapters.remove(name)  # the object keeps it, and nothing asks for it again
        return {"success": True, "loaded_adapters": dict.fromkeys(self.adapters, "path")}

    def _flush_cache(self, body: dict) -> Told:
        if not self.lock.acquire(blocking=False):
            return Told(400, b"Flush cache failed.\n")
        self.lock.release()
        return Told(200, b"Cache flushed.\n")

    def _pause_generation(self, body: dict) -> dict:
        assert body["mode"] in ("abort", "retract", "in_place")
        self.unpaused.clear()
        return {"status": "ok"}

    def _continue_generation(self, body: dict) -> dict:
        self.unpaused.set()
        return {"status": "ok"}

    def _release_memory_occupation(self, body: dict) -> None:
        assert not self.released & set(body["tags"])
        self.released |= set(body["tags"])

    def _resume_memory_occupation(self, body: dict) -> None:
        assert set(body["tags"]) <= self.released
        self.released -= set(body["tags"])


class Refusal(Exception):
    """What SGLang answers with status 400."""


@contextmanager
def standing_in(folder: Path, **options: Any) -> Iterator[tuple[StandIn, Server]]:
    stand_in = StandIn(folder, **options)
    with serving(stand_in) as server:
        yield stand_in, server
