// Fetches answers of the server; each is keyed by its request, so that a stale one is never shown.
import { useEffect, useState } from "preact/hooks";
import type { Answers } from "./api";
import type { Changes } from "./router";

export interface Answer<T> {
  data: T | null;
  error: string;
  reload: () => void;
}

const KEPT = 24; // answers for the way back
const kept = new Map<string, unknown>();

export function writeRequest(path: string, query: Changes): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") parameters.set(name, String(value));
  }
  const text = parameters.toString();
  return `api/${path}` + (text ? `?${text}` : "");
}

export async function fetchJson<T>(request: string, options: RequestInit = {}): Promise<T> {
  let response: Response;
  try {
    response = await fetch(request, options);
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Error("The server of rolecall watch does not answer: is it still running?");
  }
  if (!response.ok) throw new Error(await readDetail(response));
  return (await response.json()) as T;
}

/** Sends JSON, which is all that the server takes. */
export function postJson<T>(request: string, body: object): Promise<T> {
  const headers = { "content-type": "application/json" };
  return fetchJson<T>(request, { method: "POST", headers, body: JSON.stringify(body) });
}

export async function readDetail(response: Response): Promise<string> {
  try {
    const { detail } = (await response.json()) as { detail?: unknown };
    if (detail) return typeof detail === "string" ? detail : JSON.stringify(detail);
  } catch {
    // not JSON: the status says what there is to say
  }
  return `The server answered ${response.status} ${response.statusText}`;
}

interface Held {
  request: string;
  data: unknown;
  error: string;
}

/** Returns the answer to a request; null as request asks for nothing. */
export function useAnswer<K extends keyof Answers>(
  _kind: K,
  request: string | null,
): Answer<Answers[K]> {
  const [held, setHeld] = useState<Held>({ request: "", data: null, error: "" });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (request === null) return;
    const controller = new AbortController();
    fetchJson(request, { signal: controller.signal }).then(
      (data) => {
        keep(request, data);
        setHeld({ request, data, error: "" });
      },
      (error: Error) => {
        if (!controller.signal.aborted) setHeld({ request, data: null, error: error.message });
      },
    );
    return () => controller.abort();
  }, [request, round]);
  const reload = (): void => setRound((before) => before + 1);
  if (request === null) return { data: null, error: "", reload };
  const isCurrent = held.request === request;
  const data = isCurrent ? held.data : (kept.get(request) ?? null);
  return { data: data as Answers[K] | null, error: isCurrent ? held.error : "", reload };
}

function keep(request: string, data: unknown): void {
  kept.delete(request);
  kept.set(request, data);
  const oldest = kept.keys().next();
  if (kept.size > KEPT && !oldest.done) kept.delete(oldest.value);
}

/** Calls every so many milliseconds, and only while the tab is visible. */
export function useInterval(call: () => void, milliseconds: number): void {
  useEffect(() => {
    const tick = (): void => {
      if (document.visibilityState === "visible") call();
    };
    const timer = setInterval(tick, milliseconds);
    document.addEventListener("visibilitychange", tick);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, [call, milliseconds]);
}
